"""What a trace says of single events beside their times: shapes of inputs, how a kernel fills the device."""

from __future__ import annotations

from functools import cached_property

import msgspec
import numpy as np
import numpy.typing as npt

from iotrace.sources.kineto.column_batch import BETWEEN, MORE_TEXTS, TEXTS
from iotrace.sources.kineto.trace import Column, KinetoTrace

_DIMS, _TYPES, _BLOCKS, _WARPS, _OCCUPANCY = range(len(TEXTS))
_CONCRETE, _STREAM, _RECORD = range(len(TEXTS), len(TEXTS) + len(MORE_TEXTS))
Floats = npt.NDArray[np.float64]
_TOO_MANY_WARPS = 1.28  # for an occupancy that rounds to 0: 2 % of the 64 that a multiprocessor holds
Shape = tuple[int, ...]


class Inputs(msgspec.Struct, frozen=True):
    """The shapes of an operator's inputs, and their types; an input that is no tensor has the shape ().

    `values` are those of inputs that are no tensors, as they are written; empty where they were not kept.
    """

    shapes: tuple[Shape, ...]
    types: tuple[str, ...]
    values: tuple[str, ...] = ()


class Details(msgspec.Struct, frozen=True, dict=True):
    """The details of a trace, by the number in the column `details` of its events."""

    trace: KinetoTrace

    @cached_property
    def _texts(self) -> list[list[bytes]]:
        whole = len(TEXTS) + len(MORE_TEXTS)
        split = [text.split(BETWEEN) if text else [] for text in self.trace.details]
        return [texts + [b""] * (whole - len(texts)) for texts in split]

    @cached_property
    def blocks_per_sm(self) -> Floats:
        return self._numbers(_BLOCKS)

    @cached_property
    def occupancy_pct(self) -> Floats:
        """Kineto's estimate, which is 0 for kernels with more shared memory than CUDA gives unasked.

        That 0 is unknown: the warps that such a kernel has on a multiprocessor show it.
        """
        found = self._numbers(_OCCUPANCY)
        found[(found == 0) & (self._numbers(_WARPS) >= _TOO_MANY_WARPS)] = np.nan
        return found

    def _numbers(self, at: int) -> Floats:
        return np.array([_number(texts[at]) for texts in self._texts] or [np.nan])

    @cached_property
    def has_shapes(self) -> bool:
        return any(texts[_DIMS] for texts in self._texts)

    def inputs(self, number: int) -> Inputs | None:
        """Read the inputs of an operator; None where none were recorded."""
        texts = self._texts[number]
        dims, types = _decoded(texts[_DIMS]), _decoded(texts[_TYPES])
        if not isinstance(dims, list):
            return None
        names = types if isinstance(types, list) else []
        values = _decoded(texts[_CONCRETE])
        kept = tuple(map(str, values)) if isinstance(values, list) else ()
        return Inputs(tuple(_shape(one) for one in dims), tuple(str(name) for name in names), kept)

    def awaited(self, number: int) -> tuple[int | None, int | None]:
        """Read what a synchronisation event awaits: a stream, and the call that recorded its event."""
        stream, record = (_number(self._texts[number][at]) for at in (_STREAM, _RECORD))
        return (None if np.isnan(stream) else int(stream)), (None if np.isnan(record) else int(record))

    def of(self, column: Floats, rows: Column) -> Floats:
        """Look up what `column` says of the events of `rows`."""
        return column[self.trace.events.details[rows]]


def _shape(found: object) -> Shape:
    """The sizes of one tensor; of a list of tensors, or what is none, nothing."""
    if isinstance(found, list) and all(isinstance(size, int) for size in found):
        return tuple(found)
    return ()


def _number(text: bytes) -> float:
    try:
        found = float(text.strip(b'"'))
    except ValueError:
        return np.nan
    return found if found >= 0 and np.isfinite(found) else np.nan


def _decoded(text: bytes) -> object:
    try:
        found = msgspec.json.decode(text) if text else None
        return msgspec.json.decode(found) if isinstance(found, str) and found.startswith("[") else found
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
