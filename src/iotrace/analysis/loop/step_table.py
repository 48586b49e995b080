"""Steps of the training loop, and their table."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from iotrace.analysis.intervals import Times, ranges
from iotrace.analysis.loop.deliveries import Deliveries, Delivery, Interval
from iotrace.analysis.table import NONE, Table, sums
from iotrace.sources.columns import Columns

if TYPE_CHECKING:
    from typing_extensions import Self


class Step(msgspec.Struct, frozen=True):
    """From one cut or mark to the next, less the evaluation passes `evaluation_ns` (disjoint, inside it).

    `delivery` is the batch that opens it; None of a marked step, and where rounds of training cut.
    `awaited` are the deliveries whose waits lie in it, of all loaders that the loop asks; `samples` those of
    all batches delivered in it, None where one is unknown.
    """

    delivery: Delivery | None
    start_ns: int
    end_ns: int
    awaited: tuple[Delivery, ...] = ()
    evaluation_ns: tuple[Interval, ...] = ()
    samples: int | None = None

    @property
    def duration_ns(self) -> int:
        whole_ns = self.end_ns - self.start_ns
        if not self.evaluation_ns:
            return whole_ns
        return whole_ns - sum(end_ns - start_ns for start_ns, end_ns in self.evaluation_ns)

    @property
    def pieces(self) -> list[Interval]:
        """The step without its evaluation passes."""
        if not self.evaluation_ns:
            return [(self.start_ns, self.end_ns)] if self.start_ns < self.end_ns else []
        bounds = [
            self.start_ns,
            *(bound for interval in self.evaluation_ns for bound in interval),
            self.end_ns,
        ]
        return [pair for pair in zip(bounds[::2], bounds[1::2], strict=True) if pair[0] < pair[1]]

    @property
    def wait_ns(self) -> int:
        """The raw data wait in this step."""
        if len(self.awaited) == 1:
            return self.awaited[0].delivered_ns - self.awaited[0].wait_start_ns
        return sum(delivery.wait_ns for delivery in self.awaited)


# `opened`: the number of the delivery that opens it; `first`, `behind`: the range of its awaited deliveries,
# `first_left_out`, `behind_left_out`: that of its evaluation passes.
_FIELDS = ("start_ns", "end_ns", "opened", "first", "behind", "first_left_out", "behind_left_out", "samples")


class StepTable(Table[Step]):
    """Steps as columns, with the tables of the deliveries that they name, and of evaluation passes."""

    def __init__(self, rows: Columns, opening: Deliveries, awaited: Deliveries, left_out: Times) -> None:
        self.rows, self.opening, self.in_order, self.left_out = rows, opening, awaited, left_out

    def _with(self, rows: Columns) -> Self:
        return type(self)(rows, self.opening, self.in_order, self.left_out)

    def _structs(self, rows: Columns) -> list[Step]:
        opened = rows["opened"]
        opening = iter(self.opening[opened[opened != NONE]])
        awaited = iter(self.in_order[ranges(rows["first"], rows["behind"])[0]])
        found = []
        columns = (rows[field].tolist() for field in _FIELDS)
        for start_ns, end_ns, number, first, behind, first_out, behind_out, samples in zip(
            *columns, strict=True
        ):
            left_out = self.left_out[first_out:behind_out].tolist() if first_out < behind_out else []
            found.append(
                Step(
                    None if number == NONE else next(opening),
                    start_ns,
                    end_ns,
                    tuple(next(awaited) for _ in range(behind - first)),
                    tuple((begin_ns, until_ns) for begin_ns, until_ns in left_out),
                    None if samples == NONE else samples,
                )
            )
        return found

    @cached_property
    def awaited(self) -> Deliveries:
        """The deliveries that the steps await, step by step."""
        return self.in_order[ranges(self["first"], self["behind"])[0]]

    @property
    def awaited_by(self) -> Times:
        """The row of the step that awaits each of `awaited`."""
        return ranges(self["first"], self["behind"])[1]

    def summed(self, values: Times) -> Times:
        """Sum up by step what is said of each of `awaited`."""
        behind = np.cumsum(self["behind"] - self["first"])
        return sums(values, np.append(0, behind[:-1])[: len(behind)], behind)

    @cached_property
    def duration_ns(self) -> Times:
        """How long each took, less evaluation passes."""
        lengths = self.left_out[:, 1] - self.left_out[:, 0]
        return np.asarray(
            self["end_ns"] - self["start_ns"] - sums(lengths, self["first_left_out"], self["behind_left_out"])
        )

    @cached_property
    def wait_ns(self) -> Times:
        """The raw data wait in each."""
        return np.asarray(sums(self.in_order.wait_ns, self["first"], self["behind"]))

    @cached_property
    def exposed_ns(self) -> Times:
        """The part of each wait in which the accelerator stood idle; `NONE` where it is not known."""
        known = self.in_order.known("exposed_ns")
        # The events enclose the wait, and the time to record them.
        own = np.clip(
            np.where(known, self.in_order["exposed_ns"], 0), 0, np.maximum(self.in_order.wait_ns, 0)
        )
        unknown = sums(~known, self["first"], self["behind"])
        return np.where(unknown > 0, NONE, sums(own, self["first"], self["behind"]))

    @property
    def passes(self) -> Times:
        """The evaluation passes that lie in these steps: a start and an end each."""
        inside, _ = ranges(self["first_left_out"], self["behind_left_out"])
        found: Times = self.left_out[inside]
        return found

    @property
    def pieces(self) -> tuple[Times, Times, Times]:
        """The steps without their evaluation passes: starts, ends, and the row of the step of each."""
        inside, of = ranges(self["first_left_out"], self["behind_left_out"])
        number, starts, ends = np.arange(len(self)), self["start_ns"], self["end_ns"]
        if not len(inside) and (starts < ends).all():
            return starts, ends, number
        starts = np.concatenate((self["start_ns"], self.left_out[inside, 1]))
        ends = np.concatenate((self.left_out[inside, 0], self["end_ns"]))
        order = np.lexsort((starts, np.concatenate((number, of))))
        behind = np.lexsort((ends, np.concatenate((of, number))))
        starts, ends, step = starts[order], ends[behind], np.concatenate((number, of))[order]
        held = starts < ends
        return starts[held], ends[held], step[held]


def number_of(steps: StepTable, step: Step) -> int:
    """Return what the timeline calls one of `steps`: the number of its batch, else its place."""
    return (
        int(np.searchsorted(steps["start_ns"], step.start_ns))
        if step.delivery is None
        else step.delivery.number
    )
