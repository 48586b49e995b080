"""What loaders gave to their consumer: a delivered batch, a pass, a loader with all of its batches."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import numpy.typing as npt

from iotrace.analysis.intervals import Times, grouped
from iotrace.analysis.table import NONE, Table
from iotrace.sources.columns import Columns
from iotrace.sources.records import IteratorStart

if TYPE_CHECKING:
    from typing_extensions import Self

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
# A library that asks for its batches within its step, and what the program can do to show the wait.
ASKS_WITHIN, ASK_OUTSIDE = "keras", "a loop of train_on_batch, or KERAS_BACKEND=jax, shows the wait"


class Delivery(msgspec.Struct, frozen=True):
    """A batch that the consumer got, joined with its production; ns of the session's time, None: unknown.

    `number` is its index among the deliveries of its loader, `index` that among the batches of its epoch.
    `sent_ns`: its index was sent to its worker. `up_ns`: that worker asked for work for the first time.
    With ``num_workers=0`` the consumer takes the index when it asks (`taken_ns` is `wait_start_ns`) and has
    prepared the batch when its fetch ends. `inline_tid` is the consumer's thread where it made the batch in a
    wrapped source, else None.
    `size_bytes` counts tensors and arrays that a worker put into it; `tensors` is how many, if many.
    `exposed_ns` is how long the accelerator stood idle during the wait, by its own events.
    `maker_tid` is the thread of a pool, in the consumer's process, that made it.
    `sampled_ns`: so long the consumer chose the samples of a batch during the wait: of a later one, which it
    sent to a worker, or of this one where there are none.
    `handed_over`: another thread took the batch; the wait is the training thread's, for that thread.
    `piped_bytes`: it is large, and came from another process by a pipe, pickled; `arrived_ns`: its bytes had.
    `given_bytes`: so large was its task, which was sent likewise.
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
    tensors: int | None = None
    exposed_ns: int | None = None
    inline_tid: int | None = None
    handed_over: bool = False
    maker_tid: int | None = None
    sampled_ns: int | None = None
    piped_bytes: int | None = None
    arrived_ns: int | None = None
    given_bytes: int | None = None

    @property
    def wait_ns(self) -> int:
        """How long the consumer was blocked."""
        return self.delivered_ns - self.wait_start_ns

    @property
    def of_pass(self) -> PassKey:
        """The pass over its loader that it belongs to."""
        return self.iterator, self.epoch


FIELDS = tuple(Delivery.__struct_fields__)
_NEVER_NONE = 7  # the first fields, and the truth values


class Deliveries(Table[Delivery]):
    """Deliveries as columns; a phase is the number of its name in `texts`."""

    def __init__(self, rows: Columns, texts: dict[int, str]) -> None:
        self.rows, self.texts = rows, texts

    @classmethod
    def joined(cls, parts: Iterable[Self]) -> Self:
        """Put tables one behind the other; phases are numbered alike in all of them."""
        parts = list(parts)
        if not parts:
            return cls(Columns(0, dict.fromkeys(FIELDS, 0)), {})
        return parts[0]._with(Columns.joined([part.rows for part in parts]))

    def _with(self, rows: Columns) -> Self:
        return type(self)(rows, self.texts)

    def changed(self, **columns: npt.ArrayLike) -> Self:
        """Return a copy with other columns."""
        return self._with(self.rows.changed(**columns))

    def _structs(self, rows: Columns) -> list[Delivery]:
        columns: list[list[Any]] = []
        for number, field in enumerate(FIELDS):
            column: list[Any] = rows[field].tolist()
            if field in ("grad", "followed_by_backward", "handed_over"):
                column = [bool(value) for value in column]
            elif field == "phase":
                column = [self.texts.get(value) for value in column]
            elif number >= _NEVER_NONE:
                column = [None if value == NONE else value for value in column]
            columns.append(column)
        return [Delivery(*values) for values in zip(*columns, strict=True)]

    @property
    def wait_ns(self) -> Times:
        """How long the consumer was blocked for each."""
        return np.asarray(self.rows["delivered_ns"] - self.rows["wait_start_ns"])

    @property
    def made(self) -> npt.NDArray[np.bool_]:
        """Mark those of which it is known when they were made."""
        return self.known("taken_ns", "prepared_ns")

    def maker(self, main_pid: int) -> Times:
        """The process that made each: a worker's pid, or `main_pid`."""
        pids = self.rows["pid"]
        return np.where((pids == NONE) | (pids == 0), main_pid, pids)

    @property
    def in_training(self) -> npt.NDArray[np.bool_]:
        """Mark those that the trainer calls training."""
        numbers = [number for number, text in self.texts.items() if text == "train"]
        return np.isin(self.rows["phase"], numbers)

    @property
    def may_train(self) -> npt.NDArray[np.bool_]:
        """Mark those that may be trained on: by the trainer, without one by the grad mode."""
        named = np.isin(self.rows["phase"], [number for number, text in self.texts.items() if text])
        return np.where(named, self.in_training, self.rows["grad"] != 0)


class Pass(msgspec.Struct, frozen=True):
    """One pass over a loader: from its iterator's making to its last delivery or its end.

    It was first asked at `asked_ns`. `exhausted_ns` is when the call that raised StopIteration began and
    ended; None where the pass was left. Thread `tid` made the iterator; None: unknown.
    """

    start_ns: int
    asked_ns: int
    end_ns: int
    batches: int
    phase: str | None
    exhausted_ns: Interval | None = None
    tid: int | None = None


class LoaderRun(msgspec.Struct, frozen=True):
    """A loader over all its epochs: a DataLoader, those that one line makes anew, or a wrapped source."""

    number: int
    description: IteratorStart
    deliveries: Deliveries
    passes: dict[PassKey, Pass] = {}
    failures: list[str] = []

    @property
    def waited_ns(self) -> int:
        """How long its consumer was blocked in all, but for the first batch."""
        return int(self.deliveries.wait_ns[1:].sum())

    @property
    def epochs(self) -> int:
        """How often it was iterated."""
        return len(self.passes)

    @property
    def epochs_ended(self) -> int:
        """How often it was iterated to its end."""
        return sum(each.exhausted_ns is not None for each in self.passes.values())

    @property
    def phases(self) -> dict[str, int]:
        """How many batches were delivered in each phase; empty where no trainer names any."""
        numbers, _, of = grouped(self.deliveries["phase"])
        counts: Counter[str] = Counter()
        for number, count in zip(numbers.tolist(), np.bincount(of).tolist(), strict=True):
            if phase := self.deliveries.texts.get(number):
                counts[PHASES.get(phase, phase)] += count
        return {name: counts[name] for name in dict.fromkeys([*PHASES.values(), *counts]) if name in counts}

    @property
    def training(self) -> bool:
        """Whether its trainer says so; without one: iterated with grad on, backward passes follow."""
        own = self.deliveries
        return bool((own.may_train & (own.in_training | (own["followed_by_backward"] != 0))).any())

    @property
    def kind(self) -> str:
        """``training``, another phase of Lightning's, ``evaluation`` (grad disabled) or ``other``."""
        if self.training:
            return "training"
        if self.phases:
            return next(iter(self.phases))
        if len(self.deliveries) and not self.deliveries["grad"].any():
            return "evaluation"
        return "other"
