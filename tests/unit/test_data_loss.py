"""What is said of processes that did not close their records."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from iotrace.analysis.completeness.data_loss import data_loss
from iotrace.sources.clocks.session_clock import Clock
from iotrace.sources.processes import SPAN_DTYPE, Process
from iotrace.sources.records import End, Identity, Idle, Record, Tick, Worker
from iotrace.sources.session import Rank


def process(pid: int, *records: Record) -> Process:
    identity = Identity(format=1, pid=pid, ppid=0, role="main", clock=(0, 0, 1))
    tick = Tick(clock=(0, 0, 1), cpu_ns=1)
    return Process(identity, Clock([[0, 0, 1]]), [tick, *records], np.zeros(1, dtype=SPAN_DTYPE), {})


def told(exit_code: int | None, *workers: Process) -> list[str]:
    main = process(1, End())
    session: Any = SimpleNamespace(
        exit_code=exit_code,
        ranks=[Rank(0, None, 0, main, list(workers))],
        processes=[main, *workers],
        posix_on=True,
        calls=SimpleNamespace(problems=[]),
        telemetry=[],
    )
    return [f"{item.what}: {item.why}" for item in data_loss(session)]


def worker(pid: int, *records: Record) -> Process:
    return process(pid, Worker(0), *records)


@pytest.mark.parametrize("exit_code", [0, None])
def test_workers_that_waited_for_work_as_the_program_ended_were_not_killed(exit_code: int | None) -> None:
    (line,) = told(exit_code, worker(2, Idle()), worker(3, Idle()))
    assert line.startswith("the last POSIX calls of 2 workers (pid 2, 3): the program ended")


def test_a_worker_that_worked_or_whose_program_failed_was_killed() -> None:
    assert ["killed" in line for line in told(0, worker(2))] == [True]
    assert ["killed" in line for line in told(1, worker(2, Idle()))] == [True]
