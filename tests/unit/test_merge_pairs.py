"""Parts of slices that two events tell, against the same slices told by one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, given, settings, strategies as st

from iotrace.errors import IotraceError
from iotrace.merge.plan import Options
from iotrace.merge.run import merge

BASE_US = 1_795_000_000_000_000
walks = st.lists(st.tuples(st.booleans(), st.sampled_from(["a", "b", "a,c", None])), max_size=24)


def _events(walk: list[tuple[bool, str | None]]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """A walk up and down as begin and end events on a thread, and the slices that these tell."""
    paired, whole = [], []
    stack: list[tuple[int, str | None]] = []
    place = -1
    for place, (begins, category) in enumerate(walk):
        if begins:
            stack.append((place, category))
            cat = {} if category is None else {"cat": category}
            paired.append({"ph": "B", "pid": 77, "tid": 7, "ts": BASE_US + place, "name": str(place), **cat})
        elif stack:
            paired.append({"ph": "E", "pid": 77, "tid": 7, "ts": BASE_US + place})
            whole.append((*stack.pop(), place))
    return paired, [
        {
            "ph": "X",
            "pid": 77,
            "tid": 7,
            "ts": BASE_US + begin,
            "dur": end - begin,
            "name": str(begin),
            **({} if category is None else {"cat": category}),
        }
        for begin, category, end in [*whole, *((*item, place + 1000) for item in stack)]
    ]


def _merged(directory: Path, name: str, events: list[dict[str, Any]], options: Options) -> set[str]:
    """What the slices of the result are called; as many ends as begins of paired ones that end."""
    source = directory / f"{name}.json"
    mark = {"ph": "X", "pid": 77, "tid": 8, "ts": BASE_US, "dur": 500, "name": "mark"}
    source.write_text(json.dumps({"traceEvents": [mark, *events]}))
    try:
        merge([str(source)], directory / f"{name}-out.json", options)
    except IotraceError:
        return set()
    merged = json.loads((directory / f"{name}-out.json").read_bytes())["traceEvents"]
    depth = 0
    for event in merged:
        depth += {"B": 1, "E": -1}.get(event["ph"], 0)
        assert depth >= 0
    return {event["name"] for event in merged if event["ph"] in "XB"}


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=60)
@given(walks, st.integers(0, 20), st.integers(1, 10), st.sampled_from([frozenset(), frozenset({"a"})]))
def test_parts_hold_what_they_hold_of_whole_slices(
    tmp_path: Path,
    walk: list[tuple[bool, str | None]],
    first_us: int,
    length_us: int,
    dropped: frozenset[str],
) -> None:
    options = Options(seconds=(first_us / 1e6, (first_us + length_us) / 1e6), dropped=dropped, processes=1)
    paired, whole = _events(walk)
    assert _merged(tmp_path, "paired", paired, options) == _merged(tmp_path, "whole", whole, options)


def test_async_slices_are_told_by_their_ids(tmp_path: Path) -> None:
    def half(phase: str, pid: int, at_us: int, **identity: Any) -> dict[str, Any]:
        name = f"{identity}"
        return {
            "ph": phase,
            "pid": pid,
            "tid": 1,
            "ts": BASE_US + at_us,
            "name": name,
            "cat": "x",
            **identity,
        }

    events = [
        half("b", 77, 1, id="0x5"),
        half("e", 78, 9, id="0x5"),  # in another process
        half("b", 77, 2, id2={"local": "0x5"}),
        half("b", 78, 2, id2={"local": "0x5"}),
        half("e", 78, 3, id2={"local": "0x5"}),
        half("e", 77, 9, id2={"local": "0x5"}),
    ]
    source = tmp_path / "a.json"
    mark = {"ph": "X", "pid": 77, "tid": 8, "ts": BASE_US, "dur": 50, "name": "mark"}
    source.write_text(json.dumps({"traceEvents": [mark, *events]}))
    merge([str(source)], tmp_path / "out.json", Options(seconds=(5e-6, 6e-6), processes=1))
    merged = json.loads((tmp_path / "out.json").read_bytes())["traceEvents"]
    kept = [(event["ph"], "id2" in event) for event in merged if event["ph"] in "be"]
    assert sorted(kept) == [("b", False), ("b", True), ("e", False), ("e", True)]
