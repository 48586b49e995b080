"""Read what our recorder kept of POSIX calls, over all processes of a session: bursts as rows, and sums by
file.

A burst's calls were made one after the other, with short gaps. As a row it is as long as its calls took
together: nothing of the gaps counts as reading. Rows of one thread do not overlap, as its calls did not:
where bursts of two files interleave, one is shown after the other. No burst crosses a span of the agent, and
so no row does.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from iotrace.session.names import (
    BROKEN,
    CALLS_EACH,
    METADATA_CALLS,
    READING_CALLS,
    RECORDED_CALLS,
    WRITING_CALLS,
    kept_log,
)
from iotrace.session.reading import UNREADABLE, entries, read_whole
from iotrace.sources.clocks.anchors import Clocks
from iotrace.sources.clocks.session_clock import Times
from iotrace.sources.dftracer.lines import Dropped
from iotrace.sources.posix_calls import COLUMNS, FileSums, PosixCalls, as_integers
from iotrace.sources.recorder.layout import FAILED, NO_OFFSET, SCATTERED, ProcessCalls, read_file

_KINDS = (METADATA_CALLS, READING_CALLS, WRITING_CALLS)
# By the recorder's numbers; those without a name are from a newer recorder.
NAMES = [each for group in _KINDS for each in (*group, *["?"] * (CALLS_EACH - len(group)))]
_LATEST_NS = 2**61


class _Index(dict[str, int]):
    """Numbers strings in the order in which they come."""

    def __missing__(self, key: str) -> int:
        self[key] = number = len(self)
        return number


def recorded_files(directories: Iterable[Path]) -> list[Path]:
    """The recorder's files in `directories`, by name."""
    paths = [path for directory in directories for path in entries(directory)]
    return [path for path in paths if path.name.endswith(RECORDED_CALLS)]


def read_recorded(directories: Sequence[Path], clocks: Clocks | None = None) -> PosixCalls:
    """Read the recorder's files in `directories`; times are CLOCK_REALTIME, with `clocks` the session's."""
    table = CallTable(clocks)
    for path in recorded_files(directories):
        calls = read_file(path)
        if isinstance(calls, str):
            table.problems.append(f"{path.name}: {calls}")
            continue
        table.problems += [f"{path.name}: {problem}" for problem in calls.problems]
        table.take(calls)
    table.problems += _why_none_was_dropped(directories)
    broken = f"{RECORDED_CALLS}.{BROKEN}"
    table.refused += sum(path.name.endswith(broken) for each in directories for path in entries(each))
    return table.calls()


def _why_none_was_dropped(directories: Iterable[Path]) -> list[str]:
    """What the sidecar reports where no hole could be made for `--max-size`."""
    dropped = Dropped()
    for path in (path for directory in directories for path in entries(directory)):
        if path.name.endswith(kept_log(RECORDED_CALLS)):
            with suppress(OSError, *UNREADABLE):
                for line in read_whole(path).splitlines():
                    dropped.take(msgspec.json.decode(line, type=_Told).args)
    return dropped.problems()


class _Told(msgspec.Struct):
    args: dict[str, Any]


class CallTable:
    """Collects the calls of one process after another."""

    def __init__(self, clocks: Clocks | None) -> None:
        self.problems: list[str] = []
        self._clocks = clocks
        self._files, self._nodes = _Index(), _Index()
        self._tables: list[Times] = []
        self._sums: list[FileSums] = []
        self._pids: set[int] = set()
        self._lost = self._lost_bursts = 0
        self.refused = 0  # processes that could have no file
        self._dropped = False

    def take(self, calls: ProcessCalls) -> None:
        """Add what one process did."""
        pid, node = int(calls.head["pid"]), self._nodes[calls.node]
        self._pids.add(pid)
        self._lost += int(calls.head["lost_calls"])
        self._lost_bursts += int(calls.head["lost_bursts"])
        self.refused += int(calls.head["refused_children"])
        self._dropped |= calls.dropped
        numbers = _numbers(calls.names, self._files)
        self._tables.append(self._bursts(calls, pid, node, numbers))
        self._sums.append(FileSums.of(calls, pid, node, numbers))

    def _bursts(self, calls: ProcessCalls, pid: int, node: int, numbers: Times) -> Times:
        bursts = calls.bursts
        start_ns, taken_ns = as_integers(bursts["start_ns"]), as_integers(bursts["in_call_ns"])
        file = numbers[np.minimum(bursts["file"], len(numbers) - 1)]
        kind = np.minimum(bursts["kind"], len(NAMES) - 1).astype(np.int64)
        moved = (kind >= CALLS_EACH) & (bursts["flags"] & FAILED == 0)
        result = np.where(moved, as_integers(bursts["bytes"]), -1)
        no_range = bursts["flags"] & (NO_OFFSET | SCATTERED) != 0
        offset = np.where(no_range, -1, as_integers(bursts["offset"]))
        known = file >= 0
        columns = {
            "start_ns": start_ns,
            "end_ns": start_ns + taken_ns,
            "pid": np.full(len(bursts), pid, np.int64),
            "tid": calls.tids,
            "name": kind,
            "file": file,
            "result": result,
            "offset": offset,
            "count": np.full(len(bursts), -1, np.int64),
            "node": np.full(len(bursts), node, np.int64),
            "calls": bursts["calls"].astype(np.int64),
        }
        table = np.stack([columns[name] for name in COLUMNS], axis=1)[known]
        table = _side_by_side(table)
        return self._in_session_time(table, calls, pid)

    def _in_session_time(self, table: Times, calls: ProcessCalls, pid: int) -> Times:
        clock = self._clocks.of(calls.node, pid) if self._clocks is not None else None
        start, end = COLUMNS.index("start_ns"), COLUMNS.index("end_ns")
        if clock is None:
            offset_ns = int(calls.head["start_realtime_ns"]) - int(calls.head["start_ns"])
            table[:, [start, end]] += max(-_LATEST_NS, min(_LATEST_NS, offset_ns))
        else:
            for column in (start, end):
                table[:, column] = clock.times_to_session_ns(table[:, column])
        return table

    def calls(self) -> PosixCalls:
        """All calls, sorted by start."""
        problems = list(self.problems)
        if self._lost:
            problems.append(
                f"{self._lost} POSIX calls could not be recorded: the disk was full, a limit was "
                "reached, or a signal's handler made them"
            )
        if self.refused:
            problems.append(
                f"{self.refused} process(es) could record no call: the disk was full, the limit of file "
                "sizes below 64 KiB, or their user, root directory or allowed system calls had changed"
            )
        if self._lost_bursts:
            problems.append(
                f"{self._lost_bursts} POSIX calls have no times, only sums: the disk was full, or a "
                "limit was reached"
            )
        if self._dropped:
            problems.append("the session grew beyond --max-size: the oldest calls have no times, only sums")
        table = np.concatenate([np.empty((0, len(COLUMNS)), np.int64), *self._tables])
        table = table[np.argsort(table[:, 0], kind="stable")]
        columns: dict[str, Any] = {
            name: np.ascontiguousarray(table[:, index]) for index, name in enumerate(COLUMNS)
        }
        return PosixCalls(
            **columns,
            names=NAMES,
            files=list(self._files),
            nodes=list(self._nodes),
            pids=frozenset(self._pids),
            problems=problems,
            ended=frozenset(self._pids),  # nothing is held back: what a process did is in its file
            sums=FileSums.joined(self._sums),
        )


def _numbers(names: dict[int, str], files: _Index) -> Times:
    """The number in `files` of each of a process's files, by its number there; -1 where the name is lost."""
    numbers = np.full(max(names, default=0) + 2, -1, np.int64)
    for number, name in names.items():
        numbers[number] = files[name]
    return numbers


def _side_by_side(table: Times) -> Times:
    """Let each thread's rows begin where the one before has ended, at the earliest."""
    if not len(table):
        return table
    start, end, tid = (COLUMNS.index(name) for name in ("start_ns", "end_ns", "tid"))
    table = table[np.lexsort((table[:, start], table[:, tid]))]
    for rows in np.split(np.arange(len(table)), np.flatnonzero(np.diff(table[:, tid])) + 1):
        begin_ns, taken_ns = table[rows, start], table[rows, end] - table[rows, start]
        behind_ns = np.cumsum(taken_ns)
        ends_ns = behind_ns + np.maximum.accumulate(begin_ns - (behind_ns - taken_ns))
        table[rows, start], table[rows, end] = ends_ns - taken_ns, ends_ns
    return table
