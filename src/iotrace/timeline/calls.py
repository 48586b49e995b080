"""Tracks of a process's threads: its Python spans and its POSIX calls."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import numpy.typing as npt

from iotrace.session import names
from iotrace.sources.dftracer import stdio
from iotrace.sources.processes import Process
from iotrace.sources.session import Session
from iotrace.timeline.detail import Detail
from iotrace.timeline.model import CALL, Args, Slice, Track, file_label

_CATEGORIES = {
    names.KIND_ITEM: "dataset",
    names.KIND_COLLATE: "collate",
    names.KIND_READ_PATH: "read path",
    names.KIND_REGION: "region",
    names.KIND_MAPPED: "memory map",
    names.KIND_DFTRACER: "dftracer",
    names.KIND_TRAINER: "trainer",
    names.KIND_CHECKPOINT: "checkpoint",
}


def within(spans: npt.NDArray[Any], detail: Detail | None) -> npt.NDArray[Any]:
    """Choose the spans that touch what is shown in detail."""
    if detail is None:
        return spans
    chosen: npt.NDArray[Any] = spans[
        detail.holds_all(spans["start_ns"], spans["start_ns"] + spans["duration_ns"])
    ]
    return chosen


def span_tracks(session: Session, process: Process, detail: Detail | None = None) -> list[Track]:
    """Make a track of spans for each thread of the process."""
    spans = process.spans[process.spans["kind"] != names.KIND_PHASE]  # they have a track of their own
    spans = within(spans, detail)
    files = {number: session.paths.shown(file) for number, file in process.span_files.items()}
    by_thread: dict[int, list[Slice]] = defaultdict(list)
    for row in spans.tolist():
        start, duration, cpu, size, tid, name, file, kind, minor, major, voluntary, involuntary, delay = row
        args: Args = {"cpu_ms": cpu / 1e6} if cpu >= 0 else {}
        if file in files:
            args["file"] = files[file]
        if size >= 0:
            args["bytes"] = size
        if minor >= 0:  # else not measured
            args.update(minor_faults=minor, major_faults=major)
            args.update(voluntary_switches=voluntary, involuntary_switches=involuntary)
            if delay >= 0:
                args["waited_for_cpu_ms"] = delay / 1e6
        shown = process.texts.get(name, "?")
        if kind == names.KIND_READ_PATH and file in files:
            args[CALL] = shown
            shown = f"{file_label(files[file])} · {shown}"
        by_thread[tid].append(Slice(start, start + duration, shown, _CATEGORIES.get(kind, "span"), args))
    return _tracks("python", process, by_thread)


def call_tracks(session: Session, process: Process, detail: Detail | None = None) -> list[Track]:
    """Make a track of POSIX calls on data for each thread of the process; a burst of calls is one slice."""
    calls = session.calls_of(process)
    if detail is not None:
        calls = calls.where(detail.holds_all(calls.start_ns, calls.end_ns))
    shown = [session.paths.shown(file) for file in calls.files]
    moves_bytes = stdio.READS | stdio.WRITES
    by_thread: dict[int, list[Slice]] = defaultdict(list)
    columns = (calls.start_ns, calls.end_ns, calls.tid, calls.name, calls.file, calls.result, calls.offset)
    for start, end, tid, name, file, result, offset, made in zip(
        *(column.tolist() for column in (*columns, calls.calls)), strict=True
    ):
        args: Args = {"file": shown[file]}
        called = calls.names[name]
        if made > 1:
            called += f" x{made}"  # Perfetto groups names with the multiplication sign wrongly
            args["calls"] = made
        if result >= 0:
            args["bytes" if calls.names[name] in moves_bytes else "ret"] = result
        if offset >= 0:
            args["offset"] = offset
        by_thread[tid].append(Slice(start, end, called, "POSIX", args))
    return _tracks("POSIX", process, by_thread)


def _tracks(name: str, process: Process, by_thread: dict[int, list[Slice]]) -> list[Track]:
    return [
        Track(name if tid == process.pid else f"{name} · thread {tid}", slices, tid)
        for tid, slices in sorted(by_thread.items())
    ]
