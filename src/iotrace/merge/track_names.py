"""What processes and threads are called in the merged timeline, and their order."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

from iotrace.merge.convert import Result
from iotrace.merge.input_files import DFTRACER, SESSION, InputFile
from iotrace.merge.plan import Input
from iotrace.session.listing import session_title as title_of_session
from iotrace.timeline.model import STARTUP, TORCH
from iotrace.timeline.writers.id_map import Process, ProcessTrack, Thread, ThreadTrack

# The order within a rank.
_MAIN, _DEVICE, _WORKER, _NOTES = range(4)
_NO_RANK = 1 << 30
_TORCH = "torch.profiler"
# unitrace's names of processes and devices.
_UNITRACE = re.compile(r"(?:RANK \d+ )?(HOST|DEVICE)<([^<>]*)>(.*)")


def arrange(inputs: list[Input]) -> list[Process]:
    """All processes with their threads, in the order: rank, main, devices with their streams, workers."""
    processes: dict[int, Process] = {}
    twice = _ranks_twice(inputs)
    for item in sorted(inputs, key=lambda item: item.file.kind == DFTRACER):
        file, rank = item.file, item.survey.rank
        prefix = "" if rank is None else f"rank {rank} · "
        if (rank is None and len(inputs) > 1 and file.kind != DFTRACER) or rank in twice:
            prefix = f"{prefix}{file.label} · "
        group = prefix.removesuffix(" · ")
        if file.kind == SESSION:  # its own names hold the rank
            prefix = f"{file.label} · " if rank in twice else ""
        session = _find_session(inputs, item)
        for process in item.result.tracks.processes.values():
            threads = _threads(file, item.result, process)
            if not threads and not process.used:
                continue
            made = processes.get(process.pid)
            if made is None:
                name, labels = _process_name(file, process), _labels(process)
                key = (
                    _NO_RANK if rank is None else rank,
                    _role(file, process),
                    item.job.index,
                    _order(process),
                )
                made = processes[process.pid] = Process(process.pid, prefix + name, labels, key)
                own = group
                if file.kind == SESSION:
                    own, _, name = name.rpartition(" · ")
                made.short = " · ".join((name, *(each for each in labels.split(", ") if _adds(each, name))))
                made.groups = tuple(filter(None, (session, own)))
            for thread in threads:
                thread.group = _choose_group(item, thread)
            made.threads += threads
    ordered = sorted(processes.values(), key=lambda made: made.key)
    for number, made in enumerate(ordered, start=1):
        made.order = number
        # A process that has no other tracks is seen best without a group; else a group stays shut, at last.
        if all(thread.group for thread in made.threads):
            made.threads = [replace(thread, group="") for thread in made.threads]
        made.threads.sort(key=lambda thread: thread.group)
        for order, thread in enumerate(made.threads, start=1):
            thread.order = order
    return ordered


def _adds(label: str, name: str) -> bool:
    return bool(label) and label not in name and f"({label.removeprefix('pid ')})" not in name


def _choose_group(item: Input, thread: Thread) -> str:
    """The group of a track within its process: what torch.profiler recorded, what the start was made of."""
    if item.survey.by_kineto or (item.file.kind == SESSION and thread.name.split(" · ")[0] == TORCH):
        return _TORCH
    # Imports within imports are so deep that workers below would be out of sight.
    return STARTUP if item.file.kind == SESSION and thread.name == STARTUP else ""


def make_title(inputs: list[Input]) -> str:
    """What the root of the tree of tracks is called: the one session, or how many inputs there are."""
    sessions = _session_names(inputs)
    if len(sessions) == 1:
        return next(iter(sessions.values()))
    return inputs[0].file.label if len(inputs) == 1 else f"{len(inputs)} inputs"


def _session_names(inputs: list[Input]) -> dict[Path, str]:
    """What each session is called: by its directory, of several of one name with the one above."""
    paths = dict.fromkeys(item.file.path.absolute() for item in inputs if item.file.kind == SESSION)
    titles = {path: title_of_session(path) for path in paths}
    used = Counter(titles.values())
    return {path: title if used[title] == 1 else "/".join(path.parts[-2:]) for path, title in titles.items()}


def _find_session(inputs: list[Input], item: Input) -> str:
    """The session of an input, or of the process that it recorded; empty where there is only one."""
    sessions = _session_names(inputs)
    if len(sessions) < 2:
        return ""
    if item.file.kind == SESSION:
        return sessions[item.file.path.absolute()]
    own = (other for other in inputs if other.file.kind == SESSION)
    session = next((other for other in own if set(other.survey.pids) & set(item.survey.pids[:1])), None)
    return "" if session is None else sessions[session.file.path.absolute()]


def _ranks_twice(inputs: list[Input]) -> set[int]:
    """Ranks that several files of the same kind claim: their files tell them apart."""
    claims = Counter((item.survey.rank, item.file.kind) for item in inputs)
    return {rank for (rank, _), count in claims.items() if rank is not None and count > 1}


def _role(file: InputFile, process: ProcessTrack) -> int:
    if file.kind == SESSION:
        role = process.name.rpartition(" · ")[2]
        return _MAIN if role.startswith("main") else _WORKER if role.startswith("worker") else _DEVICE
    if isinstance(process.raw, str):
        return _NOTES
    if process.labels.startswith("GPU") or _find_device(process):
        return _DEVICE
    if file.kind == DFTRACER:
        return _WORKER
    return _MAIN


def _order(process: ProcessTrack) -> tuple[Any, ...]:
    index = process.sort_index if process.sort_index is not None else 1 << 40
    return (index, isinstance(process.raw, str), str(process.raw).zfill(20))


def _process_name(file: InputFile, process: ProcessTrack) -> str:
    if file.kind == SESSION and process.name:
        return process.name
    if process.labels.startswith("GPU"):
        return process.labels
    if isinstance(process.raw, str):
        known = {"Spans": "profiler's spans", "Traces": "profiler's marks", "": "profiler's marks"}
        return known.get(process.raw) or process.name or _shown(process.raw)
    if file.kind == DFTRACER and not process.name:
        return f"process {process.raw} · POSIX calls"
    named = _UNITRACE.fullmatch(process.name)
    if named:
        device = _find_device(process)
        return f"GPU {device} of {named[2]}" if device else f"process {process.raw} of {named[2]}"
    return f"{process.name or 'process'} ({process.raw})"


def _find_device(process: ProcessTrack) -> str:
    """The device that unitrace means, as the address of its slot and its number; else empty."""
    named = _UNITRACE.fullmatch(process.name)
    return named[3].strip() if named and named[1] == "DEVICE" else ""


def _labels(process: ProcessTrack) -> str:
    is_process = isinstance(process.raw, int) and not process.labels.startswith("GPU")
    pid = f"pid {process.raw}" if is_process and not _find_device(process) else ""
    return ", ".join(item for item in (process.labels, pid) if item)


def _threads(file: InputFile, result: Result, process: ProcessTrack) -> list[Thread]:
    tracks = result.tracks
    own = [item for item in tracks.threads if item.raw_pid == process.raw and item.used]
    own.sort(key=lambda item: (_thread_key(process, item, tracks.base_track(item)), item.stacked, item.lane))
    plain = {item.raw_tid for item in own if not item.stacked and item.lane == 0}
    threads = []
    for item in own:
        name = _thread_name(file, process, tracks.base_track(item))
        if item.stacked and item.raw_tid in plain:
            name += " · begin and end events"
        threads.append(Thread(item.pid, item.tid, name, lane=item.lane))
    return threads


def _is_main(process: ProcessTrack, thread: ThreadTrack) -> bool:
    """Whether it is a process's first thread; stream 7 of GPU 7 is none."""
    is_device = process.labels.startswith("GPU") or _find_device(process)
    return thread.raw_tid == thread.raw_pid and not is_device


def _thread_key(process: ProcessTrack, item: ThreadTrack, base: ThreadTrack) -> tuple[Any, ...]:
    main = not _is_main(process, item)
    index = base.sort_index if base.sort_index is not None else 1 << 40
    return (main, index, isinstance(item.raw_tid, str), str(item.raw_tid).zfill(20))


def _thread_name(file: InputFile, process: ProcessTrack, base: ThreadTrack) -> str:
    if file.kind == DFTRACER:
        return "POSIX" if base.raw_tid == base.raw_pid else f"POSIX · thread {base.raw_tid}"
    if base.name:
        return f"main · {base.name}" if _is_main(process, base) else base.name
    if isinstance(base.raw_tid, str):
        return _shown(base.raw_tid)
    if process.labels.startswith("GPU"):
        return f"stream {base.raw_tid}"
    return "main thread" if _is_main(process, base) else f"thread {base.raw_tid}"


def _shown(raw: int | str) -> str:
    """Perfetto takes no empty name."""
    return str(raw).strip() or "(no name)"
