"""POSIX calls as columns, whoever traced them, and their sums by file."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

if TYPE_CHECKING:
    from iotrace.sources.recorder.layout import ProcessCalls

Times = npt.NDArray[np.int64]


class FileSums(msgspec.Struct, frozen=True):
    """What processes did with files, one row per process, thread, file and group of calls in every column.

    `group` is 0 of metadata, 1 of reading, 2 of writing; `kinds` has the shape (rows, 16): calls by kind, in
    the order of `session.names`. `points` counts the multiples of 4096 among the offsets that were read.
    `histogram` has the shape (rows, 24): bin b holds calls of 64 << b ns at most, the last one all longer
    ones. `blocks` has a row for each stretch of a file: file, first multiple of 4096, node, pid; `bits` say
    which of the 4096 from there on.
    """

    node: Times
    pid: Times
    file: Times
    group: Times
    kinds: npt.NDArray[np.int64]
    bytes: Times
    in_call_ns: Times
    longest_ns: Times
    failed: Times
    filled: Times
    small: Times
    sequential: Times
    after_another: Times
    points: Times
    histogram: npt.NDArray[np.int64]
    blocks: npt.NDArray[np.int64]
    bits: npt.NDArray[np.uint8]

    @classmethod
    def of(cls, calls: ProcessCalls, pid: int, node: int, numbers: Times) -> FileSums:
        """The sums of one process; `numbers` are the files' by the process's own."""
        rows, blocks = calls.rows, calls.blocks
        file = numbers[np.minimum(rows["file"], len(numbers) - 1)]
        rows, file = rows[file >= 0], file[file >= 0]
        of_block = numbers[np.minimum(blocks["file"], len(numbers) - 1)]
        known = of_block >= 0
        columns = {name: as_integers(rows[name]) for name in ("group", *_SUMMED, "longest_ns", "histogram")}
        return cls(
            node=np.full(len(rows), node, np.int64),
            pid=np.full(len(rows), pid, np.int64),
            file=file,
            kinds=as_integers(rows["calls"]),
            blocks=np.stack(
                [
                    of_block,
                    as_integers(blocks["first"]),
                    *(np.full(len(blocks), each) for each in (node, pid)),
                ],
                axis=1,
            )[known],
            bits=blocks["bits"][known],
            **columns,
        )

    @classmethod
    def joined(cls, parts: Sequence[FileSums]) -> FileSums | None:
        """The rows of several; None of none."""
        if not parts:
            return None
        return cls(
            **{
                name: np.concatenate([getattr(part, name) for part in parts])
                for name in cls.__struct_fields__
            }
        )

    def where(self, keep: npt.NDArray[np.bool_]) -> FileSums:
        """The rows for which `keep` (one bool a row) holds, and the blocks of their processes and files."""
        kept = [name for name in self.__struct_fields__ if name not in ("blocks", "bits")]
        rows = {name: getattr(self, name)[keep] for name in kept}
        owners = np.unique(np.stack([rows["file"], rows["node"], rows["pid"]], axis=1), axis=0)
        held = {tuple(row) for row in owners.tolist()}
        blocks = [(file, node, pid) in held for file, _, node, pid in self.blocks.tolist()]
        marked = np.array(blocks, np.bool_)
        return replace(self, **rows, blocks=self.blocks[marked], bits=self.bits[marked])


_SUMMED = ("bytes", "in_call_ns", "failed", "filled", "small", "sequential", "after_another", "points")
_LARGEST = 2**62


def as_integers(values: npt.NDArray[Any]) -> Times:
    """Unsigned numbers of any size as int64; those of a damaged file that do not fit are cut."""
    if values.dtype.itemsize == 8:
        values = np.minimum(values, _LARGEST)
    return values.astype(np.int64)


class PosixCalls(msgspec.Struct, frozen=True, dict=True):
    """POSIX calls that have a file, sorted by start; one row per call, or burst of calls, in every column.

    A row is as long as its `calls` took together. `result` is what they returned, of stdio the bytes that
    they moved, -1 where that is not known (opens) or they failed; `offset` (of the first) and `count` are -1
    where there is none. `name`, `file` and `node` (the host's own name) index `names`, `files` and `nodes`.
    `sums` are there where our recorder kept them: of all calls, also of calls that have no row.
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
    calls: npt.NDArray[np.int64]
    names: list[str]
    files: list[str]
    nodes: list[str]
    pids: frozenset[int]
    problems: list[str]
    ended: frozenset[int] = frozenset()  # whose log dftracer closed itself: it holds all their calls
    unsure_ns: dict[str, int] = {}  # by node: what its times may be off by, as its clock was set
    sums: FileSums | None = None

    def __len__(self) -> int:
        return len(self.start_ns)

    @property
    def made(self) -> int:
        """How many calls the rows count."""
        return int(self.calls.sum())

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


COLUMNS = ("start_ns", "end_ns", "pid", "tid", "name", "file", "result", "offset", "count", "node", "calls")


def concatenate(parts: Sequence[PosixCalls]) -> PosixCalls:
    """The rows of tables that came from one, at least one, sorted by start."""
    columns: dict[str, Any] = {
        name: np.concatenate([getattr(part, name) for part in parts]) for name in COLUMNS
    }
    order = np.argsort(columns["start_ns"], kind="stable")
    return replace(parts[0], **{name: column[order] for name, column in columns.items()})
