"""The traces of torch.profiler that one process left: a window each, none counted twice."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec
from msgspec.structs import replace

from iotrace.errors import TraceError
from iotrace.sources.clocks.session_clock import Clock, Recording
from iotrace.sources.kineto.reader import read_kineto
from iotrace.sources.kineto.trace import KinetoTrace


class Windows(msgspec.Struct, frozen=True):
    """Traces in order of time, what of them was lost, and the files that repeat the time of another."""

    traces: list[KinetoTrace]
    problems: list[str]
    repeated: list[str]

    def outline(self) -> Windows:
        """Keep of each trace when it was recorded, and what was."""
        return replace(self, traces=[trace.outline() for trace in self.traces])


def read_windows(
    paths: Sequence[Path],
    near_ns: int,
    clock: Clock | None = None,
    recordings: Mapping[str, Recording] | None = None,
) -> Windows:
    """Read the traces of a process that ran at `near_ns`; of two of the same time the larger one counts.

    A program may export one profile twice, or beside a window of the agent's. Where CLOCK_REALTIME was set
    during the run, `clock` brings the traces to the session's time; `recordings` are keyed by file name.
    """
    found: list[KinetoTrace] = []
    problems: list[str] = []
    for path in paths:
        try:
            trace = read_kineto(path, near_ns)
        except TraceError as error:
            problems.append(str(error))
            continue
        problems += [f"{path.name}: {problem}" for problem in trace.problems]
        if not len(trace.events):
            continue
        if clock is not None and not clock.matches_realtime:
            moved = _steadied(trace, clock, (recordings or {}).get(path.name))
            if moved is None:
                problems.append(
                    f"{path.name} was recorded while the clock of its host was set, or right beside: "
                    "torch.profiler stretches its times over such a step"
                )
                continue
            trace = moved
        found.append(trace)
    kept: list[tuple[int, int, KinetoTrace]] = []
    repeated: list[str] = []
    for trace in sorted(found, key=lambda trace: -len(trace.events)):
        span = trace.span_ns()
        assert span is not None
        start_ns, end_ns = span
        if any(start_ns < other_end and other_start < end_ns for other_start, other_end, _ in kept):
            repeated.append(trace.path.name)
        else:
            kept.append((start_ns, end_ns, trace))
    return Windows([trace for _, _, trace in sorted(kept, key=lambda one: one[0])], problems, repeated)


def _steadied(trace: KinetoTrace, clock: Clock, recording: Recording | None) -> KinetoTrace | None:
    """The trace in the session's time; None where CLOCK_REALTIME was set while it was recorded.

    torch counts the processor's ticks, and reads CLOCK_REALTIME when a recording begins and when it ends:
    the line through the two gives all times of the trace. Without a step in between the trace is moved as a
    whole; with one every duration in it is wrong, by a factor.
    """
    span = trace.span_ns()
    if span is None or trace.base_ns is None:
        return trace
    own = clock.map_if_single_segment(*span, recording or Recording())
    if own is None:
        return None
    starts, durations = trace.events.start_ns, trace.events.duration_ns
    events = replace(trace.events, start_ns=own.times(starts), duration_ns=own.durations(starts, durations))
    flows = replace(trace.flows, time_ns=own.times(trace.flows.time_ns))
    return replace(trace, events=events, flows=flows)
