"""A session that runs, as the analysis takes it: the newest of what its processes recorded.

The newest POSIX calls of a session that runs, as far as dftracer has written them.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec
import numpy as np
from msgspec.structs import replace

from iotrace.session import names
from iotrace.session.liveness import ENDED, KILLED, Launch, joint_state, read_launches
from iotrace.session.manifest import read_document, read_manifest
from iotrace.session.reading import entries
from iotrace.session.recorded import list_directories
from iotrace.sources.clocks.anchors import Clocks, relate_clocks
from iotrace.sources.clocks.session_clock import FOREVER_NS, Clock
from iotrace.sources.columns import Columns
from iotrace.sources.dftracer.call_reader import CallTable, Index
from iotrace.sources.dftracer.lines import LineReader, scan_hashes
from iotrace.sources.live.process import LiveProcess, LiveSidecar, Tail
from iotrace.sources.live.recorded import Known, LiveRecorded, NewestCalls
from iotrace.sources.paths import Paths
from iotrace.sources.posix_calls import COLUMNS, PosixCalls
from iotrace.sources.processes import Process
from iotrace.sources.records import Identity, OwnLog
from iotrace.sources.session import Rank, Session, is_data_file
from iotrace.sources.stolen_time import add_stolen_time
from iotrace.sources.telemetry import Telemetry, read_telemetry

# dftracer writes some 215 bytes a call: at 80 MB/s these take 25 ms of CPU time a look.
MOST_BYTES = 2 << 20
_LEAST_BYTES = 16 << 10
_MOST_PASSED = 64 << 20  # in what was passed over, names of files are looked for in the newest of it alone
_MOST_FILES = 1_024
_MOST_CALLS = 600_000
_SLACK_NS = 1_000_000_000  # a clock that is set may show a call older than it is
_NAMES = re.compile(rb'\n\{"name":"(?:FH|HH)"[^\n]*')


class _Table(CallTable):
    """The newest calls of all logs."""

    def learn(self, pool: dict[str, str]) -> None:
        """Take names by their hashes, from lines that are not taken themselves."""
        self._pool |= pool

    def keep(self, since_ns: int) -> int:
        """Give up the calls before `since_ns`, and the oldest of too many; return since when all are kept."""
        while self._count > _MOST_CALLS:
            self._count -= len(self._tables[0])
            since_ns = max(since_ns, int(self._tables.pop(0)[:, COLUMNS.index("end_ns")].max()))
        kept = [table[table[:, COLUMNS.index("end_ns")] >= since_ns] for table in self._tables]
        self._tables = [table for table in kept if len(table)]
        self._logs = np.cumsum([len(table) for table in self._tables]).tolist()
        self._count = sum(map(len, self._tables))
        self._numbers.clear()
        self._drop_names()
        return since_ns

    def _drop_names(self) -> None:
        if len(self._hashes) <= _MOST_FILES:
            return
        file, keys = COLUMNS.index("file"), list(self._hashes)
        columns = [np.empty(0, np.int64), *(table[:, file] for table in self._tables)]
        used = np.unique(np.concatenate(columns))
        self._hashes = Index({keys[old]: new for new, old in enumerate(used.tolist())})
        for table in self._tables:
            table[:, file] = np.searchsorted(used, table[:, file])
        if len(self._pool) > _MOST_NAMES:
            newest = list(self._pool)[-_MOST_NAMES // 2 :]
            needed = [key for key in (*newest, *self._hosts, *self._hashes) if key in self._pool]
            self._pool = {key: self._pool[key] for key in needed}


class _Log:
    def __init__(self, path: Path) -> None:
        self.tail = Tail(path)
        self.reader = LineReader()
        self.since_ns = 0  # nothing was passed over since


class LiveCalls:
    """The calls in the logs of `directories`, by the newest of each log."""

    def __init__(self) -> None:
        self._logs: dict[Path, _Log] = {}
        self._table = _Table()
        self._known: dict[int, Known] = {}  # by pid, in stamps of CLOCK_REALTIME

    def poll(self, directories: Iterable[Path]) -> None:
        """Read what dftracer appended to its logs, `MOST_BYTES` at most; of more the newest of each log."""
        for directory in directories:
            for path in entries(directory):
                if path not in self._logs and path.suffix == ".pfw":
                    self._logs[path] = _Log(path)
        grown = {log: size for log in self._logs.values() if (size := log.tail.grown())}
        share = min(1.0, MOST_BYTES / max(1, sum(grown.values())))
        for log, size in grown.items():
            self._read(log, size if share == 1 else max(_LEAST_BYTES, int(size * share)))

    def _read(self, log: _Log, most_bytes: int) -> None:
        data, (start, end) = log.tail.read(most_bytes)
        if start < end:
            named = log.tail.search(_NAMES, (max(start, end - _MOST_PASSED), end))
            self._table.learn(scan_hashes(b"\n".join(named)))
            log.since_ns = -1
        for batch in log.reader.read([data]):
            self._table.take(batch, None)
            times = batch.start_ns[batch.start_ns > 0]
            if not len(times):
                continue
            if log.since_ns < 0:
                log.since_ns = int(times[0])
            until_ns = int((batch.start_ns + batch.duration_ns).max())
            for pid in {line.pid for line in batch.lines if type(line.pid) is int}:
                known = self._known.setdefault(pid, Known(log.since_ns, until_ns))
                known.since_ns = max(known.since_ns, log.since_ns)
                known.until_ns = max(known.until_ns, until_ns)

    def find_known(self, identity: Identity, clock: Clock) -> Known | None:
        """How far a process's calls are known, in the session's time; None where nothing is."""
        known = self._known.get(identity.pid)
        if known is None:
            return None
        return Known(_of_stamp(clock, known.since_ns), _of_stamp(clock, known.until_ns))

    def forget(self, clocks: Clocks, before_ns: int) -> None:
        """Give up the calls that ended before `before_ns` of the session's time."""
        ahead = [clock.segments[-1].offset_ns - clock.offset_ns for clock in clocks.of_domain.values()]
        before_ns += min(ahead, default=0) - _SLACK_NS
        since_ns = self._table.keep(before_ns)
        if since_ns > before_ns:
            for known in self._known.values():
                known.since_ns = max(known.since_ns, since_ns)

    def calls(self, clocks: Clocks) -> PosixCalls:
        """The calls that are still known, in the session's time."""
        return self._table.calls([], clocks)


def _of_stamp(clock: Clock, stamp_ns: int) -> int:
    """The session's time for a newest stamp of CLOCK_REALTIME."""
    return int(clock.segments[-1].to_mono_ns(stamp_ns)) + clock.offset_ns


_MOST_NAMES = 65_536
_FIRST_RECORDS = 3
_NO_SPANS = Columns(0, dict.fromkeys(names.SPAN_FIELDS, 0))
_NO_CALLS = CallTable().calls([], None)


class LivePaths(Paths):
    """Names of files as spelled: no link is resolved, as that would ask the file system that the job uses."""

    def __init__(self, session: Path, cwd: str) -> None:
        self._cwd = cwd
        self._known = read_document(session / names.FILES, dict[str, str]) or {}

    def _resolve(self, path: str) -> str:
        if len(self._known) > _MOST_NAMES:
            self._known.clear()
        absolute = path if "://" in path else os.path.normpath(os.path.join(self._cwd, path))
        self._known[path] = absolute
        return absolute


class Fresh(msgspec.Struct):
    """From when to when what a process recorded is known: its records, spans and POSIX calls.

    `whole`: none of its records was given up. Nothing is known of calls where `calls_until_ns` is None; spans
    were not read where `spans_until_ns` is. Up to `stolen_until_ns` it is known what CPU time a hypervisor
    took; None: nothing will say.
    """

    whole: bool
    ended: bool
    records_until_ns: int
    spans_since_ns: int = 0
    spans_until_ns: int | None = None
    calls_since_ns: int = 0
    calls_until_ns: int | None = None
    stolen_until_ns: int | None = None


class LiveSession:
    """Follows the session at `path`, and writes nothing into it. Times are in ns of the session's time.

    `calls_elsewhere`: the recorder's files are on a disk of another host until the command has ended.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.manifest = read_manifest(path)
        self.launches: list[Launch] = []
        self.fresh: dict[tuple[str, int], Fresh] = {}
        self.sidecars: dict[Path, LiveSidecar] = {}
        self._processes: dict[Path, LiveProcess | None] = {}
        by_dftracer = self.manifest.posix.by == names.DFTRACER
        self._calls: NewestCalls = LiveCalls() if by_dftracer else LiveRecorded()
        self.calls_elsewhere = False
        self._paths = LivePaths(path, self.manifest.cwd)
        self._prefix = f"{path.resolve()}/"
        self._is_data: dict[str, bool] = {}

    def poll(self) -> Session:
        """Read what the files grew by; return the session with the newest records, no spans, no calls."""
        # Outcomes first: all that was recorded before an end that is seen is then read, too.
        self.launches = read_launches(self.path)
        for launch in self.launches:
            self._discover(launch.path)
        places = [list_directories(str(launch.path)) for launch in self.launches]
        self._calls.poll(Path(each) for directories, _ in places for each in directories)
        self.calls_elsewhere = any(elsewhere for _, elsewhere in places)
        for directory in entries(self.path / names.TELEMETRY):
            self.sidecars.setdefault(directory, LiveSidecar(directory))
        living = [live for live in self._processes.values() if live is not None]
        for live in living:
            live.poll()
        living.sort(key=lambda live: live.identity.clock[1])
        for directory, process in self._processes.items():
            if process is not None and process.ended and not process.trains and process is not living[0]:
                self._processes[directory] = None
        return self._session(living)

    def grown(self, identity: Identity) -> LiveProcess | None:
        """Read what the records of one process grew by; None where it is followed no more."""
        living = (each for each in self._processes.values() if each is not None)
        live = next((each for each in living if each.identity is identity), None)
        if live is not None:
            live.poll()
        return live

    def _discover(self, launch: Path) -> None:
        for directory in entries(launch / names.PROCESSES):
            if directory not in self._processes:
                identity = read_document(directory / names.PROCESS, Identity)
                if identity is not None:
                    self._processes[directory] = LiveProcess(directory, identity)

    def _session(self, living: list[LiveProcess]) -> Session:
        sidecars = [each for each in self.sidecars.values() if each.poll()]
        sources = [live.anchors for live in living]
        clocks = relate_clocks([*sources, *(each.anchors for each in sidecars)])
        over = joint_state(self.launches) in (ENDED, KILLED)  # then nothing more is written
        by_dftracer = self.manifest.posix.by == names.DFTRACER
        own_log = by_dftracer and any(
            isinstance(record, OwnLog) for live in living for record in live.records
        )
        processes = []
        for live, source in zip(living, sources, strict=True):
            clock = clocks.of_domain[source.domain]
            processes.append(
                Process(live.identity, clock, live.records, _NO_SPANS, live.texts, arrays=live.arrays)
            )
            fresh = Fresh(live.whole, live.ended or over, clock.to_session_ns(live.newest_ns))
            known = self._calls.find_known(live.identity, clock)
            if known is not None:
                fresh.calls_since_ns, fresh.calls_until_ns = known.since_ns, known.until_ns
            # Of a program's own log it is not known which process writes there.
            if own_log or self.calls_elsewhere:
                fresh.calls_since_ns = FOREVER_NS
            self.fresh[live.identity.node, live.identity.pid] = fresh
        telemetry = read_telemetry([each.sidecar() for each in sidecars], clocks)
        return Session(self.path, self.launches, processes, _NO_CALLS, self._paths, telemetry, None, clocks)

    def with_details(self, session: Session, rank: Rank, since_ns: int) -> tuple[Session, Rank]:
        """Add the spans and POSIX calls since `since_ns` of one rank's processes."""
        living = {id(live.identity): live for live in self._processes.values() if live is not None}
        processes = list(session.processes)
        for number, process in enumerate(processes):
            if not any(process is own for own in rank.processes):
                continue
            spans, known_ns = living[id(process.identity)].spans(process.clock, since_ns)
            processes[number] = whole = replace(process, spans=spans)
            fresh = self.fresh[process.identity.node, process.pid]
            ends = spans["start_ns"] + spans["duration_ns"]
            fresh.spans_since_ns, fresh.spans_until_ns = known_ns, int(ends.max()) if len(ends) else 0
            telemetry = session.telemetry_of(process)
            if telemetry is not None:
                add_stolen_time(whole, telemetry.host)
                fresh.stolen_until_ns = _stolen_until(telemetry)
        detailed = replace(session, processes=processes, calls=self._data_calls(session))
        return detailed, next(one for one in detailed.ranks if one.main.identity is rank.main.identity)

    def _data_calls(self, session: Session) -> PosixCalls:
        calls = self._calls.calls(session.clocks)
        prefixes = {prefix for process in session.processes for prefix in process.identity.prefixes}
        known = self._is_data if len(self._is_data) < _MOST_NAMES else {}
        for file in calls.files:
            if file not in known:
                known[file] = is_data_file(file, self._paths, prefixes, self._prefix)
        self._is_data = known
        is_data = np.array([known[file] for file in calls.files], dtype=np.bool_)
        return calls.where(is_data[calls.file]) if len(calls) else calls

    def forget(self, clocks: Clocks, ranks: Sequence[tuple[Rank, int, int]]) -> None:
        """Give up old records: of each rank those before two times, of its main process and its workers."""
        oldest_ns = min((rest_ns for _, _, rest_ns in ranks), default=0)
        since = {id(rank.main.identity): own_ns for rank, own_ns, _ in ranks}
        since |= {id(worker.identity): rest_ns for rank, _, rest_ns in ranks for worker in rank.workers}
        for directory, live in self._processes.items():
            if live is None:
                continue
            clock = clocks.of(live.identity.node, live.identity.pid)
            mono_ns = since.get(id(live.identity), oldest_ns) - (clock.offset_ns if clock is not None else 0)
            live.forget(mono_ns)
            if live.ended and live.is_worker and live.newest_ns < mono_ns:
                self._processes[directory] = None
        for sidecar in self.sidecars.values():
            if sidecar.newest_ns:
                sidecar.forget(
                    oldest_ns - clocks.of_domain[clocks.samplers[sidecar.anchors.sampler]].offset_ns
                )
        self._calls.forget(clocks, oldest_ns)


def _stolen_until(telemetry: Telemetry) -> int | None:
    """Until when it is known how much CPU time was stolen; None where the kernel does not say."""
    stolen = telemetry.host.figures.get("stolen_share")
    if stolen is not None:
        return int(stolen.time_ns[-1])
    return telemetry.first_ns if len(telemetry.host.time_ns) < _FIRST_RECORDS else None
