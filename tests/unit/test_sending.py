"""Code that holds the interpreter's lock keeps a worker from sending what it made."""

from __future__ import annotations

import numpy as np
import pytest

from iotrace.analysis.loop.deliveries import Delivery
from iotrace.analysis.wait.sending import sends_behind_next
from iotrace.analysis.wait.waits import split_waits
from tests.support.tables import deliveries_of


@pytest.mark.parametrize(
    ("way_ns", "making_ns", "held"),
    [
        (100, 100, True),  # a batch comes when the next one is made
        (103, 100, True),
        (100, 5, False),  # the way is long for itself
        (160, 100, False),
        (60, 400, False),  # the worker sends while it makes the next one
        (0, 100, False),
    ],
)
def test_batches_that_come_when_the_next_are_made(way_ns: int, making_ns: int, held: bool) -> None:
    period = max(way_ns, making_ns) + 10
    own = deliveries_of(
        Delivery(
            loader=0,
            number=number,
            iterator=0,
            epoch=0,
            index=number,
            pid=7,
            worker=0,
            taken_ns=number * period,
            prepared_ns=number * period + making_ns,
            wait_start_ns=number * period + making_ns,
            delivered_ns=number * period + making_ns + 10 + way_ns,
        )
        for number in range(1, 12)
    )
    assert sends_behind_next(own, np.asarray(split_waits(own)[3])) is held
