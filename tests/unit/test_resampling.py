"""The block bootstrap: how often its intervals hold the true mean, of made-up steps whose mean is known."""

from __future__ import annotations

import numpy as np
import pytest

from iotrace.analysis.resampling import Interval, block_length, interval_of, mean_ci, resampled_means

MEAN_MS = 100.0
RUNS = 150


def autoregressive(generator: np.random.Generator, count: int, coefficient: float) -> np.ndarray:
    """Steps around `MEAN_MS`, each of which takes over `coefficient` of the deviation of the one before."""
    noise = generator.normal(size=count + 100)
    values = np.zeros(count + 100)
    for index in range(1, count + 100):
        values[index] = coefficient * values[index - 1] + noise[index]
    return MEAN_MS + values[100:]


def covered(count: int, coefficient: float, block: int | None = None) -> float:
    """The share of runs whose interval holds the true mean."""
    generator = np.random.default_rng(7)
    runs = [autoregressive(generator, count, coefficient) for _ in range(RUNS)]
    found = [mean_ci(run, block, seed) for seed, run in enumerate(runs)]
    return sum(each is not None and each.low <= MEAN_MS <= each.high for each in found) / RUNS


@pytest.mark.parametrize(("count", "coefficient"), [(40, 0.0), (200, 0.0), (100, 0.5), (400, 0.8)])
def test_intervals_hold_the_mean_of_steps_that_depend_on_their_neighbours(
    count: int, coefficient: float
) -> None:
    assert 0.87 <= covered(count, coefficient) <= 0.985


def test_single_steps_would_promise_too_much() -> None:
    assert covered(400, 0.8, block=1) < 0.75


def test_blocks_are_as_long_as_steps_depend_on_each_other() -> None:
    generator = np.random.default_rng(1)
    lengths = [block_length(autoregressive(generator, 1000, coefficient)) for coefficient in (0.0, 0.5, 0.9)]
    assert lengths[0] < lengths[1] < lengths[2] <= 250


def test_the_same_values_give_the_same_interval() -> None:
    values = autoregressive(np.random.default_rng(3), 50, 0.3)
    assert mean_ci(values, seed=1) == mean_ci(list(values), seed=1)
    assert mean_ci(values, seed=1) != mean_ci(values, seed=2)


def test_few_values_say_nothing_and_equal_ones_all() -> None:
    assert mean_ci([1.0, 2.0, 3.0]) is None
    assert mean_ci([5.0] * 4) == Interval(5.0, 5.0)
    assert mean_ci([]) is None


def test_columns_are_drawn_together() -> None:
    steps_ms = autoregressive(np.random.default_rng(5), 60, 0.2)
    means = resampled_means(np.column_stack([steps_ms, 0.25 * steps_ms]))
    assert means is not None
    assert means.shape == (2000, 2)
    low, high = interval_of(means[:, 1] / means[:, 0])
    assert (low, high) == (pytest.approx(0.25), pytest.approx(0.25))


def test_many_values_take_no_more_blocks() -> None:
    values = np.random.default_rng(0).normal(MEAN_MS, size=20_000)
    low, high = mean_ci(values) or (0.0, 0.0)
    assert low < MEAN_MS < high
    assert high - low == pytest.approx(2 * 1.96 / 20_000**0.5, rel=0.2)
