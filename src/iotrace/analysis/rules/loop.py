"""What the training thread itself does in its steps, beside its computing."""

from __future__ import annotations

import posixpath
from collections.abc import Iterator
from operator import attrgetter

from iotrace.analysis.results import Collector, Evidence, LoopEvents
from iotrace.analysis.rules.facts.rank import RankFacts
from iotrace.analysis.rules.iterators import validation_restarts
from iotrace.analysis.rules.model import THE_LOOP, Finding, rule
from iotrace.analysis.wait.data_wait import KEPT_UP_PERCENT, MODERATELY_PERCENT, bound_fraction
from iotrace.units import many, percent

_HIGH = 0.2  # of a step
_MUCH = 0.1  # of the loop
_WAITING = ("asyncio", "concurrent", "multiprocessing", "queue", "threading")  # their calls wait for others
_MOSTLY = 0.5  # of the time that writing takes
_ASYNCHRONOUS = "torch.distributed.checkpoint.async_save"
_GARBAGE = "gc.freeze() before the loop, or fewer objects, or gc.disable() and a rare gc.collect()"
_STARTING = 0.25  # of an evaluation
_LEAST_SECONDS = 0.3  # of what recurs, in all
_EVENTS = {"count": 8, "seconds": 10.4, "loop_seconds": 15.0, "loop_fraction": 0.69, "every_steps": 10.0}
_EVALUATION = {**_EVENTS, "kind": "evaluation", "seen_seconds": 10.4, "wait_seconds": 0.1, "workers": 2}
_CHECKPOINT = {**_EVENTS, "kind": "checkpoint", "seen_seconds": 10.4, "file": "ck-*.pt", "bytes": 4_000_000}
_SYNC = {**_EVENTS, "kind": "writing", "seen_seconds": 0.1, "file": "run.log"}
_MANY_OBJECTS = 100_000  # whose full collection takes some ms
_COLLECTOR = {
    "enabled": True,
    "threshold": 700,
    "objects": 3_000_000,
    "frozen": 0,
    "per_step": 8.6,
    "full_per_step": 0.7,
}
_COLLECTION = {**_EVENTS, "kind": "collection", "seen_seconds": 10.4}
_ONCE = {"count": 1, "every_steps": None}
_RARE = {"seconds": 0.6, "loop_fraction": 0.04}
_PHASES = {"forward": 2.0, "backward": 4.0, "optimizer": 1.0, "other": 90.0}
CODE_OF_THE_LOOP, PREPARED_IN_THE_LOOP = "IO506", "IO508"
_CODE = {
    "function": "log (train.py:9)",
    "seconds": 7.0,
    "samples": 90,
    "ms_per_step": 70.0,
    "loop_fraction": 0.7,
}
_NOW_AND_THEN = {**_CODE, "count": 4, "every_steps": 25.0}
_ADD_IMAGES = {
    "line": "train.py:20",
    "calls": "SummaryWriter.add_images",
    "library": "torch",
    "fraction": 0.9,
    "samples": 90,
}
_LOGGING = {**_CODE, "hot": _ADD_IMAGES}
# Functions of libraries that log: how their names begin. TensorBoard's writer is torch's.
_LOGGERS: dict[str | None, tuple[str, ...]] = {
    "torch": ("SummaryWriter.",),
    "tensorboardX": ("SummaryWriter.",),
    "wandb": ("Run.", "log", "Image"),
    "mlflow": ("log_", "MlflowClient.log_"),
    "matplotlib": ("savefig", "Figure.savefig"),
}
# What is known to be slow, and quick another way.
_QUICKER: dict[tuple[str | None, str | None], str] = {
    ("random", "Random.sample"): "if random.sample takes from a deque, take from a list or an array",
    ("random", "Random.choices"): "if random.choices takes from a deque, take from a list or an array",
}
_FEEDING = {
    "before_ms": 45.0,
    "before_fraction": 0.45,
    "function": "batch_of (train.py:9)",
    "function_ms": 41.0,
}
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


def _most_ms(facts: RankFacts, events: LoopEvents) -> float | None:
    """What a step loses without them; None where the steps of the run are not known."""
    account = facts.report.account
    return 1e3 * events.seconds / account.steps if account is not None and account.steps else None


def _has_room(facts: RankFacts, workers: int) -> bool:
    """Whether one worker more would have a CPU."""
    system = facts.report.system
    return workers + 1 < (system.cpus or 0) or (system.host is not None and system.host.has_free_cpus)


def _leads(facts: RankFacts, events: LoopEvents) -> bool:
    """Whether it takes most of the loop, or much of it and more than the data wait does."""
    waits = bound_fraction(facts.report.data_wait) or 0.0
    return events.loop_fraction >= _MOSTLY or events.loop_fraction >= max(_MUCH, waits)


def _level(events: LoopEvents) -> str:
    return "high" if events.loop_fraction >= _HIGH else "medium"


@rule(
    "IO503",
    "recurring-evaluation",
    "loop",
    turn=THE_LOOP,
    saves_wait=False,
    of_run=True,
    fires=[
        {"loop_events": [_EVALUATION]},
        {"loop_events": [{**_EVALUATION, "wait_seconds": 9.0}]},
        {"loop_events": [{**_EVALUATION, "wait_seconds": 9.0, "workers": 8}]},
        {"loop_events": [{**_EVALUATION, "start_seconds": 5.0, "persistent_workers": False}]},
        {"loop_events": [{**_EVALUATION, "workers": None, "function": "Images.__getitem__ (train.py:9)"}]},
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
    data, and starting workers, has another remedy than computing. Where no loader feeds them, samples of the
    thread's stack say what they are in.

    Remedy: validate less often; keep the workers of its loader, or give it more of them.
    """
    for events, evidence in _recurring(facts, "evaluation", least_of_loop):
        remedy, waits = "validate less often", events.wait_seconds or 0.0
        starts = (events.start_seconds or 0.0) >= _STARTING * events.seconds
        if starts and events.workers and events.persistent_workers is False:
            if any(validation_restarts(facts)):  # which says the same, and comes first
                continue
            remedy = "persistent_workers=True for the loader of validation, or validate less often"
        elif waits >= _MOSTLY * events.seconds and _has_room(facts, events.workers or 0):
            remedy = "more workers for the loader of validation, or validate less often"
        elif events.function is not None:
            remedy = f"validate by a DataLoader with workers, or less often: it is in {events.function}"
        yield Finding(
            text=events.said,
            remedy=remedy,
            evidence={**evidence, "wait_seconds": waits},
            level=_level(events),
            is_main_cause=_leads(facts, events),
            gain_ms=_most_ms(facts, events),
        )


@rule(
    "IO504",
    "recurring-checkpoint",
    "loop",
    turn=THE_LOOP,
    saves_wait=False,
    of_run=True,
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
            is_main_cause=_leads(facts, events),
            gain_ms=_most_ms(facts, events),
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
        {"loop_events": [{**_SYNC, "seen_seconds": 10.4, "reopened": True, "every_steps": 1.0}]},
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
        if (events.every_steps or 0.0) < least_every_steps and not events.reopened:
            continue
        name = "its files" if events.file is None else posixpath.basename(events.file)
        yield Finding(
            text=events.said,
            remedy=f"keep {name} open and append to it, or write less often"
            if events.reopened
            else f"write and sync {name} less often, or in a thread",
            evidence=evidence,
            level=_level(events),
            is_main_cause=_leads(facts, events),
            gain_ms=_most_ms(facts, events) if events.reopened else None,
        )


@rule(
    "IO507",
    "collecting-garbage-in-the-loop",
    "loop",
    turn=THE_LOOP,
    saves_wait=False,
    of_run=True,
    fires=[
        {"loop_events": [_COLLECTION]},
        {"loop_events": [{**_COLLECTION, "collector": _COLLECTOR}]},
        {"loop_events": [{**_COLLECTION, "collector": {**_COLLECTOR, "frozen": 3_000_000}}]},
        {"loop_events": [{**_COLLECTION, "collector": {**_COLLECTOR, "enabled": False}}]},
        {"loop_events": [{**_COLLECTION, "collector": {**_COLLECTOR, "objects": 60_000}}]},
    ],
    silent=[
        {"loop_events": [{**_COLLECTION, **_ONCE}]},
        {"loop_events": [{**_COLLECTION, **_RARE}]},
        {"loop_events": [_CHECKPOINT]},
    ],
)
def collecting_garbage_in_the_loop(facts: RankFacts, *, least_of_loop: float = 0.05) -> Iterator[Finding]:
    """Python's garbage collector stops the loop, outside of its waits, for much of its time in all.

    A full collection looks at all objects of the process. Millions of them, such as a list of indices, make
    it long; code that makes many objects, or calls `gc.collect()`, makes it frequent. Single collections may
    be too short to make a step slow.

    Remedy: `gc.freeze()` before the loop takes the objects that stay out of it; or hold arrays in place of
    them; or `gc.disable()`, and `gc.collect()` every so many steps, which bounds the memory. Where they are
    frozen already, or few: make fewer objects in the loop, or let more of them come before a collection
    (`gc.set_threshold`). Where the collector is disabled, the program calls `gc.collect()`: do so less often.
    """
    for events, evidence in _recurring(facts, "collection", least_of_loop):
        each_ms = 1e3 * events.seconds / events.count
        remedy, how = _less_collecting(events.collector)
        yield Finding(
            text=f"{events.said}; {each_ms:.0f} ms in each{_collected(events.collector)}",
            remedy=remedy,
            how=how,
            evidence={**evidence, "each_ms": each_ms},
            level=_level(events),
            silences=("IO214",),  # which says the same of what lies in waits
            is_main_cause=_leads(facts, events),
            gain_ms=_most_ms(facts, events),
        )


def _less_collecting(collector: Collector | None) -> tuple[str, str]:
    """What makes collections shorter or rarer, by what the collector is like; in short, and as a sentence."""
    if collector is not None and not collector.enabled:
        return "call gc.collect() less often", "the collector is disabled: the program calls gc.collect()"
    if collector is not None and (collector.frozen >= _MANY_OBJECTS or collector.objects < _MANY_OBJECTS):
        few = "gc.freeze() was called" if collector.frozen >= _MANY_OBJECTS else "few objects stay"
        return (
            f"fewer new objects a step, gc.set_threshold({100 * max(collector.threshold, 100)}), or "
            "gc.disable() and a rare gc.collect()",
            f"{few}: what is left comes of the objects that the loop makes; make fewer (arrays, no reference "
            "cycles), or collect more rarely: gc.set_threshold, or gc.disable() and gc.collect() every so "
            "many steps to bound memory",
        )
    return (
        _GARBAGE,
        "gc.freeze() before the loop takes the objects that stay out of collections; hold arrays, "
        "not millions of objects; or gc.disable(), and gc.collect() every so many steps to bound memory",
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


@rule(
    PREPARED_IN_THE_LOOP,
    "prepared-in-the-loop",
    "loop",
    turn=THE_LOOP,
    saves_wait=False,
    fires=[
        {"feeding": _FEEDING},
        {"feeding": {**_FEEDING, "hot": {**_ADD_IMAGES, "calls": "load", "library": None}}},
        {"feeding": {**_FEEDING, "hot": {**_ADD_IMAGES, "calls": "Random.sample", "library": "random"}}},
        {"feeding": {**_FEEDING, "hot": {**_ADD_IMAGES, "calls": "Queue.get", "library": "queue"}}},
    ],
    silent=[
        {"feeding": {**_FEEDING, "before_ms": 5.0, "before_fraction": 0.05, "function_ms": 4.0}},
        {"feeding": {**_FEEDING, "function": None, "function_ms": None}},
        {"feeding": {**_FEEDING, "function_ms": 8.0}},
        {"feeding": {**_FEEDING, "asleep": "the loop sleeps in multiprocessing.Semaphore.acquire"}},
        {},
    ],
)
def prepared_in_the_loop(facts: RankFacts, *, least_percent: float = KEPT_UP_PERCENT) -> Iterator[Finding]:
    """The loop takes no batches from a loader: it works by itself before the forward pass of each step.

    A program that takes its samples from a list or a file in the loop's own body makes its batches there, and
    does not train meanwhile. Samples of the thread's stack say in which function, or in which line. Other
    work of the loop may lie there, too, such as logging. Calls of models without gradients are none of it.

    Remedy: make that line faster. Where the loop adds nothing to its data, as it does to a replay buffer,
    move it into a `Dataset` or a collate function: the workers of a `DataLoader` work ahead of the loop.
    """
    found, step_ms = facts.report.feeding, facts.report.steps.mean_ms
    if found is None or found.function is None or found.function_ms is None or not step_ms or found.asleep:
        return
    if 100 * found.function_ms < least_percent * step_ms:
        return
    hot, waits = found.hot, found.hot is not None and found.hot.library in _WAITING
    faster = f"make {found.function if hot is None else hot.line} faster"
    if hot is not None and (hot.library, hot.calls) in _QUICKER:
        faster = f"{_QUICKER[hot.library, hot.calls]} (at {hot.line})"
    remedy = f"{faster}; or, unless the loop adds to its data, move it into a Dataset: workers do it ahead"
    if hot is not None and waits:
        remedy = f"if its data comes at {hot.line}: iotrace.batches(YOUR_ITERABLE) around that names the wait"
    yield Finding(
        text=f"no known loader feeds the loop: before its forward pass it is in {found.function} "
        f"for {found.function_ms:.1f} of {step_ms:.1f} ms of each step"
        + ("" if hot is None else hot.beside(found.function))
        + (", which waits for a thread or process" if waits else ""),
        remedy=remedy,
        evidence={"before_ms": found.before_ms, "function_ms": found.function_ms},
        level="high" if found.function_ms > _HIGH * step_ms else "medium",
        gain_ms=None if waits else found.function_ms,
    )


@rule(
    "IO511",
    "logging-in-the-loop",
    "loop",
    turn=THE_LOOP,
    saves_wait=False,
    fires=[{"loop_code": [_LOGGING]}, {"loop_code": [{**_LOGGING, "count": 5, "every_steps": 20.0}]}],
    silent=[
        {"loop_code": [_CODE]},
        {"loop_code": [{**_CODE, "hot": {**_ADD_IMAGES, "library": None}}]},
        {"loop_code": [{**_CODE, "hot": {**_ADD_IMAGES, "library": "torch", "calls": "stack"}}]},
        {"loop_code": [{**_LOGGING, "loop_fraction": 0.04}]},
    ],
)
def logging_in_the_loop(facts: RankFacts, *, least_of_loop: float = 0.05) -> Iterator[Finding]:
    """The loop hands images, histograms or figures to a logger, and that takes much of its time.

    Samples of the thread's stack show the line, and the logger's function that it is in: that of TensorBoard,
    Weights & Biases or MLflow, or matplotlib's `savefig`. The logger encodes and writes while the loop waits.

    Remedy: log less often, or fewer and smaller images.
    """
    for code in facts.report.loop_code:
        hot = code.hot
        if hot is None or hot.calls is None or code.loop_fraction < least_of_loop:
            continue
        if not hot.calls.startswith(_LOGGERS.get(hot.library, ())):
            continue
        yield Finding(
            text=f"{hot.calls} at {hot.line} takes {percent(code.loop_fraction)} of the loop",
            remedy=f"log less often: {hot.calls} at {hot.line}",
            how=f"call {hot.calls} every so many steps, or with fewer and smaller images",
            evidence={"ms_per_step": code.ms_per_step},
            level="high" if code.loop_fraction >= _HIGH else "medium",
            gain_ms=code.ms_per_step,
            silences=("IO509",),
        )


@rule(
    "IO509",
    "recurring-code",
    "loop",
    turn=THE_LOOP,
    saves_wait=False,
    fires=[{"loop_code": [_NOW_AND_THEN]}],
    silent=[
        {"loop_code": [_CODE]},
        {"loop_code": [{**_CODE, "count": 1}]},
        {"loop_code": [{**_NOW_AND_THEN, "seconds": 0.4, "loop_fraction": 0.04}]},
    ],
)
def recurring_code(facts: RankFacts, *, least_of_loop: float = 0.05) -> Iterator[Finding]:
    """The loop calls a function of the program now and then, and that takes much of its time.

    It is no evaluation, checkpoint or writing that is seen as such; samples of the thread's stack name it.
    Nearly all of them lie in few steps, several in each.

    Remedy: call it less often, make it faster, or do it in another process.
    """
    for code in facts.report.loop_code:
        if code.hot is not None and code.hot.library in _WAITING:
            continue  # it waits there for a thread or process, whatever that does
        if code.recurs and code.loop_fraction >= least_of_loop and code.seconds >= _LEAST_SECONDS:
            yield Finding(
                text=code.said,
                remedy=f"call {code.function} less often, or make it faster",
                evidence={"count": float(code.count or 0), "seconds": code.seconds},
                level="high" if code.loop_fraction >= _HIGH else "medium",
            )


@rule(
    CODE_OF_THE_LOOP,
    "code-of-the-loop",
    "loop",
    turn=THE_LOOP,
    saves_wait=False,
    fires=[{"phases_ms": _PHASES}, {"phases_ms": _PHASES, "loop_code": [_CODE]}],
    silent=[
        {"phases_ms": {**_PHASES, "other": 40.0}},
        {"phases_ms": {**_PHASES, "other": None}},
        {"phases_ms": _PHASES, "accelerator": {"span_us": 1000.0, "idle_us": 10.0}},
        {"phases_ms": _PHASES, "writes": {**_WRITES, "writing_ms": 60.0}},
        {"phases_ms": _PHASES, "loop_reads": {"read_ms": 60.0, "decode_ms": 0.0}},
        {"phases_ms": _PHASES, "loop_events": [{**_CHECKPOINT, "seconds": 6.0}]},
        {"phases_ms": _PHASES, "loop_events": [{**_COLLECTION, "seconds": 6.0}]},
        {"phases_ms": _PHASES, "loop_code": [_NOW_AND_THEN]},
    ],
)
def code_of_the_loop(facts: RankFacts, *, least_of_step: float = 0.5) -> Iterator[Finding]:
    """Most of a step is code of the loop outside of forward, backward, optimizer and data wait.

    Logging, metrics and losses that are no modules are such code. Not told beside an accelerator, as the loop
    may wait for that there, and where the loop's own reads, writes or checkpoints are most of it.

    Samples of the thread's stack name the function, or the line, that most of it is in.

    No remedy: `iotrace.region` around parts of the loop names what no such function does.
    """
    report = facts.report
    other_ms, step_ms = report.phases_ms.other, report.steps.mean_ms
    device, reads, writes = report.accelerator, report.loop_reads, facts.writes
    if other_ms is None or not step_ms or other_ms < least_of_step * step_ms:
        return
    if device is not None and device.span_us:
        return
    named = ("checkpoint", "collection")
    events_ms = sum(1e3 * each.seconds for each in report.loop_events if each.kind in named)
    events_ms += sum(1e3 * each.seconds for each in report.loop_code if each.recurs)
    known_ms = events_ms / max(1, report.steps.count)
    known_ms += 0.0 if reads is None else reads.read_ms + reads.decode_ms
    known_ms += 0.0 if writes is None else writes.writing_ms
    if known_ms >= _MOSTLY * other_ms:
        return
    most = max(report.loop_code, key=attrgetter("ms_per_step"), default=None)
    naming = "; iotrace.region names it"
    if most is not None and most.ms_per_step >= _MOSTLY * other_ms:
        at = "" if most.hot is None else most.hot.beside(most.function)
        naming = f": most of it {most.function}{at}"
    yield Finding(
        text=(
            f"{other_ms:.1f} of {step_ms:.1f} ms of a step is code of the loop outside of forward, backward "
            f"and optimizer{naming}"
        ),
        evidence={"other_ms": other_ms, "step_ms": step_ms},
    )
