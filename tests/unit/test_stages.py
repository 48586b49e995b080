"""What a stage costs a sample, whether a dataset makes one at a time or a batch at once."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from iotrace.analysis.loop.deliveries import Delivery
from iotrace.analysis.wait.stages import _by_file, _Part, samples_of
from iotrace.sources.columns import Columns
from tests.support.tables import deliveries_of


def batch(number: int, samples: int | None) -> Delivery:
    at_ns = 100 * number
    return Delivery(
        *(0, number, 0, 0, number, at_ns, at_ns + 90), taken_ns=at_ns, prepared_ns=at_ns + 80, samples=samples
    )


def test_an_item_that_is_a_whole_batch_has_all_its_samples() -> None:
    """Items of a batch made one by one have one each; so has one of a batch of unknown size."""
    made = deliveries_of([batch(0, 2), batch(1, 256), batch(2, None)])
    items = Columns(4, {"start_ns": [10, 40, 110, 210]})
    assert samples_of(made, items).tolist() == [1, 1, 256, 1]


def decoding(
    samples: int, *calls: tuple[int | None, float], names: int = 0, same_sample: bool = True
) -> list[Any]:
    """The costs of samples that make `calls`: of a file (None: one of its own), ms of each."""
    count = samples * len(calls)
    sample = np.repeat(np.arange(samples), len(calls))
    file = [names + number if of is None else of for number in range(samples) for of, _ in calls]
    part = _Part(
        "decode",
        "cpu",
        np.arange(count) * 1000,
        np.tile([1e6 * cost_ms for _, cost_ms in calls], samples),
        np.array(file),
        np.ones(count),
        sample=sample if same_sample else np.arange(count),
    )
    paths = [f"file{number}.bin" for number in range(names)]
    return list(
        _by_file([part], [*paths, *(f"photos/{number}.png" for number in range(samples))], samples, None)
    )


def test_calls_of_a_sample_are_one_cost_where_a_file_is_opened_before_it_is_decoded() -> None:
    """The lower quartile of headers and images apart is that of headers."""
    (found,) = decoding(80, (-1, 0.1), (-1, 6.6))
    assert (found.path, found.count, found.per_sample) == (None, 80, 1.0)
    assert found.quartile_ms == pytest.approx(6.7)
    (directory,) = decoding(80, (None, 0.1), (None, 6.6))
    assert (directory.path, directory.quartile_ms) == ("photos/", pytest.approx(6.7))
    own, others = decoding(80, (0, 0.1), (-1, 6.6), names=1)
    assert (own.path, own.quartile_ms) == ("file0.bin", pytest.approx(0.1))
    assert (others.path, others.quartile_ms) == (None, pytest.approx(6.6))


def test_costs_of_other_samples_stay_apart() -> None:
    """So do those of a batch that is made as one: which sample a file is of is not known."""
    (found,) = decoding(80, (-1, 0.1), (-1, 6.6), same_sample=False)
    assert (found.count, found.per_sample, found.quartile_ms) == (160, 2.0, pytest.approx(0.1))
