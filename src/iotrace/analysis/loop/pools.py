"""Whether what a thread takes from pools of tasks is the input of a loop, one item a turn."""

from __future__ import annotations

from collections import Counter

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

from iotrace.analysis.intervals import Times, union
from iotrace.analysis.loop.cuts import Rounds, cuts_of, explains, rounds_by_thread
from iotrace.analysis.loop.deliveries import Deliveries, LoaderRun
from iotrace.analysis.loop.hops import Hops, Made, hops_of, made_of, maker_key
from iotrace.analysis.loop.queue_names import firsts_of, named_apart
from iotrace.analysis.loop.taken_items import ends_of, kinds_of, most_at_once
from iotrace.analysis.loop.takers import of_takers
from iotrace.analysis.loop.turns import turns_of
from iotrace.analysis.storage.kernel_account import READS
from iotrace.analysis.table import NONE
from iotrace.session import names
from iotrace.session.names import KIND_ITEM, KIND_MAPPED, KIND_READ_PATH
from iotrace.sources.records import IteratorStart, PoolDoubt, Queue
from iotrace.sources.session import Rank, Session
from iotrace.units import counted, percent, with_article

_AT_ONCE_NS = 100_000  # a turn that uses its item takes longer
_MOSTLY = 0.9
_ALIKE = 3  # times the shorter ones: turns of about that length are of one kind, short as they are
_FEWEST = 3  # turns
_HALF = 0.5
# What hands over no item that is seen: its name, and where the loop sleeps.
_MEETINGS = {
    "threading.Condition": ("a condition", "wait"),
    "threading.Event": ("an event", "wait"),
    "threading.Semaphore": ("a semaphore", "acquire"),
    "multiprocessing.Condition": ("a condition", "wait"),
    "multiprocessing.Event": ("an event", "wait"),
    "multiprocessing.Semaphore": ("a semaphore", "acquire"),
}
_CHUNKED = "each task of {} makes several items, and nothing tells where a step begins"
_LEAST_SLEEP = 0.05  # of the loop: less is no reason


class Inputs(msgspec.Struct, frozen=True):
    """What feeds a rank's loop; `why_none` says why nothing does, as far as is seen.

    `hops` are what threads and processes handed to each other, `pools` all pools and queues. `asleep` says
    where the loop sleeps, if nothing was seen to be handed over there.
    """

    loaders: list[LoaderRun]
    why_none: str = ""
    hops: Hops | None = None
    pools: list[LoaderRun] = []
    asleep: str = ""


def inputs_of(session: Session, rank: Rank, loaders: list[LoaderRun]) -> Inputs:
    """Leave out the pools and queues that feed no loop as far as is seen; say why, if nothing is left.

    Beside a loader, a pool may as well compute. Where the program trains or marks its steps, these tell.
    Otherwise a thread has to take one result a turn, of tasks that it neither hands data nor awaits at once.
    """
    pools = [loader for loader in loaders if loader.description.pool]
    others = _without_rows(rank, [loader for loader in loaders if not loader.description.pool])
    unseen = [pool for pool in pools if "unseen" in _doubts(rank, [pool])]
    pools = [pool for pool in pools if pool not in unseen]
    handed = any(len(process.rows(names.HANDED_ROW)) for process in rank.processes)
    if not pools and (not handed or (unseen and not others)):
        told = len(rank.main.rows(names.MARK_ROW)) or len(rank.main.rows(names.ROUND_ROW))
        turns, why = ([], "") if others or told else turns_of(rank)
        asleep = "" if why or others or turns else _slept(session, rank, unseen)
        return Inputs(others or turns, why or asleep, asleep=asleep)
    made = made_of(rank)
    hops = hops_of(rank, made)
    if not pools or others:
        return Inputs(others, "", hops, pools)
    rounds = rounds_by_thread(rank.main)
    busiest = max(rounds, key=lambda one: len(rounds[one].times_ns)) if rounds else rank.main.pid
    all_pools = pools = _waited_for(pools, rounds)
    trained_ns = rounds[busiest].times_ns if rounds else np.empty(0, np.int64)
    pools, hops = _of_loop(rank, pools, made, hops, busiest, trained_ns)
    about = {pool.number: pool.description for pool in pools}
    all_pools = [replace(each, description=about.get(each.number, each.description)) for each in all_pools]
    pools = _without_told(pools, hops, busiest, rounds)
    if not pools:
        return Inputs([], "", hops)
    if len(rank.main.rows(names.MARK_ROW)):
        return Inputs(pools, "", hops, all_pools)
    chosen, why = _chosen(session, rank, pools, rounds, made, hops)
    asleep = "" if chosen or why else _slept(session, rank, unseen)
    loaders = [*chosen, *(of_takers(rank, chosen) if chosen else ())]
    return Inputs(loaders, why or asleep, hops, all_pools, asleep=asleep)


def _waited_for(pools: list[LoaderRun], rounds: dict[int, Rounds]) -> list[LoaderRun]:
    """Leave out pools that the loop does not need, beside those that it does.

    It trains on while it asks in vain for most of their items: a queue of what another thread tells, such as
    that a checkpoint is written, is looked at in each turn. An item that comes after the loop has trained, or
    has taken another one, was not waited for.
    """
    found, needed = [], []
    every = Deliveries.joined(pool.deliveries for pool in pools)
    for pool in pools:
        taken = pool.deliveries
        trained = np.zeros(len(taken), np.bool_)
        for tid, own in rounds.items():
            mine = taken["tid"] == tid
            begun, ended = (own.until(taken[at][mine]) for at in ("wait_start_ns", "delivered_ns"))
            trained[mine] = ended > begun
        went_on = trained | _took_another(taken, every)
        starts = np.where(went_on, taken["delivered_ns"], taken["wait_start_ns"])
        if went_on.any() and rounds:
            pool = replace(pool, deliveries=taken.changed(wait_start_ns=starts))
        found.append(pool)
        if not len(taken) or trained.mean() <= _HALF:
            needed.append(pool)
    return needed or found


def _without_told(
    pools: list[LoaderRun], hops: Hops, loop: int, rounds: dict[int, Rounds]
) -> list[LoaderRun]:
    """Leave out what tells that a thread has done what the loop gave it, such as that it has sent a file.

    Other items make the loop's steps, and it hardly waits for this. What it asks for, and waits for, stays.
    """
    given = hops.deliveries["maker_tid"] == loop
    answer = np.unique(hops.deliveries["tid"][given])
    told = [
        pool
        for pool in pools
        if np.isin(pool.deliveries["maker_tid"], answer).mean() > _MOSTLY
        and np.median(pool.deliveries.wait_ns) < _AT_ONCE_NS
    ]
    others = [pool for pool in pools if pool not in told]
    if not told or not others or loop not in rounds:
        return pools
    passes = {key: each for pool in others for key, each in pool.passes.items()}
    taken = _in_order(others)
    own = taken[taken["tid"] == loop]
    return others if len(own) and explains(cuts_of(own, passes, rounds[loop]), rounds[loop]) else pools


def _took_another(taken: Deliveries, every: Deliveries) -> npt.NDArray[np.bool_]:
    """Mark items in whose wait their thread got another of `every`: of those that one thread took alone."""
    if (taken["tid"] != taken["tid"][:1]).any():
        return np.zeros(len(taken), np.bool_)
    delivered_ns = np.sort(every["delivered_ns"][np.isin(every["tid"], taken["tid"][:1])])
    begun = np.searchsorted(delivered_ns, taken["wait_start_ns"], side="right")
    return np.asarray(np.searchsorted(delivered_ns, taken["delivered_ns"]) > begun)


def _without_rows(rank: Rank, loaders: list[LoaderRun]) -> list[LoaderRun]:
    """Leave out iterations over rows, unless nothing else feeds a loop whose steps are known otherwise."""
    others = [loader for loader in loaders if not loader.description.rows]
    told = len(rank.main.rows(names.MARK_ROW)) or len(rank.main.rows(names.ROUND_ROW))
    fast = {each.iterator for each in rank.main.of_type(PoolDoubt) if each.doubt == "fast"}
    if others or not told or any(iterator in fast for loader in loaders for iterator, _ in loader.passes):
        return others
    return loaders


def _of_loop(
    rank: Rank, pools: list[LoaderRun], made: Made, hops: Hops, loop: int, trained_ns: Times
) -> tuple[list[LoaderRun], Hops]:
    """Divide what was taken from pools: by the thread `loop`, and by stages, which put what they make.

    `trained_ns`: when that thread trains, sorted.
    """
    main, found, parts = rank.main, [], [hops]
    putting = np.unique(made.tid[(made.pid == main.pid) & (made.tid != loop)])
    for pool in pools:
        own = pool.deliveries
        by_stage = np.isin(own["tid"], putting)
        if by_stage.any():
            takers = maker_key(np.full(int(by_stage.sum()), main.pid), own["tid"][by_stage])
            parts.append(Hops.of_pools(own[by_stage], takers))
        left = own[~by_stage & ~ends_of(own, hops, trained_ns)]
        if len(left):
            left = left.changed(number=np.arange(len(left)))
            found.append(replace(pool, deliveries=left, description=_described(rank, pool, left, hops)))
    # Where the loop takes items itself, what other threads take is none of its input.
    of_loop = [pool for pool in found if (pool.deliveries["tid"] == loop).any()]
    return _named_apart(of_loop or found), Hops.joined(parts)


def _named_apart(pools: list[LoaderRun]) -> list[LoaderRun]:
    """Tell pools apart whose tasks call one function, by their threads' names or where the loop takes."""
    about = [pool.description for pool in pools]
    as_queues: list[Queue | None] = [
        Queue(queue=at, of=each.pool, limit=0, by=each.dataset, mono_ns=each.mono_ns, apart=_apart(each))
        for at, each in enumerate(about)
    ]
    pool = np.repeat(np.arange(len(pools)), [len(each.deliveries) for each in pools])
    taken_ns = np.concatenate([np.empty(0, np.int64), *(each.deliveries["delivered_ns"] for each in pools)])
    named = named_apart(as_queues, firsts_of(as_queues, pool, taken_ns))
    return [
        each if new is None else replace(each, description=replace(each.description, dataset=new.by))
        for each, new in zip(pools, named, strict=True)
    ]


def _apart(about: IteratorStart) -> list[str]:
    line = (about.site or "").rpartition("/")[2]
    return [*about.apart, f"line {line}"] if line else about.apart


def _described(rank: Rank, pool: LoaderRun, taken: Deliveries, hops: Hops) -> IteratorStart:
    """Add what the loop's thread did not know: how many made the items, and which function."""
    about, row = pool.description, hops.rows_of(taken)
    by = maker_key(taken["pid"], taken["maker_tid"])
    makers = most_at_once(by, taken["taken_ns"], taken["prepared_ns"])
    numbers = [each for each in np.unique(hops.queue[row[row >= 0]]).tolist() if each >= 0]
    queues = [hops.queues[each] for each in numbers]
    names = [each.by for each in queues if each is not None]
    limits = {each.limit if each is not None else 0 for each in queues}
    # Of several that the loop takes from in turns the limits add up.
    one = len({*firsts_of(hops.queues, hops.queue, hops.deliveries["delivered_ns"])[numbers].tolist()}) == 1
    limit = max(limits) if len(limits) == 1 and one else 0
    # Its queue's name tells it from others of that function. A pool knows the first task's alone.
    dataset = next(filter(None, names), "") or _mostly_made_by(rank, taken) or about.dataset
    return replace(about, workers=about.workers or makers, dataset=dataset, limit=limit)


def _mostly_made_by(rank: Rank, taken: Deliveries) -> str:
    """Name the function that made most items, as far as their making was timed; empty where few were."""
    pids, made = taken.maker(rank.main.pid), Counter[str]()
    for process in rank.processes:
        spans = process.spans[process.spans["kind"] == KIND_ITEM]
        ends = taken["prepared_ns"][(pids == process.pid) & taken.made]
        own = spans["name"][np.isin(spans["start_ns"] + spans["duration_ns"], ends)]
        numbers, counts = np.unique(own, return_counts=True)
        for number, count in zip(numbers.tolist(), counts.tolist(), strict=True):
            made[process.texts.get(number, "")] += count
    name, count = made.most_common(1)[0] if made else ("", 0)
    return name if count > _HALF * len(taken) else ""


def _chosen(
    session: Session,
    rank: Rank,
    pools: list[LoaderRun],
    rounds: dict[int, Rounds],
    made: Made,
    hops: Hops,
) -> tuple[list[LoaderRun], str]:
    """Choose the pools that feed the loop of a rank; say why, if none does."""
    most = max(len(pool.deliveries) for pool in pools)
    pools = [pool for pool in pools if len(pool.deliveries) >= min(_FEWEST, most)]
    name, doubts = with_article(pools[0].description.pool), _doubts(rank, pools)
    if "chunked" in doubts and not rounds:
        return [], _CHUNKED.format(name)
    if "fast" in doubts:
        return [], f"items come from {name} so fast that to record each would slow the program down"
    taken = _in_order(pools)
    if _is_counting(taken, hops):
        return [], f"the loop takes numbers from {name}, no data: they may be places, or turns"
    if rounds:
        busiest = max(rounds, key=lambda one: len(rounds[one].times_ns))
        passes = {key: each for loader in pools for key, each in loader.passes.items()}
        own = taken[taken["tid"] == busiest]
        fits = len(own) > 0 and explains(cuts_of(own, passes, rounds[busiest]), rounds[busiest])
        # A pool that the loop hands data to may as well work off what the loop has computed.
        if fits and not _fed(own, made):
            return pools, ""
        return [], _CHUNKED.format(name) if "chunked" in doubts else ""
    seen = [
        pool
        for pool in pools
        if pool.description.pool not in _MEETINGS or _reads(session, rank, pool.deliveries)
    ]
    if not seen:
        where, _ = _MEETINGS[pools[0].description.pool]
        return [], f"the loop waits for a thread at {where}, and that thread reads no data"
    pools, taken = seen, _in_order(seen)
    if _fed(taken, made) or _fed_by_queue(taken, made, hops):
        return [], f"the loop hands data to {name}: it may wait for input, or for what it has computed there"
    if "timed" in doubts:
        return [], "coroutines wait for timers, too, and nothing tells which one waits for data"
    if "polled" in doubts:
        why = f"the loop asks {name} whether a task is done, and how it waits in between cannot be seen"
        return [], why
    why = _no_turns(session, rank, taken, name)
    if not why:
        return pools, ""
    alone = (
        [pool for pool in pools if not _no_turns(session, rank, pool.deliveries, name)]
        if len(pools) > 1
        else []
    )
    return alone, "" if alone else why


def _slept(session: Session, rank: Rank, unseen: list[LoaderRun]) -> str:
    """Say where the loop slept and what was read meanwhile, where no item was seen."""
    if not unseen:
        return ""
    most = max(unseen, key=lambda pool: int(pool.deliveries.wait_ns.sum()))
    about, taken = most.description, most.deliveries
    first, last = int(taken["delivered_ns"][0]), int(taken["delivered_ns"][-1])
    share = int(taken.wait_ns[1:].sum()) / max(1, last - first)
    if len(taken) <= _FEWEST or share < _LEAST_SLEEP:
        return ""
    line = (about.site or "").rpartition("/")[2]
    text = f"the loop sleeps in {about.pool}.{_MEETINGS[about.pool][1]} at {line} for {percent(share)} of "
    text += "its time, and iotrace saw nothing handed over there"
    spans = rank.main.spans
    own = (spans["kind"] == KIND_READ_PATH) & (spans["tid"] == taken["tid"][0])
    own &= (spans["start_ns"] >= first) & (spans["start_ns"] < last)
    starts, ends = union(spans["start_ns"][own], spans["start_ns"][own] + spans["duration_ns"][own])
    if reads := int((ends - starts).sum()) / (last - first):
        text += f"; it reads data itself for {percent(reads)}"
    files = [session.calls_of(process) for process in rank.workers]
    files = [each.where(each.named(READS)) for each in files]
    files = [each for each in files if len(each)]
    if files:
        count = len({each.files[number] for each in files for number in np.unique(each.file).tolist()})
        text += f"; meanwhile {counted(len(files), 'process', 'processes')} read {counted(count, 'file')}"
    return text


def _reads(session: Session, rank: Rank, taken: Deliveries) -> bool:
    """Tell whether a file was read for most items, by whoever made them."""
    taken = taken[taken.made]
    pids, read = taken.maker(rank.main.pid), np.zeros(len(taken), np.bool_)
    for process in rank.processes:
        calls, spans = session.calls_of(process), process.spans
        calls = calls.where(calls.named(READS))
        spans = spans[(spans["kind"] == KIND_READ_PATH) | (spans["kind"] == KIND_MAPPED)]
        of_process = pids == process.pid
        for tid in np.unique(taken["maker_tid"][of_process]).tolist():
            mine = np.flatnonzero(of_process & (taken["maker_tid"] == tid))
            own, reads = calls, spans
            if tid != NONE:
                own, reads = calls.where(calls.tid == tid), spans[spans["tid"] == tid]
            times = np.sort(np.concatenate((own.start_ns, reads["start_ns"])))
            first, last = (np.searchsorted(times, taken[at][mine]) for at in ("taken_ns", "prepared_ns"))
            read[mine] = last > first
    return len(taken) > 0 and bool(read.mean() > _HALF)


def _in_order(pools: list[LoaderRun]) -> Deliveries:
    taken = Deliveries.joined(pool.deliveries for pool in pools)
    return taken[np.argsort(taken["delivered_ns"], kind="stable")]


def _is_counting(taken: Deliveries, hops: Hops) -> bool:
    """Tell whether most items are numbers."""
    kinds = kinds_of(taken, hops)
    numbers = [number for number, kind in enumerate(hops.kinds) if kind in ("int", "bool", "float")]
    return len(kinds) > 0 and bool(np.isin(kinds, numbers).mean() > _HALF)


def _fed_by_queue(taken: Deliveries, made: Made, hops: Hops) -> bool:
    """Tell whether the makers of what was taken were given data for most of it."""
    makers = np.unique(np.where(taken["maker_tid"] == NONE, taken["pid"], taken["maker_tid"]))
    fed = np.flatnonzero(made.fed > 0)
    given = np.isin(hops.deliveries["tid"], makers) & np.isin(
        hops.deliveries["prepared_ns"], made.prepared_ns[fed]
    )
    return int(given.sum()) > _HALF * len(taken)


def _doubts(rank: Rank, pools: list[LoaderRun]) -> set[str]:
    iterators = {iterator for loader in pools for iterator, _ in loader.passes}
    return {each.doubt for each in rank.main.of_type(PoolDoubt) if each.iterator in iterators}


def _fed(taken: Deliveries, made: Made) -> bool:
    """Tell whether most tasks were given data."""
    fed = made.fed[np.isin(made.prepared_ns, taken["prepared_ns"])]
    return len(fed) > 0 and bool(fed.mean() > _HALF)


def _no_turns(session: Session, rank: Rank, taken: Deliveries, name: str) -> str:
    """Say why the results are no turns of a loop; empty where they are."""
    if len(taken) < _FEWEST:
        return f"the program took {len(taken)} results of {name}: that is no loop"
    between = taken["wait_start_ns"][1:] - taken["delivered_ns"][:-1]
    used = between > _AT_ONCE_NS
    if (taken["tid"] != taken["tid"][0]).any():
        return f"several threads take results of {name}, and nothing tells which one uses them"
    if not used.any():
        return f"the program gathers the results of {name}, and uses none before it has the next"
    if used.mean() < _MOSTLY and np.median(between[used]) >= _ALIKE * np.median(between[~used]):
        return f"the loop takes several results of {name} in a turn, and nothing tells where a step begins"
    sent = taken["sent_ns"]
    at_once = (sent != NONE) & (taken["wait_start_ns"] - sent < _AT_ONCE_NS)
    if at_once.mean() > _HALF and not _reads(session, rank, taken):
        return f"the loop waits for each task of {name} at once: it may as well compute there"
    return ""
