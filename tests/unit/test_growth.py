"""What grows through each epoch: samples of steps, made up."""

from __future__ import annotations

import numpy as np
import pytest

from iotrace.analysis.wait.growth import growth, growth_of_run

MS = 1_000_000
FIRSTS = np.array([0, 40])


def steps_of(*epochs: list[int]) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """The step of each sample, from how many samples the steps of each epoch have."""
    counts = np.array([count for epoch in epochs for count in epoch])
    return np.repeat(np.arange(len(counts)), counts)


def test_what_begins_anew_with_each_epoch_and_grows_is_told_in_ms_a_step() -> None:
    grows = [*range(40)]
    assert growth(steps_of(grows, grows), 80, FIRSTS, float(MS)) == [4.5, 34.5]


@pytest.mark.parametrize(
    ("epochs", "firsts"),
    [
        ([[20] * 40, [20] * 40], FIRSTS),  # mended: each step computes as much
        ([[*range(40)], [*range(40)]], FIRSTS[:1]),  # one epoch: it may be what others do meanwhile
        ([[*range(40)], [*range(40, 80)]], FIRSTS),  # a drift over the run does not begin anew
        ([[*range(40)], [20] * 40], FIRSTS),
        ([[10, 50] * 20, [10, 50] * 20], FIRSTS),
        ([[0] * 20 + [50] * 10 + [5] * 10] * 2, FIRSTS),
        ([[0] * 39 + [1]] * 2, FIRSTS),  # a sample is no evidence
    ],
)
def test_what_only_looks_so_is_not_told(epochs: list[list[int]], firsts: list[int]) -> None:
    assert growth(steps_of(*epochs), 80, np.array(firsts), float(MS)) is None


def test_epochs_of_few_steps_tell_nothing() -> None:
    assert growth(steps_of([*range(10)], [*range(10)]), 20, np.array([0, 10]), float(MS)) is None


def of_run(counts: list[int], rest: list[int]) -> list[float] | None:
    """The growth of a run whose steps have so many samples of 1 ms, and as long a rest, in ms."""
    lengths = (np.array(counts) + np.array(rest)) * MS
    return growth_of_run(steps_of(counts), lengths, float(MS))


def test_what_grows_over_the_run_alone_is_told_too() -> None:
    assert of_run([*range(40)], [10] * 40) == [4.5, 34.5]


@pytest.mark.parametrize(
    ("counts", "rest"),
    [
        ([20] * 40, [10] * 40),  # mended
        ([*range(40)], [*range(40)]),  # others lengthen all of a step
        ([0] * 10 + [30] * 30, [10] * 40),  # what begins later
        ([1] * 10 + [9] * 10 + [30] * 20, [10] * 40),  # it has become longer once
        ([1] * 30 + [30] * 10, [10] * 40),
        ([*range(40, 0, -1)], [10] * 40),
        ([*range(20, 60)], [10] * 40),  # not threefold
        ([*range(20)], [10] * 20),
    ],
)
def test_what_only_looks_as_if_it_grew_over_the_run(counts: list[int], rest: list[int]) -> None:
    assert of_run(counts, rest) is None
