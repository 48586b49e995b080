"""Why the consumer waited: each wait split into causes that sum to it exactly, and charged to files."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import overload

import msgspec
import numpy as np
import numpy.typing as npt

from iotrace.analysis.intervals import Times
from iotrace.analysis.loop.deliveries import Deliveries, Delivery
from iotrace.analysis.wait.file_costs import FileCosts, FileNames
from iotrace.analysis.wait.production import PARTS
from iotrace.sources.columns import BLOCK, Index

CAUSES = ("startup", "queued", "read", "decode", "transform", "collate", "sampling", "transport", "unknown")

# How far ahead of the consumer workers are looked for: prefetch times workers is less in practice.
_FARTHEST = 256


Floats = npt.NDArray[np.float64]
Made = tuple[list[float], dict[str, list[float]]]  # what a production was made of: parts, files


class Explained(msgspec.Struct, frozen=True):
    """A delivery's wait by cause (ns, sums to the wait) and by file (`FILE_PARTS`, ns).

    `made`: what its whole production was made of, by `PARTS` and by file; None where that is not known.
    """

    delivery: Delivery
    causes: dict[str, int]
    files: dict[str, list[float]] = {}
    made: Made | None = None

    @property
    def cause(self) -> str:
        """The largest part."""
        return max(CAUSES, key=lambda name: self.causes[name])


class Waits(Sequence[Explained]):
    """Explained waits as columns: ``causes[i, j]`` is what cause j of `CAUSES` has of wait i, in ns.

    `made` has the parts of each whole production, by `PARTS`, and is NaN where they are not known.
    """

    def __init__(
        self, deliveries: Deliveries, causes: Times, files: FileCosts, made: Floats, made_files: FileCosts
    ) -> None:
        self.deliveries, self.causes, self.files = deliveries, causes, files
        self.made, self.made_files = made, made_files

    @classmethod
    def joined(cls, parts: Sequence[Waits], names: FileNames) -> Waits:
        """Put tables one behind the other."""
        first = np.cumsum([0, *(len(part) for part in parts)])
        owners = [np.arange(len(part)) + at for at, part in zip(first.tolist(), parts, strict=False)]
        files = [part.files.owned_by(own) for part, own in zip(parts, owners, strict=True)]
        made = [part.made_files.owned_by(own) for part, own in zip(parts, owners, strict=True)]
        return cls(
            Deliveries.joined(part.deliveries for part in parts),
            np.concatenate([np.empty((0, len(CAUSES)), np.int64), *(part.causes for part in parts)]),
            FileCosts.of(names, files),
            np.concatenate([np.empty((0, len(PARTS))), *(part.made for part in parts)]),
            FileCosts.of(names, made),
        )

    def __len__(self) -> int:
        return len(self.deliveries)

    @overload
    def __getitem__(self, key: int) -> Explained: ...
    @overload
    def __getitem__(self, key: Index) -> Waits: ...
    def __getitem__(self, key: int | Index) -> Explained | Waits:
        if isinstance(key, int):
            row = range(len(self))[key]
            return self.between(row, row + 1)._structs()[0]
        if isinstance(key, np.ndarray) and key.dtype == np.bool_ and key.all():
            return self
        rows: Times = np.arange(len(self))[key]
        files, made_files = (costs.of_owners(rows) for costs in (self.files, self.made_files))
        return Waits(self.deliveries[rows], self.causes[rows], files, self.made[rows], made_files)

    def between(self, first: int, behind: int) -> Waits:
        """Return the waits of a range, without a copy of them."""
        own = slice(first, behind)
        files, made_files = (costs.between(first, behind) for costs in (self.files, self.made_files))
        return Waits(self.deliveries[own], self.causes[own], files, self.made[own], made_files)

    def __iter__(self) -> Iterator[Explained]:
        for first in range(0, len(self), BLOCK):
            yield from self.between(first, min(first + BLOCK, len(self)))._structs()

    def _structs(self) -> list[Explained]:
        known = (~np.isnan(self.made[:, 0])).tolist()
        columns = (
            self.deliveries,
            self.causes.tolist(),
            self.files.by_owner(len(self)),
            zip(self.made.tolist(), self.made_files.by_owner(len(self)), strict=True),
            known,
        )
        return [
            Explained(delivery, dict(zip(CAUSES, causes, strict=True)), files, made if is_known else None)
            for delivery, causes, files, made, is_known in zip(*columns, strict=True)
        ]

    def of_cause(self, cause: str) -> Times:
        """What a cause has of each wait, in ns."""
        return np.asarray(self.causes[:, CAUSES.index(cause)])

    @property
    def making_ns(self) -> Times:
        """The part of each wait in which a worker made batches: this one or, beside its way, later ones."""
        _, _, production, transport = split_waits(self.deliveries)
        loop_ns = self.of_cause("transport") + self.of_cause("sampling")
        return np.asarray(np.maximum(0, production + transport - loop_ns))

    @property
    def of_making_and_way(self) -> Times:
        """The part of each wait in which batches were made, or were on their way to the loop."""
        return np.asarray(self.making_ns + self.of_cause("transport"))

    @property
    def cause(self) -> Times:
        """The largest part of each, as a column of `CAUSES`."""
        return np.asarray(np.argmax(self.causes, axis=1))


def split_waits(deliveries: Deliveries) -> tuple[Times, Times, Times, Times]:
    """Waits' parts before the worker was up, before it took the index, during and after production."""
    start, end = deliveries["wait_start_ns"], deliveries["delivered_ns"]
    taken = np.where(deliveries.known("taken_ns"), deliveries["taken_ns"], start)
    up = np.where(deliveries.known("up_ns"), deliveries["up_ns"], taken)
    prepared = np.where(deliveries.known("prepared_ns"), deliveries["prepared_ns"], end)
    up = np.minimum(np.maximum(up, start), end)
    taken = np.minimum(np.maximum(taken, up), end)
    prepared = np.minimum(np.maximum(prepared, taken), end)
    return up - start, taken - up, prepared - taken, end - prepared


def behind_ready_ns(deliveries: Deliveries, waits: Waits) -> int:
    """How long the consumer waited for batches to be made while a later one of the epoch lay ready.

    `deliveries` are the loader's, in the order of delivery. With ``in_order=False`` none of it is left.
    """
    if not len(waits):
        return 0
    never = np.iinfo(np.int64).max
    prepared = np.where(deliveries.known("prepared_ns"), deliveries["prepared_ns"], never)
    # A run: consecutive batches of an epoch whose preparation is known; what lies behind one counts no more.
    same = prepared[1:] < never
    for field in ("iterator", "epoch"):
        same &= deliveries[field][1:] == deliveries[field][:-1]
    breaks = np.append(np.flatnonzero(~same) + 1, len(deliveries))
    first = waits.deliveries["number"] + 1
    until = np.minimum(breaks[np.searchsorted(breaks, first)], first + _FARTHEST)
    earliest = _least_within(prepared, first, until)
    behind = (first < until) & (earliest <= waits.deliveries["wait_start_ns"])
    made_ns = waits.deliveries.wait_ns - waits.of_cause("transport") - waits.of_cause("sampling")
    return int(made_ns[behind].sum())


def _least_within(values: Times, first: Times, until: Times) -> Times:
    """Per range ``[first, until)``, of at most `_FARTHEST`: the least of `values`."""
    found = np.full(len(first), np.iinfo(np.int64).max)
    least, length = values, 1  # `least` covers `length` values from each on
    position = first.copy()
    left = np.maximum(until - first, 0)
    while length <= _FARTHEST and left.any():
        odd = (left & length) > 0
        found[odd] = np.minimum(found[odd], least[position[odd]])
        position[odd] += length
        left[odd] -= length
        doubled = least.copy()
        if length < len(least):
            doubled[:-length] = np.minimum(least[:-length], least[length:])
        least, length = doubled, 2 * length
    return found
