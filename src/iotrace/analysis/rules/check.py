"""What is worse than in a baseline, and of what that is not clear: what `iotrace check` concludes.

What is not clear has the level ``unknown``, what to know beside it ``warning``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from iotrace.analysis.compare.results import DATA, Comparison, Condition
from iotrace.analysis.rules.facts.check import CheckFacts
from iotrace.analysis.rules.model import UNKNOWN, WARNING, Finding, fires, rule, silent
from iotrace.units import digits, grown, size

_STAGE: dict[str, Any] = {
    "stage": "read",
    "what": "read",
    "clock": "wall",
    "change_pct": 40.0,
    "ci95_pct": [35.0, 45.0],
    "cost_ms": [10.0, 14.0],
    "noise_pct": 12.0,
}
_CHANGED = {"ci95_pct": [18.0, 22.0], "step_ms": [100.0, 120.0]}
_EPOCH = {
    "verdict": "slower",
    "batches": [76, 300],
    "samples": [32, 32],
    "seconds": [0.6, 2.4],
    "change_pct": 300.0,
    "times": [1, 4],
}

_LONGER = {"change_pct": 104.0, "step_ms": [54.4, 111.1], "starting_ms": [0.2, 0.2]}
_VALIDATION = {"what": "validation", "step_ms": [13.5, 71.9]}


@rule("IO951", "run-failed", "check")
@fires({"failed": "the run", "exit_code": 1})
@silent({"failed": "the run", "exit_code": 0})
def run_failed(facts: CheckFacts) -> Iterator[Finding]:
    """The command of a run that is checked ended with an error."""
    if facts.failed is not None and facts.exit_code:
        yield Finding(text=f"{facts.failed} failed: exit code {facts.exit_code}")


@rule("IO952", "condition-holds", "check")
@fires({"condition": {"where": "ranks[0].data_wait.raw_wait_fraction", "value": 0.3, "holds": True}})
@silent({"condition": {"where": "ranks[0].data_wait.raw_wait_fraction", "value": 0.1, "holds": False}})
def condition_holds(facts: CheckFacts) -> Iterator[Finding]:
    """A condition of `--fail-if` holds."""
    if facts.condition is not None and facts.condition.holds:
        yield Finding(text=figure_text(facts.condition))


@rule("IO953", "condition-unknown", "check")
@fires({"condition": {"condition": "gpu_idle > 20%", "holds": None}})
@silent({"condition": {"condition": "gpu_idle > 20%", "holds": False}})
def condition_unknown(facts: CheckFacts) -> Iterator[Finding]:
    """A condition of `--fail-if` asks for a figure that the session does not have."""
    if facts.condition is not None and facts.condition.holds is None:
        text = f"{facts.condition.condition}: the session has no such figure"
        yield Finding(level=UNKNOWN, text=text)


@rule("IO954", "stage-slower", "check")
@fires(
    {"stage": _STAGE},
    {"stage": _STAGE, "others": "others took 30 % of the CPUs", "beside_others_pct": {"cpu": 43.0}},
)
@silent({"decodes": {**_STAGE, "decoded_bytes": [1000.0, 2000.0]}})
def stage_slower(facts: CheckFacts) -> Iterator[Finding]:
    """A stage of making a sample takes longer than in the baseline.

    The result is not clear where runs of one program differ as much, where other programs took CPUs and no
    hardware counter shows their part, and for reading where both sides read from different storage.
    """
    change = facts.stage
    if change is None:
        return
    why = None
    if change.change_pct < change.noise_pct:
        why = facts.noise
    elif not change.quiet:
        why = facts.by_others(change.change_pct, change.clock)
    if change.stage == "read" and facts.storage:
        why = facts.storage
    before, after = change.cost_ms
    clock = "CPU" if change.clock == "cpu" else "time"
    costs = f"{digits(before)} -> {digits(after)} ms of {clock} a sample"
    yield _judged(f"{change.what}: {_percents(change.change_pct, change.ci95_pct)}, {costs}", why)


@rule("IO955", "decodes-more", "check")
@fires({"decodes": {**_STAGE, "decoded_bytes": [1000.0, 2000.0], "decoded_change_pct": 100.0}})
@silent({"stage": _STAGE})
def decodes_more(facts: CheckFacts) -> Iterator[Finding]:
    """Making a sample decodes more bytes than in the baseline: these are counted, not timed."""
    change = facts.decodes
    if change is not None:
        before, after = (size(size_bytes) for size_bytes in change.decoded_bytes or (0.0, 0.0))
        by_pct = change.decoded_change_pct or 0.0
        more = f"{grown(by_pct)} {'the' if by_pct >= 100 else 'of'} bytes"
        yield Finding(text=f"{change.what}: {more}, counted: {before} -> {after} decoded a sample")


@rule("IO956", "starting-workers-slower", "check")
@fires({"whole_run": {"change_pct": 30.0, "step_ms": [100.0, 130.0], "starting_ms": [5.0, 34.0]}})
@silent({"stage": _STAGE}, {"whole_run": _LONGER, "part": _VALIDATION})
def starting_workers_slower(facts: CheckFacts) -> Iterator[Finding]:
    """Starting workers and making the first batches takes longer than in the baseline."""
    whole = facts.whole_run
    if whole is not None and facts.part is None:
        in_all, starting = (
            f"{one:.1f} -> {other:.1f} ms" for one, other in (whole.step_ms, whole.starting_ms)
        )
        text = (
            f"starting workers: {whole.change_pct:+.0f} % for a step in all, {in_all}, of which starting "
            f"workers and first batches {starting}"
        )
        yield _judged(text, facts.by_others(whole.change_pct, "wall"))


@rule("IO962", "part-slower", "check")
@fires({"whole_run": _LONGER, "part": _VALIDATION})
@silent({"whole_run": _LONGER}, {"stage": _STAGE})
def part_slower(facts: CheckFacts) -> Iterator[Finding]:
    """A part of the loop outside its steps takes longer than in the baseline: validation, checkpoints."""
    whole, part = facts.whole_run, facts.part
    if whole is not None and part is not None:
        before, after = whole.step_ms
        text = (
            f"{part.what}: {part.shown} ms a step, of {before:.1f} -> {after:.1f} ms a step in all "
            f"({whole.change_pct:+.0f} %)"
        )
        yield _judged(text, facts.by_others(whole.change_pct, "wall"))


@rule("IO957", "step-slower", "check")
@fires(
    {"step": _CHANGED, "step_pct": 20.0},
    {"step": _CHANGED, "step_pct": 20.0, "noise_pct": 25.0},
    {"step": {**_CHANGED, "verdict": "slower"}, "step_pct": 20.0, "noise_pct": 25.0},
    {"step": _CHANGED, "step_pct": 20.0, "storage": "the session read its files from storage"},
    {"step": _CHANGED, "step_pct": 20.0, "by_stages": True, "storage": "the session read from storage"},
)
@silent({"stage": _STAGE})
def step_slower(facts: CheckFacts) -> Iterator[Finding]:
    """A step takes longer than in the baseline.

    The result is not clear where runs differ as much by chance, where the CPUs were slower, where both sides
    read from different storage, and where other programs took CPUs: without them it may be no slower. If
    `iotrace compare` says that the runs differ, this says so, too: then only the cause is not clear. If
    stages that are certainly worse make most of the change, only its size is not clear.
    """
    step = facts.step
    if step is None or step.ci95_pct is None:
        return
    several = facts.baselines + facts.sessions > 2
    percents = _against(facts, step) if several else _percents(facts.step_pct, step.ci95_pct)
    alone_pct = step.alone_pct or step.ci95_pct
    why = (None if facts.by_stages else facts.storage) or (
        facts.others if alone_pct[0] < facts.worse_by_pct else None
    )
    if facts.step_pct < facts.noise_pct:
        why = facts.noise
    elif facts.step_pct < facts.noise_pct + (1 + facts.correction_error) * facts.cpu_slower_pct:
        why = f"the CPUs were {facts.cpu_slower_pct:.0f} % slower"
    said = f"the step: {percents}{_because(step)}"
    if why and facts.by_stages:
        yield Finding(level=UNKNOWN, text=f"{said}: slower, but by how much is not clear, as {why}")
    elif why and step.verdict == "slower":
        yield Finding(level=UNKNOWN, text=f"{said}: slower, but perhaps not because of the program: {why}")
    else:
        yield _judged(said, why)


@rule("IO958", "baseline-held-up", "check")
@fires({"held_up": "others took 30 % of the CPUs"})
@silent({"others": "in the session others took 30 % of the CPUs"})
def baseline_held_up(facts: CheckFacts) -> Iterator[Finding]:
    """Other programs held the baseline up, which hides what got slower since."""
    if facts.held_up:
        text = f"the step: in the {facts.before} {facts.held_up}, which may hide that it got slower"
        yield Finding(level=UNKNOWN, text=text)


@rule("IO959", "checked-beside-others", "check")
@fires({"side": "session run-0", "side_busy": "other programs took 50 % of the CPUs"})
@silent({"side": "session run-0"})
def checked_beside_others(facts: CheckFacts) -> Iterator[Finding]:
    """Other programs ran while a session or a baseline was measured: its times include their effect."""
    if facts.side_busy:
        yield Finding(level=WARNING, text=f"{facts.side}: {facts.side_busy}")


@rule("IO960", "checked-figures-say-little", "check")
@fires({"side": "baseline run-2", "side_distrusted": "3 steps measured"})
@silent({"side": "baseline run-2", "side_busy": "others were busy", "side_distrusted": "3 steps measured"})
def checked_figures_say_little(facts: CheckFacts) -> Iterator[Finding]:
    """The report of a session or of a baseline says that its figures are not reliable."""
    if facts.side_distrusted and not facts.side_busy:
        yield Finding(level=WARNING, text=f"{facts.side}: {facts.side_distrusted}")


@rule("IO961", "epoch-longer", "check")
@fires(
    {"epoch": _EPOCH},
    {"epoch": {**_EPOCH, "likely": True, "times": None}, "others": "others took 30 % of the CPUs"},
)
@silent({"step": _CHANGED, "step_pct": 20.0})
def epoch_longer(facts: CheckFacts) -> Iterator[Finding]:
    """An epoch of the same data takes longer than in the baseline, as it has more batches.

    Each worker gives all samples where it gave its own before, or batches are smaller. A step may be as short
    as it was.
    """
    epoch = facts.epoch
    if epoch is None:
        return
    took = f"{digits(epoch.seconds[0])} -> {digits(epoch.seconds[1])} s"
    times = f": each sample comes {epoch.times[1]} times" if epoch.times and epoch.times[1] > 1 else ""
    text = (
        f"an epoch: {grown(epoch.change_pct)}, {took}, in {epoch.batches[0]} -> {epoch.batches[1]} "
        f"batches{times}"
    )
    # How often a sample comes is counted: no other program changes that.
    yield _judged(text, facts.others if epoch.likely and epoch.times is None else None)


def _judged(text: str, why: str | None) -> Finding:
    if why:
        return Finding(level=UNKNOWN, text=f"{text}: not clear, as {why}")
    return Finding(text=text)


def figure_text(item: Condition) -> str:
    """Say what the figure of a condition is; shares in percent, as the condition has them."""
    where = (item.where or "").replace("ranks[", "rank ", 1).replace("].", ": ", 1)
    value = "unknown"
    if item.value is not None:
        is_share = (item.where or "").endswith("_fraction")
        value = f"{100 * item.value:.1f} %" if is_share else f"{item.value:.4g}"
    return f"{where} is {value}"


def _because(comparison: Comparison) -> str:
    """Name what made the step longer: the part that grew most, and the settings that differ."""
    grew = next((change for change in comparison.causes if change.by_ms > 0), None)
    reasons = [
        f"reads {item.values[1]} in place of {item.values[0]}"
        for item in comparison.settings
        if item.what == DATA
    ]
    reasons += [f"{grew.what} +{grew.by_ms:.1f} ms"] if grew is not None else []
    reasons += [
        f"{item.what} {item.values[0]} -> {item.values[1]}"
        for item in comparison.settings
        if item.what != DATA
    ]
    return f": {', '.join(reasons)}" if reasons else ""


def _against(facts: CheckFacts, step: Comparison) -> str:
    """Say by how much the step grew over all runs, and against what."""
    after_ms = step.step_ms[1]
    before_ms = after_ms / (1 + facts.step_pct / 100)
    means = [
        name if count == 1 else f"the mean of {count} {name}s"
        for count, name in ((facts.sessions, "session"), (facts.baselines, facts.before))
    ]
    against = f"against {'one ' if facts.baselines == 1 else ''}{means[1]}"
    if facts.sessions > 1:
        return f"{grown(facts.step_pct)}, {means[0]} {against}"
    return f"{grown(facts.step_pct)}, {against}, {before_ms:.1f} -> {after_ms:.1f} ms"


def _percents(change_pct: float, ci95_pct: Sequence[float]) -> str:
    low, high = (grown(each, change_pct) for each in ci95_pct)
    return f"{grown(change_pct)} (95 %: {low} to {high})"
