"""Calls that dftracer lost: counted by the gaps in the numbers of its events."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, strategies as st

from iotrace.sources.dftracer.call_reader import missing, read_posix


def log(path: Path, *events: tuple[int, int]) -> None:
    """A log with a call by each (pid, number), among lines without a number."""
    lines = []
    for pid, number in events:
        common = {"cat": "POSIX", "pid": pid, "tid": pid}
        lines.append(
            {"name": "FH", "ph": 4, **common, "args": {"name": f"{number}.h5", "value": f"{number}"}}
        )
        lines.append(
            {"id": number, "name": "read", "ph": 1, "ts": number, "dur": 1, **common}
            | {"args": {"ret": 8, "fhash": f"{number}"}}
        )
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


@pytest.mark.parametrize(
    ("numbers", "lost"),
    [
        ([], 0),
        ([1, 2, 3], 0),
        ([2, 1, 4, 3], 0),  # threads
        ([1, 2, 3, 1, 2], 0),  # the process executed its command line again
        ([9, 10, 11], 8),
        ([1, 2, 5, 6, 9], 4),
        ([1, 2, 1, 4], 2),
        ([0, 1, 2], 0),
    ],
)
def test_what_is_missing_is_counted(numbers: list[int], lost: int) -> None:
    assert missing(np.array(numbers, dtype=np.int64)) == lost


@given(st.integers(1, 200).flatmap(lambda n: st.tuples(st.just(n), st.sets(st.integers(1, n)))))
def test_each_event_that_is_taken_out_counts(drawn: tuple[int, set[int]]) -> None:
    last, taken = drawn
    left = [number for number in range(1, last + 1) if number not in taken]
    # What was written last is not known: nothing after it is missed.
    lost = len([number for number in taken if left and number < left[-1]])
    assert missing(np.array(left, dtype=np.int64)) == lost


def test_losses_are_told_by_process(tmp_path: Path) -> None:
    log(tmp_path / "io-1-preload.pfw", (7, 1), (7, 2), (7, 5))
    log(tmp_path / "io-2-fork.pfw", (8, 1), (8, 2))
    log(tmp_path / "io-3-preload.pfw", (9, 2))
    calls = read_posix(tmp_path)
    assert calls.problems == [
        "dftracer lost 2 calls of pid 7",
        "dftracer lost 1 call of pid 9",
    ]
    assert len(calls) == 6


def test_a_call_whose_file_is_not_named_is_told_but_not_one_that_has_none(tmp_path: Path) -> None:
    path = tmp_path / "io-1-preload.pfw"
    log(path, (7, 1), (7, 2))
    fork = {"id": 3, "name": "fork", "cat": "POSIX", "pid": 7, "tid": 7, "ph": 1, "ts": 3, "dur": 1}
    lines = path.read_text().replace('"fhash": "2"', '"fhasg": "2"') + json.dumps(fork | {"args": {"ret": 1}})
    path.write_text(lines + "\n")
    found = read_posix(tmp_path)
    assert len(found) == 1
    assert found.problems == ["1 call was left out: read without a file"]
