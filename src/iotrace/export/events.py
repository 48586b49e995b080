"""What a session's processes did, as named events with the batch that they belong to."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from iotrace.analysis.loop.deliveries import Deliveries
from iotrace.analysis.rank import RankAnalysis, SessionAnalysis
from iotrace.session import names
from iotrace.sources.posix_calls import COLUMNS, PosixCalls
from iotrace.sources.processes import Process
from iotrace.sources.session import Session

_Key = tuple[str, int, int]  # of a process: host, pid, start
STEP, WAIT, BATCH, POSIX = "step", "wait", "batch", "posix"
SPAN_KINDS = {
    names.KIND_ITEM: "item",
    names.KIND_COLLATE: "collate",
    names.KIND_READ_PATH: "read path",
    names.KIND_MAPPED: "memory map",
    names.KIND_REGION: "region",
    names.KIND_DFTRACER: "mark",
    names.KIND_PHASE: "phase",
    names.KIND_TRAINER: "trainer",
    names.KIND_CHECKPOINT: "checkpoint",
}


@dataclass(slots=True)
class ExportEvent:
    """``[start_ns, end_ns)`` of the session's time on a thread; None and empty where unknown."""

    kind: str
    name: str
    node: str
    pid: int
    tid: int
    start_ns: int
    end_ns: int
    epoch: int | None = None
    step: int | None = None
    """The index of the batch in its epoch."""
    file: str = ""
    size_bytes: int | None = None
    result: int | None = None
    offset: int | None = None
    calls: int | None = None
    """Of POSIX calls: what they returned, the place of the first, how many of them the event stands for."""


def events_of(analysis: SessionAnalysis) -> Iterator[ExportEvent]:
    """Yield every rank's steps, waits and batches; every process's spans; what our recorder kept of calls."""
    session = analysis.session
    produced: dict[_Key, list[Deliveries]] = defaultdict(list)
    for rank in analysis.ranks:
        yield from _rank_events(rank)
        for process in rank.rank.processes:
            produced[_key(process)].append(rank.produced_by(process.pid))
    for process in session.processes:
        made = Deliveries.joined(produced[_key(process)])
        made = made[np.argsort(made["taken_ns"], kind="stable")]
        yield from _span_events(session, process, made)
    if session.posix_by == names.RECORDER:
        yield from posix_events_of(session, session.calls)


def posix_events_of(session: Session, calls: PosixCalls) -> Iterator[ExportEvent]:
    """Yield the rows of `calls`, which are of `session`."""
    files = [session.paths.absolute(file) for file in calls.files]
    host = session.launches[0].manifest.host
    for start_ns, end_ns, pid, tid, name, file, result, offset, _, node, made in zip(
        *(getattr(calls, column).tolist() for column in COLUMNS), strict=True
    ):
        yield ExportEvent(
            POSIX,
            calls.names[name],
            calls.nodes[node] or host,
            pid,
            tid,
            start_ns,
            end_ns,
            file=files[file],
            result=result if result >= 0 else None,
            offset=offset if offset >= 0 else None,
            calls=made,
        )


def _key(process: Process) -> _Key:
    return process.identity.node, process.pid, process.began_ns


def _node(session: Session, process: Process) -> str:
    """The host's own name; sessions of one host may know it from the manifest alone."""
    return process.identity.node or session.launches[0].manifest.host


def _rank_events(analysis: RankAnalysis) -> Iterator[ExportEvent]:
    main = analysis.rank.main
    node, pid = _node(analysis.session, main), main.pid
    for number, step in enumerate(analysis.loop.steps):
        opened = step.delivery
        batch = (opened.epoch, opened.index) if opened is not None else (None, number)
        yield ExportEvent(STEP, "step", node, pid, pid, step.start_ns, step.end_ns, *batch)
    for loader in analysis.loaders:
        for item in loader.deliveries:
            yield ExportEvent(
                WAIT, "fetch", node, pid, pid, item.wait_start_ns, item.delivered_ns, item.epoch, item.index
            )
            if item.taken_ns is None or item.prepared_ns is None:
                continue
            maker = item.pid or pid
            yield ExportEvent(
                BATCH, "batch", node, maker, maker, item.taken_ns, item.prepared_ns, item.epoch, item.index
            )


def _span_events(session: Session, process: Process, made: Deliveries) -> Iterator[ExportEvent]:
    starts, owners = made["taken_ns"], list(made)
    for row in process.spans.tolist():
        start, duration, _, size_bytes, tid, name, file, kind, *_ = row
        last = int(np.searchsorted(starts, start, side="right")) - 1
        within = owners[last] if last >= 0 and start < (owners[last].prepared_ns or 0) else None
        yield ExportEvent(
            SPAN_KINDS.get(kind, "span"),
            process.texts.get(name, "?"),
            _node(session, process),
            process.pid,
            tid,
            start,
            start + duration,
            within.epoch if within else None,
            within.index if within else None,
            session.paths.absolute(process.texts[file]) if file in process.texts else "",
            size_bytes if size_bytes >= 0 else None,
        )
