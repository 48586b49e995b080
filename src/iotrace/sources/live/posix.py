"""The newest POSIX calls of a session that runs, as far as dftracer has written them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from iotrace.session.reading import entries
from iotrace.sources.clocks.anchors import Clocks
from iotrace.sources.clocks.session_clock import Clock
from iotrace.sources.dftracer.call_reader import CallTable, Index
from iotrace.sources.dftracer.lines import LineReader, pool_of
from iotrace.sources.live.known import Known
from iotrace.sources.live.process import Tail
from iotrace.sources.posix_calls import COLUMNS, PosixCalls
from iotrace.sources.records import Identity

# dftracer writes some 215 bytes a call: at 80 MB/s these take 25 ms of CPU time a look.
MOST_BYTES = 2 << 20
_LEAST_BYTES = 16 << 10
_MOST_PASSED = 64 << 20  # in what was passed over, names of files are looked for in the newest of it alone
_MOST_FILES = 1_024
_MOST_CALLS = 600_000
_MOST_NAMES = 65_536
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
            self._table.learn(pool_of(b"\n".join(named)))
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

    def known_of(self, identity: Identity, clock: Clock) -> Known | None:
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
