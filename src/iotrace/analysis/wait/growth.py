"""Whether what the loop does in each step grows through each epoch, as it does with what a metric keeps."""

from __future__ import annotations

import numpy as np

from iotrace.analysis.intervals import Times

_QUARTERS = 4
_FEWEST_STEPS = 16  # of an epoch
_FEWEST_SAMPLES = 8  # of its last quarter
_TIMES = 3.0  # as long in the last quarter as in the first: what grows evenly takes 7 times as long


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
