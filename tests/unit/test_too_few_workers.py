"""More workers are advised only where they are what is missing, and have a core to run on."""

from __future__ import annotations

import pytest

from iotrace.analysis.loop.deliveries import Delivery
from iotrace.analysis.wait.data_wait import has_core, unmade_fraction
from iotrace.analysis.wait.waits import CAUSES, Explained
from tests.support.tables import waits_of


def explained(**causes_ns: int) -> Explained:
    delivery = Delivery(0, 1, 0, 0, 1, 0, sum(causes_ns.values()))
    return Explained(delivery, {**dict.fromkeys(CAUSES, 0), **causes_ns})


def test_the_wait_for_batches_that_were_not_made() -> None:
    assert unmade_fraction(waits_of([])) == 0
    assert unmade_fraction(waits_of([explained(transport=90, read=6), explained(queued=4)])) == pytest.approx(
        0.1
    )
    startup = waits_of([explained(startup=50, decode=25), explained(queued=20, unknown=5)])
    assert unmade_fraction(startup) == 0.5


@pytest.mark.parametrize(
    ("busy", "throttled", "free"),
    [
        (0.5, 0.0, True),
        (0.89, None, True),
        (0.95, None, False),
        (0.04, 0.3, False),  # a CPU quota far below the CPUs of the affinity
        (0.5, 0.05, True),  # bursts
        (None, None, None),
    ],
)
def test_a_further_worker_needs_a_core(
    busy: float | None, throttled: float | None, free: bool | None
) -> None:
    assert has_core(busy, throttled) is free
