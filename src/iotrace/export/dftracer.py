"""dftracer 2.x's format: one JSON object a line, for dftracer's own analysers.

Times are whole us of CLOCK_REALTIME. Lines with their hashes give the names of hosts and files, once.
POSIX calls that our recorder joined to a burst are one event, whose ``calls`` says how many they were. Those
that dftracer logged itself are not written: they are in its own files, in the session's ``posix`` directory.

What a session's processes did, as named events with the batch that they belong to.
"""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from isal import igzip

from iotrace.analysis.loop.deliveries import Deliveries
from iotrace.analysis.rank import RankAnalysis, SessionAnalysis
from iotrace.errors import IotraceError, replacing
from iotrace.session import names
from iotrace.session.reading import entries
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
    names.KIND_CALLBACK: "callback",
    names.KIND_REDUCTION: "reduction",
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


def make_events(analysis: SessionAnalysis) -> Iterator[ExportEvent]:
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
        yield from make_posix_events(session, session.calls)


def make_posix_events(session: Session, calls: PosixCalls) -> Iterator[ExportEvent]:
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


# As dftracer's logging of AI programs names them, where it has a name.
_CATEGORIES = {
    STEP: "pipeline",
    WAIT: "dataloader",
    BATCH: "dataloader",
    "item": "data",
    "collate": "data",
    "read path": "reader",
    "memory map": "reader",
    POSIX: "POSIX",
}
Args = dict[str, str | int]
_METADATA, _COMPLETE = 4, 1  # `ph`
_TRACER, _LIBC, _PYTHON = 1, 3, 6  # `type`
# Events that are written at a run's end: some 2 s, and 120 MB.
_MOST_AT_END = 500_000

_open: Any = igzip.open  # isal has no annotations
_encode = msgspec.json.Encoder().encode
_FASTEST = 0  # isal's levels are 0 to 3


def write_dftracer(analysis: SessionAnalysis, path: Path) -> dict[str, int]:
    """Write `path` whole or not at all, compressed if it ends in ``.gz``; returns events by kind."""
    if path.exists() and not path.is_file():
        raise IotraceError(f"{path} is no regular file", "name a file with -o FILE.pfw.gz")
    counts: Counter[str] = Counter()
    with replacing(path, "choose another path with -o") as made:
        opened = _open(made, "wb", _FASTEST) if path.suffix == ".gz" else made.open("wb")
        with opened as file:
            for line in _lines(make_events(analysis), counts):
                file.write(line + b"\n")
    return dict(counts)


def write_posix_logs(session: Session) -> None:
    """Write what our recorder kept as dftracer's preload would: a log for each process, in ``posix``.

    Left out where they are very many (``iotrace export`` writes them all), or where there is one already.

    Raises:
        OSError: they cannot be written.
    """
    directory = session.path / names.POSIX
    if session.posix_by != names.RECORDER or len(session.calls) > _MOST_AT_END:
        return
    if any(".pfw" in path.name for path in entries(directory)):
        return
    for (node, pid), calls in session.calls.by_process().items():
        path = directory / f"io-{pid}-{node}.pfw.gz"  # compressed: dftracer's tools read nothing else
        temporary = path.with_name(f".{path.name}")
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, names.FILE_MODE)
        with open(descriptor, "wb") as raw, _open(raw, "wb", _FASTEST) as file:
            file.writelines(line + b"\n" for line in _lines(make_posix_events(session, calls), Counter()))
        temporary.replace(path)


def _lines(events: Iterable[ExportEvent], counts: Counter[str]) -> Iterator[bytes]:
    named: set[tuple[str, str]] = set()
    settings: set[int] = set()
    for number, event in enumerate(events, start=1):
        host = _hash(event.node)
        thread = {"pid": event.pid, "tid": event.tid}
        if ("HH", host) not in named:
            named.add(("HH", host))
            yield _metadata("HH", thread, host, event.node, host)
        if event.pid not in settings:
            settings.add(event.pid)
            yield _metadata("CM", thread, host, "time_metric", "US")
        args: Args = {"hhash": host}
        if event.file:
            args["fhash"] = file = _hash(event.file)
            if ("FH", file) not in named:
                named.add(("FH", file))
                yield _metadata("FH", thread, host, event.file, file)
        known = {"epoch": event.epoch, "step": event.step, "size": event.size_bytes}
        known |= {"ret": event.result, "offset": event.offset, "calls": event.calls}
        args.update({key: value for key, value in known.items() if value is not None})
        counts[event.kind] += 1
        yield _encode(_line(number, event, args))


def _line(number: int, event: ExportEvent, args: Args) -> dict[str, str | int | Args]:
    start_us = event.start_ns // 1000
    return {
        "id": number,
        "name": event.name,
        "cat": _CATEGORIES.get(event.kind, event.kind),
        "type": _LIBC if event.kind == POSIX else _PYTHON,
        "pid": event.pid,
        "tid": event.tid,
        "ts": start_us,
        "dur": event.end_ns // 1000 - start_us,
        "ph": _COMPLETE,
        "args": args,
    }


def _metadata(kind: str, thread: dict[str, int], host: str, name: str, value: str) -> bytes:
    args = {"hhash": host, "name": name, "value": value}
    return _encode(
        {"name": kind, "cat": "dftracer", "type": _TRACER, **thread, "ph": _METADATA, "args": args}
    )


def _hash(text: str) -> str:
    return blake2b(text.encode(errors="surrogateescape"), digest_size=8).hexdigest()
