"""The consumer's and the workers' records of each batch, joined, on CLOCK_REALTIME."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from dataclasses import dataclass, field

from iotrace.sources.processes import Process
from iotrace.sources.records import Batch, Exposed, IteratorEnd, IteratorStart, Produced, Worker, WorkerUp
from iotrace.sources.session import Rank

# The values of Lightning's RunningStage, as people say them; a loader of several is named by the first.
PHASES = {
    "train": "training",
    "validate": "validation",
    "test": "test",
    "predict": "predict",
    "sanity_check": "sanity check",
}
_NO_STEPS_OF_THEIRS = frozenset({"evaluation", *PHASES.values()} - {"training"})


@dataclass(slots=True)
class Delivery:
    """A batch that the consumer got, with every stage that is known; ns of CLOCK_REALTIME, None: unknown.

    With ``num_workers=0`` the consumer takes the index when it asks (`taken_ns` is `wait_start_ns`) and
    has prepared the batch when its fetch ends; `up_ns` and the queue's stages are None.
    `step_start_ns` is its own delivery; later where Lightning takes batches in advance, None where it was
    taken so and never worked on. `step_end_ns` is the next delivery, the end of the epoch or the beginning
    of a validation; None where the loop was left. `inline_tid` is the consumer's thread where it made the
    batch in a source wrapped by `iotrace.batches`, else None.
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
    step_start_ns: int | None = None
    step_end_ns: int | None = None
    # How long the accelerator stood idle during the wait, by its own events.
    exposed_ns: int | None = None
    # The delivery whose wait ends this step; None at an epoch's end.
    next: Delivery | None = None
    followed_by_backward: bool = False
    phase: str | None = None
    inline_tid: int | None = None

    def __post_init__(self) -> None:
        if self.step_start_ns is None:
            self.step_start_ns = self.delivered_ns

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
    asked_ns: list[int] = field(default_factory=list)

    @property
    def phases(self) -> dict[str, int]:
        """How many batches were delivered in each phase; empty where no trainer says."""
        told = Counter(
            PHASES.get(delivery.phase, delivery.phase) for delivery in self.deliveries if delivery.phase
        )
        ordered = [*PHASES.values(), *told]
        return {phase: told[phase] for phase in dict.fromkeys(ordered) if told[phase]}

    @property
    def training(self) -> bool:
        """Its trainer says so; without one: iterated with grad on, backward passes follow its batches."""
        return any(
            delivery.phase == "train" if delivery.phase else delivery.grad and delivery.followed_by_backward
            for delivery in self.deliveries
        )

    @property
    def kind(self) -> str:
        """``training``, another phase of Lightning's, ``evaluation`` (grad disabled) or ``other``."""
        if self.training:
            return "training"
        if self.phases:
            return next(iter(self.phases))
        if self.deliveries and not any(delivery.grad for delivery in self.deliveries):
            return "evaluation"
        return "other"


def loaders_of(rank: Rank) -> list[LoaderRun]:
    """The rank's loaders in the order they were first iterated, every delivery joined with its production."""
    starts: dict[int, IteratorStart] = {}
    loaders: dict[int, LoaderRun] = {}
    passes: set[tuple[int, int]] = set()
    ahead: dict[tuple[int, int], int] = {}
    exhausted_ns: dict[tuple[int, int], int] = {}
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
            # An epoch's number counts from the program's start, which may be before the session's.
            loader.epochs += (record.iterator, record.epoch) not in passes
            passes.add((record.iterator, record.epoch))
            loader.description = record
            loader.asked_ns.append(clock.real_one(record.mono_ns))
        elif isinstance(record, Batch) and record.iterator in starts:
            loader = loaders[starts[record.iterator].loader]
            delivery = _delivery(record, loader.number, rank.main)
            delivery.exposed_ns = exposed.get((record.iterator, record.epoch, record.index))
            if starts[record.iterator].wrapped:
                delivery.inline_tid = record.tid
            loader.asked_ns.append(delivery.wait_start_ns)
            if record.pid is not None:
                _join(delivery, produced.get((record.pid, record.generation, record.index)))
            loader.deliveries.append(delivery)
            ahead[(record.iterator, record.epoch)] = record.ahead
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
            if record.outcome == "exhausted":
                exhausted_ns[(record.iterator, record.epoch)] = clock.real_one(record.mono_ns)
            else:
                loaders[starts[record.iterator].loader].failures.append(record.outcome)
    for loader in loaders.values():
        for one, count in ahead.items():
            if count > 0:
                own = [item for item in loader.deliveries if (item.iterator, item.epoch) == one]
                _shift_steps(own, count, exhausted_ns.get(one))
    _end_steps_at_validation(list(loaders.values()))
    return list(loaders.values())


def _shift_steps(deliveries: list[Delivery], ahead: int, exhausted_ns: int | None) -> None:
    """Let each batch of a pass open the step that the batch `ahead` places later was taken for.

    Lightning's loop works on a batch when it has taken the following ones. The last ones' steps begin
    when the loader has said that there is no more.
    """
    steps = [(item.step_start_ns, item.step_end_ns, item.next) for item in deliveries]
    steps = [*steps[ahead:], (exhausted_ns, None, None)]
    for place, delivery in enumerate(deliveries):
        nothing = (None, None, None)
        step = steps[place] if place < len(steps) else nothing
        delivery.step_start_ns, delivery.step_end_ns, delivery.next = step


def _end_steps_at_validation(loaders: list[LoaderRun]) -> None:
    """End a training step where a loader of no training is first asked: what follows is no part of it.

    Lightning leaves an epoch without asking for the batch that is not there: its last step ends so, too.
    """
    others = [loader for loader in loaders if loader.kind in _NO_STEPS_OF_THEIRS]
    asked = sorted(time_ns for loader in others for time_ns in loader.asked_ns)
    for loader in loaders:
        if loader.kind in _NO_STEPS_OF_THEIRS:
            continue
        for place, delivery in enumerate(loader.deliveries):
            if delivery.step_start_ns is None:
                continue
            found = bisect_right(asked, delivery.step_start_ns)
            if found == len(asked):
                break
            end_ns = delivery.step_end_ns
            if end_ns is None:
                if delivery.phase is None:
                    continue  # a loop that was left: nobody knows when
                later = (item.step_start_ns for item in loader.deliveries[place + 1 :])
                end_ns = next((start_ns for start_ns in later if start_ns is not None), None)
            if end_ns is None or asked[found] < end_ns:
                delivery.step_end_ns, delivery.next = asked[found], None


def primary_of(loaders: list[LoaderRun]) -> LoaderRun | None:
    """The training loader with most batches; without one, the loader with most batches.

    Where `iotrace.batches` wraps something that iterates a DataLoader, the DataLoader knows more.
    """
    candidates = [loader for loader in loaders if loader.training] or loaders
    return max(
        candidates, key=lambda loader: (len(loader.deliveries), not loader.description.wrapped), default=None
    )


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
        phase=record.phase,
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
