"""What the thread did that made a loader's samples, and what libraries did on threads of their own."""

from __future__ import annotations

from pathlib import Path

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
        spans = worker.spans.copy()
        items, calls = spans["kind"] == KIND_ITEM, spans["kind"] == KIND_READ_PATH
        spans["run_delay_ns"][items], spans["cpu_ns"][items] = 0, 2 * MS  # of 15
        spans["duration_ns"][calls] = 12 * MS
        spans["run_delay_ns"][calls], spans["cpu_ns"][calls] = -1, 12 * MS  # the process's
        workers.append(replace(worker, spans=spans))
    analysis = RankAnalysis(session, replace(rank, workers=workers))
    (loader,) = analysis.loaders
    assert samples_made(analysis, loader) == pytest.approx((1 / 15, 0, 12 / 15, 12 / 15))
