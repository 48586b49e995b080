"""Chrome JSON, as Perfetto imports it without loss.

Times are us with three decimals since `base_ns`: small numbers, so that a double holds every ns.
Processes and threads get dense numbers, flows ids; flows end on the enclosing slice.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
from isal import igzip

from iotrace.timeline.model import Flow, Slice, Timeline, identifiers
from iotrace.timeline.writers.chrome_json import opening
from iotrace.timeline.writers.lanes import lanes

_open: Any = igzip.open  # isal has no annotations
_encode = msgspec.json.Encoder().encode
_CHUNK = 4096
_FASTEST = 0  # isal's levels are 0 to 3


def write_chrome(timeline: Timeline, path: Path) -> int:
    """Write `timeline` to `path` (``.json.gz``), whole or not at all; returns how many slices."""
    temporary = path.with_name(f".{path.name}.partial")
    slices = 0
    try:
        with _open(temporary, "wb", compresslevel=_FASTEST) as file:
            file.write(opening(timeline.base_ns))
            chunk: list[bytes] = []
            separator = b""
            for event in _events(timeline):
                chunk.append(event)
                slices += event.startswith(b'{"ph":"X"')
                if len(chunk) >= _CHUNK:
                    file.write(separator + b",\n".join(chunk))
                    separator = b",\n"
                    chunk.clear()
            file.write((separator if chunk else b"") + b",\n".join(chunk) + b"\n]}\n")
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    return slices


def _events(timeline: Timeline) -> Iterator[bytes]:
    thread_ids = identifiers()
    threads: dict[Slice, tuple[int, int]] = {}  # pid and tid
    for pid, process in enumerate(timeline.processes, start=1):
        yield _metadata("process_name", pid, 0, {"name": process.name})
        yield _metadata("process_labels", pid, 0, {"labels": process.labels})
        yield _metadata("process_sort_index", pid, 0, {"sort_index": pid})
        for track in process.tracks:
            for number, lane in enumerate(lanes(track.slices)):
                tid = next(thread_ids)
                name = track.name if number == 0 else f"{track.name} +{number}"
                yield _metadata("thread_name", pid, tid, {"name": name})
                yield _metadata("thread_sort_index", pid, tid, {"sort_index": tid})
                for item in lane:
                    threads[item] = (pid, tid)
                    args = b',"args":' + _encode(item.args) if item.args else b""
                    yield (
                        b'{"ph":"X","pid":%d,"tid":%d,"ts":%b,"dur":%b,"name":%b,"cat":%b%b}'
                        % (
                            pid,
                            tid,
                            _us(item.start_ns - timeline.base_ns),
                            _us(item.end_ns - item.start_ns),
                            _encode(item.name),
                            _encode(item.category),
                            args,
                        )
                    )
        for counter in process.counters:
            for time_ns, value in counter.points:
                yield _encode(
                    {
                        "ph": "C",
                        "pid": pid,
                        "ts": msgspec.Raw(_us(time_ns - timeline.base_ns)),
                        "name": counter.name,
                        "args": {counter.unit: value},
                    }
                )
    for number, flow in enumerate(timeline.flows, start=1):
        yield from _flow(number, flow, timeline.base_ns, threads)


def _flow(number: int, flow: Flow, base_ns: int, threads: dict[Slice, tuple[int, int]]) -> Iterator[bytes]:
    last = len(flow.stops) - 1
    for position, (item, time_ns) in enumerate(flow.stops):
        pid, tid = threads[item]
        phase = "s" if position == 0 else "f" if position == last else "t"
        yield _encode(
            {
                "ph": phase,
                "id": number,
                "pid": pid,
                "tid": tid,
                "ts": msgspec.Raw(_us(time_ns - base_ns)),
                "name": flow.name,
                "cat": flow.category,
                "bp": "e",
            }
        )


def _metadata(name: str, pid: int, tid: int, args: dict[str, Any]) -> bytes:
    return _encode({"ph": "M", "pid": pid, "tid": tid, "name": name, "args": args})


def _us(time_ns: int) -> bytes:
    sign = b"-" if time_ns < 0 else b""
    whole, thousandths = divmod(abs(time_ns), 1000)
    return b"%b%d.%03d" % (sign, whole, thousandths)
