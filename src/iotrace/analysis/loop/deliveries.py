"""Records of the training loop: a delivered batch, a step, a loader with all of its batches."""

from __future__ import annotations

from collections import Counter

import msgspec

from iotrace.sources.records import IteratorStart

Interval = tuple[int, int]  # ns, half-open
PassKey = tuple[int, int]  # an iterator and its epoch

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
    `sent_ns`: its index was sent to its worker. `up_ns`: that worker asked for work for the first time.
    With ``num_workers=0`` the consumer takes the index when it asks (`taken_ns` is `wait_start_ns`) and has
    prepared the batch when its fetch ends. `inline_tid` is the consumer's thread where it made the batch in a
    wrapped source, else None.
    `size_bytes` counts tensors and arrays that a worker put into it.
    `exposed_ns` is how long the accelerator stood idle during the wait, by its own events.
    `handed_over`: another thread took the batch; the wait is the training thread's, for that thread.
    """

    loader: int
    number: int
    iterator: int
    epoch: int
    index: int
    wait_start_ns: int
    delivered_ns: int
    tid: int = 0
    grad: bool = True
    followed_by_backward: bool = False
    phase: str | None = None
    worker: int | None = None
    pid: int | None = None
    sent_ns: int | None = None
    up_ns: int | None = None
    taken_ns: int | None = None
    prepared_ns: int | None = None
    samples: int | None = None
    size_bytes: int | None = None
    exposed_ns: int | None = None
    inline_tid: int | None = None
    handed_over: bool = False

    @property
    def wait_ns(self) -> int:
        """How long the consumer was blocked."""
        return self.delivered_ns - self.wait_start_ns

    @property
    def of_pass(self) -> PassKey:
        """The pass over its loader that it belongs to."""
        return self.iterator, self.epoch


class Step(msgspec.Struct, frozen=True):
    """From one cut or mark to the next, less the evaluation passes `evaluation_ns` (disjoint, inside it).

    `delivery` is the batch that opens it; None of a marked step, and where rounds of training cut.
    `awaited` are the deliveries whose waits lie in it, of all loaders that the loop asks; `samples` those of
    all batches delivered in it, None where one is unknown.
    """

    delivery: Delivery | None
    start_ns: int
    end_ns: int
    awaited: tuple[Delivery, ...] = ()
    evaluation_ns: tuple[Interval, ...] = ()
    samples: int | None = None

    @property
    def duration_ns(self) -> int:
        whole_ns = self.end_ns - self.start_ns
        if not self.evaluation_ns:
            return whole_ns
        return whole_ns - sum(end_ns - start_ns for start_ns, end_ns in self.evaluation_ns)

    @property
    def pieces(self) -> list[Interval]:
        """The step without its evaluation passes."""
        if not self.evaluation_ns:
            return [(self.start_ns, self.end_ns)] if self.start_ns < self.end_ns else []
        bounds = [
            self.start_ns,
            *(bound for interval in self.evaluation_ns for bound in interval),
            self.end_ns,
        ]
        return [pair for pair in zip(bounds[::2], bounds[1::2], strict=True) if pair[0] < pair[1]]

    @property
    def wait_ns(self) -> int:
        """The raw data wait in this step."""
        if len(self.awaited) == 1:
            return self.awaited[0].delivered_ns - self.awaited[0].wait_start_ns
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


class Pass(msgspec.Struct, frozen=True):
    """One pass over a loader: from its iterator's making to its last delivery or its end.

    It was first asked at `asked_ns`. `exhausted_ns` is when the call that raised StopIteration began and
    ended; None where the pass was left.
    """

    start_ns: int
    asked_ns: int
    end_ns: int
    batches: int
    phase: str | None
    exhausted_ns: Interval | None = None


class LoaderRun(msgspec.Struct, frozen=True):
    """A loader over all its epochs: a DataLoader, those that one line makes anew, or a wrapped source."""

    number: int
    description: IteratorStart
    deliveries: list[Delivery]
    passes: dict[PassKey, Pass] = {}
    failures: list[str] = []

    @property
    def epochs(self) -> int:
        """How often it was iterated."""
        return len(self.passes)

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
