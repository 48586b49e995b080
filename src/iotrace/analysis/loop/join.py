"""Join the consumer's and the workers' records of each batch into loaders and deliveries."""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise
from typing import Any

import msgspec
from msgspec.structs import replace

from iotrace.analysis.loop.deliveries import Delivery, LoaderRun, Pass, PassKey
from iotrace.sources.processes import Process
from iotrace.sources.records import (
    BatchRecord,
    Exposed,
    IteratorEnd,
    IteratorStart,
    Produced,
    Round,
    WorkerUp,
)
from iotrace.sources.session import Rank


def loaders_of(rank: Rank) -> list[LoaderRun]:
    """Read the rank's loaders in the order they were first iterated.

    Loaders that one line makes anew, one after the other, with the same type of dataset, batch size,
    workers and kind, are one loader.
    """
    groups: list[list[LoaderRun]] = []
    alike: dict[Any, list[list[LoaderRun]]] = defaultdict(list)  # groups of one line and kind
    for loader in sorted(_as_recorded(rank), key=_began_ns):
        about = loader.description
        own = alike[tuple(getattr(about, name) for name in _OF_ONE_LOADER), loader.kind]
        home = next((group for group in own if _is_over(group[-1], loader)), None)
        if home is None or about.site is None:
            groups.append([loader])
            own.append(groups[-1])
        else:
            home.append(loader)
    return [_as_one(group) for group in groups]


_OF_ONE_LOADER = ("site", "dataset", "batch_size", "workers")


def _began_ns(loader: LoaderRun) -> int:
    return min(each.start_ns for each in loader.passes.values())


def _is_over(before: LoaderRun, loader: LoaderRun) -> bool:
    return max(each.end_ns for each in before.passes.values()) <= _began_ns(loader)


def _as_one(group: list[LoaderRun]) -> LoaderRun:
    if len(group) == 1:
        return group[0]
    number, epochs = group[0].number, 0
    deliveries: list[Delivery] = []
    passes: dict[PassKey, Pass] = {}
    for loader in group:
        for delivery in loader.deliveries:
            epoch, position = epochs + delivery.epoch, len(deliveries)
            deliveries.append(replace(delivery, loader=number, number=position, epoch=epoch))
        passes.update({(iterator, epochs + epoch): each for (iterator, epoch), each in loader.passes.items()})
        epochs = max(epoch for _, epoch in passes) + 1
    failures = [failure for loader in group for failure in loader.failures]
    return LoaderRun(number, group[-1].description, deliveries, passes, failures)


class _Draft(msgspec.Struct):
    """A loader while its records are read."""

    description: IteratorStart
    batches: list[BatchRecord] = []
    starts: dict[PassKey, IteratorStart] = {}
    ends: dict[PassKey, IteratorEnd] = {}
    # The backward passes until the next ask of the process, after the last batch of each pass.
    count_after: dict[PassKey, int] = {}


def _as_recorded(rank: Rank) -> list[LoaderRun]:
    """Read the loaders, each DataLoader object and wrapped source on its own."""
    drafts: dict[int, _Draft] = {}
    by_iterator: dict[int, _Draft] = {}
    last: tuple[_Draft, PassKey] | None = None
    for record in rank.main.records:
        if last is not None and isinstance(record, BatchRecord | IteratorEnd):
            last[0].count_after[last[1]] = record.backward_count
        elif last is not None and isinstance(record, Round) and record.what == "backward":
            last[0].count_after[last[1]] += 1
        if isinstance(record, IteratorStart):
            draft = by_iterator[record.iterator] = drafts.setdefault(record.loader, _Draft(record))
            draft.description = record
            draft.starts.setdefault((record.iterator, record.epoch), record)
        elif isinstance(record, BatchRecord) and record.iterator in by_iterator:
            record = _asked_again(record, by_iterator[record.iterator])
            last = by_iterator[record.iterator], (record.iterator, record.epoch)
            last[0].batches.append(record)
            last[0].count_after[last[1]] = record.backward_count
        elif isinstance(record, IteratorEnd) and record.iterator in by_iterator:
            by_iterator[record.iterator].ends[record.iterator, record.epoch] = record
    produced = _productions(rank.workers)
    exposed = {
        (record.iterator, record.epoch, record.index): record.exposed_ns
        for record in rank.main.of_type(Exposed)
    }
    return [_loader(number, draft, rank.main, produced, exposed) for number, draft in drafts.items()]


def _asked_again(record: BatchRecord, draft: _Draft) -> BatchRecord:
    """Begin the wait for a batch with the ask before, if that failed and nothing was trained in between."""
    failed = draft.ends.get((record.iterator, record.epoch))
    if failed is None or failed.outcome == "exhausted":
        return record
    if failed.tid != record.tid or failed.backward_count != record.backward_count:
        return record
    del draft.ends[record.iterator, record.epoch]
    return replace(record, wait_start_ns=failed.wait_start_ns)


# By a worker's pid, the loader's generation and the batch's index: when the worker first asked for work,
# took the index, and had prepared the batch, in ns; how many samples and bytes it holds.
_Productions = dict[tuple[int, int, int], tuple[int | None, int, int, int | None, int | None]]


def _productions(workers: list[Process]) -> _Productions:
    """Every batch as its worker recorded it."""
    found: _Productions = {}
    for process in workers:
        real = process.clock.to_session_ns
        up_ns = next((real(up.mono_ns) for up in process.of_type(WorkerUp)), None)
        for record in process.of_type(Produced):
            taken_ns, prepared_ns = real(record.taken_ns), real(record.prepared_ns)
            made = up_ns, taken_ns, prepared_ns, record.samples, record.bytes
            found[process.pid, record.generation, record.index] = made
    return found


def _loader(
    number: int,
    draft: _Draft,
    main: Process,
    produced: _Productions,
    exposed: dict[tuple[int, int, int], int],
) -> LoaderRun:
    by_pass: dict[PassKey, list[BatchRecord]] = defaultdict(list)
    for record in draft.batches:
        by_pass[record.iterator, record.epoch].append(record)
    deliveries = []
    for key, records in by_pass.items():
        end = draft.ends.get(key)
        counts = [record.backward_count for record in records]
        counts.append(end.backward_count if end is not None else draft.count_after[key])
        for record, (count, later) in zip(records, pairwise(counts), strict=True):
            deliveries.append(
                _delivery(number, record, main, produced, exposed, later > count, draft.description.wrapped)
            )
    deliveries.sort(key=lambda delivery: delivery.delivered_ns)
    deliveries = [replace(delivery, number=position) for position, delivery in enumerate(deliveries)]
    passes = {
        key: _pass(start, by_pass[key], draft.ends.get(key), main) for key, start in draft.starts.items()
    }
    failures = [end.outcome for end in draft.ends.values() if end.outcome != "exhausted"]
    return LoaderRun(number, draft.description, deliveries, passes, failures)


def _pass(start: IteratorStart, batches: list[BatchRecord], end: IteratorEnd | None, main: Process) -> Pass:
    real = main.clock.to_session_ns
    exhausted = None
    if end is not None and end.outcome == "exhausted":
        exhausted = real(end.wait_start_ns), real(end.mono_ns)
    last = max([start.mono_ns, *(batch.delivered_ns for batch in batches), *([end.mono_ns] if end else [])])
    phase = batches[0].phase if batches else start.phase
    first = batches[0].wait_start_ns if batches else start.mono_ns
    return Pass(real(start.mono_ns), real(first), real(last), len(batches), phase, exhausted)


def _delivery(
    loader: int,
    record: BatchRecord,
    main: Process,
    produced: _Productions,
    exposed: dict[tuple[int, int, int], int],
    followed_by_backward: bool,
    wrapped: bool,
) -> Delivery:
    real = main.clock.to_session_ns
    wait_start_ns, samples = real(record.wait_start_ns), record.samples
    up_ns = taken_ns = prepared_ns = size_bytes = None
    if record.worker is None and record.fetch_end_ns:
        taken_ns, prepared_ns = wait_start_ns, real(record.fetch_end_ns)
    if record.pid is not None:
        made = produced.get((record.pid, record.generation, record.index))
        if made is not None:
            up_ns, taken_ns, prepared_ns, samples, size_bytes = made
    return Delivery(
        loader=loader,
        number=0,
        iterator=record.iterator,
        epoch=record.epoch,
        index=record.index,
        tid=record.tid,
        wait_start_ns=wait_start_ns,
        delivered_ns=real(record.delivered_ns),
        grad=record.grad,
        followed_by_backward=followed_by_backward,
        phase=record.phase,
        worker=record.worker,
        pid=record.pid,
        sent_ns=None if record.sent_ns is None else real(record.sent_ns),
        up_ns=up_ns,
        taken_ns=taken_ns,
        prepared_ns=prepared_ns,
        samples=samples,
        size_bytes=size_bytes,
        exposed_ns=exposed.get((record.iterator, record.epoch, record.index)),
        inline_tid=record.tid if wrapped else None,
    )
