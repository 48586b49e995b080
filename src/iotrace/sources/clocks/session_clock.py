"""A session's time: one steady clock for each boot of a host, and when CLOCK_REALTIME was set.

From one clock's times to another's: a shift, where it was seen a drift, and how sure that is.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

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
        if not self.drift_ppb:
            return np.asarray(times_ns + self.shift_ns, np.int64)
        return np.asarray(times_ns + (self.shift_ns + self._drifted(times_ns - self.at_ns)), np.int64)

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

    `drift_ppb` is 0 where none was larger than the noise; `refused_ppm` is a slope too steep for a clock.
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
        median_slope = _repeated_medians(times, values)
        centre = float(np.median(times))
        sloped_level = float(np.median(values - median_slope * (times - centre)))
        tilted = np.abs(values - sloped_level - median_slope * (times - centre))
        noise = _noise(tilted, values)
        error = _MEDIAN_ERROR * noise / float(np.sqrt(np.square(times - times.mean()).sum()))
        seen = abs(median_slope) > _STANDARD_ERRORS * (1 + 10 / count) * error
        if seen and float(np.median(tilted)) <= _IMPROVEMENT * float(np.median(flat)):
            if abs(median_slope) <= steepest:
                slope, slope_error = median_slope, error
            else:
                refused = median_slope * 1e6
        if not slope:
            # One that was refused goes on beyond the matches.
            slope_error = abs(median_slope) + sure_of * error
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


Times = npt.NDArray[np.int64]

# Linux slews CLOCK_MONOTONIC and CLOCK_REALTIME together, by 500 ppm at most: what parts them is a step. A
# change that a slew could have made counts as one, so that no drift of the two is mistaken for steps.
_STEEPEST_SLEW = 600e-6
FOREVER_NS = 1 << 62
_UNSEEN_NS = 10_000_000_000  # how long before its first anchor, or after its last, a host has recorded
_READING_NS = 10_000  # to which other profilers' readings of CLOCK_REALTIME agree with the anchors


class ClockStep(msgspec.Struct, frozen=True):
    """CLOCK_REALTIME was set by `by_ns`, between `after_ns` and `before_ns` of CLOCK_MONOTONIC."""

    by_ns: int
    after_ns: int
    before_ns: int


class Recording(msgspec.Struct, frozen=True):
    """When a profiler's trace was recorded, by CLOCK_MONOTONIC; None where the start is not known."""

    since_ns: int | None = None
    until_ns: int = FOREVER_NS


class Segment(msgspec.Struct, frozen=True):
    """Anchors between two steps. `offset_ns` leads from CLOCK_MONOTONIC to CLOCK_REALTIME."""

    mono_ns: Times
    real_ns: Times
    offset_ns: int
    bound_ns: int
    slewed: bool

    def to_mono_ns(self, real_ns: Any) -> Times:
        """CLOCK_MONOTONIC for stamps of CLOCK_REALTIME that were made in this segment; both in ns."""
        real = np.asarray(real_ns, dtype=np.int64)
        if not self.slewed:
            return np.asarray(real - self.offset_ns, dtype=np.int64)
        # Floats hold the small differences alone; the large common part stays an integer.
        origin = self.real_ns[0]
        more = np.interp(
            (real - origin).astype(np.float64),
            (self.real_ns - origin).astype(np.float64),
            (self.real_ns - self.mono_ns - self.offset_ns).astype(np.float64),
        )
        return np.asarray(real - self.offset_ns - np.rint(more).astype(np.int64), dtype=np.int64)


class Clock:
    """CLOCK_MONOTONIC plus one offset, by anchors: rows of (mono_ns, real_ns, bound_ns) of one boot.

    The offset is that of the tightest anchor before the first step: what lies between two times is what
    CLOCK_MONOTONIC says, and the times are CLOCK_REALTIME as it was when the session began. `steps` is how
    CLOCK_REALTIME was set since, `bound_ns` how far an anchor without that is from the offset. `to_reference`
    leads from there to the time of the host whose time a session of several hosts uses.
    """

    to_reference = ClockMap()

    def __init__(self, anchors: Sequence[Sequence[int]]) -> None:
        rows = np.array(sorted(tuple(anchor) for anchor in anchors), dtype=np.int64)
        mono, offsets, bounds = rows[:, 0], rows[:, 1] - rows[:, 0], rows[:, 2]
        room = bounds[1:] + bounds[:-1] + (np.diff(mono) * _STEEPEST_SLEW).astype(np.int64)
        cuts = np.flatnonzero(np.abs(np.diff(offsets)) > room) + 1
        self.segments = [_segment(part) for part in np.split(rows, cuts)]
        self.steps = [
            ClockStep(after.offset_ns - before.offset_ns, int(before.mono_ns[-1]), int(after.mono_ns[0]))
            for before, after in zip(self.segments, self.segments[1:], strict=False)
        ]
        self.offset_ns = self.segments[0].offset_ns
        self.bound_ns = max(segment.bound_ns for segment in self.segments)

    def times_to_session_ns(self, mono_ns: Any) -> Times:
        """The session's times for times of CLOCK_MONOTONIC: both in ns, of one shape."""
        times_ns, reference = np.asarray(mono_ns, dtype=np.int64), self.to_reference
        if not reference.drift_ppb:
            return np.asarray(times_ns + (self.offset_ns + reference.shift_ns))
        return reference.times(times_ns + self.offset_ns)

    def durations_to_session_ns(self, mono_ns: Times, durations_ns: Times) -> Times:
        """How long what began at `mono_ns` lasted by the reference's clock."""
        if not self.to_reference.drift_ppb:
            return durations_ns
        return self.to_reference.durations(mono_ns + self.offset_ns, durations_ns)

    def to_session_ns(self, mono_ns: int) -> int:
        """The session's time, in ns, for one time of CLOCK_MONOTONIC in ns."""
        return self.to_reference.map_one(mono_ns + self.offset_ns)

    @property
    def own_span_ns(self) -> tuple[int, int]:
        """The first and the last anchor, on the host's own clock."""
        first, last = int(self.segments[0].mono_ns[0]), int(self.segments[-1].mono_ns[-1])
        return first + self.offset_ns, last + self.offset_ns

    @property
    def matches_realtime(self) -> bool:
        """Whether stamps of CLOCK_REALTIME need no correction: they are this clock's times."""
        return not self.steps and not self.segments[0].slewed and self.to_reference == ClockMap()

    def lowest_stamp(self, mono_ns: int) -> int:
        """The lowest that CLOCK_REALTIME showed from `mono_ns` on."""
        return min(
            max(mono_ns, begin_ns) + segment.offset_ns
            for segment, begin_ns, end_ns in self._bounded_segments()
            if end_ns > mono_ns
        )

    def map_if_single_segment(self, first_ns: int, last_ns: int, recording: Recording) -> ClockMap | None:
        """What brings stamps from `first_ns` to `last_ns` here if one segment made them all, else None.

        They were made during `recording`. None, too, where several segments are possible, or where the clock
        may have been set in between by no more than these times leave open.
        """
        maps = self._possible_maps(first_ns, last_ns, recording)
        since_ns, until_ns = recording.since_ns, recording.until_ns
        if since_ns is not None:
            open_ns = until_ns - since_ns - (last_ns - first_ns) + _READING_NS + self.bound_ns
            for step in self.steps:
                if since_ns < step.before_ns and step.after_ns < until_ns and abs(step.by_ns) <= open_ns:
                    return None
        return maps[0] if len(maps) == 1 else None

    def real_to_session_ns(self, stamp_ns: int) -> int:
        """The session's time for one stamp of CLOCK_REALTIME; both in ns. Of several the last one counts."""
        maps = self._possible_maps(stamp_ns, stamp_ns, Recording())
        return maps[-1].map_one(stamp_ns) if maps else stamp_ns

    def _possible_maps(self, first_ns: int, last_ns: int, recording: Recording) -> list[ClockMap]:
        """What brings the stamps here, for each segment that may have made them all."""
        since_ns, until_ns = recording.since_ns, recording.until_ns
        slack_ns = _READING_NS + self.bound_ns
        begun_ns, ended_ns = int(self.segments[0].mono_ns[0]), int(self.segments[-1].mono_ns[-1])
        maps, near = [], []
        for segment, begin_ns, end_ns in self._bounded_segments():
            if since_ns is not None and (since_ns < begin_ns or end_ns < until_ns):
                continue
            first, last = segment.to_mono_ns([first_ns, last_ns]).tolist()
            earliest_ns = begin_ns if since_ns is None else max(begin_ns, since_ns)
            if earliest_ns - slack_ns <= first and last <= min(end_ns, until_ns) + slack_ns:
                own = ClockMap(int(first + self.offset_ns - first_ns)).compose(self.to_reference)
                maps.append(own.moved_to(first_ns) if own.drift_ppb else own)
                if begun_ns - _UNSEEN_NS <= first and last <= ended_ns + _UNSEEN_NS:
                    near.append(maps[-1])
        return near or maps

    def at_ns(self, step: ClockStep) -> int:
        """When `step` was, at the earliest, in the session's time."""
        return self.to_session_ns(step.after_ns)

    def _bounded_segments(self) -> list[tuple[Segment, int, int]]:
        """List the segments, each with the earliest and the latest time of CLOCK_MONOTONIC it may hold."""
        begins = [-FOREVER_NS, *(step.after_ns for step in self.steps)]
        ends = [*(step.before_ns for step in self.steps), FOREVER_NS]
        return list(zip(self.segments, begins, ends, strict=True))


def _segment(rows: Times) -> Segment:
    mono, real, bounds = rows[:, 0], rows[:, 1], rows[:, 2]
    offsets = real - mono
    tightest = int(np.argmin(bounds))
    offset = int(offsets[tightest])
    spread = int(np.abs(offsets - offset).max()) + int(bounds[tightest])
    slewed = bool((offsets - bounds).max() > (offsets + bounds).min())
    return Segment(mono, real, offset, max(spread if len(rows) > 1 else 0, int(bounds.max())), slewed)


def step_text(host: str, by_ns: int, at_ns: int) -> str:
    """Say that the clock of `host` was set by `by_ns`, at `at_ns` since 1970."""
    when = time.strftime("%H:%M:%S", time.gmtime(at_ns // 10**9))
    seconds = by_ns / 1e9
    size = f"{seconds:+.1f} s" if abs(seconds) >= 1 else f"{seconds * 1000:+.3g} ms"
    return f"the clock of {host} was set by {size} at {when} UTC during the run: undone"
