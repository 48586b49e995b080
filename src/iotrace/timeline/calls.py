"""Tracks of a process's threads: its Python spans, its POSIX calls, its start, what ended or kept it.

All is shown in detail, or, of more than a browser draws, the steps around the worst wait. Flows lead from
each batch's costliest read to the wait for it, and from zarr to its chunks.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Sequence

import msgspec
import numpy as np
import numpy.typing as npt

from iotrace.analysis.completeness.hung import hangs_of_rank
from iotrace.analysis.failures import shown_until
from iotrace.analysis.intervals import Times
from iotrace.analysis.loop.deliveries import Deliveries, Delivery
from iotrace.analysis.loop.step_table import StepTable
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
from iotrace.timeline.model import (
    CALL,
    STARTUP,
    Args,
    Flow,
    ProcessTracks,
    Slice,
    Timeline,
    Track,
    file_label,
    known,
)

MOST_SLICES = 1_000_000  # of a rank
_MOST_BLOCKS = 2_000  # that replace the steps without details
_OF_A_BATCH = 5  # slices: its wait and arrival, its making, ready, its step


class Detail(msgspec.Struct, frozen=True):
    """The interval ``[start_ns, end_ns)`` that is shown in detail, with the steps that it holds."""

    start_ns: int
    end_ns: int
    first_step: int
    behind_step: int

    def holds(self, start_ns: int, end_ns: int) -> bool:
        """Whether something touches the interval."""
        return start_ns < self.end_ns and end_ns > self.start_ns

    def holds_all(self, starts_ns: Times, ends_ns: Times) -> npt.NDArray[np.bool_]:
        """Mark what touches the interval."""
        return np.asarray((starts_ns < self.end_ns) & (ends_ns > self.start_ns))

    def holds_batches(self, deliveries: Deliveries) -> npt.NDArray[np.bool_]:
        """Mark the batches that were made or waited for in the interval."""
        asked = deliveries["wait_start_ns"]
        begun = np.where(deliveries.known("taken_ns"), deliveries["taken_ns"], asked)
        return self.holds_all(np.minimum(begun, asked), deliveries["delivered_ns"])


def choose_detail(analysis: RankAnalysis, most: int = MOST_SLICES) -> Detail | None:
    """Choose what is shown in detail; None: all of it, or there are no steps to choose from."""
    steps, rank = analysis.loop.steps, analysis.rank
    count = _OF_A_BATCH * sum(len(loader.deliveries) for loader in analysis.loaders)
    for process in rank.processes:
        count += len(process.spans) + len(analysis.session.calls_of(process))
    if count <= most or not len(steps):
        return None
    shown = max(1, len(steps) * most // count)
    # Of the measured steps, as the report's worst batches are: the first one waits for workers to start.
    measured = np.isin(steps["start_ns"], analysis.kept["start_ns"])
    worst = int(np.argmax(np.where(measured, steps.wait_ns, -1) if measured.any() else steps.wait_ns))
    first = max(0, min(worst - shown // 2, len(steps) - shown))
    return Detail(steps[first].start_ns, steps[first + shown - 1].end_ns, first, first + shown)


def note(detail: Detail, steps: StepTable) -> Track:
    """Say in the timeline where there are no details, and what is shown there."""
    size = block_size(detail, steps)
    shown = f"{detail.behind_step - detail.first_step:,} of {len(steps):,} steps are shown in detail"
    text = f"{shown}; here blocks of {size:,} steps stand for them"
    parts = ((steps[0].start_ns, detail.start_ns), (detail.end_ns, steps[-1].end_ns))
    return Track("not in detail", [Slice(*part, text, "note") for part in parts if part[0] < part[1]])


def block_size(detail: Detail, steps: StepTable) -> int:
    """How many steps a block replaces."""
    return -(-(len(steps) - detail.behind_step + detail.first_step) // _MOST_BLOCKS) or 1


def blocks(detail: Detail, steps: StepTable) -> list[Slice]:
    """Sum up the steps that are not shown in detail."""
    size = block_size(detail, steps)
    slices = []
    for part in (range(detail.first_step), range(detail.behind_step, len(steps))):
        for first in part[::size]:
            own = steps[first : min(first + size, part.stop)]
            name = f"{len(own):,} steps from {first:,} on"
            args: Args = {
                "steps": len(own),
                "step_ms": int(own.duration_ns.sum()) / len(own) / 1e6,
                "wait_ms": int(own.wait_ns.sum()) / len(own) / 1e6,
                "longest_ms": int(own.duration_ns.max()) / 1e6,
            }
            slices.append(Slice(own[0].start_ns, own[-1].end_ns, name, "steps", args))
    return slices


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
    names.KIND_REDUCTION: "reduction",
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
    """Make slices of a session's failures that belong to the rank, or to no rank.

    Of a command that took long to end the rest is a slice of its own: Perfetto shows all of a selected slice.
    """
    slices: list[Slice] = []
    behind_ns = end_ns = 0
    for at_ns, failure in failed:
        if failure.rank not in (None, analysis.rank.number) or not math.isfinite(at_ns):
            continue
        about = {"message": failure.message, "at": failure.at, "file": failure.file, "batch": failure.batch}
        args = known(**about, worker=failure.worker, pid=failure.process)
        until_ns, end_ns = shown_until(analysis.session, int(at_ns))
        slices.append(Slice(int(at_ns), until_ns, failure_name(failure), "failure", args))
        behind_ns = max(behind_ns, until_ns)
    if behind_ns < end_ns:
        slices.append(Slice(behind_ns, end_ns, ENDING, "failure"))
    return slices


def failure_name(failure: Failure) -> str:
    """Name a failure by its file, who failed, and how: a narrow slice shows the left of its name."""
    who = "training process" if failure.role == "rank" else failure.role or "process"
    who = f"worker {failure.worker}" if failure.worker is not None else who
    who = f"thread {failure.thread} of {who}" if failure.thread is not None else who
    parts = [*([file_label(failure.file)] if failure.file else []), who, failure.type]
    return f"failed: {' · '.join(parts)}"[:_LONGEST_NAME]


def hang_slices(analysis: RankAnalysis, hangs: Sequence[Hang]) -> list[Slice]:
    """Make a slice of each hang of the rank: from its last batch until it went on, or its command ended."""
    slices = []
    for hang, own, start_ns, end_ns in hangs_of_rank(analysis, hangs):
        args = {str(number): text.strip() for number, text in enumerate(hang.text)}
        name = f"{hang.kind}: {own.text}"[:_LONGEST_NAME]
        slices.append(Slice(start_ns, end_ns, name, "hang", dict(args)))
    return slices


DeliveryKey = tuple[int, int]  # loader, and number of the delivery

_ZARR_ACCESS = "zarr.Array.__getitem__"


def batch_flows(
    analysis: RankAnalysis,
    arrivals: dict[DeliveryKey, Slice],
    ready: dict[DeliveryKey, Slice],
    timeline: Timeline,
) -> list[Flow]:
    """Make a flow per delivered batch: its costliest read, the ready batch, the wait that it ended.

    `arrivals` has the slice of each wait, or of the part of it that followed the batch's production.
    """
    reads = _reads_by_process(analysis, timeline)
    flows = []
    shown: dict[int, list[int]] = defaultdict(list)
    for loader_number, number in ready:
        shown[loader_number].append(number)
    for loader in analysis.loaders:
        for delivery in loader.deliveries[np.array(sorted(shown[loader.number]), np.int64)]:
            batch = ready.get((loader.number, delivery.number))
            if batch is None:
                continue
            read = _costliest(reads.get(delivery.pid or analysis.rank.main.pid, []), delivery)
            wait = arrivals.get((loader.number, delivery.number))
            stops = [item for item in (read, batch, wait) if item is not None and item.end_ns > item.start_ns]
            if len(stops) > 1:
                times = [item.start_ns for item in stops[:-1]]
                # A wait that began before the batch was ready: the batch arrives within it.
                times.append(max(stops[-1].start_ns, *times))
                flows.append(Flow(f"batch {delivery.index}", list(zip(stops, times, strict=True))))
    return flows


def _reads_by_process(analysis: RankAnalysis, timeline: Timeline) -> dict[int, list[Slice]]:
    """Find per pid the slices that read, in order of time: POSIX reads and read paths."""
    reads = {}
    for process, tracks in zip(analysis.rank.processes, timeline.processes, strict=True):
        slices = [
            item
            for track in tracks.tracks
            for item in track.slices
            if item.end_ns > item.start_ns
            and (item.category == "read path" or (item.category == "POSIX" and "read" in item.name))
        ]
        reads[process.pid] = sorted(slices, key=lambda item: item.start_ns)
    return reads


def _costliest(reads: list[Slice], delivery: Delivery) -> Slice | None:
    """Find the longest read inside the batch's production: a read path, which holds its calls, if any."""
    if delivery.taken_ns is None or delivery.prepared_ns is None:
        return None
    first = bisect_left(reads, delivery.taken_ns, key=lambda item: item.start_ns)
    last = bisect_left(reads, delivery.prepared_ns, key=lambda item: item.start_ns)
    return max(reads[first:last], key=lambda item: item.end_ns - item.start_ns, default=None)


def chunk_flows(process: ProcessTracks) -> list[Flow]:
    """Make a flow from each access of a zarr array to each chunk: zarr 3 reads them on threads of its own.

    It ends at the first read (else the open) of the chunk's file by another thread, within the access.
    """
    accesses = [
        (item, track.tid)
        for track in process.tracks
        for item in track.slices
        if item.args is not None and item.args.get(CALL) == _ZARR_ACCESS
    ]
    if not accesses:
        return []
    # Perfetto binds no flow to a slice without length.
    calls = sorted(
        (
            (item, track.tid)
            for track in process.tracks
            for item in track.slices
            if item.category == "POSIX" and item.end_ns > item.start_ns and _preference(item) is not None
        ),
        key=lambda call: call[0].start_ns,
    )
    flows = []
    for access, tid in accesses:
        first = bisect_left(calls, access.start_ns, key=lambda call: call[0].start_ns)
        last = bisect_left(calls, access.end_ns, key=lambda call: call[0].start_ns)
        below = f"{(access.args or {})['file']}/"
        chosen: dict[str, Slice] = {}
        for call, call_tid in calls[first:last]:
            file = str((call.args or {})["file"])
            if call_tid != tid and file.startswith(below):
                best = chosen.get(file)
                if best is None or (_preference(call) or 0) < (_preference(best) or 0):
                    chosen[file] = call
        flows += [
            Flow("chunk", [(access, access.start_ns), (call, call.start_ns)]) for call in chosen.values()
        ]
    return flows


def _preference(call: Slice) -> int | None:
    """Rank the calls at which a flow may end: a read before an open; nothing else is an end."""
    if "read" in call.name:
        return 0
    return 1 if "open" in call.name else None
