"""Steps that threads of a pool make for the main thread, which awaits them: they are steps of its own loop.

As ``await asyncio.to_thread(train, batch)`` does. Such a pool has several threads, which take turns.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from iotrace.session import names
from iotrace.sources.columns import Columns, Times
from iotrace.sources.records import Queue, Record

_FEWEST = 3  # steps
_MOSTLY = 0.9  # of the rounds of training, that lie in tasks; of the tasks, in which nothing else is awaited


def give_to_one_thread(
    pid: int, records: Sequence[Record], arrays: dict[int, Columns], spans: Columns
) -> None:
    """Change rows and spans of a process, so that one thread makes the steps that tasks of a pool make.

    Only where these follow each other. It is the main thread where that asks for no batch meanwhile, and no
    other thread asks for any: then their results are no batches. Else it goes on while they train, and the
    first of the pool's threads counts for all. What each of them computed is no sum of one thread's, and not
    known any more.
    """
    rounds, made, taken = (arrays.get(kind) for kind in (names.ROUND_ROW, names.MADE_ROW, names.BATCH_ROW))
    if rounds is None or made is None or (rounds["tid"] == pid).any():
        return
    threads = np.unique(rounds["tid"])
    queues = np.array([each.queue for each in records if isinstance(each, Queue)], np.int64)
    made = made[np.isin(made["tid"], threads) & ~np.isin(made["pool"], queues)]
    made = made[np.argsort(made["taken_ns"], kind="stable")]
    starts, ends, times = made["taken_ns"], made["prepared_ns"], rounds["mono_ns"]
    if len(made) < _FEWEST or (starts[1:] < ends[:-1]).any():
        return
    at = np.searchsorted(starts, times, side="right") - 1
    inside = (at >= 0) & (times <= ends[at]) & (rounds["tid"] == made["tid"][at])
    training = made[np.unique(at[inside])]
    if inside.mean() < _MOSTLY or len(training) < _FEWEST:
        return
    results = None if taken is None else _awaited(pid, taken, training)
    if taken is not None and results is not None:
        arrays[names.BATCH_ROW] = taken[~results]
    elif len(threads) == 1:
        return
    tid = int(threads[0]) if results is None else pid
    arrays[names.ROUND_ROW] = rounds.changed(tid=tid, cpu_ns=-1, run_delay_ns=-1)
    phases = (spans["kind"] == names.KIND_PHASE) & np.isin(spans["tid"], threads)
    spans["tid"] = np.where(phases, tid, spans["tid"])


def _awaited(pid: int, taken: Columns, training: Columns) -> npt.NDArray[np.bool_] | None:
    """Mark the batches that are results of tasks that train; None unless the main thread awaits these."""
    results = _mark_results(taken, training)
    others = taken[~results]
    if not (taken["tid"] == pid).all() or results.sum() < _MOSTLY * len(training) or not len(others):
        return None
    overlapping = _overlapping(others, training["taken_ns"], training["prepared_ns"])
    return results if overlapping <= 1 - _MOSTLY else None


def _mark_results(taken: Columns, made: Columns) -> npt.NDArray[np.bool_]:
    """Mark the batches that are results of these tasks."""
    tasks = {*zip(made["pool"].tolist(), made["task"].tolist(), strict=True)}
    numbers = zip(taken["generation"].tolist(), taken["index"].tolist(), strict=True)
    return np.array([each in tasks for each in numbers], np.bool_)


def _overlapping(taken: Columns, starts: Times, ends: Times) -> Any:
    """Find the share of some tasks, one after the other, in which a batch was awaited."""
    first = np.searchsorted(ends, taken["wait_start_ns"], side="right")
    behind = np.searchsorted(starts, taken["delivered_ns"])
    touched = np.zeros(len(starts) + 1, np.int64)
    held = behind > first
    np.add.at(touched, first[held], 1)
    np.subtract.at(touched, behind[held], 1)
    return (np.cumsum(touched)[:-1] > 0).mean()
