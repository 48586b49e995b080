"""Records of the training loop: a delivered batch, a step, a loader with all of its batches."""

from __future__ import annotations

from collections import Counter

import msgspec

from iotrace.sources.records import IteratorStart

# The values of Lightning's RunningStage, and their names here; a loader of several is named by the first.
PHASES = {
    "train": "training",
    "validate": "validation",
    "test": "test",
    "predict": "predict",
    "sanity_check": "sanity check",
}


class Delivery(msgspec.Struct, frozen=True):
    """A batch that the consumer got, joined with its production; ns of the session's time, None: unknown.

    `number` is its index among the deliveries of its loader, `index` that among the batches of its epoch.
    `up_ns`: its worker asked for work for the first time. With ``num_workers=0`` the consumer takes the index
    when it asks (`taken_ns` is `wait_start_ns`) and has prepared the batch when its fetch ends. `inline_tid`
    is the consumer's thread where it made the batch in a source wrapped by `iotrace.batches`, else None.
    `exposed_ns` is how long the accelerator stood idle during the wait, by its own events.
    """

    loader: int
    number: int
    iterator: int
    epoch: int
    index: int
    wait_start_ns: int
    delivered_ns: int
    grad: bool = True
    followed_by_backward: bool = False
    phase: str | None = None
    worker: int | None = None
    pid: int | None = None
    up_ns: int | None = None
    taken_ns: int | None = None
    prepared_ns: int | None = None
    samples: int | None = None
    exposed_ns: int | None = None
    inline_tid: int | None = None

    @property
    def wait_ns(self) -> int:
        """How long the consumer was blocked."""
        return self.delivered_ns - self.wait_start_ns


class Step(msgspec.Struct, frozen=True):
    """From one delivery, or mark, to the next one; at the end of an epoch it awaits nothing.

    `delivery` is the batch that opens it, None of a marked step. `awaited` are the deliveries whose waits
    lie in it: the next batch's; of a marked step as many as the loop took.
    """

    delivery: Delivery | None
    start_ns: int
    end_ns: int
    awaited: tuple[Delivery, ...] = ()

    @property
    def duration_ns(self) -> int:
        return self.end_ns - self.start_ns

    @property
    def wait_ns(self) -> int:
        """The raw data wait in this step."""
        return sum(delivery.wait_ns for delivery in self.awaited)

    @property
    def exposed_ns(self) -> int | None:
        """The part of the wait in which the accelerator stood idle; None where it is not known."""
        total_ns = 0
        for delivery in self.awaited:
            if delivery.exposed_ns is None:
                return None
            # The events enclose the wait, and the time to record them.
            total_ns += max(0, min(delivery.exposed_ns, delivery.wait_ns))
        return total_ns

    @property
    def samples(self) -> int | None:
        """Samples of its batch; of a marked step, of those that it took; None where one is unknown."""
        batches = [self.delivery] if self.delivery is not None else self.awaited
        known = [batch.samples for batch in batches if batch.samples is not None]
        return sum(known) if batches and len(known) == len(batches) else None


class LoaderRun(msgspec.Struct, frozen=True):
    """One DataLoader (or wrapped source) of a rank, over all its epochs.

    `steps` are those that its deliveries open and whose end is known, in order.
    """

    number: int
    description: IteratorStart
    deliveries: list[Delivery]
    steps: list[Step] = []
    failures: list[str] = []
    epochs: int = 0

    @property
    def phases(self) -> dict[str, int]:
        """How many batches were delivered in each phase; empty where no trainer names any."""
        counts = Counter(PHASES.get(item.phase, item.phase) for item in self.deliveries if item.phase)
        ordered = [*PHASES.values(), *counts]
        return {phase: counts[phase] for phase in dict.fromkeys(ordered) if counts[phase]}

    @property
    def training(self) -> bool:
        """Whether its trainer says so; without one: iterated with grad on, backward passes follow."""
        return any(
            item.phase == "train" if item.phase else item.grad and item.followed_by_backward
            for item in self.deliveries
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


def primary_of(loaders: list[LoaderRun]) -> LoaderRun | None:
    """Choose the training loader with most batches; without one, the loader with most batches.

    Where `iotrace.batches` wraps something that iterates a DataLoader, the DataLoader knows more.
    """
    candidates = [loader for loader in loaders if loader.training] or loaders
    return max(
        candidates, key=lambda loader: (len(loader.deliveries), not loader.description.wrapped), default=None
    )
