"""How samples become a batch: fetched row by row, tokenised, collated, and stopped for garbage."""

from __future__ import annotations

from collections.abc import Iterator

from iotrace.analysis.rules.causes import (
    MOSTLY,
    TELLING,
    Remedy,
    ended_by,
    finding,
    held_up_by,
    is_worth,
    leading,
    level,
    of_loader,
    share_of_making_ms,
    which,
)
from iotrace.analysis.rules.facts.loader import LoaderFacts
from iotrace.analysis.rules.facts.long_samples import LongSamples
from iotrace.analysis.rules.facts.making import Making
from iotrace.analysis.rules.model import THE_CAUSE, Finding, fires, rule, silent
from iotrace.analysis.wait.hot_lines import THAT_TRAIN
from iotrace.units import many, percent, size

_FILLS = LongSamples(
    count=5, of=1328, long_ms=866.0, usual_ms=0.001, share=0.9, of_batches=0.03, wait_ms=26.0
)
_LOSES_CPU = LongSamples(
    count=162, of=291_808, long_ms=4.0, usual_ms=0.002, share=0.7, of_batches=0.9, wait_ms=26.0
)
_CHEAP_US = 30.0  # a sample: to ask for it takes as long as to make it
_MANY_ROWS = 8
_MANY_SAMPLES = 16
# Types that take a list of rows, to which nobody adds a method.
_OF_LIBRARIES = ("Tensor", "ndarray", "memmap")
_OF_PYTHON = ("list", "tuple")  # these take none
_MILLION = 10**6
_MANY_FROZEN = 10_000  # objects: so many no library leaves frozen


@rule("IO211", "rows-one-by-one", "loader", turn=THE_CAUSE)
@fires(
    {
        "causes_ms": {"transform": 38.0, "collate": 10.0},
        "collate": "default_collate",
        "samples": 4096.0,
        "making": Making(item_ms=0.007),
    },
    {
        "causes_ms": {"transform": 38.0, "collate": 10.0},
        "collate": "default_collate",
        "samples": 4096.0,
        "making": Making(item_ms=0.002, long=_LOSES_CPU),
    },
)
@silent(
    {"collate": "default_collate", "samples": 4096.0, "making": Making(item_ms=2.0)},
    {"collate": "default_collate", "samples": 4.0, "making": Making(item_ms=0.007)},
    {"collate": "pad", "samples": 4096.0, "making": Making(item_ms=0.007)},
    {"collate": "default_collate", "samples": 8.0, "making": Making(item_ms=0.001, long=_FILLS)},
    {  # it is what new workers do in their first samples
        "causes_ms": {"transform": 38.0, "collate": 1.0},
        "collate": "default_collate",
        "samples": 4096.0,
        "about": {"workers": 2, "persistent_workers": False},
        "making": Making(item_ms=0.007, first_item_ms=1000.0, first_least_ms=900.0, fill_ms=38.0),
    },
)
def rows_one_by_one(facts: LoaderFacts) -> Iterator[Finding]:
    """The dataset holds its rows in memory, but a batch fetches them one by one and stacks them again.

    Calling `__getitem__` for each row, and stacking thousands of tensors, takes longer than indexing all rows
    at once.

    Remedy: one index for the whole batch: a sampler of batches with `batch_size=None`, or `__getitems__`.
    """
    if not fetched_row_by_row(facts):
        return
    fetching_ms = sum(facts.causes_ms.get(cause, 0.0) for cause in ("transform", "collate"))
    cost_ms = max(0.0, fetching_ms - facts.first_samples_ms)  # of which IO203 tells
    gain_ms = min(facts.bound_ms, cost_ms)
    if not facts.is_waited_for or not is_worth(gain_ms, facts):
        return
    whole = f"DataLoader({facts.about.dataset.lower()}, sampler=BatchSampler(…), batch_size=None)"
    if facts.about.dataset in _OF_PYTHON:
        how = "hold the rows in a tensor or an array, and index it by the whole batch: DataLoader(rows, "
        how += "sampler=BatchSampler(…), batch_size=None)"
        remedy = "rows at once: a tensor and BatchSampler"
    elif facts.about.item_library or facts.about.dataset in _OF_LIBRARIES:
        how = f"{whole} asks for a batch at once; or index the tensors yourself"
        remedy = "rows at once: BatchSampler and batch_size=None"
    else:
        how = (
            f"index all rows of a batch at once, in {facts.about.dataset}.__getitems__ with a collate_fn "
            f"that passes them on; or {whole}, where __getitem__ takes a list"
        )
        remedy = f"rows at once: {facts.about.dataset}.__getitems__"
    yield finding(
        facts,
        text=(
            f"{facts.samples:.0f} rows a batch{of_loader(facts)} are fetched one by one and stacked: "
            f"{cost_ms:.1f} ms of wait a step"
        ),
        how=how,
        remedy=remedy,
        level=level(cost_ms, facts),
        evidence={"rows_ms": cost_ms, "rows": facts.samples or 0.0, **which(facts)},
        gain_ms=gain_ms,
        cost_ms=cost_ms,
        is_main_cause=cost_ms >= MOSTLY * facts.wait_ms,
        spares_work=True,
    )


def fetched_row_by_row(facts: LoaderFacts, *, cheap_us: float = _CHEAP_US, many: int = _MANY_ROWS) -> bool:
    """Whether samples are so cheap, and so many in a batch, that asking for each costs most."""
    about, item_ms = facts.about, facts.making.item_ms
    return (
        not (about.iterable or about.wrapped or facts.handed_over)
        and facts.collate == "default_collate"
        and (facts.samples or 0.0) >= many
        and item_ms is not None
        and 1000 * item_ms <= cheap_us
        and not _takes_few(facts)
    )


def _takes_few(facts: LoaderFacts) -> bool:
    """Whether few samples that take long are most of the making, in few batches, and not the many.

    In most batches some sample loses its CPU on a busy machine.
    """
    long = facts.making.long
    if long is None or long.of_batches >= MOSTLY:
        return False
    return long.wait_ms >= MOSTLY * facts.causes_ms.get("transform", 0.0)


@rule("IO214", "collecting-garbage", "loader", turn=THE_CAUSE)
@fires(
    {"making": Making(collecting_ms=30.0, collections=12, collection_ms=800.0)},
    {"making": Making(collecting_ms=30.0, collections=12, collection_ms=800.0, frozen=2_000_000)},
    {
        "making": Making(
            collecting_ms=30.0, collections=900, collection_ms=1.2, full_share=0.2, objects=390_000
        )
    },
    {
        "making": Making(collecting_ms=30.0, collections=12, collection_ms=800.0),
        "pool": "queue.Queue",
        "wrapped": True,
        "workers": 2,
    },
)
@silent(
    {"making": Making(collecting_ms=2.0, collections=12, collection_ms=800.0)},
    {"making": Making(collecting_ms=30.0, collections=12, collection_ms=800.0), "wait_ms": 2.0},
)
def collecting_garbage(facts: LoaderFacts) -> Iterator[Finding]:
    """Python's garbage collector stops the making of batches while the loop waits for them.

    A full collection looks at all objects of the process. A dataset of millions of lists and dictionaries
    makes it long, and code that makes many objects makes it frequent.

    Remedy: call `gc.freeze()` when a worker starts: collections then skip the dataset's objects. Or hold
    arrays instead of objects. Or call `gc.disable()`, and `gc.collect()` every N batches, which bounds the
    memory. `gc.freeze()` is not advised where the program calls it already, and where most of the time are
    collections of new objects alone, such as the lists that a sample makes.
    """
    making = facts.making
    gain_ms = min(facts.bound_ms, making.collecting_ms)
    if not facts.is_waited_for or not is_worth(gain_ms, facts):
        return
    where = "in worker_init_fn" if facts.about.workers and not facts.about.wrapped else "before the loop"
    if any(stage.of == "processes" for stage in facts.pipeline):
        where = "in each process"
    remedy = f"gc.freeze() {where}, or fewer objects"
    if making.objects is not None:
        old = f"{making.objects / 1e6:.1f}M" if making.objects >= _MILLION else f"{making.objects / 1e3:.0f}k"
        remedy = f"gc.freeze() {where} ({old} old objects)"
    if facts.about.pool:  # whose makers mostly make what they work on anew
        remedy = f"fewer objects: arrays, not lists; or gc.freeze() {where}"
    how = (
        f"gc.freeze() {where} makes them skip the dataset's objects; hold arrays, not millions of objects; "
        "or gc.disable() with gc.collect() every N batches"
    )
    if (making.frozen or 0) >= _MANY_FROZEN:
        remedy = f"gc.disable() {where} and a rare gc.collect(), or fewer new objects a sample"
        how = "gc.freeze() was called: the rest comes from objects made since; make fewer, or gc.disable() "
        how += "with gc.collect() every N batches"
    elif making.full_share is not None and making.full_share < MOSTLY:
        remedy = f"gc.disable() {where}: many new objects"
        how = (
            "most of it are collections of new objects, which gc.freeze() makes no shorter: make fewer for a "
            "sample (arrays, not lists of numbers), or gc.disable() with gc.collect() every N batches"
        )
    over = "" if making.objects is None else f" (full ones look at {many(making.objects)} objects)"
    leads = leading(making.collecting_ms, facts)
    if leads["is_main_cause"] and not facts.about.workers:  # IO507: the same collector, outside of the waits
        leads["silences"] = (*leads["silences"], "IO507")
    yield finding(
        facts,
        text=(
            f"making batches{of_loader(facts)} stops for Python's garbage collector: {making.collections} "
            f"collections of {making.collection_ms:.2g} ms{over}, {making.collecting_ms:.1f} ms of wait a "
            "step"
        ),
        how=how,
        remedy=remedy,
        level=level(gain_ms, facts),
        evidence={"collecting_ms": making.collecting_ms, "collections": making.collections, **which(facts)},
        gain_ms=gain_ms,
        most_ms=_most_of_collecting_ms(facts, gain_ms),
        cost_ms=making.collecting_ms,
        **leads,
    )


def _most_of_collecting_ms(facts: LoaderFacts, gain_ms: float) -> float | None:
    """What of the wait goes with it at most: as much as it takes of the making of a step's batches."""
    most_ms = share_of_making_ms(facts, facts.making.collecting_ms)
    return None if most_ms is None else max(gain_ms, min(facts.bound_ms, most_ms))


@rule("IO215", "tokenised-each-time", "loader", turn=THE_CAUSE)
@fires({"cause": "collate", "collate": "encode", "tokenizer": "tokenizers.Tokenizer"})
@silent(
    {"cause": "collate", "collate": "encode"},
    {"cause": "transform", "collate": "encode", "tokenizer": "tokenizers.Tokenizer"},
)
def tokenised_each_time(facts: LoaderFacts) -> Iterator[Finding]:
    """The collate function tokenises each batch again in each epoch, while the loop waits.

    It uses a tokenizer, and most of the wait is in it.

    Remedy: tokenise once, ahead of training, and store the numbers; only pad in the collate function.
    """
    if held_up_by(facts, "collate") and facts.about.tokenizer:
        remedy = Remedy(
            f"tokenise ahead of training, not in {facts.collate or 'collate_fn'}",
            f"{facts.collate or 'the collate function'} tokenises each batch ({facts.about.tokenizer}): do "
            "it once, ahead of training, store the numbers, and only pad here",
            spares_work=True,
        )
        yield from ended_by(remedy, "collate", facts)


_LARGE_BATCH = 1 << 20
_BY_LISTS = ("DataCollatorWithPadding",)  # of transformers: the tokenizer's `pad` is of lists
_LARGE_SAMPLE = 64 << 10  # bytes; many small tensors take long, however few bytes they are
_COPIED_IN_MS = 50 << 10  # bytes: a copy is 20 times as fast and more, also on a busy host
_CROWDED = Making(collate_asleep=0.0, collate_on_cpu=0.19)


@rule("IO104", "slow-collate", "loader", id="collate-bound", turn=THE_CAUSE)
@fires(
    {"cause": "collate", "collate": "pad_sequences"},
    {"cause": "collate", "collate": "default_collate"},
    {"cause": "collate", "collate": "default_collate", "batch_bytes": 4096.0},
    {"cause": "collate", "collate": "pad", "made_ms": 600.0, "making": _CROWDED},
    {"cause": "collate", "collate": "Collater", "about": {"collate_library": "torch_geometric"}},
    {
        "cause": "collate",
        "collate": "DataCollatorWithPadding.__call__",
        "about": {"collate_library": "transformers"},
    },
    {
        "cause": "collate",
        "collate": "stack_all",
        "about": {"collate_library": "timm"},
        "samples": 4.0,
        "batch_bytes": 400e3,
    },
)
@silent(
    {"cause": "collate", "collate": "default_collate", "core_free": False},
    {"cause": "collate", "collate": "default_collate", "batch_bytes": 4096.0, "samples": 4.0},
    {"cause": "collate", "collate": "default_convert"},
)
def slow_collate(facts: LoaderFacts) -> Iterator[Finding]:
    """The loop waits for samples to be put together into a batch.

    torch's own function only copies: its time grows with the bytes and with the number of samples.

    For a function of the program, the kernel's account shows whether it computed, slept or waited for a CPU.

    Remedy: find out what your own function waits for, or compute it once, ahead of training; give a library's
    fewer and smaller tensors, or stack them yourself where it does more than that; for torch's own, return
    narrower dtypes, or make a batch at once in `__getitems__`.
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


def _of_library(facts: LoaderFacts, name: str, library: str, on_cpu: float) -> Remedy:
    """Nobody makes a library's function compute less: what it is given is the program's, or who is called."""
    if name.partition(".")[0] in _BY_LISTS:
        return Remedy(
            "pad and stack tensors in a data_collator of your own",
            f"{name} makes Python's lists of what samples hold, and tensors of these again: pad and stack "
            "their tensors in a data_collator of your own (pad_sequence, or torch.stack where shapes agree)",
            at_most=True,
        )
    if (converting := _converts(facts)) is not None:
        return Remedy(
            "stack tensors of one shape in a collate_fn of your own",
            f"{name} is {library}'s and does more than copy: {converting}: if samples are tensors of one "
            "shape, a collate_fn of your own stacks them (torch.stack)",
            at_most=True,
        )
    return Remedy(
        "make samples of fewer, smaller tensors",
        f"{name} is {library}'s, computes in {percent(on_cpu)} of that, and puts together all that samples "
        "have: make samples of fewer and smaller tensors, or batches of fewer samples",
        at_most=True,
    )


def _converts(facts: LoaderFacts) -> str | None:
    """Say what it puts together in which time, where that is far from a copy of few large tensors."""
    collate_ms = facts.causes_ms.get("collate", 0.0) / max(1.0, facts.batches_per_step)
    batch, samples = facts.batch_bytes or 0.0, facts.samples or 0.0
    if not samples or batch < _LARGE_SAMPLE * samples or batch > _COPIED_IN_MS * collate_ms:
        return None
    return f"a batch of {size(batch)} costs {collate_ms:.0f} ms of wait"


def _librarys(facts: LoaderFacts) -> str:
    """The library that a function is of, also of one that lies elsewhere than packages do; else empty."""
    file = (facts.about.collate_site or "").rpartition(":")[0]
    return facts.about.collate_library or next((each for each in file.split("/") if each in THAT_TRAIN), "")


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
    if on_cpu < TELLING and not facts.waits_undisturbed:
        return Remedy(
            f"find {name} a free CPU: it lacked one in {percent(delayed)} of the time",
            f"{name} waited for a CPU in {percent(delayed)} of the time, so what is slow is unknown: run "
            "again with a free CPU for each worker (fewer workers, or no other programs)",
            gains=False,
        )
    called = ""
    if library := _librarys(facts):
        if not facts.collate_hot or library in facts.collate_hot.split("/"):
            return _of_library(facts, name, library, on_cpu)
        called = f" at {facts.collate_hot}"
    return Remedy(
        f"compute less{called or f' in {name}'}, or vectorise it",
        f"{facts.collate_line or name} computes{called} in {percent(on_cpu)} of that, and waits for a CPU in "
        f"{percent(delayed)}: do once, ahead of training, what is not random in it (tokenising, parsing, "
        "converting); only pad and stack here, in whole tensors",
    )
