"""Read dftracer's POSIX calls, over all logs of a session.

dftracer writes the hash of a file's name once, in the first process that meets the name: the hashes are
pooled over all files.
"""

from __future__ import annotations

from array import array
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec import UNSET

from iotrace.session.reading import entries
from iotrace.sources.byte_stream import without_collecting
from iotrace.sources.clocks.anchors import Clocks
from iotrace.sources.clocks.realtime_correction import Stamper, restamp
from iotrace.sources.clocks.session_clock import Clock, Times
from iotrace.sources.dftracer import stdio
from iotrace.sources.dftracer.lines import (
    Dropped,
    LineBatch,
    LineReader,
    collect_hashes,
    given_up,
    read_log,
)
from iotrace.sources.posix_calls import COLUMNS, PosixCalls

_LARGEST = 2**62  # of the numbers that a column of int64 holds, sums of two of them included


class Index(dict[Any, int]):
    """Numbers strings in the order in which they come."""

    def __missing__(self, key: Any) -> int:
        self[key] = number = len(self)
        return number


class OwnLogs(msgspec.Struct, frozen=True):
    """Logs of dftracer's that a program began by itself: by prefix of their paths, since when.

    They hold the calls of the process that began one, and of the processes that it started since. Only `pids`
    count: an earlier run may have written to the same path.
    """

    since_ns: dict[str, int]
    pids: frozenset[int]


_NONE = OwnLogs({}, frozenset())


@without_collecting()
def read_posix(*directories: Path, own_logs: OwnLogs = _NONE, clocks: Clocks | None = None) -> PosixCalls:
    """Read all calls in the ``.pfw`` and ``.pfw.gz`` files of `directories`, and those in `own_logs`.

    Times are in ns with a resolution of 1 us; with `clocks` they are the session's, else CLOCK_REALTIME.
    """
    table = CallTable(own_logs.pids)
    problems: list[str] = []
    for path, since_ns in _files(directories, own_logs, problems):
        reader, losses = LineReader(), list[str]()
        try:
            for batch in reader.read(read_log(path, losses)):
                table.take(batch, since_ns)
        except OSError as error:
            losses.append(f"it cannot be read: {error.strerror}")
        problems += [f"{path.name}: {loss}" for loss in losses + reader.problems]
        problems += table.end_of_log(whole=since_ns is None) + given_up(path)
    return table.calls(problems, clocks)


class CallTable:
    """Collects the calls of one log after another."""

    def __init__(self, own_pids: frozenset[int] = frozenset()) -> None:
        self._own_pids = own_pids
        self._tables: list[Times] = []
        self._count = 0
        self._logs: list[int] = []  # how many rows there are up to the end of each log
        self._names, self._hashes, self._hosts = Index(), Index(), Index()
        self._pool: dict[str, str] = {}
        self._without_file: Counter[str] = Counter()
        self._pids: set[int] = set()
        self._ended: set[int] = set()
        self._dropped = Dropped()
        self._numbers: dict[int, array[int]] = defaultdict(lambda: array("q"))  # of the log's events, by pid

    def take(self, batch: LineBatch, since_ns: int | None) -> None:
        """Add the calls of `batch`; of a program's own log those of our processes since `since_ns`."""
        self._pool |= collect_hashes(batch.lines)
        names, hashes, hosts, numbers = self._names, self._hashes, self._hosts, self._numbers
        rows: list[tuple[Any, ...]] = []
        starts = batch.start_ns.tolist()
        ends = (batch.start_ns + np.maximum(batch.duration_ns, 0)).tolist()
        for line, start_ns, end_ns in zip(batch.lines, starts, ends, strict=True):
            pid, args = line.pid, line.args
            if type(pid) is not int:
                pid = _integer(pid)
            if line.id is not UNSET:
                numbers[pid].append(_integer(line.id))
            if args is UNSET or (line.ph != 1 and line.ph != "X"):  # 2.x writes numbers, 1.x letters
                if line.cat == "iotrace" and args is not UNSET:
                    self._dropped.take(args)
                continue
            if since_ns is not None and (pid not in self._own_pids or start_ns < since_ns):
                continue
            self._pids.add(pid)
            file = args.get("fhash")
            if file is None or line.cat == "dftracer":
                if line.cat != "dftracer":
                    self._without_file[str(line.name)] += 1
                elif line.name == "end":
                    self._ended.add(pid)
                continue
            get = args.get
            host = get("hhash", "")
            rows.append(
                (
                    start_ns,
                    end_ns,
                    pid,
                    line.tid,
                    names[line.name],
                    hashes[file if type(file) is str else str(file)],
                    get("ret", -1) if line.cat != stdio.CATEGORY else stdio.find_result(line.name, args),
                    get("offset", -1),
                    get("count", -1),
                    hosts[host if type(host) is str else str(host)],
                    1,
                )
            )
        if rows:
            self._tables.append(_table(rows))
            self._count += len(rows)

    def end_of_log(self, whole: bool) -> list[str]:
        """Begin another log; returns what dftracer lost of this one, if it is the `whole` of a process's."""
        self._logs.append(self._count)
        problems = []
        for pid, numbers in self._numbers.items() if whole else ():
            lost = missing(np.frombuffer(numbers, dtype=np.int64)) - self._dropped.events[pid]
            if lost > 0:
                what = "1 call" if lost == 1 else f"{lost} calls"
                problems.append(f"dftracer lost {what} of pid {pid}")
        self._numbers.clear()
        self._dropped.events.clear()
        return problems

    def calls(self, problems: list[str], clocks: Clocks | None) -> PosixCalls:
        """All calls, sorted by start."""
        problems = [*problems, *self._dropped.problems()]
        for name, count in self._without_file.items():
            if name in self._names:  # `fork` and `waitpid` have none
                left_out = "1 call was" if count == 1 else f"{count} calls were"
                problems.append(f"{left_out} left out: {name} without a file")
        table = np.concatenate([np.empty((0, len(COLUMNS)), np.int64), *self._tables])
        nodes = [self._pool.get(key, "") for key in self._hosts]
        unsure_ns = _steady(table, self._logs, nodes, clocks) if clocks is not None else {}
        table = table[np.argsort(table[:, 0], kind="stable")]
        columns: dict[str, Any] = {
            name: np.ascontiguousarray(table[:, index]) for index, name in enumerate(COLUMNS)
        }
        return PosixCalls(
            **columns,
            names=list(map(str, self._names)),
            files=[self._pool.get(key, f"(file {key}, name lost)") for key in self._hashes],
            nodes=nodes,
            pids=frozenset(self._pids),
            problems=problems,
            ended=frozenset(self._ended),
            unsure_ns=unsure_ns,
        )


def missing(numbers: npt.NDArray[np.int64]) -> int:
    """How many of the numbers of a process's events, in the order of its log, are not there, at least.

    dftracer counts from 1, and threads write a little out of order. A process that executes the same command
    line again goes on in the same log and counts from 1 again. What was lost at the end has left no gap.
    """
    lost = 0
    for run in np.split(numbers, np.flatnonzero(numbers == 1)[1:]):
        if len(run):
            seen = np.unique(run)
            lost += int(seen[-1]) - min(1, int(seen[0])) + 1 - len(seen)
    return lost


def _table(rows: list[tuple[Any, ...]]) -> Times:
    """The rows as int64, values of other kinds replaced as `_integer` says."""
    table: npt.NDArray[Any] = np.array(rows)
    if table.dtype == np.int64 and not (np.abs(table) > _LARGEST).any():
        return table
    return np.array([[_integer(value) for value in row] for row in rows], dtype=np.int64)


def _integer(value: Any) -> int:
    """The value where it is a number that fits a column; else -1, which dftracer uses for unknown."""
    if type(value) is int:
        return value if -_LARGEST <= value <= _LARGEST else -1
    if isinstance(value, str) and value.isdecimal() and len(value) < 19:
        return int(value)
    return -1


def _steady(table: Times, logs: Sequence[int], nodes: Sequence[str], clocks: Clocks) -> dict[str, int]:
    """Bring the rows' times, in the order of their logs, to the session's; how far each node's may be off."""
    if all(clock.matches_realtime for clock in clocks.of_domain.values()):
        return {}
    pid, tid, node = (COLUMNS.index(name) for name in ("pid", "tid", "node"))
    log = np.searchsorted(np.array(logs), np.arange(len(table)), side="right")
    keys = np.stack([log, table[:, node], table[:, pid], table[:, tid]], axis=1)
    _, thread = np.unique(keys, axis=0, return_inverse=True)
    by_thread = np.argsort(thread.reshape(-1), kind="stable")
    cuts = np.flatnonzero(np.diff(thread.reshape(-1)[by_thread])) + 1
    stampers: dict[Clock, list[Stamper]] = {}
    for rows in np.split(by_thread, cuts):
        first = table[rows[0]] if len(rows) else None
        clock = clocks.of(nodes[first[node]], int(first[pid])) if first is not None else None
        if clock is None or first is None:
            continue
        life = clocks.life(nodes[first[node]], int(first[pid]))
        stampers.setdefault(clock, []).append(Stamper(rows, int(log[rows[0]]), *life))
    starts, ends = table[:, 0].copy(), table[:, 1].copy()
    unsure_ns: dict[str, int] = {}
    for clock, own in stampers.items():
        stamped = restamp(clock, starts, ends, own)
        for stamper in own:
            table[stamper.rows, 0] = stamped.start_ns[stamper.rows]
            table[stamper.rows, 1] = stamped.end_ns[stamper.rows]
        for name in {nodes[table[stamper.rows[0], node]] for stamper in own if stamped.unsure_ns}:
            unsure_ns[name] = max(unsure_ns.get(name, 0), stamped.unsure_ns)
    return unsure_ns


def _files(
    directories: Sequence[Path], own_logs: OwnLogs, problems: list[str]
) -> list[tuple[Path, int | None]]:
    """The files to read, and since when (ns) their calls count where they are a program's own."""
    paths = sorted(path for directory in directories for path in _logs_in(directory, ""))
    files: list[tuple[Path, int | None]] = [(path, None) for path in paths]
    for prefix, since_ns in own_logs.since_ns.items():
        log = Path(prefix)
        logs = sorted(_logs_in(log.parent, f"{log.name}-"))
        if not logs:
            problems.append(
                f"{prefix}-*.pfw, the dftracer log that the program began, is missing: "
                "it holds the calls made since then"
            )
        files += [(path, since_ns) for path in logs]
    return files


def _logs_in(directory: Path, start: str) -> list[Path]:
    logs = [path for path in entries(directory, inside=not start) if path.name.endswith((".pfw", ".pfw.gz"))]
    return [path for path in logs if path.name.startswith(start)]
