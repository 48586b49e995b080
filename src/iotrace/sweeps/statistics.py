"""Means with confidence intervals, from few values."""

from __future__ import annotations

import math
from collections.abc import Sequence

# Student's t, two-sided 95 %, for 1 to 30 degrees of freedom (NIST/SEMATECH e-Handbook, 1.3.6.7.2).
_T95 = [
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228,
    2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086,
    2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
]  # fmt: skip


def interval95(values: Sequence[float]) -> tuple[float, float] | None:
    """The 95 % confidence interval of the mean; None for fewer than two values."""
    count = len(values)
    if count < 2:
        return None
    mean = sum(values) / count
    variance = sum((value - mean) ** 2 for value in values) / (count - 1)
    t = _T95[min(count - 1, len(_T95)) - 1]
    half = t * math.sqrt(variance / count)
    return mean - half, mean + half


def rate_interval(step_ms: Sequence[float]) -> list[float] | None:
    """The 95 % interval of steps per second, from mean step times."""
    interval = interval95(step_ms)
    if interval is None:
        return None
    low_ms, high_ms = interval
    # A spread that reaches 0 ms bounds the rate from below alone: the fastest value stands for the top.
    return [1e3 / high_ms, 1e3 / (low_ms if low_ms > 0 else min(step_ms))]
