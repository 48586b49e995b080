"""Files that each worker reads and decodes in each epoch, where one of them would do."""

from __future__ import annotations

import msgspec
import numpy as np

from iotrace.analysis.intervals import distinct, grouped
from iotrace.analysis.rank import RankAnalysis
from iotrace.analysis.results import FileIo, Io
from iotrace.analysis.table import key_of

_ONCE = 1.5  # batches of a worker and an epoch that need the file: more read parts of it
_ALIKE = 0.9  # of the bytes that all workers would read, and of reads that go on where the one before ended


class ReadByEach(msgspec.Struct, frozen=True):
    """`files` that each of so many `workers` reads about once an epoch, and their share of the time.

    `stream` is one file that each worker reads from its start on, batch after batch; `stream_bytes` are the
    bytes that each read, the same ones.
    """

    files: int
    workers: int
    share: float
    stream: str = ""
    stream_bytes: int = 0


def read_by_each(analysis: RankAnalysis, io: Io | None) -> ReadByEach | None:
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
    by_all = readers >= workers
    own = (by_all & (times <= _ONCE * readers))[of_reading]
    share = float(spent_ns[own].sum() / spent_ns.sum())
    found = ReadByEach(len(distinct(costs.file[own])), workers, share)
    if not source.description.iterable:
        return found
    spent = np.bincount(costs.file, spent_ns)
    dearest = int(spent.argmax())
    shared = by_all[of_reading][costs.file == dearest].all()
    path = costs.names.paths[dearest] if shared else ""
    epochs = len(distinct(epoch))
    read = next((each for each in io.files if each.path == path), None) if io else None
    whole_bytes = None if read is None else _streamed_bytes(read, workers * epochs)
    if whole_bytes is None:
        return found
    share = float(spent[dearest] / spent_ns.sum())
    return ReadByEach(1, workers, share, path, whole_bytes)


def _streamed_bytes(file: FileIo, passes: int) -> int | None:
    """The bytes of a file that each pass read; None where passes may have read others.

    Who reads on where it ended before reads no byte twice in a pass. So bytes that were read as often as
    there were passes were read in each. Windows that overlap are no such reads.
    """
    if file.reread_fraction is None or not file.read_bytes or (file.sequential_fraction or 0.0) < _ALIKE:
        return None
    distinct_bytes = file.read_bytes * (1 - file.reread_fraction)
    is_read_by_each = _ALIKE * passes * distinct_bytes <= file.read_bytes
    return round(distinct_bytes) if is_read_by_each else None
