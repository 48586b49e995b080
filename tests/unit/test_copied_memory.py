"""Memory that a worker copied of its parent's: told where it is, and not of what a worker made itself."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import pytest

from iotrace.analysis.program.copied_memory import copied
from iotrace.sources.samples import SAMPLE_DTYPE, MemoryRecord
from iotrace.sources.telemetry import SampledProcess

MIB = 1 << 20
MAIN, WORKER = 0, 1


def sampled(number: int, start_s: int, rss_mib: list[int]) -> SampledProcess:
    """A process whose resident memory was sampled once a second."""
    samples = np.zeros(len(rss_mib), SAMPLE_DTYPE)
    samples["time_ns"] = [second * 10**9 for second in range(len(rss_mib))]
    samples["rss_bytes"] = [each * MIB for each in rss_mib]
    return SampledProcess(number, number, start_s * 10**9, "python", samples, number=number)


def record(main: tuple[int, int], worker: tuple[int, int]) -> MemoryRecord:
    """Anonymous and dirty MiB of the training process and of its worker."""
    rows = [
        (number, anonymous * MIB, 0, dirty * MIB, 0, 20, 1024, 400)
        for number, (anonymous, dirty) in ((MAIN, main), (WORKER, worker))
    ]
    return MemoryRecord(mono_ns=0, processes=cast(Any, rows))


@pytest.mark.parametrize(
    ("grown", "main", "worker", "expected"),
    [
        (0, (500, 300), (500, 320), 320),  # all that it wrote was its parent's
        (0, (500, 20), (800, 320), 20),  # a cache of its own
        (0, (500, 20), (500, 13), 13),  # nothing but what every worker writes
        (200, (700, 220), (500, 320), 320),  # its parent grew later: what was inherited is the earlier memory
        (200, (500, 20), (500, 320), 120),  # its parent held more meanwhile: of 200 it is not known
    ],
)
def test_what_a_worker_made_itself_is_no_copy(
    grown: int, main: tuple[int, int], worker: tuple[int, int], expected: int
) -> None:
    parent = sampled(MAIN, 0, [600, 600, 600 + grown])
    found = copied(sampled(WORKER, 1, [600]), parent, [record(main, worker)])
    assert found == expected * MIB


def test_a_worker_that_nobody_looked_at_is_unknown() -> None:
    assert copied(sampled(2, 1, [600]), sampled(MAIN, 0, [600]), [record((500, 300), (500, 320))]) is None
