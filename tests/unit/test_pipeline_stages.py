"""What is told of the stages behind a loop's items, and of the bytes that came through their queues."""

from __future__ import annotations

from typing import Any

import numpy as np

from iotrace.analysis.loop.deliveries import FIELDS, Deliveries
from iotrace.analysis.storage.kernel_account import coverage_of
from iotrace.analysis.table import NONE
from iotrace.analysis.wait.pipeline import _Items, _most_at_once
from iotrace.session import names
from iotrace.sources.clocks.session_clock import Clock
from iotrace.sources.columns import Columns
from iotrace.sources.posix_calls import COLUMNS, PosixCalls
from iotrace.sources.processes import SPAN_DTYPE, Process
from iotrace.sources.records import Identity, Tick

PID = 7


def numbers(*values: int) -> Any:
    return np.array(values, np.int64)


def made(taken: list[int], prepared: list[int]) -> Deliveries:
    known: dict[str, Any] = {field: np.full(len(taken), NONE) for field in FIELDS}
    return Deliveries(
        Columns(len(taken), {**known, "taken_ns": numbers(*taken), "prepared_ns": numbers(*prepared)}), {}
    )


def test_a_maker_waits_for_room_from_one_item_to_the_next() -> None:
    items = _Items.__new__(_Items)
    items._start_ns, items._end_ns = 0, 100
    own = made([0, 50, 90, 10], [10, 60, 95, 20])
    assert items._room(numbers(1, 1, 1, 2), own) == (40 + 30) / 200


def test_a_function_has_as_many_threads_as_were_in_it_at_once() -> None:
    assert _most_at_once(numbers(0, 10, 12, 30), numbers(10, 20, 14, 40)) == 2


def no_calls() -> PosixCalls:
    columns: dict[str, Any] = {name: numbers() for name in COLUMNS}
    return PosixCalls(**columns, names=[], files=[], nodes=[], pids=frozenset(), problems=[])


def process(item: int, queue: int) -> Process:
    row = {"queue": queue, "item": item, "tid": PID, "asked_ns": 4, "taken_ns": 5, "length": -1, "kind": -1}
    handed = Columns(1, {name: numbers(value) for name, value in row.items()})
    ticks = [Tick(clock=(at, 0, at), cpu_ns=0, rchar=read) for at, read in ((1, 0), (9, 10_000))]
    identity = Identity(format=1, pid=PID, ppid=1, role="main", clock=(0, 0, 1))
    spans: Any = np.zeros(0, SPAN_DTYPE)
    return Process(identity, Clock([[0, 0, 1]]), [*ticks], spans, {}, arrays={names.HANDED_ROW: handed})


def test_what_came_through_a_followed_pipe_is_no_untraced_read() -> None:
    message = 123 << 30 | 9_000
    assert coverage_of(process(message, queue=5), no_calls(), []).kernel_bytes == 1_000
    assert coverage_of(process(8, queue=4), no_calls(), []).kernel_bytes == 10_000
