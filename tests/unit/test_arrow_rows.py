"""Rows of Hugging Face's datasets: lists that are made of them, columns that are copied, images in them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from iotrace.analysis.rules.arrow_rows import made_lists
from iotrace.analysis.rules.causes import ended_by
from iotrace.analysis.rules.facts.examples import fill
from iotrace.analysis.rules.facts.loader import LoaderFacts
from iotrace.analysis.rules.facts.making import Making
from iotrace.analysis.wait.arrow_rows import arrow_rows
from iotrace.analysis.wait.gain_bound import FILES, RESIZED
from iotrace.session.names import KIND_READ_PATH
from iotrace.sources.columns import Columns
from iotrace.sources.processes import SPAN_DTYPE
from iotrace.sources.records import IteratorStart

NAMES = {
    1: "datasets.Dataset._getitem",
    2: "datasets.PythonArrowExtractor.extract_batch",
    3: "datasets.PythonFeaturesDecoder.decode_batch",
    4: "PIL.Image.open",
    5: "PIL.ImageFile.load",
}


def shares(*spans: tuple[int, int, int]) -> tuple[float, float]:
    """Of spans of one thread: the number of the name, the begin and the length."""
    rows: Any = np.zeros(len(spans), SPAN_DTYPE)
    rows["kind"], rows["tid"] = KIND_READ_PATH, 7
    for at, (name, start, length) in enumerate(spans):
        rows[at]["name"], rows[at]["start_ns"], rows[at]["duration_ns"] = name, start, length
    rank = SimpleNamespace(processes=[SimpleNamespace(spans=Columns.of(rows), texts=NAMES)])
    analysis: Any = SimpleNamespace(rank=rank)
    return arrow_rows(analysis)


@pytest.mark.parametrize(
    ("spans", "lists", "copied"),
    [
        pytest.param([(1, 0, 100), (2, 5, 90), (1, 200, 100), (2, 205, 90)], 0.9, 0.1, id="lists of numbers"),
        pytest.param([(1, 0, 100), (2, 2, 2), (3, 5, 94), (4, 6, 10), (5, 20, 70)], 0.02, 0.18, id="images"),
        pytest.param([(1, 0, 100), (1, 200, 100)], 0.0, 1.0, id="numpy"),
        # What is taken elsewhere, as by a function of set_transform, is no part of taking rows.
        pytest.param([(2, 0, 100), (5, 200, 50)], 0.0, 0.0, id="a transform of the program's"),
        pytest.param([(1, 0, 100), (2, 5, 90), (5, 200, 900)], 0.9, 0.1, id="images behind it"),
    ],
)
def test_what_taking_rows_consists_of(spans: list[tuple[int, int, int]], lists: float, copied: float) -> None:
    assert shares(*spans) == (pytest.approx(lists), pytest.approx(copied))


@pytest.mark.parametrize(
    ("held", "gone", "said"),
    [
        # A line such as torch.tensor(row["mel"]) looks at each number of a list.
        (0.9, RESIZED, "and most of a sample is train.py:9, perhaps for these: 48.0 ms of wait a step"),
        # One that computes with arrays lets other threads run, or has a name: no list makes it slow.
        (0.0, FILES, "of the rows of d: 12.0 ms of wait a step"),
    ],
)
def test_a_line_that_is_slow_as_it_takes_lists_is_of_their_cause(held: float, gone: str, said: str) -> None:
    about = fill(IteratorStart, {"dataset": "Rows", "workers": 1})
    facts = LoaderFacts(
        about=about,
        step_ms=100.0,
        wait_ms=60.0,
        causes_ms={"transform": 40.0, "decode": 12.0},
        gains_ms={RESIZED: 55.0, FILES: 14.0},
        making=Making(as_lists=0.7),
        hot_line="train.py:9",
        hot_held=held,
    )
    remedy = made_lists(facts, "d/data.arrow")
    assert remedy is not None
    assert remedy.gone == gone
    found = next(ended_by(remedy, "decode", facts))
    assert found.text.endswith(said)
    assert found.gain_ms == pytest.approx(55 * 48 / 52 if held else 14.0)
    assert ("if train.py:9 makes arrays" in found.remedy, found.first) == (bool(held), bool(held))
