"""``--strict-clocks``: refuse clocks that do not tell the order of what a timeline shows of several hosts."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

import msgspec

from iotrace.merge.input import Input
from iotrace.merge.input_files import MergeError
from iotrace.units import duration

_MOST_NS = 100_000
# Spans of one collective overlap but for the clocks' errors; those further apart are of a job's other starts.
_APART_NS = 1_000_000


class Part(msgspec.Struct, frozen=True):
    """An input's part in a collective, on the merged clock, which knows it to ± `bound_ns`."""

    input: Input
    start_ns: int
    end_ns: int

    @property
    def bound_ns(self) -> int:
        return self.input.link.bound_ns or 0

    @property
    def clock(self) -> str | int:
        """What it shares with others of its host; a trace whose host is not known stands alone."""
        return self.input.link.domain or id(self.input)


class Order(msgspec.Struct, frozen=True):
    """Of one collective: `end` cannot come before `start`, which is another host's."""

    key: tuple[str, ...]
    start: Part
    end: Part

    @property
    def interval_ns(self) -> int:
        """How long after the start the end is shown."""
        return self.end.end_ns - self.start.start_ns

    @property
    def bound_ns(self) -> int:
        """What that may be off by."""
        return self.start.bound_ns + self.end.bound_ns


def refuse_unsure_orders(inputs: Sequence[Input]) -> None:
    """Refuse a clock above 100 µs, or above the shortest interval that the timeline orders between hosts.

    Raises:
        MergeError: A clock is not known, or not well enough.
    """
    if len(inputs) < 2:
        return
    for item in inputs:
        link = item.link
        known = link.bound_ns is not None and link.kind not in ("assumed", "none")
        if not known or (link.bound_ns or 0) > _MOST_NS:
            what = f"known to ± {duration(link.bound_ns or 0)}" if known else link.kind
            raise MergeError(
                f"the clock of {item.file.label} is {what}: {link.why}",
                "leave --strict-clocks out to merge it with that note",
            )
    found = least_sure(inputs)
    if found is not None and found.bound_ns > found.interval_ns:
        raise MergeError(_refusal(found, inputs), "leave --strict-clocks out to merge them all the same")


def least_sure(inputs: Sequence[Input]) -> Order | None:
    """Find the order between two hosts that the clocks tell worst; None where hosts share no collective.

    No rank ends an all-reduce, all-gather, reduce-scatter, all-to-all or barrier before every rank has begun
    it. Such an order has to be shown as it was, and the interval from the last start to the first end is the
    shortest one in which it can be seen.
    """
    holders: dict[tuple[str, ...], list[Input]] = defaultdict(list)
    for item in inputs:
        for key in item.survey.collectives:
            holders[key].append(item)
    orders = (order for key, items in holders.items() for order in _orders(key, items))
    return min(orders, key=lambda order: order.interval_ns - order.bound_ns, default=None)


def _orders(key: tuple[str, ...], inputs: Sequence[Input]) -> Iterator[Order]:
    """Yield, of each collective that is called `key`, the two orders one of which is the least sure."""
    for parts in _together(_part(key, item) for item in inputs):
        last = max(parts, key=_latest_start)
        first = min(parts, key=_earliest_end)
        ends = [part for part in parts if part.clock != last.clock]
        starts = [part for part in parts if part.clock != first.clock]
        if ends:
            yield Order(key, last, min(ends, key=_earliest_end))
        if starts:
            yield Order(key, max(starts, key=_latest_start), first)


def _part(key: tuple[str, ...], item: Input) -> Part:
    start_ns, end_ns = item.survey.collectives[key]
    return Part(item, item.link.map.map_one(start_ns), item.link.map.map_one(end_ns))


def _latest_start(part: Part) -> int:
    return part.start_ns + part.bound_ns


def _earliest_end(part: Part) -> int:
    return part.end_ns - part.bound_ns


def _together(parts: Iterator[Part]) -> Iterator[list[Part]]:
    """Divide what has the same name by time: a restarted job counts its collectives from the start again."""
    found: list[Part] = []
    ended_ns = 0
    for part in sorted(parts, key=lambda part: part.start_ns):
        if found and part.start_ns > ended_ns + _APART_NS:
            yield found
            found = []
        ended_ns = max(ended_ns, part.end_ns) if found else part.end_ns
        found.append(part)
    if found:
        yield found


def _refusal(order: Order, inputs: Sequence[Input]) -> str:
    hosts = {item.link.domain: item.survey.host for item in inputs if item.link.domain and item.survey.host}

    def of(part: Part) -> str:
        rank = part.input.survey.rank
        host = hosts.get(part.input.link.domain) or part.input.survey.named_host
        known = [f"rank {rank}" if rank is not None else "", f"on {host}" if host else ""]
        about = " ".join(filter(None, known))
        return f"{part.input.file.label} ({about})" if about else part.input.file.label

    kind, number = order.key[0], order.key[-1]
    start, end = order.start.input.file.label, order.end.input.file.label
    apart = f"{duration(abs(order.interval_ns))} {'after' if order.interval_ns >= 0 else 'before'}"
    return (
        f"the clocks of {of(order.end)} and {of(order.start)} are known to ± {duration(order.bound_ns)} "
        "of each other, too coarse for an order that is certain: "
        f"{kind} {number} ends in {end} {apart} it begins in {start}"
    )
