"""Stages of the program's own that make the loop's items, and the lock that its threads share."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from msgspec.structs import replace

from iotrace.analysis.results import PipelineStage
from iotrace.analysis.rules.causes import MOSTLY, finding, is_worth, level, which
from iotrace.analysis.rules.facts.loader import LoaderFacts
from iotrace.analysis.rules.facts.making import LockWait, Making
from iotrace.analysis.rules.model import MORE_WORKERS, Finding, rule
from iotrace.units import percent

_LEADING = 0.25  # of the wait: what a verdict names before its cause
_ONE = {"threads": "thread", "processes": "process", "coroutines": "coroutine"}
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


def _locked(lock: str, ms: float, each_ms: float, sharing: int = 4, **more: Any) -> Making:
    """Make the facts of an example."""
    return Making(locks={lock: LockWait(ms=ms, each_ms=each_ms, item_ms=31.0, sharing=sharing, **more)})


@rule(
    "IO230",
    "slowest-stage",
    "loader",
    turn=MORE_WORKERS,
    fires=[
        {"pipeline": [_stage("read", 2, 0.3), _stage("decode", 4, 3.9, True), _stage("collate", 1, 0.1)]},
        {"pipeline": [_stage("fetch", 2, 2.0, True, "processes")]},
        {"pipeline": [_stage("read", 1, 0.2), _stage("augment", 1, 0.5, True, "processes")]},
        {"pipeline": [_set("download", 1, 0.9, "concurrency", "train.py:9", True), _stage("decode", 2, 0.3)]},
        # Two functions on the same threads, which are all busy.
        {
            "pipeline": [
                _set("load", 1, 0.6, "ReadOptions(num_threads)", "train.py:9", True),
                _set("resize", 1, 0.35, "ReadOptions(num_threads)", "train.py:9"),
            ]
        },
    ],
    silent=[
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
    ],
)
def slowest_stage(facts: LoaderFacts, *, busy: float = 0.8, full: float = 0.8) -> Iterator[Finding]:
    """The loop waits for one stage of the program's own pipeline: its threads or processes all work.

    A stage is what puts into one queue, or works for one pool. iotrace follows each item back through the
    queues. A stage that neither waits for input nor for room in the queue behind it is the slowest one. So is
    one before which the queue is full, where it lacks a CPU, or unpickles its input, for much of its time.

    Remedy: more threads for a stage that sleeps or calls libraries; processes for one that computes in
    Python or reads HDF5, as threads take turns there; or make its work less.
    """
    stage = next((each for each in facts.pipeline if each.slowest), None)
    if stage is None or not facts.is_waited_for:
        return
    is_full = bool(stage.before_limit) and (stage.before or 0.0) >= full * (stage.before_limit or 0)
    sharing = [each for each in facts.pipeline if each is stage or _set_together(each, stage)]
    if sum(each.busy for each in sharing) < busy * stage.makers and not is_full:
        return
    others = [each.busy / each.makers for each in facts.pipeline if each not in sharing]
    computing = sum(each.busy * (each.on_cpu_fraction or 0.0) for each in facts.pipeline)
    others.append(computing / (facts.cpus or math.inf))
    least_ms = max(facts.step_ms - facts.bound_ms, facts.step_ms * max(others))
    gain_ms = min(facts.bound_ms, facts.step_ms - least_ms)
    if not is_worth(gain_ms, facts):
        return
    computes = stage.of == "threads" and (stage.on_cpu_fraction or 0.0) >= _COMPUTES
    if computes:
        how = (
            f"its threads compute in {percent(stage.on_cpu_fraction or 0.0)} of that: processes do so at "
            "once, where threads of Python code take turns; or make its work less"
        )
        remedy = f"processes in place of threads for {stage.name}"
    elif stage.of == "threads" and "h5py" in facts.making.locks:
        how = "its threads read HDF5, and h5py lets one of them in at a time; processes read at once"
        remedy = f"processes in place of threads for {stage.name}"
    elif stage.setting:
        now = "" if stage.setting_value is None else f" from {stage.setting_value}"
        at = f", at {file_of(stage.set_at)}" if stage.set_at else ""
        how = f"raise {stage.setting}{now}{at}, or make its work less"
        remedy = f"raise {stage.setting}{now}{at}"
    else:
        how = f"give it more {stage.of}, or make its work less"
        remedy = f"more {stage.of} for {stage.name}"
    yield finding(
        facts,
        text=f"the loop waits for {described(stage)}",
        how=how,
        remedy=remedy,
        level=level(stage.wait_ms, facts),
        evidence={"busy": stage.busy, "makers": float(stage.makers), **which(facts)},
        gain_ms=gain_ms,
        cost_ms=stage.wait_ms,
        is_main_cause=stage.wait_ms >= MOSTLY * facts.wait_ms,
        # Which speaks of the last stage alone; of one that sleeps it says no more than this.
        silences=("IO103",) if len(facts.pipeline) > 1 or not computes else (),
    )


@rule(
    "IO234",
    "queue-too-short",
    "loader",
    turn=MORE_WORKERS,
    fires=[
        {"pipeline": [replace(_stage("read", 1, 0.3), room_fraction=0.7, after_limit=1)]},
        {"pipeline": [replace(_stage("read", 4, 1.4), room_fraction=0.6, after_limit=2)]},
    ],
    silent=[
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
    ],
)
def queue_too_short(facts: LoaderFacts, *, room: float = 0.5) -> Iterator[Finding]:
    """The queue before the loop holds too few items: its makers wait for room, and then the loop for them.

    Who makes the items is fast enough on average, as it waits for room for half of its time or more. But the
    loop, or the making, is uneven: while the loop works long, no more items get ready than the queue holds,
    and those are gone before the next one is made.

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


@rule(
    "IO231",
    "h5py-lock",
    "loader",
    turn=MORE_WORKERS,
    fires=[{"cause": "read", "making": _locked("h5py", 30.0, 22.0)}],
    silent=[
        {"cause": "read", "making": _locked("h5py", 2.0, 1.0)},
        {"cause": "read", "making": Making()},
        {"cause": "read", "wait_ms": 4.0, "making": _locked("h5py", 3.0, 1.0)},
    ],
)
def h5py_lock(facts: LoaderFacts) -> Iterator[Finding]:
    """Threads that read HDF5 wait for each other: h5py lets one thread of a process in at a time.

    The lock is one for all files and all objects of a process. So more threads read and decode no faster, and
    a file handle of its own for each thread does not help. iotrace sees a thread asleep in a call of h5py,
    outside of any read, while another thread is in one.

    Remedy: processes in place of threads, as DataLoader's workers or a ProcessPoolExecutor.
    """
    lock = facts.making.locks.get("h5py")
    if lock is not None:
        yield from _waited(
            facts,
            lock,
            text=f"{lock.sharing} threads wait for h5py's lock, which lets one in at a time: ",
            how="read in processes in place of threads; one file handle for each thread does not help",
            remedy="read HDF5 in processes, not threads: h5py has one lock",
        )


@rule(
    "IO232",
    "interpreter-lock",
    "loader",
    turn=MORE_WORKERS,
    fires=[
        {"making": _locked("interpreter", 30.0, 22.0)},
        {"making": _locked("interpreter", 30.0, 15.0, 1)},
    ],
    silent=[
        {"making": _locked("interpreter", 2.0, 0.5)},
        # Threads that compute in NumPy, and hold the lock in between.
        {"making": _locked("interpreter", 8.0, 1.0)},
        {"making": Making()},
    ],
)
def interpreter_lock(facts: LoaderFacts, *, leading: float = _LEADING) -> Iterator[Finding]:
    """What makes the batches waits for the interpreter's lock: one thread of a process runs at a time.

    iotrace measures how long each thread waited for the lock while it made an item. Code written in Python
    holds the lock; what sleeps, reads, or computes in NumPy and the like mostly does not. More threads wait
    the longer.

    Remedy: processes in place of threads, as DataLoader's workers or a ProcessPoolExecutor; or less Python
    code for each item.
    """
    lock = facts.making.locks.get("interpreter")
    if lock is None or lock.ms < leading * facts.wait_ms:  # code that lets go of the lock takes it, too
        return
    who = f"{lock.sharing} threads wait" if lock.sharing > 1 else "what makes the batches waits"
    yield from _waited(
        facts,
        lock,
        text=f"{who} for Python's interpreter, which runs one thread at a time: ",
        how="make the batches in processes, each with an interpreter; more threads wait the longer",
        remedy="processes in place of threads: Python runs one thread at a time",
    )


@rule(
    "IO233",
    "file-lock",
    "loader",
    turn=MORE_WORKERS,
    fires=[{"making": _locked("file", 30.0, 22.0, file="data/index.lock")}],
    silent=[{"making": _locked("file", 1.0, 1.0, file="data/index.lock")}],
)
def file_lock(facts: LoaderFacts) -> Iterator[Finding]:
    """What makes the batches waits for the lock of a file (``flock``, ``lockf``, ``filelock``).

    Threads and processes that share the lock work one after the other, on all hosts.

    Remedy: read without the lock: files that nobody writes need none. Or a lock for each part of the data.
    """
    lock = facts.making.locks.get("file")
    if lock is not None:
        yield from _waited(
            facts,
            lock,
            text=f"what makes the batches waits for the lock of {lock.file}: ",
            how="one at a time has it: files that nobody writes need no lock; else use a lock for each part",
            remedy=f"no lock of {lock.file} to read, or more of them",
        )


def _waited(facts: LoaderFacts, lock: LockWait, *, text: str, how: str, remedy: str) -> Iterator[Finding]:
    gain_ms = min(facts.bound_ms, lock.ms)
    if not facts.is_waited_for or not is_worth(gain_ms, facts):
        return
    of = f" ({lock.each_ms:.1f} of {lock.item_ms:.1f} ms an item)" if lock.item_ms else ""
    yield finding(
        facts,
        text=f"{text}{lock.ms:.1f} ms of wait a step{of}",
        how=how,
        remedy=remedy,
        level=level(lock.ms, facts),
        evidence={"locked_ms": lock.ms, "threads": float(lock.sharing), **which(facts)},
        gain_ms=gain_ms,
        cost_ms=lock.ms,
        is_main_cause=lock.ms >= _LEADING * facts.wait_ms,
        silences=("IO101", "IO102", "IO103", "IO230"),
    )


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
