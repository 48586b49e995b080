"""Which rank the others wait for, and why. What made it late is told where a figure shows it."""

from __future__ import annotations

import posixpath
from collections.abc import Iterator
from typing import Any

from msgspec.structs import replace

from iotrace.analysis.rules.facts.job import JobFacts, LateRank
from iotrace.analysis.rules.model import OUTSIDE, Finding, fires, rule, silent
from iotrace.analysis.rules.recurring import less_writing
from iotrace.units import size

LATE_BY_DATA, UNEVEN_STEPS, FED_BY_ANOTHER, ONE_LATE_WORKER = "IO801", "IO807", "IO808", "IO809"
_DATA = LateRank(rank=1, pct=70.0, kind="data", longer_ms={"data": 56.0, "host": 2.0})
_EVALUATES = LateRank(rank=0, pct=68.0, kind="evaluation", longer_ms={"evaluation": 56.8})
_SAVES = LateRank(rank=0, pct=30.0, kind="checkpoint", longer_ms={"checkpoint": 30.0})
_COMPUTES = LateRank(rank=0, pct=71.0, kind="forward", longer_ms={"forward": 25.0})
_LOGS = LateRank(rank=0, pct=63.0, kind="other", longer_ms={"other": 58.3})
_WRITING = LateRank(rank=0, pct=63.0, kind="writing", longer_ms={"writing": 58.3})
_WRITES = {
    "rank": 0,
    "loop_events": [
        {"kind": "writing", "count": 12, "seconds": 3.6, "every_steps": 5.0, "file": "run/metrics.jsonl"}
    ],
}
_CALLS = {"rank": 0, "loop_code": [{"function": "watch (train.py:9)", "ms_per_step": 50.0}]}
_TRAINS = {"rank": 1, "loop_code": []}
_UNCLEAR = LateRank(rank=0, pct=30.0, longer_ms={"data": 10.0, "compute": 9.0, "host": 8.0})
_PASSES_LONGER = {"backward": 9.0, "forward": 4.0}
_UNEVEN = LateRank(
    rank=1, pct=17.0, kind="backward", longer_ms=_PASSES_LONGER, late_steps=(5, 12), by_turns=2, cpu_ms=12.0
)
_SHARES_CPU = replace(_UNEVEN, by_turns=0, late_steps=None, cpu_ms=0.4, cpu_delay_ms=11.0)
_TURNS = LateRank(rank=1, pct=20.0, kind="data", late_steps=(5, 12), by_turns=3)
_LOADS = {"rank": 0, "steps": {"count": 100}, "loaders": [{"primary": True, "workers": 4}]}
_LOADS_ITSELF = {"rank": 0, "steps": {"count": 100}, "loaders": [{"primary": True, "workers": 0}]}
_IS_FED = {"rank": 1, "steps": {"count": 100}, "loaders": []}
_LONGER = [
    {"rank": rank, "loaders": [{"primary": True, "workers": 1, "batch_bytes_mean": size}]}
    for rank, size in enumerate((12e3, 2e3))
]
_BY_WORKER = LateRank(rank=0, pct=30.0, kind="data", longer_ms={"data": 30.0}, worker=2)


def _with_threads(*busy_pct: float) -> list[dict[str, Any]]:
    own = [{"role": "main", "pool_busy_pct_mean": pct} for pct in busy_pct]
    return [{"rank": rank, "system": {"processes": [each]}} for rank, each in enumerate(own)]


def _long(*means_ms: float) -> list[dict[str, Any]]:
    return [{"rank": rank, "steps": {"mean_ms": ms, "count": 100}} for rank, ms in enumerate(means_ms)]


_TAKES_LONGER = {
    "forward": "its forward pass takes {:.1f} ms a step longer",
    "backward": "its backward pass takes {:.1f} ms a step longer",
    "optimizer": "its optimizer takes {:.1f} ms a step longer",
    "other": "it spends {:.1f} ms a step more outside of data and training",
    "writing": "it writes to files {:.1f} ms a step longer",
}
_OF_MACHINE = {"compute": "device and its share of the work", "launch": "host's CPUs", "host": "host"}
_LEAST_MS = 0.05
_OF_TRAINING, _LARGER = ("forward", "backward", "compute"), 1.2  # times the size of any other rank's batches
_PASSES = {"forward": "backward", "backward": "forward"}
_FIFTH = 0.2
_BUSY_PERCENT, _TIMES = 30.0, 2.0  # of the time another thread is busy, and so many times the others' one
_ALONE = ("data", "evaluation", "checkpoint")
_WORDS = {"communication": "other collectives", "launch": "late launches", "host": "its host"}


@rule(LATE_BY_DATA, "late-by-data", "job")
@fires({"late": _DATA})
@silent({"late": _EVALUATES}, {"late": _UNCLEAR}, {"late": _TURNS}, {})
def late_by_data(facts: JobFacts) -> Iterator[Finding]:
    """The other ranks wait for one that waits longer for its data.

    At least half of its lateness is data wait beyond the others'. A delay counts once, however many
    collectives were pending meanwhile.

    Remedy: the one for the rank's own wait.
    """
    late = facts.late
    if late is not None and late.kind == "data" and not late.by_turns:
        ms = late.longer_ms.get("data")
        text = late.in_words or f"it waits {ms or 0.0:.1f} ms a step longer for data"
        yield Finding(text=text, cost_ms=ms, is_main_cause=True)


@rule("IO802", "others-wait-for-evaluation", "job", turn=OUTSIDE, saves_wait=False)
@fires({"late": _EVALUATES}, {"late": _EVALUATES, "ranks": [_CALLS, _TRAINS]})
@silent({"late": _DATA}, {"late": _COMPUTES}, {})
def others_wait_for_evaluation(facts: JobFacts) -> Iterator[Finding]:
    """A rank evaluates alone, and the others wait for it in their next collective.

    Over all steps the ranks stay together, and what the others do longer is as long as the evaluation. Calls
    of models without gradients count as evaluation, such as those that generate a text to look at. Where
    samples show it, the function of the program that takes most of it is named.

    Remedy: evaluate on all ranks, or less often.
    """
    late = facts.late
    if late is not None and late.kind == "evaluation":
        remedy = "evaluate on all ranks, each its share, or less often"
        text = f"it evaluates alone, {late.longer_ms['evaluation']:.1f} ms a step"
        called = _called(facts, late, text)
        if called is not None:
            text, remedy = called[0], f"{called[1]}, or on all ranks, each its share"
        yield _alone(late, text, remedy)


@rule("IO803", "others-wait-for-checkpoint", "job", turn=OUTSIDE, saves_wait=False)
@fires({"late": _SAVES})
@silent({"late": _EVALUATES}, {"late": _DATA})
def others_wait_for_checkpoint(facts: JobFacts) -> Iterator[Finding]:
    """A rank writes checkpoints alone, and the others wait for it in their next collective.

    Remedy: save asynchronously.
    """
    late = facts.late
    if late is not None and late.kind == "checkpoint":
        ms = late.longer_ms["checkpoint"]
        remedy = "save asynchronously (torch.distributed.checkpoint.async_save), or less often"
        yield _alone(late, f"it writes checkpoints alone, {ms:.1f} ms a step", remedy)


def _alone(late: LateRank, text: str, remedy: str) -> Finding:
    return Finding(
        text=f"{text}, and the others wait meanwhile",
        remedy=remedy,
        how=remedy,
        cost_ms=late.longer_ms[late.kind or ""],
        evidence={"wait_pct": late.pct},
        is_main_cause=True,
    )


@rule("IO804", "late-by-its-work", "job", turn=OUTSIDE, saves_wait=False)
@fires(
    {"late": _COMPUTES},
    {"late": _COMPUTES, "ranks": _LONGER},
    {"late": _SHARES_CPU},
    {"late": _SHARES_CPU, "ranks": _with_threads(12.0, 67.0)},
    {"late": _SHARES_CPU, "ranks": _with_threads(60.0, 67.0)},
    {"late": _LOGS, "ranks": [_WRITES]},
    {"late": _WRITING, "ranks": [_WRITES]},
    {"late": _WRITING},
    {"late": _LOGS, "ranks": [_CALLS, _TRAINS]},
)
@silent({"late": _DATA}, {"late": _UNCLEAR}, {})
def late_by_its_work(facts: JobFacts) -> Iterator[Finding]:
    """The other ranks wait for one that takes longer for its part of the step, and not for data.

    Collectives show whether it computes longer or waits itself: it comes to them last. If it writes to a file
    every few steps, and that takes most of the time, the file is named. Else samples of its stack name the
    function of the program that takes most of the time, and that no other rank is in. If it is ready to run
    without a CPU, the text says if another thread of its process is busy where other ranks have none. If its
    passes take longer, and workers hand larger batches to it than to any other rank, the text says so: its
    samples are longer.

    Remedy: give every rank the same share of work, such as samples of the same lengths; look at a machine
    whose rank stays late; log less often, or in a thread.
    """
    late = facts.late
    if late is None or late.kind is None or late.kind in _ALONE or late.by_turns:
        return
    text = late.in_words or _longer(late)
    if not text:
        return
    if late.late_steps is not None and late.kind in _OF_MACHINE:
        share = "{} of {} late steps".format(*late.late_steps)
        text = f"{text}, in {share}: look at its {_OF_MACHINE[late.kind]}"
    remedy = _same_work(late, len({each.host for each in facts.ranks}))
    larger = _larger_batches(facts, late)
    if larger is not None:
        text, remedy = f"{text}: {larger}", "divide samples so that each rank's batches have the same size"
    if late.kind in _PASSES and late.mostly == "cpu":
        text = f"{text}: it is ready to run without a CPU {late.cpu_delay_ms:.1f} ms a step longer"
        busy = _other_threads_busy(facts, late)
        if busy is not None:
            others = "the other rank" if late.others == 1 else "the others at most"
            text += f", and another thread of its process is busy {busy[0]:.0f} % of the time"
            text += f" ({busy[1]:.0f} % on {others})"
            remedy = f"do less in another thread of rank {late.rank}, or give it one more CPU"
    if late.kind in ("other", "writing"):
        remedy = f"do less often what rank {late.rank} alone does in its loop, or in another thread"
        called = _called(facts, late, text)
        called = called and (called[0], f"{called[1]}, or in another thread")
        known = _written(facts, late) or called
        text, remedy = known or (f"{text}{': logging, for example' if late.kind == 'other' else ''}", remedy)
    yield Finding(
        text=text, remedy=remedy, how=remedy, cost_ms=late.longer_ms.get(late.kind), is_main_cause=True
    )


def _same_work(late: LateRank, hosts: int) -> str:
    """Say what would make a rank as quick as the others, by what it computes and waits for a CPU."""
    if late.kind in _PASSES and late.mostly == "cpu":
        return f"give rank {late.rank} a CPU of its own: other threads or programs run on its"
    more = f"the same work for each rank, if rank {late.rank} has more"
    if hosts > 1:
        return f"{more}, or its machine is slower"
    if late.kind in _PASSES and late.mostly == "work":
        return f"find out why rank {late.rank} takes {late.cpu_ms:.1f} ms more CPU a step; {more}"
    return f"{more}, or it gets less of the CPUs"


def _larger_batches(facts: JobFacts, late: LateRank) -> str | None:
    """Say that a rank whose passes take longer gets larger batches than any other one; None: not seen."""
    known = {
        report.rank: loader.batch_bytes_mean
        for report in facts.ranks
        for loader in report.loaders or ()
        if loader.primary and loader.batch_bytes_mean
    }
    own, most = known.pop(late.rank, 0.0), max(known.values(), default=0.0)
    if (
        late.kind not in _OF_TRAINING
        or late.mostly == "cpu"
        or len(known) != late.others
        or not own >= _LARGER * most > 0
    ):
        return None
    others = "those of the other rank" if late.others == 1 else "the others' at most"
    return f"its batches have {size(own)} on average, {others} {size(most)}"


def _other_threads_busy(facts: JobFacts, late: LateRank) -> tuple[float, float] | None:
    """For how much of the time another thread of the late rank is busy, and of the others, in %.

    The busiest one in each second. None where that is no more than on the others, or not known of all.
    """
    known = {
        each.rank: process.pool_busy_pct_mean
        for each in facts.ranks
        for process in each.system.processes
        if process.role == "main" and process.pool_busy_pct_mean is not None
    }
    own = known.pop(late.rank, 0.0)
    most = max(known.values(), default=0.0)
    is_known = len(known) == late.others and len(facts.ranks) == late.others + 1
    return (own, most) if is_known and own >= max(_BUSY_PERCENT, _TIMES * most) else None


def _longer(late: LateRank) -> str:
    """Say what takes longer; of the two passes both, where the shorter is a fifth of them or more."""
    text = _TAKES_LONGER.get(late.kind or "", "").format(late.longer_ms.get(late.kind or "", 0.0))
    beside = _PASSES.get(late.kind or "")
    ms = late.longer_ms.get(beside or "", 0.0)
    if beside and ms >= _FIFTH * (ms + late.longer_ms[late.kind or ""]):
        text = f"{text}, its {beside} pass {ms:.1f} ms"
    return text


def _written(facts: JobFacts, late: LateRank) -> tuple[str, str] | None:
    """Name the file that a rank writes to again and again, where that is most of what it does longer."""
    report = facts.rank(late.rank)
    for events in () if report is None else report.loop_events or ():
        each_ms = 1000 * events.seconds / (events.count * (events.every_steps or 1.0))
        if (
            events.kind == "writing"
            and events.recurs
            and each_ms >= late.longer_ms.get(late.kind or "", 0.0) / 2
        ):
            name = posixpath.basename(events.file) if events.file else "files"
            text = f"it writes to {name}, {each_ms:.1f} ms a step, and the others wait meanwhile"
            return text, less_writing(events)
    return None


def _called(facts: JobFacts, late: LateRank, text: str) -> tuple[str, str] | None:
    """Name the function that has most of what a rank does longer beside its training: the others do not."""
    others_ms: dict[str, float] = {}
    for each in facts.ranks:
        for code in (each.loop_code or ()) if each.rank != late.rank else ():
            others_ms[code.function] = max(code.ms_per_step, others_ms.get(code.function, 0.0))
    report = facts.rank(late.rank)
    for code in () if report is None else report.loop_code or ():
        if (
            code.ms_per_step - others_ms.get(code.function, 0.0)
            >= late.longer_ms.get(late.kind or "", 0.0) / 2
        ):
            return f"{text}, most of it in {code.function}", code.advice("less often")
    return None


@rule("IO805", "late-by-turns", "job")
@fires({"late": _TURNS}, {"late": _UNEVEN})
@silent({"late": _DATA}, {})
def late_by_turns(facts: JobFacts) -> Iterator[Finding]:
    """Ranks are late by turns. Uneven batches do that, a slow machine does not.

    Remedy: batches that cost the same on every rank.
    """
    late = facts.late
    if late is None or not late.by_turns:
        return
    last, steps = late.late_steps or (0, 0)
    remedy, why = "", "their data, not a slow machine" if late.kind == "data" else ""
    if late.kind in _PASSES:
        why = _longer(late).replace("its", "the late one's", 1)
        remedy = "give each rank CPUs of its own: the late one is ready to run without one"
        if late.mostly != "cpu":
            why = f"batches differ in cost: {why}" if late.mostly == "work" else why
            remedy = "give the ranks batches that cost the same in each step, such as samples of one length"
    text = f"rank {late.rank} is late in {last} of {steps} late steps, another one in the rest"
    text = f"{why}: {text}" if why else text
    yield Finding(text=text, remedy=remedy, how=remedy, is_main_cause=True)


@rule("IO806", "late-for-several-reasons", "job")
@fires({"late": _UNCLEAR})
@silent({"late": _DATA}, {"late": _TURNS}, {})
def late_for_several_reasons(facts: JobFacts) -> Iterator[Finding]:
    """A rank is late, and no single thing that it does longer explains most of that.

    What was seen is told, the longest first. That does not prove that the rest added nothing.

    Remedy: more profiled steps (`--torch-steps`) show more collectives.
    """
    late = facts.late
    if late is None or late.kind is not None or late.by_turns:
        return
    longer = sorted(late.longer_ms.items(), key=lambda pair: -pair[1])
    parts = ", ".join(f"{_WORDS.get(kind, kind)} {ms:.1f} ms" for kind, ms in longer if ms >= _LEAST_MS)
    seen = (
        f"no single cause explains most of it; longer a step: {parts}"
        if parts
        else "what made it late was not seen"
    )
    yield Finding(text=seen, is_main_cause=True)


@rule(UNEVEN_STEPS, "uneven-steps", "job")
@fires({"ranks": _long(26.0, 79.0)})
@silent(
    {"ranks": _long(70.0, 79.0)},
    {"ranks": _long(26.0)},
    {"ranks": _long(26.0, 79.0), "in_step": True},
)
def uneven_steps(facts: JobFacts, *, least_ratio: float = 2.0) -> Iterator[Finding]:
    """Steps of one rank take much longer than those of another.

    Ranks that train together make as many steps in the same time. Of loops that stay together this says
    nothing: a rank's evaluation lies between its steps, and the others' wait for it in theirs.

    Remedy: the one for the cause of the longer steps.
    """
    known = {each.rank: each.steps.mean_ms for each in facts.ranks if each.steps.mean_ms}
    if len(known) < 2 or facts.in_step:
        return
    most, least = (choose(known, key=lambda rank: known[rank]) for choose in (max, min))
    if known[most] < least_ratio * known[least]:
        return
    yield Finding(
        text=f"a step takes {known[most]:.1f} ms on rank {most}, {known[least]:.1f} ms on rank {least}"
    )


@rule(FED_BY_ANOTHER, "batches-from-another-rank", "job")
@fires({"in_step": True, "ranks": [_LOADS, _IS_FED]})
@silent(
    {"in_step": True, "ranks": [_LOADS, {**_LOADS, "rank": 1}]},
    {"in_step": False, "ranks": [_LOADS, _IS_FED]},
)
def batches_from_another_rank(facts: JobFacts) -> Iterator[Finding]:
    """A rank trains and asks no loader for a batch, in step with ranks that do: it works on what they send.

    Its own data wait is not known: what it receives, it waits for in a collective or in a `recv`.

    Remedy: the one for the rank that loads.
    """
    if facts.fed:
        whose, ask, work = f"rank {facts.fed[0]}", "asks", "it works"
        if len(facts.fed) > 1:
            whose, ask, work = f"{len(facts.fed)} ranks", "ask", "they work"
        yield Finding(text=f"{whose} {ask} no loader for a batch: {work} on what other ranks send")


@rule(ONE_LATE_WORKER, "one-late-worker", "job")
@fires({"late": _BY_WORKER, "ranks": [_LOADS]})
@silent(
    {"late": replace(_BY_WORKER, worker=None), "ranks": [_LOADS]},
    {"late": _BY_WORKER, "ranks": [_LOADS_ITSELF]},
)
def one_late_worker(facts: JobFacts) -> Iterator[Finding]:
    """One worker made most of the late batches, and more than equal workers would by chance.

    Remedy: look at what that worker reads.
    """
    late = facts.late
    rank = None if late is None else facts.rank(late.rank)
    if late is None or rank is None or late.kind != "data" or late.worker is None:
        return
    if any(each.primary and each.workers > 1 for each in rank.loaders):
        yield Finding(text=f"late most by worker {late.worker}")
