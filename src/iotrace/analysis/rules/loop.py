"""What the training thread itself does in its steps, beside its computing: writes, logs, makes batches."""

from __future__ import annotations

import posixpath
from collections.abc import Iterator

from iotrace.analysis.results import HotLine, LoopCode
from iotrace.analysis.rules.facts.rank import RankFacts
from iotrace.analysis.rules.locks import SLEEP_LESS, of_peer
from iotrace.analysis.rules.model import THE_LOOP, Finding, fires, rule, silent
from iotrace.analysis.rules.recurring import CHECKPOINT, HIGH, LEAST_SECONDS, MOSTLY
from iotrace.analysis.wait.data_wait import KEPT_UP_PERCENT, MODERATELY_PERCENT
from iotrace.units import percent

WAITING = ("asyncio", "concurrent", "multiprocessing", "queue", "threading")  # their calls wait for others
PREPARED_IN_THE_LOOP = "IO508"
CODE = {
    "function": "log (train.py:9)",
    "seconds": 7.0,
    "samples": 90,
    "ms_per_step": 70.0,
    "loop_fraction": 0.7,
}
ADD_IMAGES = {
    "line": "train.py:20",
    "calls": "SummaryWriter.add_images",
    "library": "torch",
    "fraction": 0.9,
    "samples": 90,
}
_LOGGING = {**CODE, "hot": ADD_IMAGES}
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
WRITES = {"writing_ms": 12.0, "synced_ms": 10.0, "of_steps": 1.0, "file": "run/log.csv"}


@rule("IO502", "writing-in-the-loop", "loop", turn=THE_LOOP, saves_wait=False)
@fires({"writes": WRITES}, {"writes": {**WRITES, "synced_ms": 0.0, "file": ""}})
@silent(
    {"writes": {**WRITES, "of_steps": 0.1}},
    {"writes": {**WRITES, "writing_ms": 4.0}},
    {"writes": WRITES, "accelerator": {"span_us": 1000.0, "idle_us": 10.0}},
)
def writing_in_the_loop(facts: RankFacts, *, least_of_steps: float = 0.5) -> Iterator[Finding]:
    """The training thread itself writes in most steps.

    It does not train meanwhile. An occasional checkpoint does not count: slow steps show it. Nor does writing
    while a device is busy.

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
    does = "sync" if synced_ms >= MOSTLY * spent_ms else "write"
    name = posixpath.basename(writes.file) or "its files"
    yield Finding(
        text=f"the training thread itself writes for {spent_ms:.1f} ms a step"
        + (f", most of it to {writes.file}" if writes.file else "")
        + (f"; {synced_ms:.1f} ms of that it waits for the disk (fsync)" if does == "sync" else ""),
        how=f"{does} less often, or in a thread of its own",
        remedy=f"{does} {name} less often, or in a thread: the loop does it for {spent_ms:.1f} ms a step",
        level="high" if spent_ms > HIGH * step_ms else "medium",
        evidence={"writing_ms": spent_ms, "sync_ms": synced_ms},
        gain_ms=spent_ms,
    )


@rule(PREPARED_IN_THE_LOOP, "prepared-in-the-loop", "loop", turn=THE_LOOP, saves_wait=False)
@fires(
    {"feeding": _FEEDING},
    {"feeding": {**_FEEDING, "least": True}},
    {"feeding": {**_FEEDING, "hot": {**ADD_IMAGES, "calls": "load", "library": None}}},
    {"feeding": {**_FEEDING, "hot": {**ADD_IMAGES, "calls": "Random.sample", "library": "random"}}},
    {"feeding": {**_FEEDING, "hot": {**ADD_IMAGES, "calls": "Queue.get", "library": "queue"}}},
    {
        "feeding": {
            **_FEEDING,
            "hot": {**ADD_IMAGES, "calls": "Future.result", "library": "concurrent"},
            "beside": "PIL.ImageFile.load",
            "beside_fraction": 0.5,
        }
    },
    {"feeding": {**_FEEDING, "waits": "pipe at train.py:9"}},
    {"feeding": {**_FEEDING, "waits": "sleep at train.py:9"}},
)
@silent(
    {"feeding": {**_FEEDING, "before_ms": 5.0, "before_fraction": 0.05, "function_ms": 4.0}},
    {"feeding": {**_FEEDING, "function": None, "function_ms": None}},
    {"feeding": {**_FEEDING, "function_ms": 8.0}},
    {"feeding": {**_FEEDING, "asleep": "the loop sleeps in multiprocessing.Semaphore.acquire"}},
    {"feeding": _FEEDING, "loop_events": [{**CHECKPOINT, "function": _FEEDING["function"]}]},
    {"feeding": _FEEDING, "loop_code": [{**CODE, "function": "batch_of (train.py:9)", "count": 3}]},
    {},
)
def prepared_in_the_loop(facts: RankFacts, *, least_percent: float = KEPT_UP_PERCENT) -> Iterator[Finding]:
    """The loop takes no batches from a loader: it works by itself before the forward pass of each step.

    A program that takes its samples from a list or a file in the loop's own body makes its batches there, and
    does not train meanwhile. Samples of the thread's stack say in which function, or in which line. Other
    work of the loop may lie there, too, such as logging. Calls of models without gradients do not count.

    Remedy: make that line faster. Unless the loop adds to its data, as to a replay buffer, move it into a
    `Dataset` or a collate function: the workers of a `DataLoader` work ahead of the loop. A line that only
    waits, for a pipe, a socket, another program or a time, cannot be made faster. Where it waits for another
    thread, as for a coroutine's future, and one other thread reads and decodes meanwhile, that is named: an
    event loop runs one coroutine at a time.
    """
    found, step_ms = facts.report.feeding, facts.report.steps.mean_ms
    if found is None or found.function is None or found.function_ms is None or not step_ms or found.asleep:
        return
    if 100 * found.function_ms < least_percent * step_ms:
        return
    if any(each.function == found.function and each.recurs for each in facts.report.loop_events):
        return  # a checkpoint, of which IO504 tells
    recurring = [
        code.function for code in facts.report.loop_code if code.recurs and code.seconds >= LEAST_SECONDS
    ]
    if found.function in recurring:
        return  # IO509 tells it: it is called now and then, not in each step
    hot, waits = found.hot, found.hot is not None and found.hot.library in WAITING
    at = "" if hot is None else hot.beside(found.function)
    faster = f"make {found.function if hot is None else hot.placed(found.function)} faster"
    if hot is not None and (hot.library, hot.calls) in _QUICKER:
        faster = f"{_QUICKER[hot.library, hot.calls]} (at {hot.line})"
    remedy = f"{faster}; or, unless the loop adds to its data, move it into a Dataset: workers do it ahead"
    if hot is not None and waits:
        at += ", which waits for a thread or process"
        remedy = f"if its data comes at {hot.line}: iotrace.batches(YOUR_ITERABLE) around that names the wait"
        if found.beside:
            share, host = percent(found.beside_fraction or 0.0), facts.report.system.host
            at += f"; meanwhile one other thread is in {found.beside} for {share} of that"
            more = ", or several threads" if host is None or host.has_free_cpus else ""
            remedy = f"if that thread makes its data: less work in {found.beside}{more}"
    elif found.waits:
        kind, _, site = found.waits.partition(" at ")
        if kind == "sleep":
            at, remedy = f", most of it asleep (time.sleep) at {site}", SLEEP_LESS.format(site)
        else:
            what, _, remedy = of_peer(found.waits)
            at = f", most of it waiting for {what}"
    yield Finding(
        text=f"no known loader feeds the loop: before its forward pass it is in {found.function} "
        f"for {'at least ' if found.least else ''}{found.function_ms:.1f} of {step_ms:.1f} ms of each step"
        + at,
        remedy=remedy,
        evidence={"before_ms": found.before_ms, "function_ms": found.function_ms},
        level="high" if found.function_ms > HIGH * step_ms else "medium",
        gain_ms=None if waits or found.waits or found.least else found.function_ms,
    )


@rule("IO511", "logging-in-the-loop", "loop", turn=THE_LOOP, saves_wait=False)
@fires(
    {"loop_code": [_LOGGING]},
    {"loop_code": [{**_LOGGING, "count": 5, "every_steps": 20.0}]},
    {"loop_code": [{**CODE, "hot": {**ADD_IMAGES, "also": ["train.py:21"], "calls_fraction": 0.95}}]},
)
@silent(
    {"loop_code": [CODE]},
    {"loop_code": [{**CODE, "hot": {**ADD_IMAGES, "library": None}}]},
    {"loop_code": [{**CODE, "hot": {**ADD_IMAGES, "library": "torch", "calls": "stack"}}]},
    {"loop_code": [{**_LOGGING, "loop_fraction": 0.04}]},
)
def logging_in_the_loop(facts: RankFacts, *, least_of_loop: float = 0.05) -> Iterator[Finding]:
    """The loop hands images, histograms or figures to a logger, and that takes much of its time.

    Samples of the thread's stack show the line, and the logger's function that it is in: that of TensorBoard,
    Weights & Biases or MLflow, or matplotlib's `savefig`. The logger encodes and writes while the loop waits.

    Remedy: log less often, or fewer and smaller images.
    """
    for code in facts.report.loop_code:
        hot, share = code.hot, logging_share(code)
        if hot is None or hot.calls is None or code.loop_fraction * share < least_of_loop:
            continue
        less = ", or with fewer and smaller images" if "image" in hot.calls.lower() else ""
        yield Finding(
            text=f"{hot.calls} at {hot.lines} takes {percent(code.loop_fraction * share)} of the loop",
            remedy=less_logging(hot),
            how=f"call {hot.calls} every N steps{less}",
            evidence={"ms_per_step": code.ms_per_step * share},
            level="high" if code.loop_fraction * share >= HIGH else "medium",
            gain_ms=code.ms_per_step * share,
            silences=("IO509",),
        )


def logging_share(code: LoopCode) -> float:
    """In which share of its samples code is in a logger's function."""
    hot = code.hot
    if hot is None or hot.calls is None or not hot.calls.startswith(_LOGGERS.get(hot.library, ())):
        return 0.0
    return hot.fraction if hot.calls_fraction is None else hot.calls_fraction


def less_logging(hot: HotLine) -> str:
    """Say to log less often."""
    return f"log less often: {hot.calls} at {hot.lines}"
