"""What the thread did that made a loader's samples, and what libraries did on threads of their own."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

from iotrace.analysis.rank import RankAnalysis
from iotrace.analysis.wait.cpus import samples_made
from iotrace.session.names import KIND_ITEM, KIND_READ_PATH
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
