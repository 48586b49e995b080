"""Intervals of means over steps. Neighbours depend on each other, so blocks of steps are drawn."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

RESAMPLES = 2000
FEWEST = 4  # values: of fewer nothing is said
_MOST_BLOCKS = 250  # a resample draws no more: where values are many, longer blocks are as good
_DRAWN_AT_ONCE = 1_000_000  # figures: what stays in the caches
# Student's t, two-sided 95 %, for 1 to 30 degrees of freedom (NIST/SEMATECH e-Handbook, 1.3.6.7.2).
T95 = [
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228,
    2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086,
    2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
]  # fmt: skip
# The same, one-sided 99 %.
T99 = [
    31.821, 6.965, 4.541, 3.747, 3.365, 3.143, 2.998, 2.896, 2.821, 2.764,
    2.718, 2.681, 2.650, 2.624, 2.602, 2.583, 2.567, 2.552, 2.539, 2.528,
    2.518, 2.508, 2.500, 2.492, 2.485, 2.479, 2.473, 2.467, 2.462, 2.457,
]  # fmt: skip
# The same, two-sided 99 %.
T995 = [
    63.657, 9.925, 5.841, 4.604, 4.032, 3.707, 3.499, 3.355, 3.250, 3.169,
    3.106, 3.055, 3.012, 2.977, 2.947, 2.921, 2.898, 2.878, 2.861, 2.845,
    2.831, 2.819, 2.807, 2.797, 2.787, 2.779, 2.771, 2.763, 2.756, 2.750,
]  # fmt: skip
# The same, one-sided 99.9 %.
T999 = [
    318.31, 22.327, 10.215, 7.173, 5.893, 5.208, 4.785, 4.501, 4.297, 4.144,
    4.025, 3.930, 3.852, 3.787, 3.733, 3.686, 3.646, 3.610, 3.579, 3.552,
    3.527, 3.505, 3.485, 3.467, 3.450, 3.435, 3.421, 3.408, 3.396, 3.385,
]  # fmt: skip
_NORMAL95 = 1.960


class Interval(NamedTuple):
    """The 95 % interval of a figure."""

    low: float
    high: float


def student_t(freedom: int, quantiles: Sequence[float] = T95) -> float:
    """Return Student's t for `freedom` degrees of freedom (1 or more), by default two-sided 95 %."""
    return quantiles[min(freedom, len(quantiles)) - 1]


def mean_ci(values: Sequence[float] | Floats, block: int | None = None, seed: int = 0) -> Interval | None:
    """Return the 95 % interval of the mean of `values`, in their order; None for fewer than `FEWEST`."""
    means = resampled_means(values, block, seed)
    return None if means is None else interval_of(means)


def interval_of(samples: Floats) -> Interval:
    """Return the interval that holds the middle 95 % of `samples`."""
    low, high = np.percentile(samples, [2.5, 97.5])
    return Interval(float(low), float(high))


def resampled_means(
    values: Sequence[float] | Floats, block: int | None = None, seed: int = 0
) -> Floats | None:
    """Return `RESAMPLES` means that another run of the same length might have had; None for too few values.

    A function of such means of one or two runs (a rate, a ratio) has the interval `interval_of` its samples.
    `values` with several columns (a row a step) are drawn by rows, and the means have as many columns. Blocks
    are of `block` values, by default as long as `block_length` says; the last one goes on at the first value.
    Deviations are widened as Student's t is against the normal, by the number of blocks: few blocks show too
    little of the spread.
    """
    table = np.asarray(values, dtype=np.float64)
    rows = table if table.ndim == 2 else table[:, np.newaxis]
    count = len(rows)
    if count < FEWEST:
        return None
    length = block or max(block_length(column) for column in rows.T)
    length = min(max(length, -(-count // _MOST_BLOCKS)), count // 2)
    drawn = -(-count // length)
    total = np.cumsum(np.concatenate([np.zeros((1, rows.shape[1])), rows, rows[: length - 1]]), axis=0)
    sums = total[length:] - total[:-length]  # of the block that begins at each value
    generator = np.random.default_rng(seed)
    at_once = max(1, _DRAWN_AT_ONCE // (drawn * rows.shape[1]))
    means = np.concatenate(
        [
            sums[generator.integers(count, size=(min(at_once, RESAMPLES - done), drawn))].sum(axis=1)
            for done in range(0, RESAMPLES, at_once)
        ]
    ) / (drawn * length)
    blocks = count / length
    wider = student_t(max(1, round(blocks) - 1)) / _NORMAL95 * np.sqrt(blocks / (blocks - 1))
    # The blocks drawn may hold a few values more than there are.
    wider *= np.sqrt(drawn * length / count)
    mean = rows.mean(axis=0)
    found: Floats = mean + (means - mean) * wider
    return found if table.ndim == 2 else found[:, 0]


def block_length(values: Floats) -> int:
    """Return how many neighbours make a block, by how far `values` depend on each other.

    Politis and White (2004), with the correction of 2009, for the circular block bootstrap.
    """
    count = len(values)
    apart = np.asarray(values, dtype=np.float64) - np.mean(values)
    variance = float(apart @ apart) / count
    shortest = max(1, min(round(float(np.cbrt(count))), count // 4))
    if variance <= 0:
        return shortest
    longest = min(count // 2, math.isqrt(count) + 5)
    padded = 1 << (2 * count - 1).bit_length()  # so that the end does not meet the beginning
    transformed = np.fft.rfft(apart, padded)
    covariance = np.fft.irfft(np.abs(transformed) ** 2, padded)[: longest + 1] / count
    lags = _dependent_lags(covariance / variance, count)
    if not lags:
        return shortest
    reach = np.arange(1, min(2 * lags, longest) + 1)
    # A flat-top window: 1 up to half of its width, then down to 0.
    weight = np.minimum(1.0, 2 * (1 - reach / (2 * lags)))
    near = covariance[reach] * weight
    slope = 2 * float((reach * near).sum())
    spectrum = covariance[0] + 2 * float(near.sum())
    if spectrum <= 0:  # neighbours make up for each other: single values are the wider estimate
        return shortest
    length = float(np.cbrt(1.5 * slope**2 / spectrum**2 * count))
    return max(shortest, min(math.ceil(length), count // 4))


def _dependent_lags(correlation: Floats, count: int) -> int:
    """Return the last lag before several in a row at which values do not seem to depend on each other."""
    bound = 2 * np.sqrt(np.log10(count) / count)
    row = max(5, int(np.sqrt(np.log10(count))))
    dependent = np.abs(correlation[1:]) >= bound
    for lag in range(len(dependent)):
        if not dependent[lag : lag + row].any():
            return lag
    return int(np.flatnonzero(dependent)[-1]) + 1
