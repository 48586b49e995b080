"""A session that runs, as the analysis takes it: the newest of what its processes recorded."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np
from msgspec.structs import replace

from iotrace.session import names
from iotrace.session.liveness import ENDED, KILLED, Launch, joint_state, read_launches
from iotrace.session.manifest import read_document, read_manifest
from iotrace.session.reading import entries
from iotrace.session.recorded import directories_of
from iotrace.sources.clocks.anchors import Clocks, clocks_of
from iotrace.sources.clocks.session_clock import FOREVER_NS
from iotrace.sources.dftracer.call_reader import CallTable
from iotrace.sources.live.known import NewestCalls
from iotrace.sources.live.posix import LiveCalls
from iotrace.sources.live.process import LiveProcess, LiveSidecar
from iotrace.sources.live.recorded import LiveRecorded
from iotrace.sources.paths import Paths
from iotrace.sources.posix_calls import PosixCalls
from iotrace.sources.processes import SPAN_DTYPE, Process
from iotrace.sources.records import Identity, OwnLog
from iotrace.sources.session import Rank, Session, is_data_file
from iotrace.sources.stolen_time import add_stolen_time
from iotrace.sources.telemetry import Telemetry, read_telemetry

_MOST_NAMES = 65_536
_FIRST_RECORDS = 3
_NO_SPANS = np.empty(0, dtype=SPAN_DTYPE)
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
        places = [directories_of(str(launch.path)) for launch in self.launches]
        self._calls.poll(Path(each) for directories, _ in places for each in directories)
        self.calls_elsewhere = any(elsewhere for _, elsewhere in places)
        for directory in entries(self.path / names.TELEMETRY):
            self.sidecars.setdefault(directory, LiveSidecar(directory))
        living = [live for live in self._processes.values() if live is not None]
        for live in living:
            live.poll()
        living.sort(key=lambda live: live.identity.clock[1])
        for directory, found in self._processes.items():
            if found is not None and found.ended and not found.trains and found is not living[0]:
                self._processes[directory] = None
        return self._session(living)

    def _discover(self, launch: Path) -> None:
        for directory in entries(launch / names.PROCESSES):
            if directory not in self._processes:
                identity = read_document(directory / names.PROCESS, Identity)
                if identity is not None:
                    self._processes[directory] = LiveProcess(directory, identity)

    def _session(self, living: list[LiveProcess]) -> Session:
        sidecars = [each for each in self.sidecars.values() if each.poll()]
        sources = [live.anchors for live in living]
        clocks = clocks_of([*sources, *(each.anchors for each in sidecars)])
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
            known = self._calls.known_of(live.identity, clock)
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
            processes[number] = found = replace(process, spans=spans)
            fresh = self.fresh[process.identity.node, process.pid]
            ends = spans["start_ns"] + spans["duration_ns"]
            fresh.spans_since_ns, fresh.spans_until_ns = known_ns, int(ends.max()) if len(ends) else 0
            telemetry = session.telemetry_of(process)
            if telemetry is not None:
                add_stolen_time(found, telemetry.host)
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
