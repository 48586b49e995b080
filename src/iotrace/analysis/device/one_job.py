"""Whether traces are of one job's ranks: what speaks against it, as a sentence."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from itertools import combinations, product

import msgspec

from iotrace.units import counted, time_span

# Ranks are profiled at about the same time; clocks of hosts differ by seconds, without NTP by minutes.
APART_NS = 3_600 * 10**9
_MOST_NAMED = 8


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
    by_rank: dict[int, list[RankOfJob]] = defaultdict(list)
    for trace in traces:
        if trace.rank is not None:
            by_rank[trace.rank].append(trace)
    sizes = {trace.world_size for trace in traces if trace.world_size}
    pairs = (pair for own in by_rank.values() for pair in combinations(own, 2))
    # The first pair at odds is looked for where there is one: a job of thousands has millions of pairs.
    if len(sizes) > 1 or not all(_of_one_process(*pair) for pair in pairs):
        for one, other in combinations(traces, 2):
            if one.world_size and other.world_size and one.world_size != other.world_size:
                size = counted(one.world_size, "rank")
                return f"{one.label} is of a job of {size}, {other.label} of one of {other.world_size}"
            if one.rank is not None and one.rank == other.rank and not _of_one_process(one, other):
                return f"{one.label} and {other.label} are both of rank {one.rank}"
    return _recorded_apart(by_rank)


def ranks_missing(traces: Sequence[RankOfJob]) -> str | None:
    """Name the ranks of the job of which `traces` hold nothing; None without any, or with an unknown size."""
    known, sizes = {trace.rank for trace in traces}, {trace.world_size for trace in traces}
    if len(traces) < 2 or None in known or len(sizes) > 1:
        return None
    size = sizes.pop() or 0
    missing = [rank for rank in range(size) if rank not in known]
    if not missing:
        return None
    named = ", ".join(map(str, missing[:_MOST_NAMED]))
    more = f" and {len(missing) - _MOST_NAMED} more" if len(missing) > _MOST_NAMED else ""
    return f"{'rank' if len(missing) == 1 else 'ranks'} {named}{more} of {size}"


def _recorded_apart(by_rank: dict[int, list[RankOfJob]]) -> str | None:
    """Say which two ranks were never recorded within an hour of each other; None where all were."""
    dated = [(one.first_ns, one.last_ns) for own in by_rank.values() for one in own]
    firsts = [first for first, last in dated if first is not None and last is not None]
    lasts = [last for first, last in dated if first is not None and last is not None]
    if not firsts or max(firsts) - min(lasts) <= APART_NS:
        return None
    for first, second in combinations(sorted(by_rank), 2):
        gaps = [(_apart_ns(*pair), *pair) for pair in product(by_rank[first], by_rank[second])]
        known = [gap for gap in gaps if gap[0] is not None and gap[0] > APART_NS]
        if len(known) == len(gaps):
            gap_ns, one, two = min(known, key=lambda gap: gap[0] or 0)
            return f"{one.label} and {two.label} were recorded {time_span((gap_ns or 0) / 1e9)} apart"
    return None


def why_not_compared(traces: Sequence[RankOfJob]) -> str | None:
    """Say why `traces` cannot be compared as ranks of one job; None where they can."""
    nameless = next((trace for trace in traces if trace.rank is None), None)
    if len(traces) > 1 and nameless is not None:
        return f"{nameless.label} does not say which rank of which job it is"
    why = why_not_one_job(traces)
    counts = Counter(trace.rank for trace in traces)
    again = next((trace.rank for trace in traces if counts[trace.rank] > 1), None)
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
