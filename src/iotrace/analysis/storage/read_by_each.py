"""Files that each worker reads and decodes in each epoch, where one of them would do."""

from __future__ import annotations

from collections.abc import Sequence, Set

import msgspec
import numpy as np

from iotrace.analysis.intervals import distinct, grouped
from iotrace.analysis.loop.deliveries import LoaderRun
from iotrace.analysis.rank import RankAnalysis
from iotrace.analysis.results import FileIo, Io, SampleCall
from iotrace.analysis.table import key_of
from iotrace.sources.records import AskedNumber, Worker

_ONCE = 1.5  # batches of a worker and an epoch that need the file: more read parts of it
_ALIKE = 0.9  # of the bytes that all workers would read, and of reads that go on where the one before ended


class ReadByEach(msgspec.Struct, frozen=True):
    """`files` that each of so many `workers` reads about once an epoch, and their share of the time.

    `stream` is one file that each worker reads from its start on, batch after batch; `stream_bytes` are the
    bytes that each read, the same ones. `asked`: whether a worker looked at its number, by which it may pass
    on a part of what it reads; None where nobody saw. `init`: they have a worker_init_fn. `dropped` is a
    function that runs `times` for each sample that is given, once for each of the workers of all ranks: the
    others' samples are made, too, and dropped.
    """

    files: int
    workers: int
    share: float
    stream: str = ""
    stream_bytes: int = 0
    asked: bool | None = None
    init: bool = False
    dropped: str = ""
    times: float = 0.0


def read_by_each(
    analysis: RankAnalysis, io: Io | None, calls: Sequence[SampleCall] = ()
) -> ReadByEach | None:
    """Find the files that each worker of the loop's loader reads in an epoch; None of a single worker."""
    source = analysis.source
    if source is None or source.description.workers < 2 or not source.description.iterable:
        return None  # of a dataset with indices, each worker makes samples of its own
    if source.description.wrapped:
        return None  # a pool gives each task to one of its workers, and a queue has one maker of each item
    asked, init = _asked(analysis, source)
    whole = _read_whole(analysis, source, io) if asked is False else None
    if asked and (call := _for_each_worker(analysis, source, calls)) is not None:
        whole = _read_whole(analysis, source, io)
        if whole is not None:
            whole = msgspec.structs.replace(whole, dropped=call.name, times=call.per_sample or 0.0)
    found = _by_cost(analysis, source, io) if whole is None else whole
    return None if found is None else msgspec.structs.replace(found, asked=asked, init=init)


def _for_each_worker(
    analysis: RankAnalysis, source: LoaderRun, calls: Sequence[SampleCall]
) -> SampleCall | None:
    """Find the dearest call within a sample, of those made as often as the job has workers."""
    workers = source.description.workers * (analysis.rank.world_size or 1)
    alike = [
        each for each in calls if each.depth and _ALIKE <= (each.per_sample or 0.0) / workers <= 1 / _ALIKE
    ]
    return max(alike, key=lambda each: each.count * each.ms_each, default=None)


def _asked(analysis: RankAnalysis, source: LoaderRun) -> tuple[bool | None, bool]:
    """Whether a worker of a loader looked at its number, and whether they have a worker_init_fn."""
    pids = {*distinct(source.deliveries["pid"]).tolist()}
    own = [each for each in analysis.rank.workers if each.pid in pids]
    started = [record for each in own for record in each.of_type(Worker)]
    if not started or not all(record.watched for record in started):
        return None, False
    return any(each.of_type(AskedNumber) for each in own), any(record.init for record in started)


def _read_whole(analysis: RankAnalysis, source: LoaderRun, io: Io | None) -> ReadByEach | None:
    """Find the files of which each worker read the same bytes in each pass, by any calls, and to its end."""
    pids = {str(pid) for pid in distinct(source.deliveries["pid"][source.deliveries.known("pid")]).tolist()}
    workers = source.description.workers
    read = [each for each in (io.files if io else []) if each.read_bytes and pids & each.by_worker.keys()]
    if not read or len(pids) < workers:
        return None
    own = [
        each
        for each in read
        if len(pids & each.by_worker.keys()) >= _ALIKE * len(pids)
        and _streamed_bytes(each, workers * max(1, source.epochs)) is not None
    ]
    share = sum(each.read_bytes or 0 for each in own) / sum(each.read_bytes or 0 for each in read)
    late = own and _until_late(analysis, source, {each.path for each in own})
    return ReadByEach(len(own), workers, share) if late else None


def _until_late(analysis: RankAnalysis, source: LoaderRun, paths: Set[str]) -> bool:
    """Whether a worker still read some files in the second half of its batches: no table that it looks up."""
    made = source.deliveries[source.deliveries.made]
    pids, counts = np.unique(made["pid"], return_counts=True)
    worker = next((each for each in analysis.rank.workers if each.pid == pids[counts.argmax()]), None)
    if worker is None:
        return False
    calls = analysis.session.calls_of(worker)
    files = [number for number, file in enumerate(calls.files) if analysis.session.paths.shown(file) in paths]
    own = made["prepared_ns"][made["pid"] == worker.pid]
    middle_ns = (int(own.min()) + int(own.max())) // 2
    return bool((np.isin(calls.file, files) & (calls.end_ns > middle_ns)).any())


def _by_cost(analysis: RankAnalysis, source: LoaderRun, io: Io | None) -> ReadByEach | None:
    """Find the files whose reading and decoding takes time in each worker."""
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
    files = distinct(costs.file[own])
    found = ReadByEach(len(files), workers, share)
    if not _until_late(analysis, source, {costs.names.paths[number] for number in files.tolist()}):
        found = ReadByEach(0, workers, 0.0)
    spent = np.bincount(costs.file, spent_ns)
    dearest = int(spent.argmax())
    shared = by_all[of_reading][costs.file == dearest].all()
    path = costs.names.paths[dearest] if shared else ""
    epochs = len(distinct(epoch))
    read = next((each for each in io.files if each.path == path), None) if io else None
    whole_bytes = None if read is None else _streamed_bytes(read, workers * epochs)
    if whole_bytes is None or not _until_late(analysis, source, {path}):
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
