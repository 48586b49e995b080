"""Memory that is full is named where what is read had been there; a first reading is not."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from iotrace.analysis.program.full_memory import memory_limit_bytes, read_again_bytes
from iotrace.analysis.rank import RankAnalysis
from iotrace.analysis.results import Culprit, DataWait, ProcessUse, RankReport, Steps, System
from iotrace.launch.telemetry.procfs import parse_refaults
from iotrace.sources.samples import MemoryRecord
from iotrace.sources.telemetry import Series
from tests.support.results import unknown
from tests.support.rules import blamed_by
from tests.unit.test_telemetry import SECOND, steps

MIB = 1 << 20


def named(
    again: int | None, fetched: list[int | None], read_ms: float = 40.0, limit: int | None = None
) -> list[Culprit]:
    """The culprits of a rank that waits 50 ms of steps of 100, where so many bytes came back in 10 s."""
    figures = {}
    if again is not None:
        times = np.arange(11, dtype=np.int64) * SECOND
        figures["refaulted_file_bytes"] = Series(times, np.linspace(7, 7 + again, 11))
    memory = [] if limit is None else [MemoryRecord(mono_ns=0, group=(1, limit))]
    telemetry = SimpleNamespace(host=SimpleNamespace(figures=figures), memory=memory)
    analysis: Any = SimpleNamespace(
        telemetry=telemetry,
        rank=SimpleNamespace(main=None),
        kept=steps((0, 10 * SECOND)),
    )
    processes = [
        unknown(ProcessUse, pid=pid, role="main", storage_read_bytes=size) for pid, size in enumerate(fetched)
    ]
    wait = unknown(DataWait, raw_ms=50.0, causes_ms={"read": read_ms, "transform": 50.0 - read_ms})
    report = unknown(
        RankReport,
        data_wait=wait,
        steps=unknown(Steps, mean_ms=100.0),
        system=unknown(System, gpus=[], processes=processes),
    )
    return blamed_by(
        "IO402",
        report,
        read_again_bytes=read_again_bytes(cast(RankAnalysis, analysis)),
        limit_bytes=memory_limit_bytes(telemetry),
    )


def test_files_that_were_in_memory_before_are_read_again() -> None:
    (found,) = named(900 * MIB, [0, 500 * MIB, 500 * MIB], limit=420 * MIB)
    assert found.text == (
        "memory is full: 90 % of what is read from storage was in memory before: read 40.0 ms"
    )
    assert found.remedy == (
        "give the job more memory (its control group may use 420.0 MiB), or data that fits in it"
    )
    assert (found.leads, found.wait_ms) == (True, 40.0)
    assert found.evidence["read_again_bytes"] == pytest.approx(900 * MIB)
    assert (found.id, found.code) == ("memory-full", "IO402")
    assert "control group" not in named(900 * MIB, [1000 * MIB])[0].remedy
    assert not named(900 * MIB, [1000 * MIB], read_ms=20.0)[0].leads


@pytest.mark.parametrize(
    ("again", "fetched", "read_ms"),
    [
        (0, [1000 * MIB], 40.0),  # read for the first time
        (400 * MIB, [1000 * MIB], 40.0),
        (1600 * MIB, [1000 * MIB], 40.0),  # other programs read again, too
        (9 * MIB, [10 * MIB], 40.0),  # next to nothing
        (900 * MIB, [1000 * MIB], 12.0),  # the wait is for something else
        (None, [1000 * MIB], 40.0),  # the kernel does not count
        (900 * MIB, [1000 * MIB, None], 40.0),
        (900 * MIB, [], 40.0),
    ],
)
def test_what_only_looks_like_full_memory_is_not_named(
    again: int | None, fetched: list[int | None], read_ms: float
) -> None:
    assert named(again, fetched, read_ms) == []


def test_both_versions_of_control_groups_count_what_came_back() -> None:
    first = (
        b"cache 1\nworkingset_refault_anon 0\nworkingset_refault_file 3\ntotal_workingset_refault_anon 2\n"
    )
    assert parse_refaults(first + b"total_workingset_refault_file 40\n") == (40, 2)
    assert parse_refaults(b"anon 5\nworkingset_refault_anon 1\nworkingset_refault_file 30\n") == (30, 1)
    assert parse_refaults(b"cache 5\nrss 7\n") is None
