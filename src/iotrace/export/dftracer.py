"""dftracer 2.x's format: one JSON object a line, for dftracer's own analysers.

Times are whole us of CLOCK_REALTIME. Lines with their hashes give the names of hosts and files, once.
The POSIX calls are not written: they are in dftracer's own files, in the session's ``posix`` directory.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from hashlib import blake2b
from pathlib import Path
from typing import Any

import msgspec
from isal import igzip

from iotrace.analysis.rank import SessionAnalysis
from iotrace.errors import IotraceError, writing
from iotrace.export.events import BATCH, STEP, WAIT, ExportEvent, events_of

# As dftracer's logging of AI programs names them, where it has a name.
_CATEGORIES = {
    STEP: "pipeline",
    WAIT: "dataloader",
    BATCH: "dataloader",
    "item": "data",
    "collate": "data",
    "read path": "reader",
    "memory map": "reader",
}
Args = dict[str, str | int]
_METADATA, _COMPLETE = 4, 1  # `ph`
_TRACER, _PYTHON = 1, 6  # `type`

_open: Any = igzip.open  # isal has no annotations
_encode = msgspec.json.Encoder().encode
_FASTEST = 0  # isal's levels are 0 to 3


def write_dftracer(analysis: SessionAnalysis, path: Path) -> dict[str, int]:
    """Write `path` whole or not at all, compressed if it ends in ``.gz``; returns events by kind."""
    if path.exists() and not path.is_file():
        raise IotraceError(f"{path} is no regular file", "name a file with -o FILE.pfw.gz")
    counts: Counter[str] = Counter()
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    with writing(path, "choose another path with -o"):
        try:
            opened = _open(temporary, "wb", _FASTEST) if path.suffix == ".gz" else temporary.open("wb")
            with opened as file:
                for line in _lines(analysis, counts):
                    file.write(line + b"\n")
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)
    return dict(counts)


def _lines(analysis: SessionAnalysis, counts: Counter[str]) -> Iterator[bytes]:
    named: set[tuple[str, str]] = set()
    settings: set[int] = set()
    for number, event in enumerate(events_of(analysis), start=1):
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
        args.update({key: value for key, value in known.items() if value is not None})
        counts[event.kind] += 1
        yield _encode(_line(number, event, args))


def _line(number: int, event: ExportEvent, args: Args) -> dict[str, str | int | Args]:
    start_us = event.start_ns // 1000
    return {
        "id": number,
        "name": event.name,
        "cat": _CATEGORIES.get(event.kind, event.kind),
        "type": _PYTHON,
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
