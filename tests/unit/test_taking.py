"""What taking batches from workers takes at the least: pickled bytes, and a descriptor for each tensor."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace

from iotrace.analysis.loop.deliveries import Delivery
from iotrace.analysis.results import DataWait
from iotrace.analysis.wait.data_wait import taking_is_work
from iotrace.analysis.wait.taking import with_taking
from tests.support.tables import deliveries_of

_BATCH = Delivery(1, 0, 1, 0, 0, 0, 1_000_000, size_bytes=4096)


def _least_ms(tensors: int, piped: int, held: int, *, transport: float = 100.0, **about: Any) -> float | None:
    batches = [
        replace(_BATCH, number=each, index=each, tensors=tensors or None, size_bytes=held)
        for each in range(4)
    ]
    description = SimpleNamespace(**{"workers": 2, "wrapped": False, **about})
    run = SimpleNamespace(deliveries=deliveries_of(batches), description=description)
    main = SimpleNamespace(role="main", steps_kernel_bytes=4 * piped, steps_traced_bytes=0)
    wait = DataWait(raw_ms=transport, causes_ms={"transport": transport}, by_loader=[None])  # type: ignore[list-item]
    analysis: Any = SimpleNamespace(source=run, kept=[0] * 4, measured_waits=[0] * 4)
    io: Any = SimpleNamespace(processes=[main])
    return with_taking(wait, analysis, io).taking_least_ms


@pytest.mark.parametrize(
    ("tensors", "piped", "held", "least_ms"),
    [
        (225, 0, 4096, 11.25),  # many tensors, each by a descriptor of its own
        (0, 64 << 20, 64 << 20, 31.25),  # arrays, pickled
        (225, 64 << 20, 64 << 20, 42.5),
        (9, 4096, 4096, None),  # a few tensors
        (0, 4096, 64 << 20, None),  # large ones, in shared memory
        (0, 2 << 20, 64 << 20, None),
    ],
)
def test_taking_batches_is_work_where_they_are_pickled_or_many_tensors(
    tensors: int, piped: int, held: int, least_ms: float | None
) -> None:
    assert _least_ms(tensors, piped, held) == least_ms


def test_it_is_no_more_than_handing_over_took_and_none_without_workers() -> None:
    assert _least_ms(225, 0, 4096, transport=4.0) == 4.0
    assert _least_ms(225, 0, 4096, workers=0) is None
    assert _least_ms(225, 0, 4096, wrapped=True) is None


@pytest.mark.parametrize(("least_ms", "is_work"), [(None, False), (1.0, False), (11.25, True)])
def test_a_wait_that_is_far_longer_than_that_may_be_for_a_cpu(least_ms: float | None, is_work: bool) -> None:
    wait = DataWait(raw_ms=170.0, causes_ms={"transport": 168.0}, taking_least_ms=least_ms)
    assert taking_is_work(wait) is is_work
