"""The consumer's and the workers' records of each batch, joined, on CLOCK_REALTIME."""

from __future__ import annotations

from dataclasses import dataclass, field

from iotrace.sources.records import (
    Batch,
    Exposed,
    IteratorEnd,
    IteratorStart,
    Process,
    Produced,
    Worker,
    WorkerUp,
)
from iotrace.sources.session import Rank


@dataclass(slots=True)
class Delivery:
    """A batch that the consumer got, with every stage that is known; ns of CLOCK_REALTIME, None: unknown.

    With ``num_workers=0`` the consumer takes the index when it asks (`taken_ns` is `wait_start_ns`) and
    has prepared the batch when its fetch ends; `up_ns` and the queue's stages are None.
    `step_end_ns` is the next delivery or the end of the epoch; None where the loop was left.
    """

    loader: int
    iterator: int
    epoch: int
    index: int
    wait_start_ns: int
    delivered_ns: int
    grad: bool
    backward_count: int
    worker: int | None = None
    pid: int | None = None
    sent_ns: int | None = None
    up_ns: int | None = None
    taken_ns: int | None = None
    fetch_start_ns: int | None = None
    fetch_end_ns: int | None = None
    prepared_ns: int | None = None
    received_ns: int | None = None
    pinned_ns: int | None = None
    samples: int | None = None
    step_end_ns: int | None = None
    # How long the accelerator stood idle during the wait, by its own events.
    exposed_ns: int | None = None
    # The delivery whose wait ends this step; None at an epoch's end.
    next: Delivery | None = None
    followed_by_backward: bool = False

    @property
    def wait_ns(self) -> int:
        """How long the consumer was blocked."""
        return self.delivered_ns - self.wait_start_ns


@dataclass
class LoaderRun:
    """One DataLoader of a rank, over all its epochs."""

    number: int
    description: IteratorStart
    deliveries: list[Delivery] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    epochs: int = 0

    @property
    def training(self) -> bool:
        """Iterated with grad enabled, and a backward pass follows its batches."""
        return any(delivery.grad and delivery.followed_by_backward for delivery in self.deliveries)

    @property
    def kind(self) -> str:
        """``training``, ``evaluation`` (grad disabled) or ``other``."""
        if self.training:
            return "training"
        if self.deliveries and not any(delivery.grad for delivery in self.deliveries):
            return "evaluation"
        return "other"


def loaders_of(rank: Rank) -> list[LoaderRun]:
    """The rank's loaders in the order they were first iterated, every delivery joined with its production."""
    starts: dict[int, IteratorStart] = {}
    loaders: dict[int, LoaderRun] = {}
    produced = _produced(rank.workers)
    last: dict[tuple[int, int], Delivery] = {}
    clock = rank.main.clock
    exposed = {
        (record.iterator, record.epoch, record.index): record.exposed_ns
        for record in rank.main.of_type(Exposed)
    }
    for record in rank.main.records:
        if isinstance(record, IteratorStart):
            starts[record.iterator] = record
            loader = loaders.setdefault(record.loader, LoaderRun(record.loader, record))
            loader.epochs = max(loader.epochs, record.epoch + 1)
            loader.description = record
        elif isinstance(record, Batch) and record.iterator in starts:
            loader = loaders[starts[record.iterator].loader]
            delivery = _delivery(record, loader.number, rank.main)
            delivery.exposed_ns = exposed.get((record.iterator, record.epoch, record.index))
            if record.pid is not None:
                _join(delivery, produced.get((record.pid, record.generation, record.index)))
            loader.deliveries.append(delivery)
            before = last.get((record.iterator, record.epoch))
            if before is not None:
                before.step_end_ns, before.next = delivery.delivered_ns, delivery
                before.followed_by_backward = record.backward_count > before.backward_count
            last[(record.iterator, record.epoch)] = delivery
        elif isinstance(record, IteratorEnd) and record.iterator in starts:
            ended = last.get((record.iterator, record.epoch))
            if ended is not None:
                ended.followed_by_backward = record.backward_count > ended.backward_count
                if record.outcome == "exhausted" and ended.step_end_ns is None:
                    # The last call shuts the workers down; that belongs to no step.
                    ended.step_end_ns = clock.real_one(record.wait_start_ns)
            if record.outcome != "exhausted":
                loaders[starts[record.iterator].loader].failures.append(record.outcome)
    return list(loaders.values())


def primary_of(loaders: list[LoaderRun]) -> LoaderRun | None:
    """The training loader with most batches; without one, the loader with most batches."""
    candidates = [loader for loader in loaders if loader.training] or loaders
    return max(candidates, key=lambda loader: len(loader.deliveries), default=None)


@dataclass(frozen=True)
class _Production:
    process: Process
    up_ns: int | None
    record: Produced


def _produced(workers: list[Process]) -> dict[tuple[int, int, int], _Production]:
    found = {}
    for process in workers:
        up = next(iter(process.of_type(WorkerUp)), None)
        up_ns = process.clock.real_one(up.mono_ns) if up is not None else None
        for record in process.of_type(Produced):
            found[(process.pid, record.generation, record.index)] = _Production(process, up_ns, record)
    return found


def _delivery(record: Batch, loader: int, main: Process) -> Delivery:
    def real(mono_ns: int | None) -> int | None:
        return main.clock.real_one(mono_ns) if mono_ns else None

    delivery = Delivery(
        loader=loader,
        iterator=record.iterator,
        epoch=record.epoch,
        index=record.index,
        wait_start_ns=main.clock.real_one(record.wait_start_ns),
        delivered_ns=main.clock.real_one(record.delivered_ns),
        grad=record.grad,
        backward_count=record.backward_count,
        worker=record.worker,
        pid=record.pid,
        sent_ns=real(record.sent_ns),
        received_ns=real(record.received_ns),
        pinned_ns=real(record.pinned_ns),
        samples=record.samples,
    )
    if record.worker is None and record.fetch_end_ns:
        delivery.taken_ns = delivery.wait_start_ns
        delivery.fetch_start_ns = real(record.fetch_start_ns)
        delivery.prepared_ns = delivery.fetch_end_ns = real(record.fetch_end_ns)
    return delivery


def _join(delivery: Delivery, production: _Production | None) -> None:
    if production is None:
        return
    clock, record = production.process.clock, production.record
    delivery.up_ns = production.up_ns
    delivery.taken_ns = clock.real_one(record.taken_ns)
    delivery.prepared_ns = clock.real_one(record.prepared_ns)
    if record.fetch_start_ns and record.fetch_end_ns:
        delivery.fetch_start_ns = clock.real_one(record.fetch_start_ns)
        delivery.fetch_end_ns = clock.real_one(record.fetch_end_ns)
    delivery.samples = record.samples


def worker_number(process: Process) -> int | None:
    """The worker's number within its loader."""
    told = next(iter(process.of_type(Worker)), None)
    return told.worker if told is not None else None
