"""One host's CLOCK_MONOTONIC against another's, from datagrams that their sidecars exchanged."""

from __future__ import annotations

from collections.abc import Sequence
from operator import itemgetter

import msgspec
import numpy as np
import numpy.typing as npt

from iotrace.sources.clocks.clock_map import ClockMap

Floats = npt.NDArray[np.float64]
Exchange = tuple[int, int, int, int]

_ROUND_NS = 500_000_000  # exchanges of one round lie closer together, and rounds further apart
# Exchanges up to so many times as long as the quickest one are kept: the choice with the least bound.
_SLOWER = (1.5, 3.0, 10.0, float("inf"))
_STEEPEST = 500e-6  # what two clocks may part by where no drift was measured: Linux slews no faster
_PART = 2 * _STEEPEST  # two clocks that part by more between two rounds did so by a step


class HostLink(msgspec.Struct, frozen=True):
    """How a host's clock leads to the reference's, to within `bound_ns` from its first time to its last.

    `kind`: measured or inferred. `exchanges` of datagrams, the quickest of them in `round_trip_ns`.
    """

    map: ClockMap
    bound_ns: int
    kind: str = "measured"
    why: str = ""
    exchanges: int = 0
    round_trip_ns: int | None = None


def link_by_exchanges(exchanges: Sequence[Exchange], first_ns: int, last_ns: int) -> HostLink | None:
    """Offset and drift by regression over the quickest exchange of each round; None without exchanges.

    An exchange is four times in ns: sent by the own clock, received and answered by the reference's, back by
    the own one. Whatever the two ways took, the offset lies between what each of them alone would say: half
    the round trip on either side of the middle. The bound is the largest half, with the residual there, over
    the exchanges kept. A line that is right to within that at two times is right to within it between
    them; it may err by more towards `first_ns` and `last_ns`, which are of the own clock. Where one clock
    stepped against the other between two rounds (its host was suspended, or moved), the bound holds the step.
    """
    times = np.array(sorted(exchanges), np.int64).reshape(-1, 4)
    sent, received, answered, back = times.T
    delay = (back - sent) - (answered - received)
    sane = (delay >= 0) & (back >= sent)
    sent, received, answered, back, delay = (each[sane] for each in (sent, received, answered, back, delay))
    if not len(delay):
        return None
    quickest = _quickest(sent, delay)
    at, base = int(sent[0]), int(received[0] - sent[0])
    middle = ((received - sent - base) + (answered - back - base)) / 2
    when = (sent - at + (back - sent) / 2).astype(np.float64)
    half = delay / 2 + (back - sent) * _STEEPEST + 1
    before, after = float(first_ns - at), float(last_ns - at)
    trip_ns = int(delay.min())
    why = f"{len(delay)} exchanges of datagrams, the quickest in {trip_ns / 1000:.3g} µs"
    gaps, steps = np.diff(when[quickest]), np.abs(np.diff(middle[quickest]))
    stepped = steps > half[quickest][:-1] + half[quickest][1:] + _PART * gaps
    choices = [quickest[delay[quickest] <= slower * trip_ns + 1] for slower in _SLOWER]
    lines = (
        _line(when[kept], middle[kept], half[kept], before, after)
        for kept in ([quickest] if stepped.any() else choices)
    )
    bound, shift, drift, where = min(lines, key=itemgetter(0))
    if stepped.any():
        beyond = max(float(when[quickest][0]) - before, after - float(when[quickest][-1]), float(gaps.max()))
        bound += beyond * (abs(drift) + _PART)
        why += f"; one clock stepped by {steps[stepped].max() / 1e9:.3g} s against the other in mid-run"
    found = ClockMap(base + round(shift), drift * 1e9, at + round(where))
    return HostLink(found, int(np.ceil(bound)), "measured", why, len(delay), trip_ns)


def _quickest(sent: npt.NDArray[np.int64], delay: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """The row of the quickest exchange of each round."""
    rounds = np.cumsum(np.diff(sent, prepend=sent[0]) > _ROUND_NS)
    order = np.lexsort((delay, rounds))
    _, firsts = np.unique(rounds[order], return_index=True)
    return order[firsts]


def _line(
    when: Floats, middle: Floats, half: Floats, before: float, after: float
) -> tuple[float, float, float, float]:
    """Fit a line: its bound, its level, its slope, and the time of that level."""
    weights = 1 / half**2
    where = float(np.average(when, weights=weights))
    level = float(np.average(middle, weights=weights))
    span = float(when[-1] - when[0])
    slope = 0.0
    if span > 0:
        slope = float((weights * (when - where) * (middle - level)).sum())
        slope /= float((weights * (when - where) ** 2).sum())
    off = half + np.abs(middle - level - slope * (when - where))
    beyond = max(0.0, float(when[0]) - before, after - float(when[-1]))
    unsure = (off[0] + off[-1]) / span if span > 0 else _STEEPEST
    return float(off.max() + beyond * min(unsure, _STEEPEST + abs(slope))), level, slope, where
