"""Tables of what tests make one by one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from iotrace.analysis.loop.deliveries import FIELDS, Deliveries, Delivery
from iotrace.analysis.loop.step_table import Step, StepTable
from iotrace.analysis.table import NONE
from iotrace.analysis.wait.file_costs import Charges, FileCosts, FileNames
from iotrace.analysis.wait.production import PARTS
from iotrace.analysis.wait.waits import CAUSES, Explained, Waits, split_waits
from iotrace.sources.columns import Columns


def deliveries_of(deliveries: Iterable[Delivery]) -> Deliveries:
    """Make a table of deliveries."""
    own = list(deliveries)
    phases = dict.fromkeys(each.phase for each in own if each.phase is not None)
    numbers = {phase: number for number, phase in enumerate(phases)}
    rows: dict[str, Any] = {}
    for field in FIELDS:
        values = [getattr(each, field) for each in own]
        if field == "phase":
            values = [None if value is None else numbers[value] for value in values]
        rows[field] = [NONE if value is None else value for value in values]
    return Deliveries(Columns(len(own), rows), {number: phase for phase, number in numbers.items()})


def steps_of(steps: Iterable[Step]) -> StepTable:
    """Make a table of steps."""
    own = list(steps)
    opening = [step.delivery for step in own if step.delivery is not None]
    opened = iter(range(len(opening)))
    behind = np.cumsum([len(step.awaited) for step in own])
    behind_left_out = np.cumsum([len(step.evaluation_ns) for step in own])
    rows: dict[str, Any] = {
        "start_ns": [step.start_ns for step in own],
        "end_ns": [step.end_ns for step in own],
        "opened": [NONE if step.delivery is None else next(opened) for step in own],
        "first": np.append(0, behind[:-1]) if own else 0,
        "behind": behind,
        "first_left_out": np.append(0, behind_left_out[:-1]) if own else 0,
        "behind_left_out": behind_left_out,
        "samples": [NONE if step.samples is None else step.samples for step in own],
    }
    left_out = [interval for step in own for interval in step.evaluation_ns]
    return StepTable(
        Columns(len(own), rows),
        deliveries_of(opening),
        deliveries_of(each for step in own for each in step.awaited),
        np.array(left_out, np.int64).reshape(-1, 2),
    )


def waits_of(explained: Sequence[Explained]) -> Waits:
    """Make a table of explained waits."""
    names = FileNames()
    made = [each.made or ([np.nan] * len(PARTS), {}) for each in explained]

    def costs(files: list[dict[str, list[float]]]) -> FileCosts:
        rows = [
            (row, names.number(path), parts) for row, own in enumerate(files) for path, parts in own.items()
        ]
        owner, file = np.array([row[:2] for row in rows], np.int64).reshape(-1, 2).T
        return FileCosts.of(names, [Charges(owner, file, np.array([row[2] for row in rows]).reshape(-1, 3))])

    causes = [[each.causes[cause] for cause in CAUSES] for each in explained]
    return Waits(
        deliveries_of(each.delivery for each in explained),
        np.array(causes, np.int64).reshape(-1, len(CAUSES)),
        costs([each.files for each in explained]),
        np.array([parts for parts, _ in made], np.float64).reshape(-1, len(PARTS)),
        costs([files for _, files in made]),
    )


def split_wait(delivery: Delivery) -> tuple[int, ...]:
    """Split the wait for one batch."""
    return tuple(int(part[0]) for part in split_waits(deliveries_of([delivery])))
