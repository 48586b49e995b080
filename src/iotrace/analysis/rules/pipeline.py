"""Stages of the program's own that make the loop's items: the slowest, an idle one, work left to the loop."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec.structs import replace

from iotrace.analysis.results import HotLine, PipelineStage
from iotrace.analysis.rules.causes import MOSTLY, finding, is_worth, level, which
from iotrace.analysis.rules.facts.loader import LoaderFacts, TakenFrom
from iotrace.analysis.rules.locks import in_processes
from iotrace.analysis.rules.model import MORE_WORKERS, Finding, fires, rule, silent
from iotrace.units import percent

_ONE = {"threads": "thread", "processes": "process", "coroutines": "coroutine"}
_HELD = 0.85  # of the wait: a thread has the interpreter's lock
_COMPUTES = 0.5  # of its time: threads of Python code take turns then


def _stage(name: str, makers: int, busy: float, slowest: bool = False, of: str = "threads") -> PipelineStage:
    """Make a stage of an example."""
    return PipelineStage(
        name=name, makers=makers, of=of, busy=busy, items=400, item_ms=30.0, on_cpu_fraction=0.1, before=7.5,
        before_limit=8, puts="queue.Queue", wait_ms=40.0 if slowest else 2.0, slowest=slowest,
    )  # fmt: skip


def _set(
    name: str, makers: int, busy: float, setting: str, set_at: str, slowest: bool = False
) -> PipelineStage:
    """Make a stage of an example that a library calls, with as many threads as `setting` says."""
    stage = replace(_stage(name, makers, busy, slowest), before=None, before_limit=None)
    return replace(stage, setting=setting, setting_value=makers, set_at=set_at)


_POOL = TakenFrom("Pool", "load", 4, "processes", 30.0)
_ROLL = HotLine(line="train.py:9", calls="roll", library="numpy", fraction=0.8, samples=90)


@rule("IO230", "slowest-stage", "loader", turn=MORE_WORKERS)
@fires(
    {"pipeline": [_stage("read", 2, 0.3), _stage("decode", 4, 3.9, True), _stage("collate", 1, 0.1)]},
    {"pipeline": [replace(_stage("fetch", 2, 2.0, True, "processes"), hot=_ROLL, site="train.py:7")]},
    {"pipeline": [_stage("read", 1, 0.2), _stage("augment", 1, 0.5, True, "processes")]},
    {"pipeline": [_set("download", 1, 0.9, "concurrency", "train.py:9", True), _stage("decode", 2, 0.3)]},
    {"pipeline": [_set("load", 2, 1.9, "concurrency", "train.py:9", True)], "queueing_ms": 30.0},
    {"pipeline": [_set("load", 2, 1.9, "num_parallel_calls", "a.py:9", True)], "lock_held": 0.95},
    {"pipeline": [_stage("fetch", 2, 2.0, True)], "asleep": 0.1, "on_cpu": 0.2, "core_free": False},
    {
        "pipeline": [replace(_stage("blur", 1, 1.0, True), on_cpu_fraction=0.6)],
        "core_free": False,
        "lock_held": 0.1,
    },
    # Two functions on the same threads, which are all busy.
    {
        "pipeline": [
            _set("load", 1, 0.6, "ReadOptions(num_threads)", "train.py:9", True),
            _set("resize", 1, 0.35, "ReadOptions(num_threads)", "train.py:9"),
        ]
    },
)
@silent(
    {"pipeline": [_stage("read", 2, 0.3), replace(_stage("decode", 4, 1.0, True), before=2.0)]},
    {"pipeline": [_stage("decode", 4, 3.9, True)], "wait_ms": 4.0},
    {"pipeline": [_stage("read", 2, 0.3)]},
    # Each has threads of its own, and neither is busy.
    {
        "pipeline": [
            _set("load", 1, 0.6, "concurrency", "train.py:9", True),
            _set("resize", 1, 0.35, "concurrency", "train.py:10"),
        ]
    },
)
def slowest_stage(facts: LoaderFacts, *, busy: float = 0.8, full: float = 0.8) -> Iterator[Finding]:
    """The loop waits for one stage of the program's own pipeline: its threads or processes all work.

    A stage is what puts into one queue, or works for one pool. iotrace follows each item back through the
    queues. A stage that neither waits for input nor for room in the queue behind it is the slowest one. So is
    one before which the queue is full, where it lacks a CPU, or unpickles its input, for much of its time.

    Remedy: more threads for a stage that sleeps, or calls libraries that release the interpreter's lock;
    processes for one that computes in Python or reads HDF5, as threads take turns there; or less work for it.
    Less work comes first where a stage computes, or queues for a CPU, and none was free: more of them would
    queue, too. Samples of the loop's thread show how often another thread has that lock while the loop waits,
    those of a stage's own threads in which line it is.
    """
    stage = next((each for each in facts.pipeline if each.slowest), None)
    if stage is None or not facts.is_waited_for:
        return
    is_full = bool(stage.before_limit) and (stage.before or 0.0) >= full * (stage.before_limit or 0)
    sharing = [each for each in facts.pipeline if each is stage or _set_together(each, stage)]
    if sum(each.busy for each in sharing) < busy * stage.makers and not is_full:
        return
    others = [each.busy / each.makers for each in facts.pipeline if each not in sharing]
    least_ms = max(facts.step_ms - facts.bound_ms, facts.step_ms * max(others, default=0.0), facts.on_cpus_ms)
    gain_ms = min(facts.bound_ms, facts.step_ms - least_ms)
    if not is_worth(gain_ms, facts):
        return
    computes = stage.of == "threads" and (stage.on_cpu_fraction or 0.0) >= _COMPUTES
    full = facts.core_free is False and _needs_cpus(stage)
    if facts.lock_held is not None and facts.lock_held < _COMPUTES:
        computes = False  # in libraries that release the interpreter's lock
    takes_turns = stage.of == "threads" and not computes and (facts.lock_held or 0.0) >= _HELD
    queues = facts.queue_for_cpus or facts.queueing_ms >= MOSTLY * stage.wait_ms
    line = file_of(stage.hot.line if stage.hot is not None else stage.site)
    inner = None if stage.hot is None else stage.hot.in_callee_of(stage.name)
    name = f"{inner or stage.name} ({line})" if line else stage.name
    if queues:
        how = f"its {stage.of} queue for busy CPUs, and more of them would, too; give it less work"
        # What others took of the CPUs may be the reason: then nothing is due.
        remedy = "" if facts.others_may_make_it else f"make {name} faster: no CPU is free"
    elif takes_turns:
        how = (
            f"a thread has Python's interpreter in {percent(facts.lock_held or 0.0)} of the wait: more of "
            "them would take turns. Give it less work; threads that a library starts in it may be too many"
        )
        remedy = f"make {name} faster: threads take turns at Python's interpreter"
    elif full:
        more = "processes" if computes else f"more {stage.of}"
        how = f"give it less work, or {more} where CPUs are free: here none was"
        remedy = f"make {name} faster, or {more} once CPUs are free"
    elif computes:
        how = (
            f"its threads compute in {percent(stage.on_cpu_fraction or 0.0)} of that: processes do so at "
            "once, where threads of Python code take turns; or give it less work"
        )
        remedy = in_processes(facts)
    elif stage.of == "threads" and "h5py" in facts.making.locks:
        how = "its threads read HDF5, and h5py lets one of them in at a time; processes read at once"
        remedy = in_processes(facts)
    elif stage.setting:
        now = "" if stage.setting_value is None else f" from {stage.setting_value}"
        at = f", at {file_of(stage.set_at)}" if stage.set_at else ""
        how = f"raise {stage.setting}{now}{at}, or give it less work"
        remedy = f"raise {stage.setting}{now}{at}"
    else:
        how = f"give it more {stage.of}, or less work"
        remedy = f"more {stage.of}, or less work in {name}"
    where = "" if stage.hot is None else stage.hot.beside(stage.name, "most of its work")
    yield finding(
        facts,
        text=f"the loop waits for {described(stage)}{where}",
        how=how,
        remedy=remedy,
        level=level(stage.wait_ms, facts),
        evidence={"busy": stage.busy, "makers": float(stage.makers), **which(facts)},
        gain_ms=None if queues or takes_turns or full else gain_ms,
        cost_ms=stage.wait_ms,
        is_main_cause=stage.wait_ms >= MOSTLY * facts.wait_ms,
        # Which speaks of the last stage alone; of one that sleeps it says no more than this.
        silences=("IO103",) if len(facts.pipeline) > 1 or full or not computes else (),
    )


@rule("IO234", "queue-too-short", "loader", turn=MORE_WORKERS)
@fires(
    {"pipeline": [replace(_stage("read", 1, 0.3), room_fraction=0.7, after_limit=1)]},
    {"pipeline": [replace(_stage("read", 4, 1.4), room_fraction=0.6, after_limit=2)]},
)
@silent(
    # The loop hardly waits: that there is no room says that it is slow.
    {"pipeline": [replace(_stage("read", 1, 0.3), room_fraction=0.7, after_limit=1)], "wait_ms": 4.0},
    {"pipeline": [replace(_stage("read", 1, 0.9), room_fraction=0.1, after_limit=1)]},
    {"pipeline": [_stage("read", 1, 0.3)]},
    # The queue before the last stage.
    {
        "pipeline": [
            replace(_stage("read", 1, 0.3), room_fraction=0.7, after_limit=1),
            _stage("decode", 1, 1.0, True),
        ]
    },
)
def queue_too_short(facts: LoaderFacts, *, room: float = 0.5) -> Iterator[Finding]:
    """The queue before the loop is too short: its makers wait for room, and later the loop waits for them.

    The makers of items are fast enough on average, as they wait for room for half of their time or more. But
    the loop or the making is uneven. During a long step, no more items get ready than the queue holds. The
    loop then takes these faster than new ones are made.

    Remedy: a larger ``maxsize``: as many items as the loop takes between two long steps. They take memory.
    """
    last = facts.pipeline[-1] if facts.pipeline else None
    if last is None or last.after_limit is None or (last.room_fraction or 0.0) < room:
        return
    if not facts.is_waited_for:
        return
    blocked = last.room_fraction or 0.0
    queue, site = f"{last.puts}({last.after_limit})", (facts.about.site or "").rpartition("/")[2]
    where = f"{queue}, read at {site}," if site else queue
    least_ms = max(facts.step_ms - facts.bound_ms, last.item_ms / max(1, last.makers))
    yield finding(
        facts,
        text=(
            f"{where} holds too few items: {last.name} waits for room {percent(blocked)} of its "
            f"time, and the loop still waits {facts.wait_ms:.1f} ms a step"
        ),
        how=f"give {queue} a larger maxsize: the loop, or {last.name}, is slow now and then",
        remedy=f"a larger maxsize for {queue}",
        level=level(facts.wait_ms, facts),
        evidence={"room_fraction": blocked, "limit": last.after_limit, **which(facts)},
        gain_ms=min(facts.bound_ms, max(0.0, facts.step_ms - least_ms)),
        cost_ms=facts.wait_ms,
        is_main_cause=True,
        silences=("IO101", "IO102", "IO103", "IO230"),
    )


@rule("IO235", "finished-in-the-loop", "loader", turn=MORE_WORKERS)
@fires(
    {"cause": "transform", "dataset": "batches", "asleep": 0.0, "on_cpu": 1.0, "taken_from": _POOL},
    {
        "cause": "transform",
        "dataset": "batches",
        "taken_from": TakenFrom("queue.Queue", "reader", 1, "threads", 10.0),
    },
)
@silent(
    {"cause": "transform", "dataset": "batches"},
    {"cause": "transform", "wait_ms": 4.0, "causes_ms": {"transform": 4.0}, "taken_from": _POOL},
    # Its makers have no time left: the loop would wait for them as long.
    {"cause": "transform", "taken_from": TakenFrom("Pool", "load", 1, "processes", 99.0)},
)
def finished_in_the_loop(facts: LoaderFacts) -> Iterator[Finding]:
    """The loop's own thread works on each item that the loop's iterator takes from a pool or a queue.

    A generator that takes from ``Pool.imap`` and augments does that while the loop waits, whatever the number
    of workers. iotrace counts it as a wait where samples find the loop nowhere else until its step begins.

    Remedy: do that work in the pool's task, or in the thread that puts into the queue.
    """
    taken, own_ms = facts.taken_from, facts.causes_ms.get("transform", 0.0)
    if taken is None or not facts.is_waited_for or own_ms < MOSTLY * facts.wait_ms:
        return
    least_ms = max(facts.step_ms - facts.bound_ms, (taken.item_ms + own_ms) / taken.makers)
    gain_ms = min(facts.bound_ms, own_ms, facts.step_ms - least_ms)
    if not is_worth(gain_ms, facts):
        return
    yield finding(
        facts,
        text=f"{facts.about.dataset} works on each item of the {taken.kind} in the loop's own thread: "
        f"{own_ms:.1f} ms of wait a step",
        how=f"do that in {taken.maker}, ahead of the loop: {taken.who} of the {taken.kind} run it",
        remedy=f"do that work in {taken.maker}, which {taken.who} of the {taken.kind} run"
        + ("s" if taken.makers == 1 else ""),
        level=level(own_ms, facts),
        evidence={"transform_ms": own_ms, "makers": float(taken.makers), **which(facts)},
        gain_ms=gain_ms,
        cost_ms=own_ms,
        tries=True,
    )


_IDLE = {"cause": "unknown", "pipeline": [_stage("decode", 2, 0.1)]}


@rule("IO236", "makers-idle", "loader", turn=MORE_WORKERS)
@fires(
    _IDLE,
    {**_IDLE, "pipeline": [_stage("decode", 1, 0.3, of="processes")]},
    {**_IDLE, "pipeline": [_set("fetch", 2, 0.1, "concurrency", "train.py:9")]},
)
@silent(
    {"cause": "unknown"},
    {**_IDLE, "cause": "transform"},
    {**_IDLE, "pipeline": [_stage("decode", 2, 1.8)]},
    {**_IDLE, "pipeline": [replace(_stage("decode", 2, 0.1), room_fraction=0.8)]},
    {**_IDLE, "wait_ms": 4.0, "causes_ms": {"unknown": 4.0}},
    {**_IDLE, "library": "torchdata", "pipeline": [_stage("torchdata", 1, 0.1), _stage("encode", 2, 0.1)]},
    # Nothing tells that it waits for input: a stage before it has items for it.
    {**_IDLE, "pipeline": [_stage("read", 2, 1.9), _stage("decode", 2, 0.1)]},
)
def makers_idle(facts: LoaderFacts, *, busy: float = 0.5) -> Iterator[Finding]:
    """The loop waits, and so do the makers of its items: for input that iotrace cannot see.

    Their input comes from coroutines, a server or a library that iotrace does not follow. They are busy for
    little of their time, and do not wait for room in the queue after them.

    Remedy: ask for more of the input at once, such as with more requests or coroutines at a time. A library
    iterates the source of its stages in turn: move what that does for each item into a stage of its own.
    """
    idle = [each for each in facts.pipeline if each.busy < busy * each.makers]
    unseen_ms = facts.causes_ms.get("unknown", 0.0)
    if not idle or len(idle) < len(facts.pipeline) or not facts.is_waited_for:
        return
    first = facts.pipeline[0]
    # Of a library's own threads nothing tells whether they wait for input, or for room.
    if first.name == facts.about.library:
        return
    if unseen_ms < MOSTLY * facts.wait_ms or (first.room_fraction or 0.0) >= busy:
        return
    how = (
        "ask for more of that input at once (requests, coroutines), if a server or storage can answer several"
    )
    remedy = f"ask for more of the input of {first.name} at once (requests, coroutines)"
    if first.setting:
        in_turn = f"{first.puts} iterates the source of its stages in turn: move what that does for each item"
        how = f"{in_turn} into a stage of its own; or {how}"
        remedy = f"move what the source does for each item into a stage before {first.name}"
    yield finding(
        facts,
        text=f"the {first.of} of stage {first.name} work {percent(first.busy / first.makers)} of the time, "
        f"and wait for input that iotrace does not follow: {unseen_ms:.1f} ms of wait a step",
        how=how,
        remedy=remedy,
        level=level(unseen_ms, facts),
        evidence={"busy": first.busy, "makers": float(first.makers), **which(facts)},
        gain_ms=min(facts.bound_ms, unseen_ms),
        cost_ms=unseen_ms,
        is_main_cause=True,
        tries=True,
    )


_ROWS = replace(
    _stage("rows", 1, 0.5, True), items=30_000, item_ms=0.1, before=None, puts="tensorflow", site="d/a.py:9"
)
_BY_ROWS = {"cause": "transform", "batches": 100, "pipeline": [_ROWS]}
_BY_ROWS |= {"causes_ms": {"transform": 22.0, "unknown": 20.0}}


@rule("IO253", "single-elements", "loader", turn=MORE_WORKERS)
@fires(_BY_ROWS, {**_BY_ROWS, "pipeline": [replace(_ROWS, site=None)]})
@silent(
    {**_BY_ROWS, "pipeline": [replace(_ROWS, items=800)]},
    {**_BY_ROWS, "pipeline": [replace(_ROWS, item_ms=3.0)]},
    {**_BY_ROWS, "pipeline": [replace(_ROWS, puts="queue.Queue")]},
    {**_BY_ROWS, "causes_ms": {"transform": 41.0, "unknown": 1.0}},
)
def single_elements(
    facts: LoaderFacts, *, least: float = 16.0, most_ms: float = 1.0, least_unseen: float = 0.25
) -> Iterator[Finding]:
    """``tf.data`` calls a function of the program for each element of a batch, and each call is short.

    To hand an element over takes as long as such a call, in code of TensorFlow that iotrace does not see. So
    much of the wait lies there, and none of the calls is slow.

    Remedy: let the function, or the generator, make whole batches; or give the data as arrays
    (`from_tensor_slices`).
    """
    stage = next((each for each in facts.pipeline if each.slowest), None)
    unseen_ms = facts.causes_ms.get("unknown", 0.0)
    if stage is None or stage.puts != "tensorflow" or not facts.batches or not facts.is_waited_for:
        return
    elements = stage.items / facts.batches
    if elements < least or stage.item_ms > most_ms or unseen_ms < least_unseen * facts.wait_ms:
        return
    where = f" ({file_of(stage.site)})" if stage.site else ""
    yield finding(
        facts,
        text=f"tf.data takes single elements from {stage.name}{where}: {elements:.0f} for each batch, "
        f"{stage.item_ms:.2f} ms each, and {unseen_ms:.1f} ms of wait a step in TensorFlow itself",
        how=f"let {stage.name} make whole batches, or give the data as arrays (from_tensor_slices)",
        remedy=f"let {stage.name} make whole batches, or use from_tensor_slices",
        level=level(stage.wait_ms + unseen_ms, facts),
        evidence={"elements": elements, "item_ms": stage.item_ms, **which(facts)},
        cost_ms=stage.wait_ms + unseen_ms,
        is_main_cause=stage.wait_ms + unseen_ms >= MOSTLY * facts.wait_ms,
        silences=("IO103", "IO236"),
    )


def _needs_cpus(stage: PipelineStage) -> bool:
    """Whether its makers mostly compute, or are ready to and have no CPU; taken so where not timed."""
    if stage.on_cpu_fraction is None:
        return True
    return stage.on_cpu_fraction + (stage.queued_fraction or 0.0) >= _COMPUTES


def _set_together(one: PipelineStage, other: PipelineStage) -> bool:
    """Whether the same threads work for both."""
    return other.set_at is not None and (one.setting, one.set_at) == (other.setting, other.set_at)


def file_of(site: str | None) -> str:
    """Shorten a line's file to its name."""
    return (site or "").rpartition("/")[2]


def described(stage: PipelineStage) -> str:
    """Say how busy a stage is, and what lies before it."""
    who = stage.of if stage.makers != 1 else _ONE[stage.of]
    share = stage.busy if stage.busy < stage.makers - 0.05 else float(stage.makers)
    where = f" ({file_of(stage.site)})" if stage.site else ""
    text = f"stage {stage.name}{where}: {share:.2g} of {stage.makers} {who} busy"
    if stage.before is None:
        return text
    most = f" of {stage.before_limit}" if stage.before_limit else ""
    return f"{text}, {stage.before:.1f}{most} items before it"
