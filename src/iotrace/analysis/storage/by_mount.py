"""What a rank had of its storage: reads by mounted file system, bytes from the device by process and time."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Mapping, Sequence

import numpy as np
from msgspec.structs import replace

from iotrace.analysis.loop.deliveries import LoaderRun
from iotrace.analysis.results import DeviceReads, FileGroup, Io, MountIo
from iotrace.analysis.storage.directories import parents
from iotrace.analysis.storage.read_pattern import FileCalls, pattern_of
from iotrace.sources.clocks.session_clock import Times
from iotrace.sources.processes import Process
from iotrace.sources.records import Tick
from iotrace.sources.session import Rank, Session

_PARTS = 10  # of the run
Calls = Mapping[str, FileCalls]


def samples_of(loaders: Sequence[LoaderRun]) -> int | None:
    """How many samples the loaders delivered, those that ask another loader left out; None: not known."""
    total = 0
    for loader in loaders:
        if loader.description.wrapped:
            continue
        if not loader.deliveries.known("samples").all():
            return None
        total += int(loader.deliveries["samples"].sum())
    return total or None


def with_storage(
    groups: Sequence[FileGroup], io: Io, calls: Calls, session: Session, rank: Rank, samples: int | None
) -> tuple[list[FileGroup], Io]:
    """Add to files, groups and mounts how their reads went, and what processes read from the device."""
    files = [replace(file, pattern=pattern_of([calls[file.path]], samples)) for file in io.files]
    members: dict[str, list[FileCalls]] = defaultdict(list)
    for file in files:
        if file.group is not None:
            members[file.group].append(calls[file.path])
    found = [replace(group, pattern=pattern_of(members[group.path], samples)) for group in groups]
    data = [file.path for file in files if file.group is not None]
    io = replace(
        io,
        files=files,
        mounts=_mounts(data, calls, session, rank, samples),
        device_reads=_device_reads(session, rank),
    )
    return found, io


def _mounts(
    paths: Sequence[str], calls: Calls, session: Session, rank: Rank, samples: int | None
) -> list[MountIo] | None:
    """Sum up the data by mounted file system, most read first; None where the mounts were not recorded."""
    telemetry = session.telemetry_of(rank.main)
    mounts = dict(telemetry.sampler.mounts) if telemetry is not None else {}
    if not mounts:
        return None
    held: dict[str, list[FileCalls]] = defaultdict(list)
    for path in paths:
        if "://" not in path:
            held[_mount_of(os.path.join(session.manifest.cwd, path), mounts)].append(calls[path])
    found = []
    for point, own in held.items():
        pattern = pattern_of(own, samples)
        if pattern is None:
            continue
        plain = session.plain_reads(rank.main.identity.node, point)
        unseen = any(file.unsized_reads or file.maps for file in own)
        found.append(
            MountIo(
                point=point,
                type=mounts.get(point, "?"),
                files=len(own),
                read_bytes=None if unseen else sum(file.read_bytes for file in own),
                pattern=pattern,
                plain_bytes_per_s=None if plain is None else plain.bytes_per_s,
                plain_cold=None if plain is None else plain.cold,
            )
        )
    return sorted(found, key=lambda mount: -(mount.read_bytes or 0))


def _mount_of(path: str, mounts: Mapping[str, str]) -> str:
    return next((each for each in (path, *parents(path)) if each in mounts), "/")


def _device_reads(session: Session, rank: Rank) -> list[DeviceReads] | None:
    """What each process had read from the device until each of its accounts; None where none has any.

    The kernel adds the account of a child to its parent's when that waits for it: it is taken off again.
    """
    accounts = [(process, *_account(process)) for process in rank.processes]
    own = [each for each in accounts if len(each[1])]
    if not own:
        return None
    begin = min(int(times[0]) for _, times, _ in own)
    end = max(int(times[-1]) for _, times, _ in own)
    bounds = np.linspace(begin, end, _PARTS + 1).astype(np.int64)
    found = []
    for process, times, amounts in own:
        for child in session.children_of(process):
            theirs = _account(child)
            if child.ended and len(theirs[0]):
                reaped = times >= theirs[0][-1]
                amounts = np.where(reaped, np.maximum(amounts - theirs[1][-1], 0), amounts)
        until = np.searchsorted(times, bounds, side="right")
        grown = np.concatenate(([0], np.maximum.accumulate(amounts)))[until]
        grown[0] = 0  # what was read before the first account belongs to the first part
        found.append(
            DeviceReads(
                pid=process.pid,
                role="main" if process is rank.main else process.role,
                total_bytes=int(grown[-1]),
                at_seconds=[round(at, 3) for at in ((bounds - begin) / 1e9).tolist()],
                read_bytes=np.diff(grown).tolist(),
            )
        )
    return found


def _account(process: Process) -> tuple[Times, Times]:
    ticks = [tick for tick in process.of_type(Tick) if tick.read_bytes is not None]
    times = process.clock.times_to_session_ns([tick.clock[0] for tick in ticks])
    return times, np.array([tick.read_bytes for tick in ticks], dtype=np.int64)
