"""dftracer's POSIX calls as columns."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import cached_property
from itertools import pairwise
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec.structs import replace


class PosixCalls(msgspec.Struct, frozen=True, dict=True):
    """POSIX calls that have a file, sorted by start; one row per call in every column.

    `result` is what the call returned, of stdio the bytes that it moved, -1 also where dftracer does not say
    (opens); `offset` and `count` are -1 where the call has none. `name`, `file` and `node` (the host's own
    name) index `names`, `files` and `nodes`.
    """

    start_ns: npt.NDArray[np.int64]
    end_ns: npt.NDArray[np.int64]
    pid: npt.NDArray[np.int64]
    tid: npt.NDArray[np.int64]
    name: npt.NDArray[np.int64]
    file: npt.NDArray[np.int64]
    result: npt.NDArray[np.int64]
    offset: npt.NDArray[np.int64]
    count: npt.NDArray[np.int64]
    node: npt.NDArray[np.int64]
    names: list[str]
    files: list[str]
    nodes: list[str]
    pids: frozenset[int]
    problems: list[str]
    ended: frozenset[int] = frozenset()  # whose log dftracer closed itself: it holds all their calls
    unsure_ns: dict[str, int] = {}  # by node: what its times may be off by, as its clock was set

    def __len__(self) -> int:
        return len(self.start_ns)

    def where(self, keep: npt.NDArray[np.bool_]) -> PosixCalls:
        """The rows for which `keep` (one bool a row) holds."""
        return replace(self, **{name: getattr(self, name)[keep] for name in COLUMNS})

    def named(self, names: Collection[str]) -> npt.NDArray[np.bool_]:
        """Mark the calls of functions of these names."""
        return np.isin(self.name, [number for number, name in enumerate(self.names) if name in names])

    def between(self, start_ns: int, end_ns: int) -> PosixCalls:
        """The calls that touch an interval, and perhaps others before them."""
        first = np.searchsorted(self._latest_ends, start_ns, side="right")
        last = np.searchsorted(self.start_ns, end_ns)
        return replace(self, **{name: getattr(self, name)[first:last] for name in COLUMNS})

    @cached_property
    def _latest_ends(self) -> npt.NDArray[np.int64]:
        return np.maximum.accumulate(self.end_ns)

    def by_process(self) -> dict[tuple[str, int], PosixCalls]:
        """Split the table by host and pid; each part is sorted by start, and a view of one copy."""
        hosts = np.array([self.nodes.index(node) for node in self.nodes] or [0], dtype=np.int64)[self.node]
        order = np.lexsort((self.pid, hosts))  # stable: the order of starts stays
        hosts, pids = hosts[order], self.pid[order]
        whole = {name: getattr(self, name)[order] for name in COLUMNS}
        first = np.flatnonzero((np.diff(hosts, prepend=-1) != 0) | (np.diff(pids, prepend=0) != 0))
        return {
            (self.nodes[int(hosts[begin])], int(pids[begin])): replace(
                self, **{name: column[begin:end] for name, column in whole.items()}
            )
            for begin, end in pairwise([*first.tolist(), len(order)])
        }


COLUMNS = ("start_ns", "end_ns", "pid", "tid", "name", "file", "result", "offset", "count", "node")


def concatenate(parts: Sequence[PosixCalls]) -> PosixCalls:
    """The rows of tables that came from one, at least one, sorted by start."""
    columns: dict[str, Any] = {
        name: np.concatenate([getattr(part, name) for part in parts]) for name in COLUMNS
    }
    order = np.argsort(columns["start_ns"], kind="stable")
    return replace(parts[0], **{name: column[order] for name, column in columns.items()})
