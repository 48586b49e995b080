"""Steps that the main thread has threads of a pool make, and awaits."""

from __future__ import annotations

import numpy as np
import pytest

from iotrace.session import names
from iotrace.sources.columns import Columns
from iotrace.sources.delegated_steps import give_to_one_thread
from iotrace.sources.records import Queue, Record

MAIN, QUEUE, POOL = 10, 2, 4
MS = 1_000_000
TASK_NS = 30 * MS  # from 60 to 90 ms of each turn of 100 ms


def columns(kind: int, rows: list[dict[str, int]]) -> Columns:
    return Columns(
        len(rows), {field: [row.get(field, -1) for row in rows] for field in names.ROW_FIELDS[kind]}
    )


def recorded(
    turns: int = 8, threads: tuple[int, ...] = (21, 22), longer_ns: int = 0, ask_ns: int = 55 * MS
) -> tuple[dict[int, Columns], Columns]:
    """A loop that takes from a queue for 55 ms, and then has a thread of a pool train for 30."""
    made, taken, rounds, spans = [], [], [], []
    for turn in range(turns):
        at, tid = 1000 * MS + turn * 100 * MS, threads[turn % len(threads)]
        begun, ended = at + 60 * MS, at + 60 * MS + TASK_NS + longer_ns
        made.append({"pool": POOL, "task": turn, "tid": tid, "taken_ns": begun, "prepared_ns": ended})
        of_queue = {"generation": QUEUE, "index": turn, "wait_start_ns": at, "delivered_ns": at + ask_ns}
        of_task = {"generation": POOL, "index": turn, "wait_start_ns": begun, "delivered_ns": ended + MS}
        taken += [{"tid": MAIN, **of_queue}, {"tid": MAIN, **of_task}]
        for what, after in ((0, 10 * MS), (1, 20 * MS)):
            rounds.append(
                {"what": what, "tid": tid, "mono_ns": begun + after, "cpu_ns": 5, "run_delay_ns": 0}
            )
        spans.append((tid, names.KIND_PHASE))
        spans.append((tid, names.KIND_READ_PATH))
    arrays = {
        names.BATCH_ROW: columns(names.BATCH_ROW, taken),
        names.MADE_ROW: columns(names.MADE_ROW, made),
        names.ROUND_ROW: columns(names.ROUND_ROW, rounds),
    }
    tids, kinds = zip(*spans, strict=True)
    return arrays, Columns(len(spans), {"tid": tids, "kind": kinds})


@pytest.mark.parametrize("threads", [(21,), (21, 22), (21, 22, 23)])
def test_steps_of_a_pools_threads_are_the_loops(threads: tuple[int, ...]) -> None:
    arrays, spans = recorded(threads=threads)
    give_to_one_thread(MAIN, [], arrays, spans)
    rounds = arrays[names.ROUND_ROW]
    assert (rounds["tid"] == MAIN).all()
    assert (rounds["cpu_ns"] == -1).all()  # what each of these threads computed is no sum of one
    assert (arrays[names.BATCH_ROW]["generation"] == QUEUE).all()
    of_phases = spans["kind"] == names.KIND_PHASE
    assert (spans["tid"][of_phases] == MAIN).all()
    assert not (spans["tid"][~of_phases] == MAIN).any()


def unchanged(arrays: dict[int, Columns], spans: Columns, records: list[Record] | None = None) -> bool:
    tids, taken = arrays[names.ROUND_ROW]["tid"].copy(), len(arrays[names.BATCH_ROW])
    give_to_one_thread(MAIN, records or [], arrays, spans)
    return bool((arrays[names.ROUND_ROW]["tid"] == tids).all()) and len(arrays[names.BATCH_ROW]) == taken


def test_threads_that_train_at_the_same_time_are_none() -> None:
    assert unchanged(*recorded(longer_ns=80 * MS))


def test_where_the_loop_asks_meanwhile_one_of_the_pools_threads_stands_for_all() -> None:
    arrays, spans = recorded(ask_ns=90 * MS)
    taken = len(arrays[names.BATCH_ROW])
    give_to_one_thread(MAIN, [], arrays, spans)
    assert (arrays[names.ROUND_ROW]["tid"] == 21).all()
    assert len(arrays[names.BATCH_ROW]) == taken


def test_a_thread_that_takes_its_batches_itself_is_none() -> None:
    arrays, spans = recorded(threads=(21,))
    taken = arrays[names.BATCH_ROW]
    of_queue = taken["generation"] == QUEUE
    arrays[names.BATCH_ROW] = taken.changed(tid=np.where(of_queue, 21, taken["tid"]))
    assert unchanged(arrays, spans)


def test_a_thread_that_hands_its_results_over_by_a_queue_is_none() -> None:
    assert unchanged(*recorded(), [Queue(queue=POOL, of="queue.Queue", limit=0, by="", mono_ns=0)])


def test_tasks_that_do_not_train_are_none() -> None:
    arrays, spans = recorded()
    rounds = arrays[names.ROUND_ROW]
    arrays[names.ROUND_ROW] = rounds.changed(mono_ns=rounds["mono_ns"] + 35 * MS)
    assert unchanged(arrays, spans)
