"""Where samples come from: who feeds a dataset, how it is shared out, filled, read by ranks."""

from __future__ import annotations

from collections.abc import Iterator

from iotrace.analysis.results import PipelineStage
from iotrace.analysis.rules.causes import (
    MOSTLY,
    TOLD,
    finding,
    held_up_by,
    is_worth,
    leading,
    level,
    of_loader,
    which,
)
from iotrace.analysis.rules.facts.loader import LoaderFacts
from iotrace.analysis.rules.facts.making import LockWait, Making
from iotrace.analysis.rules.locks import SLEEP_LESS
from iotrace.analysis.rules.model import MORE_WORKERS, THE_CAUSE, Finding, fires, rule, silent
from iotrace.analysis.wait.data_wait import UNMADE
from iotrace.analysis.wait.locks import PEER, SLEEP
from iotrace.analysis.wait.wait_code import WaitCode
from iotrace.units import percent

_OF_DATASETS = "datasets.config.SLEEP_TIME_ON_THREADS_SHUTDOWN"
_EVEN = 0.75  # of the workers: as many as work while the busiest does


@rule("IO210", "fed-by-the-program", "loader", turn=MORE_WORKERS)
@fires(
    {
        "cause": "transform",
        "fed_by": "the queue q",
        "iterable": True,
        "workers": 0,
        "asleep": 0.9,
        "on_cpu": 0.0,
    }
)
@silent(
    {"cause": "transform", "iterable": True, "workers": 0, "asleep": 0.9, "on_cpu": 0.0},
    {"cause": "transform", "fed_by": "the queue q", "asleep": 0.1, "on_cpu": 0.9},
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
            f"{facts.about.named}{of_loader(facts)} sleeps until {feeder} gives it samples: "
            f"{cost_ms:.1f} ms of wait a step"
        ),
        how=(
            "make what fills it faster; num_workers is not advised: workers get a copy of the dataset, not "
            "the thread that feeds it, and may wait for ever"
        ),
        remedy=f"feed {facts.about.named} faster ({feeder}); num_workers may hang",
        level=level(cost_ms, facts),
        evidence={"transform_ms": cost_ms, **which(facts)},
        cost_ms=cost_ms,
        is_main_cause=cost_ms >= MOSTLY * facts.wait_ms,
    )


_ASLEEP = {"cause": "unknown", "wrapped": True, "workers": 0, "dataset": "batches"}
_STAGE = PipelineStage(
    name="rows", makers=1, of="threads", busy=0.5, items=30_000, item_ms=0.1, puts="tensorflow", wait_ms=20.0
)
_NAPS = Making(locks={SLEEP: LockWait(ms=30.0, file="iterable_dataset.py:944 (datasets)")})


@rule("IO218", "source-sleeps", "loader", turn=THE_CAUSE)
@fires(
    {**_ASLEEP, "waits_at": WaitCode("batches (train.py:12)", 0.9)},
    {**_ASLEEP, "making": _NAPS},
    {**_ASLEEP, "making": Making(locks={SLEEP: LockWait(ms=30.0, file="train.py:9")})},
)
@silent(
    _ASLEEP,
    {**_ASLEEP, "waits_at": WaitCode("batches (train.py:12)", 0.3)},
    {**_ASLEEP, "waits_at": WaitCode("batches (train.py:12)", 0.9), "slept_ms": 8.0},
    {**_ASLEEP, "cause": "transform", "waits_at": WaitCode("batches (train.py:12)", 0.9)},
    {**_ASLEEP, "wait_ms": 9.0, "causes_ms": {"unknown": 4.0, "transform": 5.0}},
    {**_ASLEEP, "making": Making(locks={SLEEP: LockWait(ms=4.0, file="train.py:9")})},
    {
        **_ASLEEP,
        "waits_at": WaitCode("batches (train.py:12)", 0.9),
        "making": Making(locks={PEER: LockWait(ms=30.0, file="pipe at train.py:12")}),
    },
    {**_ASLEEP, "waits_at": WaitCode("batches (train.py:12)", 0.9), "pipeline": [_STAGE]},
    # A worker's: more of them sleep at once.
    {**_ASLEEP, "cause": "transform", "workers": 4, "making": _NAPS},
)
def source_sleeps(facts: LoaderFacts) -> Iterator[Finding]:
    """What the loop iterates sleeps at a line of the program, as for a server, a rate limit or a lock.

    The kernel's account says how long the thread slept, samples of its stack say where. Neither says what it
    waited for. iotrace also looks at what the thread sleeps in: in ``time.sleep`` it waits for the time
    alone. The line may be a library's. The time is an estimate.

    Remedy: ask ahead in a thread, for several at once if what it waits for can serve several; or sleep less.
    """
    at, unknown_ms = facts.waits_at, facts.causes_ms.get("unknown", 0.0)
    nap = facts.making.locks.get(SLEEP)
    if nap is not None and nap.ms >= TOLD * facts.wait_ms and unknown_ms >= TOLD * facts.wait_ms:
        yield from _naps(facts, nap)
        return
    cost_ms = facts.wait_ms * (unknown_ms / facts.wait_ms + at.share - 1) if facts.wait_ms else 0.0
    peer = facts.making.locks.get(PEER)
    if peer is not None and peer.ms >= MOSTLY * unknown_ms:
        return  # for which it waits
    if facts.pipeline:
        return  # it waits for what these stages make
    if not at.line or cost_ms < MOSTLY * facts.wait_ms or not is_worth(cost_ms, facts):
        return
    if facts.slept_ms is not None and cost_ms > facts.slept_ms:  # it computes, or queues for a CPU
        return
    yield finding(
        facts,
        text=f"{facts.about.named}{of_loader(facts)} sleeps in {at.line}: at least {cost_ms:.1f} ms a step",
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


def _naps(facts: LoaderFacts, nap: LockWait) -> Iterator[Finding]:
    """The loop's own thread is in ``time.sleep`` while it asks for a batch."""
    cost_ms = min(nap.ms, facts.wait_ms)
    if facts.about.workers or not facts.is_waited_for or not is_worth(cost_ms, facts):
        return
    remedy = how = SLEEP_LESS.format(nap.file)
    if nap.file.endswith("(datasets)"):
        remedy = f"{_OF_DATASETS} = 0 before the loop"
        how = f"{remedy}: datasets sleeps that long at each end of its data, so that threads can end"
    yield finding(
        facts,
        text=f"the loop's own thread is asleep (time.sleep at {nap.file}) for about {cost_ms:.1f} of "
        f"{facts.wait_ms:.1f} ms of wait a step",
        how=how,
        remedy=remedy,
        level=level(cost_ms, facts),
        evidence={"asleep_ms": cost_ms, **which(facts)},
        gain_ms=min(facts.bound_ms, cost_ms),
        cost_ms=cost_ms,
        is_main_cause=True,
        silences=("IO236",),
    )


@rule("IO212", "uneven-shards", "loader", turn=MORE_WORKERS)
@fires(
    {
        "iterable": True,
        "workers": 4,
        "production_ms": 100.0,
        "asleep": 1.0,
        "on_cpu": 0.0,
        "making": Making(sharing=2.0, makers=2),
    }
)
@silent(
    {"iterable": True, "workers": 4, "production_ms": 100.0, "making": Making(sharing=3.8, makers=4)},
    {"workers": 4, "production_ms": 100.0, "making": Making(sharing=2.0, makers=2)},
    {
        "iterable": True,
        "workers": 4,
        "production_ms": 100.0,
        "core_free": False,
        "making": Making(sharing=2.0, makers=2),
    },
)
def uneven_shards(facts: LoaderFacts) -> Iterator[Finding]:
    """Some workers have no data, or much less than others: it has fewer parts than workers, or uneven ones.

    An IterableDataset divides its samples among workers itself, mostly by files. A worker without a file ends
    at once. More workers do not help.

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
        how=f"split its data into {workers} parts of one size, or a multiple (files, shards)",
        remedy=f"split the data evenly: {workers} shards for {workers} workers",
        level=level(facts.bound_ms, facts),
        evidence={"sharing": making.sharing, "workers": float(workers), **which(facts)},
        gain_ms=gain_ms,
        is_main_cause=facts.unmade_fraction >= MOSTLY,
        silences=("IO103", "IO206"),
    )


def shared_unevenly(facts: LoaderFacts, *, even: float = _EVEN) -> bool:
    """Whether the busiest worker has so much more to do than others that these had nothing to do."""
    about, sharing = facts.about, facts.making.sharing
    return (
        bool(about.iterable) and about.workers > 1 and sharing is not None and sharing <= even * about.workers
    )


@rule("IO213", "slow-first-sample", "loader", turn=THE_CAUSE)
@fires(
    {"iterable": True, "epochs": 4, "making": Making(fill_ms=30.0, first_item_ms=2000.0, item_ms=0.5)},
    {
        "iterable": True,
        "epochs": 4,
        "making": Making(fill_ms=30.0, first_item_ms=2000.0, item_ms=0.5),
        "shuffle": "shuffle(450, initial=450)",
    },
)
@silent(
    {"iterable": True, "epochs": 4, "making": Making(fill_ms=2.0, first_item_ms=2000.0, item_ms=0.5)},
    {"iterable": True, "epochs": 4, "making": Making(fill_ms=30.0, first_item_ms=4.0, item_ms=0.5)},
    {"epochs": 4, "making": Making(fill_ms=30.0, first_item_ms=2000.0, item_ms=0.5)},
)
def slow_first_sample(facts: LoaderFacts, *, times: float = 20.0) -> Iterator[Finding]:
    """Each epoch begins with a long wait: its first sample takes many times as long as any other.

    An IterableDataset works before it yields, as one does that fills a shuffle buffer, or lists its files.
    The gain is a bound: what fills a buffer is work that later samples need, too, and workers may be too slow
    to do it meanwhile. Where the rest of the wait is no 5 % of a step, what costs it is not told beside.

    Remedy: yield while the buffer fills (webdataset: a smaller `initial`), or make it smaller and shuffle the
    files; or keep one pass going over all epochs.
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
    item = facts.item.partition(" (")[0] or about.dataset
    does = f"{item}{of_loader(facts)} works"
    remedy, filled = "fill less before an epoch's first sample", ""
    if about.shuffle:
        filled = f" (it fills {about.shuffle})"
        name = "initial" if "initial=" in about.shuffle else "buffer_size"
        remedy = f"lower {name} in {about.shuffle}"
    leads = leading(making.fill_ms, facts, MOSTLY)
    if leads["is_main_cause"] and not is_worth(facts.wait_ms - making.fill_ms, facts):
        leads["silences"] = (*leads["silences"], "IO101", "IO102")
    yield finding(
        facts,
        text=(
            f"before each epoch's first sample {does} for {making.first_item_ms / 1e3:.2g} s{filled}: "
            f"{making.fill_ms:.1f} ms of wait a step; others take {making.item_ms:.2g} ms"
        ),
        how=(
            "yield while a shuffle buffer fills, make it smaller and shuffle the files, or keep one pass "
            "going over all epochs; where workers then cannot keep up, make samples cheaper"
        ),
        remedy=remedy,
        level=level(gain_ms, facts),
        evidence={"fill_ms": making.fill_ms, "first_item_ms": making.first_item_ms, **which(facts)},
        cost_ms=making.fill_ms,
        gain_ms=gain_ms,
        gain_interval_ms=[0.0, gain_ms],
        most_ms=gain_ms,
        first=making.fill_ms >= MOSTLY * facts.wait_ms,
        **leads,
    )


@rule("IO216", "read-by-every-rank", "loader", turn=THE_CAUSE)
@fires(
    {
        "causes_ms": {"decode": 40.0, "read": 6.0},
        "making": Making(also_read=1.0, opens_per_sample=2.0, opens_per_pass=5.0, ranks=2),
    },
    {
        "causes_ms": {"decode": 40.0},
        "making": Making(also_read=1.0, opens_per_sample=2.0, opens_per_pass=1.0, ranks=2, array="d/a.h5"),
    },
)
@silent(
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
        "making": Making(also_read=1.0, opens_per_sample=1.0, opens_per_pass=9.0, ranks=2, array="d/a.h5"),
    },
)
def read_by_every_rank(facts: LoaderFacts, *, alike: float = 0.9) -> Iterator[Finding]:
    """Each rank reads and decodes the data of all ranks, and keeps its own share of it.

    It opens as many files for each sample as there are ranks, each file in each pass, and another rank opens
    the same ones. For an array in chunks (HDF5, zarr), as many accesses read all of it in each pass.

    Remedy: choose the rank's share before reading, by file or by index; then each rank reads only its own.
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
    item = facts.item.partition(" (")[0] or facts.about.dataset
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
        is_main_cause=gain_ms >= TOLD * facts.wait_ms,
        spares_work=True,
        silences=("IO102", "IO103", "IO407"),
    )
