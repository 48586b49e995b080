"""Medians of ratios and differences, and how far they scatter."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from statistics import median, quantiles


@dataclass(frozen=True)
class Spread:
    """Median with quartiles; of `count` values."""

    median: float
    low: float
    high: float
    count: int

    def shown(self, digits: int = 3) -> str:
        """For a table: the median, and half the distance between the quartiles."""
        return f"{self.median:.{digits}f} ± {(self.high - self.low) / 2:.{digits}f}"

    def plain(self) -> dict[str, float]:
        """For JSON."""
        return asdict(self)


def spread(values: list[float]) -> Spread:
    """Median and quartiles of at least one value; with fewer than four, the extremes instead of quartiles."""
    if len(values) < 4:
        return Spread(median(values), min(values), max(values), len(values))
    low, middle, high = quantiles(values, n=4, method="inclusive")
    return Spread(middle, low, high, len(values))


def ratios(over: list[float], under: list[float]) -> Spread:
    """Of each pass's value over the same pass's bare one."""
    return spread([a / b for a, b in zip(over, under, strict=True)])


def differences(from_: list[float], minus: list[float]) -> Spread:
    """Of each pass's value and the same pass's bare one."""
    return spread([a - b for a, b in zip(from_, minus, strict=True)])
