"""One rank's timeline: its steps and waits, its workers' batches, read paths and POSIX calls.

A timeline as batches of Chrome events, for the file of a session and for a merge.
"""

from __future__ import annotations

import posixpath
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

import msgspec
import numpy as np
from msgspec import UNSET, Raw

from iotrace.analysis.loop.deliveries import Deliveries
from iotrace.analysis.loop.step_phases import phases_of
from iotrace.analysis.loop.steps import Loop
from iotrace.analysis.rank import RankAnalysis
from iotrace.analysis.results import Failure
from iotrace.analysis.wait.file_costs import FILE_PARTS
from iotrace.analysis.wait.loop_events import loop_events
from iotrace.analysis.wait.slow_loop_steps import loop_slow_steps
from iotrace.analysis.wait.waits import CAUSES, Explained
from iotrace.session import names
from iotrace.session.hangs import Hang
from iotrace.sources.chrome.batch import Event, EventBatch
from iotrace.sources.processes import Process
from iotrace.sources.session import Rank
from iotrace.timeline.calls import (
    MOST_SLICES,
    DeliveryKey,
    Detail,
    batch_flows,
    blocks,
    call_tracks,
    choose_detail,
    chunk_flows,
    failure_slices,
    hang_slices,
    note,
    span_tracks,
    startup_slices,
    within,
)
from iotrace.timeline.kineto import add_torch
from iotrace.timeline.model import (
    STARTUP,
    Args,
    Counter,
    ProcessTracks,
    Slice,
    Timeline,
    Track,
    file_label,
    first_ns,
    known,
)
from iotrace.timeline.telemetry import add_telemetry

_MOST = 0.8  # of a cause: the share that files of one directory need to name it


def build(
    analysis: RankAnalysis,
    failed: Sequence[tuple[float, Failure]],
    hangs: Sequence[Hang] = (),
    with_torch: bool = True,
    most: int = MOST_SLICES,
) -> Timeline:
    """Make tracks of everything recorded of a rank; its traces of torch.profiler `with_torch` alone.

    `failed` and `hangs` are those of its session (`SessionAnalysis.timed_failures` and ``hangs``).
    Of what would be more than `most` slices, a part is shown in detail, the other steps in blocks.
    """
    session, rank = analysis.session, analysis.rank
    timeline = Timeline(base_ns=session.manifest.started_ns)
    loaders, loop = analysis.loaders, analysis.loop
    main = ProcessTracks(f"{_title(rank)} · main ({rank.main.host})", f"pid {rank.main.pid}")
    timeline.processes.append(main)

    def add(name: str, slices: list[Slice]) -> None:
        if slices:
            main.tracks.append(Track(name, slices))

    add("phase", [Slice(item.start_ns, item.end_ns, item.name, "phase") for item in phases_of(rank)])
    own = f"{_title(rank)} · " if len(session.ranks) > 1 else ""  # what is pinned is shown alone
    started = [Slice(*analysis.startup, "start-up", "start-up")] if analysis.startup is not None else []
    detail = choose_detail(analysis, most)
    steps = [*started, *_steps(loop, detail), *_after_evaluation(loop, detail)]
    if detail is not None:
        main.tracks.append(note(detail, loop.steps))
        steps += blocks(detail, loop.steps)
    main.tracks.append(Track(f"{own}steps", steps))
    add(f"{own}slow steps", _slow_steps(analysis))
    add(STARTUP, startup_slices(analysis))
    add(f"{own}failure", failure_slices(analysis, failed))
    add(f"{own}hang", hang_slices(analysis, hangs))
    add("forward, backward, optimizer", _step_phases(analysis, detail))
    arrivals: dict[DeliveryKey, Slice] = {}
    for loader in loaders:
        suffix = "" if loader is analysis.primary else f" (loader {loader.number}, {loader.kind})"
        explained = analysis.explained(loader)
        if detail is not None:
            explained = explained[detail.holds_batches(explained.deliveries)]
        waits = [each for item in explained for each in _wait(item, arrivals, loader.description.item or "")]
        main.tracks.append(Track(f"{own}data wait{suffix}", waits))
        if loader.description.workers:
            main.counters.append(Counter(f"ready{suffix}", _ready(explained.deliveries), "batches"))
    ready: dict[DeliveryKey, Slice] = {}
    for process in rank.processes:
        _add_process(analysis, process, main, timeline, ready, detail)
    timeline.flows = batch_flows(analysis, arrivals, ready, timeline)
    add_telemetry(session, rank, timeline)
    for tracks in timeline.processes:
        timeline.flows += chunk_flows(tracks)
    if with_torch:
        add_torch(timeline, main, _title(rank), rank.main.pid, analysis.compute, analysis.kernel_gap_us, own)
    # The sidecar's first samples come before the command.
    timeline.base_ns = min(timeline.base_ns, first_ns(timeline))
    return timeline


def _title(rank: Rank) -> str:
    restart = f" (restart {rank.incarnation})" if rank.incarnation else ""
    return f"rank {rank.number}{restart}"


def _steps(loop: Loop, detail: Detail | None) -> list[Slice]:
    """Make a slice of each step: its number is that of the delivery that opens it, or its mark."""
    slices = []
    first, behind = (0, len(loop.steps)) if detail is None else (detail.first_step, detail.behind_step)
    for position, step in enumerate(loop.steps[first:behind], first):
        number, opened = position, step.delivery
        args: Args | None = None
        if opened is not None:
            number = opened.number
            args = {"epoch": opened.epoch, "batch": opened.index, "samples": opened.samples}
        end_ns = step.pieces[0][1] if step.pieces else step.end_ns
        slices.append(Slice(step.start_ns, end_ns, f"step {number}", "step", args))
    return slices


def _slow_steps(analysis: RankAnalysis) -> list[Slice]:
    """Make a slice of each slow step, called by its largest cause."""
    slow = loop_slow_steps(analysis, events=loop_events(analysis))
    slices = []
    for step in slow.steps if slow is not None else ():
        parts = {**step.parts_ms, "not explained": step.unnamed_ms}
        cause = max(parts, key=lambda part: parts[part]).replace("_", " ")
        args: Args = {f"{part}_ms".replace(" ", "_"): ms for part, ms in parts.items() if ms}
        args |= known(file=step.file, write_bytes=step.write_bytes, write_mb_per_s=step.write_mb_per_s)
        start_ns = analysis.session.manifest.started_ns + round(step.start_s * 1e9)
        name = f"slow step {step.step} · {cause}"
        slices.append(Slice(start_ns, start_ns + round(step.ms * 1e6), name, "slow step", args))
    return sorted(slices, key=lambda each: each.start_ns)


def _after_evaluation(loop: Loop, detail: Detail | None) -> list[Slice]:
    """Make a slice of each part of a step that follows an evaluation pass, which is no part of it."""
    return [
        Slice(start_ns, end_ns, "step, after evaluation", "step", None)
        for step in loop.steps[loop.steps["first_left_out"] < loop.steps["behind_left_out"]]
        for start_ns, end_ns in step.pieces[1:]
        if detail is None or detail.holds(start_ns, end_ns)
    ]


def _step_phases(analysis: RankAnalysis, detail: Detail | None) -> list[Slice]:
    """Make a slice of each phase of the training thread; one that an optimizer's step calls lies in it."""
    texts = analysis.rank.main.texts
    spans = within(analysis.phase_spans, detail)
    phases = zip(*(spans[field].tolist() for field in ("start_ns", "duration_ns", "name")), strict=True)
    return [
        Slice(start_ns, start_ns + duration_ns, texts.get(name, "?"), "step phase")
        for start_ns, duration_ns, name in phases
    ]


def _wait(item: Explained, arrivals: dict[DeliveryKey, Slice], code: str) -> list[Slice]:
    """Show a wait, called by its cause and file, and in it what followed the batch's production.

    Where the dataset's own `code` is the cause, and no file is most of it, the wait is named after the code.
    `arrivals` gets the one of them where the batch's flow ends.
    """
    delivery = item.delivery
    args: Args = {"epoch": delivery.epoch, "batch": delivery.index, "cause": item.cause}
    if delivery.worker is not None:
        args.update(worker=delivery.worker, worker_pid=delivery.pid)
    args.update({f"{cause}_ms": item.causes[cause] / 1e6 for cause in CAUSES if item.causes[cause]})
    file = _find_file(item)
    if file is not None:
        args["file"] = file
    culprit = file and file_label(file)
    if item.cause == "transform" and file not in item.files:
        culprit = code or culprit
    name = " · ".join(filter(None, (f"wait {delivery.index}", item.cause, culprit)))
    slices = [Slice(delivery.wait_start_ns, delivery.delivered_ns, name, "data wait", args)]
    made_ns = delivery.prepared_ns
    if made_ns is not None and delivery.wait_start_ns < made_ns < delivery.delivered_ns - 1:
        # A ns later than the ready batch begins: Perfetto follows a flow in the order of time.
        slices.append(
            Slice(made_ns + 1, delivery.delivered_ns, f"batch {delivery.index} arrives", "transport")
        )
    arrivals[delivery.loader, delivery.number] = slices[-1]
    return slices


def _find_file(item: Explained) -> str | None:
    """Find the file that is most of the wait's cause; where several share it, their directory and number."""
    if item.cause not in FILE_PARTS:
        return None
    part = FILE_PARTS.index(item.cause)
    costs = {path: each[part] for path, each in item.files.items() if each[part] > 0}
    if not costs:
        return None
    worst = max(costs, key=lambda path: costs[path])
    if 2 * costs[worst] >= sum(costs.values()):
        return worst
    spent: dict[str, float] = defaultdict(float)
    for path, cost in costs.items():
        spent[posixpath.dirname(path)] += cost
    directory = max(spent, key=lambda each: spent[each])
    if directory and spent[directory] >= _MOST * sum(costs.values()):
        costs = {path: cost for path, cost in costs.items() if posixpath.dirname(path) == directory}
    directory = posixpath.commonpath(costs) if len({posixpath.isabs(path) for path in costs}) == 1 else ""
    return f"{directory}/ ({len(costs)} files)" if directory.strip("/") else f"{len(costs)} files"


def _ready(deliveries: Deliveries) -> list[tuple[int, float]]:
    """Count the batches that are prepared and not yet delivered, at every change."""
    changes: list[tuple[int, int]] = []
    for delivery in deliveries:
        if delivery.prepared_ns is not None:
            changes += [(delivery.prepared_ns, 1), (max(delivery.delivered_ns, delivery.prepared_ns), -1)]
    points: list[tuple[int, float]] = []
    ready = 0
    for time_ns, change in sorted(changes):
        ready += change
        if points and points[-1][0] == time_ns:
            points.pop()
        points.append((time_ns, float(ready)))
    return points


def _add_process(
    analysis: RankAnalysis,
    process: Process,
    main: ProcessTracks,
    timeline: Timeline,
    ready: dict[DeliveryKey, Slice],
    detail: Detail | None,
) -> None:
    """Add the process's batches, Python spans and POSIX calls; the training process's go to `main`."""
    session, rank, produced = analysis.session, analysis.rank, analysis.produced_by(process.pid)
    if detail is not None:
        produced = produced[detail.holds_batches(produced)]
    if process is rank.main:
        tracks = main
        made = [
            _batch(one.index, one.epoch, one.samples, one.taken_ns or 0, one.prepared_ns or 0)
            for one in produced
            if one.worker is None
        ]
    else:
        digits = len(str(len(rank.workers)))
        role = process.role if process.worker is None else f"worker {process.worker:0{digits}}"
        name = f"{_title(rank)} · {role} ({process.host})"
        tracks = ProcessTracks(name, f"pid {process.pid}")
        timeline.processes.append(tracks)
        made = _worker_batches(process, produced, detail)
    if made:
        tracks.tracks.append(Track("batches", made))
        tracks.tracks.append(Track("ready", _ready_slices(produced, ready)))
    tracks.tracks += span_tracks(session, process, detail)
    tracks.tracks += call_tracks(session, process, detail)


def _ready_slices(produced: Deliveries, ready: dict[DeliveryKey, Slice]) -> list[Slice]:
    """Show each batch of a process from prepared to delivered.

    The flows pass through these slices: Perfetto reverses a flow whose target began before its source, as a
    batch's production began before its reads.
    """
    slices = []
    for delivery in produced:
        if delivery.prepared_ns is not None and delivery.prepared_ns < delivery.delivered_ns:
            item = Slice(delivery.prepared_ns, delivery.delivered_ns, f"batch {delivery.index}", "ready")
            ready[delivery.loader, delivery.number] = item
            slices.append(item)
    return slices


def _worker_batches(process: Process, produced: Deliveries, detail: Detail | None) -> list[Slice]:
    """Show all batches that the worker made, also those that nobody took."""
    delivered = {delivery.taken_ns: delivery for delivery in produced}
    made = []
    rows = process.rows(names.PRODUCED_ROW)
    rows = rows[rows["outcome"] != names.OUTCOMES.index("stop")]
    taken, prepared = (
        process.clock.times_to_session_ns(rows[field]) for field in ("taken_ns", "prepared_ns")
    )
    if detail is not None:
        inside = detail.holds_all(taken, prepared)
        rows, taken, prepared = rows[inside], taken[inside], prepared[inside]
    numbers = zip(
        taken.tolist(), prepared.tolist(), rows["index"].tolist(), rows["samples"].tolist(), strict=True
    )
    for taken_ns, prepared_ns, index, samples in numbers:
        delivery = delivered.get(taken_ns)
        epoch = delivery.epoch if delivery else None
        item = _batch(index, epoch, None if samples == -1 else samples, taken_ns, prepared_ns)
        if delivery is None and item.args is not None:
            item.args["delivered"] = False
        made.append(item)
    return made


def _batch(index: int, epoch: int | None, samples: int | None, start_ns: int, end_ns: int) -> Slice:
    return Slice(start_ns, end_ns, f"batch {index}", "batch", known(epoch=epoch, samples=samples))


Number = int | str
# Of each process its number, and per thread its number and slices: what the events name them by.
Threads = list[tuple[Number, list[tuple[Number, list[Slice]]]]]
_Timed = tuple[Event, int, int]  # with start and duration in ns

_encode = msgspec.json.Encoder().encode
_AT_ONCE = 20_000


def make_batches(timeline: Timeline, threads: Threads, first_flow: int) -> Iterator[EventBatch]:
    """Yield the slices, counters and flows; flows are numbered from `first_flow`."""
    return batched(_events(timeline, threads, first_flow))


def batched(events: Iterable[_Timed]) -> Iterator[EventBatch]:
    """Yield batches of a bounded size."""
    rest = iter(events)
    while timed := list(islice(rest, _AT_ONCE)):
        items, starts, durations = zip(*timed, strict=True)
        yield EventBatch(list(items), np.array(starts, np.int64), np.array(durations, np.int64))


def _events(timeline: Timeline, threads: Threads, first_flow: int) -> Iterator[_Timed]:
    thread_of: dict[Slice, tuple[Number, Number]] = {}
    for process, (pid, tracks) in zip(timeline.processes, threads, strict=True):
        for tid, slices in tracks:
            for item in slices:
                thread_of[item] = (pid, tid)
                args = Raw(_encode(item.args)) if item.args else UNSET
                event = Event(ph="X", pid=pid, tid=tid, name=item.name, cat=item.category, dur=0, args=args)
                yield event, item.start_ns, item.end_ns - item.start_ns
        for counter in process.counters:
            for time_ns, value in counter.points:
                args = Raw(_encode({counter.unit: value}))
                yield Event(ph="C", pid=pid, name=counter.name, args=args), time_ns, 0
    for number, flow in enumerate(timeline.flows, start=first_flow):
        last = len(flow.stops) - 1
        for position, (item, time_ns) in enumerate(flow.stops):
            pid, tid = thread_of[item]
            phase = "s" if position == 0 else "f" if position == last else "t"
            event = Event(ph=phase, pid=pid, tid=tid, name=flow.name, cat=flow.category, id=number, bp="e")
            yield event, time_ns, 0
