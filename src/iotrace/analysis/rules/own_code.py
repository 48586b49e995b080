"""Code of the program that the training thread is in, beside waiting and training."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from operator import attrgetter

from iotrace.analysis.results import HotLine, LoopCode, RankReport
from iotrace.analysis.rules.facts.rank import RankFacts
from iotrace.analysis.rules.loop import ADD_IMAGES, CODE, WAITING, WRITES, less_logging, logging_share
from iotrace.analysis.rules.model import THE_LOOP, Finding, fires, rule, silent
from iotrace.analysis.rules.recurring import CHECKPOINT, COLLECTION, HIGH, LEAST_SECONDS, MOSTLY, leads
from iotrace.analysis.wait.hot_lines import THAT_TRAIN

_LEAST_WAIT = 0.05  # of a step: what is worth telling
_PHASES = {"forward": 2.0, "backward": 4.0, "optimizer": 1.0, "other": 90.0}
_COMPUTING = {"forward": 20.0, "backward": 40.0, "optimizer": 2.0, "other": 35.0}
_FOR_CERTAIN = 0.3
_METRIC = {**CODE, "function": "edit (wer.py:22)", "ms_per_step": 30.0, "loop_fraction": 0.3}
_NOW_AND_THEN = {**CODE, "count": 4, "every_steps": 25.0}
# Words in names of what logs, measures or saves: no step needs that.
_WORDS_OF_LOGS = (
    "logs logged logger logging metric metrics accuracy f1 wer cer bleu rouge auc eval evaluate evaluation "
    "checkpoint save print plot histogram summary progress tqdm monitor wandb mlflow tensorboard "
    "torchmetrics matplotlib"
)
_OBSERVES = frozenset(_WORDS_OF_LOGS.split())
_ALONE = frozenset(("log", "log_dict", "item"))  # whole names: `log_prob` is none that logs
_WORDS = re.compile(r"[A-Z]?[a-z]+\d?|[A-Z]+\d?(?![a-z])")  # of names_like_this and NamesLikeThis
_REBUILDS = {**_NOW_AND_THEN, "function": "Birds.train_dataloader (train.py:9)", "builds": "Segments"}
_JITTED = ("jax", "reraise_with_filtered_traceback")  # in which `jax.jit` traces and compiles a function
_ABOUT = 0.8  # of the number of times
_COMPILES = {
    **CODE,
    "function": "main (fit.py:87)",
    "count": 19,
    "hot": {"line": "fit.py:87", "calls": _JITTED[1], "library": "jax", "fraction": 0.9, "samples": 90},
}


@rule("IO509", "recurring-code", "loop", turn=THE_LOOP, saves_wait=False)
@fires(
    {"loop_code": [_NOW_AND_THEN]},
    {"loop_code": [{**_NOW_AND_THEN, "inside_seconds": 2.0}]},
    {"loop_code": [_REBUILDS]},
    {"loop_code": [{**_REBUILDS, "function": "rebuilt (train.py:9)"}]},
)
@silent(
    {"loop_code": [CODE]},
    {"loop_code": [_COMPILES]},  # IO519: where it goes on
    {"loop_code": [{**CODE, "count": 1}]},
    {"loop_code": [{**_NOW_AND_THEN, "seconds": 0.4, "loop_fraction": 0.04}]},
)
def recurring_code(facts: RankFacts, *, least_of_loop: float = 0.05) -> Iterator[Finding]:
    """The loop calls a function of the program now and then, and that takes much of its time.

    It is not seen as evaluation, checkpoint or writing, and it is no wait for other ranks in a collective;
    samples of the thread's stack name it. Nearly all of these samples are in few steps, several in each. What
    it writes, and garbage that is collected in it, count elsewhere, and may hide some of its calls. With
    these it takes up to the time that is told.

    A function that builds a loader's dataset anew is a cost of the loader, and told with it: by its samples
    in the dataset's `__init__`, or as Lightning asks it for a loader (`reload_dataloaders_every_n_epochs`).

    Remedy: call it less often, make it faster, or do it in another process; of a dataset: build it once.
    """
    compiles = [each for each in facts.report.loop_code if each.hot is not None and _is_jitted(each.hot)]
    for code in facts.report.loop_code:
        if code.hot is not None and code.hot.library in WAITING:
            continue  # it waits there for a thread or process, whatever that does
        if code in compiles:
            continue  # what was recorded of that tells it
        if any(each.seconds > code.seconds and _about_as_often(code, each) for each in compiles):
            continue  # it may be what is compiled there
        if code.recurs and code.loop_fraction >= least_of_loop and code.seconds >= LEAST_SECONDS:
            yield Finding(
                text=code.said,
                remedy=_seldom(code),
                evidence={"count": float(code.count or 0), "seconds": code.seconds},
                level="high" if code.loop_fraction >= HIGH else "medium",
                # Calls that are left out spare what is written and collected in them, too.
                cost_ms=code.ms_per_step * (code.most_fraction / code.loop_fraction),
                gain_ms=None if code.builds is None or code.least else code.ms_per_step,
                is_main_cause=leads(facts, code),
            )


def _seldom(code: LoopCode) -> str:
    """Say to do it less often; to build data once, by the setting of Lightning that has it built."""
    if code.builds is None:
        return f"{code.advice('less often')}, or make it faster"
    if code.function.partition(" (")[0].endswith(("train_dataloader", "val_dataloader")):
        return "build the data once: Trainer(reload_dataloaders_every_n_epochs=0)"
    return f"build {code.builds or 'the data'} once, before the loop, and keep it"


def _is_jitted(hot: HotLine) -> bool:
    return (hot.library, hot.calls) == _JITTED


def _about_as_often(one: LoopCode, other: LoopCode) -> bool:
    counts = sorted((one.count or 0, other.count or 0))
    return counts[0] >= _ABOUT * counts[1] > 0


@rule("IO506", "code-of-the-loop", "loop", turn=THE_LOOP, saves_wait=False)
@fires(
    {"phases_ms": _PHASES},
    {"phases_ms": _PHASES, "loop_code": [CODE]},
    {"phases_ms": _COMPUTING, "loop_code": [_METRIC]},
    {"phases_ms": _COMPUTING, "loop_code": [{**_METRIC, "held_fraction": 0.2}]},
    {
        "phases_ms": _COMPUTING,
        "loop_code": [{**_METRIC, "function": "scipy (wer.py:22)", "within": True}],
    },
    {"phases_ms": _COMPUTING, "loop_code": [{**_METRIC, "hot": {**ADD_IMAGES, "library": ""}}]},
    {
        "phases_ms": {**_COMPUTING, "other": None},
        "loop_code": [{**_METRIC, "function": "scipy's match (t.py:9)", "within": True}],
    },
    {"phases_ms": {}, "loop_code": [{**_METRIC, "function": "main (fit.py:54)", "ms_per_step": 60.0}]},
)
@silent(
    {"phases_ms": {}, "loop_code": [_METRIC]},
    {
        "phases_ms": {},
        "loop_code": [{**_METRIC, "ms_per_step": 60.0, "hot": {**ADD_IMAGES, "library": "queue"}}],
    },
    {"phases_ms": {**_PHASES, "other": 40.0}},
    {"phases_ms": {**_PHASES, "other": None}},
    {"phases_ms": {**_COMPUTING, "other": None}, "loop_code": [_METRIC]},
    {"phases_ms": _PHASES, "accelerator": {"span_us": 1000.0, "idle_us": 10.0}},
    {"phases_ms": _PHASES, "writes": {**WRITES, "writing_ms": 60.0}},
    {"phases_ms": _PHASES, "loop_reads": {"read_ms": 60.0, "decode_ms": 0.0}},
    {"phases_ms": _PHASES, "loop_events": [{**CHECKPOINT, "seconds": 6.0}]},
    {"phases_ms": _PHASES, "loop_events": [{**COLLECTION, "seconds": 6.0}]},
    {"phases_ms": _PHASES, "loop_code": [_NOW_AND_THEN]},
    {"phases_ms": _PHASES, "collectives": {"ms": 60.0}},
    {"phases_ms": _COMPUTING},
    {"phases_ms": _COMPUTING, "asleep": (4.0, "train.py:9")},
    {"phases_ms": _COMPUTING, "loop_code": [{**_METRIC, "ms_per_step": 8.0}]},
    {"phases_ms": _COMPUTING, "loop_code": [{**_METRIC, "count": 1}]},
    {"phases_ms": _COMPUTING, "loop_code": [{**_METRIC, "held_fraction": 0.2, "ms_per_step": 25.0}]},
    {
        "phases_ms": _COMPUTING,
        "loop_code": [{**_METRIC, "function": "main (train.py:20)", "hot": ADD_IMAGES}],
    },
)
def code_of_the_loop(
    facts: RankFacts, *, least_of_step: float = 0.5, least_of_one: float = 0.1
) -> Iterator[Finding]:
    """Much of a step is code of the loop outside of forward, backward, optimizer and data wait.

    That is half of the step or more, or one function of the program that takes a large share in all steps.

    Logging, metrics and losses that are no modules are such code. Silent if an accelerator is used, as the
    loop may wait for it there. Silent, too, if most of it is the loop's own reads, writes or checkpoints, or
    waits in collectives for other ranks.

    Samples of the thread's stack name the function, or the line, that takes most of it, and tell where it
    takes longer at each step, through each epoch or the run, as what works on all that was kept. Of a loop
    without forward and backward passes, such as one of `partial_fit`, they name the line that takes half of
    a step: it may be the training itself. That a loop sleeps (`time.sleep`) is seen by looking at its thread;
    the sleep may stand for a device.

    Remedy: make that function, or that line, faster; call one that grows once an epoch, or reset it; call one
    that is mostly in torch's calls less often, or on less. If its name says that it logs or measures, call it
    every N steps. If it lies between a batch's arrival and the forward pass, it may prepare the batch: do it
    in the loader's workers, which work ahead of the loop. None if no single function takes much:
    `iotrace.region` around parts of the loop names them.
    """
    report = facts.report
    other_ms, step_ms = report.phases_ms.other, report.steps.mean_ms
    device, reads, writes = report.accelerator, report.loop_reads, facts.writes
    if not step_ms or (device is not None and device.span_us):
        return
    if other_ms is None:  # what of the rest waits for data is unknown
        yield from _one_function(
            [each for each in report.loop_code if each.within], report, step_ms, least_of_one
        )
        yield from _the_step(report, step_ms, least_of_step)
        return
    named = ("checkpoint", "collection")
    events_ms = sum(1e3 * each.seconds for each in report.loop_events if each.kind in named)
    outside = [each for each in report.loop_code if not each.within]
    events_ms += sum(1e3 * each.seconds for each in outside if each.recurs)
    known_ms = events_ms / max(1, report.steps.count)
    known_ms += 0.0 if reads is None else reads.read_ms + reads.decode_ms
    known_ms += 0.0 if writes is None else writes.writing_ms
    known_ms += facts.collectives.ms
    asleep_ms, place = facts.asleep
    if asleep_ms >= max(
        least_of_one * step_ms, MOSTLY * max((each.ms_per_step for each in outside), default=0.0)
    ):
        yield Finding(  # perhaps in place of a device: nothing to do
            text=f"the loop sleeps for about {asleep_ms:.0f} of {step_ms:.0f} ms of each step (time.sleep), "
            f"at {place}",
            evidence={"asleep_ms": asleep_ms, "step_ms": step_ms},
        )
        return
    if other_ms < least_of_step * step_ms:
        yield from _one_function(report.loop_code, report, step_ms, least_of_one)
        return
    if known_ms >= MOSTLY * other_ms:
        return
    most = max(outside, key=attrgetter("ms_per_step"), default=None)
    naming, remedy, gain_ms = "; iotrace.region names it", "", None
    if most is None or most.ms_per_step < MOSTLY * other_ms:
        found = [*_one_function(report.loop_code, report, step_ms, least_of_one)]
        yield from found
        if found:
            return
    if most is not None and most.ms_per_step >= MOSTLY * other_ms:
        at = "" if most.hot is None else most.hot.beside(most.function, "there mostly")
        naming = f": most of it {most.function}{at}{most.growing}"
        waits = most.hot is not None and most.hot.library in WAITING  # for others, whatever these do
        if not waits:
            remedy = _faster(most)
            gain_ms = None if most.least else min(most.ms_per_step, other_ms)
    least_ms = _LEAST_WAIT * step_ms
    waits_ms = facts.collectives.ms if facts.collectives.ms >= least_ms else 0.0
    beside = f"; waits in collectives are {waits_ms:.1f} ms of it" if waits_ms else ""
    yield Finding(
        text=(
            f"{other_ms:.1f} of {step_ms:.1f} ms of a step is code of the loop outside of forward, backward "
            f"and optimizer{naming}{beside}"
        ),
        remedy=remedy,
        evidence={"other_ms": other_ms, "step_ms": step_ms},
        is_main_cause=bool(remedy),
        gain_ms=gain_ms,
        silences=("IO511",) if most is not None and logging_share(most) >= MOSTLY else (),
    )


def _the_step(report: RankReport, step_ms: float, least: float) -> Iterator[Finding]:
    """Name the line that takes most of a step of a loop without phases: it trains there, or does else."""
    phases, wait_ms = report.phases_ms, report.data_wait.raw_ms
    if wait_ms is None or phases.forward is not None or phases.backward is not None:
        return
    own = [each for each in report.loop_code if not each.within and not each.recurs]
    most = max(own, key=attrgetter("ms_per_step"), default=None)
    if most is None or most.ms_per_step < least * step_ms:
        return
    if most.hot is not None and most.hot.library in WAITING:
        return
    most_ms = min(most.ms_per_step, step_ms - wait_ms)
    yield Finding(
        text=f"{most_ms:.1f} of {step_ms:.1f} ms of a step is what the loop does at {most.function}",
        evidence={"own_ms": most_ms, "step_ms": step_ms},
    )


_REDUCES = {"ms": 60.0, "least_ms": 50.0, "calls": 9.0, "name": "all_reduce", "code": "average (train.py:9)"}


@rule("IO516", "collectives-of-the-loop", "loop", turn=THE_LOOP, saves_wait=False)
@fires(
    {"collectives": _REDUCES},
    {"collectives": {**_REDUCES, "name": "", "code": ""}, "phases_ms": _PHASES},
    {"collectives": {**_REDUCES, "calls": 1.0}},
)
@silent(
    {"collectives": {**_REDUCES, "ms": 10.0, "least_ms": 9.0}},
    {"collectives": {**_REDUCES, "least_ms": 10.0}},  # it waits for a late rank
    {"collectives": {**_REDUCES, "least_ms": None}},
    {"collectives": {**_REDUCES, "calls": 0.1}},
    {"collectives": _REDUCES, "accelerator": {"span_us": 1000.0, "idle_us": 10.0}},
    {},
)
def collectives_of_the_loop(facts: RankFacts, *, least_of_step: float = 0.15) -> Iterator[Finding]:
    """The loop calls collectives outside its passes in each step, and waits in them for much of the step.

    For example, it averages gradients itself: nothing else is done meanwhile. `DistributedDataParallel`
    reduces gradients while the backward pass computes others, many in one call. Waits for a late rank do not
    count: each call counts with the time of the rank that waited least. Not told where an accelerator is
    used, which may work meanwhile.

    Remedy: send less, as sparse gradients of embeddings; leave gradients to `DistributedDataParallel`; call
    others less often, or with `async_op=True`.
    """
    report, own = facts.report, facts.collectives
    step_ms, device = report.steps.mean_ms, report.accelerator
    if not step_ms or (own.least_ms or 0.0) < least_of_step * step_ms or own.calls < 1 - least_of_step:
        return
    if device is not None and device.span_us:
        return
    called = f"{own.name}, {own.calls:.0f} times".lstrip(", ")
    at = f", most of it in {own.code}" if own.code else ""
    yield Finding(
        text=f"the loop's own collectives ({called}) take {own.least_ms:.1f} of {step_ms:.1f} ms of each "
        f"step, without waits for a late rank{at}",
        remedy="send less, as sparse gradients of embeddings, or less often; DistributedDataParallel "
        "averages gradients during backward",
        evidence={
            "collectives_ms": own.ms,
            "least_ms": own.least_ms or 0.0,
            "calls": own.calls,
            "step_ms": step_ms,
        },
        level="high" if (own.least_ms or 0.0) >= HIGH * step_ms else "medium",
        is_main_cause=(own.least_ms or 0.0) >= (report.data_wait.raw_ms or 0.0),
    )


def _one_function(
    codes: Sequence[LoopCode], report: RankReport, step_ms: float, least_of_step: float
) -> Iterator[Finding]:
    """The function of the program that most of a step's own code is in, in all steps; no line of the loop."""
    least_ms = _FOR_CERTAIN * step_ms  # a loss, too, is worth a look then
    steady = [
        code
        for code in codes
        if code.count is None
        and (not _trains(code) or (not code.is_line and not code.within and code.ms_per_step >= least_ms))
    ]
    most = max(steady, key=attrgetter("ms_per_step"), default=None)
    if most is None or most.ms_per_step < least_of_step * step_ms:
        return
    hot, least = most.hot, "at least " if most.least else ""
    if hot is not None and hot.library in WAITING:
        return
    at = "" if hot is None else hot.beside(most.function)
    on_top = "; the writing and garbage collection in it come on top" if most.inside_seconds else ""
    yield Finding(
        text=f"the loop is in {most.function} for {least}{most.ms_per_step:.1f} of {step_ms:.1f} ms of each "
        f"step{at}{most.growing}{on_top}",
        remedy=_faster(most),
        evidence={"code_ms": most.ms_per_step, "step_ms": step_ms},
        is_main_cause=most.ms_per_step >= (report.data_wait.raw_ms or 0.0),
        gain_ms=None if most.least else most.ms_per_step,
        silences=("IO511",) if logging_share(most) >= MOSTLY else (),
    )


def _faster(code: LoopCode) -> str:
    """Say to make it faster; or to do it seldom, or in workers, where its name or its place allows that."""
    name = code.function.partition(" (")[0]
    if code.grows_ms is not None and not code.is_line:
        return f"call {name} once an epoch, or reset it: it works on all it keeps"
    what = code.function if code.hot is None else code.hot.placed(code.function)
    called = "do it" if code.is_line else f"call {'it' if code.hot is None else name}"
    if code.hot is not None and logging_share(code) >= MOSTLY:
        return less_logging(code.hot)
    if may_be_left_out(code):
        seldom = f"call {what}" if code.hot is None else called
        return f"{seldom} every N steps, or make {'it' if code.hot is None else what} faster"
    if (code.before_fraction or 0.0) >= MOSTLY:
        return f"make {what} faster, or {called} in the loader's workers (collate_fn)"
    if code.hot is not None and not code.is_line and _is_of_torch(code):
        return f"call {name} less often, or on less: most of it is torch's"
    return f"make {what} faster"


def _is_of_torch(code: LoopCode) -> bool:
    """Whether its line is mostly in calls of torch, or others that release the lock: it cannot be faster."""
    if code.hot is not None and code.hot.library:
        return code.hot.library in THAT_TRAIN
    return code.held_fraction is not None and code.held_fraction < MOSTLY


def may_be_left_out(code: LoopCode) -> bool:
    """Whether names say that it logs or measures, which no step needs: its own, or of what it calls.

    A file's name says nothing: there is more in it.
    """
    hot = code.hot
    named = [
        code.function.partition(" (")[0],
        *(() if hot is None else (hot.function, hot.calls, hot.library)),
    ]
    names = [name for name in named if name and ":" not in name]
    words = {word.lower() for name in names for word in _WORDS.findall(name)}
    return bool(words & _OBSERVES) or any(name.rpartition(".")[2] in _ALONE for name in names)


def _trains(code: LoopCode) -> bool:
    """Whether it may be what the training itself computes, such as a loss.

    That is a line of the loop that calls no other library, or code that is mostly in calls that release the
    interpreter's lock, as torch's do.
    """
    if code.within or (code.hot is not None and code.hot.library not in (None, "", *THAT_TRAIN)):
        return False
    return code.is_line or (code.held_fraction is not None and code.held_fraction < MOSTLY)
