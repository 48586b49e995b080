"""Whether traces are of one job's ranks: what speaks against it, as a sentence."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

import msgspec

from iotrace.units import counted, time_span

# Ranks are profiled at about the same time; clocks of hosts differ by seconds, without NTP by minutes.
APART_NS = 3_600 * 10**9


class RankOfJob(msgspec.Struct, frozen=True):
    """What a trace says of its job; `first_ns` and `last_ns` by CLOCK_REALTIME, None where they have no date.

    `process` tells the processes of a rank apart: one process may leave several windows.
    """

    label: str
    rank: int | None
    world_size: int | None
    process: int | str | None
    first_ns: int | None
    last_ns: int | None


def why_not_one_job(traces: Sequence[RankOfJob]) -> str | None:
    """Say why `traces` cannot be of one job; None where nothing speaks against it."""
    for one, other in combinations(traces, 2):
        if one.world_size and other.world_size and one.world_size != other.world_size:
            size = counted(one.world_size, "rank")
            return f"{one.label} is of a job of {size}, {other.label} of one of {other.world_size}"
        if one.rank is not None and one.rank == other.rank and not _of_one_process(one, other):
            return f"{one.label} and {other.label} are both of rank {one.rank}"
    known = sorted({trace.rank for trace in traces if trace.rank is not None})
    for first, second in combinations(known, 2):
        pairs = [(one, two) for one in traces for two in traces if (one.rank, two.rank) == (first, second)]
        gaps = [_apart_ns(*pair) for pair in pairs]
        nearest = min((gap for gap in gaps if gap is not None), default=0)
        if None not in gaps and nearest > APART_NS:
            one, two = pairs[gaps.index(nearest)]
            return f"{one.label} and {two.label} were recorded {time_span(nearest / 1e9)} apart"
    return None


def why_not_compared(traces: Sequence[RankOfJob]) -> str | None:
    """Say why `traces` cannot be compared as ranks of one job; None where they can."""
    nameless = next((trace for trace in traces if trace.rank is None), None)
    if len(traces) > 1 and nameless is not None:
        return f"{nameless.label} does not say which rank of which job it is"
    why = why_not_one_job(traces)
    again = next((one.rank for one, other in combinations(traces, 2) if one.rank == other.rank), None)
    return why or (None if again is None else f"several windows of rank {again}: give one of each rank")


def _of_one_process(one: RankOfJob, other: RankOfJob) -> bool:
    """Whether two traces of a rank are windows of one process, one after the other."""
    apart_ns = _apart_ns(one, other)
    return one.process is not None and one.process == other.process and (apart_ns is None or apart_ns >= 0)


def _apart_ns(one: RankOfJob, other: RankOfJob) -> int | None:
    """Compute the time between two traces, negative where they overlap; None where either has no date."""
    if one.first_ns is None or one.last_ns is None or other.first_ns is None or other.last_ns is None:
        return None
    return max(one.first_ns, other.first_ns) - min(one.last_ns, other.last_ns)
