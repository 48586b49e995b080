"""Whether the step got faster or slower: what was measured, less what other programs may have done to it."""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

from iotrace.analysis.compare.basis import ProcessUse, Rank
from iotrace.analysis.compare.results import StageChange, unit_of
from iotrace.analysis.compare.same_work import OTHER_COUNT
from iotrace.analysis.host.disturbance import alone, disturbances, grown_between
from iotrace.units import digits, grown, percent

# Two runs of one program on one quiet machine differ by so much, whatever the steps within each say.
RUN_TO_RUN_PCT = 2.0
_NEARLY_ALONE = 0.9  # of a step is its own at the least: then an interval says more than a bound
BANNERS = {"faster": "FASTER", "slower": "SLOWER"}
_LEAST_KEPT = 0.01  # of a step: nobody knows that nothing of it is its own
_CARRIES = 0.1  # of what a sample costs, and of the step: what a stage has to change to speak for it
_MOST_OF_STEP_PCT = 50.0  # of one CPU
_LEAST_GROWN = 1.0  # of the CPU time of a process: cores shared, and cold caches, may double it for one work
_A_FACTOR, _TWO_DIGITS = 1.05, 1.2
_LONGER = "run both for more steps"
REMEDY = "run both again with fewer other programs, or several times each, for iotrace check"


class StepVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """The verdict, with its words and what else `Comparison` has of it."""

    verdict: str
    text: str
    likely: bool = False
    alone_pct: list[float] | None = None
    remedy: str | None = None


def judge_step(
    ranks: tuple[Rank, Rank],
    change_pct: float,
    ci95_pct: list[float] | None,
    stages: Sequence[StageChange],
    doubt: str | None,
    samples: Sequence[int] | None = None,
) -> StepVerdict:
    """Judge the change of the mean step; `doubt`: what makes both incomparable, whatever they show.

    Where the loops have other numbers of steps, these are said: a fix may spare whole steps. Where steps take
    so many `samples`, times are for as many.
    """
    steps = " -> ".join(f"{rank.steps.mean_ms or 0.0:.1f}" for rank in ranks) + f" ms {unit_of(samples)}"
    if samples is not None:
        steps += f", in steps of {samples[0]} -> {samples[1]}"
    counts = [rank.account.steps if rank.account is not None else 0 for rank in ranks]
    if samples is None and min(counts) > 0 and max(counts) >= OTHER_COUNT * min(counts):
        steps += f", in {counts[0]} -> {counts[1]} steps"
    if ci95_pct is None or doubt:
        why, remedy = doubt or "too few steps for an interval", None if doubt else _LONGER
        return StepVerdict(verdict="unknown", text=f"NOT CLEAR: {steps}; {why}", remedy=remedy)
    kept = [max(alone(rank).kept, _LEAST_KEPT) for rank in ranks]
    low, high = (1 + ci95_pct[0] / 100) * kept[1], (1 + ci95_pct[1] / 100) / kept[0]
    alone_pct = [100 * (low - 1), 100 * (high - 1)]
    verdict = _of_interval(alone_pct, change_pct)
    if min(kept) >= _NEARLY_ALONE:
        text = _text(verdict, steps, change_pct, alone_pct)
        return StepVerdict(verdict=verdict, text=text, alone_pct=alone_pct)
    if verdict in BANNERS and min(map(abs, alone_pct)) >= RUN_TO_RUN_PCT:
        bound = f"at least {times(high if high < 1 else low)} without other programs"
        text = f"{BANNERS[verdict]} {times(1 + change_pct / 100)}: {steps}; {bound}"
        return StepVerdict(verdict=verdict, text=text, alone_pct=alone_pct)
    measured = _of_interval(ci95_pct, change_pct)
    stage = _speaking(ranks, stages, measured)
    if stage is not None:
        text = f"LIKELY {BANNERS[measured]}: {steps}, while other programs ran; a sample costs {_cpu(stage)}"
        return StepVerdict(verdict=measured, likely=True, text=text, alone_pct=alone_pct)
    spent = _spent(ranks, measured)
    if spent is not None:
        who, before, after = spent
        text = (
            f"LIKELY {BANNERS[measured]}: {steps}, while other programs ran; {who} "
            f"{before:.1f} -> {after:.1f} ms of CPU a step"
        )
        return StepVerdict(verdict=measured, likely=True, text=text, alone_pct=alone_pct)
    ratio = 1 + change_pct / 100
    others_did_not = (ratio * kept[1] - 1) * (ratio / kept[0] - 1) > 0
    if others_did_not and measured in BANNERS:  # nor did chance: both together might have
        text = f"LIKELY {BANNERS[measured]}: {steps}; other programs ran, but do not explain all of it"
        return StepVerdict(verdict=measured, likely=True, text=text, alone_pct=alone_pct, remedy=REMEDY)
    if others_did_not:
        text = f"NOT CLEAR: {steps}; the steps vary by more than that, and other programs ran"
        return StepVerdict(verdict="unknown", text=text, alone_pct=alone_pct, remedy=_LONGER)
    text = f"NOT CLEAR: {steps}; {_because(ranks, kept)}"
    return StepVerdict(verdict="unknown", text=text, alone_pct=alone_pct, remedy=REMEDY)


def _cpu(stage: StageChange) -> str:
    if stage.change_pct >= 100:
        return f"{grown(stage.change_pct)} the CPU in {stage.what}"
    less = "less" if stage.change_pct < 0 else "more"
    return f"{abs(stage.change_pct):.0f} % {less} CPU in {stage.what}"


def _of_interval(interval_pct: Sequence[float], change_pct: float) -> str:
    if interval_pct[0] <= 0 <= interval_pct[1] or abs(change_pct) < RUN_TO_RUN_PCT:
        return "no-difference"
    return "slower" if change_pct > 0 else "faster"


def _speaking(ranks: tuple[Rank, Rank], stages: Sequence[StageChange], measured: str) -> StageChange | None:
    """Find the stage whose CPU time changed as the step did, beyond what neighbours do, by most a sample.

    One file of a stage speaks only where no stage does as a whole.
    """
    if measured not in BANNERS:
        return None
    by_others = grown_between(ranks[0].system.host, ranks[1].system.host)
    speaking = [
        change
        for change in stages
        if _is_certain(change, measured, by_others) and _by(change) >= _CARRIES and _carries(change, ranks)
    ]
    return max(speaking, key=lambda change: (change.file is None, _by(change)), default=None)


def _by(change: StageChange) -> float:
    """By how much of what a sample costs in all a stage changed."""
    return change.share * abs(change.change_pct) / 100


def _is_certain(change: StageChange, measured: str, by_others: float) -> bool:
    """Whether a CPU time changed as the step did: beyond chance, by the shown interval, too, and others."""
    by, (low, high) = change.change_pct / 100, change.ci95_pct
    if change.clock != "cpu" or (by > 0) != (measured == "slower") or low <= 0 <= high:
        return False
    beyond = abs(math.log1p(max(by, -0.999)))
    is_beyond_noise = beyond > math.log1p(change.noise_pct / 100)
    return is_beyond_noise and (change.quiet or beyond > math.log1p(by_others))


def _carries(change: StageChange, ranks: tuple[Rank, Rank]) -> bool:
    """Whether the wait for what a stage makes changed by a tenth of the step's change, or more.

    Waits that batches lie ready for hold none of it: there the stage takes CPUs, and may carry the step.
    """
    waits = [rank.data_wait.causes_ms.get(change.stage) for rank in ranks]
    if waits[0] is None or waits[1] is None or not any(waits):
        return True
    steps_ms = [rank.steps.mean_ms or 0.0 for rank in ranks]
    return abs(waits[1] - waits[0]) >= _CARRIES * abs(steps_ms[1] - steps_ms[0])


def _spent(ranks: tuple[Rank, Rank], measured: str) -> tuple[str, float, float] | None:
    """Return the CPU time of what makes the step, where it changed as the step did, beyond chance.

    That is the training process, where it was on a CPU, or ready for one, in most of the longer step; with
    its workers where the loop waited for most of it, and they were. Else CPU time does not make the step. It
    is in ms a step, before and after.
    """
    if measured not in BANNERS:
        return None
    longer = ranks[0 if measured == "faster" else 1]
    by_workers = not _computes(longer.main) and _waits_for_workers(longer)
    if not by_workers and not _computes(longer.main):
        return None
    who = "the training process and its workers take" if by_workers else "the training process takes"
    before, after = (
        sum(each.cpu_pct_mean or 0.0 for each in _computing(rank, by_workers))
        / 100
        * (rank.steps.mean_ms or 0.0)
        for rank in ranks
    )
    by = math.log(after / before) if before > 0 and after > 0 else 0.0
    by_others = max(_LEAST_GROWN, grown_between(ranks[0].system.host, ranks[1].system.host))
    is_certain = (by > 0) == (measured == "slower") and abs(by) > math.log1p(by_others)
    return (who, before, after) if is_certain else None


def _computing(rank: Rank, by_workers: bool) -> list[ProcessUse]:
    """The processes that make a step; none where one is not known, or workers were started anew."""
    found = [each for each in rank.system.processes if each.role == "main"]
    if by_workers:
        workers = _workers(rank)
        if rank.primary is None or len(workers) != rank.primary.workers:
            return []
        found += workers
    return [] if any(each.cpu_pct_mean is None for each in found) else found


def _workers(rank: Rank) -> list[ProcessUse]:
    return [each for each in rank.system.processes if each.role.startswith("worker")]


def _waits_for_workers(rank: Rank) -> bool:
    """Whether the loop waits in most of a step, and its workers compute, or are ready to."""
    wait_ms, step_ms, workers = rank.data_wait.raw_ms or 0.0, rank.steps.mean_ms or 0.0, _workers(rank)
    return 100 * wait_ms >= _MOST_OF_STEP_PCT * step_ms > 0 and bool(workers) and all(map(_computes, workers))


def _computes(process: ProcessUse | None) -> bool:
    if process is None or not process.cpu_pct_mean:
        return False
    return process.cpu_pct_mean + (process.run_delay_pct_mean or 0.0) >= _MOST_OF_STEP_PCT


def _because(ranks: tuple[Rank, Rank], kept: Sequence[float]) -> str:
    """Say what others took of the CPUs, and what a step takes alone, on the side that suffered more."""
    side = min((0, 1), key=lambda number: kept[number])
    found = alone(ranks[side])
    why = next(disturbances(ranks[side].system.host), "its CPUs were taken")
    return f"in {'AB'[side]} {why}: {found.said}"


def times(ratio: float) -> str:
    """Say by what factor a time changed, of the ratio of both: ``2.1x``; what is less than 5 % in percent."""
    factor = max(ratio, 1 / ratio)
    return (
        f"{digits(factor, 2 if factor >= _TWO_DIGITS else 3)}x"
        if factor >= _A_FACTOR
        else percent(factor - 1)
    )


def _text(verdict: str, steps: str, change_pct: float, interval_pct: Sequence[float]) -> str:
    if verdict == "no-difference":
        low, high = interval_pct
        return f"NO DIFFERENCE seen: {steps} ({change_pct:+.1f} %, 95 %: {low:+.1f} to {high:+.1f})"
    low, high = sorted((1 + bound / 100 for bound in interval_pct), key=lambda each: max(each, 1 / each))
    interval = f"(95 %: {times(low)} to {times(high)})"
    return f"{BANNERS[verdict]} {times(1 + change_pct / 100)} {interval}: {steps}"
