"""Flows of tracks that are no thread's: the slices themselves hold the numbers of their flows.

Perfetto takes events that bind flows, as Chrome has them, from threads alone. A number in the packets that
begin slices joins these in the order of time.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

from iotrace.timeline.writers.lanes import NEXT, STACKED, UNBOUND
from iotrace.timeline.writers.spill import BEGIN, END, FLOW, FLOW_NEXT, SLICE, Rows

_PASSES, _ENDS = b"\xf9\x02", b"\x81\x03"  # tags of a TrackEvent's flow_ids and terminating_flow_ids
_Lanes = npt.NDArray[np.int32]


def are_flows(kinds: Any) -> Any:
    """A mask of the rows of flows."""
    return (kinds == FLOW) | (kinds == FLOW_NEXT)


class FlowBinding:
    """Finds the slice of each flow's start, step and end; flows are known by the offsets of their bodies."""

    def __init__(self) -> None:
        self._found: list[tuple[Any, Any, Any]] = []

    def add(self, offsets: Any, ids: Any, phases: Any) -> None:
        """Take flows of the next batch: offsets grow, `phases` are Chrome's letters."""
        if len(offsets):
            self._found.append((offsets, ids, phases))

    def __bool__(self) -> bool:
        return bool(self._found)

    def fields(self, windows: Iterable[tuple[Rows, _Lanes]]) -> list[tuple[int, int, bytes]]:
        """List the bodies of a thread's slices that get more: offset, size, and fields of a TrackEvent."""
        pieces = list(windows)
        rows = np.concatenate([piece for piece, _ in pieces])
        lanes = np.concatenate([placed for _, placed in pieces])
        flows = are_flows(rows["kind"]) & (lanes != UNBOUND)
        bound: list[tuple[Any, Any]] = []
        for lane in np.unique(lanes[flows] & ~NEXT).tolist():
            there = (lanes != UNBOUND) & ((lanes & ~NEXT) == lane)
            bound.append(_bind(rows[there], lanes[there] >= NEXT, lane == STACKED))
        return self._fields(bound)

    def _fields(self, bound: list[tuple[Any, Any]]) -> list[tuple[int, int, bytes]]:
        if not bound:
            return []
        slices, flows = (np.concatenate(column) for column in zip(*bound, strict=True))
        offsets, ids, phases = (np.concatenate(column) for column in zip(*self._found, strict=True))
        at = np.searchsorted(offsets, flows)
        found: dict[tuple[int, int], dict[bytes, None]] = defaultdict(dict)
        places = zip(slices["ordinal"].tolist(), slices["size"].tolist(), strict=True)
        for place, number, phase in zip(places, ids[at].tolist(), phases[at].tolist(), strict=True):
            tag = _ENDS if phase == ord("f") else _PASSES
            found[place][tag + number.to_bytes(8, "little")] = None
        return [(*place, b"".join(fields)) for place, fields in sorted(found.items())]


def _bind(rows: Rows, to_next: Any, is_stacked: bool) -> tuple[Any, Any]:
    """Return slices and the offsets of the flows that they hold; `rows` are those of one lane, in order."""
    kinds = rows["kind"]
    is_flow, begins = are_flows(kinds), (kinds == SLICE) | (kinds == BEGIN)
    slices, flows, following = rows[begins], rows[is_flow], to_next[is_flow]
    if not len(slices):
        return slices, np.empty(0, np.int64)
    after = np.searchsorted(slices["start"], flows["start"], side="left")
    around = _stacked(kinds) if is_stacked else _around(slices, flows["start"])
    at = np.where(following, after, around)
    known = (at >= 0) & (at < len(slices))
    return slices[at[known]], flows["ordinal"][known]


def _around(slices: Rows, times: Any) -> Any:
    """The slice that began last of those that hold each time, their ends included; -1 for none."""
    found = np.searchsorted(slices["start"], times, side="right") - 1
    over = np.flatnonzero((found >= 0) & (slices["end"][found] < times))
    while len(over):  # the slices within the one around it are over: few, mostly
        found[over] -= 1
        over = over[found[over] >= 0]
        over = over[slices["end"][found[over]] < times[over]]
    return found


def _stacked(kinds: Any) -> Any:
    """Of each flow the begin event that is open, by its number among them; -1 for none."""
    opened: list[int] = []
    found: list[int] = []
    begun = 0
    for kind in kinds.tolist():
        if kind == BEGIN:
            opened.append(begun)
            begun += 1
        elif kind == END:
            del opened[-1:]
        else:
            found.append(opened[-1] if opened else -1)
    return np.array(found, np.int64)
