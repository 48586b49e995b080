"""What the training thread does now and then: evaluation, checkpoints, syncs, garbage collections."""

from __future__ import annotations

import posixpath
from collections.abc import Iterator
from typing import Any

from iotrace.analysis.results import Collector, Evidence, LoopCode, LoopEvents
from iotrace.analysis.rules.facts.rank import RankFacts
from iotrace.analysis.rules.iterators import validation_restarts
from iotrace.analysis.rules.model import THE_LOOP, Finding, fires, rule, silent
from iotrace.analysis.wait.data_wait import bound_fraction
from iotrace.units import many, size

HIGH = 0.2  # of a step
_MUCH = 0.1  # of the loop
MOSTLY = 0.5  # of the time that writing takes
_ASYNCHRONOUS = "torch.distributed.checkpoint.async_save"
_GARBAGE = "gc.disable() and a rare gc.collect(), or fewer objects, or gc.freeze() if the loop keeps them"
_LARGE, _BEYOND = 8 << 20, 10  # bytes of a save; times those of the weights
_MOSTLY = 0.5  # of the saving
_STARTING = 0.25  # of an evaluation
LEAST_SECONDS = 0.3  # of what recurs, in all
_EVENTS = {"count": 8, "seconds": 10.4, "loop_seconds": 15.0, "loop_fraction": 0.69, "every_steps": 10.0}
_EVALUATION = {**_EVENTS, "kind": "evaluation", "seen_seconds": 10.4, "wait_seconds": 0.1, "workers": 2}
CHECKPOINT = {**_EVENTS, "kind": "checkpoint", "seen_seconds": 10.4, "file": "ck-*.pt", "bytes": 400_000_000}
_BY_LIGHTNING = {
    "loop_events": [CHECKPOINT],
    "trainer": {"ranges": [{"hook": "save_checkpoint", "ms_total": 9000.0}]},
}
_SMALL = {"root": "Net", "size_bytes": 59_064}
_SYNC = {**_EVENTS, "kind": "writing", "seen_seconds": 0.1, "file": "run.log"}
_PREVIEWS = {
    **_EVENTS,
    "kind": "writing",
    "seen_seconds": 10.4,
    "reopened": True,
    "file": "p/*.png",
    "files": 8,
}
_MANY_OBJECTS = 100_000  # whose full collection takes some ms
_COLLECTOR = {
    "enabled": True,
    "threshold": 700,
    "objects": 3_000_000,
    "frozen": 0,
    "per_step": 8.6,
    "full_per_step": 0.7,
}
_METRIC = {"line": "metrics.py:12", "fraction": 0.9, "samples": 60}
_CALLED = {**_COLLECTOR, "per_step": 1.0, "full_per_step": 1.0, "is_called": True}
COLLECTION = {**_EVENTS, "kind": "collection", "seen_seconds": 10.4}
_ONCE = {"count": 1, "every_steps": None}
_RARE = {"seconds": 0.6, "loop_fraction": 0.04}


def _recurring(facts: RankFacts, kind: str, least_of_loop: float) -> Iterator[tuple[LoopEvents, Evidence]]:
    """Yield the events of a kind that recur, where they take as much of the loop, and their figures."""
    for each in facts.report.loop_events:
        long = each.loop_fraction >= least_of_loop and each.seconds >= LEAST_SECONDS
        if each.kind == kind and each.recurs and long:
            yield each, {"count": each.count, "seconds": each.seconds, "loop_seconds": each.loop_seconds}


def _most_ms(facts: RankFacts, events: LoopEvents) -> float | None:
    """What a step loses without them; None where the steps of the run are not known."""
    account = facts.report.account
    return 1e3 * events.seconds / account.steps if account is not None and account.steps else None


def _bound(gain_ms: float | None) -> dict[str, Any]:
    """A gain of what is done less often: no more than all of it, and nobody knows how much of that."""
    return {"gain_ms": gain_ms, "gain_interval_ms": None if gain_ms is None else [0.0, gain_ms]}


def _has_room(facts: RankFacts, workers: int) -> bool:
    """Whether one worker more would have a CPU."""
    system = facts.report.system
    return workers + 1 < (system.cpus or 0) or (system.host is not None and system.host.has_free_cpus)


def leads(facts: RankFacts, events: LoopEvents | LoopCode) -> bool:
    """Whether it takes most of the loop, or much of it and more than the data wait does."""
    waits = bound_fraction(facts.report.data_wait) or 0.0
    return events.loop_fraction >= MOSTLY or events.loop_fraction >= max(_MUCH, waits)


def _level(events: LoopEvents) -> str:
    return "high" if events.loop_fraction >= HIGH else "medium"


@rule("IO503", "recurring-evaluation", "loop", turn=THE_LOOP, saves_wait=False, of_run=True)
@fires(
    {"loop_events": [_EVALUATION]},
    {"loop_events": [{**_EVALUATION, "wait_seconds": 9.0}]},
    {"loop_events": [{**_EVALUATION, "wait_seconds": 9.0, "workers": 8}]},
    {"loop_events": [{**_EVALUATION, "start_seconds": 5.0, "persistent_workers": False}]},
    {"loop_events": [{**_EVALUATION, "workers": None, "function": "Images.__getitem__ (train.py:9)"}]},
    {"loop_events": [{**_EVALUATION, "hot": _METRIC}]},
)
@silent(
    {"loop_events": [{**_EVALUATION, **_ONCE}]},
    {"loop_events": [{**_EVALUATION, **_RARE}]},
    {"loop_events": [CHECKPOINT]},
)
def recurring_evaluation(facts: RankFacts, *, least_of_loop: float = 0.05) -> Iterator[Finding]:
    """The loop evaluates again and again, and that takes much of its time.

    Evaluation passes are not part of a step: the wait and the steps above do not include them. Their waits
    for data and starts of workers have another remedy than their computing. Samples of the thread's stack
    show which line takes most of the rest, such as a metric's, unless that is a model's; without a loader,
    also which function.

    Remedy: validate less often; make that line faster; keep the workers of its loader, or give it more.
    """
    for events, evidence in _recurring(facts, "evaluation", least_of_loop):
        remedy, waits = "validate less often", events.wait_seconds or 0.0
        starts = (events.start_seconds or 0.0) >= _STARTING * events.seconds
        if starts and events.workers and events.persistent_workers is False:
            if any(validation_restarts(facts)):  # which says the same, and comes first
                continue
            remedy = "persistent_workers=True for the loader of validation, or validate less often"
        elif waits >= MOSTLY * events.seconds and _has_room(facts, events.workers or 0):
            remedy = "more workers for the loader of validation, or validate less often"
        elif events.hot is not None:
            remedy = f"make {events.hot.placed(events.function)} faster, or validate less often"
            remedy += "" if events.function is None else ", or by a DataLoader with workers"
        elif events.function is not None:
            remedy = f"validate by a DataLoader with workers, or less often: it is in {events.function}"
        yield Finding(
            text=events.said,
            remedy=remedy,
            evidence={**evidence, "wait_seconds": waits},
            level=_level(events),
            is_main_cause=leads(facts, events),
            **_bound(_most_ms(facts, events)),
        )


@rule("IO504", "recurring-checkpoint", "loop", turn=THE_LOOP, saves_wait=False, of_run=True)
@fires({"loop_events": [CHECKPOINT]}, {"loop_events": [CHECKPOINT], "models": [_SMALL]}, _BY_LIGHTNING)
@silent(
    {"loop_events": [{**CHECKPOINT, **_ONCE}]},
    {"loop_events": [{**CHECKPOINT, **_RARE}]},
    {"loop_events": [_EVALUATION]},
)
def recurring_checkpoint(facts: RankFacts, *, least_of_loop: float = 0.05) -> Iterator[Finding]:
    """The training thread itself saves checkpoints again and again, and that takes much of the loop's time.

    It does not train meanwhile. A save counts from the opening of its file to the closing, with what syncs
    and renames it, and removes an older one. If a save has ten times the bytes of the model's weights or
    more, the text says both: an optimizer has two or three times as many at most.

    Remedy: keep out of it what is no weight, such as data that Lightning's `save_hyperparameters` keeps; save
    in the background (`torch.distributed.checkpoint.async_save`; Lightning's `AsyncCheckpointIO`), where
    collecting and pickling stay with the training thread's interpreter, or less often.
    """
    weights = sum(model.size_bytes or 0 for model in facts.report.models)
    for events, evidence in _recurring(facts, "checkpoint", least_of_loop):
        text, remedy, how = events.said, *_save_less(facts, events)
        each = (events.bytes or 0) / max(events.count, events.files or 0)
        if weights and each >= max(_LARGE, _BEYOND * weights):
            has = f"a save has {size(each)}, the model's weights {size(weights)}"
            text += f"; {has}"
            remedy, how = f"keep out of checkpoints what is no weight ({has}); or {remedy}", ""
        yield Finding(
            text=text,
            remedy=remedy,
            how=how,
            evidence=evidence,
            level=_level(events),
            is_main_cause=leads(facts, events),
            **_bound(_most_ms(facts, events)),  # a thread that saves takes turns with the training
        )


def _save_less(facts: RankFacts, events: LoopEvents) -> tuple[str, str]:
    """How to save for less of the loop, in short and with more: a trainer has settings of its own."""
    ranges = [] if facts.report.trainer is None else facts.report.trainer.ranges
    by_trainer_ms = sum(each.ms_total for each in ranges if each.hook == "save_checkpoint")
    if by_trainer_ms < _MOSTLY * events.seconds * 1e3:
        return f"save checkpoints in the background ({_ASYNCHRONOUS}), or less often", ""
    return (
        "save checkpoints less often, or in the background (AsyncCheckpointIO)",
        "save less often (ModelCheckpoint's every_n_epochs or every_n_train_steps), or in the background "
        '(Trainer(plugins=[AsyncCheckpointIO()])); where save_last=True writes a copy, "link" spares it',
    )


@rule("IO505", "recurring-sync", "loop", turn=THE_LOOP, saves_wait=False)
@fires(
    {"loop_events": [_SYNC]},
    {"loop_events": [{**_SYNC, "seen_seconds": 10.4, "reopened": True}]},
    {"loop_events": [{**_SYNC, "seen_seconds": 10.4, "reopened": True, "every_steps": 1.0}]},
    {"loop_events": [{**_SYNC, "seen_seconds": 10.4, "file": None}]},
    {"loop_events": [_PREVIEWS]},
    {"loop_events": [{**_PREVIEWS, "function": "preview (train.py:9)", "call_seconds": 0.1}]},
)
@silent(
    {"loop_events": [{**_SYNC, **_ONCE}]},
    {"loop_events": [{**_SYNC, **_RARE}]},
    {"loop_events": [{**_SYNC, "every_steps": 1.0}]},  # in most steps: IO502
)
def recurring_sync(
    facts: RankFacts, *, least_of_loop: float = 0.05, least_every_steps: float = 2.0
) -> Iterator[Finding]:
    """The training thread writes to files, or syncs them, every few steps: that takes much of the loop.

    A logger that flushes does this, or code that opens a file for each save, such as a preview or a table:
    its time counts from opening to closing, in the same step. Steps that sync may be longer than others by
    more than their calls take. That time counts, too, if nearly all of them are longer than nearly all of the
    others.

    Remedy: write less often, keep what is logged in memory, or write it in a thread.
    """
    for events, evidence in _recurring(facts, "writing", least_of_loop):
        if (events.every_steps or 0.0) < least_every_steps and not events.reopened:
            continue
        yield Finding(
            text=events.said,
            remedy=less_writing(events),
            evidence=evidence,
            level=_level(events),
            is_main_cause=leads(facts, events),
            **_bound(_most_ms(facts, events) if events.reopened else None),
        )


@rule("IO507", "collecting-garbage-in-the-loop", "loop", turn=THE_LOOP, saves_wait=False, of_run=True)
@fires(
    {"loop_events": [COLLECTION]},
    {"loop_events": [{**COLLECTION, "collector": _COLLECTOR}]},
    {"loop_events": [{**COLLECTION, "collector": {**_COLLECTOR, "frozen": 3_000_000}}]},
    {"loop_events": [{**COLLECTION, "collector": {**_COLLECTOR, "enabled": False}}]},
    {"loop_events": [{**COLLECTION, "function": "train.py:22", "collector": _CALLED}]},
    {"loop_events": [{**COLLECTION, "collector": {**_COLLECTOR, "objects": 60_000}}]},
)
@silent(
    {"loop_events": [{**COLLECTION, **_ONCE}]},
    {"loop_events": [{**COLLECTION, **_RARE}]},
    {"loop_events": [CHECKPOINT]},
)
def collecting_garbage_in_the_loop(facts: RankFacts, *, least_of_loop: float = 0.05) -> Iterator[Finding]:
    """Python's garbage collector stops the loop, outside of its waits, for much of its time in all.

    A full collection looks at all objects of the process. Millions of them, such as a list of indices, make
    it long; code that makes many objects, or calls `gc.collect()`, makes it frequent. Single collections may
    be too short to make a step slow.

    Remedy: `gc.disable()`, and `gc.collect()` every N steps, which bounds the memory; or hold arrays instead
    of objects; or call `gc.freeze()` before the loop: collections then skip the objects that stay throughout
    it, but not those that each epoch makes again. If they are frozen already, or few, make fewer objects in
    the loop, or collect after more of them (`gc.set_threshold`). If the collector is disabled, or more
    collections are full ones than it makes by itself, the program calls `gc.collect()`: do so less often.
    """
    for events, evidence in _recurring(facts, "collection", least_of_loop):
        each_ms = 1e3 * events.seconds / events.count
        remedy, how = _less_collecting(events.collector, events.function)
        yield Finding(
            text=f"{events.said}; {each_ms:.0f} ms in each{_collected(events.collector)}",
            remedy=remedy,
            how=how,
            evidence={**evidence, "each_ms": each_ms},
            level=_level(events),
            silences=("IO214",),  # which says the same of what lies in waits
            is_main_cause=leads(facts, events),
            **_bound(_most_ms(facts, events)),
        )


def less_writing(events: LoopEvents) -> str:
    """What makes writing shorter."""
    folder, name = posixpath.split(events.file or "")
    if name in ("", "*"):
        name = f"the files in {posixpath.basename(folder)}/" if folder else "its files"
    if events.is_one_file:
        return f"write {name} less often, or in a thread; a log can stay open"
    if events.is_made:
        return (
            f"write {name} less often, smaller or in a format that is faster to make, or in another process"
        )
    return f"write {'' if events.reopened else 'and sync '}{name} less often, or in a thread"


def _less_collecting(collector: Collector | None, function: str | None) -> tuple[str, str]:
    """What makes collections shorter or rarer, by what the collector is like; in short, and as a sentence."""
    if collector is not None and (not collector.enabled or collector.is_called):
        at = "" if function is None else f" in {function}"
        why = "" if collector.enabled else "the collector is disabled: "
        return (
            f"call gc.collect(){at} less often, or not at all",
            f"{why}the program calls gc.collect(){at}: do so every N steps, or not at all; gc.freeze() "
            "before the loop makes each call short",
        )
    if collector is not None and (collector.frozen >= _MANY_OBJECTS or collector.objects < _MANY_OBJECTS):
        few = "gc.freeze() was called" if collector.frozen >= _MANY_OBJECTS else "few objects stay"
        return (
            f"fewer new objects a step, gc.set_threshold({100 * max(collector.threshold, 100)}), or "
            "gc.disable() and a rare gc.collect()",
            f"{few}: the rest comes from objects that the loop makes; make fewer (arrays, no reference "
            "cycles), or collect more rarely: gc.set_threshold, or gc.disable() and gc.collect() every N "
            "steps to bound memory",
        )
    return (
        _GARBAGE,
        "gc.disable(), and gc.collect() every N steps to bound memory; or hold arrays, not millions of "
        "objects; or gc.freeze() before the loop, where most of them are made before it and stay",
    )


def _collected(collector: Collector | None) -> str:
    """Say how often it collects, and over how many objects."""
    if collector is None:
        return ""
    often = ""
    if collector.per_step and collector.full_per_step is not None:
        often = f", {collector.per_step:.2g} collections a step, {collector.full_per_step:.2g} of them full"
    frozen = f" ({many(collector.frozen)} frozen)" if collector.frozen >= _MANY_OBJECTS else ""
    return f"{often}, over {many(collector.objects)} objects{frozen}"
