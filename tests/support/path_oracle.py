"""The critical path once more: slowly, by its definition, on rows of SQL over Perfetto's importer.

Where the importer drops slices that overlap, or takes a thread with a negative number for another one, the
rows are those of Python's json. Shares no code with iotrace.
"""

from __future__ import annotations

import gzip
import json
from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from tests.support import perfetto

_SQL = """select s.ts - (select min(ts) from slice), s.dur, s.name, lower(s.category), t.utid,
    extract_arg(s.arg_set_id, 'args.correlation'), extract_arg(s.arg_set_id, 'args.stream'),
    extract_arg(s.arg_set_id, 'args.device'), extract_arg(s.arg_set_id, 'args.wait_on_stream'),
    extract_arg(s.arg_set_id, 'args.wait_on_cuda_event_record_corr_id'),
    extract_arg(s.arg_set_id, 'args.Fwd thread id')
    from slice s left join thread_track t on t.id = s.track_id where s.dur >= 0 order by s.ts, -s.dur, s.id"""
DROPPED = "select coalesce(sum(value), 0) from stats where name = 'slice_drop_overlapping_complete_event'"
_DEVICE = ("kernel", "gpu_memcpy", "gpu_memset", "memcpy", "memset")
_RUNTIME = ("cuda_runtime", "cuda_driver", "runtime")
_TO_PAGEABLE = ("Memcpy DtoH (Device -> Pageable)",)
_RANGES = ("ProfilerStep", "enumerate(", "nccl:", "gloo:", "module:")
_AT_ONCE, _LEAST, _CLOCKS, _ROUNDING = 20_000, 2_000, 20_000, 1_000
_STEPS = 10


class Slice(NamedTuple):
    start: int
    dur: int
    name: str
    category: str
    thread: int
    correlation: int | None
    stream: int | None
    device: int | None
    wait_on: int | None
    recorded_by: int | None
    forward_thread: int | None

    @property
    def end(self) -> int:
        return self.start + self.dur


class Work:
    """An event of the device, with what was before it on its stream and what launched it."""

    def __init__(self, row: Slice, before: Work | None, call: Slice | None) -> None:
        self.row, self.before, self.call = row, before, call
        self.start = row.start if before is None else max(row.start, before.end)
        self.end = row.end if before is None else max(row.end, before.end)
        self.launched = None if call is None else call.start
        self.other: Work | None = None  # what it waited for on another stream

    @property
    def ready(self) -> float:
        own = float("-inf") if self.before is None else self.before.end
        return max(own, float("-inf") if self.launched is None else self.launched)


def slices(trace: Path) -> tuple[list[Slice], bool]:
    """The slices of a trace, and whether they are those of SQL."""
    rows, ((dropped,),) = perfetto.query(trace, _SQL, DROPPED)
    data = trace.read_bytes()
    text = gzip.decompress(data) if trace.suffix == ".gz" else data
    if not dropped and b'"tid": -' not in text:
        return [Slice(*(_whole(value) for value in row)) for row in rows], True
    found, threads = [], dict[Any, int]()
    for one in json.loads(text, strict=False)["traceEvents"]:
        if one.get("ph") == "X" and isinstance(one.get("dur"), int | float):
            args = one.get("args", {})
            thread = threads.setdefault((one["pid"], one["tid"]), len(threads) + 1)
            keys = ("correlation", "stream", "device", "wait_on_stream", "wait_on_cuda_event_record_corr_id")
            numbers = [_whole(args.get(key)) for key in (*keys, "Fwd thread id")]
            times = [round(round(one[key] * 1000)) for key in ("ts", "dur")]
            found.append(Slice(*times, one["name"], one.get("cat", "").lower(), thread, *numbers))
    return sorted(found, key=lambda row: (row.start, -row.dur)), False


class Oracle:
    def __init__(self, trace: Path) -> None:
        self.rows, self.by_sql = slices(trace)
        self.calls = [row for row in self.rows if row.category in _RUNTIME]
        self.steps = [row for row in self.rows if row.name.startswith("ProfilerStep#") and row.thread]
        self.steps = [row for row in self.steps if row.category in ("user_annotation", "cpu_op", "operator")]
        self.work = self._work()
        self._wait_for_streams()
        launching = {one.call.thread for one in self.work if one.call is not None}
        self.operators = [
            row
            for row in self.rows
            if row.category in ("cpu_op", "operator") and not row.name.startswith(_RANGES)
        ]
        backward = {row.thread for row in self.operators if (row.forward_thread or 0) > 0}
        first = [row.thread for row in self.steps] or [row.thread for row in self.operators[:1]]
        self.threads = list(dict.fromkeys([*first, *sorted(launching | backward)]))
        self.blocking = self._blocking()
        stepped = {row.thread for row in self.steps}
        self.waits = [
            row
            for row in self.rows
            if row.name.startswith("enumerate(DataLoader)#") and (row.thread in stepped or not stepped)
        ]
        self.inside = [*self.calls, *self.operators]
        self.inside += [row for row in self.rows if row.name.startswith(("nccl:", "gloo:")) and row.thread]
        self.inside = [row for row in self.inside if row.thread in self.threads]

    def _work(self) -> list[Work]:
        by_number = {row.correlation: row for row in self.calls if row.correlation is not None}
        last: dict[Any, Work] = {}
        found = []
        for row in self.rows:
            if row.category in _DEVICE:
                queue = (row.device, row.stream)
                one = last[queue] = Work(row, last.get(queue), by_number.get(row.correlation))
                found.append(one)
        return found

    def _wait_for_streams(self) -> None:
        called = {row.correlation: row.start for row in self.calls if "Event" in row.name}
        for row in self.rows:
            if row.name == "Stream Wait Event" and row.recorded_by in called and row.correlation in called:
                self._told(row, called[row.recorded_by], called[row.correlation])
        self.told = [one for one in self.work if one.other is not None]
        for one in self.told:
            assert one.other is not None
            if not (one.other.end > one.ready + _LEAST and one.other.end <= one.start + _LEAST):
                one.other = None
        self.told = [one for one in self.told if one.other is not None]
        launches = defaultdict(list)
        for one in self.work:
            if one.call is not None:
                launches[one.call.thread].append(one)
        for of_thread in launches.values():
            of_thread.sort(key=lambda one: (one.call.start, one.row.device, one.row.stream, one.row.start))
        begun = {thread: [one.call.start for one in own] for thread, own in launches.items()}
        by_end = sorted(self.work, key=lambda one: one.end)
        ends = [one.end for one in by_end]
        for call in self.calls:
            if call.name in ("cudaStreamWaitEvent", "hipStreamWaitEvent", "cuStreamWaitEvent"):
                of_thread = launches[call.thread]
                at = bisect_left(begun.get(call.thread, []), call.start)
                if at < len(of_thread) and of_thread[at].other is None:
                    consumer = of_thread[at]
                    near = by_end[
                        bisect_left(ends, consumer.start - _AT_ONCE) : bisect_right(ends, consumer.start)
                    ]
                    others = [one for one in near if _queue(one) != _queue(consumer)]
                    if others and others[-1].end > consumer.ready + _LEAST:
                        consumer.other = others[-1]

    def _told(self, row: Slice, recorded: int, called: int) -> None:
        on_device = [one for one in self.work if one.row.device == row.device and one.launched is not None]
        later = [one for one in on_device if one.row.stream == row.stream and one.launched >= called]
        earlier = [one for one in on_device if one.row.stream == row.wait_on and one.launched < recorded]
        if later and earlier and (later[0].other is None or later[0].other.end < earlier[-1].end):
            later[0].other = earlier[-1]

    def by_kind(self) -> Counter[str]:
        """The us of each kind, over the steps that are looked at."""
        spans = [(row.start, row.end) for row in self.steps]
        if not spans:
            whole = self.operators or [*self.calls, *(one.row for one in self.work)]
            spans = [(min(row.start for row in whole), max(row.end for row in whole))]
        if len(spans) > _STEPS:
            chosen = {int(at * (len(spans) - 1) / (_STEPS - 1)) for at in range(_STEPS)}
            spans = [spans[at] for at in sorted(chosen)]
        found: Counter[str] = Counter()
        for begin, end in spans:
            host = []
            for kind, start, stop, one in self.path(begin, end):
                if kind == "host":
                    host.append((start, stop))
                else:
                    found[_device_kind(one) if kind == "device" and one else kind] += stop - start
            near = [row for row in self.inside if row.end > begin and row.start < end]
            for start, stop in host:
                found += self._on_host(start, stop, near)
        return Counter({kind: ns / 1e3 for kind, ns in found.items() if ns})

    def path(self, begin: int, end: int) -> Iterator[tuple[str, int, int, Work | None]]:
        time, waiting = end, [*self.blocking]
        while time > begin:
            while waiting and waiting[-1][0] > time + _ROUNDING:
                waiting.pop()
            if not waiting or waiting[-1][1] <= begin:
                yield "host", begin, time, None
                return
            _, until, one = waiting.pop()
            yield "host", min(until, time), time, None
            time = min(until, time)
            while time > begin:
                yield "device", max(begin, min(one.start, time)), time, one
                time = min(one.start, time)
                if time <= begin:
                    return
                late = one.launched is not None and (one.before is None or one.launched > one.before.end)
                if one.other is not None:
                    yield "stream_wait", max(begin, min(one.other.end, time)), time, one
                    time, one = min(time, one.other.end), one.other
                elif late:
                    assert one.launched is not None
                    yield "launch_delay", max(begin, min(one.launched, time)), time, one
                    time = min(time, one.launched)
                    break
                elif one.before is not None:
                    yield "kernel_gap", max(begin, min(one.before.end, time)), time, one
                    time, one = min(time, one.before.end), one.before
                else:
                    yield "unknown", begin, time, one
                    return

    def _blocking(self) -> list[tuple[int, int, Work]]:
        """Calls that waited for the device: when they returned, until when, for what; in order."""
        names = ("DeviceSynchronize", "CtxSynchronize", "StreamSynchronize", "EventSynchronize")
        streams = {row.correlation: row.stream for row in self.rows if row.name == "Stream Sync"}
        pageable = {one.row.correlation for one in self.work if one.row.name in _TO_PAGEABLE}
        by_end = sorted(self.work, key=lambda one: one.end)
        ends = [one.end for one in by_end]
        found = []
        for call in sorted(self.calls, key=lambda row: row.end):
            short = call.name.removeprefix("cuda").removeprefix("hip").removeprefix("cu")
            blocks = short in names or short in ("Memcpy", "MemcpyWithStream", "Free")
            blocks = blocks or call.correlation in pageable
            if not blocks or call.thread not in self.threads:
                continue
            stream = streams.get(call.correlation)
            awaited = [
                one
                for one in by_end[bisect_right(ends, call.start) : bisect_right(ends, call.end + _CLOCKS)]
                if (one.launched is None or one.launched < call.end)
                and (stream is None or one.row.stream == stream)
            ]
            if awaited:
                last = max(awaited, key=lambda one: one.end)
                found.append((call.end, min(last.end, call.end), last))
        return found

    def _on_host(self, start: int, stop: int, near: list[Slice]) -> Counter[str]:
        """Divide a part of the host: data waits, else what is innermost on the first thread that has any."""
        near = [row for row in near if row.end > start and row.start < stop]
        near_waits = [row for row in self.waits if row.end > start and row.start < stop]
        cuts = {start, stop}
        for row in [*near, *near_waits]:
            cuts |= {max(start, row.start), min(stop, row.end)}
        times, found = sorted(cuts), Counter[str]()
        waiting = sorted(near, key=lambda row: -row.start)
        around: list[Slice] = []
        for left, right in pairwise(times):
            while waiting and waiting[-1].start <= left:
                around.append(waiting.pop())
            around = [row for row in around if right <= row.end]
            kind = "host"
            if any(row.start <= left and right <= row.end for row in near_waits):
                kind = "data_wait"
            elif around:
                thread = min(self.threads.index(row.thread) for row in around)
                own = [row for row in around if row.thread == self.threads[thread]]
                innermost = max(own, key=lambda row: (row.start, -row.dur))
                kind = "runtime" if innermost.category in _RUNTIME else "operator"
                kind = "collective" if innermost.name.startswith(("nccl:", "gloo:")) else kind
            found[kind] += right - left
        return found


def _whole(value: Any) -> Any:
    return int(value) if isinstance(value, str) and value.lstrip("-").isdigit() else value


def _queue(one: Work) -> tuple[int | None, int | None]:
    return one.row.device, one.row.stream


def _device_kind(one: Work) -> str:
    if one.row.category != "kernel":
        return "memory"
    return "collective" if one.row.name.startswith("nccl") else "kernel"
