"""Tracks of a process's threads: its Python spans and its POSIX calls.

The track of the start: what the training process was in from its start on, imports module by module.

What ended a run as slices, each failure and what its command took to end; what kept it, each hang.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence

from iotrace.analysis.failures import shown_until
from iotrace.analysis.rank import RankAnalysis
from iotrace.analysis.results import Failure
from iotrace.analysis.startup.imports import imports_of
from iotrace.analysis.startup.waterfall import ranges_of
from iotrace.session import names
from iotrace.session.hangs import Hang
from iotrace.sources.columns import Columns
from iotrace.sources.dftracer import stdio
from iotrace.sources.processes import Process
from iotrace.sources.session import Session
from iotrace.timeline.detail import Detail
from iotrace.timeline.model import CALL, STARTUP, Args, Slice, Track, file_label, known

_CATEGORIES = {
    names.KIND_ITEM: "dataset",
    names.KIND_COLLATE: "collate",
    names.KIND_READ_PATH: "read path",
    names.KIND_REGION: "region",
    names.KIND_MAPPED: "memory map",
    names.KIND_DFTRACER: "dftracer",
    names.KIND_TRAINER: "trainer",
    names.KIND_CHECKPOINT: "checkpoint",
    names.KIND_CALLBACK: "callback",
}


def within(spans: Columns, detail: Detail | None) -> Columns:
    """Choose the spans that touch what is shown in detail."""
    if detail is None:
        return spans
    return spans[detail.holds_all(spans["start_ns"], spans["start_ns"] + spans["duration_ns"])]


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


_SHORT_NS = 1_000_000  # a large library has thousands of modules


def startup_slices(analysis: RankAnalysis) -> list[Slice]:
    """Make slices of what lies before the first step and takes 1 ms or more; none without its imports."""
    imports = imports_of(analysis.rank.main)
    if analysis.startup is None or imports is None:
        return []
    until_ns = analysis.startup[1]
    return [
        Slice(each.start_ns, min(each.end_ns, until_ns), each.detail or each.name, STARTUP)
        for each in ranges_of(analysis, imports, *analysis.startup)
        if min(each.end_ns, until_ns) - each.start_ns >= _SHORT_NS
    ]


ENDING = "until the command ended"
_LONGEST_NAME = 120


def failure_slices(analysis: RankAnalysis, failed: Sequence[tuple[float, Failure]]) -> list[Slice]:
    """Make slices of those of a session's failures that are of the rank, or of none.

    Of a command that took long to end the rest is a slice of its own: Perfetto shows all of a selected slice.
    """
    found: list[Slice] = []
    behind_ns = end_ns = 0
    for at_ns, failure in failed:
        if failure.rank not in (None, analysis.rank.number) or not math.isfinite(at_ns):
            continue
        about = {"message": failure.message, "at": failure.at, "file": failure.file, "batch": failure.batch}
        args = known(**about, worker=failure.worker, pid=failure.process)
        until_ns, end_ns = shown_until(analysis.session, int(at_ns))
        found.append(Slice(int(at_ns), until_ns, failure_name(failure), "failure", args))
        behind_ns = max(behind_ns, until_ns)
    if behind_ns < end_ns:
        found.append(Slice(behind_ns, end_ns, ENDING, "failure"))
    return found


def failure_name(failure: Failure) -> str:
    """Name a failure by its file, who failed, and how: a narrow slice shows the left of its name."""
    who = "training process" if failure.role == "rank" else failure.role or "process"
    who = f"worker {failure.worker}" if failure.worker is not None else who
    who = f"thread {failure.thread} of {who}" if failure.thread is not None else who
    parts = [*([file_label(failure.file)] if failure.file else []), who, failure.type]
    return f"failed: {' · '.join(parts)}"[:_LONGEST_NAME]


def hang_slices(analysis: RankAnalysis, hangs: Sequence[Hang]) -> list[Slice]:
    """Make a slice of each hang of the rank: from its last batch until it went on, or its command ended."""
    session, main = analysis.session, analysis.rank.main
    ends_ns = [each.outcome.ended_ns for each in session.launches if each.outcome is not None]
    found = []
    for hang in hangs:
        about = [each for each in hang.processes if each.pid == main.pid]
        hosts = (None, main.host) if main.host else (None, hang.host)
        own = next((each for each in about if (each.host or hang.host) in hosts), None)
        if own is None:
            continue
        told_ns = main.clock.to_session_ns(hang.mono_ns)
        end_ns = max([told_ns, *ends_ns])
        if hang.resumed_ns is not None:
            end_ns = main.clock.to_session_ns(hang.resumed_ns)
        args = {str(number): text.strip() for number, text in enumerate(hang.text)}
        name = f"{hang.kind}: {own.text}"[:_LONGEST_NAME]
        found.append(Slice(told_ns - hang.waited_ns, end_ns, name, "hang", dict(args)))
    return found
