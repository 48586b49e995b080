"""Why single steps of the loop took long: what each did beyond the usual, by cause.

Definitions: docs/definitions.md, "loop_slow_steps".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from iotrace.analysis.device.gaps import break_down
from iotrace.analysis.host.others import QUIET, shares_by_second
from iotrace.analysis.intervals import Intervals, Times, union
from iotrace.analysis.loop.step_table import StepTable, number_of
from iotrace.analysis.rank import RankAnalysis
from iotrace.analysis.results import SlowLoopStep, SlowLoopSteps
from iotrace.analysis.wait.asleep import asleep
from iotrace.analysis.wait.checkpoints import Writing, writing_of
from iotrace.analysis.wait.compiling import COMPILERS, pauses_of
from iotrace.analysis.wait.loop_events import (
    CHECKPOINT,
    COLLECTION,
    COMPILATION,
    EVALUATION,
    WRITING,
    Events,
)
from iotrace.analysis.wait.waits import CAUSES, Waits
from iotrace.session import names
from iotrace.sources.records import Collector

FEWEST_STEPS = 20  # of fewer the 95th percentile is one of the longest
_DEVIATIONS = 3.0
_MOST_ROWS = 20
_WORTH_NAMING = 0.1  # of what a step took beyond the usual
_EXPLAINS_NOTHING = "unknown"  # the cause of a wait
# In these the training thread itself computes.
_COMPUTING = ("garbage_collection", "compile", "validation", "checkpoint", "writing", "drawing", "restart")

_NONE: Times = np.empty(0, np.int64)

Floats = npt.NDArray[np.float64]


def loop_slow_steps(
    analysis: RankAnalysis,
    phases_ns: Mapping[str, Times] | None = None,
    events: Sequence[Events] = (),
    recurring: Times = _NONE,
    choosing: Intervals = (_NONE, _NONE),
) -> SlowLoopSteps | None:
    """Find the slow ones of the measured steps and their causes; None of fewer than `FEWEST_STEPS`.

    `phases_ns` has the time of each measured step in each phase. Those of `events` that recur are no part of
    a step here. Steps that begin at `recurring` hold what the loop calls now and then, and are left out.
    At times of `choosing` samplers choose first samples of an epoch.
    """
    kept = analysis.kept
    if len(kept) < FEWEST_STEPS:
        return None
    events = [each for each in events if each.kind != COMPILATION]  # a part of the step that it makes long
    lengths: Times = kept["end_ns"] - kept["start_ns"]
    whole = lengths.copy()
    lengths -= sum((each.in_steps_ns(kept) for each in events if each.recurs), np.zeros(len(kept), np.int64))
    usual = float(np.median(lengths))
    beyond = float(np.percentile(lengths, 95)) + _DEVIATIONS * float(np.median(np.abs(lengths - usual)))
    apart = np.isin(kept["start_ns"], recurring)
    slow = np.flatnonzero((lengths > beyond) & ~apart)
    found: dict[str, Floats] = {}
    unknown: dict[str, str] = {}
    writing = None
    if len(slow):
        found, writing = _parts(analysis, lengths, whole, events, choosing)
        unknown = _unknown(analysis)
    over = {name: np.maximum(own - np.median(own), 0)[slow] for name, own in found.items()}
    beyond_usual = lengths[slow] - usual
    sums = sum(over.values(), np.zeros(len(slow)))
    named = np.minimum(sums, beyond_usual)
    # What was shorter than usual made up for some of what was longer: each part has its share of that.
    left = np.divide(named, sums, out=np.ones(len(slow)), where=sums > 0)
    over = {name: own * left for name, own in over.items()}
    phases = {name: np.maximum(own - np.median(own), 0)[slow] for name, own in (phases_ns or {}).items()}
    rows = [
        _row(
            analysis,
            kept,
            int(step),
            int(lengths[step]),
            (at, over, phases, writing),
            float(beyond_usual[at]),
        )
        for at, step in enumerate(slow.tolist())
    ]
    total = float(beyond_usual.sum())
    return SlowLoopSteps(
        count=len(slow),
        measured=len(kept),
        apart=int((whole > beyond).sum()) - len(slow),
        usual_ms=usual / 1e6,
        beyond_ms=beyond / 1e6,
        over_ms=total / 1e6,
        explained_fraction=float(named.sum()) / total if total else None,
        parts_ms={name: float(own.sum()) / 1e6 for name, own in over.items() if own.any()},
        unnamed_ms=(total - float(named.sum())) / 1e6,
        unknown=unknown,
        steps=sorted(rows, key=lambda row: -row.over_ms)[:_MOST_ROWS],
    )


def _row(
    analysis: RankAnalysis,
    kept: StepTable,
    number: int,
    length_ns: int,
    found: tuple[int, dict[str, Floats], dict[str, Floats], Writing | None],
    over_ns: float,
) -> SlowLoopStep:
    at, over, phases, writing = found
    step = kept[number]
    parts = {name: float(own[at]) / 1e6 for name, own in over.items() if own[at] > 0}
    parts = dict(sorted(parts.items(), key=lambda pair: -pair[1]))
    opened = step.delivery
    file = size = speed = None
    largest = next(iter(parts), None)
    if largest in ("checkpoint", "writing") and writing is not None:
        own = writing.chosen(writing.saved == (largest == "checkpoint"))
        file, size, speed = own.within(step.start_ns, step.end_ns)
    elif largest in ("read", "decode"):
        file = _file(analysis, kept, number)
    return SlowLoopStep(
        step=number_of(analysis.loop.steps, step),
        epoch=None if opened is None else opened.epoch,
        batch=None if opened is None else opened.index,
        start_s=(step.start_ns - analysis.session.manifest.started_ns) / 1e9,
        ms=length_ns / 1e6,
        over_ms=over_ns / 1e6,
        parts_ms=parts,
        unnamed_ms=max(0.0, over_ns / 1e6 - sum(parts.values())),
        host_ms={
            name: float(own[at]) / 1e6 for name, own in phases.items() if own[at] >= _WORTH_NAMING * over_ns
        },
        file=file,
        write_bytes=size,
        write_mb_per_s=speed,
    )


def _parts(
    analysis: RankAnalysis, lengths: Times, whole: Times, events: Sequence[Events], choosing: Intervals
) -> tuple[dict[str, Floats], Writing]:
    """Divide each measured step among causes, in ns: an instant belongs to the first that covers it.

    `lengths` is `whole` without the events that recur.
    """
    kept = analysis.kept
    writing = writing_of(analysis)
    of_kind = {each.kind: each for each in events}
    checkpoints = of_kind.get(CHECKPOINT)
    saved, other = (writing.chosen(which) for which in (writing.saved, ~writing.saved))
    saving = (saved.starts, saved.ends) if checkpoints is None else (checkpoints.starts, checkpoints.ends)
    awaited = kept.awaited
    intervals = {
        "garbage_collection": pauses_of(analysis, "collection"),
        "compile": pauses_of(analysis, *COMPILERS),
        "validation": union(kept.left_out[:, 0], kept.left_out[:, 1]),
        "checkpoint": union(*saving),
        "writing": union(other.starts, other.ends),
        "asleep": asleep(analysis),
        "data_wait": union(awaited["wait_start_ns"], awaited["delivered_ns"]),
        "drawing": choosing,
        "restart": _restarts(analysis),
        "collectives": analysis.collectives,
    }
    table = break_down([*intervals.values()], kept["start_ns"], kept["end_ns"])[0]
    found = {name: table[:, at].astype(np.float64) for at, name in enumerate(intervals)}
    waited = found.pop("data_wait")
    for kind, part in ((EVALUATION, "validation"), (CHECKPOINT, CHECKPOINT), (WRITING, WRITING)):
        if kind in of_kind and of_kind[kind].recurs:
            found[part] = np.zeros(len(kept))
    collected = of_kind.get(COLLECTION)
    if collected is not None and collected.recurs:  # what is left of it lies in waits
        left = found["garbage_collection"] - collected.in_steps_ns(kept)
        found["garbage_collection"] = np.maximum(left, 0.0)
    if not analysis.loop.unknown_why and len(awaited):
        found.update(_by_cause(analysis.measured_waits, kept, waited))
    claimed = sum(found.values(), np.zeros(len(kept)))
    rest = np.maximum(lengths - claimed, 0)
    computing = whole - lengths + sum((found[name] for name in _COMPUTING), np.zeros(len(kept)))
    found.update(_without_cpu(analysis, kept, rest, computing))
    return found, writing


def _by_cause(waits: Waits, kept: StepTable, waited: Floats) -> dict[str, Floats]:
    """Split the time that each step waited pro rata to the causes of its waits."""
    causes = np.zeros((len(kept), len(CAUSES)))
    np.add.at(causes, kept.awaited_by, waits.causes)
    whole = causes.sum(axis=1)
    scale = np.divide(waited, whole, out=np.zeros(len(kept)), where=whole > 0)
    return {cause: causes[:, at] * scale for at, cause in enumerate(CAUSES) if cause != _EXPLAINS_NOTHING}


def _restarts(analysis: RankAnalysis) -> Intervals:
    """When the loop ended an iterator and its workers, and when it made the next one."""
    primary = analysis.primary
    if primary is None or not primary.description.workers:
        return union(np.zeros(0, np.int64), np.zeros(0, np.int64))
    spans = [(each.start_ns, each.asked_ns) for each in primary.passes.values()]
    spans += [each.exhausted_ns for each in primary.passes.values() if each.exhausted_ns is not None]
    starts, ends = np.array(sorted(spans), np.int64).reshape(-1, 2).T
    return union(starts, ends)


def _file(analysis: RankAnalysis, kept: StepTable, number: int) -> str | None:
    """The file that the waits of a step are charged to most."""
    totals = analysis.waits_for(kept[number : number + 1].awaited).files.totals()
    return max(totals, key=lambda path: sum(totals[path][:2]), default=None)


def _without_cpu(
    analysis: RankAnalysis, kept: StepTable, rest: Floats, computing: Floats
) -> dict[str, Floats]:
    """How long the training thread was ready to run without a CPU in the `rest`, by who had the CPUs.

    It is so in what it computes elsewhere, too: that has its share of a step's.
    """
    main, thread = analysis.rank.main, analysis.loop.thread
    rounds = main.rows(names.ROUND_ROW)
    if thread is None or not len(rounds):
        return {}
    rounds = rounds[(rounds["tid"] == thread.tid) & (rounds["run_delay_ns"] >= 0)]
    times = main.clock.times_to_session_ns(rounds["mono_ns"])
    if len(times) < 2:
        return {}
    sums = rounds["run_delay_ns"].astype(np.float64)
    at = [np.interp(kept[field] - times[0], times - times[0], sums) for field in ("start_ns", "end_ns")]
    share = np.divide(rest, rest + computing, out=np.zeros(len(kept)), where=rest > 0)
    delay = np.clip((at[1] - at[0]) * share, 0, rest)
    held, taken = _taken(analysis)
    return {
        "throttling": np.where(held, delay, 0.0),
        "neighbours": np.where(~held & taken, delay, 0.0),
        "no_cpu": np.where(~held & ~taken, delay, 0.0),
    }


def _taken(analysis: RankAnalysis) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
    """Whether a CPU quota held the job back around each step, and whether others used its CPUs then."""
    main, session, kept = analysis.rank.main, analysis.session, analysis.kept
    held, taken = np.zeros(len(kept), np.bool_), np.zeros(len(kept), np.bool_)
    telemetry = session.telemetry_of(main)
    if telemetry is None:
        return held, taken
    times = telemetry.host.time_ns
    # The second that a step begins in ends with the next record, the one that it ends in likewise.
    first, last = (np.searchsorted(times, kept[field]) for field in ("start_ns", "end_ns"))
    for _, held_back in telemetry.host.quotas.values():
        grown = np.interp(times.astype(np.float64), held_back.time_ns.astype(np.float64), held_back.value)
        if len(grown):
            highest = len(grown) - 1
            held |= grown[np.minimum(last, highest)] > grown[np.clip(first - 1, 0, highest)]
    shares = shares_by_second(session, main, telemetry)
    if shares is not None:
        total = np.cumsum(np.append(0.0, np.nan_to_num(shares[0]) + np.nan_to_num(shares[1])))
        behind = np.minimum(last + 1, len(times))
        seconds = np.maximum(behind - first, 1)
        taken = (total[behind] - total[np.minimum(first, len(times))]) / seconds >= QUIET
    return held, taken


def _unknown(analysis: RankAnalysis) -> dict[str, str]:
    """Name the causes of which nothing was recorded, and say why."""
    found = {}
    if analysis.loop.unknown_why:
        found["data_wait"] = analysis.loop.unknown_why
    if not analysis.rank.main.of_type(Collector):
        found["garbage_collection"] = "not recorded: a Python without interpreter lock, or an older iotrace"
    if not analysis.session.posix_on:
        found["checkpoint"] = "POSIX calls were not traced"
    return found
