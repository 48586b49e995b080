"""Whether what the loop does in each step grows through each epoch or the run, as with a metric's results."""

from __future__ import annotations

import numpy as np

from iotrace.analysis.intervals import Times

_QUARTERS = 4
_FEWEST_STEPS = 16  # of an epoch
_FEWEST_SAMPLES = 8  # of its last quarter
_TIMES = 3.0  # as long in the last quarter as in the first: what grows evenly takes 7 times as long
_FEWEST_STEPS_OF_RUN = 32
_STEADY = ((0.1, 0.8), (0.35, 0.95))  # of the last quarter's: the second one's and the third one's
_MOST_OF_REST = 0.5  # of its own growth: if the rest of a step grows likewise, it is no work of its own


def growth(own: Times, steps: int, firsts: Times, each_ns: float) -> list[float] | None:
    """Return the ms a step in the first and the last quarter of the epochs; None where it does not grow.

    `own` is the step of each sample, which stands for `each_ns`; `firsts` are the steps that begin an epoch.
    It begins anew with each of two epochs or more: what others do meanwhile follows no epochs.
    """
    bounds = np.append(firsts[(firsts >= 0) & (firsts < steps)], steps)
    lengths = np.diff(bounds)
    if len(lengths) < 2 or lengths.min() < _FEWEST_STEPS:
        return None
    counts, sizes = np.zeros(_QUARTERS), np.zeros(_QUARTERS)
    for start, length in zip(bounds[:-1].tolist(), lengths.tolist(), strict=True):
        inside = own[(own >= start) & (own < start + length)]
        of_pass = np.bincount((inside - start) * _QUARTERS // length, minlength=_QUARTERS)
        grows = (np.diff(of_pass) >= 0).all() and of_pass[-1] >= max(_TIMES * of_pass[0], _FEWEST_SAMPLES)
        if not grows:
            return None
        counts += of_pass
        sizes += np.bincount(np.arange(length) * _QUARTERS // length, minlength=_QUARTERS)
    first_ms, *_, last_ms = (counts * each_ns / sizes / 1e6).tolist()
    return [first_ms, last_ms]


def growth_of_run(own: Times, lengths_ns: Times, each_ns: float) -> list[float] | None:
    """Return the ms a step in the first and the last quarter of a run; None where it does not grow steadily.

    As `growth`, of steps that last `lengths_ns`. Others lengthen all of a step: what is left of it does not
    grow likewise. What only begins later, or is long once, does not rise in each quarter.
    """
    steps = len(lengths_ns)
    if steps < _FEWEST_STEPS_OF_RUN:
        return None
    quarters = np.arange(steps) * _QUARTERS // steps
    counts = np.bincount(quarters[own[(own >= 0) & (own < steps)]], minlength=_QUARTERS).astype(np.float64)
    sizes = np.bincount(quarters, minlength=_QUARTERS)
    if counts[0] <= 0 or counts[-1] < _FEWEST_SAMPLES or (np.diff(counts / sizes) <= 0).any():
        return None
    each = counts * each_ns / sizes
    grows, shares = each[-1] / each[0], each[1:3] / each[-1]
    steady = all(low <= share <= high for share, (low, high) in zip(shares.tolist(), _STEADY, strict=True))
    rest = np.maximum(np.bincount(quarters, lengths_ns) / sizes - each, 1.0)
    if grows < _TIMES or not steady or rest[-1] / rest[0] > _MOST_OF_REST * grows:
        return None
    return [float(each[0]) / 1e6, float(each[-1]) / 1e6]
