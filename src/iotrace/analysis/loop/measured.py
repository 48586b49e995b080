"""Which steps figures are made of, how long they took, how many samples they had."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from iotrace.analysis.intervals import Times
from iotrace.analysis.loop.step_table import Step, StepTable
from iotrace.analysis.resampling import Floats, interval_of, mean_ci, resampled_means
from iotrace.analysis.results import Excluded, Steps
from iotrace.analysis.table import NONE
from iotrace.session import names
from iotrace.sources.processes import Process
from iotrace.sources.records import CudaSnapshot, TorchProgram, TorchProgramTrace, TorchWindow

Interval = tuple[int, int | None]  # ns; an end of None: to the end of the run
_PREPARES = "_prepare_profiler"  # what torch's profilers call to begin their warm-up


def measured(
    steps: StepTable,
    workers: int,
    windows_ns: Sequence[Interval] = (),
    program_ns: Sequence[Interval] = (),
    first: Step | None = None,
) -> tuple[StepTable, Excluded]:
    """Choose the steps that figures are made of, and count what is left out.

    Left out are the very first step, those that await a worker's first batch of the run, and those that a
    profiler touched: iotrace's, in `windows_ns`, or the program's own, in `program_ns`. A program that
    profiles its whole loop always runs so: where no step is left otherwise, the latter are measured. `first`
    is the first step of the run, where it is none of `steps`.
    """
    kept, excluded = _untouched(steps, workers, [*windows_ns, *program_ns], first)
    return (kept, excluded) if len(kept) else _untouched(steps, workers, windows_ns, first)


def _untouched(
    steps: StepTable, workers: int, profiled_ns: Sequence[Interval], first: Step | None
) -> tuple[StepTable, Excluded]:
    later = steps if first is not None or not len(steps) else steps[1:]
    first = first or (steps[0] if len(steps) else None)
    opening = None if first is None else first.delivery or next(iter(first.awaited), None)
    starts, profiled = np.zeros(len(later), np.bool_), np.zeros(len(later), np.bool_)
    if opening is not None:
        awaited = later.awaited
        # A loader that the loop begins later is started anew: the loop pays for it.
        begun = [opening.loader, *(each.loader for each in first.awaited)] if first else []
        warm = (awaited["epoch"] == opening.epoch) & (awaited["index"] < workers)
        warm &= np.isin(awaited["loader"], begun)
        starts[later.awaited_by[warm]] = True
    for start_ns, end_ns in profiled_ns:
        until = np.ones(len(later), np.bool_) if end_ns is None else later["start_ns"] < end_ns
        profiled |= (later["end_ns"] > start_ns) & until
    return later[~(starts | profiled)], Excluded(
        first=int(first is not None),
        warmup=int(starts.sum()),
        profiled=int((profiled & ~starts).sum()),
    )


def profiled_intervals(process: Process) -> list[Interval]:
    """Find when the torch profiler or a snapshot of memory recorded or wrote; None where no end is known.

    Profiling slows every step that it touches, so none of them is measured.
    """
    intervals: dict[int, Interval] = {}
    for record in process.of_type(TorchWindow):
        start_ns = process.clock.to_session_ns(record.mono_ns)
        end_ns = process.clock.to_session_ns(record.mono_ns + record.duration_ns)
        first_ns = intervals[record.window][0] if record.window in intervals else start_ns
        # A warm-up that a fork ended may begin again: open once more.
        is_open = record.event in ("warmup", "active")
        intervals[record.window] = (first_ns, None if is_open else end_ns)
    recordings: list[Interval] = []
    for snapshot in process.of_type(CudaSnapshot):
        start_ns = process.clock.to_session_ns(snapshot.mono_ns)
        if snapshot.event == "started":
            recordings.append((start_ns, None))
        elif recordings:
            recordings[-1] = (recordings[-1][0], start_ns + snapshot.duration_ns)
    return [*intervals.values(), *recordings]


def untrained(process: Process) -> set[str]:
    """Name the traces of windows without a backward pass, of a process that trains: an evaluation's, say."""
    rounds = process.rows(names.ROUND_ROW)["mono_ns"]
    active: dict[int, TorchWindow] = {}
    ended: dict[int, TorchWindow] = {}
    found = set()
    for record in process.of_type(TorchWindow) if len(rounds) else ():
        if record.event in ("active", "end"):
            (active if record.event == "active" else ended)[record.window] = record
        elif record.event == "exported" and record.window in active and record.window in ended:
            start_ns, end_ns = active[record.window].mono_ns, ended[record.window].mono_ns
            if not ((rounds >= start_ns) & (rounds < end_ns)).any():
                found.add(record.path)
    return found


def program_intervals(process: Process) -> list[Interval]:
    """Find when the program's own torch profiler warmed up and recorded, and when exports ended."""
    records = [record for record in process.of_type(TorchProgramTrace) if record.path]
    copied = {record.path for record in records}
    spans = [
        span
        for trace in (process.windows.traces if copied else [])
        if trace.path.name in copied and trace.base_ns is not None and (span := trace.span_ns()) is not None
    ]
    prepared = [
        process.clock.to_session_ns(record.mono_ns)
        for record in process.of_type(TorchProgram)
        if _PREPARES in record.what
    ]
    intervals: list[Interval] = list(with_warm_up(spans, prepared))
    for record in process.of_type(TorchProgramTrace):
        # The copy is made at the end of the export, in the same step.
        start_ns = process.clock.to_session_ns(record.mono_ns)
        intervals.append((start_ns, start_ns + record.duration_ns))
    return intervals


def with_warm_up(spans: list[tuple[int, int]], prepared: list[int]) -> list[tuple[int, int]]:
    """Extend recorded `spans`, in order of time, to the last preparation before each that is its own."""
    found: list[tuple[int, int]] = []
    free_ns = 0
    for start_ns, end_ns in spans:
        own = [time_ns for time_ns in prepared if free_ns < time_ns <= start_ns]
        found.append((max(own, default=start_ns), end_ns))
        free_ns = end_ns
    return found


def summarise(
    durations_ns: Times,
    samples: Times,
    excluded: Excluded,
    begun: int | None,
    unknown_why: str = "",
    loop_ns: int | None = None,
) -> Steps:
    """Sum up measured steps by their lengths and samples (`NONE`: unknown); no mean without any."""
    why, loop_seconds = unknown_why or None, None if loop_ns is None else loop_ns / 1e9
    if not len(durations_ns):
        return Steps(count=0, begun=begun, unknown_why=why, excluded=excluded, loop_seconds=loop_seconds)
    durations_ms = durations_ns / 1e6
    seconds = float(durations_ms.sum()) / 1e3
    known = samples[samples != NONE]
    interval = mean_ci(durations_ms)
    shortest_ms = float(durations_ms.min())
    drift_percent, drift_interval = _drift(durations_ms)
    return Steps(
        count=len(durations_ms),
        begun=begun,
        unknown_why=why,
        excluded=excluded,
        mean_ms=float(durations_ms.mean()),
        # Widened for their small number, few steps of much spread would reach below the shortest.
        mean_ci95_ms=None if interval is None else [max(interval.low, shortest_ms), interval.high],
        drift_pct=drift_percent,
        drift_ci95_pct=drift_interval,
        p50_ms=float(np.percentile(durations_ms, 50)),
        p95_ms=float(np.percentile(durations_ms, 95)),
        per_second=len(durations_ms) / seconds if seconds else None,
        samples_per_second=int(known.sum()) / seconds
        if seconds and len(known) == len(durations_ms)
        else None,
        loop_seconds=loop_seconds,
    )


def _drift(durations_ms: Floats) -> tuple[float | None, list[float] | None]:
    """Find by how many percent the second half of the steps is longer than the first, and its interval."""
    half = len(durations_ms) // 2
    first, second = durations_ms[:half], durations_ms[-half:]
    before, after = resampled_means(first, seed=1), resampled_means(second, seed=2)
    if before is None or after is None or before.min() <= 0:
        return None, None
    return 100 * float(second.mean() / first.mean() - 1), list(interval_of(100 * (after / before - 1)))
