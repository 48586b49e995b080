"""What files cost waits, or windows of production: columns of one entry for each of these and each file.

Which file each item of a dataset read, and when: what follows is told as "after reading" that file.

An item reads a file in a read call, in a read path whose file is known, or by an access to a memory map.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from iotrace.analysis.intervals import Times, distinct, grouped, ranges
from iotrace.analysis.storage.kernel_account import READS
from iotrace.analysis.wait.page_faults import bounds, holder
from iotrace.session.names import KIND_MAPPED, KIND_READ_PATH
from iotrace.sources.columns import Columns, held, narrowed
from iotrace.sources.posix_calls import PosixCalls

FILE_PARTS = ("read", "decode", "transform")  # the last: what followed the read of it alone, in an item
Floats = npt.NDArray[np.float64]


class FileNames:
    """The files of a rank, by numbers."""

    def __init__(self) -> None:
        self.paths: list[str] = []
        self._numbers: dict[str, int] = {}

    def number(self, path: str | None) -> int:
        """The number of a file; -1 for None."""
        if path is None:
            return -1
        if path not in self._numbers:
            self._numbers[path] = len(self.paths)
            self.paths.append(path)
        return self._numbers[path]

    def numbers(self, paths: Iterable[str | None]) -> Times:
        """The numbers of several."""
        return np.array([self.number(path) for path in paths], dtype=np.int64)

    def of(self, files: Times, known: dict[int, str]) -> Times:
        """Number files that are numbered otherwise: by their names in `known`, -1 where it has none."""
        each, _, of_each = grouped(files)
        return self.numbers(known.get(number) for number in each.tolist())[of_each]


class Charges(msgspec.Struct, frozen=True):
    """Costs in ns as they come: whose they are, of which file, of which of `FILE_PARTS`."""

    owner: Times
    file: Times
    parts: Floats

    @classmethod
    def of(cls, owner: Times, file: Times, *costs_ns: Floats) -> Charges:
        """Charge `costs_ns`, those of `FILE_PARTS` in order, where the file is known."""
        known = file >= 0
        owner, file = owner[known], file[known]
        parts = np.zeros((len(owner), len(FILE_PARTS)))
        for column, costs in enumerate(costs_ns):
            parts[:, column] = costs[known]
        return cls(owner, file, parts)


class FileCosts(msgspec.Struct, frozen=True):
    """`parts[i]` are what `file[i]` cost `owner[i]`, by `FILE_PARTS` in ns; sorted by owner."""

    names: FileNames
    owner: Times
    file: Times
    parts: Floats

    @classmethod
    def of(cls, names: FileNames, charges: Sequence[Charges | FileCosts]) -> FileCosts:
        """Sum up what each owner pays for each file; its files in the order in which they were charged."""
        if len(charges) == 1 and isinstance(charges[0], FileCosts):
            return charges[0]
        none = np.empty(0, np.int64)
        owner = np.concatenate([none, *(each.owner for each in charges)])
        file = np.concatenate([none, *(each.file for each in charges)])
        parts = np.concatenate([np.empty((0, len(FILE_PARTS))), *(each.parts for each in charges)])
        if (owner[1:] < owner[:-1]).any():
            order = np.argsort(owner, kind="stable")
            owner, file, parts = owner[order], file[order], parts[order]
        key = owner * (len(names.paths) + 1) + file
        if (key[1:] > key[:-1]).all():  # as they come where each owner pays for one file
            return cls(names, held(owner), narrowed(file), parts)
        keys, first, of = np.unique(key, return_index=True, return_inverse=True)
        if len(keys) == len(key):
            return cls(names, owner, file, parts)
        summed = [np.bincount(of, column, len(keys)) for column in parts.T]
        order = np.lexsort((first, owner[first]))
        first = first[order]
        return cls(names, owner[first], file[first], np.stack(summed, axis=1).astype(np.float64)[order])

    def __len__(self) -> int:
        return len(self.owner)

    @property
    def read_and_decoded_ns(self) -> Floats:
        """What each owner pays for the reading and decoding of each file, of shape (entries,)."""
        return np.asarray(self.parts[:, FILE_PARTS.index("read")] + self.parts[:, FILE_PARTS.index("decode")])

    def of_owners(self, owners: Times) -> FileCosts:
        """What these owners pay; their places in `owners` are their new numbers."""
        rows, of = ranges(
            np.searchsorted(self.owner, owners), np.searchsorted(self.owner, owners, side="right")
        )
        return FileCosts(self.names, of, self.file[rows], self.parts[rows])

    def between(self, first: int, behind: int) -> FileCosts:
        """What the owners in a range pay; the first of them is number 0."""
        own = slice(*np.searchsorted(self.owner, [first, behind]).tolist())
        owner = held(self.owner[own] - first) if first else self.owner[own]
        return FileCosts(self.names, owner, self.file[own], self.parts[own])

    def scaled(self, factors: npt.NDArray[Any]) -> FileCosts:
        """Multiply what each owner pays by its factor."""
        return FileCosts(self.names, self.owner, self.file, self.parts * factors[self.owner][:, None])

    def owned_by(self, owners: Times) -> Charges:
        """Charge the same to others: owner i is ``owners[i]``."""
        return Charges(owners[self.owner], self.file, self.parts)

    def totals(self) -> dict[str, list[float]]:
        """Sum up each file, in the order in which they were charged."""
        files, first, _ = grouped(self.file)
        whole = [np.bincount(self.file, column, len(self.names.paths)) for column in self.parts.T]
        in_order = files[np.argsort(first)].tolist()
        return {self.names.paths[file]: [float(part[file]) for part in whole] for file in in_order}

    def by_owner(self, owners: int) -> list[dict[str, list[float]]]:
        """The files that each of so many owners pays for."""
        found: list[dict[str, list[float]]] = [{} for _ in range(owners)]
        columns = (self.owner.tolist(), self.file.tolist(), self.parts.tolist())
        for owner, file, parts in zip(*columns, strict=True):
            found[owner][self.names.paths[file]] = parts
        return found


class ItemReads(msgspec.Struct, frozen=True):
    """The reads of each item of one process, in time order.

    `only[i]` is the file that item i read if that was just one; `first_end_ns[i]` is when its first read
    ended. `latest` has, for read paths without a file, the file that the item read last before. Files are
    their numbers, -1 where there is none.
    """

    only: Times
    first_end_ns: Times
    latest: Times


def read_calls(calls: PosixCalls) -> npt.NDArray[np.bool_]:
    """Mark the calls that read; opening a file or asking for its size is no read."""
    return calls.named(READS)


def item_reads(
    items: Columns,
    spans: Columns,
    read_paths: Columns,
    calls: PosixCalls,
    span_files: dict[int, str],
    call_files: dict[int, str],
    names: FileNames,
) -> ItemReads:
    """Find what `items`, disjoint on each thread, read; `read_paths` are the outermost ones of `spans`.

    `span_files` and `call_files` name the files of spans and calls, by their numbers there; `names` number
    them in the result.
    """
    span_number = names.of(spans["file"], span_files)
    known = np.isin(spans["kind"], (KIND_READ_PATH, KIND_MAPPED)) & (span_number >= 0)
    reading = read_calls(calls)
    of_calls = {file: call_files[file] for file in distinct(calls.file[reading]).tolist()}
    stores = {names.paths[file] for file in distinct(span_number).tolist() if file >= 0}
    call_number = names.of(calls.file[reading], _within_stores(of_calls, stores))
    starts = np.concatenate((spans["start_ns"][known], calls.start_ns[reading]))
    ends = np.concatenate((bounds(spans)[1][known], calls.end_ns[reading]))
    tids = _threads_of_items(items, np.concatenate((spans["tid"][known], calls.tid[reading])))
    file = np.concatenate((span_number[known], call_number))
    item = holder(items, starts, tids)
    held = np.flatnonzero(item >= 0)
    least = np.full(len(items), np.iinfo(np.int64).max, dtype=np.int64)
    most = np.full(len(items), -1, dtype=np.int64)
    first_end = np.full(len(items), np.iinfo(np.int64).max, dtype=np.int64)
    np.minimum.at(least, item[held], file[held])
    np.maximum.at(most, item[held], file[held])
    np.minimum.at(first_end, item[held], ends[held])
    order = held[np.lexsort((starts[held], item[held]))]
    latest = _latest(items, read_paths, span_files, item[order], starts[order], file[order])
    return ItemReads(np.where(least == most, most, -1), first_end, latest)


def _within_stores(files: dict[int, str], read_paths: set[str]) -> dict[int, str]:
    """Name the store of each file that lies in a directory which a read path reads, as a zarr array's."""
    named = dict(files)
    for file, path in files.items():
        end = path.rfind("/")
        while end > 0:
            if path[:end] in read_paths:
                named[file] = path[:end]
                break
            end = path.rfind("/", 0, end)
    return named


def _threads_of_items(items: Columns, tids: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Count reads of a library's own threads as the item's, where one thread alone makes items."""
    makers = distinct(items["tid"])
    return np.full(len(tids), makers[0]) if len(makers) == 1 else tids


def _latest(
    items: Columns, read_paths: Columns, span_files: dict[int, str], item: Times, starts: Times, file: Times
) -> Times:
    """Find the file of the last read that began before each read path without a file ended, in its item."""
    found = np.full(len(read_paths), -1, dtype=np.int64)
    nameless = np.flatnonzero(~np.isin(read_paths["file"], list(span_files)))
    held_by = holder(items, read_paths["start_ns"][nameless], read_paths["tid"][nameless])
    nameless, held_by = nameless[held_by >= 0], held_by[held_by >= 0]
    ends = read_paths["start_ns"][nameless] + read_paths["duration_ns"][nameless]
    # All reads and ends in one order; of equal times the ends come first.
    is_read = np.arange(len(nameless) + len(item)) >= len(nameless)
    order = np.lexsort((is_read, np.concatenate((ends, starts)), np.concatenate((held_by, item))))
    reads_before = np.empty(len(order), dtype=np.int64)
    reads_before[order] = np.cumsum(is_read[order])
    last = reads_before[: len(nameless)] - 1
    known = last >= np.searchsorted(item, held_by)
    found[nameless[known]] = file[last[known]]
    return found
