"""What the training thread itself does in its steps, beside its computing."""

from __future__ import annotations

import posixpath
from collections.abc import Iterator

from iotrace.analysis.results import Evidence, LoopEvents
from iotrace.analysis.rules.facts.rank import RankFacts
from iotrace.analysis.rules.iterators import validation_restarts
from iotrace.analysis.rules.model import THE_LOOP, Finding, rule
from iotrace.analysis.wait.data_wait import MODERATELY_PERCENT

_HIGH = 0.2  # of a step
_MOSTLY = 0.5  # of the time that writing takes
_ASYNCHRONOUS = "torch.distributed.checkpoint.async_save"
_STARTING = 0.25  # of an evaluation
_LEAST_SECONDS = 0.3  # of what recurs, in all
_EVENTS = {"count": 8, "seconds": 10.4, "loop_seconds": 15.0, "loop_fraction": 0.69, "every_steps": 10.0}
_EVALUATION = {**_EVENTS, "kind": "evaluation", "seen_seconds": 10.4, "wait_seconds": 0.1, "workers": 2}
_CHECKPOINT = {**_EVENTS, "kind": "checkpoint", "seen_seconds": 10.4, "file": "ck-*.pt", "bytes": 4_000_000}
_SYNC = {**_EVENTS, "kind": "writing", "seen_seconds": 0.1, "file": "run.log"}
_ONCE = {"count": 1, "every_steps": None}
_RARE = {"seconds": 0.6, "loop_fraction": 0.04}
_PHASES = {"forward": 2.0, "backward": 4.0, "optimizer": 1.0, "other": 90.0}
CODE_OF_THE_LOOP = "IO506"
_WRITES = {"writing_ms": 12.0, "synced_ms": 10.0, "of_steps": 1.0, "file": "run/log.csv"}


@rule(
    "IO502",
    "writing-in-the-loop",
    "loop",
    turn=THE_LOOP,
    saves_wait=False,
    fires=[{"writes": _WRITES}, {"writes": {**_WRITES, "synced_ms": 0.0, "file": ""}}],
    silent=[
        {"writes": {**_WRITES, "of_steps": 0.1}},
        {"writes": {**_WRITES, "writing_ms": 4.0}},
        {"writes": _WRITES, "accelerator": {"span_us": 1000.0, "idle_us": 10.0}},
    ],
)
def writing_in_the_loop(facts: RankFacts, *, least_of_steps: float = 0.5) -> Iterator[Finding]:
    """The training thread itself writes in most steps.

    It does not train meanwhile. A checkpoint now and then is none of it: slow steps show that. Nor is writing
    beside a device that is busy.

    Remedy: write or sync less often, or in a thread.
    """
    writes, step_ms, device = facts.writes, facts.report.steps.mean_ms, facts.report.accelerator
    if writes is None or not step_ms or writes.of_steps < least_of_steps:
        return
    if device is not None and device.span_us and 100 * device.idle_us < MODERATELY_PERCENT * device.span_us:
        return
    spent_ms, synced_ms = writes.writing_ms, writes.synced_ms
    if 100 * spent_ms < MODERATELY_PERCENT * step_ms:
        return
    does = "sync" if synced_ms >= _MOSTLY * spent_ms else "write"
    name = posixpath.basename(writes.file) or "its files"
    yield Finding(
        text=f"the training thread itself writes for {spent_ms:.1f} ms a step"
        + (f", most of it to {writes.file}" if writes.file else "")
        + (f"; {synced_ms:.1f} ms of that it waits for the disk (fsync)" if does == "sync" else ""),
        how=f"{does} less often, or in a thread of its own",
        remedy=f"{does} {name} less often, or in a thread: the loop does it for {spent_ms:.1f} ms a step",
        level="high" if spent_ms > _HIGH * step_ms else "medium",
        evidence={"writing_ms": spent_ms, "sync_ms": synced_ms},
        gain_ms=spent_ms,
    )


def _recurring(facts: RankFacts, kind: str, least_of_loop: float) -> Iterator[tuple[LoopEvents, Evidence]]:
    """Yield the events of a kind that recur, where they take as much of the loop, and their figures."""
    for each in facts.report.loop_events:
        long = each.loop_fraction >= least_of_loop and each.seconds >= _LEAST_SECONDS
        if each.kind == kind and each.recurs and long:
            yield each, {"count": each.count, "seconds": each.seconds, "loop_seconds": each.loop_seconds}


def _level(events: LoopEvents) -> str:
    return "high" if events.loop_fraction >= _HIGH else "medium"


@rule(
    "IO503",
    "recurring-evaluation",
    "loop",
    turn=THE_LOOP,
    saves_wait=False,
    fires=[
        {"loop_events": [_EVALUATION]},
        {"loop_events": [{**_EVALUATION, "wait_seconds": 9.0}]},
        {"loop_events": [{**_EVALUATION, "start_seconds": 5.0, "persistent_workers": False}]},
    ],
    silent=[
        {"loop_events": [{**_EVALUATION, **_ONCE}]},
        {"loop_events": [{**_EVALUATION, **_RARE}]},
        {"loop_events": [_CHECKPOINT]},
    ],
)
def recurring_evaluation(facts: RankFacts, *, least_of_loop: float = 0.05) -> Iterator[Finding]:
    """The loop evaluates again and again, and that takes much of its time.

    Evaluation passes are no part of a step: no wait and no step above holds them. What of them is waiting for
    data, and starting workers, has another remedy than computing.

    Remedy: validate less often; keep the workers of its loader, or give it more of them.
    """
    for events, evidence in _recurring(facts, "evaluation", least_of_loop):
        remedy, waits = "validate less often", events.wait_seconds or 0.0
        starts = (events.start_seconds or 0.0) >= _STARTING * events.seconds
        if starts and events.workers and events.persistent_workers is False:
            if not any(validation_restarts(facts)):  # which says the same
                remedy = "persistent_workers=True for the loader of validation, or validate less often"
        elif waits >= _MOSTLY * events.seconds:
            remedy = "more workers for the loader of validation, or validate less often"
        yield Finding(
            text=events.said,
            remedy=remedy,
            evidence={**evidence, "wait_seconds": waits},
            level=_level(events),
        )


@rule(
    "IO504",
    "recurring-checkpoint",
    "loop",
    turn=THE_LOOP,
    saves_wait=False,
    fires=[{"loop_events": [_CHECKPOINT]}],
    silent=[
        {"loop_events": [{**_CHECKPOINT, **_ONCE}]},
        {"loop_events": [{**_CHECKPOINT, **_RARE}]},
        {"loop_events": [_EVALUATION]},
    ],
)
def recurring_checkpoint(facts: RankFacts, *, least_of_loop: float = 0.05) -> Iterator[Finding]:
    """The training thread itself saves checkpoints again and again, and that takes much of the loop's time.

    It does not train meanwhile. A save counts from the opening of its file to the closing, with what syncs
    and renames it.

    Remedy: save in the background (`torch.distributed.checkpoint.async_save`), or less often.
    """
    for events, evidence in _recurring(facts, "checkpoint", least_of_loop):
        yield Finding(
            text=events.said,
            remedy=f"save checkpoints in the background ({_ASYNCHRONOUS}), or less often",
            evidence=evidence,
            level=_level(events),
        )


@rule(
    "IO505",
    "recurring-sync",
    "loop",
    turn=THE_LOOP,
    saves_wait=False,
    fires=[
        {"loop_events": [_SYNC]},
        {"loop_events": [{**_SYNC, "seen_seconds": 10.4, "reopened": True}]},
        {"loop_events": [{**_SYNC, "seen_seconds": 10.4, "file": None}]},
    ],
    silent=[
        {"loop_events": [{**_SYNC, **_ONCE}]},
        {"loop_events": [{**_SYNC, **_RARE}]},
        {"loop_events": [{**_SYNC, "every_steps": 1.0}]},  # in most steps: IO502
    ],
)
def recurring_sync(
    facts: RankFacts, *, least_of_loop: float = 0.05, least_every_steps: float = 2.0
) -> Iterator[Finding]:
    """The training thread writes to a file, or syncs it, every few steps: that takes much of the loop's time.

    A logger that flushes does so, or one that opens its file for each save: that counts from the opening to
    the closing, in the same step. Where the steps that sync are longer than the others by more than their
    calls take, that time counts, too: nearly each of them is longer than nearly each of the others.

    Remedy: log less often, keep what is logged in memory, or write it in a thread.
    """
    for events, evidence in _recurring(facts, "writing", least_of_loop):
        if (events.every_steps or 0.0) < least_every_steps:
            continue
        name = "its files" if events.file is None else posixpath.basename(events.file)
        yield Finding(
            text=events.said,
            remedy=f"keep {name} open and append to it, or write less often"
            if events.reopened
            else f"write and sync {name} less often, or in a thread",
            evidence=evidence,
            level=_level(events),
        )


@rule(
    CODE_OF_THE_LOOP,
    "code-of-the-loop",
    "loop",
    turn=THE_LOOP,
    saves_wait=False,
    fires=[{"phases_ms": _PHASES}],
    silent=[
        {"phases_ms": {**_PHASES, "other": 40.0}},
        {"phases_ms": {**_PHASES, "other": None}},
        {"phases_ms": _PHASES, "accelerator": {"span_us": 1000.0, "idle_us": 10.0}},
        {"phases_ms": _PHASES, "writes": {**_WRITES, "writing_ms": 60.0}},
        {"phases_ms": _PHASES, "loop_reads": {"read_ms": 60.0, "decode_ms": 0.0}},
        {"phases_ms": _PHASES, "loop_events": [{**_CHECKPOINT, "seconds": 6.0}]},
    ],
)
def code_of_the_loop(facts: RankFacts, *, least_of_step: float = 0.5) -> Iterator[Finding]:
    """Most of a step is code of the loop outside of forward, backward, optimizer and data wait.

    Logging, metrics and losses that are no modules are such code. Not told beside an accelerator, as the loop
    may wait for that there, and where the loop's own reads, writes or checkpoints are most of it.

    No remedy: `iotrace.region` around parts of the loop names what takes the time.
    """
    report = facts.report
    other_ms, step_ms = report.phases_ms.other, report.steps.mean_ms
    device, reads, writes = report.accelerator, report.loop_reads, facts.writes
    if other_ms is None or not step_ms or other_ms < least_of_step * step_ms:
        return
    if device is not None and device.span_us:
        return
    events_ms = sum(1e3 * each.seconds for each in report.loop_events if each.kind == "checkpoint")
    known_ms = events_ms / max(1, report.steps.count)
    known_ms += 0.0 if reads is None else reads.read_ms + reads.decode_ms
    known_ms += 0.0 if writes is None else writes.writing_ms
    if known_ms >= _MOSTLY * other_ms:
        return
    yield Finding(
        text=(
            f"{other_ms:.1f} of {step_ms:.1f} ms of a step is code of the loop outside of forward, backward "
            "and optimizer; iotrace.region names it"
        ),
        evidence={"other_ms": other_ms, "step_ms": step_ms},
    )
