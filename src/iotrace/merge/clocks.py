"""How each source's clock relates to the merged one, CLOCK_REALTIME in ns, and how sure that is."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from iotrace.merge.inputs import DFTRACER, SESSION, MergeError, Source
from iotrace.merge.survey import Survey

# dftracer and Kineto stamp with the same clock of a host: they were measured to agree to this.
_SAME_HOST_BOUND_NS = 6_000
_DFTRACER_BOUND_NS = 1_000  # it writes whole us
_FEWEST_MATCHES = 3


@dataclass
class ClockLink:
    """`shift_ns` brings a source to the merged clock, to within `bound_ns` (None: not known).

    `kind` is exact (the host's own clock), inferred (from collectives that several ranks made together),
    assumed (time since 1970, of a host that is not known) or none (a clock that nothing relates).
    """

    kind: str
    shift_ns: int = 0
    bound_ns: int | None = None
    why: str = ""


def link(sources: list[Source], surveys: list[Survey], align_start: bool, strict: bool) -> list[ClockLink]:
    """A link for each source; MergeError where there is none and nothing was asked for instead."""
    links = [_first(source, found) for source, found in zip(sources, surveys, strict=True)]
    _other_hosts(surveys, links)
    _same_process(sources, surveys, links)
    _infer(surveys, links)
    unrelated = [place for place, item in enumerate(links) if item.kind == "none"]
    alone = len(sources) == 1
    if unrelated and not alone and not align_start:
        raise MergeError(
            f"{sources[unrelated[0]].label} counts its time from the start of some machine: "
            "nothing relates it to the others",
            "--align start puts the starts of such files together",
        )
    if align_start:
        _align(surveys, links)
    elif alone and unrelated:
        links[0] = ClockLink("none", why="its own clock, since the start of some machine")
    if strict and not alone:
        for source, item in zip(sources, links, strict=True):
            if item.kind in ("assumed", "none"):
                raise MergeError(
                    f"the clock of {source.label} is {item.kind}: {item.why}",
                    "leave --strict-clocks out to merge it with that note",
                )
    return links


def _first(source: Source, found: Survey) -> ClockLink:
    if source.kind == SESSION:
        return ClockLink("exact", bound_ns=found.bound_ns, why="anchors of its session")
    if source.kind == DFTRACER:
        return ClockLink("exact", bound_ns=_DFTRACER_BOUND_NS, why="CLOCK_REALTIME of its host, in whole us")
    if found.absolute:
        return ClockLink("assumed", why="time since 1970, of a host that the file does not name")
    return ClockLink("none", why="it does not say when its time begins")


def _other_hosts(surveys: list[Survey], links: list[ClockLink]) -> None:
    """No offset between two machines was measured: the first host's clock is the merged one."""
    first = next((found.host for found in surveys if found.host), "")
    for place, found in enumerate(surveys):
        if found.host and found.host != first:
            links[place] = ClockLink("assumed", why=f"the clock of {found.host}, beside that of {first}")


def _same_process(sources: list[Source], surveys: list[Survey], links: list[ClockLink]) -> None:
    """A process that a session or a log knows, too, shares its clock."""
    known = {
        pid: place
        for place, source in enumerate(sources)
        if source.kind in (DFTRACER, SESSION)
        for pid in surveys[place].pids
    }
    users: dict[int, int] = {}
    for place, item in enumerate(links):
        if item.kind == "assumed" and surveys[place].pids:
            users[surveys[place].pids[0]] = users.get(surveys[place].pids[0], 0) + 1
    for place, item in enumerate(links):
        pids = surveys[place].pids
        other = known.get(pids[0]) if pids else None
        if item.kind != "assumed" or other is None or users[pids[0]] > 1:
            continue
        one, two = surveys[place].first_ns, surveys[other].first_ns
        if one is not None and two is not None and abs(one - two) < 86_400 * 10**9:
            why = f"process {pids[0]} is the one of {sources[other].label}"
            links[place] = ClockLink("exact", bound_ns=_SAME_HOST_BOUND_NS, why=why)


def _infer(surveys: list[Survey], links: list[ClockLink]) -> None:
    """Collectives end at the same instant on every rank: offset and drift by robust regression."""
    candidates = [place for place, found in enumerate(surveys) if found.collectives]
    if len(candidates) < 2:
        return
    reference = max(candidates, key=lambda place: len(surveys[place].collectives))
    for place in candidates:
        if place == reference or links[place].kind == "exact":
            continue
        offset = offset_between(surveys[reference].collectives, surveys[place].collectives)
        if offset is None:
            continue
        shift, bound, count = offset
        why = f"{count} collectives matched"
        if abs(shift) <= bound and links[place].kind == "assumed":  # the stamps agree already
            links[place] = ClockLink("inferred", 0, bound + abs(shift), f"{why}; no offset seen")
        else:
            links[place] = ClockLink("inferred", shift, bound, why)
        if links[reference].kind == "assumed":
            links[reference] = ClockLink("inferred", 0, 0, "the others are told from its collectives")


def offset_between(
    reference: dict[tuple[str, ...], int], other: dict[tuple[str, ...], int]
) -> tuple[int, int, int] | None:
    """What to add to `other`'s times, the bound of it in ns, and how many collectives say so.

    The median of the differences, and as bound the 95th percentile of what they leave, drift included.
    """
    keys = sorted(reference.keys() & other.keys())
    if len(keys) < _FEWEST_MATCHES:
        return None
    differences = np.array([reference[key] - other[key] for key in keys], np.int64)
    shift = int(np.median(differences - differences[0])) + int(differences[0])
    residual = np.abs(differences - shift)
    return shift, int(np.percentile(residual, 95)), len(keys)


def _align(surveys: list[Survey], links: list[ClockLink]) -> None:
    starts = [
        found.first_ns + item.shift_ns
        for found, item in zip(surveys, links, strict=True)
        if found.first_ns is not None and item.kind != "none"
    ]
    unrelated = [
        found.first_ns
        for found, item in zip(surveys, links, strict=True)
        if item.kind == "none" and found.first_ns is not None
    ]
    if not starts and not unrelated:
        return
    target = min(starts or unrelated)
    for place, (found, item) in enumerate(zip(surveys, links, strict=True)):
        if item.kind == "none" and found.first_ns is not None:
            links[place] = ClockLink(
                "none", target - found.first_ns, None, "starts put together (--align start)"
            )
