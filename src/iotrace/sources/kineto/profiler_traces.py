"""The traces of torch.profiler that one process left: a window each, none counted twice.

Clocks of hosts that no datagram compared, by their collectives in traces of torch.profiler.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterator, Mapping, Sequence
from pathlib import Path

import msgspec
import numpy as np
from msgspec.structs import replace

from iotrace.errors import TraceError
from iotrace.sources.clocks.anchors import Clocks, link_by_exchanges
from iotrace.sources.clocks.session_clock import Clock, Recording
from iotrace.sources.kineto.kinds import step_of
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

    A program may export one profile twice, or during a window of the agent's. Where CLOCK_REALTIME was set
    during the run, `clock` brings the traces to the session's time; `recordings` are keyed by file name.
    """
    traces: list[KinetoTrace] = []
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
                    f"{path.name} was recorded while the clock of its host was set, or shortly before or "
                    "after: torch.profiler stretches its times over such a step"
                )
                continue
            trace = moved
        traces.append(trace)
    kept: list[tuple[int, int, KinetoTrace]] = []
    repeated: list[str] = []
    for trace in sorted(traces, key=lambda trace: -len(trace.events)):
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


# No rank ends one of these before every rank has begun it.
_TOGETHER = re.compile(r"all_?reduce|all_?gather|reduce_?scatter|all_?to_?all|barrier", re.IGNORECASE)
_ON_HOST = re.compile(r"(?:gloo|mpi|ucc):")
_FEWEST = 3
_KINETO_NS = 6_000  # to which torch.profiler's stamps agree with the host's clock


class Traced(msgspec.Struct, frozen=True):
    """A process that torch.profiler recorded: where its traces lie, when it began, and when they did."""

    domain: str
    traces: Sequence[Path]
    began_ns: int
    recordings: Mapping[str, Recording] = {}


def relate_by_collectives(clocks: Clocks, processes: Sequence[Traced]) -> None:
    """Relate the domains that nothing relates yet to the reference, through others where need be.

    A collective is an exchange: it ended here after it began there, and there after it began here. That
    bounds the offset from both sides, whoever came late.
    """
    traced = [each for each in processes if each.traces]
    waiting = {each.domain for each in traced} - {clocks.reference, *clocks.links}
    if not waiting:
        return
    spans: dict[str, dict[Hashable, tuple[int, int]]] = defaultdict(dict)
    for each in traced:
        own = spans[each.domain]
        clock = clocks.of_domain[each.domain]
        for trace in read_windows(each.traces, each.began_ns, clock, each.recordings).traces:
            for key, begin_ns, end_ns in _collectives(trace):
                begin, end = own.get(key, (begin_ns, end_ns))
                own[key] = max(begin, begin_ns), min(end, end_ns)
    related = [clocks.reference, *clocks.links]
    while related:
        known = related.pop(0)
        for domain in sorted(waiting):
            keys = spans[domain].keys() & spans[known].keys()
            rows = [
                (begin, their_end, their_begin, end)
                for (begin, end), (their_begin, their_end) in (
                    (spans[domain][key], spans[known][key]) for key in keys
                )
            ]
            times = clocks.of_domain[domain].own_span_ns
            link = link_by_exchanges(rows, *times) if len(rows) >= _FEWEST else None
            if link is None:
                continue
            above_ns = clocks.links[known].bound_ns if known in clocks.links else 0
            why = f"{len(rows)} collectives matched, the shortest of {(link.round_trip_ns or 0) / 2e6:.3g} ms"
            bound_ns = link.bound_ns + 2 * _KINETO_NS + above_ns
            clocks.relate(domain, msgspec.structs.replace(link, kind="inferred", why=why, bound_ns=bound_ns))
            moved = link.map.map_one
            spans[domain] = {key: (moved(begin), moved(end)) for key, (begin, end) in spans[domain].items()}
            related.append(domain)
            waiting.discard(domain)


def _collectives(trace: KinetoTrace) -> Iterator[tuple[Hashable, int, int]]:
    """Yield what names a collective on every rank, and its begin and end.

    Kernels are matched by their sequence number. Ranges of backends on the host have none: by step and order.
    """
    if trace.base_ns is None:
        return
    events = trace.events
    steps = sorted(
        (int(events.start_ns[row]), step)
        for number, name in enumerate(trace.names)
        if (step := step_of(name)) is not None
        for row in np.flatnonzero(events.name == number).tolist()
        if not trace.categories[events.category[row]].startswith("gpu")
    )
    starts = np.array([begin_ns for begin_ns, _ in steps], np.int64)
    orders: Counter[Hashable] = Counter()
    rows = np.flatnonzero(events.collective >= 0)
    for row in rows[np.argsort(events.start_ns[rows], kind="stable")].tolist():
        one, begin_ns = trace.collectives[events.collective[row]], int(events.start_ns[row])
        key: Hashable
        if not _TOGETHER.search(one.name):
            continue
        if one.sequence is not None and trace.categories[events.category[row]].lower() == "kernel":
            key = one.group, one.ranks, one.name, one.sequence
        elif _ON_HOST.match(trace.names[events.name[row]]) and len(starts) and begin_ns >= starts[0]:
            of = steps[int(np.searchsorted(starts, begin_ns, side="right")) - 1][1], one.name
            key = (*of, orders[of])
            orders[of] += 1
        else:
            continue
        yield key, begin_ns, begin_ns + int(events.duration_ns[row])
