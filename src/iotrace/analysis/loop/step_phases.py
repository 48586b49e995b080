"""Forward, backward and optimizer of the measured steps, on the training thread.

Definitions: docs/definitions.md, "phases_ms".

Lightning's phases in time: sanity check, training, validation, test, predict.
"""

from __future__ import annotations

import msgspec
import numpy as np

from iotrace.analysis.intervals import Coverage, Intervals, Times, holding, subtract, union
from iotrace.analysis.loop.deliveries import PHASES
from iotrace.analysis.loop.step_table import StepTable
from iotrace.analysis.rank import RankAnalysis
from iotrace.analysis.results import PhasesMs
from iotrace.analysis.table import NONE
from iotrace.session import names
from iotrace.session.names import BACKWARD, CLOSURE, FORWARD, FORWARD_NO_GRAD, KIND_TRAINER, OPTIMIZER
from iotrace.sources.columns import Columns
from iotrace.sources.records import IteratorStart, TrainerRun
from iotrace.sources.session import Rank

_FEW, _SHARE = 2, 0.05  # of the steps: in so many a backward pass may come without a forward that is seen
_NO_STEP = "no step is measured"
_NO_PHASE = "no call of a module, backward pass or optimizer's step was seen on the training thread"
_NO_WAIT = "the data wait is not known"
_NO_EXPOSED = "how long the accelerator stood idle in the data wait is not known"
_TRAINING_STEP = ".training_step"  # how the strategy's range of it ends
_NEVER = {
    FORWARD: "backward passes came without a call of a module that could be seen",
    BACKWARD: "torch.autograd.backward was not called in a measured step",
    OPTIMIZER: "no optimizer of torch.optim made a step in a measured step",
}


class StepPhases(msgspec.Struct, frozen=True):
    """Means per measured step; where the times are from; why one is not known: empty where all are.

    `by_step_ns`: of the phases that are known in all measured steps, the time in each.
    """

    means_ms: PhasesMs
    source: str | None = None
    unknown_why: str | None = None
    by_step_ns: dict[str, Times] = {}


def step_phases(analysis: RankAnalysis, wait_ms: float | None) -> StepPhases:
    """Sum up the phases of the measured steps, whose mean data wait is `wait_ms`.

    Where events of the device timed all phases of some steps, the figures are theirs, and the wait is the
    exposed one.
    """
    kept = analysis.kept
    spans = analysis.phase_spans
    if not len(kept) or not len(spans):
        return StepPhases(PhasesMs(), None, _NO_PHASE if len(kept) else _NO_STEP)
    trains = analysis.loop.thread is not None and len(analysis.loop.thread.rounds.times_ns) > 0
    intervals = _exclusive(analysis, spans, trains)
    windows = kept.pieces
    found = {name: _by_step(own, windows, kept) for name, own in intervals.items()}
    seen = {name: bool(own.any()) for name, own in found.items()}
    why = next((_NEVER[name] for name, is_seen in seen.items() if trains and not is_seen), None)
    unseen = int(((found[BACKWARD] > 0) & (found[FORWARD] == 0)).sum())
    if unseen > max(_FEW, _SHARE * int((found[BACKWARD] > 0).sum())):
        seen[FORWARD], why = False, _NEVER[FORWARD]
    on_device = _on_device(analysis, spans) if trains else {}
    if on_device:
        kept = kept[np.array([*on_device])]
        found = {name: np.array([own[name] for own in on_device.values()]) for name in found}
        exposed_ns = kept.exposed_ns
        wait_ms = int(exposed_ns.sum()) / len(kept) / 1e6 if (exposed_ns != NONE).all() else None
    means_ms = {name: float(own.mean()) / 1e6 if seen[name] else None for name, own in found.items()}
    other_ms = None
    if wait_ms is None:
        why = why or (_NO_EXPOSED if on_device else _NO_WAIT)
    elif not why:
        step_ms = int(kept.duration_ns.sum()) / len(kept) / 1e6
        other_ms = max(0.0, step_ms - wait_ms - sum(mean_ms or 0.0 for mean_ms in means_ms.values()))
    in_all = len(kept) == len(analysis.kept)
    known = {name: own for name, own in found.items() if seen[name] and in_all}
    source = "device_events" if on_device else "host"
    return StepPhases(PhasesMs(**means_ms, other=other_ms), source, why, known)


def collectives_outside_phases(analysis: RankAnalysis) -> Intervals:
    """When the training thread waits in collectives outside of its phases and data waits."""
    thread = analysis.loop.thread
    trains = thread is not None and len(thread.rounds.times_ns) > 0
    own = analysis.collectives
    for phase in _exclusive(analysis, analysis.phase_spans, trains).values():
        own = subtract(own, phase)
    awaited = analysis.kept.awaited
    return subtract(own, union(awaited["wait_start_ns"], awaited["delivered_ns"]))


def per_step_ms(analysis: RankAnalysis, own: Intervals) -> float:
    """How much of a measured step disjoint intervals take, in ms, the mean."""
    return float(_by_step(own, analysis.kept.pieces, analysis.kept).mean()) / 1e6


def _on_device(analysis: RankAnalysis, spans: Columns) -> dict[int, dict[str, int]]:
    """Give each phase's time on the device, in the measured steps that know all of theirs, by their numbers.

    A phase is the time of its calls, less that of the calls in them.
    """
    main, kept = analysis.rank.main, analysis.kept
    rows = main.rows(names.DEVICE_PHASE_ROW)
    rows = rows[rows["tid"] == spans["tid"][0]]
    begun = main.clock.times_to_session_ns(rows["start_ns"]).tolist()
    timed = dict(zip(begun, rows["device_ns"].tolist(), strict=True))
    if not timed:
        return {}
    piece_starts, piece_ends, step = kept.pieces
    spans = spans[np.argsort(spans["start_ns"], kind="stable")]
    at = holding(piece_starts, piece_ends, spans["start_ns"])
    no_grad = [number for number, text in main.texts.items() if text == FORWARD_NO_GRAD]
    inside = (at >= 0) & ~np.isin(spans["name"], no_grad)
    spans, steps = spans[inside], step[at[inside]]
    found: dict[int, dict[str, int]] = {}
    unknown_in = set()
    around: list[tuple[int, dict[str, int], str]] = []  # the calls: their ends, steps and names
    fields = (spans[field].tolist() for field in ("start_ns", "duration_ns", "name"))
    for start_ns, duration_ns, text, number in zip(*fields, steps.tolist(), strict=True):
        name = main.texts.get(text, "")
        if start_ns not in timed:
            unknown_in.add(number)
            continue
        own = found.setdefault(number, dict.fromkeys((FORWARD, BACKWARD, OPTIMIZER, CLOSURE), 0))
        own[name] += timed[start_ns]
        while around and around[-1][0] <= start_ns:
            around.pop()
        if around:
            around[-1][1][around[-1][2]] -= timed[start_ns]
        around.append((start_ns + duration_ns, own, name))
    return {number: own for number, own in found.items() if number not in unknown_in}


def _exclusive(analysis: RankAnalysis, spans: Columns, trains: bool) -> dict[str, Intervals]:
    """Give each instant outside data waits to the innermost phase that holds it.

    No phase is recorded in a backward pass, and no forward pass in a forward one. Lightning's `training_step`
    is forward and loss. Of an optimizer's closure what is neither is none of the optimizer's.
    """
    texts = analysis.rank.main.texts
    numbers, of_span = np.unique(spans["name"], return_inverse=True)
    named = np.array([texts.get(number, "") for number in numbers.tolist()])

    def intervals(*wanted: str) -> Intervals:
        own = spans[np.isin(named, wanted)[of_span]]
        return union(own["start_ns"], own["start_ns"] + own["duration_ns"])

    awaited = analysis.kept.awaited
    waits = union(awaited["wait_start_ns"], awaited["delivered_ns"])
    backward = subtract(intervals(BACKWARD), waits)
    forward = intervals(FORWARD) if trains else intervals(FORWARD, FORWARD_NO_GRAD)
    forward = _joined(forward, _training_steps(analysis))
    forward = subtract(subtract(forward, waits), backward)
    within = _joined(_joined(waits, backward), _joined(forward, intervals(CLOSURE)))
    optimizer = subtract(intervals(OPTIMIZER), within)
    return {FORWARD: forward, BACKWARD: backward, OPTIMIZER: optimizer}


def _joined(first: Intervals, second: Intervals) -> Intervals:
    return union(*(np.concatenate(pair) for pair in zip(first, second, strict=True)))


def _training_steps(analysis: RankAnalysis) -> Intervals:
    """When the training thread was in the `training_step` of a module of Lightning's."""
    main, thread = analysis.rank.main, analysis.loop.thread
    numbers = [number for number, text in main.texts.items() if text.endswith(_TRAINING_STEP)]
    own = np.isin(main.spans["name"], numbers) & (main.spans["kind"] == KIND_TRAINER)
    spans = main.spans[own & (main.spans["tid"] == (main.pid if thread is None else thread.tid))]
    return union(spans["start_ns"], spans["start_ns"] + spans["duration_ns"])


def _by_step(own: Intervals, windows: tuple[Times, Times, Times], kept: StepTable) -> Times:
    """Measure how much of each step some intervals cover."""
    starts, ends, step = windows
    covered = np.zeros(len(kept), np.int64)
    np.add.at(covered, step, Coverage(*own).within(starts, ends))
    return covered


class Phase(msgspec.Struct, frozen=True):
    """A stretch ``[start_ns, end_ns)`` of one phase, in the session's time."""

    name: str
    start_ns: int
    end_ns: int


def phases_of(rank: Rank) -> list[Phase]:
    """Find the phases of a rank, in order; empty where no trainer names them.

    A phase begins where a loader is first asked in it. It ends where the next one begins, or with the
    trainer's run, or, where the end of that was not seen, with its last batch.
    """
    real = rank.main.clock.to_session_ns
    asked: list[tuple[int, int, str]] = []
    for record in rank.main.of_type(IteratorStart):
        if record.phase:
            asked.append((record.mono_ns, record.mono_ns, PHASES.get(record.phase, record.phase)))
    batches = rank.main.rows(names.BATCH_ROW)
    named = {number: PHASES.get(text, text) for number, text in rank.main.texts.items() if text}
    columns = (batches[field].tolist() for field in ("wait_start_ns", "delivered_ns", "phase"))
    asked += [
        (start, end, named[phase]) for start, end, phase in zip(*columns, strict=True) if phase in named
    ]
    run_ends = sorted(run.end_ns for run in rank.main.of_type(TrainerRun))
    found: list[Phase] = []
    start_ns = last_ns = 0
    name: str | None = None
    for mono_ns, end_ns, phase in sorted(asked):
        run_end = next((end for end in run_ends if name is not None and last_ns <= end <= mono_ns), None)
        if phase != name or run_end is not None:
            if name is not None:
                found.append(Phase(name, real(start_ns), real(mono_ns if run_end is None else run_end)))
            start_ns, name = mono_ns, phase
        last_ns = end_ns
    if name is not None:
        run_end = next((end for end in run_ends if end >= last_ns), last_ns)
        found.append(Phase(name, real(start_ns), real(run_end)))
    return found
