"""Stamps of CLOCK_REALTIME onto a session's clock, where that clock was set meanwhile.

After it was set back, CLOCK_REALTIME shows the same times again: a stamp alone then does not say when it was
made. What one thread stamped, in the order in which it did, does: time never runs backwards for it.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
from msgspec.structs import replace

from iotrace.sources.clocks.session_clock import FOREVER_NS, Clock, ClockStep, Times

_RESOLUTION_NS = 1_000  # of what dftracer stamps
_DISORDER = 64  # how many lines threads of one process may be out of order in its log


class Stamper(msgspec.Struct, frozen=True):
    """What one thread stamped: rows in the order in which its calls ended.

    None is from before `since_ns` or after `until_ns` of CLOCK_MONOTONIC. Rows of all threads that write to
    one `log` are in its order.
    """

    rows: Times
    log: int = 0
    since_ns: int = -FOREVER_NS
    until_ns: int = FOREVER_NS


class Stamped(msgspec.Struct, frozen=True):
    """Starts and ends on the session's clock; each is off by its resolution and `unsure_ns` at most."""

    start_ns: Times
    end_ns: Times
    unsure_ns: int


class _Cut(msgspec.Struct, frozen=True):
    """A thread's first row after a step is `first`; it may be any from `least` to `most`, for all we know.

    By this cut alone the clock was set between `after_ns` and `before_ns` of CLOCK_MONOTONIC.
    """

    first: int
    least: int
    most: int
    after_ns: int
    before_ns: int


def restamp(clock: Clock, start_ns: Times, end_ns: Times, stampers: Sequence[Stamper]) -> Stamped:
    """Calls of one boot, each of them a row of one of `stampers`."""
    if not clock.steps:
        starts = clock.segments[0].to_mono_ns(start_ns) + clock.offset_ns
        return _of_session(clock, starts, starts + (end_ns - start_ns), 0)
    steps = clock.steps
    cuts: list[list[_Cut]] = []
    logs: dict[int, list[tuple[int, int]]] = {}
    for _ in range(2):  # what one thread knows of when the clock was set, holds for all
        cuts = [_cuts(clock, steps, start_ns, end_ns, one, logs.get(one.log)) for one in stampers]
        steps = [_narrowed(step, [own_cuts[index] for own_cuts in cuts]) for index, step in enumerate(steps)]
        logs = _sure_rows(steps, stampers, cuts)
    starts, ends = start_ns.copy(), end_ns.copy()
    unsure_ns = 0
    for stamper, own_cuts in zip(stampers, cuts, strict=True):
        rows = stamper.rows
        segments = np.zeros(len(rows), dtype=np.int64)
        for cut in own_cuts:
            segments[cut.first :] += 1
        if any(cut.least < cut.most for cut in own_cuts):  # where one step was depends on the others
            unsure_ns = max(unsure_ns, sum(abs(step.by_ns) for step in steps))
        starts[rows] = _mapped(clock, start_ns[rows], segments)
        ends[rows] = starts[rows] + (end_ns[rows] - start_ns[rows])
        for first in {cut.first for cut in own_cuts if cut.first < len(rows)}:
            row = rows[first]
            ends[row] = _mapped(clock, end_ns[row : row + 1], segments[first : first + 1])[0]
            begins = _begins(clock, steps, rows, first, segments, start_ns, ends)
            starts[row] = begins[0]
            unsure_ns = max(unsure_ns, max(begins) - min(begins))
        if not _plausible(clock, ends[rows], starts[rows], segments):
            unsure_ns = max(unsure_ns, sum(abs(step.by_ns) for step in steps))
    return _of_session(clock, starts, ends, unsure_ns)


def _of_session(clock: Clock, starts: Times, ends: Times, unsure_ns: int) -> Stamped:
    """Bring times of the host's own clock to the reference's."""
    return Stamped(clock.to_reference.times(starts), clock.to_reference.times(ends), unsure_ns)


def _plausible(clock: Clock, ends: Times, starts: Times, segments: Times) -> bool:
    """Whether a thread's calls come one after another, each in the segment that it was given."""
    slack_ns = 2 * (_RESOLUTION_NS + clock.bound_ns)
    first = np.array([-FOREVER_NS, *(clock.offset_ns + step.after_ns for step in clock.steps)])
    last = np.array([*(clock.offset_ns + step.before_ns for step in clock.steps), FOREVER_NS])
    inside = (first[segments] <= ends + slack_ns) & (ends - slack_ns <= last[segments])
    ordered = bool((starts <= ends + slack_ns).all() and (ends[:-1] <= starts[1:] + slack_ns).all())
    return ordered and bool(inside.all())


def restamp_one(clock: Clock, stamps_ns: Times) -> Times:
    """Instants that one recorder stamped, in the order in which it did."""
    return restamp(clock, stamps_ns, stamps_ns, [Stamper(np.arange(len(stamps_ns)))]).end_ns


def _mapped(clock: Clock, stamps: Times, segments: Times) -> Times:
    times = np.empty(len(stamps), dtype=np.int64)
    for number, segment in enumerate(clock.segments):
        own = segments == number
        times[own] = segment.to_mono_ns(stamps[own]) + clock.offset_ns
    return times


def _cuts(
    clock: Clock,
    steps: Sequence[ClockStep],
    start_ns: Times,
    end_ns: Times,
    stamper: Stamper,
    log: list[tuple[int, int]] | None,
) -> list[_Cut]:
    """Where a thread passed each of the steps."""
    cuts: list[_Cut] = []
    begin = 0
    for number, step in enumerate(steps):
        known = log[number] if log else (-1, FOREVER_NS)
        cut = _cut(clock, number, step, start_ns[stamper.rows], end_ns[stamper.rows], begin, stamper, known)
        cuts.append(cut)
        begin = cut.first
    return cuts


def _cut(
    clock: Clock,
    number: int,
    step: ClockStep,
    starts: Times,
    stamps: Times,
    begin: int,
    stamper: Stamper,
    known: tuple[int, int],
) -> _Cut:
    slack_ns = _RESOLUTION_NS + clock.bound_ns
    count = len(stamps)
    before, after = clock.segments[number].to_mono_ns(stamps), clock.segments[number + 1].to_mono_ns(stamps)
    # It has happened where a stamp is too late, or too early, for the time before it.
    over = (before > step.before_ns + slack_ns) | (before < stamper.since_ns - slack_ns)
    over |= stamper.rows > known[1] + _DISORDER
    fell = np.zeros(count, dtype=np.int64)
    if step.by_ns < 0:
        lowest = np.minimum(starts, stamps)
        fell = starts - stamps
        fell[begin + 1 :] = np.maximum(fell[begin + 1 :], stamps[begin:-1] - lowest[begin + 1 :])
        fell[after < step.after_ns - slack_ns] = 0
        fell[: begin + (number > 0)] = 0  # that of the first row was the step before
    falls = fell > slack_ns
    over |= falls
    over[:begin] = False
    most = int(np.argmax(over)) if over.any() else count
    early = (after < step.after_ns - slack_ns) | (after > stamper.until_ns + slack_ns)
    early |= stamper.rows < known[0] - _DISORDER
    early = early[begin:most]
    least = begin + (int(np.flatnonzero(early)[-1]) + 1 if early.any() else 0)
    if most < count and falls[most] and fell[most] <= slack_ns - step.by_ns:
        least = most  # not the next step, which was larger
    firsts = np.arange(least, most + 1)
    last = np.where(firsts > begin, np.append(before, 0)[firsts - 1], step.after_ns)
    # A thread that slept may have passed the next steps, too.
    later = clock.segments[number + 1 :]
    latest = np.max([segment.to_mono_ns(stamps) for segment in later], axis=0)
    begun = np.array([segment.to_mono_ns(starts) for segment in later])
    next_ = np.where(firsts < count, np.append(latest, 0)[firsts], step.before_ns)
    possible = (next_ >= last - slack_ns) & (last <= step.before_ns + slack_ns)
    # Nor did that one begin before the last call had ended, neither before the step nor after it.
    fits = np.append(begun.max(axis=0), 0)[firsts] >= last - slack_ns
    fits &= np.append(begun.min(axis=0), 0)[firsts] <= next_ + slack_ns
    begun_before = np.append(clock.segments[number].to_mono_ns(starts), 0)[firsts]
    fits |= begun_before <= np.minimum(next_, step.before_ns) + slack_ns
    possible &= fits | (firsts == count)
    if possible.any():
        firsts, last, next_ = firsts[possible], last[possible], next_[possible]
    middle = (step.after_ns + step.before_ns) // 2
    chosen = int(np.argmin(np.abs((last - middle) + (next_ - middle))))
    if step.by_ns < 0 and firsts[-1] == count:
        chosen = len(firsts) - 1  # nothing forces a thread to have been idle for so long
    return _Cut(
        int(firsts[chosen]),
        int(firsts[0]),
        int(firsts[-1]),
        max(step.after_ns, int(last[chosen]) - slack_ns),
        min(step.before_ns, int(next_[chosen]) + slack_ns),
    )


def _narrowed(step: ClockStep, cuts: list[_Cut]) -> ClockStep:
    sure = [cut for cut in cuts if cut.least == cut.most]
    after = max([step.after_ns, *(cut.after_ns for cut in sure)])
    before = min([step.before_ns, *(cut.before_ns for cut in sure)])
    return replace(step, after_ns=after, before_ns=before) if after <= before else step


def _sure_rows(
    steps: Sequence[ClockStep], stampers: Sequence[Stamper], cuts: list[list[_Cut]]
) -> dict[int, list[tuple[int, int]]]:
    """For each log and step: the last row known to be before it, the first one known to be after it."""
    sure: dict[int, list[tuple[int, int]]] = {}
    for stamper, own in zip(stampers, cuts, strict=True):
        rows = sure.setdefault(stamper.log, [(-1, FOREVER_NS)] * len(steps))
        for number, cut in enumerate(own):
            last, first = rows[number]
            if cut.least > 0:
                last = max(last, int(stamper.rows[cut.least - 1]))
            if cut.most < len(stamper.rows):
                first = min(first, int(stamper.rows[cut.most]))
            rows[number] = last, first
    return sure


def _begins(
    clock: Clock,
    steps: Sequence[ClockStep],
    rows: Times,
    first: int,
    segments: Times,
    stamps: Times,
    ends: Times,
) -> list[int]:
    """When the call in row `first` of a thread, the first to end after a step, can have begun."""
    slack_ns = _RESOLUTION_NS + clock.bound_ns
    stamp, end = int(stamps[rows[first]]), int(ends[rows[first]])
    earliest = int(ends[rows[first - 1]]) if first else -FOREVER_NS
    begins = []
    for number in range(int(segments[first]), int(segments[first - 1]) - 1 if first else -1, -1):
        start = int(clock.segments[number].to_mono_ns(stamp)) + clock.offset_ns
        after = clock.offset_ns + steps[number - 1].after_ns if number else -FOREVER_NS
        before = clock.offset_ns + steps[number].before_ns if number < len(steps) else FOREVER_NS
        if max(after, earliest) - slack_ns <= start <= min(before, end) + slack_ns:
            begins.append(start)
    return begins or [int(clock.segments[int(segments[first])].to_mono_ns(stamp)) + clock.offset_ns]
