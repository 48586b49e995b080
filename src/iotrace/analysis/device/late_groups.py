"""Which rank comes last to the collectives of each name, or kind and process group: how often, how much."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from statistics import median
from typing import Any

from iotrace.analysis.device.collectives import Matched
from iotrace.analysis.device.lateness import Late
from iotrace.analysis.efficiency.launches import bus_factor, kind_of
from iotrace.analysis.results import CollectiveSpeed, LateGroup, LateKind

_MOST_SPEEDS = 30
_Key = tuple[str, str | None, tuple[int, ...]]
TIED = "several ranks came last together in each"
UNSURE = "the clocks do not confirm who came last in most"


def late_kinds(late: Sequence[Late]) -> list[LateKind]:
    """Sum up the matched collectives by name, the most skewed first."""
    by_name: dict[str, list[Late]] = defaultdict(list)
    for one in late:
        by_name[one.matched.name].append(one)
    found = []
    for name, own in by_name.items():
        counts = Counter(one.last for one in own if one.last is not None)
        last_rank, count = counts.most_common(1)[0] if counts else (None, 0)
        found.append(LateKind(name=name, last_rank=last_rank, last_count=count, **_summed(own)))
    return sorted(found, key=lambda one: -one.skew_ms)


def _summed(own: Sequence[Late]) -> dict[str, Any]:
    return {
        "matched": len(own),
        "tied": sum(one.matched.last is None for one in own),
        "unsure": sum(one.unsure for one in own),
        "skew_ms": sum(one.skew_ns - max(0, one.arisen_ns - one.once_ns) for one in own) / 1e6,
    }


def late_groups(late: Sequence[Late], withheld: str | None) -> list[LateGroup]:
    """Sum up the matched collectives by kind, group and ranks, the most skewed first."""
    by_key: dict[_Key, list[Late]] = defaultdict(list)
    for one in late:
        key = kind_of(one.matched.name), one.matched.group, tuple(sorted(one.matched.starts_ns))
        by_key[key].append(one)
    found = [_group(key, own, withheld) for key, own in by_key.items()]
    return sorted(found, key=lambda one: -one.skew_ms)


def _group(key: _Key, own: Sequence[Late], withheld: str | None) -> LateGroup:
    kind, group, ranks = key
    counts = Counter(one.last for one in own if one.last is not None)
    late_ns: dict[int, int] = defaultdict(int)
    for one in own:
        if one.last is not None:
            late_ns[one.last] += _late_ns(one, one.last)
    summed = _summed(own)
    why = withheld or (UNSURE if 2 * summed["unsure"] > len(own) else None if counts else TIED)
    last = None if why is not None else max(counts, key=lambda rank: (counts[rank], late_ns[rank], -rank))
    calls = 0 if last is None else counts[last]
    return LateGroup(
        kind=kind,
        group=group,
        ranks=list(ranks),
        **summed,
        late_rank=last,
        late_calls=None if last is None else calls,
        late_pct=None if last is None else 100 * calls / len(own),
        late_ms=None if last is None else late_ns[last] / calls / 1e6,
        unknown_why=why,
    )


def _late_ns(one: Late, last: int) -> int:
    """How much later than the median of the others the last rank came: all of them end together.

    What only shows that its profiler started later does not count.
    """
    others = [ns for rank, ns in one.matched.durations_ns.items() if rank != last]
    return min(round(median(others)) - one.matched.real_ns, one.counted_ns)


def speeds_of(matched: Sequence[Matched], world_size: int | None) -> list[CollectiveSpeed]:
    """Sum up what collectives took once all ranks had come, by kind, type and size; the most time first."""
    by_key: dict[tuple[str, str | None, int | None], list[Matched]] = defaultdict(list)
    for one in matched:
        dtype = one.about.dtype if one.about is not None else None
        by_key[kind_of(one.name), dtype, one.bytes].append(one)
    found = [_speed(*key, own, world_size) for key, own in by_key.items()]
    return sorted(found, key=lambda one: -one.least_us)[:_MOST_SPEEDS]


def _speed(
    kind: str, dtype: str | None, size: int | None, own: Sequence[Matched], world_size: int | None
) -> CollectiveSpeed:
    least_ns = sum(one.real_ns for one in own)
    waited_ns: dict[int, int] = defaultdict(int)
    for one in own:
        for rank in one.durations_ns:
            waited_ns[rank] += one.wait_ns(rank)
    about = own[0].about
    ranks = about.group_size if about is not None else None
    if ranks is None and len(waited_ns) == world_size:
        ranks = world_size
    algorithm = size * len(own) / least_ns if size and least_ns else None
    factor = bus_factor(kind, ranks)
    return CollectiveSpeed(
        kind=kind,
        dtype=dtype,
        bytes_per_call=size,
        calls=len(own),
        least_us=least_ns / 1e3,
        algorithm_gb_per_s=algorithm,
        bus_gb_per_s=None if algorithm is None or factor is None else algorithm * factor,
        waited_us={str(rank): ns / 1e3 for rank, ns in sorted(waited_ns.items())},
    )
