"""What a merge takes from the analysis, as batches of Chrome events: sessions rank by rank, and what is
derived of the devices in a trace of torch.profiler.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from msgspec import UNSET, Raw, UnsetType
from msgspec.structs import replace

from iotrace.analysis.device.accelerator import KERNEL_GAP_US, waits_of
from iotrace.analysis.device.activity import Activity
from iotrace.analysis.rank import RankAnalysis, SessionAnalysis
from iotrace.errors import TraceError
from iotrace.merge.input_files import InputFile
from iotrace.merge.survey import Survey
from iotrace.session import names
from iotrace.sources.chrome.batch import Event, EventBatch
from iotrace.sources.kineto.reader import read_kineto
from iotrace.sources.session import open_session
from iotrace.sources.xplane import XPLANE
from iotrace.timeline.build import Threads, batched, build, make_batches
from iotrace.timeline.device import derive_tracks
from iotrace.timeline.model import ProcessTracks, Timeline

_encode = msgspec.json.Encoder().encode
# Files of a session that are its own, not traces that were recorded with it.
_OWN = {names.MANIFEST, names.OUTCOME, names.FILES, names.PROCESS}


@lru_cache(maxsize=1)
def _opened(path: Path, job: str) -> SessionAnalysis:
    """Read a session; another `job` reads it again, as it may have changed since."""
    return SessionAnalysis(open_session(path))


@lru_cache(maxsize=1)
def _count_bytes(path: Path, job: str) -> int:
    """Sum up the session's files; once for all of its ranks."""
    return sum(item.stat().st_size for item in path.rglob("*") if item.is_file())


def list_ranks(path: Path, job: str) -> list[str]:
    """The names of the session's ranks."""
    return [rank.name for rank in _opened(path, job).session.ranks]


def foreign_traces(path: Path) -> list[Path]:
    """Traces of other profilers that lie in the session, such as those of torch.profiler."""
    paths = [item for pattern in ("*.json", "*.json.gz", f"*{XPLANE}") for item in path.rglob(pattern)]
    return sorted(
        item
        for item in paths
        if item.name not in _OWN
        and item.is_file()
        and not item.is_symlink()
        and not item.name.startswith(".")
        and names.OUT not in item.relative_to(path).parts[:-1]
    )


def survey_session(file: InputFile) -> Survey:
    """Look at a rank of a session."""
    analysis = _open_analysis(file)
    session, rank = analysis.session, analysis.rank
    survey = Survey(absolute=True, rank=rank.number, world_size=rank.world_size, host=rank.main.host)
    survey.clock_domain = rank.main.clock_domain
    survey.host_link = session.clocks.links.get(survey.clock_domain)
    unsure_ns = session.calls.unsure_ns
    survey.bound_ns = max(
        max(process.clock.bound_ns, unsure_ns.get(process.identity.node, 0)) for process in rank.processes
    )
    survey.clock = None if rank.main.clock.matches_realtime else rank.main.clock
    survey.pids = [process.pid for process in rank.processes]
    for process in rank.processes:
        survey.recordings |= {trace: process.recordings.get(trace.name) for trace in process.torch_traces}
    if file.session is not None:  # of all of its session: a timeline is built twice for no choice
        survey.first_ns = session.manifest.started_ns
        return survey
    survey.bytes = _count_bytes(file.path, file.job) // len(session.ranks)
    known = _opened(file.path, file.job)
    timeline = build(analysis, known.timed_failures, known.hangs, with_torch=False)
    slices = [item for process in timeline.processes for track in process.tracks for item in track.slices]
    survey.first_ns = min((item.start_ns for item in slices), default=None)
    survey.last_ns = max((item.end_ns for item in slices), default=None)
    for item in slices:
        if item.category == "step" and item.name.split()[-1].isdigit():
            survey.steps[int(item.name.split()[-1])] = (item.start_ns, item.end_ns)
    return survey


def _open_analysis(file: InputFile) -> RankAnalysis:
    if file.session is not None:
        return next(one for one in file.session.ranks if one.rank.name == file.session_rank)
    session = _opened(file.path, file.job).session
    # What is derived of a rank goes with it: the session's own analyses would keep that of all ranks.
    return RankAnalysis(session, next(rank for rank in session.ranks if rank.name == file.session_rank))


def session_batches(file: InputFile) -> Iterator[EventBatch]:
    """Yield a rank's processes, slices, counters and flows; times in ns of CLOCK_REALTIME."""
    # Of a session that is merged torch.profiler's traces are inputs of their own.
    known = file.session or _opened(file.path, file.job)
    with_torch = file.session is not None
    timeline = build(_open_analysis(file), known.timed_failures, known.hangs, with_torch)
    pids = [_pid(process, index) for index, process in enumerate(timeline.processes)]
    threads: Threads = [
        (pid, [(track.name, track.slices) for track in process.tracks])
        for pid, process in zip(pids, timeline.processes, strict=True)
    ]
    yield from batched((event, 0, 0) for event in _names(timeline, pids))
    yield from make_batches(timeline, threads, first_flow=0)


def _names(timeline: Timeline, pids: list[int | str]) -> Iterator[Event]:
    """Yield the names of processes, and the order of processes and tracks."""
    for index, (pid, process) in enumerate(zip(pids, timeline.processes, strict=True)):
        yield metadata_event(pid, "process_name", {"name": process.name}, UNSET)
        yield metadata_event(pid, "process_sort_index", {"sort_index": index}, UNSET)
        for order, track in enumerate(process.tracks):
            yield metadata_event(pid, "thread_sort_index", {"sort_index": order}, track.name)


def metadata_event(pid: int | str, name: str, args: dict[str, Any], tid: int | str | UnsetType) -> Event:
    """Make an event that names a process, or gives the place of a process or a track."""
    return Event(ph="M", pid=pid, tid=tid, name=name, args=Raw(_encode(args)))


def _pid(process: ProcessTracks, number: int) -> int | str:
    """The operating system's pid: it puts traces of the same process together."""
    digits = process.labels.removeprefix("pid ")
    return int(digits) if digits.isdigit() else f"process {number}"


def device_batches(path: Path, with_rank: bool) -> Iterator[EventBatch]:
    """Yield idle times, modules and launch queue of each device; times count from where the file's do.

    `with_rank` puts the trace's rank before the names of tracks that are pinned.
    """
    try:
        trace = read_kineto(path)
    except TraceError:  # the merge itself says what is damaged
        return
    events = replace(trace.events, start_ns=trace.events.start_ns - (trace.base_ns or 0))
    activity = Activity(replace(trace, events=events))
    if not activity.device.any():
        return
    prefix = f"rank {trace.rank} · " if with_rank and trace.rank is not None else ""
    pids = list(dict.fromkeys(pid for pid, _ in trace.threads))
    numbers = np.array([pids.index(pid) for pid, _ in trace.threads], dtype=np.int64)
    owner = numbers[events.thread]
    derived = derive_tracks(activity, waits_of(activity), KERNEL_GAP_US, owner, prefix)
    timeline = Timeline(0, [ProcessTracks("", "", *derived[number]) for number in derived])
    threads: Threads = [
        (pids[number], [(track.name, track.slices) for track in own.tracks])
        for number, own in derived.items()
    ]
    names = (
        metadata_event(pid, "thread_sort_index", {"sort_index": order - len(tracks)}, name)
        for pid, tracks in threads
        for order, (name, _) in enumerate(tracks)
    )
    yield from batched((event, 0, 0) for event in names)
    yield from make_batches(timeline, threads, first_flow=0)
