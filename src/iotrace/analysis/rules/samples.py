"""How samples are made and put together: the dataset's own code, the collate function."""

from __future__ import annotations

import math
from collections.abc import Iterator

from msgspec.structs import replace

from iotrace.analysis.results import Change
from iotrace.analysis.rules.causes import (
    MOSTLY,
    Remedy,
    call_with,
    ended_by,
    finding,
    held_up_by,
    is_worth,
    level,
    of_loader,
    which,
)
from iotrace.analysis.rules.facts.loader import LoaderFacts
from iotrace.analysis.rules.facts.making import LongSamples, Making
from iotrace.analysis.rules.files import opened_again
from iotrace.analysis.rules.model import MORE_WORKERS, THE_CAUSE, Finding, rule
from iotrace.analysis.rules.sources import fetched_row_by_row
from iotrace.analysis.wait.gain_bound import RESIZED
from iotrace.units import counted, percent, size

_BUILTINS = ("list", "tuple", "dict", "range", "str")
_TELLING = 0.2  # of the transform: what the thread did in less of it does not tell what it is
_LARGE_BATCH = 1 << 20
_MANY_SAMPLES = 16
_BRIDGED = 0.34  # of the batches hold a long sample
_CROWDED = Making(collate_asleep=0.0, collate_on_cpu=0.19)


@rule(
    "IO103",
    "slow-transform",
    "loader",
    id="transform-bound",
    turn=THE_CAUSE,
    fires=[
        {"cause": "transform"},
        {"cause": "transform", "asleep": 1.0, "on_cpu": 0.0},
        {"cause": "transform", "on_cpu": 0.1, "waits_alone": True},
        {"cause": "transform", "on_cpu": 0.2, "made_ms": 600.0},
    ],
    silent=[
        {"cause": "transform", "asleep": None},
        {"cause": "transform", "wait_ms": 4.0, "causes_ms": {"transform": 4.0}},
        {"cause": "transform", "wait_ms": 9.0, "causes_ms": {"transform": 9.0}, "ready": 3.9},
        {"cause": "transform", "asleep": 1.0, "on_cpu": 0.0, "fed_by": "the queue q"},
        {"cause": "transform", "asleep": 1.0, "on_cpu": 0.0, "making": Making(turns=True), "made_ms": 90.0},
        {"cause": "transform", "asleep": 1.0, "on_cpu": 0.0, "dataset": "list", "item": ""},
        {"cause": "transform", "item": "TensorDataset.__getitem__", "item_library": "torch"},
    ],
)
def slow_transform(facts: LoaderFacts) -> Iterator[Finding]:
    """The loop waits for the dataset's own code.

    What is neither reading, nor decoding in a library that iotrace knows, is the transform. Whether its
    thread computed, slept or waited for a CPU is known from the kernel's account of the thread. Beside other
    programs its CPU time alone speaks, where the loop would wait for that without them, too.

    Remedy: precompute what is not random, vectorise the rest; keep a file open that each sample opens; or
    find what a thread that sleeps waits for.
    """
    known = facts.about.fed_by or fetched_row_by_row(facts) or any(samples_in_turns(facts))
    if held_up_by(facts, "transform") and not known:
        yield from ended_by(_faster_code(facts), "transform", facts)


def _faster_code(facts: LoaderFacts) -> Remedy | None:
    """By what the thread did: it slept, or it computed; waits for a CPU are neither."""
    did = _did(facts)
    if did is None:
        return None
    asleep, on_cpu, delayed, share = did
    item = facts.item.partition(" ")[0] or facts.about.dataset
    if _sleeps(did):
        if not facts.item and facts.about.dataset in _BUILTINS:
            return None  # a library's threads make samples of it: no code of the program sleeps
        if facts.about.pool and facts.about.workers and not facts.about.fed_by:
            pool = f"{facts.about.pool}, which has {facts.about.workers}"
            return Remedy(
                f"more workers in the {pool}: {item or 'its task'} sleeps",
                f"it sleeps in {percent(min(1.0, asleep / share))} of that, as for storage or a server: more "
                "workers of the pool wait at the same time, where what they wait for serves several",
            )
        at, where = facts.waits_at, ""
        if at.line and asleep / share + at.share >= 1 + MOSTLY:  # so much of its sleep is there at the least
            where = f" in {at.line}"
        return Remedy(
            f"find out why {item or 'the dataset'} sleeps{where}",
            f"its thread sleeps in {percent(min(1.0, asleep / share))} of that{where}: find what it waits "
            "for (a network, a lock, another process, a reader that iotrace does not know)",
        )
    if on_cpu < max(asleep, _TELLING * share):
        if delayed < MOSTLY:
            return None
        return Remedy(
            f"run again with a free CPU for each worker: {item or 'the transform'} waited for a CPU "
            f"{percent(delayed)} of the time",
            f"its thread waited for a CPU in {percent(delayed)} of the time, so what is slow is unknown: "
            "run again with a free CPU for each worker (fewer workers, or no other programs)",
            gains=False,
        )
    opened = opened_again(facts, "transform")
    if opened is not None:
        return opened
    if facts.about.item_library == "torch":
        return None  # it only indexes what the program gave it
    if facts.about.item_library:
        return Remedy(
            f"make samples of {facts.about.dataset} ahead of training",
            f"{item} is code of a library: do what is not random in it once, ahead of training, and store "
            "the result",
            most=RESIZED,
        )
    on_device = ", or run it on the accelerator" if facts.accelerated else ""
    return Remedy(
        f"precompute or vectorise {item or 'the transform'}",
        f"do once, ahead of training, what is not random in it; vectorise the rest{on_device}",
        most=RESIZED,  # what was made ahead is neither read nor decoded as before
    )


def _did(facts: LoaderFacts) -> tuple[float, float, float, float] | None:
    """Return what of the making of samples a thread slept and computed in the transform, and queued in all.

    The last is the transform's share of it. None where the kernel's account does not tell.
    """
    making_ms = sum(facts.causes_ms.get(cause, 0.0) for cause in ("read", "decode", "transform"))
    if facts.asleep is None or facts.on_cpu is None:
        return None
    delayed = 1 - facts.asleep - facts.on_cpu - facts.threaded
    # Where the loop waits without the queueing, too, what the thread did otherwise tells what is slow.
    given = 1 - delayed if facts.waits_undisturbed and 0 < delayed < 1 else 1.0
    # Reading sleeps, too, and decoding computes: what is beyond them is the transform's.
    asleep = max(0.0, facts.asleep / given - facts.causes_ms.get("read", 0.0) / making_ms)
    on_cpu = max(0.0, facts.on_cpu / given - facts.causes_ms.get("decode", 0.0) / making_ms)
    return asleep, on_cpu, delayed, facts.causes_ms["transform"] / making_ms


def _sleeps(did: tuple[float, float, float, float]) -> bool:
    asleep, on_cpu, _, share = did
    return asleep >= max(on_cpu, MOSTLY * share)


_TURNS = {"cause": "transform", "asleep": 1.0, "on_cpu": 0.0, "made_ms": 90.0, "making": Making(turns=True)}


@rule(
    "IO106",
    "samples-in-turns",
    "loader",
    turn=MORE_WORKERS,
    fires=[_TURNS, {**_TURNS, "core_free": False, "asleep": 0.8, "on_cpu": 0.1}],
    silent=[
        {**_TURNS, "making": Making(turns=False)},
        {**_TURNS, "making": Making()},
        {**_TURNS, "asleep": 0.1, "on_cpu": 0.9},
        {**_TURNS, "fed_by": "the queue q"},
        {**_TURNS, "wait_ms": 4.0, "causes_ms": {"transform": 4.0}},
    ],
)
def samples_in_turns(facts: LoaderFacts) -> Iterator[Finding]:
    """Workers make samples one after the other, and sleep in between: as behind a lock that they share.

    No sample ends soon behind one of another worker. The gain is a bound: each worker sleeps for its own turn
    alone, and computes as long as now. Where no CPU was free, it queues for one as long as now, too, or
    longer, as more of them compute at once.

    Remedy: find what they wait for (a lock, a server that serves one at a time), and hold it for less.
    """
    did = _did(facts) if held_up_by(facts, "transform") and facts.making.turns else None
    if did is None or not _sleeps(did) or facts.about.fed_by or facts.made_ms is None:
        return
    workers = max(1, facts.about.workers)
    queued = 0.0 if facts.core_free else max(0.0, 1 - facts.made_asleep - facts.made_on_cpu)
    left_ms = facts.made_ms * (facts.made_asleep / workers + facts.made_on_cpu + queued) / workers
    gain_ms = min(facts.bound_ms, facts.step_ms - left_ms)
    if not is_worth(gain_ms, facts):
        return
    asleep, _, _, share = did
    cost_ms = facts.causes_ms["transform"]
    item = facts.item.partition(" ")[0] or facts.about.dataset or "the dataset"
    yield finding(
        facts,
        text=f"transform{of_loader(facts)} in {facts.item or item} costs {cost_ms:.1f} ms of wait a step; "
        "its thread sleeps in "
        f"{percent(min(1.0, asleep / share))} of that, and workers make samples in turns",
        how="find what they wait for (a lock, a server that serves one at a time), and hold it for less",
        remedy=f"let workers run {item} at once: they take turns (a lock?)",
        level=level(cost_ms, facts),
        evidence={"transform_ms": cost_ms, "left_ms": left_ms, **which(facts)},
        gain_ms=gain_ms,
        cost_ms=cost_ms,
    )


_LONG = LongSamples(count=11, of=110, long_ms=900.0, usual_ms=10.0, share=0.9, of_batches=0.1, wait_ms=45.0)
_QUICK_ON_AVERAGE = {"production_ms": 60.0, "workers": 2, "wait_ms": 50.0}


@rule(
    "IO105",
    "few-long-samples",
    "loader",
    turn=THE_CAUSE,
    fires=[
        {"making": Making(long=_LONG), **_QUICK_ON_AVERAGE},
        {"making": Making(long=_LONG), **_QUICK_ON_AVERAGE, "production_ms": 600.0},
    ],
    silent=[
        {"making": Making(), **_QUICK_ON_AVERAGE},
        {"making": Making(long=replace(_LONG, wait_ms=4.0)), **_QUICK_ON_AVERAGE},
        {"making": Making(long=_LONG), **_QUICK_ON_AVERAGE, "wait_ms": 2.0, "causes_ms": {"transform": 2.0}},
    ],
)
def few_long_samples(facts: LoaderFacts, *, most_ahead: int = 64) -> Iterator[Finding]:
    """Few samples take much longer than the others, and the loop waits for them.

    A tenth of the samples, say, lies on slow storage, or is much larger. Where batches are given in order,
    all that follow wait for a long one. Where the workers make batches faster on average than the loop takes
    them, batches that lie ready bridge it.

    Remedy: `prefetch_factor`, so that as many batches lie ready as the loop takes meanwhile; or make these
    samples quicker.
    """
    long, about = facts.making.long, facts.about
    if long is None or not facts.is_waited_for or not is_worth(long.wait_ms, facts):
        return
    compute_ms = facts.step_ms - facts.wait_ms
    made_ms = (facts.production_ms or math.inf) * facts.batches_per_step / max(1, about.workers)
    ahead = None
    if about.workers and about.in_order is not False and about.prefetch_factor and made_ms < compute_ms:
        taken = long.long_ms / compute_ms * facts.batches_per_step
        ahead = math.ceil(taken / about.workers) + 1
    bridges = (
        ahead is not None
        and (about.prefetch_factor or 0) < ahead <= most_ahead
        and long.of_batches <= _BRIDGED
        and not (facts.handed_over or about.wrapped or about.library)
    )
    item = facts.item.partition(" ")[0] or about.dataset
    yield finding(
        facts,
        text=f"{long.count} of {counted(long.of, 'sample')} take {long.long_ms:.0f} ms each in {item}, the "
        f"others {long.usual_ms:.2g} ms: {long.wait_ms:.1f} ms of wait a step",
        how=f"with {ahead} batches ahead for each worker the loop has enough while one is made; or find out "
        "what these samples have in common, such as their size or where they lie"
        if bridges
        else "",
        remedy=call_with(f"prefetch_factor={ahead}", facts) + " bridges long samples" if bridges else "",
        level=level(long.wait_ms, facts),
        evidence={"long_ms": long.long_ms, "usual_ms": long.usual_ms, "count": long.count, **which(facts)},
        gain_ms=min(facts.bound_ms, long.wait_ms) if bridges else None,
        cost_ms=long.wait_ms,
        change=Change(settings={"prefetch_factor": str(ahead)}) if bridges else None,
        is_main_cause=long.wait_ms >= MOSTLY * facts.wait_ms,
    )


@rule(
    "IO104",
    "slow-collate",
    "loader",
    id="collate-bound",
    turn=THE_CAUSE,
    fires=[
        {"cause": "collate", "collate": "pad_sequences"},
        {"cause": "collate", "collate": "default_collate"},
        {"cause": "collate", "collate": "default_collate", "batch_bytes": 4096.0},
        {"cause": "collate", "collate": "pad", "made_ms": 600.0, "making": _CROWDED},
    ],
    silent=[
        {"cause": "collate", "collate": "default_collate", "core_free": False},
        {"cause": "collate", "collate": "default_collate", "batch_bytes": 4096.0, "samples": 4.0},
        {"cause": "collate", "collate": "default_convert"},
    ],
)
def slow_collate(facts: LoaderFacts) -> Iterator[Finding]:
    """The loop waits for samples to be put together into a batch.

    torch's own function only copies: its time grows with the bytes and with the number of samples.

    Whether one of the program's computed, slept or waited for a CPU is known from the kernel's account.

    Remedy: find out what a function of your own sleeps for, or do once, ahead of training, what it computes;
    else return narrower dtypes, or make a batch at once in `__getitems__`.
    """
    if held_up_by(facts, "collate") and not (facts.about.tokenizer or fetched_row_by_row(facts)):
        yield from ended_by(_less_collating(facts), "collate", facts)


def _less_collating(facts: LoaderFacts) -> Remedy | None:
    """By whose the function is; torch's own only copies."""
    if facts.collate and not facts.collate.startswith("default_"):
        return _own_collate(facts)
    if facts.collate != "default_collate" or facts.core_free is not True:
        return None
    if facts.batch_bytes is not None and facts.batch_bytes >= _LARGE_BATCH:
        text = f"a batch of {size(facts.batch_bytes)} is copied: return narrower dtypes"
        return Remedy("return narrower dtypes from the dataset", text)
    if facts.samples is not None and facts.samples >= _MANY_SAMPLES and facts.batch_bytes is not None:
        return Remedy(
            "make a batch at once: Dataset.__getitems__",
            f"{facts.samples:.0f} small samples are stacked one by one: make a batch at once in "
            "the dataset's __getitems__, with a collate_fn that passes it on",
        )
    return None


def _own_collate(facts: LoaderFacts) -> Remedy | None:
    """By what the program's own function did: it slept, computed, or waited for a CPU."""
    asleep, on_cpu, name = facts.making.collate_asleep, facts.making.collate_on_cpu, facts.collate
    if asleep is None or on_cpu is None:
        short = f"pad, convert and copy less in {name}"
        return Remedy(short, f"whether {name} computes or sleeps is unknown: {short}")
    delayed = max(0.0, 1 - asleep - on_cpu)
    if asleep >= max(on_cpu, MOSTLY):
        return Remedy(
            f"find out why {name} sleeps ({percent(asleep)} of its time)",
            f"{name} sleeps in {percent(asleep)} of that: find what it waits for (a network, a lock, another "
            "process)",
        )
    if on_cpu < _TELLING and not facts.waits_undisturbed:
        return Remedy(
            f"find {name} a free CPU: it lacked one in {percent(delayed)} of the time",
            f"{name} waited for a CPU in {percent(delayed)} of the time, so what is slow is unknown: run "
            "again with a free CPU for each worker (fewer workers, or no other programs)",
            gains=False,
        )
    return Remedy(
        f"compute less in {name}, or vectorise it",
        f"{facts.collate_line or name} computes in {percent(on_cpu)} of that, and waits for a CPU in "
        f"{percent(delayed)}: do once, ahead of training, what is not random in it (tokenising, parsing, "
        "converting); only pad and stack here, in whole tensors",
    )
