"""Clocks of several hosts, from collectives that their ranks ended together: from rank to rank."""

from __future__ import annotations

from collections import Counter

import numpy as np
import numpy.typing as npt

from iotrace.merge.input import Input
from iotrace.merge.survey import BY_ORDER
from iotrace.sources.clocks.clock_map import ClockMap
from iotrace.sources.clocks.drift import Fit, fit

_FEWEST_MATCHES = 3
_KNOWN = ("exact", "measured", "inferred")  # before any collective is looked at: by a session


def relate(inputs: list[Input]) -> None:
    """Attach inputs to each other by the strongest links: a spanning tree, from the clocks that are known.

    Where there is none, the rank with the most matches is the reference. Ranks that no collective joins to
    the reference are related to one of their own: their offset to the rest stays assumed, or unknown.
    """
    for item in inputs:
        if item.survey.rank is None:  # the third collective of one job is not that of another
            kept = item.survey.collectives.items()
            item.survey.collectives = {key: span for key, span in kept if not key[-1].startswith(BY_ORDER)}
    if not any(item.survey.collectives for item in inputs):
        return
    only_each_other = all(item.link.kind == "none" for item in inputs)
    if only_each_other:  # the reference's own time is what they are merged in
        for item in inputs:
            item.link.kind = "assumed"
    _Tree(inputs).grow()
    if only_each_other and any(item.link.kind == "assumed" for item in inputs):
        for item in inputs:
            item.link.kind, item.link.bound_ns = "none", None


class _Tree:
    """Grows from rank to rank; inputs that share a clock come with the first of them."""

    def __init__(self, inputs: list[Input]) -> None:
        self._inputs = inputs
        self._matches = _matches(inputs)
        self._waiting = set(range(len(inputs)))
        self._depth = [0] * len(inputs)
        # Of each input that waits, the strongest link to the tree: its strength, and to which.
        self._best: dict[int, tuple[tuple[int, int, int], int]] = {}

    def grow(self) -> None:
        """Relate all that can be."""
        if not self._matches.any():
            return
        exact = [index for index, item in enumerate(self._inputs) if item.link.kind in _KNOWN]
        for index in exact:
            self._inputs[index].link.island = exact[0]
            self._add(index)
        self._attach_all()
        while (root := self._next_root()) is not None:
            self._begin(root, is_reference=len(self._waiting) == len(self._inputs))
            self._attach_all()

    def _attach_all(self) -> None:
        while self._best:
            index = max(self._best, key=lambda index: (self._best[index][0], -index))
            self._attach(index, self._best[index][1])

    def _next_root(self) -> int | None:
        """The input with the most matches of those that are left."""
        left = [index for index in sorted(self._waiting) if self._matches[index].any()]
        kinds = ("none", "assumed")
        return max(
            left,
            key=lambda index: (kinds.index(self._inputs[index].link.kind), int(self._matches[index].sum())),
            default=None,
        )

    def _begin(self, root: int, is_reference: bool) -> None:
        """A tree from `root`; only the first one gives the merged clock, where no clock is exact."""
        for index in self._sharing(root):
            link = self._inputs[index].link
            link.island = root
            if is_reference and link.kind == "assumed":
                link.kind, link.bound_ns = "inferred", link.own_bound_ns
                link.why = "the other clocks follow from its collectives"
            self._add(index)

    def _attach(self, index: int, parent: int) -> None:
        found = self._fit(index, parent)
        link, above = self._inputs[index].link, self._inputs[parent].link
        step, bound = found.map, found.bound_ns
        if not step.drift_ppb and abs(step.shift_ns) <= bound and link.kind == "assumed":
            step, bound = ClockMap(), bound + abs(step.shift_ns)  # the stamps agree already
        path = step.compose(above.map)
        why = self._why(found, index, parent, moved=step != ClockMap())
        for other in self._sharing(index):
            item = self._inputs[other].link
            first_ns = self._inputs[other].survey.first_ns
            item.map = path if not path.drift_ppb else path.moved_to(first_ns or path.at_ns)
            item.island, item.why = above.island, why
            own = 0 if other == index else item.own_bound_ns + link.own_bound_ns
            if above.bound_ns is None:
                item.kind, item.bound_ns = above.kind, None
                item.why += f", whose own clock is {above.kind}"
            else:
                item.kind, item.bound_ns = "inferred", above.bound_ns + bound + own
            self._add(other, self._depth[parent] + 1)

    def _add(self, index: int, depth: int = 0) -> None:
        self._waiting.discard(index)
        self._best.pop(index, None)
        self._depth[index] = depth
        for other in np.flatnonzero(self._matches[index]).tolist():
            if other in self._waiting:
                count = int(self._matches[index, other])
                # Links within a factor of two are alike: the shorter path has the smaller bound.
                link = (count.bit_length(), -depth, count), index
                self._best[other] = max(self._best.get(other, link), link, key=lambda item: item[0])

    def _sharing(self, index: int) -> list[int]:
        domain = self._inputs[index].link.domain
        waiting = sorted(self._waiting - {index}) if domain else []
        return [index, *(other for other in waiting if self._inputs[other].link.domain == domain)]

    def _fit(self, index: int, parent: int) -> Fit:
        survey = self._inputs[index].survey
        ours, theirs = survey.collectives, self._inputs[parent].survey.collectives
        keys = [key for key in ours if key in theirs]
        other = np.array([ours[key][1] for key in keys], np.int64)
        reference = np.array([theirs[key][1] for key in keys], np.int64)
        ends = [end for _, end in ours.values()]
        firsts = [time for time in (survey.first_ns, *ends) if time is not None]
        lasts = [time for time in (survey.last_ns, *ends) if time is not None]
        return fit(reference, other, min(firsts), max(lasts))

    def _why(self, found: Fit, index: int, parent: int, moved: bool) -> str:
        ours, theirs = self._inputs[index].survey.collectives, self._inputs[parent].survey.collectives
        by_order = any(key[-1].startswith(BY_ORDER) for key in ours if key in theirs)
        text = f"{found.matches} collectives matched{' by their order' if by_order else ''}"
        if self._depth[parent] or self._inputs[parent].link.bound_ns is None:
            text += f" with {self._inputs[parent].file.label}"
        if found.map.drift_ppb:
            text += f", a drift of {abs(found.map.drift_ppb) / 1e3:.3g} ppm undone"
        elif not moved:
            text += "; no offset seen"
        if found.refused_ppm is not None:
            text += f"; they part by {abs(found.refused_ppm):.3g} ppm, more than clocks drift"
        ends = [end for _, end in ours.values()]
        if found.beyond_ns * 2 > max(ends) - min(ends):
            text += f"; {found.beyond_ns / 1e9:.3g} s of the trace lie beyond them"
        return text


def _matches(inputs: list[Input]) -> npt.NDArray[np.int64]:
    """How many collectives each two inputs have in common; 0 for fewer than three."""
    holders: dict[tuple[str, ...], list[int]] = {}
    for index, item in enumerate(inputs):
        for key in item.survey.collectives:
            holders.setdefault(key, []).append(index)
    counts = np.zeros((len(inputs), len(inputs)), np.int64)
    # A process group's ranks hold the same collectives: a few sets of holders stand for all.
    for group, count in Counter(map(tuple, holders.values())).items():
        counts[np.ix_(group, group)] += count
    np.fill_diagonal(counts, 0)
    counts[counts < _FEWEST_MATCHES] = 0
    return counts
