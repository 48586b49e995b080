"""Ranks that train without a loader, and the collectives that a loop calls itself beside its passes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from iotrace.analysis.wait import collectives as module
from iotrace.analysis.wait.collectives import Collectives, collectives_of_loop
from iotrace.session.names import KIND_REDUCTION, OF_GRADIENTS
from iotrace.sources.processes import SPAN_DTYPE, Process
from iotrace.sources.records import Distributed, Identity
from iotrace.sources.session import Session
from tests.support.rows import Round, process_of

MS = 1_000_000


def process(pid: int, *records: Any, calls_ms: list[tuple[int, int]] | None = None) -> Process:
    """A process that called all_reduce at these times, and DDP's reduction at 90 ms."""
    rows = [(start, length, 3) for start, length in calls_ms or []] + ([(90, 5, 4)] if calls_ms else [])
    spans = np.full(len(rows), -1, SPAN_DTYPE)
    for row, (start, length, name) in zip(spans, rows, strict=True):
        row["start_ns"], row["duration_ns"], row["name"] = start * MS, length * MS, name
        row["kind"], row["tid"] = KIND_REDUCTION, 1
    identity = Identity(format=1, pid=pid, ppid=1, role="main", clock=(0, 0, 1))
    return process_of(identity, list(records), spans, {3: "all_reduce", 4: OF_GRADIENTS})


@pytest.mark.parametrize(
    ("trained", "pids"),
    [
        ({3: [Distributed(1, 2)], 2: [Distributed(0, 2)]}, [2, 3]),
        ({2: []}, [2]),
        ({}, [1]),  # none trained: the first
    ],
)
def test_without_a_loader_those_that_trained_are_the_ranks(trained: dict[int, Any], pids: list[int]) -> None:
    """Not the launcher that began first, as torchrun's."""
    rounds = [Round("backward", 0, 1, MS, 0, 0), Round("optimizer", 0, 1, 2 * MS, 0, 0)]
    others = [process(pid, *records, *rounds) for pid, records in trained.items()]
    session: Any = SimpleNamespace(processes=[process(1), *others], _find_workers=lambda _: [])
    assert [rank.main.pid for rank in Session.ranks.func(session)] == pids


@pytest.mark.parametrize(
    ("other_ms", "least_ms"),
    [
        ([(10, 30), (50, 20)], 25.0),  # half of it waits for the rank that comes last
        ([(10, 30)], None),
        (None, None),
    ],
)
def test_waits_for_a_late_rank_are_told_apart(
    monkeypatch: pytest.MonkeyPatch, other_ms: list[tuple[int, int]] | None, least_ms: float | None
) -> None:
    own = process(2, calls_ms=[(10, 5), (50, 40)])
    mains = [own] if other_ms is None else [own, process(3, calls_ms=other_ms)]
    kept = type("Kept", (dict,), {"__len__": lambda _: 1})(
        start_ns=np.array([0]), end_ns=np.array([100 * MS])
    )
    analysis: Any = SimpleNamespace(
        kept=kept,
        rank=SimpleNamespace(main=own),
        session=SimpleNamespace(ranks=[SimpleNamespace(main=main) for main in mains]),
    )
    inside = np.array([10, 50]) * MS, np.array([15, 90]) * MS
    monkeypatch.setattr(module, "collectives_outside_phases", lambda _: inside)
    monkeypatch.setattr(module, "per_step_ms", lambda *_: 45.0)
    samples = SimpleNamespace(within=lambda *_: SimpleNamespace(most=lambda: ("average (train.py:9)", 0.9)))
    monkeypatch.setattr(module, "code_samples", lambda _: samples)
    found = Collectives(45.0, least_ms, 2.0, "all_reduce", "average (train.py:9)")
    assert collectives_of_loop(analysis) == found
