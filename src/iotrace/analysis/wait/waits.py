"""Why the consumer waited: each wait split into causes that sum to it exactly, and charged to files."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import msgspec
import numpy as np
from msgspec.structs import replace

from iotrace.analysis.intervals import Times, split_exactly
from iotrace.analysis.loop.deliveries import Delivery
from iotrace.analysis.wait.production import FILE_PARTS, PARTS, compose, compose_inline
from iotrace.sources.processes import Process
from iotrace.sources.session import Rank, Session

CAUSES = ("startup", "queued", "read", "decode", "transform", "collate", "transport", "unknown")

# How far ahead of the consumer workers are looked for: prefetch times workers is less in practice.
_FARTHEST = 256

_MAPS = frozenset({"mmap", "mmap64"})


_Composed = tuple[list[float], dict[str, list[float]]]  # what a production was made of: parts, files


class Explained(msgspec.Struct, frozen=True):
    """A delivery's wait by cause (ns, sums to the wait) and by file (`FILE_PARTS`, ns).

    `made`: what its whole production was made of, by `PARTS` and by file; None where that is not known.
    """

    delivery: Delivery
    causes: dict[str, int]
    files: dict[str, list[float]] = {}
    made: _Composed | None = None

    @property
    def cause(self) -> str:
        """The largest part."""
        return max(CAUSES, key=lambda name: self.causes[name])


def explain(
    session: Session,
    rank: Rank,
    deliveries: list[Delivery],
    inner: Sequence[Sequence[Explained]] = (),
    mapped_by: dict[int, list[str]] | None = None,
) -> list[Explained]:
    """Explain every delivery's wait, in the order given.

    `inner` has the waits that lie inside each, where a wrapped source asks other loaders. `mapped_by` keeps
    the mapped files of each process from one loader to the next.
    """
    mapped_by = {} if mapped_by is None else mapped_by
    inner = inner or [()] * len(deliveries)
    compositions: list[_Composed | None] = [None] * len(deliveries)
    by_pid = {process.pid: process for process in rank.processes}
    made_by: dict[tuple[int, int | None], list[_Window]] = defaultdict(list)
    for number, (delivery, within) in enumerate(zip(deliveries, inner, strict=True)):
        if delivery.taken_ns and delivery.prepared_ns:
            made_by[delivery.pid or rank.main.pid, delivery.inline_tid] += _windows(delivery, number, within)
    for (pid, tid), own in made_by.items():
        process = by_pid[pid]
        own.sort()
        starts, ends = np.array([window[:2] for window in own], dtype=np.int64).T
        spans = process.spans_between(int(starts[0]), int(ends.max()))
        near_start_ns, near_end_ns = int(starts[0]), int(ends.max())
        if len(spans):  # what a span holds counts, also where the span is longer than the windows
            near_start_ns = min(near_start_ns, int(spans["start_ns"].min()))
            near_end_ns = max(near_end_ns, int((spans["start_ns"] + spans["duration_ns"]).max()))
        calls = session.calls_of(process).between(near_start_ns, near_end_ns)
        near = replace(process, spans=spans)
        if tid is None:
            if process.pid not in mapped_by:
                mapped_by[process.pid] = _mapped_files(session, process)
            made = compose(near, calls, session.paths, starts, ends, mapped_by[process.pid])
        else:
            made = compose_inline(near, calls, session.paths, starts, ends, tid)
        for (_, _, number), parts, files in zip(own, made.parts.tolist(), made.files, strict=True):
            compositions[number] = _sum_up(compositions[number], parts, files)
    return [_explain(*each) for each in zip(deliveries, compositions, inner, strict=True)]


def hand_over(delivery: Delivery, taken: Explained) -> Explained:
    """Explain the wait for a batch that another thread handed over: `taken` is that thread's wait for it.

    What made the batch is that wait and what the thread did with the batch afterwards, which is unknown; the
    hand-over is charged pro rata to both.
    """
    after_ns = max(0, delivery.delivered_ns - taken.delivery.delivered_ns)
    weights = [float(taken.causes[cause]) for cause in CAUSES[:-1]]
    weights.append(float(taken.causes["unknown"] + after_ns))
    causes = dict(zip(CAUSES, split_exactly(delivery.wait_ns, weights), strict=True))
    causes["unknown"] += delivery.wait_ns - sum(causes.values())
    whole_ns = sum(weights)
    scale = delivery.wait_ns / whole_ns if whole_ns else 0.0
    return Explained(delivery, causes, _scaled(taken.files, scale))


_Window = tuple[int, int, int]  # start and end in ns; the number of the delivery that it makes


def _windows(delivery: Delivery, number: int, inner: Sequence[Explained]) -> list[_Window]:
    """Cut the production of a delivery into what lies outside the waits inside of it."""
    assert delivery.taken_ns is not None
    assert delivery.prepared_ns is not None
    windows, start_ns = [], delivery.taken_ns
    for wait in sorted(inner, key=lambda item: item.delivery.wait_start_ns):
        windows.append((start_ns, wait.delivery.wait_start_ns, number))
        start_ns = wait.delivery.delivered_ns
    return [*windows, (start_ns, max(start_ns, delivery.prepared_ns), number)]


def _sum_up(before: _Composed | None, parts: list[float], files: dict[str, list[float]]) -> _Composed:
    if before is None:
        return parts, files
    summed = dict(before[1])
    for path, costs in files.items():
        known = summed.get(path, [0.0] * len(FILE_PARTS))
        summed[path] = [one + other for one, other in zip(known, costs, strict=True)]
    return [one + other for one, other in zip(before[0], parts, strict=True)], summed


def _scaled(files: dict[str, list[float]], scale: float) -> dict[str, list[float]]:
    return {path: [cost * scale for cost in costs] for path, costs in files.items()}


def _mapped_files(session: Session, process: Process) -> list[str]:
    """The files that the process mapped, or that its parent had mapped when it was forked."""
    identity = process.identity
    mappers = [process]
    if identity.role == "forked":
        parents = (identity.ppid, identity.node)
        mappers += [other for other in session.processes if (other.pid, other.identity.node) == parents]
    files: set[str] = set()
    for mapper in mappers:
        calls = session.calls_of(mapper)
        maps = [number for number, name in enumerate(calls.names) if name in _MAPS]
        rows = np.isin(calls.name, maps)
        files.update(calls.files[number] for number in np.unique(calls.file[rows]).tolist())
    return sorted(files)


def _explain(delivery: Delivery, composed: _Composed | None, inner: Sequence[Explained]) -> Explained:
    causes = {cause: sum(wait.causes[cause] for wait in inner) for cause in CAUSES}
    if composed is None:
        causes["unknown"] += delivery.wait_ns - sum(causes.values())
        return Explained(delivery, causes)
    composition, files = composed
    startup, queued, production, transport = split_wait(delivery)
    production -= sum(causes.values())
    for name, part in (("startup", startup), ("queued", queued), ("transport", transport)):
        causes[name] += part
    split = split_exactly(production, composition)
    for name, part in zip(PARTS, split, strict=True):
        causes[name] += part
    causes["unknown"] += production - sum(split)
    whole = sum(composition)
    by_file = _scaled(files, production / whole if whole > 0 else 0.0)
    for wait in inner:
        _, by_file = _sum_up(([], by_file), [], wait.files)
    return Explained(delivery, causes, by_file, composed)


def split_wait(delivery: Delivery) -> tuple[int, int, int, int]:
    """A wait's parts before its worker was up, before it took the index, during and after production."""
    start, end = delivery.wait_start_ns, delivery.delivered_ns
    taken = start if delivery.taken_ns is None else delivery.taken_ns
    up = taken if delivery.up_ns is None else delivery.up_ns
    prepared = end if delivery.prepared_ns is None else delivery.prepared_ns
    up = min(max(up, start), end)
    taken = min(max(taken, up), end)
    prepared = min(max(prepared, taken), end)
    return up - start, taken - up, prepared - taken, end - prepared


def behind_ready_ns(deliveries: list[Delivery], waits: list[Explained]) -> int:
    """How long the consumer waited for batches to be made while a later one of the epoch lay ready.

    `deliveries` are the loader's, in the order of delivery. With ``in_order=False`` none of it is left.
    """
    if not waits:
        return 0
    never = np.iinfo(np.int64).max
    prepared = np.array([never if each.prepared_ns is None else each.prepared_ns for each in deliveries])
    passes = np.array([each.of_pass for each in deliveries], dtype=np.int64)
    # A run: consecutive batches of an epoch whose preparation is known; what lies behind one counts no more.
    same = (passes[1:] == passes[:-1]).all(axis=1) & (prepared[1:] < never)
    breaks = np.append(np.flatnonzero(~same) + 1, len(deliveries))
    number = np.array([item.delivery.number for item in waits])
    first = number + 1
    until = np.minimum(breaks[np.searchsorted(breaks, first)], first + _FARTHEST)
    earliest = _least_within(prepared, first, until)
    asked = np.array([item.delivery.wait_start_ns for item in waits])
    return sum(
        waits[position].delivery.wait_ns - waits[position].causes["transport"]
        for position in np.flatnonzero((first < until) & (earliest <= asked)).tolist()
    )


def _least_within(values: Times, first: Times, until: Times) -> Times:
    """Per range ``[first, until)``, of at most `_FARTHEST`: the least of `values`."""
    found = np.full(len(first), np.iinfo(np.int64).max)
    least, length = values, 1  # `least` covers `length` values from each on
    position = first.copy()
    left = np.maximum(until - first, 0)
    while length <= _FARTHEST and left.any():
        odd = (left & length) > 0
        found[odd] = np.minimum(found[odd], least[position[odd]])
        position[odd] += length
        left[odd] -= length
        doubled = least.copy()
        if length < len(least):
            doubled[:-length] = np.minimum(least[:-length], least[length:])
        least, length = doubled, 2 * length
    return found
