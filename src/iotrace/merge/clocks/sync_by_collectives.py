"""Clocks of several hosts, told from collectives that their ranks ended together: from rank to rank."""

from __future__ import annotations

from collections import Counter

import numpy as np
import numpy.typing as npt

from iotrace.merge.clocks.clock_map import ClockLink, ClockMap
from iotrace.merge.clocks.drift import Fit, fit
from iotrace.merge.inputs import Source
from iotrace.merge.survey import BY_ORDER, Survey

_FEWEST_MATCHES = 3


def relate(sources: list[Source], surveys: list[Survey], links: list[ClockLink]) -> None:
    """Follow the strongest links: a spanning tree by matches, from the clocks that are exact.

    Where there is none, the rank with the most matches is the reference. Ranks that no collective joins to
    the reference are related to one of their own: their offset to the rest stays assumed, or unknown.
    """
    if not any(found.collectives for found in surveys):
        return
    only_each_other = all(item.kind == "none" for item in links)
    if only_each_other:  # the reference's own time is what they are merged in
        for item in links:
            item.kind = "assumed"
    _Tree(sources, surveys, links).grow()
    if only_each_other and any(item.kind == "assumed" for item in links):
        for item in links:
            item.kind, item.bound_ns = "none", None


class _Tree:
    """Grows from rank to rank; sources that share a clock come with the first of them."""

    def __init__(self, sources: list[Source], surveys: list[Survey], links: list[ClockLink]) -> None:
        self._sources, self._surveys, self._links = sources, surveys, links
        self._matches = _matches(surveys)
        self._waiting = set(range(len(links)))
        self._depth = [0] * len(links)
        # Of each source that waits, the strongest link to the tree: its strength, and to whom.
        self._best: dict[int, tuple[tuple[int, int, int], int]] = {}

    def grow(self) -> None:
        """Relate all that can be."""
        if not self._matches.any():
            return
        exact = [place for place, item in enumerate(self._links) if item.kind == "exact"]
        for place in exact:
            self._links[place].island = exact[0]
            self._place(place)
        self._follow()
        while root := self._next_root():
            alone = len(self._waiting) == len(self._links)
            self._begin(root[0], alone)
            self._follow()

    def _follow(self) -> None:
        while self._best:
            place = max(self._best, key=lambda place: (self._best[place][0], -place))
            self._attach(place, self._best[place][1])

    def _next_root(self) -> tuple[int, ...]:
        """The source with the most matches of those that are left, as a tuple of none or one."""
        left = [place for place in sorted(self._waiting) if self._matches[place].any()]
        kinds = ("none", "assumed")
        order = sorted(
            left,
            key=lambda place: (kinds.index(self._links[place].kind), int(self._matches[place].sum())),
            reverse=True,
        )
        return tuple(order[:1])

    def _begin(self, root: int, is_reference: bool) -> None:
        """A tree from `root`; only the first one tells the merged clock, where no clock is exact."""
        for place in self._sharing(root):
            item = self._links[place]
            item.island = root
            if is_reference and item.kind == "assumed":
                item.kind, item.bound_ns = "inferred", item.own_bound_ns
                item.why = "the others are told from its collectives"
            self._place(place)

    def _attach(self, place: int, parent: int) -> None:
        found = self._fit(place, parent)
        above = self._links[parent]
        step, bound = found.map, found.bound_ns
        if not step.drift_ppb and abs(step.shift_ns) <= bound and self._links[place].kind == "assumed":
            step, bound = ClockMap(), bound + abs(step.shift_ns)  # the stamps agree already
        path = step.then(above.map)
        why = self._told(found, place, parent, moved=step != ClockMap())
        for other in self._sharing(place):
            item, survey = self._links[other], self._surveys[other]
            item.map = path if not path.drift_ppb else path.moved_to(survey.first_ns or path.at_ns)
            item.island, item.why = above.island, why
            own = 0 if other == place else item.own_bound_ns + self._links[place].own_bound_ns
            if above.bound_ns is None:
                item.kind, item.bound_ns = above.kind, None
                item.why += f", whose own clock is {above.kind}"
            else:
                item.kind, item.bound_ns = "inferred", above.bound_ns + bound + own
            self._place(other, self._depth[parent] + 1)

    def _place(self, place: int, depth: int = 0) -> None:
        self._waiting.discard(place)
        self._best.pop(place, None)
        self._depth[place] = depth
        for other in np.flatnonzero(self._matches[place]).tolist():
            if other in self._waiting:
                count = int(self._matches[place, other])
                # Links within a factor of two are alike: the shorter path has the smaller bound.
                link = (count.bit_length(), -depth, count), place
                self._best[other] = max(self._best.get(other, link), link, key=lambda item: item[0])

    def _sharing(self, place: int) -> list[int]:
        domain = self._links[place].domain
        others = [other for other in sorted(self._waiting) if domain and self._links[other].domain == domain]
        return [place, *(other for other in others if other != place)]

    def _fit(self, place: int, parent: int) -> Fit:
        ours, theirs = self._surveys[place].collectives, self._surveys[parent].collectives
        keys = [key for key in ours if key in theirs]
        other = np.array([ours[key] for key in keys], np.int64)
        reference = np.array([theirs[key] for key in keys], np.int64)
        first, last = self._surveys[place].first_ns, self._surveys[place].last_ns
        ends = ours.values()
        return fit(
            reference,
            other,
            min(ends) if first is None else min(first, *ends),
            max(ends) if last is None else max(last, *ends),
        )

    def _told(self, found: Fit, place: int, parent: int, moved: bool) -> str:
        ours, theirs = self._surveys[place].collectives, self._surveys[parent].collectives
        by_order = any(key[-1].startswith(BY_ORDER) for key in ours if key in theirs)
        text = f"{found.matches} collectives matched{' by their order' if by_order else ''}"
        if self._depth[parent] or self._links[parent].bound_ns is None:
            text += f" with {self._sources[parent].label}"
        if found.map.drift_ppb:
            text += f", a drift of {abs(found.map.drift_ppb) / 1e3:.3g} ppm undone"
        elif not moved:
            text += "; no offset seen"
        if found.refused_ppm is not None:
            text += f"; they part by {abs(found.refused_ppm):.3g} ppm, more than clocks drift"
        if found.beyond_ns * 2 > max(ours.values()) - min(ours.values()):
            text += f"; {found.beyond_ns / 1e9:.3g} s of the trace lie beyond them"
        return text


def _matches(surveys: list[Survey]) -> npt.NDArray[np.int64]:
    """How many collectives each two sources have in common; 0 for fewer than three."""
    holders: dict[tuple[str, ...], list[int]] = {}
    for place, found in enumerate(surveys):
        for key in found.collectives:
            holders.setdefault(key, []).append(place)
    counts = np.zeros((len(surveys), len(surveys)), np.int64)
    # A process group's ranks hold the same collectives: a few sets of holders stand for all.
    for group, count in Counter(map(tuple, holders.values())).items():
        counts[np.ix_(group, group)] += count
    np.fill_diagonal(counts, 0)
    counts[counts < _FEWEST_MATCHES] = 0
    return counts
