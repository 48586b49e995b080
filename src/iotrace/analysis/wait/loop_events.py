"""What the loop does now and then beside its steps: evaluations, checkpoints, writing, garbage, compiling.

Definitions: docs/definitions.md, "loop_events".
"""

from __future__ import annotations

import posixpath
from collections import defaultdict
from collections.abc import Sequence

import msgspec
import numpy as np

from iotrace.analysis.intervals import (
    Coverage,
    Intervals,
    Times,
    distinct,
    holding,
    intersect,
    length,
    subtract,
    union,
)
from iotrace.analysis.loop.deliveries import Deliveries, LoaderRun
from iotrace.analysis.loop.iterations import ends_with_batches, evaluations_of, iterations_of
from iotrace.analysis.loop.step_table import StepTable
from iotrace.analysis.rank import RankAnalysis
from iotrace.analysis.results import FIRST_START, LEAST_COLLECTION, Account, HotLine, LoopCode, LoopEvents
from iotrace.analysis.wait.checkpoints import Saves, saves_of
from iotrace.analysis.wait.collector import collector_of
from iotrace.analysis.wait.compiling import COMPILERS, compiled_in, compiler_of, late_steps, pauses_of
from iotrace.analysis.wait.loop_code import CodeSamples
from iotrace.analysis.wait.written import written_by
from iotrace.session import names

EVALUATION, CHECKPOINT, WRITING = "evaluation", "checkpoint", "writing"
COLLECTION, COMPILATION = "collection", "compilation"
_RECURS = 2  # steps
_LEAST = 0.001  # of the loop: less is a line of a log
_MOSTLY = 0.5  # of the time
_FEWEST = 3  # steps that sync, and four times as many others, are compared
_SAMPLED_NS = 5_000_000  # behind a collection: a stack that is sampled then is the one that it lay in
_NEARLY = 0.8  # of these samples
_Found = tuple[Intervals, list[str], int | None]


class Events(msgspec.Struct, frozen=True):
    """What the training thread did now and then, one kind of it: sorted, disjoint intervals in ns.

    `steps` has the number, among the loop's, of the step that each begins in; behind the last: their count.
    `over_ns` is what each step in which the loop syncs takes longer than others, beyond the intervals.
    """

    kind: str
    starts: Times
    ends: Times
    steps: Times
    files: Sequence[str] = ()
    bytes: int | None = None
    over_ns: int = 0
    reopened: bool = False  # most of it files of one kind are open that are closed again in the same step
    over_steps: Times = np.empty(0, np.int64)  # where those steps begin, in ns
    calls_ns: int | None = None  # of writing, in calls on files
    writing_ns: int | None = None  # of evaluations: how long they write to `files`

    @property
    def count(self) -> int:
        """In how many steps."""
        return len(distinct(self.steps))

    @property
    def recurs(self) -> bool:
        """Whether it is one of several, and none that happened once."""
        return self.count >= _RECURS

    @property
    def seen_ns(self) -> int:
        """The sum of the intervals."""
        return int((self.ends - self.starts).sum())

    @property
    def total_ns(self) -> int:
        """What it takes of the loop: the intervals, and what the steps take longer for it."""
        return self.seen_ns + self.over_ns * len(self.over_steps)

    def in_steps_ns(self, steps: StepTable) -> Times:
        """What of each step it takes."""
        held = np.isin(steps["start_ns"], self.over_steps)
        return (
            Coverage(self.starts, self.ends).within(steps["start_ns"], steps["end_ns"]) + self.over_ns * held
        )


def loop_events(analysis: RankAnalysis) -> list[Events]:
    """Find what the loop does now and then; each instant belongs to one kind. Empty without a step."""
    steps = analysis.loop.steps
    if not len(steps):
        return []
    saves = saves_of(analysis)
    saving = (saves.starts, saves.ends)
    evaluating = subtract(evaluations_of(analysis), saving)
    end_ns = _end_ns(analysis, evaluating)
    posix = analysis.session.posix_on
    found: list[tuple[str, _Found]] = [
        (EVALUATION, (evaluating, [], None)),
        (CHECKPOINT, (saving, [], None)),
    ]
    events = [_events(analysis, kind, each, end_ns) for kind, each in found]
    events[1] = _with_saved(events[1], saves, posix)
    busy = [(each.starts, each.ends) for each in events]
    events[0] = _with_files(analysis, events[0])
    events.append(_writing(analysis, busy, end_ns))
    events.append(_paused(analysis, COMPILATION, [*COMPILERS], busy, end_ns))
    busy.append((events[-1].starts, events[-1].ends))
    events.append(_paused(analysis, COLLECTION, ["collection"], busy, end_ns))
    loop_ns = int(steps["end_ns"][-1] - steps["start_ns"][0])
    least = dict.fromkeys((COLLECTION, COMPILATION), LEAST_COLLECTION)
    return [each for each in events if each.total_ns >= max(1, least.get(each.kind, _LEAST) * loop_ns)]


def summed(
    analysis: RankAnalysis,
    events: Sequence[Events],
    account: Account | None = None,
    samples: CodeSamples | None = None,
) -> list[LoopEvents]:
    """Sum up each kind of events, the longest first; the loop is as long as in the account of the run.

    `samples` name what an evaluation without a loader is in.
    """
    if not events:
        return []
    steps = analysis.loop.steps
    over_ns = [int(each.ends[-1]) for each in events if len(each.ends)]
    loop_ns = max(int(steps["end_ns"][-1]), *over_ns) - int(steps["start_ns"][0])
    if account is not None and account.loop_ns > 0:
        loop_ns = account.loop_ns
    rows = []
    for each in events:
        first_ns = None
        if each.kind == EVALUATION:  # the first start of workers is no part of the loop, as in the account
            started = iterations_of(analysis).when(FIRST_START)
            first_ns = length(intersect((each.starts, each.ends), started))
            starts, ends = subtract((each.starts, each.ends), started)
            each = msgspec.structs.replace(each, starts=starts, ends=ends)
        between = np.diff(distinct(each.steps))
        row = LoopEvents(
            kind=each.kind,
            count=each.count,
            seconds=each.total_ns / 1e9,
            loop_seconds=loop_ns / 1e9,
            loop_fraction=each.total_ns / loop_ns,
            every_steps=float(np.median(between)) if len(between) else None,
            seen_seconds=each.seen_ns / 1e9,
            file=_common(each.files),
            files=len(each.files) or None,
            bytes=each.bytes,
            reopened=each.reopened,
            call_seconds=None if each.calls_ns is None else each.calls_ns / 1e9,
            writing_seconds=None if each.writing_ns is None else each.writing_ns / 1e9,
            first_start_seconds=None if first_ns is None else first_ns / 1e9,
        )
        if each.kind == COLLECTION:
            function = None if samples is None else _collects_in(each, samples)
            row = msgspec.structs.replace(row, collector=collector_of(analysis), function=function)
        elif each.kind == COMPILATION:
            during = each.starts, each.ends
            row = msgspec.structs.replace(
                row,
                function=compiled_in(analysis, during) or _mostly_in(each, samples),
                compiler=compiler_of(analysis, during),
                late=late_steps(each.steps, len(steps)),
            )
        elif each.kind in (CHECKPOINT, WRITING):
            row = msgspec.structs.replace(row, function=_mostly_in(each, samples))
        rows.append(_with_waits(analysis, each, row, samples) if each.kind == EVALUATION else row)
    return sorted(rows, key=lambda row: -row.seconds)


def with_events(code: Sequence[LoopCode], events: Sequence[LoopEvents]) -> list[LoopCode]:
    """Add to each function what of the loop's writing, collecting and compiling is mostly in it."""
    inside: defaultdict[str, float] = defaultdict(float)
    for each in events:
        if each.kind in (WRITING, COLLECTION, COMPILATION) and each.function is not None:
            inside[each.function] += each.seconds
    return [msgspec.structs.replace(each, inside_seconds=inside[each.function]) for each in code]


def _events(analysis: RankAnalysis, kind: str, found: _Found, end_ns: int) -> Events:
    """Take what lies in the loop; what follows its last known step only where it is one of several."""
    (starts, ends), files, size = found
    steps = analysis.loop.steps
    last_ns = int(steps["end_ns"][-1])
    numbers = np.searchsorted(steps["start_ns"], starts, side="right") - 1
    numbers = np.where(starts >= last_ns, len(steps), numbers)
    inside = (numbers >= 0) & (starts < end_ns)
    if not (inside & (numbers < len(steps))).any():
        inside &= False
    return Events(kind, starts[inside], ends[inside], numbers[inside], files, size)


def _with_saved(events: Events, saves: Saves, posix: bool) -> Events:
    """Add the files, and what was written to them, of the saves that lie in the loop."""
    if not len(events.starts):
        return events
    files, written = saves.within(int(events.starts[0]), int(events.ends[-1]))
    return msgspec.structs.replace(events, files=files, bytes=written if posix else None)


def _end_ns(analysis: RankAnalysis, evaluating: Intervals) -> int:
    """When the loop ended: with its last known step, its last pass, or an evaluation behind that."""
    passes = [] if analysis.primary is None else analysis.primary.passes.values()
    exhausted = [each.exhausted_ns[1] for each in passes if each.exhausted_ns is not None]
    known: list[int] = [int(analysis.loop.steps["end_ns"][-1]), *exhausted, *evaluating[1][-1:].tolist()]
    return max(known) + 1


def _evaluating(analysis: RankAnalysis) -> list[LoaderRun]:
    starts, ends = analysis.loop.steps.left_out.T
    return [
        loader
        for loader in analysis.loaders
        if (holding(starts, ends, np.array([each.asked_ns for each in loader.passes.values()])) >= 0).any()
    ]


def _with_waits(
    analysis: RankAnalysis, events: Events, row: LoopEvents, samples: CodeSamples | None
) -> LoopEvents:
    """Add what of evaluations was waiting for data, and what was starting iterators and workers.

    Of those without a loader, what code of the program they are in for most of their time.
    """
    loaders = _evaluating(analysis)
    during = events.starts, events.ends
    if not loaders:
        hot = _code_of(analysis, samples, during)
        return msgspec.structs.replace(row, function=_mostly_in(events, samples), hot=hot)
    own = Deliveries.joined([loader.deliveries for loader in loaders])
    own = own[holding(events.starts, events.ends + 1, own["delivered_ns"]) >= 0]
    passes = [each for loader in loaders for each in loader.passes.values()]
    within = holding(events.starts, events.ends, np.array([each.asked_ns for each in passes])) >= 0
    making_ns = sum(
        each.asked_ns - each.start_ns for each, inside in zip(passes, within, strict=True) if inside
    )
    waits = union(own["wait_start_ns"], own["delivered_ns"])
    firsts = own[own["index"] == 0]
    first_waits = union(firsts["wait_start_ns"], firsts["delivered_ns"])
    busiest = max(loaders, key=lambda loader: len(loader.deliveries)).description
    return msgspec.structs.replace(
        row,
        wait_seconds=length(intersect(waits, during)) / 1e9,
        start_seconds=(making_ns + length(intersect(first_waits, during))) / 1e9,
        last_in_part=events.recurs
        and bool(events.steps[-1] >= len(analysis.loop.steps))
        and ends_with_batches(during, np.sort([each.end_ns for each in passes])),
        workers=busiest.workers,
        persistent_workers=busiest.persistent_workers,
        hot=_code_of(analysis, samples, subtract(during, waits)),
    )


def _mostly_in(events: Events, samples: CodeSamples | None) -> str | None:
    """Name the code of the program that they are in for most of their time."""
    most = None if samples is None else samples.within(events.starts, events.ends).most()
    return most[0] if most is not None and most[1] >= _MOSTLY else None


def _code_of(analysis: RankAnalysis, samples: CodeSamples | None, during: Intervals) -> HotLine | None:
    """The line that most of this time is in outside of models; None where none is, or models are most."""
    if samples is None:
        return None
    names_of = [number for number, text in analysis.rank.main.texts.items() if text == names.FORWARD_NO_GRAD]
    spans = analysis.phase_spans
    spans = spans[np.isin(spans["name"], names_of)]
    whole = samples.within(*during)
    own = whole.outside(*union(spans["start_ns"], spans["start_ns"] + spans["duration_ns"]))
    found = own.hot(analysis.session.paths)
    if found is None or found.fraction * found.samples < _MOSTLY * len(whole.times):
        return None
    return found


def _with_files(analysis: RankAnalysis, events: Events) -> Events:
    """Add what evaluations write: that is a part of them."""
    if not len(events.starts) or not analysis.session.posix_on:
        return events
    found = written_by(analysis, lambda own: intersect(own, (events.starts, events.ends)))
    return msgspec.structs.replace(events, files=found.files, bytes=found.size, writing_ns=length(found.own))


def _writing(analysis: RankAnalysis, busy: Sequence[Intervals], end_ns: int) -> Events:
    """Find when the loop wrote and synced outside of waits and of what is `busy`."""
    awaited = analysis.loop.steps.awaited
    others = [(awaited["wait_start_ns"], awaited["delivered_ns"]), *busy]
    taken = union(*(np.concatenate(each) for each in zip(*others, strict=True)))
    found = written_by(analysis, lambda own: subtract(own, taken))
    events = _events(analysis, WRITING, (found.own, found.files, found.size), end_ns)
    inside = holding(events.starts, events.ends, found.syncs.start_ns) >= 0
    over_ns, held = _longer(analysis, found.syncs.start_ns[inside], [*busy, found.own])
    calls_ns = length(intersect(found.every, (events.starts, events.ends)))
    return msgspec.structs.replace(
        events, over_ns=over_ns, over_steps=held, reopened=found.reopened, calls_ns=calls_ns
    )


def _paused(
    analysis: RankAnalysis, kind: str, pauses: Sequence[str], busy: Sequence[Intervals], end_ns: int
) -> Events:
    """Find when garbage was collected, or functions compiled, outside of waits and of what is `busy`."""
    own, awaited = pauses_of(analysis, *pauses), analysis.loop.steps.awaited
    for each in (union(awaited["wait_start_ns"], awaited["delivered_ns"]), *busy):
        own = subtract(own, each)
    return _events(analysis, kind, (own, [], None), end_ns)


def _collects_in(events: Events, samples: CodeSamples) -> str | None:
    """Name the code that most collections lie in: a stack is sampled as soon as one is over."""
    ends = np.append(events.starts[1:], events.ends[-1:] + _SAMPLED_NS)
    behind = samples.within(events.starts, np.minimum(events.ends + _SAMPLED_NS, ends))
    most = behind.most()
    return most[0] if most is not None and most[1] >= _NEARLY else None


def _longer(analysis: RankAnalysis, times: Times, known: Sequence[Intervals]) -> tuple[int, Times]:
    """By how much a step that holds one of `times` is longer than others, beyond waits and what is `known`.

    With the begins of the loop's steps that hold one. Nothing unless nearly each of them is longer than
    nearly each of the others.
    """
    steps, kept = analysis.loop.steps, analysis.kept
    starts = steps["start_ns"]
    holds = distinct(np.searchsorted(starts, times, side="right") - 1)
    begins: Times = starts[holds[holds >= 0]]
    marked = np.isin(kept["start_ns"], begins)
    nothing = 0, begins[:0]
    if marked.sum() < _FEWEST or marked.sum() * 4 > (~marked).sum():
        return nothing
    awaited = steps.awaited
    every = [*known, union(awaited["wait_start_ns"], awaited["delivered_ns"])]
    covered = union(*(np.concatenate(each) for each in zip(*every, strict=True)))
    rest = kept["end_ns"] - kept["start_ns"] - Coverage(*covered).within(kept["start_ns"], kept["end_ns"])
    if np.percentile(rest[marked], 10) <= np.percentile(rest[~marked], 95):
        return nothing
    return int(np.median(rest[marked]) - np.median(rest[~marked])), begins


def _common(files: Sequence[str]) -> str | None:
    """The file; of several in one directory what their names share."""
    if len({posixpath.dirname(each) for each in files}) != 1:
        return None
    first, *others = files
    if not others:
        return first
    begin = posixpath.commonprefix([*files])
    endings = {posixpath.splitext(each)[1] for each in files}
    return f"{begin}*{endings.pop() if len(endings) == 1 else ''}"
