"""How samples are made: the dataset's own code."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec.structs import replace

from iotrace.analysis.results import PipelineStage
from iotrace.analysis.rules.batches import fetched_row_by_row
from iotrace.analysis.rules.causes import (
    MOSTLY,
    TELLING,
    Remedy,
    ended_by,
    finding,
    held_up_by,
    is_worth,
    level,
    of_loader,
    which,
)
from iotrace.analysis.rules.facts.loader import LoaderFacts
from iotrace.analysis.rules.facts.making import Making
from iotrace.analysis.rules.mapped_arrays import read_across
from iotrace.analysis.rules.model import MORE_WORKERS, THE_CAUSE, Finding, fires, rule, silent
from iotrace.analysis.rules.reread import opened_again, stores_opened_again
from iotrace.analysis.wait.gain_bound import RESIZED
from iotrace.analysis.wait.locks import INTERPRETER
from iotrace.analysis.wait.wait_code import WaitCode
from iotrace.units import percent

# Datasets of a library that keep what its transforms made up to the first random one: in memory, on disk.
_CACHES = {"monai": ("CacheDataset", "PersistentDataset")}
_COPIES = "copy"  # the module of Python's library
_BESIDE = 0.25  # of its sleep: how long other threads compute; the agent's, and sending, are below a tenth
_BUILTINS = ("list", "tuple", "dict", "range", "str")
_MAPPED = {"accesses": 900, "apart_fraction": 1.0, "piece_bytes": 4, "gap_bytes": 16384, "major_faults": 0}
_IN_COLUMNS = {"path": "d/a.npy", "transform_ms": 45.0, "amplification": {"mapped": _MAPPED}}
_IN_STORES = [{"path": "d/a.zarr/x/zarr.json", "opens": 3200}]
_ASLEEP = {"cause": "transform", "asleep": 1.0, "on_cpu": 0.0}
_LAST = PipelineStage(
    name="collate", makers=1, of="threads", busy=0.1, items=90, item_ms=1.0, puts="queue.Queue", wait_ms=1.0
)
_STAGES = {
    "wrapped": True,
    "pool": "queue.Queue",
    "workers": 1,
    "dataset": "collate",
    "item": "fetch",
    "pipeline": [replace(_LAST, name="fetch", busy=0.7, slowest=True, locks_ms={INTERPRETER: 0.5}), _LAST],
}
_PIPELINE = {
    "cause": "transform",
    "dataset": "WebDataset",
    "library": "webdataset",
    "wrapped": True,
    "workers": 0,
}


@rule("IO103", "slow-transform", "loader", id="transform-bound", turn=THE_CAUSE)
@fires(
    {"cause": "transform"},
    _ASLEEP,
    {**_ASLEEP, "hot_in": "zarr", "files": _IN_STORES},
    {**_ASLEEP, "item": "read", "library": "spdl", "wrapped": True},
    {**_ASLEEP, "item": "Clips.__getitem__ (train.py:9)", "beside": 0.5},
    {**_ASLEEP, **_STAGES},
    {"cause": "transform", "asleep": 0.0, "on_cpu": 0.1, **_STAGES, "waits_alone": True},
    {"cause": "transform", "on_cpu": 0.1, "waits_alone": True},
    {"cause": "transform", "on_cpu": 0.2, "made_ms": 600.0},
    {"cause": "transform", "groups": [_IN_COLUMNS]},
    {"cause": "transform", "hot_in": "copy", "hot_line": "train.py:9, in copy's deepcopy"},
    {**_PIPELINE, "waits_at": WaitCode(function="clean (train.py:8)", function_share=0.8)},
    {"cause": "transform", "item": "Dataset.__getitem__", "item_library": "monai", "dataset": "Dataset"},
    # A library's rows, which it hands to a function of the program.
    {
        "cause": "transform",
        "item": "Dataset.__getitem__",
        "item_library": "datasets",
        "hot_line": "train.py:9",
    },
)
@silent(
    {"cause": "transform", "asleep": None},
    {"cause": "transform", "wait_ms": 4.0, "causes_ms": {"transform": 4.0}},
    {"cause": "transform", "wait_ms": 9.0, "causes_ms": {"transform": 9.0}, "ready": 3.9},
    {"cause": "transform", "asleep": 1.0, "on_cpu": 0.0, "fed_by": "the queue q"},
    {"cause": "transform", "asleep": 1.0, "on_cpu": 0.0, "making": Making(turns=True), "made_ms": 90.0},
    {"cause": "transform", "asleep": 1.0, "on_cpu": 0.0, "dataset": "list", "item": ""},
    {"cause": "transform", "item": "TensorDataset.__getitem__", "item_library": "torch"},
    {**_ASLEEP, "dataset": "Prefetcher", "library": "torchdata", "wrapped": True},
    {**_ASLEEP, "item": "read", "library": "spdl", "wrapped": True, "making": Making(turns=True)},
)
def slow_transform(facts: LoaderFacts) -> Iterator[Finding]:
    """The loop waits for the dataset's own code.

    The transform is all that is neither reading nor decoding in a library that iotrace knows. The kernel's
    account of the thread says whether it computed, slept or waited for a CPU. If other programs took CPUs,
    only CPU time counts, as far as the loop would wait for it without them, too.

    Remedy: precompute what is not random, vectorise the rest; keep a file open that each sample opens; store
    an array transposed if samples take its columns; or find what a thread that sleeps waits for. If other
    threads of its process compute meanwhile, these may be a library's that work for it.
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
    item = facts.item.partition(" (")[0] or facts.about.dataset
    if facts.hot_in == "zarr" and (opened := stores_opened_again(facts)) is not None:
        return opened  # the thread itself sleeps meanwhile
    if _sleeps(did):
        own = facts.about.dataset in _BUILTINS or (facts.about.library and facts.about.wrapped)
        if not facts.item and own:
            return None  # a library's threads make samples of it: no code of the program sleeps
        if facts.about.pool and facts.about.workers and not facts.about.fed_by:
            who = "producers for" if "." in facts.about.pool else "workers in"  # of a queue, a pipe
            more = f"more {who} the {facts.about.pool}, which has {facts.about.workers}"
            if (stage := _one_of_several(facts)) is not None:
                more = f"more {stage.of} for {stage.name}, which has {stage.makers}"
            return Remedy(
                f"{more}: {'it' if stage is not None else item or 'its task'} sleeps; if for a lock, hold it "
                "for less",
                f"it sleeps in {percent(min(1.0, asleep / share))} of that: if for storage or a server, "
                "more of them wait at the same time; if for a lock, hold it for less time",
                tries=True,
            )
        at, where = facts.waits_at, ""
        if at.line and asleep / share + at.share >= 1 + MOSTLY:  # so much of its sleep is there at the least
            where = f" in {at.line}"
        if facts.beside >= _BESIDE:
            return Remedy(
                f"find what computes on threads while {item or 'the dataset'} waits",
                f"its thread sleeps in {percent(min(1.0, asleep / share))} of that{where}, while other "
                "threads of its process compute: if they are a library's, such as a codec's, have it do less",
            )
        return Remedy(
            f"find out why {item or 'the dataset'} sleeps{where}",
            f"its thread sleeps in {percent(min(1.0, asleep / share))} of that{where}: find what it waits "
            "for (a network, a lock, another process, threads of a library that compute for it, a reader "
            "that iotrace does not know)",
        )
    if on_cpu < max(asleep, TELLING * share):
        if delayed < MOSTLY:
            return None
        stage = _one_of_several(facts)
        cpu = "a CPU"
        if stage is not None and INTERPRETER in stage.locks_ms:
            cpu = "a CPU or Python's interpreter"
        spare = f"do less at {facts.hot_line}, or " if facts.hot_line else ""
        slow = "" if facts.hot_line else ", so what is slow is unknown"
        return Remedy(
            f"{spare}run again with a free CPU for each worker: {item or 'the transform'} waited for {cpu} "
            f"{percent(delayed)} of the time",
            f"its thread waited for {cpu} in {percent(delayed)} of the time{slow}: {spare}"
            "run again with a free CPU for each worker (fewer workers, or no other programs)",
            gains=False,
        )
    found = opened_again(facts, "transform") or read_across(facts, "transform")
    if found is not None:
        return found
    if facts.about.item_library == "torch":
        return None  # it only indexes what the program gave it
    if facts.about.item_library and facts.hot_line:  # it calls a function of the program's
        item = f"what {item} calls at {facts.hot_line}"
    elif facts.about.item_library:
        if (caches := _CACHES.get(facts.about.item_library)) and facts.about.dataset not in caches:
            return Remedy(
                f"keep what is not random of {facts.about.dataset}: {' or '.join(caches)}",
                f"what is not random in {item} is the same in each epoch: keep it by "
                f"{facts.about.item_library}'s {caches[0]} (in memory) or {caches[1]} (on disk), with the "
                "random transforms last",
                most=RESIZED,
            )
        return Remedy(
            f"make samples of {facts.about.dataset} ahead of training",
            f"{item} is code of a library: do what is not random in it once, ahead of training, and store "
            "the result",
            most=RESIZED,
        )
    if facts.hot_in == _COPIES:
        return Remedy(
            f"copy less at {facts.hot_line}",
            f"{item or 'the dataset'} copies whole objects for each sample ({facts.hot_line}): "
            "copy only what changes, as with copy.copy",
        )
    on_device = ", or run it on the accelerator" if facts.accelerated else ""
    called = facts.about.library and not facts.item and facts.waits_at.function_share >= MOSTLY
    if called:  # what a library's pipeline calls; its own code is a part of the transform, too
        item = f"what {item or facts.about.library} runs, such as {facts.waits_at.function}"
    generator = facts.about.wrapped and not (facts.about.pool or facts.about.library or facts.item)
    where = f" ({facts.hot_line})" if generator and facts.hot_line else ""
    item = facts.hot_function or f"{item or 'the transform'}{where}"
    return Remedy(
        f"precompute or vectorise {item}",
        f"do once, ahead of training, what is not random in it; vectorise the rest{on_device}",
        most=RESIZED,  # what was made ahead is neither read nor decoded as before
        gains=not called,
    )


def _one_of_several(facts: LoaderFacts) -> PipelineStage | None:
    """The program's stage that holds the loop up, of several: the queue's own maker is the last of them."""
    several = len(facts.pipeline) > 1 and not facts.about.library
    return next((each for each in facts.pipeline if each.slowest), None) if several else None


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


_TURNS = {**_ASLEEP, "made_ms": 90.0, "making": Making(turns=True)}
_CALLS = {**_ASLEEP, "item": "read", "library": "spdl", "wrapped": True, "workers": 0}


@rule("IO106", "samples-in-turns", "loader", turn=MORE_WORKERS)
@fires(
    _TURNS,
    {**_TURNS, "core_free": False, "asleep": 0.8, "on_cpu": 0.1},
    {**_CALLS, "making": Making(turns=True)},
)
@silent(
    {**_CALLS, "making": Making(turns=False)},
    {**_TURNS, "making": Making(turns=False)},
    {**_TURNS, "making": Making()},
    {**_TURNS, "asleep": 0.1, "on_cpu": 0.9},
    {**_TURNS, "fed_by": "the queue q"},
    {**_TURNS, "wait_ms": 4.0, "causes_ms": {"transform": 4.0}},
)
def samples_in_turns(facts: LoaderFacts) -> Iterator[Finding]:
    """Workers make samples one after the other, and sleep in between, as if they shared a lock.

    No sample ends soon after one of another worker. The gain is a bound: each worker sleeps only for its own
    turn, and computes as long as now. If no CPU was free, it also queues for one as long as now, or longer.
    Threads in which a library runs a function of the program are judged alike. Their gain is unknown, as the
    thread whose turn it is may compute.

    Remedy: find what they wait for (a lock, a server that serves one at a time), and hold it for less time.
    """
    did = _did(facts) if held_up_by(facts, "transform") and facts.making.turns else None
    by_library = bool(facts.about.library and facts.about.wrapped)
    if did is None or not _sleeps(did) or facts.about.fed_by or (facts.made_ms is None and not by_library):
        return
    workers = max(1, facts.about.workers)
    queued = 0.0 if facts.core_free else max(0.0, 1 - facts.made_asleep - facts.made_on_cpu)
    left_ms = (facts.made_ms or 0.0) * (facts.made_asleep / workers + facts.made_on_cpu + queued) / workers
    gain_ms = min(facts.bound_ms, facts.step_ms - left_ms)
    asleep, _, _, share = did
    cost_ms = facts.causes_ms["transform"]
    if not is_worth(cost_ms if by_library else gain_ms, facts):
        return
    who, told = ("threads call it", {}) if by_library else ("workers make samples", {"left_ms": left_ms})
    item = facts.item.partition(" (")[0] or facts.about.dataset or "the dataset"
    yield finding(
        facts,
        text=f"transform{of_loader(facts)} in {facts.item or item} costs {cost_ms:.1f} ms of wait a step; "
        "its thread sleeps in "
        f"{percent(min(1.0, asleep / share))} of that, and {who} in turns",
        how="find what they wait for (a lock, a server that serves one at a time), and hold it for less",
        remedy=f"let {'threads' if by_library else 'workers'} run {item} at once: they take turns (a lock?)",
        level=level(cost_ms, facts),
        evidence={"transform_ms": cost_ms, **told, **which(facts)},
        gain_ms=None if by_library else gain_ms,
        cost_ms=cost_ms,
    )
