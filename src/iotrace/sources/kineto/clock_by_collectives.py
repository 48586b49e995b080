"""Clocks of hosts that no datagram compared, by their collectives in traces of torch.profiler."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterator, Mapping, Sequence
from pathlib import Path

import msgspec
import numpy as np

from iotrace.sources.clocks.anchors import Clocks
from iotrace.sources.clocks.host_links import link_by_exchanges
from iotrace.sources.clocks.session_clock import Recording
from iotrace.sources.kineto.kinds import step_of
from iotrace.sources.kineto.profiler_traces import read_windows
from iotrace.sources.kineto.trace import KinetoTrace

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
    found: dict[str, dict[Hashable, tuple[int, int]]] = defaultdict(dict)
    for each in traced:
        own = found[each.domain]
        clock = clocks.of_domain[each.domain]
        for trace in read_windows(each.traces, each.began_ns, clock, each.recordings).traces:
            for key, begin_ns, end_ns in _collectives(trace):
                begin, end = own.get(key, (begin_ns, end_ns))
                own[key] = max(begin, begin_ns), min(end, end_ns)
    related = [clocks.reference, *clocks.links]
    while related:
        known = related.pop(0)
        for domain in sorted(waiting):
            keys = found[domain].keys() & found[known].keys()
            rows = [
                (begin, their_end, their_begin, end)
                for (begin, end), (their_begin, their_end) in (
                    (found[domain][key], found[known][key]) for key in keys
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
            found[domain] = {key: (moved(begin), moved(end)) for key, (begin, end) in found[domain].items()}
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
