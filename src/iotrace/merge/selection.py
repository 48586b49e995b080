"""What of an input is wanted; of slices that are a begin and an end event, both or neither."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from msgspec import UNSET

from iotrace.sources.byte_stream import blocks
from iotrace.sources.chrome.batch import Batch, Times, pair
from iotrace.sources.clocks.session_clock import ClockMap

_BEGINS, _ENDS = b"Bb", b"Ee"
_PAIRED = re.compile(rb'"ph"\s*:\s*"[BEbe]"')
_OVERLAP_BYTES = 64
_ENDLESS_NS = 2**62


@dataclass(frozen=True)
class Selection:
    """What of an input is wanted: half-open windows in ns of the merged clock, categories left out."""

    windows: tuple[tuple[int, int], ...] = ()
    dropped: frozenset[str] = frozenset()

    @property
    def everything(self) -> bool:
        """Whether nothing is left out."""
        return not self.windows and not self.dropped

    def in_time(self, starts: Times, ends: Times) -> npt.NDArray[np.bool_]:
        """Which of the spans lie in a window, a part at least."""
        wanted = np.full(len(starts), not self.windows)
        for first, last in self.windows:
            wanted |= (starts < last) & ((ends > first) | ((starts >= first) & (starts == ends)))
        return wanted

    def leaves_out(self, category: Any) -> bool:
        """Whether one of an event's categories is left out."""
        return bool(categories(category) & self.dropped)


def categories(text: Any) -> frozenset[str]:
    """The categories that an event's `cat` names, between commas."""
    return frozenset() if text is UNSET else frozenset(item.strip() for item in text.lower().split(","))


def are_in(path: Path) -> bool:
    """Whether a trace holds such events."""
    rest = b""
    for block in blocks(path, []):
        data = rest + block
        if _PAIRED.search(data):
            return True
        rest = data[-_OVERLAP_BYTES:]
    return False


@dataclass
class _Found:
    """The begins and ends of some batches, as columns."""

    number: list[int] = field(default_factory=list)  # of the event in its input
    row: list[Any] = field(default_factory=list)  # what it is nested in: a thread, or the others of its id
    time_ns: list[int] = field(default_factory=list)
    is_end: list[bool] = field(default_factory=list)
    left_out: list[bool] = field(default_factory=list)


def chosen(batches: Iterable[Batch], clock: ClockMap, selection: Selection) -> Times:
    """The numbers, in the order of the input, of the begins and ends that `selection` holds."""
    events = _Found()
    seen = 0
    for batch in batches:
        phases, tracks = batch.phases, batch.track
        starts = clock.times(batch.start_ns)
        found_at = np.flatnonzero(np.isin(phases, list(_BEGINS + _ENDS)))
        letters = phases[found_at]
        events.number += (found_at + seen).tolist()
        events.time_ns += starts[found_at].tolist()
        events.is_end += np.isin(letters, list(_ENDS)).tolist()
        for row, letter, track in zip(
            found_at.tolist(), letters.tolist(), tracks[found_at].tolist(), strict=True
        ):
            thread = batch.tracks[track]
            is_async = letter in b"be"
            category = batch.value(row, "cat") if is_async or selection.dropped else UNSET
            events.row.append(_others_of_id(batch, row, category, thread[0]) if is_async else thread)
            events.left_out.append(selection.leaves_out(category))
        seen += len(batch)
    begins, ends = pair(events.row, events.time_ns, events.is_end)
    span_starts = np.array([events.time_ns[index] for index in begins], np.int64)
    span_ends = np.array([_ENDLESS_NS if end is None else events.time_ns[end] for end in ends], np.int64)
    wanted = selection.in_time(span_starts, span_ends)
    numbers = []
    for begin, end, keeps in zip(begins, ends, wanted.tolist(), strict=True):
        if keeps and not events.left_out[begin]:
            numbers.append(events.number[begin])
            if end is not None:
                numbers.append(events.number[end])
    return np.sort(np.array(numbers, np.int64))


def _others_of_id(batch: Batch, index: int, category: Any, pid: Any) -> tuple[Any, ...]:
    id2 = batch.value(index, "id2")
    is_local = isinstance(id2, dict) and "local" in id2  # else one id is one in all processes
    return category, pid if is_local else UNSET, str(batch.value(index, "id")), str(id2)
