"""What the thread did that made a loader's samples, and what libraries did on threads of their own."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from iotrace.analysis.rank import RankAnalysis
from iotrace.analysis.wait.cpus import samples_made
from iotrace.analysis.wait.turns import take_turns
from iotrace.session.names import KIND_CALLBACK, KIND_ITEM, KIND_READ_PATH
from iotrace.sources.processes import SPAN_DTYPE
from iotrace.sources.session import open_session
from tests.support.growing import MS, Growing


def test_a_thread_that_waits_for_its_librarys_threads_is_not_told_asleep(tmp_path: Path) -> None:
    run = Growing(tmp_path)
    run.record(20)
    run.end()
    session = open_session(tmp_path)
    (rank,), workers = session.ranks, []
    for worker in rank.workers:
        spans = worker.spans
        kinds = [spans["kind"] == KIND_ITEM, spans["kind"] == KIND_READ_PATH]
        changed = spans.changed(  # -1: the calls' CPU time is the process's
            run_delay_ns=np.select(kinds, [0, -1], spans["run_delay_ns"]),
            cpu_ns=np.select(kinds, [2 * MS, 12 * MS], spans["cpu_ns"]),  # of 15
            duration_ns=np.where(kinds[1], 12 * MS, spans["duration_ns"]),
        )
        workers.append(replace(worker, spans=changed))
    analysis = RankAnalysis(session, replace(rank, workers=workers))
    (loader,) = analysis.loaders
    assert samples_made(analysis, loader) == pytest.approx((1 / 15, 0, 12 / 15, 12 / 15))


@pytest.mark.parametrize("locked", [True, False])
def test_calls_of_a_library_that_end_one_after_the_other_take_turns(locked: bool) -> None:
    """Four threads: behind a lock each ends 10 ms behind the one before; else all four end at once."""
    at = np.arange(400)
    spans = np.zeros(len(at), SPAN_DTYPE)
    spans["kind"], spans["cpu_ns"], spans["tid"] = KIND_CALLBACK, MS, at % 4
    ends = (at if locked else at // 4 * 4) * 10 * MS
    spans["duration_ns"] = (10 + 30 * (at > 0)) * MS if locked else 30 * MS + at % 7
    spans["start_ns"] = ends - spans["duration_ns"]
    analysis: Any = SimpleNamespace(
        has_callbacks=True, rank=SimpleNamespace(main=SimpleNamespace(spans=spans))
    )
    run: Any = SimpleNamespace(description=SimpleNamespace(library="spdl"))
    assert take_turns(analysis, run) is locked
