"""An XSpace as torch.profiler's JSON: its planes, lines and events in Kineto's categories and arguments.

What XLA's own sources name (xplane_schema.cc, cupti_collector.cc): host threads, calls of a driver, streams
of a GPU, operations of a TPU. Other rows of a device become annotations, which no figure counts.
"""

from __future__ import annotations

import json
import mmap
import re
from collections.abc import Iterator
from functools import lru_cache
from typing import BinaryIO

from iotrace.sources.xplane.planes import Event, Line, Plane, Space, Stats

_BLOCK_CHARS = 1 << 21
_YEAR_2000_NS = 946_684_800 * 10**9
_FARTHEST_NS = 1 << 61
_UNNUMBERED_PID = 63  # of a host whose process the file does not name: no process of a session has it
_DEVICE = re.compile(r"/device:(GPU|TPU):(\d{1,4})$")
_DRIVERS = ("/host:CUPTI", "/host:ROCTRACER")
_PYTHON = re.compile(r"\$(\S+?):(\d+) (.*)", re.DOTALL)
_COPY = re.compile(r"kind_src:(\S+) kind_dst:(\S+) size:(\d+)")
_OF_HOST = ("pageable", "pinned")
_FILLED = re.compile(r"num_bytes:(\d+)")
_LAUNCHED = re.compile(r"grid:(\d+),(\d+),(\d+) block:(\d+),(\d+),(\d+)")
_ALLOCATIONS = ("memalloc_details", "MemFree_details", "MemoryResidency_details")
_STARTED = "profile_start_time"


def translate(file: BinaryIO, problems: list[str]) -> Iterator[bytes]:
    """Yield the JSON of the XSpace in `file` in pieces; `problems` gets a sentence where it is damaged."""
    with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        space = Space(data)  # type: ignore[arg-type]
        translation = _Translation(space)
        held, size = [translation.opening()], 0
        for text in translation.events():
            held.append(text)
            size += len(text)
            if size > _BLOCK_CHARS:
                yield "".join(held).encode(errors="replace")
                held, size = [], 0
        held.append(translation.closing())
        yield "".join(held).encode(errors="replace")
        if space.damaged_at is not None:
            problems.append(f"it is damaged or cut near byte {space.damaged_at}: events are missing")
        if translation.left_out:
            problems.append(f"{translation.left_out} events were left out: their times are no times")


class _Translation:
    """Names threads by small numbers, the same ones in all planes: CUPTI's calls lie in their thread."""

    def __init__(self, space: Space) -> None:
        self._space = space
        self._threads: dict[tuple[str, int], int] = {}
        self.left_out = 0
        started = [plane.stats[_STARTED] for plane in space.planes if _STARTED in plane.stats]
        self._base_ns = next((int(at) for at in started if isinstance(at, int)), None)
        if self._base_ns is None:
            starts = [
                line.start_ns for plane in space.planes for line in space.lines(plane) if line.has_events
            ]
            first_ns = min(starts, default=0)
            self._base_ns = first_ns if first_ns > _YEAR_2000_NS else None
        pids = [plane.stats["process_id"] for plane in space.planes if "process_id" in plane.stats]
        self._pid = next((pid for pid in pids if isinstance(pid, int) and pid > 0), _UNNUMBERED_PID)

    def opening(self) -> str:
        """What comes before the events."""
        keys: dict[str, object] = {"schemaVersion": 1, "xplane": [plane.name for plane in self._space.planes]}
        if self._base_ns is not None:
            keys["baseTimeNanoseconds"] = self._base_ns
        if self._space.hosts:
            keys["host_name"] = self._space.hosts[0]
        devices = []
        for plane in self._space.planes:
            match = _DEVICE.match(plane.name)
            if match and "gpu_device_name" in plane.stats:
                stats = plane.stats
                device = {"id": int(match[2]), "name": stats["gpu_device_name"]}
                names = {"memory_size": "totalGlobalMem", "core_count": "numSms"}
                names |= {"compute_cap_major": "computeMajor", "compute_cap_minor": "computeMinor"}
                devices.append(device | {ours: stats[name] for name, ours in names.items() if name in stats})
        if devices:
            keys["deviceProperties"] = devices
        return json.dumps(keys)[:-1] + ',\n"traceEvents": [\n'

    def closing(self) -> str:
        """What comes after them: the last event, which no comma follows."""
        return _meta("process_name", self._pid, None, "host").removesuffix(",\n") + "\n]}\n"

    def events(self) -> Iterator[str]:
        """Yield each event as JSON with a comma after it."""
        for plane in self._space.planes:
            match = _DEVICE.match(plane.name)
            kind, number = (match[1], int(match[2])) if match else ("", 0)
            pid = number if match else self._pid
            if match:
                yield _meta("process_name", pid, None, plane.name)
                yield _meta("process_labels", pid, None, f"{kind} {number}")
            for index, line in enumerate(self._space.lines(plane)):
                counts = kind == "GPU" and line.name.startswith("Stream #")
                counts = counts or (kind == "TPU" and line.name == "XLA Ops")
                if line.name == "_counters_" or not line.has_events:
                    continue
                stream = (line.id if kind == "GPU" else index) if counts else None
                tid = stream if stream is not None else self._thread(plane, line, bool(match))
                yield _meta("thread_name", pid, tid, line.name)
                yield from self._of_line(plane, line, pid, tid, (number, stream) if match else None)

    def _thread(self, plane: Plane, line: Line, of_device: bool) -> int:
        key = (plane.name, line.id) if of_device else ("", line.id)
        return self._threads.setdefault(key, 1_000_000 + len(self._threads))

    def _of_line(
        self,
        plane: Plane,
        line: Line,
        pid: int,
        tid: int,
        device: tuple[int, int | None] | None,
    ) -> Iterator[str]:
        base_ns = self._base_ns or 0
        start_ns = line.start_ns - base_ns if line.start_ns > _YEAR_2000_NS else line.start_ns
        track = f'"pid":{pid},"tid":{tid}'
        for event in self._space.events(line):
            begin_ns = start_ns + event.offset_ps // 1000
            end_ns = start_ns + (event.offset_ps + event.duration_ps) // 1000
            if event.duration_ps < 0 or not -_FARTHEST_NS < begin_ns <= end_ns < _FARTHEST_NS:
                self.left_out += 1
                continue
            name = plane.event_names.get(event.name_id, f"event {event.name_id}")
            stats = self._stats(plane, event)
            if device is not None:
                described = _of_device(name, stats, *device)
            elif plane.name in _DRIVERS:
                described = "cuda_driver", name, _known(stats, {"correlation_id": "correlation"})
            else:
                described = _of_host(name, stats)
            if described is None:
                continue
            category, shown, args = described
            if category == "user_annotation" and not event.duration_ps:
                category = "cpu_instant_event"
            text = f'{{"ph":"X","cat":"{category}","name":{_text(shown)},{track},"ts":{_us(begin_ns)}'
            if category == "cpu_instant_event":
                text = text.replace('"ph":"X"', '"ph":"i","s":"t"', 1)
            else:
                text += f',"dur":{_us(end_ns - begin_ns)}'
            yield f'{text},"args":{json.dumps(args)}}},\n' if args else f"{text}}},\n"

    def _stats(self, plane: Plane, event: Event) -> Stats:
        common = plane.event_stats.get(event.name_id)
        ranges = [*common, *event.stats] if common else event.stats
        return self._space.stats(plane, ranges) if ranges else {}


_Described = tuple[str, str, dict[str, object]]  # category, name, arguments


def _of_host(name: str, stats: Stats) -> _Described:
    """A range of a host's thread: a step, a frame of Python, an operation, or an annotation."""
    args: dict[str, object] = {key: value for key, value in stats.items() if not key.startswith("_")}
    if isinstance(stats.get("step_num"), int):
        return "user_annotation", f"ProfilerStep#{stats['step_num']}", {"name": name} | args
    if name.startswith("$"):
        frame = _PYTHON.match(name)
        return "python_function", f"{frame[1]}({frame[2]}): {frame[3]}" if frame else name[1:], args
    return "cpu_op" if "hlo_op" in stats or "tf_op" in stats else "user_annotation", name, args


def _of_device(name: str, stats: Stats, device: int, stream: int | None) -> _Described | None:
    """What a stream executed, by its details; None for what is no work of the device."""
    if any(key in stats for key in _ALLOCATIONS):
        return None
    if stream is None:
        return "gpu_user_annotation", name, {"device": device}
    names = {"correlation_id": "correlation", "hlo_op": "hlo_op", "hlo_module": "hlo_module"}
    names |= {"hlo_category": "hlo_category", "tf_op": "tf_op", "cuda_graph_id": "graph id"}
    args = {"device": device, "stream": stream} | _known(stats, names)
    if copy := _COPY.match(str(stats.get("memcpy_details", ""))):
        ways = "to".join("H" if kind in _OF_HOST else "D" for kind in copy.group(1, 2))
        kinds = " -> ".join(kind.replace("_", " ").capitalize() for kind in copy.group(1, 2))
        return "gpu_memcpy", f"Memcpy {ways} ({kinds})", args | {"bytes": int(copy[3])}
    if "Memset_details" in stats:
        filled = _FILLED.search(str(stats["Memset_details"]))
        return "gpu_memset", "Memset (Device)", args | ({"bytes": int(filled[1])} if filled else {})
    if launched := _LAUNCHED.search(str(stats.get("kernel_details", ""))):
        sizes = list(map(int, launched.groups()))
        args |= {"grid": sizes[:3], "block": sizes[3:]}
    return "kernel", name, args


def _known(stats: Stats, names: dict[str, str]) -> dict[str, object]:
    return {ours: stats[name] for name, ours in names.items() if name in stats}


_text = lru_cache(1 << 16)(json.dumps)


def _us(time_ns: int) -> str:
    """A time in us with three decimals."""
    sign, time_ns = ("-", -time_ns) if time_ns < 0 else ("", time_ns)
    return f"{sign}{time_ns // 1000}.{time_ns % 1000:03d}"


def _meta(what: str, pid: int, tid: int | None, value: str) -> str:
    key = "labels" if what == "process_labels" else "name"
    event: dict[str, object] = {"ph": "M", "name": what, "pid": pid, "args": {key: value}}
    return json.dumps(event | ({} if tid is None else {"tid": tid})) + ",\n"
