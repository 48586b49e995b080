"""Steps of the primary loader: which are measured, how long they took, how much of them was wait."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from iotrace.analysis.batches import Delivery, LoaderRun
from iotrace.analysis.results import Excluded, Steps
from iotrace.sources.records import Process, TorchWindow


@dataclass(frozen=True)
class Step:
    """From one delivery to the next (`awaited`), or to the end of the epoch (`awaited` None)."""

    delivery: Delivery
    start_ns: int
    end_ns: int
    awaited: Delivery | None

    @property
    def duration_ns(self) -> int:
        return self.end_ns - self.start_ns

    @property
    def wait_ns(self) -> int:
        """The raw data wait in this step."""
        return self.awaited.wait_ns if self.awaited is not None else 0

    @property
    def exposed_ns(self) -> int | None:
        """The part of the wait in which the accelerator stood idle; None where it is not known."""
        if self.awaited is None:
            return 0
        exposed_ns = self.awaited.exposed_ns
        # The events enclose the wait, and the time to record them.
        return None if exposed_ns is None else max(0, min(exposed_ns, self.wait_ns))


def steps_of(loader: LoaderRun) -> list[Step]:
    """All closed steps, in order; a step whose loop was left has no end and is none."""
    return [
        Step(delivery, delivery.delivered_ns, delivery.step_end_ns, delivery.next)
        for delivery in loader.deliveries
        if delivery.step_end_ns is not None
    ]


def measured(
    steps: list[Step], workers: int, profiled_ns: Sequence[tuple[int, int | None]] = ()
) -> tuple[list[Step], Excluded]:
    """The steps that figures are made of, and what was left out.

    Left out are the very first step, those that await a worker's first batch of the run, and those that
    the intervals `profiled_ns` touch (an end of None: to the end of the run).
    """
    kept: list[Step] = []
    warmup = profiled = 0
    for step in steps[1:]:
        awaited = step.awaited
        if awaited is not None and awaited.epoch == steps[0].delivery.epoch and awaited.index < workers:
            warmup += 1
        elif any(
            start_ns < step.end_ns and (end_ns is None or step.start_ns < end_ns)
            for start_ns, end_ns in profiled_ns
        ):
            profiled += 1
        else:
            kept.append(step)
    return kept, Excluded(first=min(1, len(steps)), warmup=warmup, profiled=profiled)


def profiled_intervals(process: Process) -> list[tuple[int, int | None]]:
    """When a window of the torch profiler was open or being written; None where its end is not known.

    Profiling slows every step that it touches, so none of them is measured.
    """
    intervals: dict[int, tuple[int, int | None]] = {}
    for record in process.of_type(TorchWindow):
        start_ns = process.clock.real_one(record.mono_ns)
        end_ns = process.clock.real_one(record.mono_ns + record.duration_ns)
        first_ns = intervals[record.window][0] if record.window in intervals else start_ns
        # A warm-up that a fork ended may begin again: open once more.
        is_open = record.event in ("warmup", "active")
        intervals[record.window] = (first_ns, None if is_open else end_ns)
    return list(intervals.values())


def summarise(kept: list[Step], excluded: Excluded) -> Steps:
    """The steps' figures; all None where no step is measured."""
    if not kept:
        return Steps(
            count=0,
            excluded=excluded,
            mean_ms=None,
            p50_ms=None,
            p95_ms=None,
            per_second=None,
            samples_per_second=None,
        )
    durations_ms = np.array([step.duration_ns for step in kept]) / 1e6
    seconds = float(durations_ms.sum()) / 1e3
    samples = [step.delivery.samples for step in kept]
    known = [count for count in samples if count is not None]
    return Steps(
        count=len(kept),
        excluded=excluded,
        mean_ms=float(durations_ms.mean()),
        p50_ms=float(np.percentile(durations_ms, 50)),
        p95_ms=float(np.percentile(durations_ms, 95)),
        per_second=len(kept) / seconds if seconds else None,
        samples_per_second=sum(known) / seconds if seconds and len(known) == len(samples) else None,
    )
