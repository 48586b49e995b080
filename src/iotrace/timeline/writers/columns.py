"""What becomes of the events of a batch: the columns that a writer takes with it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from msgspec import Raw

from iotrace.sources.chrome.batch import EventBatch, Times

Edit = tuple[int, str, bytes]  # a row, `id2` or `bind_id`, and its new value as JSON


@dataclass
class Columns:
    """What becomes of each event of a batch. Times in ns: `start_ns` of the merged clock, `relative_ns` since
    the result's base. `duration_ns` and `ids` are negative where the event gets none that changes."""

    start_ns: Times
    relative_ns: Times
    duration_ns: Times
    pids: Times
    tids: Times
    ids: Times
    kinds: npt.NDArray[np.int32]  # of `spill`
    edits: list[Edit]

    def between(self, first: int, last: int) -> Columns:
        """Those of some rows, from `first` up to `last`."""
        edits = [(row - first, key, value) for row, key, value in self.edits if first <= row < last]
        columns = {name: column[first:last] for name, column in vars(self).items() if name != "edits"}
        return Columns(**columns, edits=edits)


def renumber(batch: EventBatch, columns: Columns) -> None:
    """Give the events the columns' numbers."""
    for event, pid, tid, number in zip(
        batch.events, columns.pids.tolist(), columns.tids.tolist(), columns.ids.tolist(), strict=True
    ):
        event.pid = pid
        event.tid = tid
        if number >= 0:
            event.id = number
        if event.ph == "t" or event.ph == "f":
            event.bp = "e"  # the writer takes it from those that mean the next slice
    for row, key, value in columns.edits:
        setattr(batch.events[row], key, Raw(value))
