"""What is said of processes that did not close their records."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from iotrace.analysis.completeness.data_loss import data_loss
from iotrace.analysis.completeness.not_captured import _workers_left
from iotrace.session.names import DFTRACER, RECORDER
from iotrace.sources.processes import SPAN_DTYPE, Process
from iotrace.sources.records import End, Identity, Idle, Tick, Worker
from iotrace.sources.session import Rank
from tests.support.rows import BatchRecord, Line, Produced, process_of


def process(pid: int, *records: Line) -> Process:
    identity = Identity(format=1, pid=pid, ppid=0, role="main", clock=(0, 0, 1))
    tick = Tick(clock=(0, 0, 1), cpu_ns=1)
    return process_of(identity, [tick, *records], np.zeros(1, dtype=SPAN_DTYPE))


def told(
    exit_code: int | None, *workers: Process, taken: int = 2, by: str = DFTRACER
) -> tuple[list[str], list[str]]:
    """What is said of the workers that the program left, and of what was lost; it took batches of pid 2."""
    batches = [BatchRecord(0, 0, 0, index, 1, 0, 1, True, 0, worker=0, pid=2) for index in range(taken)]
    main = process(1, *batches, End())
    session: Any = SimpleNamespace(
        path="run",
        exit_code=exit_code,
        state="ended",
        ranks=[Rank(0, None, 0, main, list(workers))],
        processes=[main, *workers],
        posix_on=True,
        posix_by=by,
        namesakes=set(),
        calls=SimpleNamespace(problems=[]),
        telemetry=[],
        problems=[],
    )
    return tuple([f"{each.what}: {each.why}" for each in of(session)] for of in (_workers_left, data_loss))  # type: ignore[return-value]


def worker(pid: int, *records: Line) -> Process:
    return process(pid, Worker(0), *(produced(index) for index in range(2)), *records)


def produced(index: int) -> Produced:
    return Produced(generation=0, index=index, outcome="batch", taken_ns=0, prepared_ns=1)


@pytest.mark.parametrize("exit_code", [0, None])
def test_workers_that_ended_with_their_program_were_not_killed(exit_code: int | None) -> None:
    (left,), lost = told(exit_code, worker(2, Idle()), worker(3, Idle()))
    assert left.startswith("the last work of 2 workers: a signal ended them (pid 2, 3)")
    assert "for batches that nobody took" not in left
    assert lost == []


def test_what_a_worker_did_for_nobody_is_told() -> None:
    (left,), lost = told(0, worker(2))
    assert "for batches that nobody took and at most about 19 POSIX calls" in left
    assert lost == []
    (left,), _ = told(0, worker(2), by=RECORDER)  # which holds no calls back
    assert "POSIX calls" not in left
    assert told(0, worker(2, Idle()), by=RECORDER) == ([], [])


@pytest.mark.parametrize(("exit_code", "taken"), [(1, 2), (0, 3)])
def test_a_worker_whose_program_failed_or_whose_batch_is_missing_was_killed(
    exit_code: int, taken: int
) -> None:
    left, lost = told(exit_code, worker(2), taken=taken)
    assert left == []
    assert ["killed" in line for line in lost] == [True]
