"""Lanes of the merge against the obvious way: one slice after another, every lane tried."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

from iotrace.timeline.writers.lanes import (
    BEGIN,
    END,
    FLOW,
    FLOW_NEXT,
    INSTANT,
    NEXT,
    ROW,
    SLICE,
    STACKED,
    UNBOUND,
    Lanes,
    Spill,
)

spans = st.lists(st.tuples(st.integers(0, 25), st.integers(0, 8), st.booleans()), max_size=14)


def _rows(found: list[tuple[int, int, bool]]) -> Any:
    rows = [
        (start, start if flow else start + length, index, FLOW if flow else SLICE, 0)
        for index, (start, length, flow) in enumerate(found)
    ]
    table = np.array(rows, ROW)
    return table[np.lexsort((table["ordinal"], -table["end"], table["start"]))]


def _obvious(rows: Any) -> list[int]:
    """Slices go to the first lane in which they cross none; flow ends to the slice that began last."""
    lanes: list[list[tuple[int, int]]] = []
    found = []
    for start, end, _, kind, _ in rows.tolist():
        if kind == FLOW:
            holders = [
                (a, -lane) for lane, items in enumerate(lanes) for a, b in items if a <= start and b >= start
            ]
            found.append(-max(holders)[1] if holders else UNBOUND)
            continue
        free = (
            lane
            for lane, items in enumerate(lanes)
            if all(b <= start or (a <= start and end <= b) for a, b in items)
        )
        lane = next(free, len(lanes))
        if lane == len(lanes):
            lanes.append([])
        lanes[lane].append((start, end))
        found.append(lane)
    return found


@pytest.mark.parametrize("is_compiled", [True, False])
@given(found=spans, cut=st.integers(0, 14))
def test_slices_are_placed_as_the_obvious_way_places_them(
    is_compiled: bool, found: list[tuple[int, int, bool]], cut: int
) -> None:
    rows = _rows(found)
    lanes = Lanes()
    if not is_compiled:
        lanes._compiled = None
    placed: list[int] = []
    for window in (rows[:cut], rows[cut:]):
        placed += lanes.assign(window).tolist()
    assert placed == _obvious(rows)


mixed = st.lists(
    st.tuples(
        st.integers(0, 25),
        st.integers(0, 8),
        st.sampled_from([SLICE, SLICE, FLOW, FLOW_NEXT, FLOW_NEXT, BEGIN, END, INSTANT]),
    ),
    max_size=20,
)


def _obvious_flows(rows: Any, is_whole: bool) -> list[int]:
    """Where flows end, slice by slice: around them, or at the slice that begins next."""
    table = rows.tolist()
    lanes = iter(_obvious(rows[rows["kind"] == SLICE]))
    placed = [
        next(lanes) if kind == SLICE else STACKED if kind in (BEGIN, END) else 0 for *_, kind, _ in table
    ]
    opened: list[int] = []
    for index, (time, _, _, kind, _) in enumerate(table):
        if kind == BEGIN:
            opened.append(time)
        elif kind == END:
            opened = opened[:-1]
        elif kind in (FLOW, FLOW_NEXT):
            holders = [
                (table[at][0], -placed[at])
                for at in range(index)
                if table[at][3] == SLICE and table[at][1] >= time
            ]
            holders += [(start, -STACKED) for start in opened[-1:]]
            start, lane = max(holders, default=(-1, 1))
            placed[index] = -lane
            later = next((at for at in range(index, len(table)) if table[at][3] in (SLICE, BEGIN)), None)
            if kind == FLOW_NEXT and start != time:
                if later is not None:
                    placed[index] = placed[later] | NEXT
                elif not is_whole:
                    placed[index] = UNBOUND
    return placed


@pytest.mark.parametrize("is_compiled", [True, False])
@given(found=mixed, cuts=st.lists(st.integers(0, 20), max_size=3), is_whole=st.booleans())
def test_arrows_end_around_or_at_the_next_slice_wherever_windows_end(
    is_compiled: bool, found: list[tuple[int, int, int]], cuts: list[int], is_whole: bool
) -> None:
    table = np.array(
        [
            (start, start + (length if kind == SLICE else 0), index, kind, 0)
            for index, (start, length, kind) in enumerate(found)
        ],
        ROW,
    )
    rows = table[np.lexsort((table["ordinal"], -table["end"], table["start"]))]
    lanes = Lanes(is_whole)
    if not is_compiled:
        lanes._compiled = None
    windows = [window for window in np.split(rows, sorted(cuts)) if len(window)]
    through = list(lanes.through(iter(windows)))
    assert [row for part, _ in through for row in part["ordinal"].tolist()] == rows["ordinal"].tolist()
    expected = _obvious_flows(rows, is_whole)
    assert [lane for _, placed in through for lane in placed.tolist()] == expected


@pytest.mark.parametrize("crossing", [True, False])
def test_more_lanes_and_levels_than_the_compiled_loop_has_room_for(crossing: bool) -> None:
    """Seventy slices that cross one another, six hundred that nest; and a flow into the last of each."""
    count = 70 if crossing else 600
    slices = [(index, 2000 if crossing else 2000 - 2 * index, False) for index in range(count)]
    rows = _rows([*slices, (count, 0, True)])
    lanes = Lanes()
    placed = [*lanes.assign(rows[:20]).tolist(), *lanes.assign(rows[20:]).tolist()]
    assert placed == [*(range(count) if crossing else [0] * count), count - 1 if crossing else 0]
    assert lanes._compiled is None


def test_more_begin_events_than_the_compiled_loop_has_room_for() -> None:
    rows = np.array([(at, at, at, BEGIN, 0) for at in range(600)] + [(600, 600, 600, FLOW, 0)], ROW)
    lanes = Lanes()
    placed = [lane for _, part in lanes.through([rows[:20], rows[20:]]) for lane in part.tolist()]
    assert placed == [STACKED] * 601
    assert lanes._compiled is None


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 50), st.integers(0, 9)), max_size=40), st.data())
def test_windows_hold_all_rows_in_order(
    tmp_path_factory: pytest.TempPathFactory, found: list[tuple[int, int, int]], data: st.DataObject
) -> None:
    spill = Spill(Path(tmp_path_factory.mktemp("spill")) / "rows")
    at = 0
    while at < len(found):
        count = data.draw(st.integers(1, 10))
        piece = np.array(found[at : at + count], np.int64)
        ordinals = np.arange(at, at + len(piece))
        zeros = np.zeros(len(piece), np.int32)
        spill.add(piece[:, 0], piece[:, 1], piece[:, 1] + piece[:, 2], ordinals, zeros, zeros)
        at += count
    for thread in range(3):
        windows = list(spill.windows(thread)) if thread in spill.threads() else []
        rows = [row for window in windows for row in window[["start", "end", "ordinal"]].tolist()]
        expected = [
            (start, start + length, index)
            for index, (own, start, length) in enumerate(found)
            if own == thread
        ]
        assert rows == sorted(expected, key=lambda row: (row[0], -row[1], row[2]))
    spill.close()
