"""Whether what a thread takes from pools of tasks is the input of a loop, one item a turn."""

from __future__ import annotations

import numpy as np

from iotrace.analysis.loop.cuts import cuts_of, explains, rounds_by_thread
from iotrace.analysis.loop.deliveries import Deliveries, LoaderRun
from iotrace.analysis.table import NONE
from iotrace.session import names
from iotrace.sources.records import PoolDoubt
from iotrace.sources.session import Rank

_AT_ONCE_NS = 100_000  # a turn that uses its item takes longer
_MOSTLY = 0.9
_FEWEST = 3  # turns
_HALF = 0.5


def inputs_of(rank: Rank, loaders: list[LoaderRun]) -> tuple[list[LoaderRun], str]:
    """Leave out the pools that feed no loop as far as is seen; say why, if nothing is left.

    Beside a loader, a pool may as well compute. Where the program trains or marks its steps, these tell.
    Otherwise a thread has to take one result a turn, of tasks that it neither hands data nor awaits at once.
    """
    pools = [loader for loader in loaders if loader.description.pool]
    others = [loader for loader in loaders if not loader.description.pool]
    if not pools or others:
        return others, ""
    if len(rank.main.rows(names.MARK_ROW)):
        return pools, ""
    name, doubts = pools[0].description.pool, _doubts(rank, pools)
    if "chunked" in doubts:
        return [], f"each task of {name} makes several items, and nothing tells where a step begins"
    rounds = rounds_by_thread(rank.main)
    taken = Deliveries.joined(loader.deliveries for loader in pools)
    taken = taken[np.argsort(taken["delivered_ns"], kind="stable")]
    if rounds:
        busiest = max(rounds, key=lambda one: len(rounds[one].times_ns))
        passes = {key: each for loader in pools for key, each in loader.passes.items()}
        own = taken[taken["tid"] == busiest]
        fits = len(own) > 0 and explains(cuts_of(own, passes, rounds[busiest]), rounds[busiest])
        return (pools, "") if fits else ([], "")
    if _fed(rank):
        why = f"the loop hands data to {name}: it may wait for input, or for what it has computed there"
    elif "polled" in doubts:
        why = f"the loop asks {name} whether a task is done, and how it waits in between cannot be seen"
    else:
        why = _no_turns(taken, name)
    return ([], why) if why else (pools, "")


def _doubts(rank: Rank, pools: list[LoaderRun]) -> set[str]:
    iterators = {iterator for loader in pools for iterator, _ in loader.passes}
    return {each.doubt for each in rank.main.of_type(PoolDoubt) if each.iterator in iterators}


def _fed(rank: Rank) -> bool:
    """Tell whether most tasks were given data."""
    fed = np.concatenate([process.rows(names.MADE_ROW)["fed"] for process in rank.processes])
    return len(fed) > 0 and bool(fed.mean() > _HALF)


def _no_turns(taken: Deliveries, name: str) -> str:
    """Say why the results are no turns of a loop; empty where they are."""
    if len(taken) < _FEWEST:
        return f"the program took {len(taken)} results of {name}: that is no loop"
    between = taken["wait_start_ns"][1:] - taken["delivered_ns"][:-1]
    used = between > _AT_ONCE_NS
    if (taken["tid"] != taken["tid"][0]).any():
        return f"several threads take results of {name}, and nothing tells which one uses them"
    if not used.any():
        return f"the program gathers the results of {name}, and uses none before it has the next"
    if used.mean() < _MOSTLY:
        return f"the loop takes several results of {name} in a turn, and nothing tells where a step begins"
    sent = taken["sent_ns"]
    at_once = (sent != NONE) & (taken["wait_start_ns"] - sent < _AT_ONCE_NS)
    if at_once.mean() > _HALF:
        return f"the loop waits for each task of {name} at once: it may as well compute there"
    return ""
