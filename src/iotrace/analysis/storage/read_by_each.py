"""Files that each worker reads and decodes in each epoch, where one of them would do."""

from __future__ import annotations

import msgspec
import numpy as np

from iotrace.analysis.intervals import distinct, grouped
from iotrace.analysis.rank import RankAnalysis
from iotrace.analysis.table import key_of

_ONCE = 1.5  # batches of a worker and an epoch that need the file: more read parts of it


class ReadByEach(msgspec.Struct, frozen=True):
    """`files` that each of so many `workers` reads about once an epoch, and their share of the time."""

    files: int
    workers: int
    share: float


def read_by_each(analysis: RankAnalysis) -> ReadByEach | None:
    """Find the files that each worker of the loop's loader reads in an epoch; None of a single worker."""
    source = analysis.source
    if source is None or source.description.workers < 2:
        return None
    workers, waits = source.description.workers, analysis.explained(source)
    costs, deliveries = waits.made_files, waits.deliveries
    spent_ns = costs.parts.sum(axis=1)
    if not spent_ns.sum():
        return None
    epoch = key_of(deliveries["iterator"], deliveries["epoch"])[costs.owner]
    worker = deliveries["pid"][costs.owner]
    _, _, of_reading = grouped(key_of(epoch, costs.file))
    _, first, _ = grouped(key_of(epoch, costs.file, worker))
    times = np.bincount(of_reading)
    readers = np.bincount(of_reading[first], minlength=len(times))
    own = ((readers >= workers) & (times <= _ONCE * readers))[of_reading]
    share = float(spent_ns[own].sum() / spent_ns.sum())
    return ReadByEach(len(distinct(costs.file[own])), workers, share)
