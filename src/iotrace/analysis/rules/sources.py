"""Where samples come from: who feeds a dataset, how it is asked, shared out, filled, what its makers do."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from msgspec.structs import replace

from iotrace.analysis.rules.causes import (
    MOSTLY,
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
from iotrace.analysis.rules.model import MORE_WORKERS, THE_CAUSE, Finding, rule
from iotrace.analysis.wait.data_wait import UNMADE
from iotrace.analysis.wait.wait_code import WaitCode
from iotrace.units import percent

_CHEAP_US = 30.0  # a sample: to ask for it takes as long as to make it
_MANY_ROWS = 8
_TOLD = 0.25  # of the wait: what a verdict names before its cause
_WITHOUT_REPLACEMENT = "WeightedRandomSampler(replacement=False)"
_DRAWN_ONCE = Making(draw_ms=1300.0)
_MANY_FROZEN = 10_000  # objects: so many no library leaves frozen
_EVEN = 0.75  # of the workers: as many as work while the busiest does


@rule(
    "IO210",
    "fed-by-the-program",
    "loader",
    turn=MORE_WORKERS,
    fires=[
        {
            "cause": "transform",
            "fed_by": "the queue q",
            "iterable": True,
            "workers": 0,
            "asleep": 0.9,
            "on_cpu": 0.0,
        }
    ],
    silent=[
        {"cause": "transform", "iterable": True, "workers": 0, "asleep": 0.9, "on_cpu": 0.0},
        {"cause": "transform", "fed_by": "the queue q", "asleep": 0.1, "on_cpu": 0.9},
    ],
)
def fed_by_the_program(facts: LoaderFacts) -> Iterator[Finding]:
    """A thread or another process of the program gives the dataset its samples, and is slower than the loop.

    The dataset sleeps for them, and has a queue, a pipe or a thread of the training process. A worker gets a
    copy of the dataset, but not of that thread: it would wait for ever. So no number of workers is advised.

    Remedy: make what feeds the dataset faster, such as by more of the processes that fill its queue.
    """
    feeder = facts.about.fed_by
    if not feeder or not held_up_by(facts, "transform") or facts.made_asleep < MOSTLY:
        return
    cost_ms = facts.causes_ms["transform"]
    yield finding(
        facts,
        text=(
            f"{facts.about.dataset}{of_loader(facts)} sleeps until {feeder} gives it samples: "
            f"{cost_ms:.1f} ms of wait a step"
        ),
        how=(
            "make what fills it faster; num_workers is not advised: workers get a copy of the dataset, not "
            "the thread that feeds it, and may wait for ever"
        ),
        remedy=f"feed {facts.about.dataset} faster ({feeder}); num_workers may hang",
        level=level(cost_ms, facts),
        evidence={"transform_ms": cost_ms, **which(facts)},
        cost_ms=cost_ms,
        is_main_cause=cost_ms >= MOSTLY * facts.wait_ms,
    )


_ASLEEP = {"cause": "unknown", "wrapped": True, "workers": 0, "dataset": "batches"}


@rule(
    "IO218",
    "source-sleeps",
    "loader",
    turn=THE_CAUSE,
    fires=[{**_ASLEEP, "waits_at": WaitCode("batches (train.py:12)", 0.9)}],
    silent=[
        _ASLEEP,
        {**_ASLEEP, "waits_at": WaitCode("batches (train.py:12)", 0.3)},
        {**_ASLEEP, "cause": "transform", "waits_at": WaitCode("batches (train.py:12)", 0.9)},
        {**_ASLEEP, "wait_ms": 9.0, "causes_ms": {"unknown": 4.0, "transform": 5.0}},
    ],
)
def source_sleeps(facts: LoaderFacts) -> Iterator[Finding]:
    """What the loop iterates sleeps at a line of the program, as for a server, a rate limit or a lock.

    The kernel's account says how long the thread slept, samples of its stack say where. Neither says what it
    waited for.

    Remedy: ask ahead in a thread, several at once where what it waits for serves several; or sleep less.
    """
    at, unknown_ms = facts.waits_at, facts.causes_ms.get("unknown", 0.0)
    cost_ms = facts.wait_ms * (unknown_ms / facts.wait_ms + at.share - 1) if facts.wait_ms else 0.0
    if not at.line or cost_ms < MOSTLY * facts.wait_ms or not is_worth(cost_ms, facts):
        return
    yield finding(
        facts,
        text=f"{facts.about.dataset}{of_loader(facts)} sleeps in {at.line}: at least {cost_ms:.1f} ms a step",
        how=(
            f"find what {at.line} waits for: a server, a rate limit, a lock, a sleep; ask for it ahead in a "
            "thread, for several at once where it serves several"
        ),
        remedy=f"fetch ahead in a thread: {at.line} sleeps",
        level=level(cost_ms, facts),
        evidence={"unknown_ms": unknown_ms, "at": at.share, **which(facts)},
        cost_ms=cost_ms,
        is_main_cause=True,
    )


@rule(
    "IO211",
    "rows-one-by-one",
    "loader",
    turn=THE_CAUSE,
    fires=[
        {
            "causes_ms": {"transform": 38.0, "collate": 10.0},
            "collate": "default_collate",
            "samples": 4096.0,
            "making": Making(item_ms=0.007),
        }
    ],
    silent=[
        {"collate": "default_collate", "samples": 4096.0, "making": Making(item_ms=2.0)},
        {"collate": "default_collate", "samples": 4.0, "making": Making(item_ms=0.007)},
        {"collate": "pad", "samples": 4096.0, "making": Making(item_ms=0.007)},
    ],
)
def rows_one_by_one(facts: LoaderFacts) -> Iterator[Finding]:
    """A batch is fetched row by row and stacked again, of a dataset that holds its rows in memory.

    A call of `__getitem__` for each row, and stacking thousands of tensors, take longer than to index all
    rows at once.

    Remedy: one index for the whole batch: a sampler of batches with `batch_size=None`, or `__getitems__`.
    """
    if not fetched_row_by_row(facts):
        return
    cost_ms = sum(facts.causes_ms.get(cause, 0.0) for cause in ("transform", "collate"))
    gain_ms = min(facts.bound_ms, cost_ms)
    if not facts.is_waited_for or not is_worth(gain_ms, facts):
        return
    whole = f"DataLoader({facts.about.dataset.lower()}, sampler=BatchSampler(…), batch_size=None)"
    if facts.about.item_library:
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
    )


@rule(
    "IO212",
    "uneven-shards",
    "loader",
    turn=MORE_WORKERS,
    fires=[
        {
            "iterable": True,
            "workers": 4,
            "production_ms": 100.0,
            "asleep": 1.0,
            "on_cpu": 0.0,
            "making": Making(sharing=2.0, makers=2),
        }
    ],
    silent=[
        {"iterable": True, "workers": 4, "production_ms": 100.0, "making": Making(sharing=3.8, makers=4)},
        {"workers": 4, "production_ms": 100.0, "making": Making(sharing=2.0, makers=2)},
        {
            "iterable": True,
            "workers": 4,
            "production_ms": 100.0,
            "core_free": False,
            "making": Making(sharing=2.0, makers=2),
        },
    ],
)
def uneven_shards(facts: LoaderFacts) -> Iterator[Finding]:
    """Some workers have no data, or much less than others: its parts are fewer than workers, or uneven.

    An IterableDataset shares its samples out itself, mostly by files. A worker without a file ends at once.
    More workers do not help.

    Remedy: as many parts of one size as there are workers, or a multiple.
    """
    making, workers = facts.making, facts.about.workers
    if not shared_unevenly(facts) or making.sharing is None or facts.production_ms is None:
        return
    if not facts.is_waited_for or facts.unmade_fraction < UNMADE:
        return
    sleeps = facts.made_asleep >= MOSTLY
    if not sleeps and (facts.core_free is not True or (facts.cpus or 0) <= making.sharing + 1):
        return
    compute_ms = facts.step_ms - facts.bound_ms
    made_ms = facts.production_ms * facts.batches_per_step
    gain_ms = min(facts.bound_ms, facts.step_ms - max(compute_ms, made_ms / workers))
    if not is_worth(gain_ms, facts):
        return
    seen = (
        f"{making.makers} of {workers} workers made all batches"
        if (making.makers or 0) < workers
        else f"of {workers} workers one made {percent(1 / making.sharing)} of the batches"
    )
    yield finding(
        facts,
        text=f"{seen}{of_loader(facts)}: the parts of {facts.about.dataset} are fewer, or uneven",
        how=f"share its data out in {workers} parts of one size, or a multiple (files, shards)",
        remedy=f"split the data evenly: {workers} shards for {workers} workers",
        level=level(facts.bound_ms, facts),
        evidence={"sharing": making.sharing, "workers": float(workers), **which(facts)},
        gain_ms=gain_ms,
        is_main_cause=facts.unmade_fraction >= MOSTLY,
        silences=("IO103", "IO206"),
    )


def _leading(spent_ms: float, facts: LoaderFacts, alone: float = math.inf) -> dict[str, Any]:
    """Of what takes most of the dataset's own code that code is not to be made faster, or by more workers.

    From `alone`, a share of the wait, on more workers are no advice: each would do that anew.
    """
    leads = spent_ms >= max(MOSTLY * facts.causes_ms.get("transform", 0.0), _TOLD * facts.wait_ms)
    silences = ("IO103", "IO204") if spent_ms >= alone * facts.wait_ms else ("IO103",)
    return {"is_main_cause": leads, "spares_work": True, "silences": silences if leads else ()}


def shared_unevenly(facts: LoaderFacts, *, even: float = _EVEN) -> bool:
    """Whether the busiest worker has so much more to do than others that these had nothing to do."""
    about, sharing = facts.about, facts.making.sharing
    return (
        bool(about.iterable) and about.workers > 1 and sharing is not None and sharing <= even * about.workers
    )


@rule(
    "IO213",
    "slow-first-sample",
    "loader",
    turn=THE_CAUSE,
    fires=[
        {
            "iterable": True,
            "epochs": 4,
            "making": Making(fill_ms=30.0, first_item_ms=2000.0, item_ms=0.5),
        }
    ],
    silent=[
        {"iterable": True, "epochs": 4, "making": Making(fill_ms=2.0, first_item_ms=2000.0, item_ms=0.5)},
        {"iterable": True, "epochs": 4, "making": Making(fill_ms=30.0, first_item_ms=4.0, item_ms=0.5)},
        {"epochs": 4, "making": Making(fill_ms=30.0, first_item_ms=2000.0, item_ms=0.5)},
    ],
)
def slow_first_sample(facts: LoaderFacts, *, times: float = 20.0) -> Iterator[Finding]:
    """Each epoch begins with a long wait: its first sample takes many times as long as any other.

    An IterableDataset works before it yields, as one does that fills a shuffle buffer, or lists its files.
    What less of that gains is not known: what fills a buffer is work that later samples need, too.

    Remedy: yield while the buffer fills, or make it smaller and shuffle the files; or keep one pass going
    over all epochs.
    """
    making, about = facts.making, facts.about
    if not about.iterable or about.wrapped or not making.item_ms or making.first_item_ms is None:
        return
    gain_ms = min(facts.bound_ms, making.fill_ms)
    if (
        not facts.is_waited_for
        or not is_worth(gain_ms, facts)
        or making.first_item_ms < times * making.item_ms
    ):
        return
    item = facts.item.partition(" ")[0] or about.dataset
    yield finding(
        facts,
        text=(
            f"before the first sample of each epoch {item}{of_loader(facts)} works "
            f"{making.first_item_ms:.0f} ms, for others {making.item_ms:.2g} ms: {making.fill_ms:.1f} ms of "
            "wait a step"
        ),
        how=(
            "as where a shuffle buffer is filled: yield while it fills, make it smaller and shuffle the "
            "files, or keep one pass going over all epochs"
        ),
        remedy="fill less before an epoch's first sample",
        level=level(gain_ms, facts),
        evidence={"fill_ms": making.fill_ms, "first_item_ms": making.first_item_ms, **which(facts)},
        cost_ms=making.fill_ms,
        **_leading(making.fill_ms, facts, MOSTLY),
    )


@rule(
    "IO214",
    "collecting-garbage",
    "loader",
    turn=THE_CAUSE,
    fires=[
        {"making": Making(collecting_ms=30.0, collections=12, collection_ms=800.0)},
        {"making": Making(collecting_ms=30.0, collections=12, collection_ms=800.0, frozen=2_000_000)},
    ],
    silent=[
        {"making": Making(collecting_ms=2.0, collections=12, collection_ms=800.0)},
        {"making": Making(collecting_ms=30.0, collections=12, collection_ms=800.0), "wait_ms": 2.0},
    ],
)
def collecting_garbage(facts: LoaderFacts) -> Iterator[Finding]:
    """Python's garbage collector stops who makes the batches, while the loop waits for them.

    A full collection looks at all objects of the process. A dataset of millions of lists and dictionaries
    makes it long, and code that makes many objects makes it frequent.

    Remedy: `gc.freeze()` at the worker's start takes the dataset's objects out; or hold arrays in place of
    them; or `gc.disable()`, and `gc.collect()` every so many batches, which bounds the memory. What is frozen
    already is not advised.
    """
    making = facts.making
    gain_ms = min(facts.bound_ms, making.collecting_ms)
    if not facts.is_waited_for or not is_worth(gain_ms, facts):
        return
    where = "in worker_init_fn" if facts.about.workers else "before the loop"
    remedy = f"gc.freeze() {where}, or fewer objects"
    how = (
        f"gc.freeze() {where} takes the dataset's objects out of them; hold arrays, not millions of "
        "objects; or gc.disable() with gc.collect() every so many batches"
    )
    if (making.frozen or 0) >= _MANY_FROZEN:
        remedy = f"gc.disable() {where} and a rare gc.collect(), or fewer new objects a sample"
        how = "gc.freeze() was called: what is left comes of objects made since; make fewer, or gc.disable() "
        how += "with gc.collect() every so many batches"
    yield finding(
        facts,
        text=(
            f"making batches{of_loader(facts)} stops for Python's garbage collector: {making.collections} "
            f"collections of {making.collection_ms:.0f} ms, {making.collecting_ms:.1f} ms of wait a step"
        ),
        how=how,
        remedy=remedy,
        level=level(gain_ms, facts),
        evidence={"collecting_ms": making.collecting_ms, "collections": making.collections, **which(facts)},
        gain_ms=gain_ms,
        cost_ms=making.collecting_ms,
        **_leading(making.collecting_ms, facts),
    )


@rule(
    "IO215",
    "tokenised-each-time",
    "loader",
    turn=THE_CAUSE,
    fires=[{"cause": "collate", "collate": "encode", "tokenizer": "tokenizers.Tokenizer"}],
    silent=[
        {"cause": "collate", "collate": "encode"},
        {"cause": "transform", "collate": "encode", "tokenizer": "tokenizers.Tokenizer"},
    ],
)
def tokenised_each_time(facts: LoaderFacts) -> Iterator[Finding]:
    """The collate function tokenises each batch anew, in each epoch, while the loop waits.

    It uses a tokenizer, and most of the wait is in it.

    Remedy: tokenise once, ahead of training, and store the numbers; pad alone in the collate function.
    """
    if held_up_by(facts, "collate") and facts.about.tokenizer:
        remedy = Remedy(
            f"tokenise ahead of training, not in {facts.collate or 'collate_fn'}",
            f"{facts.collate or 'the collate function'} tokenises each batch ({facts.about.tokenizer}): do "
            "it once, ahead of training, store the numbers, and pad alone here",
            spares_work=True,
        )
        yield from ended_by(remedy, "collate", facts)


@rule(
    "IO217",
    "slow-sampling",
    "loader",
    id="sampling-bound",
    turn=THE_CAUSE,
    fires=[
        {"cause": "sampling"},
        {"cause": "sampling", "sampler": "Buckets"},
        {"cause": "sampling", "making": _DRAWN_ONCE, "torch_sampler": _WITHOUT_REPLACEMENT},
        {"cause": "sampling", "making": _DRAWN_ONCE, "torch_sampler": "RandomSampler(replacement=False)"},
        {"cause": "sampling", "making": _DRAWN_ONCE, "sampler": "Buckets"},
    ],
    silent=[
        {"cause": "transport"},
        {"cause": "sampling", "wait_ms": 4.0, "causes_ms": {"sampling": 4.0}},
        {"causes_ms": {"transform": 40.0, "sampling": 10.0}},
        {"making": _DRAWN_ONCE, "causes_ms": {"transform": 40.0, "sampling": 1.0}},
    ],
)
def slow_sampling(facts: LoaderFacts) -> Iterator[Finding]:
    """The loop waits while it chooses the samples of a batch itself.

    A sampler works in the process that trains, whatever the number of workers: DataLoader asks it for the
    next indices each time that the loop takes a batch. One that draws an epoch's samples at once makes the
    first batch of each epoch late.

    Remedy: sort and shuffle once an epoch, in the sampler's `__iter__` before it yields; or with arrays. What
    is drawn once an epoch already: draw with replacement, or with arrays. `WeightedRandomSampler` without
    replacement looks at all weights, however few samples it draws.
    """
    is_own = facts.about.sampler is not None  # torch's own leave little to change
    if held_up_by(facts, "sampling") and (is_own or facts.causes_ms["sampling"] >= MOSTLY * facts.wait_ms):
        if facts.making.draw_ms is not None:
            yield from _drawn_at_once(facts, facts.making.draw_ms)
            return
        name = facts.about.sampler or facts.about.torch_sampler or "its sampler"
        remedy = Remedy(
            f"let {name} choose faster, such as once an epoch: it works in the loop",
            f"{name} chooses the samples of each batch in the training process, where no worker helps: sort "
            "and shuffle once, before it yields the first batch of an epoch, or with arrays",
        )
        yield from ended_by(remedy, "sampling", facts)


@rule(
    "IO219",
    "samples-drawn-with-the-iterator",
    "loader",
    turn=THE_CAUSE,
    saves_wait=False,
    fires=[{"about": {"persistent_workers": True, "workers": 2, "sampler": "Balanced"}, "restart_ms": 40.0}],
    silent=[
        {"about": {"persistent_workers": True, "workers": 2, "sampler": "Balanced"}, "restart_ms": 1.0},
        {"about": {"persistent_workers": True, "workers": 2}, "restart_ms": 40.0},
        {"about": {"persistent_workers": False, "workers": 2, "sampler": "Balanced"}, "restart_ms": 40.0},
    ],
)
def drawn_with_the_iterator(facts: LoaderFacts) -> Iterator[Finding]:
    """Making an iterator takes long although its workers stay: its sampler is asked for the first indices.

    A loop that makes an iterator each epoch waits there for a sampler that draws all samples of the epoch at
    once. How long that takes was not measured apart: workers that begin a pass anew take a part of it.

    Remedy: draw with arrays; of `WeightedRandomSampler` by a search in a cumulative sum of the weights.
    """
    about = facts.about
    name = about.sampler or about.torch_sampler or ""
    may_draw = about.sampler is not None or name.startswith("WeightedRandomSampler")
    if not (may_draw and about.persistent_workers and about.workers and is_worth(facts.restart_ms, facts)):
        return
    short, text = _faster_draw(facts)
    yield finding(
        facts,
        text=f"making an iterator of persistent workers takes {facts.restart_ms:.1f} ms a step: {name} is "
        "asked for the first samples there",
        how=f"where it draws all samples of an epoch then: {text}",
        remedy=f"try {'' if short[0].isupper() else 'to '}{short}",
        level=level(facts.restart_ms, facts),
        evidence={"restart_ms": facts.restart_ms, **which(facts)},
        cost_ms=facts.restart_ms,
        tries=True,
    )


def _faster_draw(facts: LoaderFacts) -> tuple[str, str]:
    """Say in short, and as a sentence, how a sampler draws an epoch's samples faster."""
    about = facts.about
    name = about.sampler or about.torch_sampler or "its sampler"
    short, text = f"let {name} draw with arrays", "draw with arrays, not one sample at a time"
    if about.sampler is None and about.torch_sampler == _WITHOUT_REPLACEMENT:
        short = "WeightedRandomSampler(..., replacement=True), or draw the indices with numpy"
        text = "without replacement it looks at all weights: draw with replacement, or by a search in a "
        text += "cumulative sum of the weights that is made once"
    elif about.sampler is None and (about.torch_sampler or "").startswith("WeightedRandomSampler"):
        short = "draw the indices with numpy: a search in a cumulative sum of the weights, made once"
        text = "it looks at all weights each time: search in a cumulative sum that is made once"
    elif about.sampler is None and about.torch_sampler is not None:
        short, text = "a sampler that yields indices of an array", "torch's makes a list of them all"
    return short, text


def _drawn_at_once(facts: LoaderFacts, draw_ms: float) -> Iterator[Finding]:
    """Name what draws the samples of a whole epoch before its first batch, and how it draws faster."""
    name = facts.about.sampler or facts.about.torch_sampler or "its sampler"
    short, text = _faster_draw(facts)
    remedy = Remedy(short, f"{name} draws an epoch's samples at once, in the training process: {text}")
    for each in ended_by(remedy, "sampling", facts):
        yield replace(
            each,
            text=f"{name}{of_loader(facts)} draws an epoch's samples at once, in the loop: {draw_ms:.0f} ms "
            "before each epoch's first batch",
            how=remedy.text,
            is_main_cause=facts.causes_ms["sampling"] >= MOSTLY * facts.wait_ms,
            evidence={**each.evidence, "draw_ms": draw_ms},
        )


@rule(
    "IO216",
    "read-by-every-rank",
    "loader",
    turn=THE_CAUSE,
    fires=[
        {
            "causes_ms": {"decode": 40.0, "read": 6.0},
            "making": Making(also_read=1.0, opens_per_sample=2.0, opens_per_pass=5.0, ranks=2),
        },
        {
            "causes_ms": {"decode": 40.0},
            "making": Making(
                also_read=1.0, opens_per_sample=2.0, opens_per_pass=1.0, ranks=2, array="d/a.h5"
            ),
        },
    ],
    silent=[
        # An image and its mask, of which each rank has its own part, shuffled anew in each epoch.
        {
            "causes_ms": {"decode": 40.0},
            "making": Making(also_read=1.0, opens_per_sample=2.0, opens_per_pass=0.5, ranks=2),
        },
        {
            "causes_ms": {"decode": 40.0},
            "making": Making(also_read=0.0, opens_per_sample=2.0, opens_per_pass=5.0, ranks=2),
        },
        {
            "causes_ms": {"decode": 40.0},
            "making": Making(also_read=1.0, opens_per_sample=1.0, opens_per_pass=1.0, ranks=2),
        },
        # Windows that overlap, of an array of which each rank takes its own.
        {
            "causes_ms": {"decode": 40.0},
            "making": Making(
                also_read=1.0, opens_per_sample=1.0, opens_per_pass=9.0, ranks=2, array="d/a.h5"
            ),
        },
    ],
)
def read_by_every_rank(facts: LoaderFacts, *, alike: float = 0.9) -> Iterator[Finding]:
    """Each rank reads and decodes the data of all ranks, and keeps its own share of it.

    It opens as many files for each sample as there are ranks, each file in each pass, and another rank opens
    the same ones. Of an array in chunks (HDF5, zarr) so many accesses read all of it in each pass.

    Remedy: choose the rank's share before reading, by file or by index; then each reads its own alone.
    """
    making = facts.making
    if making.ranks < 2 or (making.also_read or 0.0) < alike or (making.opens_per_pass or 0.0) < alike:
        return
    if (making.opens_per_sample or 0.0) < alike * making.ranks:
        return
    spent_ms = sum(facts.causes_ms.get(cause, 0.0) for cause in ("read", "decode", "transform"))
    gain_ms = min(facts.bound_ms, spent_ms * (1 - 1 / making.ranks))
    if not facts.is_waited_for or not is_worth(gain_ms, facts):
        return
    item = facts.item.partition(" ")[0] or facts.about.dataset
    whole = f"each of {making.ranks} ranks decodes"
    text = f"{whole} the data of all: {item}{of_loader(facts)} opens {making.opens_per_sample:.1f} files for"
    text += " each sample that it gives, and another rank the same ones"
    if making.array:
        text = f"{whole} all of {making.array} in each pass: {item}{of_loader(facts)} reads"
        text += f" {making.opens_per_sample:.1f} pieces of it for each sample that it gives"
    yield finding(
        facts,
        text=text,
        how="choose the rank's share by file or index before reading it, not among what has been decoded",
        remedy="choose the rank's share before it is read",
        level=level(gain_ms, facts),
        evidence={"opens_per_sample": making.opens_per_sample or 0.0, "ranks": making.ranks, **which(facts)},
        gain_ms=gain_ms,
        cost_ms=gain_ms,
        is_main_cause=gain_ms >= _TOLD * facts.wait_ms,
        spares_work=True,
        silences=("IO102", "IO103", "IO407"),
    )
