"""Which code of the program the training thread is in, outside of waits and phases: by samples of its stack.

Definitions: docs/definitions.md, "loop_code".
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from iotrace.analysis.intervals import (
    Coverage,
    Intervals,
    Times,
    distinct,
    grouped,
    holding,
    subtract,
    union,
)
from iotrace.analysis.loop.deliveries import Deliveries
from iotrace.analysis.loop.iterations import iterations_of
from iotrace.analysis.rank import RankAnalysis
from iotrace.analysis.results import FEWEST_SAMPLES, MOST_CODE, Account, HotLine, LoopCode
from iotrace.analysis.wait.account import profiler_of
from iotrace.analysis.wait.growth import growth, growth_of_run
from iotrace.analysis.wait.hot_lines import Stack, StackSamples, hot_line, stack_samples
from iotrace.session.names import BACKWARD, FORWARD, FORWARD_NO_GRAD, OPTIMIZER, TURN_ROW
from iotrace.sources.paths import Paths
from iotrace.sources.records import StepCall

_REGULAR, _MOSTLY_REGULAR = 0.2, 0.5  # of the median distance; of the distances
_RUN = 3  # samples in one step: so many are no chance
_CONFINED = 0.8  # of a function's samples lie in few steps
_MOST = 0.5  # of the steps are few; of a function's time is a wait
_UNSAMPLED, _UNSAMPLED_NS = 0.1, 2_000_000_000  # of the loop behind the last sample: sampling has ended early
_FIRST = 0.8  # of a function's samples lie in its first call: it got ready there, as a compiler does


class CodeSamples(msgspec.Struct, frozen=True):
    """Samples of the training thread, in order: when, and which of `names` it was in. -1: in a library alone.

    A name is the function that the loop has called, with its file and first line, or the loop's own line.
    `stacks` has the stack of each, where it is known.
    """

    times: Times
    names: list[str]
    numbers: Times
    stacks: StackSamples | None = None
    ended_early: bool = False

    def within(self, starts: Times, ends: Times) -> CodeSamples:
        """Those of some disjoint intervals."""
        return self._chosen(holding(starts, ends, self.times) >= 0)

    def outside(self, starts: Times, ends: Times) -> CodeSamples:
        """The others."""
        return self._chosen(holding(starts, ends, self.times) < 0)

    def by_library(self, paths: Paths) -> CodeSamples:
        """Those in which the program calls a library that does not train, named by that and the line."""
        if self.stacks is None or not self.stacks.asked:
            return self._chosen(self.numbers < -1)
        names: dict[str, int] = {}
        texts = [each.library_at(paths) for each in self.stacks.stacks]
        known = np.array([names.setdefault(name, len(names)) if name else -1 for name in texts], np.int64)
        numbers = known[self.stacks.numbers]
        return CodeSamples(self.times, [*names], numbers, self.stacks)._chosen(numbers >= 0)

    def of(self, number: int) -> CodeSamples:
        """Those of one name."""
        return self._chosen(self.numbers == number)

    def _chosen(self, which: npt.NDArray[np.bool_]) -> CodeSamples:
        stacks = None if self.stacks is None else self.stacks.chosen(which)
        return CodeSamples(self.times[which], self.names, self.numbers[which], stacks, self.ended_early)

    @property
    def is_least(self) -> bool:
        """Whether samples are missing, or have no place, as they came late and had not asked for the lock."""
        return self.ended_early or (self.stacks is not None and not self.stacks.asked)

    @property
    def held_fraction(self) -> float | None:
        """The share in which a thread had the interpreter's lock; None where that was not recorded."""
        if self.stacks is None or self.is_least or not len(self.times):
            return None
        return float(np.mean([stack.held for stack in self.stacks.each]))

    def most(self) -> tuple[str, float] | None:
        """The name with most samples, and its share of them; None of too few."""
        number = self.most_common()
        return None if number is None else (self.names[number], float((self.numbers == number).mean()))

    def most_common(self) -> int | None:
        """The number of that name."""
        known = self.numbers[self.numbers >= 0]
        return int(np.bincount(known).argmax()) if len(known) >= FEWEST_SAMPLES else None

    def hot(self, paths: Paths) -> HotLine | None:
        """The line that most of those of one name are in; None where none is, or stacks are not known.

        Of a function that the loop has called: no line of the loop.
        """
        each = [] if self.stacks is None or not self.stacks.asked else self.stacks.each
        return hot_line(each, paths, of_called=bool(each) and each[0].own is not None)


def code_samples(analysis: RankAnalysis) -> CodeSamples:
    """Read and name what was sampled."""
    thread, paths = analysis.loop.thread, analysis.session.paths
    samples = stack_samples(analysis.rank.main, -1 if thread is None else thread.tid)
    names: dict[str, int] = {}
    texts = [_name(stack, paths) for stack in samples.stacks]
    known = np.array([names.setdefault(name, len(names)) if name else -1 for name in texts], np.int64)
    return CodeSamples(samples.times, [*names], known[samples.numbers], samples)


def _name(stack: Stack, paths: Paths) -> str:
    """Name the program's function that is called where a stack leaves the path to where it trains.

    Where none is called: the line of the program's innermost function on that path.
    """
    if (called := stack.own) is not None:
        return f"{called.function} ({paths.shown(called.file)}:{called.first_line})"
    if (left := stack.left) is None:
        return ""
    shown = left.at(paths)
    return shown if left.function == "<module>" else f"{left.function} ({shown})"


class DividedLoop(NamedTuple):
    """The code of the loop, and when the steps begin that hold what it calls now and then."""

    code: list[LoopCode]
    recurring: Times


def code_of_loop(
    analysis: RankAnalysis, samples: CodeSamples, events: Sequence[Intervals], account: Account | None = None
) -> DividedLoop:
    """Name what the training thread is in outside of waits, phases, `events` and the making of iterators.

    In a collective it waits for other ranks: that is no code of the program, however it came there. Nor is
    iotrace's own torch.profiler, which starts and ends in a line of the loop. The loop is as long as in the
    account of the run.
    """
    steps = analysis.loop.steps
    if not len(steps) or not len(samples.times):
        return DividedLoop([], np.empty(0, np.int64))
    texts, spans = analysis.rank.main.texts, analysis.phase_spans
    of_models = spans[np.isin(spans["name"], [n for n, text in texts.items() if text == FORWARD_NO_GRAD])]
    numbers = [number for number, text in texts.items() if text in (FORWARD, BACKWARD, OPTIMIZER)]
    spans = spans[np.isin(spans["name"], numbers)]
    thread, made = analysis.loop.thread, iterations_of(analysis).spans
    asked = Deliveries.joined([thread.asked, thread.handed] if thread else [])
    every = [
        (asked["wait_start_ns"], asked["delivered_ns"]),
        (made[:, 0], made[:, 1]),
        _awaiting(analysis),
        analysis.collectives,
        profiler_of(analysis),
        *events,
    ]
    phases = union(spans["start_ns"], spans["start_ns"] + spans["duration_ns"])
    waits = union(*(np.concatenate(each) for each in zip(*every, strict=True)))
    busy = union(*(np.concatenate(each) for each in zip(waits, phases, strict=True)))
    within = samples.outside(*waits).within(*phases).by_library(analysis.session.paths)
    forward = spans["start_ns"][np.isin(spans["name"], [n for n in numbers if texts[n] == FORWARD])]
    before = _before_forward(asked["delivered_ns"], forward, spans["start_ns"])
    if before is not None:  # a model that only predicts is none that a worker may run
        starts = of_models["start_ns"]
        before = subtract(before, union(starts, starts + of_models["duration_ns"]))
    bounds = np.append(steps["start_ns"], steps["end_ns"][-1])
    loop_ns = None if account is None or account.loop_ns <= 0 else account.loop_ns
    begun_ns = _begun(analysis)
    return loop_code(samples, busy, bounds, analysis.session.paths, within, loop_ns, before, begun_ns)


def _before_forward(delivered: Times, forward: Times, phases: Times) -> Intervals | None:
    """From the last delivery before each forward pass to that, where no other phase begins in between.

    What the loop does there prepares its batch, mostly. None without a delivery or a forward pass.
    """
    if not len(delivered) or not len(forward):
        return None
    delivered, forward, phases = np.sort(delivered), np.sort(forward), np.sort(phases)
    last = np.searchsorted(delivered, forward, side="right") - 1
    starts = delivered[last]
    is_first = np.searchsorted(phases, starts) == np.searchsorted(phases, forward)
    chosen = (last >= 0) & is_first & (starts < forward)
    return starts[chosen], forward[chosen]


def _begun(analysis: RankAnalysis) -> Times:
    """When the loop got the first batch of each epoch."""
    if analysis.primary is None:
        return np.empty(0, np.int64)
    own = analysis.primary.deliveries
    return np.sort(own["delivered_ns"][own["index"] == 0])


def _awaiting(analysis: RankAnalysis) -> Intervals:
    """When the loop waited for what its compiled functions had begun to compute: work of the steps before."""
    main = analysis.rank.main
    sites = [each.site for each in main.of_type(StepCall) if each.kind == "awaits"]
    rows = main.rows(TURN_ROW)
    rows = rows[np.isin(rows["site"], np.array(sites, np.int64))]
    starts, ends = (main.clock.times_to_session_ns(rows[field]) for field in ("start_ns", "end_ns"))
    return np.asarray(starts, np.int64), np.asarray(ends, np.int64)


def loop_code(
    samples: CodeSamples,
    busy: Intervals,
    steps_ns: Times,
    paths: Paths | None = None,
    within: CodeSamples | None = None,
    loop_ns: int | None = None,
    before: Intervals | None = None,
    begun_ns: Times | None = None,
) -> DividedLoop:
    """Divide what of the loop nothing else covers by what was sampled then; `steps_ns` bound its steps.

    `busy` is what has another name; `within` are samples of it that have one of their own, with their line.
    `loop_ns` is the loop's length, with what comes behind its known steps; None: theirs. `before` is where
    it has a batch, and no forward pass has begun. Epochs: `begun_ns`.
    Each sample stands for as much time as any other. What was done now and then counts behind the last step,
    too, where the thread goes on with it.
    """
    loop_ns = loop_ns or int(steps_ns[-1] - steps_ns[0])
    samples, sampled_ns = _sampled(samples, steps_ns)
    if within is not None and sampled_ns is not steps_ns:
        within = _least(within)
    steps_ns = sampled_ns
    first_ns, last_ns, steps = int(steps_ns[0]), int(steps_ns[-1]), len(steps_ns) - 1
    free = samples.outside(*busy)
    of_step = np.searchsorted(steps_ns, free.times, side="right") - 1
    inside = (of_step >= 0) & (of_step < steps)
    found: list[tuple[LoopCode, Times]] = []
    if inside.sum() >= FEWEST_SAMPLES:
        loop = np.array([first_ns], np.int64), np.array([last_ns], np.int64)
        each_ns = (last_ns - first_ns - int(Coverage(*busy).within(*loop)[0])) / int(inside.sum())
        found = _divided(free, of_step, steps, each_ns, loop_ns, paths, before=before)
        found = [(_growing(code, free, steps_ns, begun_ns, each_ns), few) for code, few in found]
    if within is not None and len(within.times):
        of_step = np.searchsorted(steps_ns, within.times, side="right") - 1
        every = int(((samples.times >= first_ns) & (samples.times < last_ns)).sum())
        each_ns = (last_ns - first_ns) / max(1, every)
        inner = _divided(within, of_step, steps, each_ns, loop_ns, within=True)
        found += [(_growing(code, within, steps_ns, begun_ns, each_ns), few) for code, few in inner]
    recurring = [in_few for code, in_few in found if code.recurs]
    code = joined(sorted((code for code, _ in found), key=lambda each: -each.seconds))[:MOST_CODE]
    at = distinct(np.concatenate(recurring)) if recurring else np.empty(0, np.int64)
    return DividedLoop(code, steps_ns[:-1][at[at < steps]])


def joined(every: list[LoopCode]) -> list[LoopCode]:
    """Join lines of the loop that do the same in each step, such as two calls of a logger."""
    found: dict[tuple[str, ...], LoopCode] = {}
    for code in every:
        key = code.does or (code.function, str(code.within))
        found[key] = found[key].with_line(code) if key in found else code
    return sorted(found.values(), key=lambda each: -each.seconds)


def _sampled(samples: CodeSamples, steps_ns: Times) -> tuple[CodeSamples, Times]:
    """Leave out the steps behind the last sample, where sampling ended early: it says nothing of them.

    What is found is then the least that it may be.
    """
    last_ns, whole_ns = int(samples.times[-1]) if len(samples.times) else 0, int(steps_ns[-1] - steps_ns[0])
    if int(steps_ns[-1]) - last_ns <= max(_UNSAMPLED_NS, _UNSAMPLED * whole_ns):
        return samples, steps_ns
    until = max(2, int(np.searchsorted(steps_ns, last_ns, side="right")))
    return _least(samples), steps_ns[:until]


def _least(samples: CodeSamples) -> CodeSamples:
    return msgspec.structs.replace(samples, ended_early=True)


def _divided(
    free: CodeSamples,
    of_step: Times,
    steps: int,
    each_ns: float,
    whole_ns: int,
    paths: Paths | None = None,
    within: bool = False,
    before: Intervals | None = None,
) -> list[tuple[LoopCode, Times]]:
    """Sum up samples by name, each of `each_ns`; `of_step` is the step that each is in.

    Beside each are the few steps that hold nearly all of it, if there are.
    """
    inside = (of_step >= 0) & (of_step < steps)
    known = distinct(free.numbers[inside & (free.numbers >= 0)]).tolist()
    few = {number: _few_steps(of_step[inside & (free.numbers == number)], steps) for number in known}
    goes_on = np.isin(free.numbers[of_step >= steps], [number for number in known if len(few[number])])
    counted = inside.copy()
    counted[np.flatnonzero(of_step >= steps)[: int(np.argmin(np.append(goes_on, False)))]] = True
    found = []
    for number in known:
        own = of_step[counted & (free.numbers == number)]
        if len(own) < FEWEST_SAMPLES:
            continue
        in_few = few[number]
        if len(in_few) and own[-1] == steps:
            in_few = np.append(in_few, steps)
        between = np.diff(in_few)
        code = LoopCode(
            function=free.names[number],
            seconds=len(own) * each_ns / 1e9,
            samples=len(own),
            ms_per_step=len(own) * each_ns / 1e6 / steps,
            loop_fraction=min(1.0, len(own) * each_ns / whole_ns),
            count=len(in_few) or None,
            every_steps=_spacing(between),
            hot=None if within or paths is None else free.of(number).hot(paths),
            least=free.is_least,
            held_fraction=free.of(number).held_fraction,
            before_fraction=None
            if before is None
            else float((holding(*before, free.of(number).times) >= 0).mean()),
            within=within,
        )
        found.append((code, in_few))
    return found


def _growing(
    code: LoopCode, samples: CodeSamples, steps_ns: Times, begun_ns: Times | None, each_ns: float
) -> LoopCode:
    """Add how it grows, of what lies in many steps: through each epoch, else through the run."""
    if code.count is not None:
        return code
    begun_ns = np.empty(0, np.int64) if begun_ns is None else begun_ns
    begun = np.searchsorted(steps_ns, begun_ns, side="right") - 1
    of_step = np.searchsorted(steps_ns, samples.times, side="right") - 1
    own = of_step[samples.numbers == samples.names.index(code.function)]
    grows = growth(own, len(steps_ns) - 1, begun, each_ns)
    if grows is not None:
        return msgspec.structs.replace(code, grows_ms=grows)
    grows = growth_of_run(own, np.diff(steps_ns), each_ns)
    return msgspec.structs.replace(code, grows_ms=grows, grows_in_run=grows is not None)


def _spacing(between: Times) -> float | None:
    """Return the steps from one to the next, if half of the distances are about their median; else None."""
    if not len(between):
        return None
    usual = float(np.median(between))
    return usual if (np.abs(between - usual) <= _REGULAR * usual).mean() >= _MOSTLY_REGULAR else None


def _few_steps(own: Times, steps: int) -> Times:
    """The few steps that hold nearly all of a function's samples; none where many do, or chance may be it.

    The first one alone, where it holds nearly all: what the function does later is another matter.
    """
    numbers, _, of = grouped(own)
    counts = np.bincount(of)
    many = counts >= _RUN
    if counts[0] >= max(_RUN, _FIRST * len(own)):
        many[1:] = False
    confined = counts[many].sum() >= _CONFINED * len(own) and many.sum() <= _MOST * steps
    few: Times = numbers[many] if confined else numbers[:0]
    # What most often comes again in the very next step lies in each: some are long, and have its samples.
    return few if len(few) <= 2 or np.median(np.diff(few)) > 1 else few[:0]
