"""What a function of the program makes of what it takes from a pool or a queue, before the loop has it.

The loop iterates a generator that takes from a pool and augments, or calls a function that does so: the wait
for the loop's input ends where that function hands over, not where the pool does. Nobody records when a
generator yields. But where samples find the loop nowhere else in between, its input is being made until the
step begins. A loop that takes and augments in its own function computes: that is no wait.
"""

from __future__ import annotations

import numpy as np
from msgspec.structs import replace

from iotrace.analysis.intervals import Times, holding
from iotrace.analysis.loop.deliveries import Deliveries, LoaderRun
from iotrace.analysis.loop.turns import own_source, turns_of
from iotrace.session import names
from iotrace.session.names import KIND_PHASE
from iotrace.sources.records import IteratorStart, LoopStacks
from iotrace.sources.session import Rank

_FEWEST, _FEWEST_SAMPLES = 3, 20  # turns, and samples in them
_LEAST = 0.02  # of the loop's time, from what the pool gave to the step
_MOSTLY = 0.9  # of the samples in between: with fewer it does something else, too


def of_takers(rank: Rank, pools: list[LoaderRun]) -> list[LoaderRun]:
    """Make a source of the function that takes from `pools`; none where the loop itself does."""
    number = 1 + max(pool.number for pool in pools)
    taken = Deliveries.joined(pool.deliveries for pool in pools)
    taken = taken[np.argsort(taken["delivered_ns"], kind="stable")]
    if not len(rank.main.rows(names.ROUND_ROW)):
        turns, why = turns_of(rank, number)
        if turns:
            turns[0] = _from_the_first_take(_one_an_item(turns[0], taken), taken)
        if not turns:
            return _of_generator(rank, pools, number, taken)
        if why or not _takes_long(turns[0].deliveries, taken):
            return []
        about = turns[0].description
        dataset = pools[0].description.taker or about.dataset
        return [replace(turns[0], description=replace(about, dataset=dataset)), *turns[1:]]
    begun = _begun(rank, int(taken["tid"][0]))
    at = np.searchsorted(begun, taken["delivered_ns"])
    turn, first = np.unique(at[at < len(begun)], return_index=True)
    if len(turn) < _FEWEST:
        return []
    last = np.append(first[1:], np.count_nonzero(at < len(begun))) - 1
    starts, ends = taken["delivered_ns"][last], begun[turn]
    share = _share_in_taker(rank, pools[0], starts, ends)
    ends = starts + ((ends - starts) * share).astype(np.int64)
    made_by = _taker(pools[0].description, number, int(taken["tid"][0]))
    asked = taken["wait_start_ns"][first]
    source = own_source(rank, made_by, asked, ends, np.zeros(len(turn), np.int64), taken["grad"][first])
    trained = taken["followed_by_backward"][first]
    source = replace(source, deliveries=source.deliveries.changed(followed_by_backward=trained))
    return [source] if share and _takes_long(source.deliveries, taken) else []


def _taker(pool: IteratorStart, number: int, tid: int) -> IteratorStart:
    """Describe the function that takes from a pool as a source of its own."""
    return replace(
        pool, iterator=-1 - pool.iterator, loader=number, dataset=pool.taker, workers=0, pool="", tid=tid
    )


def _one_an_item(source: LoaderRun, taken: Deliveries) -> LoaderRun:
    """Leave out calls that train again on an item: the first on each begins with its step."""
    own = source.deliveries
    _, first = np.unique(np.searchsorted(taken["delivered_ns"], own["delivered_ns"]), return_index=True)
    numbers = np.arange(len(first))
    kept = own[first].changed(number=numbers, index=numbers)
    passes = {key: replace(each, batches=len(first)) for key, each in source.passes.items()}
    return replace(source, deliveries=kept, passes=passes)


def _from_the_first_take(source: LoaderRun, taken: Deliveries) -> LoaderRun:
    """Let each turn's wait begin at the latest where the loop asks for the first item that it takes in it."""
    own = source.deliveries
    begun = min(own["wait_start_ns"][0], taken["wait_start_ns"][0])
    before = np.append(begun, own["delivered_ns"][:-1])
    first = np.searchsorted(taken["delivered_ns"], before, side="right").clip(max=len(taken) - 1)
    asked = taken["wait_start_ns"][first]
    within = (asked >= before) & (taken["delivered_ns"][first] <= own["delivered_ns"])
    begins = np.where(within, np.minimum(asked, own["wait_start_ns"]), own["wait_start_ns"])
    return replace(source, deliveries=own.changed(wait_start_ns=begins, taken_ns=begins))


def _takes_long(turns: Deliveries, taken: Deliveries) -> bool:
    """Tell whether much of the turns lies behind the last item that was taken in each."""
    got = np.searchsorted(taken["delivered_ns"], turns["delivered_ns"], side="right") - 1
    since = np.maximum(np.where(got >= 0, taken["delivered_ns"][got], 0), turns["wait_start_ns"])
    whole_ns = int(turns["delivered_ns"][-1] - turns["wait_start_ns"][0])
    return int((turns["delivered_ns"] - since).sum()) > _LEAST * whole_ns


def _begun(rank: Rank, tid: int) -> Times:
    """When a thread began with a phase of a step: its forward passes, or what comes first."""
    spans = rank.main.spans
    return np.sort(spans["start_ns"][(spans["kind"] == KIND_PHASE) & (spans["tid"] == tid)])


def _of_generator(rank: Rank, pools: list[LoaderRun], number: int, taken: Deliveries) -> list[LoaderRun]:
    """Make the source of a generator that works on what it takes, for a loop of which no call is known.

    Each turn is from one item to the next; samples tell how much of it lies in the generator.
    """
    asked, got = taken["wait_start_ns"], taken["delivered_ns"]
    about = pools[0].description
    if len(got) < _FEWEST or not about.taken_by or any(pool.description.taken_by == "" for pool in pools):
        return []
    inside, samples = _in_generator(rank, pools[0], got[:-1], asked[1:])
    if samples < _FEWEST_SAMPLES:
        return []
    gaps = np.maximum(np.append(asked[1:], got[-1]) - got, 0)
    made_by = _taker(about, number, int(taken["tid"][0]))
    ends = got + (gaps * (inside / samples)).astype(np.int64)
    source = own_source(rank, made_by, asked, ends, np.zeros(len(got), np.int64), taken["grad"])
    return [source] if _takes_long(source.deliveries, taken) else []


def _in_generator(rank: Rank, pool: LoaderRun, starts: Times, ends: Times) -> tuple[int, int]:
    """Count the samples in between that are in the generator, or in one that the loop asks for its items."""
    about, inside, samples = pool.description, 0, 0
    file = (about.site or "").rpartition(":")[0]
    for record in rank.main.of_type(LoopStacks):
        if record.tid != int(pool.deliveries["tid"][0]) or len(record.times_ns) != len(record.numbers):
            continue
        sites = [f"{of_file}:{line}" for of_file, _, line in record.functions]
        chains = [[sites[number] for number, _ in stack] for stack in record.stacks]
        of_taker = f"{file}:{about.taker_line}"
        # The outermost generator is the one that the loop asks.
        asked = {
            (about.taken_by, chain[chain.index(about.taken_by) - 1])
            for chain in chains
            if of_taker in chain and about.taken_by in chain[1:]
        }
        is_inside = [
            of_taker in chain or any(pair in asked for pair in zip(chain[1:], chain, strict=False))
            for chain in chains
        ]
        times = np.array(rank.main.clock.times_to_session_ns(record.times_ns), np.int64)
        numbers = np.array(record.numbers, np.int64)[holding(starts, ends, times) >= 0].tolist()
        samples += len(numbers)
        inside += sum(is_inside[number] for number in numbers if 0 <= number < len(is_inside))
    return inside, samples


def _share_in_taker(rank: Rank, pool: LoaderRun, starts: Times, ends: Times) -> float:
    """Find the share of the time in between that the loop is where it takes its input; 0: it is elsewhere."""
    about, inside, samples = pool.description, 0, 0
    file = (about.site or "").rpartition(":")[0]
    tid = int(pool.deliveries["tid"][0])
    for record in rank.main.of_type(LoopStacks):
        if record.tid != tid or len(record.times_ns) != len(record.numbers):
            continue
        of_taker = {
            number
            for number, (of_file, _, line) in enumerate(record.functions)
            if (of_file, line) == (file, about.taker_line)
        }
        loops = {number for number, _ in record.path}
        if of_taker & loops:
            return 0.0
        # Where the loop is while the taker runs: other generators on that line may be in between.
        at = [
            next(((number, line) for number, line in stack if number in loops), None)
            for stack in record.stacks
        ]
        asking = {
            where
            for where, stack in zip(at, record.stacks, strict=True)
            if any(number in of_taker for number, _ in stack)
        }
        times = np.array(rank.main.clock.times_to_session_ns(record.times_ns), np.int64)
        numbers = np.array(record.numbers, np.int64)[holding(starts, ends, times) >= 0].tolist()
        samples += len(numbers)
        inside += sum(at[number] in asking for number in numbers if 0 <= number < len(at))
    share = inside / samples if samples >= _FEWEST_SAMPLES else 0.0
    return share if share >= _MOSTLY else 0.0
