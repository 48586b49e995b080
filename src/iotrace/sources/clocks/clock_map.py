"""From one clock's times to another's: a shift, where it was seen a drift, and how sure that is.

Offset and drift of one clock against another, from events that both saw end together.
"""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

Times = npt.NDArray[np.int64]
_GIGA = 1e9


class ClockMap(msgspec.Struct, frozen=True):
    """`shift_ns` is added at the time `at_ns`; it grows by `drift_ppb` ns a second from there on.

    Times stay integers, as a double holds no ns of 1970: only their distance from `at_ns` becomes one.
    The map never turns an order round.
    """

    shift_ns: int = 0
    drift_ppb: float = 0.0
    at_ns: int = 0

    def times(self, times_ns: Times) -> Times:
        """All of `times_ns`, of the other clock."""
        drifted = self._drifted(times_ns - self.at_ns) if self.drift_ppb else 0
        return np.asarray(times_ns + (self.shift_ns + drifted), np.int64)

    def durations(self, times_ns: Times, durations_ns: Times) -> Times:
        """How long what begins at `times_ns` lasts by the other clock: the same, but for a drift.

        Both ends go the same way, or slices that end together would no longer nest.
        """
        if not self.drift_ppb:
            return durations_ns
        since = times_ns - self.at_ns
        changed = durations_ns + (self._drifted(since + durations_ns) - self._drifted(since))
        return np.asarray(np.maximum(changed, 0), np.int64)

    def map_one(self, time_ns: int) -> int:
        """`times` for one time."""
        return time_ns + self.shift_at(time_ns)

    def shift_at(self, time_ns: int) -> int:
        """What is added to `time_ns`."""
        return self.shift_ns + (int(self._drifted(time_ns - self.at_ns)) if self.drift_ppb else 0)

    def moved_to(self, at_ns: int) -> ClockMap:
        """The same map, to within a rounded ns, given by its shift at another time."""
        return msgspec.structs.replace(self, shift_ns=self.shift_at(at_ns), at_ns=at_ns)

    def with_base(self, base_ns: int) -> ClockMap:
        """The map for stamps to which `base_ns` has to be added first."""
        return msgspec.structs.replace(self, shift_ns=self.shift_ns + base_ns, at_ns=self.at_ns - base_ns)

    def compose(self, other: ClockMap) -> ClockMap:
        """First this map, then `other`."""
        ours, others = self.drift_ppb / _GIGA, other.drift_ppb / _GIGA
        return ClockMap(
            self.shift_ns + other.shift_at(self.map_one(self.at_ns)),
            (ours + others + ours * others) * _GIGA,
            self.at_ns,
        )

    def _drifted(self, distance_ns: Any) -> Any:
        return np.rint(np.asarray(distance_ns, np.float64) * (self.drift_ppb / _GIGA)).astype(np.int64)


Floats = npt.NDArray[np.float64]

# Crystals are sold within 100 ppm of each other, NTP slews by 500 ppm at most and briefly: what is beyond
# is no drift, but matches that are none, or a step.
_MOST_PPM = 200
_FEWEST_FOR_DRIFT = 20
_STANDARD_ERRORS = 5.0
_IMPROVEMENT = 0.9
_PARTNERS = 400  # pairs looked at for each match
_MAD = 1.4826  # from the median of absolute residuals to a normal distribution's standard deviation
_MEDIAN_ERROR = 1.2533  # a median's standard error is that much of a mean's
_COARSEST_NS = 1_000  # writers round to us


class Fit(msgspec.Struct, frozen=True):
    """`map` leads from the other clock to the reference's, to within `bound_ns` over the whole trace.

    `drift_ppb` is 0 where none stood out of the noise; `refused_ppm` is a slope too steep for a clock.
    `beyond_ns` is how much of the trace lies before the first match or after the last one.
    """

    map: ClockMap
    bound_ns: int
    matches: int
    beyond_ns: int
    refused_ppm: float | None = None


def fit(
    reference_ns: npt.NDArray[np.int64], other_ns: npt.NDArray[np.int64], first_ns: int, last_ns: int
) -> Fit:
    """Regression of `reference_ns` - `other_ns` on `other_ns`, matched ends in any order.

    Repeated medians (Siegel 1982): up to half of the matches may be off, and they may all be off to the same
    side, as a rank that ends a collective late is. A drift counts where its slope is five standard errors
    (more with few matches) from zero, the median of the absolute residuals falls by a tenth, and no clock is
    too bad for it.

    The bound is the 95th percentile of the absolute residuals, plus two standard errors of the line (more
    with few matches) at the end of the trace (`first_ns`, `last_ns`, by the other clock) where it is largest.
    Without a drift, the drift that may have been missed widens it by what lies beyond the matches.
    """
    order = np.argsort(other_ns, kind="stable")
    reference_ns, other_ns = reference_ns[order], other_ns[order]
    at, base = int(other_ns[0]), int(reference_ns[0]) - int(other_ns[0])
    times = (other_ns - at).astype(np.float64)  # distances: doubles hold these to the ns for 100 days
    values = (reference_ns - other_ns - base).astype(np.float64)
    count = len(times)
    before, after = max(0.0, float(at - first_ns)), max(0.0, float(last_ns - at) - float(times[-1]))

    level = float(np.median(values))
    flat = np.abs(values - level)
    sure_of = 2 * (1 + 5 / count)  # standard errors: few matches say little of their own noise
    slope, refused = 0.0, None
    steepest = _MOST_PPM / 1e6
    slope_error = steepest  # nothing known: as bad as clocks are
    if times[-1] > 0 and count >= _FEWEST_FOR_DRIFT:
        found = _repeated_medians(times, values)
        centre = float(np.median(times))
        sloped_level = float(np.median(values - found * (times - centre)))
        tilted = np.abs(values - sloped_level - found * (times - centre))
        noise = _noise(tilted, values)
        error = _MEDIAN_ERROR * noise / float(np.sqrt(np.square(times - times.mean()).sum()))
        seen = abs(found) > _STANDARD_ERRORS * (1 + 10 / count) * error
        if seen and float(np.median(tilted)) <= _IMPROVEMENT * float(np.median(flat)):
            if abs(found) <= steepest:
                slope, slope_error = found, error
            else:
                refused = found * 1e6
        if not slope:
            slope_error = abs(found) + sure_of * error  # one that was refused goes on beyond the matches
            slope_error = slope_error if refused is not None else min(steepest, slope_error)

    if slope:
        distances = np.array([-before - centre, times[-1] + after - centre])
        level_error = _MEDIAN_ERROR * noise / np.sqrt(count)
        unsure = sure_of * float(np.hypot(level_error, slope_error * np.abs(distances)).max())
        shift, where, residuals = sloped_level, centre, tilted
    else:
        level_error = _MEDIAN_ERROR * _noise(flat, values) / np.sqrt(count)
        unsure = sure_of * float(level_error) + slope_error * max(before, after)
        shift, where, residuals = level, 0.0, flat
    left = float(np.percentile(residuals, 95, method="higher"))
    found_map = ClockMap(base + round(shift), slope * 1e9, at + round(where))
    return Fit(found_map, int(np.ceil(left + unsure)), count, round(before + after), refused)


def _noise(residuals: Floats, values: Floats) -> float:
    """Robust standard deviation, at least what rounding leaves: stamps in whole us may all look alike."""
    grain = min(_COARSEST_NS, int(np.gcd.reduce(np.abs(values).astype(np.int64))) or 1)
    return max(_MAD * float(np.median(residuals)), grain / 12**0.5)


def _repeated_medians(times: Floats, values: Floats) -> float:
    """The median over matches of the median slope to others: all of them, or a fixed choice of many."""
    count = len(times)
    partners = min(count - 1, _PARTNERS)
    # Strides that cover near and far alike, the same whenever the same input is merged.
    strides = np.unique(np.linspace(1, count - 1, partners).astype(np.int64))
    medians = []
    for chunk in np.array_split(np.arange(count), 1 + count // 1024):
        others = (chunk[:, None] + strides[None, :]) % count
        run = times[others] - times[chunk, None]
        rise = values[others] - values[chunk, None]
        with np.errstate(divide="ignore", invalid="ignore"):
            slopes = np.where(run != 0, rise / run, np.nan)
        some = ~np.isnan(slopes).all(axis=1)
        medians.append(np.nanmedian(slopes[some], axis=1))
    return float(np.median(np.concatenate(medians)))
