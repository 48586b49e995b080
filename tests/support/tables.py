"""Tables of what tests make one by one."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from iotrace.analysis.loop.deliveries import Deliveries, Delivery
from iotrace.analysis.wait.file_costs import Charges, FileCosts, FileNames
from iotrace.analysis.wait.production import PARTS
from iotrace.analysis.wait.waits import CAUSES, Explained, Waits, split_waits


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
        Deliveries.of(each.delivery for each in explained),
        np.array(causes, np.int64).reshape(-1, len(CAUSES)),
        costs([each.files for each in explained]),
        np.array([parts for parts, _ in made], np.float64).reshape(-1, len(PARTS)),
        costs([files for _, files in made]),
    )


def split_wait(delivery: Delivery) -> tuple[int, ...]:
    """Split the wait for one batch."""
    return tuple(int(part[0]) for part in split_waits(Deliveries.of([delivery])))
