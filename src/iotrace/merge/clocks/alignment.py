"""How each source's clock relates to the merged one, CLOCK_REALTIME in ns, and how sure that is."""

from __future__ import annotations

import math

from iotrace.merge.clocks.clock_map import ClockLink, ClockMap
from iotrace.merge.clocks.sync_by_collectives import relate
from iotrace.merge.inputs import DFTRACER, SESSION, MergeError, Source
from iotrace.merge.survey import Survey
from iotrace.sources.clocks.session_clock import Clock, step_text

# dftracer and Kineto stamp with the same clock of a host: they were measured to agree to this.
_SAME_HOST_BOUND_NS = 6_000
_DFTRACER_BOUND_NS = 1_000  # it writes whole us
# Within it, the same pid is taken for the same process: a log may have no calls while a trace is recorded.
_SAME_RUN_NS = 3_600 * 10**9
_DAY_NS = 86_400 * 10**9


def link(sources: list[Source], surveys: list[Survey], align_start: bool, strict: bool) -> list[ClockLink]:
    """A link for each source; MergeError where there is none and nothing was asked for instead."""
    links = [_first(source, found) for source, found in zip(sources, surveys, strict=True)]
    for place, item in enumerate(links):
        item.island = place
    _other_hosts(surveys, links)
    _same_process(sources, surveys, links)
    relate(sources, surveys, links)
    unrelated = [place for place, item in enumerate(links) if item.kind == "none"]
    alone = len({item.island for item in links}) == 1
    if unrelated and not alone and not align_start:
        raise MergeError(
            f"{sources[unrelated[0]].label} counts its time from the start of some machine: "
            "nothing relates it to the others",
            "--align start puts the starts of such files together",
        )
    if align_start:
        _align(surveys, links)
    elif alone and unrelated and len(links) == 1:
        links[0] = ClockLink("none", why="its own clock, since the start of some machine")
    _begin_at_zero(surveys, links)
    if strict and len(links) > 1:
        for source, item in zip(sources, links, strict=True):
            if item.kind in ("assumed", "none"):
                raise MergeError(
                    f"the clock of {source.label} is {item.kind}: {item.why}",
                    "leave --strict-clocks out to merge it with that note",
                )
    return links


def _first(source: Source, found: Survey) -> ClockLink:
    if source.kind == SESSION:
        bound = found.bound_ns or 0
        why, domain = "anchors of its session", found.clock_domain or found.host
        return ClockLink("exact", bound_ns=bound, why=why, domain=domain, own_bound_ns=bound)
    if source.kind == DFTRACER:
        why = "CLOCK_REALTIME of its host, in whole us"
        return ClockLink("exact", bound_ns=_DFTRACER_BOUND_NS, why=why, own_bound_ns=_DFTRACER_BOUND_NS)
    if found.absolute and found.host:
        return ClockLink("assumed", why=f"time since 1970 on {found.host}, by no clock that was measured")
    if found.absolute:
        host = f"of {found.named_host}, beside which no other clock" if found.named_host else ""
        host = f"{host} was measured" if host else "of a host that the file does not name"
        return ClockLink("assumed", why=f"time since 1970 {host}")
    return ClockLink("none", why="it does not say when its time begins")


def _other_hosts(surveys: list[Survey], links: list[ClockLink]) -> None:
    """The first host's clock is the merged one; nothing was measured between two machines."""
    first = next((place for place, found in enumerate(surveys) if found.host), None)
    if first is None:
        return
    for found, item in zip(surveys, links, strict=True):
        if found.host and item.domain != links[first].domain:
            item.kind, item.bound_ns = "assumed", None
            item.why = f"the clock of {found.host}, beside that of {surveys[first].host}"


def _same_process(sources: list[Source], surveys: list[Survey], links: list[ClockLink]) -> None:
    """A process that a session or a log knows, too, shares its clock; measured of torch.profiler alone."""
    known = {
        pid: place
        for place, source in enumerate(sources)
        if source.kind in (DFTRACER, SESSION)
        for pid in surveys[place].pids
    }
    ranks: dict[int, set[int | None]] = {}  # of the traces that claim a process: several are several hosts'
    for place, item in enumerate(links):
        if sources[place].kind not in (DFTRACER, SESSION) and item.kind == "assumed" and surveys[place].pids:
            ranks.setdefault(surveys[place].pids[0], set()).add(surveys[place].rank)
    for place, item in enumerate(links):
        pids = surveys[place].pids
        other = known.get(pids[0]) if pids else None
        if item.kind != "assumed" or other is None or len(ranks.get(pids[0], ())) != 1:
            continue
        if sources[place].kind in (DFTRACER, SESSION) or not surveys[place].by_kineto:
            continue
        if _apart_ns(surveys[place], surveys[other]) < _SAME_RUN_NS:
            shift = _shift_ns(surveys[place], surveys[other].clock)
            if shift is None:
                item.why += f"; {sources[other].label}'s clock was set while it was recorded: it is stretched"
                continue
            item.map = ClockMap(shift)
            item.domain, item.own_bound_ns = links[other].domain, _SAME_HOST_BOUND_NS
            item.why = f"process {pids[0]} is the one of {sources[other].label}"
            if links[other].kind == "exact":
                item.kind, item.bound_ns = "exact", _SAME_HOST_BOUND_NS
            else:
                item.why += f"; {links[other].why}"


def _begin_at_zero(surveys: list[Survey], links: list[ClockLink]) -> None:
    """Times below 0, of clocks that mean nothing by themselves, begin days later: Perfetto drops them."""
    firsts = [
        item.map.one(found.first_ns)
        for found, item in zip(surveys, links, strict=True)
        if found.first_ns is not None
    ]
    earliest = min(firsts, default=0)
    if earliest < 0 and all(item.kind == "none" for item in links):
        later = ClockMap(-(earliest // _DAY_NS) * _DAY_NS)
        for item in links:
            item.map = item.map.then(later)
            item.why += "; moved by whole days, as it has times below 0"


def _apart_ns(one: Survey, two: Survey) -> float:
    """The time between what two sources recorded; negative where they overlap."""
    if one.first_ns is None or two.first_ns is None:
        return math.inf
    ends = one.last_ns or one.first_ns, two.last_ns or two.first_ns
    return max(one.first_ns, two.first_ns) - min(ends)


def _shift_ns(found: Survey, clock: Clock | None) -> int | None:
    """What brings the stamps of a trace of torch.profiler to the time of its session."""
    if clock is None or found.first_ns is None or found.last_ns is None:
        return 0
    return clock.offset_if_single_segment(found.first_ns, found.last_ns)


def clocks_set(surveys: list[Survey]) -> list[str]:
    """A sentence for each time that a host's clock was set during a session."""
    found = {
        step_text(item.host, step.by_ns, item.clock.at_ns(step)): None
        for item in surveys
        if item.clock is not None
        for step in item.clock.steps
    }
    return list(found)


def _align(surveys: list[Survey], links: list[ClockLink]) -> None:
    """Put the first event of each group that nothing relates where the first of the others is."""
    firsts: dict[tuple[bool, int], int] = {}
    for found, item in zip(surveys, links, strict=True):
        if found.first_ns is not None:
            key = item.kind == "none", item.island
            first = item.map.one(found.first_ns)
            firsts[key] = min(firsts.get(key, first), first)
    related = [first for (unrelated, _), first in firsts.items() if not unrelated]
    if not firsts:
        return
    target = min(related or firsts.values())
    for found, item in zip(surveys, links, strict=True):
        if item.kind == "none" and found.first_ns is not None:
            item.map = item.map.then(ClockMap(target - firsts[True, item.island]))
            item.bound_ns, item.why = None, "starts put together (--align start)"
