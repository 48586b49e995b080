"""How each input's clock relates to the merged one, CLOCK_REALTIME in ns, and how sure that is.

Clocks of several hosts, from collectives that their ranks ended together: from rank to rank.
"""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path

import numpy as np
import numpy.typing as npt

from iotrace.analysis.device.collectives import APART_NS, RankOfJob, why_not_one_job
from iotrace.merge.input_files import DFTRACER, SESSION, InputFile, MergeError
from iotrace.merge.plan import ClockLink, Input
from iotrace.merge.survey import BY_ORDER, Survey
from iotrace.sources.clocks.session_clock import ClockMap, Fit, Recording, fit, step_text
from iotrace.units import time_span

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
        """The input with the most matches among those left."""
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
        fit = self._fit(index, parent)
        link, above = self._inputs[index].link, self._inputs[parent].link
        step, bound = fit.map, fit.bound_ns
        if not step.drift_ppb and abs(step.shift_ns) <= bound and link.kind == "assumed":
            step, bound = ClockMap(), bound + abs(step.shift_ns)  # the stamps agree already
        path = step.compose(above.map)
        why = self._why(fit, index, parent, moved=step != ClockMap())
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

    def _why(self, fit: Fit, index: int, parent: int, moved: bool) -> str:
        ours, theirs = self._inputs[index].survey.collectives, self._inputs[parent].survey.collectives
        by_order = any(key[-1].startswith(BY_ORDER) for key in ours if key in theirs)
        text = f"{fit.matches} collectives matched{' by their order' if by_order else ''}"
        if self._depth[parent] or self._inputs[parent].link.bound_ns is None:
            text += f" with {self._inputs[parent].file.label}"
        if fit.map.drift_ppb:
            text += f", a drift of {abs(fit.map.drift_ppb) / 1e3:.3g} ppm undone"
        elif not moved:
            text += "; no offset seen"
        if fit.refused_ppm is not None:
            text += f"; they part by {abs(fit.refused_ppm):.3g} ppm, more than clocks drift"
        ends = [end for _, end in ours.values()]
        if fit.beyond_ns * 2 > max(ends) - min(ends):
            text += f"; {fit.beyond_ns / 1e9:.3g} s of the trace are beyond them"
        return text


def _matches(inputs: list[Input]) -> npt.NDArray[np.int64]:
    """How many collectives each two inputs have in common; 0 for fewer than three."""
    holders: dict[tuple[str, ...], list[int]] = {}
    for index, item in enumerate(inputs):
        for key in item.survey.collectives:
            holders.setdefault(key, []).append(index)
    counts = np.zeros((len(inputs), len(inputs)), np.int64)
    # A process group's ranks hold the same collectives: a few sets of holders cover all.
    for group, count in Counter(map(tuple, holders.values())).items():
        counts[np.ix_(group, group)] += count
    np.fill_diagonal(counts, 0)
    counts[counts < _FEWEST_MATCHES] = 0
    return counts


# dftracer and Kineto stamp with the same clock of a host: they were measured to agree to this.
_SAME_HOST_BOUND_NS = 6_000
_DFTRACER_BOUND_NS = 1_000  # it writes whole us
# Within it, the same pid is taken for the same process: a log may have no calls while a trace is recorded.
_SAME_RUN_NS = 3_600 * 10**9
_DAY_NS = 86_400 * 10**9


def link(inputs: list[Input], align_start: bool) -> None:
    """Give each input its link.

    Raises:
        MergeError: An input has none, and nothing was asked for instead.
    """
    for index, item in enumerate(inputs):
        item.link = _first(item.file, item.survey)
        item.link.island = index
    _other_hosts([item for item in inputs if item.survey.host])
    _same_process(inputs)
    why = why_not_one_job([_of_job(item) for item in inputs if item.is_trace and item.survey.by_kineto])
    if why is None:
        relate(inputs)
        why = _moved_too_far(inputs)
    if why is not None:
        if not align_start:
            raise MergeError(
                f"these are not traces of one job: {why}",
                "merge what ran together; --align start puts their starts together all the same",
            )
        for index, item in enumerate(inputs):
            if item.is_trace:
                item.link = ClockLink("none", why="of another job than the others", island=index)
    unrelated = [item for item in inputs if item.link.kind == "none"]
    alone = len({item.link.island for item in inputs}) == 1
    if unrelated and not alone and not align_start:
        raise MergeError(
            f"{unrelated[0].file.label} counts its time from the start of some machine: "
            "nothing relates it to the others",
            "--align start puts the starts of such files together",
        )
    if align_start:
        _align(inputs)
    elif alone and unrelated and len(inputs) == 1:
        inputs[0].link = ClockLink("none", why="its own clock, since the start of some machine")
    _begin_at_zero(inputs)


def _of_job(item: Input) -> RankOfJob:
    survey = item.survey
    ends = (survey.first_ns, survey.last_ns) if survey.absolute else (None, None)
    process = survey.pids[0] if survey.pids else None
    return RankOfJob(item.file.label, survey.rank, survey.world_size, process, *ends)


def _moved_too_far(inputs: list[Input]) -> str | None:
    """Say which trace its collectives would move further than clocks of hosts differ; None without one."""
    for item in inputs:
        shift_ns = abs(item.link.map.shift_ns)
        if item.is_trace and item.survey.absolute and item.link.kind == "inferred" and shift_ns > APART_NS:
            return f"{item.file.label} would have to be moved by {time_span(shift_ns / 1e9)}"
    return None


def _first(file: InputFile, survey: Survey) -> ClockLink:
    if file.kind == SESSION:
        bound = survey.bound_ns or 0
        why, domain = "its session recorded how the host's clocks relate", survey.clock_domain or survey.host
        return ClockLink("exact", bound_ns=bound, why=why, domain=domain, own_bound_ns=bound)
    if file.kind == DFTRACER:
        why = "CLOCK_REALTIME of its host, in whole us"
        return ClockLink("exact", bound_ns=_DFTRACER_BOUND_NS, why=why, own_bound_ns=_DFTRACER_BOUND_NS)
    if survey.absolute and survey.host:
        return ClockLink("assumed", why=f"time since 1970 on {survey.host}, by no clock that was measured")
    if survey.absolute:
        host = f"of {survey.named_host}, where no other clock" if survey.named_host else ""
        host = f"{host} was measured" if host else "of a host that the file does not name"
        return ClockLink("assumed", why=f"time since 1970 {host}")
    return ClockLink("none", why="it does not say when its time begins")


def _other_hosts(inputs: list[Input]) -> None:
    """Only assume the clocks of other hosts than the first, but for those that its session relates to it."""
    for item in inputs:
        host_link, link, first = item.survey.host_link, item.link, inputs[0]
        if host_link is not None and item.file.path == first.file.path:
            link.kind, link.why = host_link.kind, f"the clock of {item.survey.host}: {host_link.why}"
            link.bound_ns = link.own_bound_ns = host_link.bound_ns + link.own_bound_ns
        elif link.domain != first.link.domain and (
            first.survey.host_link is None or item.file.path != first.file.path
        ):
            link.kind, link.bound_ns = "assumed", None
            link.why = f"the clock of {item.survey.host}, next to that of {first.survey.host}"


def _same_process(inputs: list[Input]) -> None:
    """Share a clock with the session or log that knows the process, too; measured of torch.profiler alone."""
    recorded = {path: item for item in inputs for path in item.survey.recordings}
    known: dict[int, list[Input]] = {}
    for item in inputs:
        for pid in item.survey.pids if not item.is_trace else ():
            known.setdefault(pid, []).append(item)
    claiming = [item for item in inputs if item.is_trace and item.link.kind == "assumed" and item.survey.pids]
    ranks: dict[int, set[int | None]] = {}  # of the traces that claim a process: several are several hosts'
    for item in claiming:
        ranks.setdefault(item.survey.pids[0], set()).add(item.survey.rank)
    for item in claiming:
        pid, link = item.survey.pids[0], item.link
        other = recorded.get(item.file.path)
        if other is None:
            others = [each for each in known.get(pid, ()) if _may_be_same_process(item.survey, each.survey)]
            if not others or len(ranks[pid]) != 1:
                continue
            other = others[-1]
        own = _map(item.survey, other.survey, item.file.path)
        if own is None:
            when = "while it was recorded, or shortly before or after"
            link.why += f"; {other.file.label}'s clock was set {when}: where it lies is not known"
            continue
        link.map = own
        link.domain, link.own_bound_ns = other.link.domain, _SAME_HOST_BOUND_NS
        link.why = f"process {pid} is also in {other.file.label}"
        if other.link.kind != "assumed":
            link.kind = other.link.kind
            link.bound_ns = _SAME_HOST_BOUND_NS + (other.link.bound_ns or 0 if link.kind != "exact" else 0)
        else:
            link.why += f"; {other.link.why}"


def _begin_at_zero(inputs: list[Input]) -> None:
    """Move times below 0, of clocks that mean nothing by themselves, by days: Perfetto drops them."""
    earliest = min((item.first_ns for item in inputs if item.first_ns is not None), default=0)
    if earliest < 0 and all(item.link.kind == "none" for item in inputs):
        later = ClockMap(-(earliest // _DAY_NS) * _DAY_NS)
        for item in inputs:
            item.link.map = item.link.map.compose(later)
            item.link.why += "; moved by whole days, as it has times below 0"


def _gap_ns(one: Survey, two: Survey) -> float:
    """The time between what two inputs recorded; negative where they overlap."""
    if one.first_ns is None or two.first_ns is None:
        return math.inf
    ends = one.last_ns or one.first_ns, two.last_ns or two.first_ns
    return max(one.first_ns, two.first_ns) - min(ends)


def _may_be_same_process(survey: Survey, other: Survey) -> bool:
    """Whether a trace can be of the process that another input recorded under its pid."""
    near = survey.by_kineto and _gap_ns(survey, other) < _SAME_RUN_NS
    return near and (other.rank is None or survey.rank in (None, other.rank))


def _map(survey: Survey, other: Survey, path: Path) -> ClockMap | None:
    """What brings the stamps of a trace of torch.profiler to the time of its session."""
    if other.clock is None or survey.first_ns is None or survey.last_ns is None:
        return ClockMap()
    recording = other.recordings.get(path) or Recording()
    return other.clock.map_if_single_segment(survey.first_ns, survey.last_ns, recording)


def clocks_set(inputs: list[Input]) -> list[str]:
    """Describe each time that a host's clock was set during a session."""
    hosts = {
        step_text(item.survey.host, step.by_ns, item.survey.clock.at_ns(step)): None
        for item in inputs
        if item.survey.clock is not None
        for step in item.survey.clock.steps
    }
    return list(hosts)


def _align(inputs: list[Input]) -> None:
    """Put the first event of each group that nothing relates where the first of the others is."""
    firsts: dict[tuple[bool, int], int] = {}
    for item in inputs:
        if item.first_ns is not None:
            key = item.link.kind == "none", item.link.island
            firsts[key] = min(firsts.get(key, item.first_ns), item.first_ns)
    if not firsts:
        return
    target = min([first for (unrelated, _), first in firsts.items() if not unrelated] or firsts.values())
    for item in inputs:
        if item.link.kind == "none" and item.first_ns is not None:
            item.link.map = item.link.map.compose(ClockMap(target - firsts[True, item.link.island]))
            item.link.bound_ns, item.link.why = None, "starts put together (--align start)"
