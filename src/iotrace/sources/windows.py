"""The traces of torch.profiler that one process left: a window each, none counted twice."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from iotrace.errors import TraceError
from iotrace.sources.kineto import KinetoTrace, read_kineto


@dataclass(frozen=True)
class Windows:
    """Traces in order of time, what of them was lost, and the files that tell of the same time again."""

    traces: list[KinetoTrace]
    problems: list[str]
    repeated: list[str]


def read_windows(paths: Sequence[Path], near_ns: int) -> Windows:
    """Read the traces of a process that ran at `near_ns`; of two of the same time the larger one counts.

    A program may export one profile twice, or beside a window of the agent's.
    """
    found: list[KinetoTrace] = []
    problems: list[str] = []
    for path in paths:
        try:
            trace = read_kineto(path, near_ns)
        except TraceError as error:
            problems.append(str(error))
            continue
        problems += [f"{path.name} {problem}" for problem in trace.problems]
        if len(trace.events):
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
