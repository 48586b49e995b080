"""Join the consumer's and the workers' records of each batch into loaders, deliveries and steps."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Sequence
from itertools import pairwise, zip_longest

import msgspec
from msgspec.structs import replace

from iotrace.analysis.loop.deliveries import PHASES, Delivery, LoaderRun, Step
from iotrace.sources.processes import Process
from iotrace.sources.records import BatchRecord, Exposed, IteratorEnd, IteratorStart, Produced, WorkerUp
from iotrace.sources.session import Rank

_NO_STEPS_OF_THEIRS = frozenset({"evaluation", *PHASES.values()} - {"training"})

# A step's start and end, and the number of the delivery that it awaits. It starts with its own delivery, or
# later where Lightning takes batches in advance (None: the batch was never worked on). It ends with the next
# delivery, the end of the epoch or the beginning of a validation; None where the loop was left.
_StepBounds = tuple[int | None, int | None, int | None]
# By a worker's pid, the loader's generation and the batch's index: when the worker first asked for work,
# took the index, and had prepared the batch, in ns; how many samples it holds.
_Productions = dict[tuple[int, int, int], tuple[int | None, int, int, int | None]]


class _Pass(msgspec.Struct):
    """One epoch of an iterator: the numbers of its deliveries, and what ended it behind the last of them."""

    numbers: list[int] = []
    ends: list[IteratorEnd] = []

    @property
    def exhausted(self) -> list[IteratorEnd]:
        return [end for end in self.ends if end.outcome == "exhausted"]


class _LoaderRecords(msgspec.Struct):
    """The records of a loader. `asked_ns` are the times at which it was asked for something."""

    description: IteratorStart
    batches: list[BatchRecord] = []
    passes: dict[tuple[int, int], _Pass] = msgspec.field(default_factory=lambda: defaultdict(_Pass))
    epochs: set[tuple[int, int]] = set()
    failures: list[str] = []
    asked_ns: list[int] = []

    def followed_by_backward(self) -> set[int]:
        """Find the numbers of the deliveries after which a backward pass was counted."""
        found = set()
        for one in self.passes.values():
            after = [(number, self.batches[later].backward_count) for number, later in pairwise(one.numbers)]
            after += [(number, end.backward_count) for number in one.numbers[-1:] for end in one.ends]
            found |= {number for number, count in after if count > self.batches[number].backward_count}
        return found


def loaders_of(rank: Rank) -> list[LoaderRun]:
    """Read the rank's loaders in the order they were first iterated, with their steps."""
    produced = _productions(rank.workers)
    exposed = {
        (record.iterator, record.epoch, record.index): record.exposed_ns
        for record in rank.main.of_type(Exposed)
    }
    loaders = _read(rank.main)
    runs = []
    for number, loader in loaders.items():
        deliveries = _deliveries(number, loader, rank.main, produced, exposed)
        steps: list[Step] = []
        runs.append(
            LoaderRun(number, loader.description, deliveries, steps, loader.failures, len(loader.epochs))
        )
    without_steps = [run.number for run in runs if run.kind in _NO_STEPS_OF_THEIRS]
    asked_ns = sorted(time_ns for number in without_steps for time_ns in loaders[number].asked_ns)
    found = []
    for run in runs:
        bounds = _step_bounds(loaders[run.number], rank.main)
        if run.number not in without_steps:
            _end_at_validation(bounds, loaders[run.number].batches, asked_ns)
        found.append(replace(run, steps=_steps(run.deliveries, bounds)))
    return found


def _read(main: Process) -> dict[int, _LoaderRecords]:
    """Sort the consumer's records by loader."""
    loaders: dict[int, _LoaderRecords] = {}
    of_iterator: dict[int, _LoaderRecords] = {}
    to_session_ns = main.clock.to_session_ns
    for record in main.records:
        if isinstance(record, IteratorStart):
            loader = loaders.setdefault(record.loader, _LoaderRecords(record))
            of_iterator[record.iterator] = loader
            # An epoch's number counts from the program's start, which may be before the session's.
            loader.epochs.add((record.iterator, record.epoch))
            loader.description = record
            loader.asked_ns.append(to_session_ns(record.mono_ns))
        elif isinstance(record, BatchRecord) and record.iterator in of_iterator:
            loader = of_iterator[record.iterator]
            one = loader.passes[record.iterator, record.epoch]
            one.numbers.append(len(loader.batches))
            one.ends.clear()
            loader.batches.append(record)
            loader.asked_ns.append(to_session_ns(record.wait_start_ns))
        elif isinstance(record, IteratorEnd) and record.iterator in of_iterator:
            loader = of_iterator[record.iterator]
            loader.passes[record.iterator, record.epoch].ends.append(record)
            if record.outcome != "exhausted":
                loader.failures.append(record.outcome)
    return loaders


def _step_bounds(loader: _LoaderRecords, main: Process) -> dict[int, _StepBounds]:
    """Find the bounds of the steps that the deliveries of a loader open, by their numbers.

    Lightning's loop works on a batch when it has taken the following ones: each batch opens the step that
    the batch `ahead` positions later was taken for. The last ones' steps begin when the loader has said that
    there is no more.
    """
    to_session_ns = main.clock.to_session_ns
    found: dict[int, _StepBounds] = {}
    for one in loader.passes.values():
        if not one.numbers:
            continue
        starts = [to_session_ns(loader.batches[number].delivered_ns) for number in one.numbers]
        # The last call shuts the workers down; that belongs to no step.
        last_ns = [to_session_ns(end.wait_start_ns) for end in one.exhausted[:1]]
        bounds: list[_StepBounds] = list(zip_longest(starts, starts[1:] + last_ns, one.numbers[1:]))
        ahead = loader.batches[one.numbers[-1]].ahead
        if ahead > 0:
            exhausted_ns = [to_session_ns(end.mono_ns) for end in one.exhausted[-1:]]
            bounds = [*bounds[ahead:], *((time_ns, None, None) for time_ns in exhausted_ns)]
        found.update(dict.fromkeys(one.numbers, (None, None, None)))
        found.update(zip(one.numbers, bounds, strict=False))
    return dict(sorted(found.items()))


def _end_at_validation(
    bounds: dict[int, _StepBounds], batches: Sequence[BatchRecord], asked_ns: Sequence[int]
) -> None:
    """End a training step where a loader of no training is first asked: what follows is no part of it.

    Lightning leaves an epoch without asking for the batch that is not there: its last step ends so, too.
    """
    for number, (start_ns, end_ns, _) in bounds.items():
        if start_ns is None:
            continue
        found = bisect_right(asked_ns, start_ns)
        if found == len(asked_ns):
            break
        if end_ns is None:
            if batches[number].phase is None:
                continue  # a loop that was left: nobody knows when
            later = (bounds[other][0] for other in range(number + 1, len(batches)))
            end_ns = next((time_ns for time_ns in later if time_ns is not None), None)
        if end_ns is None or asked_ns[found] < end_ns:
            bounds[number] = start_ns, asked_ns[found], None


def _steps(deliveries: list[Delivery], bounds: dict[int, _StepBounds]) -> list[Step]:
    """List the closed steps, in order; a step whose loop was left has no end and is none."""
    return [
        Step(deliveries[number], start_ns, end_ns, () if awaited is None else (deliveries[awaited],))
        for number, (start_ns, end_ns, awaited) in bounds.items()
        if start_ns is not None and end_ns is not None
    ]


def _productions(workers: list[Process]) -> _Productions:
    """Every batch as its worker recorded it."""
    found: _Productions = {}
    for process in workers:
        real = process.clock.to_session_ns
        up_ns = next((real(up.mono_ns) for up in process.of_type(WorkerUp)), None)
        for record in process.of_type(Produced):
            made = up_ns, real(record.taken_ns), real(record.prepared_ns), record.samples
            found[process.pid, record.generation, record.index] = made
    return found


def _deliveries(
    loader: int,
    records: _LoaderRecords,
    main: Process,
    produced: _Productions,
    exposed: dict[tuple[int, int, int], int],
) -> list[Delivery]:
    real, followed = main.clock.to_session_ns, records.followed_by_backward()
    found = []
    for number, record in enumerate(records.batches):
        wait_start_ns, samples = real(record.wait_start_ns), record.samples
        up_ns = taken_ns = prepared_ns = None
        if record.worker is None and record.fetch_end_ns:
            taken_ns, prepared_ns = wait_start_ns, real(record.fetch_end_ns)
        if record.pid is not None:
            made = produced.get((record.pid, record.generation, record.index))
            if made is not None:
                up_ns, taken_ns, prepared_ns, samples = made
        found.append(
            Delivery(
                loader=loader,
                number=number,
                iterator=record.iterator,
                epoch=record.epoch,
                index=record.index,
                wait_start_ns=wait_start_ns,
                delivered_ns=real(record.delivered_ns),
                grad=record.grad,
                followed_by_backward=number in followed,
                phase=record.phase,
                worker=record.worker,
                pid=record.pid,
                up_ns=up_ns,
                taken_ns=taken_ns,
                prepared_ns=prepared_ns,
                samples=samples,
                exposed_ns=exposed.get((record.iterator, record.epoch, record.index)),
                inline_tid=record.tid if records.description.wrapped else None,
            )
        )
    return found
