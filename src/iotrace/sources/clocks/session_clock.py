"""A session's time: one steady clock for each boot of a host, and when CLOCK_REALTIME was set."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from iotrace.sources.clocks.clock_map import ClockMap

Times = npt.NDArray[np.int64]

# Linux slews CLOCK_MONOTONIC and CLOCK_REALTIME together, by 500 ppm at most: what parts them is a step. A
# change that a slew could have made counts as one, so that no drift of the two is mistaken for steps.
_STEEPEST_SLEW = 600e-6
FOREVER_NS = 1 << 62
_UNSEEN_NS = 10_000_000_000  # how long before its first anchor, or behind its last, a host has recorded
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
    CLOCK_MONOTONIC says, and the times are CLOCK_REALTIME as it stood when the session began. `steps` is how
    CLOCK_REALTIME was set since, `bound_ns` how far an anchor without that is from the offset. `to_reference`
    leads from there to the time of the host that a session of several hosts is told in.
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
        return self.to_reference.times(np.asarray(mono_ns, dtype=np.int64) + self.offset_ns)

    def durations_to_session_ns(self, mono_ns: Times, durations_ns: Times) -> Times:
        """How long what began at `mono_ns` lasted by the reference's clock."""
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
        found = self._possible_maps(first_ns, last_ns, recording)
        since_ns, until_ns = recording.since_ns, recording.until_ns
        if since_ns is not None:
            open_ns = until_ns - since_ns - (last_ns - first_ns) + _READING_NS + self.bound_ns
            for step in self.steps:
                if since_ns < step.before_ns and step.after_ns < until_ns and abs(step.by_ns) <= open_ns:
                    return None
        return found[0] if len(found) == 1 else None

    def real_to_session_ns(self, stamp_ns: int) -> int:
        """The session's time for one stamp of CLOCK_REALTIME; both in ns. Of several the last one counts."""
        found = self._possible_maps(stamp_ns, stamp_ns, Recording())
        return found[-1].map_one(stamp_ns) if found else stamp_ns

    def _possible_maps(self, first_ns: int, last_ns: int, recording: Recording) -> list[ClockMap]:
        """What brings the stamps here, for each segment that may have made them all."""
        since_ns, until_ns = recording.since_ns, recording.until_ns
        slack_ns = _READING_NS + self.bound_ns
        begun_ns, ended_ns = int(self.segments[0].mono_ns[0]), int(self.segments[-1].mono_ns[-1])
        found, near = [], []
        for segment, begin_ns, end_ns in self._bounded_segments():
            if since_ns is not None and (since_ns < begin_ns or end_ns < until_ns):
                continue
            first, last = segment.to_mono_ns([first_ns, last_ns]).tolist()
            earliest_ns = begin_ns if since_ns is None else max(begin_ns, since_ns)
            if earliest_ns - slack_ns <= first and last <= min(end_ns, until_ns) + slack_ns:
                own = ClockMap(int(first + self.offset_ns - first_ns)).compose(self.to_reference)
                found.append(own.moved_to(first_ns) if own.drift_ppb else own)
                if begun_ns - _UNSEEN_NS <= first and last <= ended_ns + _UNSEEN_NS:
                    near.append(found[-1])
        return near or found

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
