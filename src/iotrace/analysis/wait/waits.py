"""Why the consumer waited: each wait split into causes that sum to it exactly, and charged to files."""

from __future__ import annotations

from collections import defaultdict

import msgspec
import numpy as np

from iotrace.analysis.intervals import split_exactly
from iotrace.analysis.loop.deliveries import Delivery
from iotrace.analysis.wait.production import PARTS, compose, compose_inline
from iotrace.sources.processes import Process
from iotrace.sources.session import Rank, Session

CAUSES = ("startup", "queued", "read", "decode", "transform", "collate", "transport", "unknown")

# How far ahead of the consumer workers are looked for: prefetch times workers is less in practice.
_FARTHEST = 256

_MAPS = frozenset({"mmap", "mmap64"})


_Composed = tuple[list[float], dict[str, list[float]]]  # what a production was made of: parts, files


class Explained(msgspec.Struct, frozen=True):
    """A delivery's wait by cause (ns, sums to the wait) and by file (``{path: [read, decode]}``, ns)."""

    delivery: Delivery
    causes: dict[str, int]
    files: dict[str, list[float]] = {}

    @property
    def cause(self) -> str:
        """The largest part."""
        return max(CAUSES, key=lambda name: self.causes[name])


def explain(session: Session, rank: Rank, deliveries: list[Delivery]) -> list[Explained]:
    """Explain every delivery's wait, in the order given."""
    compositions: list[_Composed | None] = [None] * len(deliveries)
    by_pid = {process.pid: process for process in rank.processes}
    made_by: dict[tuple[int, int | None], list[int]] = defaultdict(list)
    for number, delivery in enumerate(deliveries):
        if delivery.taken_ns and delivery.prepared_ns:
            made_by[(delivery.pid or rank.main.pid, delivery.inline_tid)].append(number)
    for (pid, tid), own in made_by.items():
        process = by_pid[pid]
        own.sort(key=lambda number: deliveries[number].taken_ns or 0)
        starts = np.array([deliveries[number].taken_ns for number in own], dtype=np.int64)
        ends = np.array([deliveries[number].prepared_ns for number in own], dtype=np.int64)
        calls = session.calls_of(process)
        if tid is None:
            mapped_files = _mapped_files(session, process)
            made = compose(process, calls, session.paths, starts, ends, mapped_files)
        else:
            made = compose_inline(process, calls, session.paths, starts, ends, tid)
        for number, parts, files in zip(own, made.parts.tolist(), made.files, strict=True):
            compositions[number] = parts, files
    return [_explain(*pair) for pair in zip(deliveries, compositions, strict=True)]


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


def _explain(delivery: Delivery, composed: _Composed | None) -> Explained:
    causes = dict.fromkeys(CAUSES, 0)
    if composed is None:
        causes["unknown"] = delivery.wait_ns
        return Explained(delivery, causes)
    composition, files = composed
    startup, queued, production, transport = split_wait(delivery)
    causes.update(startup=startup, queued=queued, transport=transport)
    split = split_exactly(production, composition)
    for name, part in zip(PARTS, split, strict=True):
        causes[name] += part
    causes["unknown"] += production - sum(split)
    whole = sum(composition)
    scale = production / whole if whole > 0 else 0.0
    by_file = {path: [read * scale, decode * scale] for path, (read, decode) in files.items()}
    return Explained(delivery, causes, by_file)


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
    total_ns = 0
    for item in waits:
        awaited = item.delivery
        for later in deliveries[awaited.number + 1 : awaited.number + 1 + _FARTHEST]:
            same_epoch = (later.iterator, later.epoch) == (awaited.iterator, awaited.epoch)
            if not same_epoch or later.prepared_ns is None:
                break
            if later.prepared_ns <= awaited.wait_start_ns:
                total_ns += awaited.wait_ns - item.causes["transport"]
                break
    return total_ns
