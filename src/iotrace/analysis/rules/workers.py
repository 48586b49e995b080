"""A loader's workers: how many, how they are kept, in which order the loop takes their batches."""

from __future__ import annotations

import math
from collections.abc import Iterator

from iotrace.analysis.results import Change
from iotrace.analysis.rules.causes import (
    MOSTLY,
    Remedy,
    call_with,
    cost_ms,
    ended_by,
    finding,
    held_up_by,
    is_worth,
    level,
    of_loader,
    predicted_gain,
    which,
)
from iotrace.analysis.rules.facts.loader import LoaderFacts
from iotrace.analysis.rules.facts.making import Making
from iotrace.analysis.rules.model import MORE_WORKERS, ORDER, THE_CAUSE, Finding, fires, rule, silent
from iotrace.analysis.rules.sources import shared_unevenly
from iotrace.analysis.wait.data_wait import UNMADE

_ONE_ITERATOR = "keep one iterator (it = iter(loader)), not next(iter(loader)) for each batch"
_HANDING_OVER_MS = 1.0  # what it may cost to bring a batch from another process
_KEEP_PACE = 1.05  # of the rest of a step: so long batches may take, and come no later for that
_MOST_WORKERS = 2  # for each CPU: more of them, asleep, are for a sweep to find


@rule("IO202", "idle-workers", "loader", id="queued-bound", turn=THE_CAUSE)
@fires({"cause": "queued"})
@silent(
    {"cause": "queued", "core_free": False},
    {"cause": "queued", "in_order": False},
    {"cause": "queued", "handed_over": True},
)
def idle_workers(facts: LoaderFacts) -> Iterator[Finding]:
    """The loop waits for a batch whose worker had nothing to do before.

    Each worker is given at most `prefetch_factor` batches ahead, and the next one when the loop takes one.

    Remedy: raise `prefetch_factor`. None if a CPU was missing: then the worker may have waited for that.
    """
    if held_up_by(facts, "queued"):
        yield from ended_by(_more_ahead(facts), "queued", facts)


def _more_ahead(facts: LoaderFacts) -> Remedy | None:
    """Only where workers had nothing to do: they take indices in order, and had a CPU."""
    if not facts.about.workers or facts.about.wrapped or facts.core_free is not True or facts.handed_over:
        return None
    if facts.about.in_order is False or facts.about.prefetch_factor is None:
        return None
    change = f"raise prefetch_factor above {facts.about.prefetch_factor}"
    more = Change(settings={"prefetch_factor": str(2 * facts.about.prefetch_factor)})
    text = f"{change}: workers had nothing to do until a batch was taken"
    return Remedy(change, text, change=more)


# Each worker's first sample takes three times as long as others, or more.
_WARMS_UP = Making(fill_ms=40.0, first_item_ms=30.0, first_least_ms=8.0, item_ms=2.0)


@rule(
    "IO203", "workers-restarted", "loader", id="startup-bound", turn=THE_CAUSE, saves_wait=False, of_run=True
)
@fires(
    {"cause": "startup", "epochs": 3},
    {"cause": "startup", "epochs": 3, "objects": 3},
    {"cause": "startup", "epochs": 100, "single": 100},
    {"cause": "decode", "epochs": 6, "making": Making(fill_ms=40.0, first_item_ms=900.0, item_ms=2.0)},
    {"cause": "decode", "epochs": 6, "making": _WARMS_UP},
    {
        "cause": "decode",
        "epochs": 6,
        "making": _WARMS_UP,
        "start_method": "fork",
        "first_code": "Rows._open (t.py:4)",
    },
)
@silent(
    {"cause": "decode", "epochs": 6, "making": _WARMS_UP, "torch_sampler": "SequentialSampler()"},
    {"cause": "decode", "epochs": 6, "making": _WARMS_UP, "persistent_workers": True},
    {"cause": "decode", "epochs": 6, "making": Making(fill_ms=40.0, first_item_ms=30.0, item_ms=2.0)},
    {"cause": "startup", "epochs": 1},
    {"cause": "startup", "epochs": 3, "persistent_workers": True},
    {"cause": "startup", "epochs": 3, "wrapped": True},
)
def workers_restarted(facts: LoaderFacts) -> Iterator[Finding]:
    """Workers are ended and started anew for each epoch.

    Each new worker imports what the dataset needs, gets a copy of the dataset, and makes its first batch
    while the loop waits. If the dataset opens files or reads an index at its first sample, each worker does
    so again: samples of their stacks name the function. The time also counts outside the waits for batches:
    while iterators are made and ended.

    Remedy: `persistent_workers=True`, on a DataLoader that is made once; where a program makes an iterator
    for each batch (`next(iter(loader))`), one iterator that is kept. What first samples load can be loaded
    before the workers start, if they are forked and can share it.
    """
    if not held_up_by(facts, "startup"):
        return
    if facts.is_single and facts.about.workers and not facts.about.wrapped and not facts.handed_over:
        yield _one_iterator(facts)
        return
    yield from ended_by(_kept_workers(facts), "startup", facts)


def _one_iterator(facts: LoaderFacts) -> Finding:
    """Of `next(iter(loader))`: workers that go on make the next batches while the loop computes."""
    lost_ms = facts.restart_ms + facts.wait_ms
    return finding(
        facts,
        text=(
            f"{facts.single} of {facts.epochs} iterators{of_loader(facts)} were left after one batch: making "
            f"and ending them takes {facts.restart_ms:.1f} ms a step, the batches {facts.wait_ms:.1f} ms"
        ),
        how=f"{_ONE_ITERATOR}: its workers make the next batches meanwhile",
        remedy=_ONE_ITERATOR,
        level=level(lost_ms, facts),
        evidence={"restart_ms": facts.restart_ms, "single": float(facts.single), **which(facts)},
        gain_ms=lost_ms,
        cost_ms=lost_ms,
    )


def _kept_workers(facts: LoaderFacts) -> Remedy | None:
    """Only of workers that a later epoch starts anew."""
    if not facts.about.workers or facts.about.wrapped or facts.epochs < 2 or facts.handed_over:
        return None
    short, text = _loaded_once(facts)
    if facts.objects > 1:
        return Remedy(
            f"make the DataLoader once, and keep its workers{short}",
            f"{facts.objects} DataLoaders were made in turn, each with new workers: make it once, "
            f"with persistent_workers=True{text}",
        )
    if facts.about.persistent_workers is not False:
        return None
    text = f"set persistent_workers=True: workers were started for each of {facts.epochs} epochs{text}"
    kept = Change(settings={"persistent_workers": "True"})
    return Remedy(call_with("persistent_workers=True", facts) + short, text, change=kept)


def _loaded_once(facts: LoaderFacts) -> tuple[str, str]:
    """Say that what first samples load may be loaded before workers are forked."""
    is_forked = facts.about.start_method == "fork"
    if not facts.first_code or not is_forked or 2 * facts.first_samples_ms < cost_ms(facts, "startup"):
        return "", ""
    name = facts.first_code.partition(" (")[0].rpartition(".")[2]
    return (
        f", or call {name} before workers start",
        f"; or call {facts.first_code} before the workers start, if forked ones can share what it loads",
    )


@rule("IO204", "too-few-workers", "loader", turn=MORE_WORKERS)
@fires({"production_ms": 200.0}, {"production_ms": 200.0, "asleep": 1.0, "on_cpu": 0.0, "core_free": False})
@silent(
    {"production_ms": 200.0, "unmade_fraction": 0.0},
    {"production_ms": 200.0, "core_free": False},
    {"production_ms": 200.0, "cpus": 2},
    {"production_ms": 90.0},
    {"production_ms": 104.0},  # two workers make one in 52 ms, the rest of a step takes 50
    {"workers": 0, "step_ms": 10.0, "wait_ms": 0.9, "production_ms": 0.9},  # handing over costs as much
    {"production_ms": 200.0, "iterable": True, "fed_by": "the queue q"},
    {"production_ms": 200.0, "iterable": True, "making": Making(sharing=1.0, makers=1)},
    {"production_ms": 200.0, "asleep": 1.0, "on_cpu": 0.0, "making": Making(turns=True)},
    {"production_ms": 200.0, "workers": 0, "inner_workers": 2},
)
def too_few_workers(facts: LoaderFacts) -> Iterator[Finding]:
    """Workers make batches slower than the loop takes them, and more of them would have a CPU or need none.

    The loop waited for batches that were not made yet. The number in the advice is what is needed for batches
    as fast as the loop takes them; more than the CPUs help only where workers mostly sleep. If workers take
    turns, as with a lock, more of them gain nothing, and nothing is advised. iotrace sees that where no
    sample ends soon after one of another worker. If it is unknown, more workers are only worth a try, and no
    gain is named.

    Remedy: more workers. An IterableDataset has to share its samples among them. None if a thread or process
    of the program feeds the dataset, or if some workers have no data already. None if samples start workers
    of their own: no worker may do that.
    """
    about = facts.about
    if about.fed_by or facts.inner_workers or shared_unevenly(facts):
        return
    if about.wrapped or facts.production_ms is None or not facts.is_waited_for:
        return
    if not is_worth(facts.bound_ms, facts) or facts.unmade_fraction < UNMADE:
        return
    # In calls of libraries with threads of their own, somebody sleeps where the process does; or has no CPU.
    asleep_there = facts.threaded - facts.threaded_cpu if facts.core_free else 0.0
    sleeps = facts.made_asleep + asleep_there >= MOSTLY
    may_wait = sleeps and about.workers > 1 and facts.making.turns is not False  # for each other
    if may_wait and facts.making.turns:
        return
    if not sleeps and (facts.core_free is not True or facts.cpus is None or about.workers + 1 >= facts.cpus):
        return
    compute_ms = facts.step_ms - facts.bound_ms
    made_ms = facts.production_ms * facts.batches_per_step
    if about.workers and made_ms / about.workers <= _KEEP_PACE * compute_ms:
        return
    enough = _enough_workers(facts, made_ms, compute_ms, sleeps)
    bound_ms = min(_won_by_order(facts, enough), _beyond_the_cores(facts, made_ms))
    gain_ms, predicted = predicted_gain(facts, f"num_workers={enough}", bound_ms)
    if not is_worth(gain_ms, facts) or (not about.workers and gain_ms < _HANDING_OVER_MS):
        return
    if may_wait:
        predicted = {"tries": True}
    shards = "; its IterableDataset has to share its samples among them" if about.iterable else ""
    room = "they mostly sleep" if sleeps else "the cores are not all busy"
    more = f"raise num_workers above {about.workers}"
    change = "more workers: iotrace sweep finds how many"
    if enough is not None:
        more += f", to {enough}"
        change = call_with(f"num_workers={enough}", facts)
        change += ", samples shared out" if about.iterable else ""
    if facts.is_single:  # else each batch would wait for new workers
        change, more = f"keep one iterator, then {change}", f"keep one iterator for all batches, then {more}"
    yield finding(
        facts,
        text=(
            f"a batch{of_loader(facts)} takes {facts.production_ms:.0f} ms to make, the rest of a step "
            f"{compute_ms:.0f} ms, and {room}"
        ),
        how=f"{more}{shards}",
        remedy=change,
        level=level(facts.bound_ms, facts),
        evidence={
            "production_ms": facts.production_ms,
            "compute_ms": compute_ms,
            "workers": float(about.workers),
            **which(facts),
        },
        gain_ms=None if may_wait else gain_ms,
        change=None if enough is None or facts.is_single else Change(settings={"num_workers": str(enough)}),
        **predicted,
    )


def _enough_workers(facts: LoaderFacts, made_ms: float, compute_ms: float, sleeps: bool) -> int | None:
    """How many make batches as fast as the loop takes them; of those that compute as many as have a core.

    None where that is known of neither.
    """
    cpus = facts.cpus or 0
    needed = math.ceil(made_ms / compute_ms) if compute_ms > 0 else None
    if not sleeps:
        return cpus - 1 if needed is None else min(needed, cpus - 1)
    return needed if needed is not None and facts.about.workers < needed <= _MOST_WORKERS * cpus else None


def _beyond_the_cores(facts: LoaderFacts, made_ms: float) -> float:
    """What a step may win before the computing that its batches need keeps all cores busy."""
    busy_ms = made_ms * (facts.made_on_cpu + facts.threaded_cpu) / (facts.cpus or 1)
    return max(0.0, facts.step_ms - busy_ms)


def _won_by_order(facts: LoaderFacts, workers: int | None) -> float:
    """What a step may win if `workers` (None: any number) always have work: all but their start and work."""
    won_ms = facts.wait_ms - facts.causes_ms.get("startup", 0.0)
    if workers and facts.made_ms is not None:
        won_ms = min(won_ms, facts.step_ms - facts.made_ms / workers)
    return max(0.0, min(won_ms, facts.bound_ms))


@rule("IO205", "made-by-the-loop", "loader", turn=MORE_WORKERS)
@fires({"wrapped": True, "workers": 0})
@silent(
    {"wrapped": True, "workers": 0, "on_cpu": 0.2},
    {"wrapped": True, "workers": 0, "core_free": False},
    {"wrapped": True, "workers": 0, "handed_over": True},
)
def made_by_the_loop(facts: LoaderFacts) -> Iterator[Finding]:
    """The thread that trains computes each batch itself, of a source that is no DataLoader.

    While it makes a batch it does not train, and a core was free. The gain is at most the shorter of the two.

    Remedy: make the next batch meanwhile, in another process.
    """
    if not facts.about.wrapped or facts.about.workers or facts.handed_over or facts.core_free is not True:
        return
    if facts.taken_from is not None:  # which has workers already
        return
    if facts.production_ms is None or (facts.on_cpu or 0.0) < MOSTLY or facts.unmade_fraction < UNMADE:
        return
    compute_ms = facts.step_ms - facts.bound_ms
    gain_ms = min(facts.bound_ms, compute_ms)  # while one computes, the other waits
    if not facts.is_waited_for or not is_worth(gain_ms, facts) or gain_ms < _HANDING_OVER_MS:
        return
    yield finding(
        facts,
        text=(
            f"the loop itself makes each batch{of_loader(facts)}, in {facts.production_ms:.1f} ms, and then "
            f"computes for {compute_ms:.1f} ms"
        ),
        how=(
            "make the next batch meanwhile, in another process (in a thread, if what makes it releases the "
            "interpreter's lock)"
        ),
        remedy="make the next batch in another process meanwhile",
        level=level(facts.bound_ms, facts),
        evidence={"production_ms": facts.production_ms, "compute_ms": compute_ms, **which(facts)},
        gain_ms=gain_ms,
    )


@rule("IO206", "waiting-in-order", "loader", turn=ORDER)
@fires({"behind_ready_ms": 30.0})
@silent(
    {"behind_ready_ms": 30.0, "in_order": None},
    {"behind_ready_ms": 30.0, "workers": 1},
    {"behind_ready_ms": 30.0, "making": Making(turns=True)},
    {"behind_ready_ms": 4.0},
)
def waiting_in_order(facts: LoaderFacts) -> Iterator[Finding]:
    """The loop waits for one batch while a later one is ready.

    One slow sample holds up all batches behind it, as DataLoader delivers them in order. Another order gains
    no more than this wait.

    Remedy: `DataLoader(in_order=False)`, where torch has it and the order of samples may change.
    """
    about, behind_ms = facts.about, facts.behind_ready_ms or 0.0
    if about.in_order is not True or about.workers < 2 or about.wrapped or facts.handed_over:
        return
    if facts.making.turns:
        return  # batches come no faster in another order
    won_ms, predicted = predicted_gain(facts, "in_order=False", _won_by_order(facts, about.workers))
    won_ms = min(behind_ms, won_ms)  # more than the wait behind ready batches it cannot win
    if not facts.is_waited_for or not is_worth(won_ms, facts):
        return
    if "gain_interval_ms" in predicted:
        least_ms, most_ms = predicted["gain_interval_ms"]
        predicted["gain_interval_ms"] = [min(least_ms, won_ms), max(won_ms, min(most_ms, behind_ms))]
    yield finding(
        facts,
        text=f"{behind_ms:.1f} ms of wait a step{of_loader(facts)} passed while a later batch was ready",
        how="DataLoader(in_order=False) delivers that one, where the order of samples may change",
        remedy=f"{call_with('in_order=False', facts)}, if order may change",
        level="medium",
        evidence={"behind_ready_ms": behind_ms, **which(facts)},
        gain_ms=won_ms,
        change=Change(settings={"in_order": "False"}),
        **predicted,
    )
