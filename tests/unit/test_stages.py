"""What a stage costs a sample, whether a dataset makes one at a time or a batch at once."""

from __future__ import annotations

from iotrace.analysis.loop.deliveries import Delivery
from iotrace.analysis.wait.stages import samples_of
from iotrace.sources.columns import Columns
from tests.support.tables import deliveries_of


def batch(number: int, samples: int | None) -> Delivery:
    at_ns = 100 * number
    return Delivery(
        *(0, number, 0, 0, number, at_ns, at_ns + 90), taken_ns=at_ns, prepared_ns=at_ns + 80, samples=samples
    )


def test_an_item_that_is_a_whole_batch_has_all_its_samples() -> None:
    """Items of a batch made one by one have one each; so has one of a batch of unknown size."""
    made = deliveries_of([batch(0, 2), batch(1, 256), batch(2, None)])
    items = Columns(4, {"start_ns": [10, 40, 110, 210]})
    assert samples_of(made, items).tolist() == [1, 1, 256, 1]
