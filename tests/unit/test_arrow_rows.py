"""Rows of Hugging Face's datasets: lists that are made of them, columns that are copied, images in them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from iotrace.analysis.wait.arrow_rows import arrow_rows
from iotrace.session.names import KIND_READ_PATH
from iotrace.sources.columns import Columns
from iotrace.sources.processes import SPAN_DTYPE

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
