"""Read amplification: bytes fetched, bytes decoded of them, bytes used.

What memory maps had read from storage for what was used of them, as far as the kernel tells.

No call reads a mapped file. The kernel counts what a process had read from storage, not of which file: what
its read calls may have had is taken off, so that what is left is a lower bound of what page faults fetched.
"""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from itertools import chain

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

from iotrace.analysis.results import (
    Amplification,
    ChunkedArray,
    FileGroup,
    Io,
    MappedReads,
    RowGroups,
    total,
)
from iotrace.analysis.storage.arrays import arrays_of
from iotrace.analysis.storage.kernel_account import accounts_of_loop
from iotrace.analysis.storage.read_pattern import FileCalls
from iotrace.session.names import KIND_ITEM, KIND_MAPPED, KIND_READ_PATH
from iotrace.sources.columns import Columns
from iotrace.sources.paths import Paths
from iotrace.sources.processes import Process
from iotrace.sources.records import Mapped
from iotrace.sources.session import Rank

_SMALLEST_PAGE, _ELEMENT = 4096, 16
_BY_CALLS = 0.5  # of the bytes from storage
_OF_ACCESSES = 0.01  # a process with fewer of them made no batches of it
_WORTH_UNMAPPED = 64  # fetched / touched at most: where single pages were faster (docs/culprits.md)

_NO_ACCOUNT = "the kernel tells no bytes from storage of these processes"
_OTHER_MAPS = "several files were mapped, and the kernel counts bytes from storage by process"
_CHILDREN = "the process had children, whose bytes from storage the kernel adds to its own"
_NOT_COUNTED = "pages came by faults, but this file system counts no bytes from storage"
_CALLS = "read calls of its processes may have had most of what came from storage"
_NO_TRACE = "which bytes of its own map a program or a library takes leaves no trace"
_NOT_DECODED = "a memory map has nothing to decode"


class MapFetched(msgspec.Struct, frozen=True):
    """Bytes used of maps; those fetched at least, None for the reason in `why`."""

    used_bytes: int
    fetched_bytes: int | None
    why: str
    reads: MappedReads


def mapped_files(rank: Rank, paths: Paths) -> dict[str, list[tuple[Process, Mapped]]]:
    """The last sums of each process's accesses to mapped files, by file."""
    found: dict[str, list[tuple[Process, Mapped]]] = {}
    for process in rank.processes:
        for path, record in {record.path: record for record in process.of_type(Mapped)}.items():
            found.setdefault(paths.shown(path), []).append((process, record))
    return found


def fetched_by_faults(
    members: Collection[str], mapped: Mapping[str, list[tuple[Process, Mapped]]], rank: Rank
) -> MapFetched:
    """Tell what was fetched of the mapped files `members`, which are one group."""
    own = [pair for path in members for pair in mapped.get(path, ())]
    accesses = sum(record.accesses for _, record in own)
    # Of all maps of a process: the latest count, whatever file it stands by, is its largest.
    latest: Counter[int] = Counter()
    for process, record in chain.from_iterable(mapped.values()):
        latest[process.pid] = max(latest[process.pid], record.elements)
    elements = sum(latest[pid] for pid in {process.pid for process, _ in own})
    odd = sum(record.odd for _, record in own) + elements
    makers = {process.pid: process for process, record in own if record.accesses >= _OF_ACCESSES * accesses}
    faults = sum(_faults(process) for process in makers.values())
    touched = None if odd else sum(record.pages * record.page_bytes for _, record in own)
    fetched, why = _fetched([*makers.values()], rank, faults)
    if any(path not in members for path in mapped):
        fetched, why = None, _OTHER_MAPS
    worth = fetched is not None and touched is not None and fetched >= _WORTH_UNMAPPED * touched > 0
    used = sum(record.bytes for _, record in own) + elements * _ELEMENT
    apart = max((record for _, record in own), key=lambda record: record.apart, default=None)
    return MapFetched(
        used_bytes=used,
        fetched_bytes=fetched,
        why=why or _NOT_DECODED,
        reads=MappedReads(
            accesses=accesses,
            touched_bytes=touched,
            apart_fraction=sum(record.apart for _, record in own) / used if used else None,
            piece_bytes=apart.piece if apart is not None and apart.apart else None,
            gap_bytes=apart.gap if apart is not None and apart.apart else None,
            major_faults=faults,
            predicted_bytes=touched if worth else None,
        ),
    )


def fetched_by_own_maps(path: str, others: Collection[str], rank: Rank) -> tuple[int | None, str]:
    """Tell what was fetched of the file `path`, which the program or a library maps itself, or why not."""
    if any(other != path for other in others):
        return None, f"{_NO_TRACE}; {_OTHER_MAPS}"
    makers = [process for process in rank.processes if (process.spans["kind"] == KIND_ITEM).any()]
    fetched, why = _fetched(makers, rank, sum(map(_faults, makers)))
    return fetched, f"{_NO_TRACE}; {why}" if why else _NO_TRACE


def _faults(process: Process) -> int:
    return int(process.spans["major_faults"][process.spans["kind"] == KIND_ITEM].sum())


def _fetched(makers: list[Process], rank: Rank, faults: int) -> tuple[int | None, str]:
    read = called = 0
    for process in makers:
        ticks = [tick for tick in accounts_of_loop(process) if tick.read_bytes is not None]
        if not ticks:
            return None, _NO_ACCOUNT
        if any(child.identity.ppid == process.pid for child in rank.processes):
            return None, _CHILDREN
        # A forked child's account begins with it.
        before = None if process.identity.role == "forked" else ticks[0]
        read += (ticks[-1].read_bytes or 0) - (before.read_bytes or 0 if before else 0)
        called += (ticks[-1].rchar or 0) - (before.rchar or 0 if before else 0)
    if faults * _SMALLEST_PAGE > read:
        return None, _NOT_COUNTED
    if read and called > _BY_CALLS * read:
        return None, _CALLS
    return max(0, read - called), ""


_PARQUET = (".parquet", ".pq")
_ROWS = "which rows of a row group the program then takes leaves no trace"
_LESS = "; calls with a filter, head and take give less than they decode, others do not say of which file"
_MAPPED = "page faults of a memory map fetch what no call tells"
_KEPT = "HDF5 may have kept decoded chunks in its cache"
_OTHERS = "not all of its files are arrays in chunks whose accesses were seen"
_ODD = "a selection by a list or a mask does not tell the chunks that it touches"


def with_amplification(
    groups: Sequence[FileGroup],
    io: Io,
    calls: Mapping[str, FileCalls],
    rank: Rank,
    paths: Paths,
    row_groups: Mapping[str, RowGroups],
    passes: Mapping[int, int],
) -> list[FileGroup]:
    """Add to each group how much was fetched and decoded for what was used, where its format tells.

    `passes` says of each process how often it went over the data.
    """
    arrays, odd = arrays_of(rank, paths, calls, passes)
    given = given_bytes(rank, paths)
    members: dict[str, list[str]] = defaultdict(list)
    for file in io.files:
        if file.group is not None:
            members[file.group].append(file.path)
    mapped = mapped_files(rank, paths)
    return [
        _with_own(group, members[group.path], arrays, odd, given, row_groups, mapped, calls, rank)
        for group in groups
    ]


def _with_own(
    group: FileGroup,
    members: list[str],
    arrays: Mapping[str, list[ChunkedArray]],
    odd: set[str],
    given: Mapping[tuple[str, int], int | None],
    row_groups: Mapping[str, RowGroups],
    mapped: Mapping[str, list[tuple[Process, Mapped]]],
    calls: Mapping[str, FileCalls],
    rank: Rank,
) -> FileGroup:
    # An array of HDF5 lies in a file of the group, one of zarr is a directory that holds some.
    within = [path for path in arrays if path in members or any(_in(each, path) for each in members)]
    own = [array for path in within for array in arrays[path]]
    fetched, decoded, used, why, reads = group.read_bytes, None, None, "", None
    if group.chunks is not None:
        decoded, used = group.chunks.decoded_bytes, group.chunks.used_bytes
    elif own:
        if not all(_known(path, within) for path in members):
            why = _OTHERS
        elif any(path in odd for path in within):
            why = _ODD
        else:
            used = sum(array.used_bytes for array in own)
            if all(array.decoded_at_least_bytes == array.decoded_at_most_bytes for array in own):
                decoded = sum(array.decoded_at_most_bytes for array in own)
            else:
                why = _KEPT
    elif members and all(path.endswith(_PARQUET) for path in members):
        decoded, why = total(given.get((path, KIND_READ_PATH)) for path in members), _ROWS
        why += _LESS if decoded is None else ""
    elif members and all(path in mapped for path in members):
        told = fetched_by_faults(members, mapped, rank)
        fetched, used, why, reads = told.fetched_bytes, told.used_bytes, told.why, told.reads
    elif members and all((path, KIND_MAPPED) in given for path in members):
        used, why = sum(given.get((path, KIND_MAPPED)) or 0 for path in members), _MAPPED
    elif (own_map := _own_map(members, calls)) is not None:
        maps = {*mapped, *(path for path, each in calls.items() if each.maps)}
        fetched, why = fetched_by_own_maps(own_map, maps, rank)
        fetched = total([fetched, *(calls[path].read_bytes for path in members if path in calls)])
    else:
        return group
    if fetched is None and not why:
        why = _MAPPED
    return replace(
        group,
        amplification=Amplification(
            fetched_bytes=fetched,
            decoded_bytes=decoded,
            used_bytes=used,
            fetched_per_used=fetched / used if fetched is not None and used else None,
            decoded_per_used=decoded / used if decoded is not None and used else None,
            why=why,
            arrays=own,
            row_groups=[row_groups[path] for path in members if path in row_groups],
            mapped=reads,
        ),
    )


def _own_map(members: Sequence[str], calls: Mapping[str, FileCalls]) -> str | None:
    """The only file of a group that is mapped: no call reads it, and what others gave is known."""
    own = [path for path in members if path in calls and calls[path].maps]
    if (
        len(own) != 1
        or calls[own[0]].reads
        or any(calls[path].unsized_reads for path in members if path in calls)
    ):
        return None
    return own[0]


def _in(path: str, directory: str) -> bool:
    return path.startswith(f"{directory}/")


def _known(path: str, arrays: Sequence[str]) -> bool:
    """Whether a file is one of the arrays, or in one, or metadata beside them."""
    name = os.path.basename(path)
    return (
        name.startswith(".z") or name == "zarr.json" or any(path == own or _in(path, own) for own in arrays)
    )


def given_bytes(rank: Rank, paths: Paths) -> dict[tuple[str, int], int | None]:
    """The bytes that libraries gave of each file, by the kind of span; None where a span does not tell.

    Calls within calls give the same bytes: the innermost are counted.
    """
    found: dict[tuple[str, int], int | None] = {}
    for process in rank.processes:
        spans = process.spans
        for kind in (KIND_READ_PATH, KIND_MAPPED):
            own = spans[spans["kind"] == kind]
            for number in np.unique(own["file"]).tolist():
                if number not in process.span_files:
                    continue
                of_file = own[own["file"] == number]
                sizes = of_file["bytes"][_innermost(of_file)]
                key = paths.shown(process.span_files[number]), kind
                before = found.get(key, 0)
                found[key] = None if before is None or (sizes < 0).any() else before + int(sizes.sum())
    return found


def _innermost(spans: Columns) -> npt.NDArray[np.intp]:
    """Find the rows of the spans that hold no other one of the same thread."""
    ends_ns = spans["start_ns"] + spans["duration_ns"]
    order = np.lexsort((-spans["duration_ns"].astype(np.int64), spans["start_ns"], spans["tid"]))
    tids, starts_ns = spans["tid"][order], spans["start_ns"][order]
    holds = (tids[1:] == tids[:-1]) & (starts_ns[1:] < ends_ns[order][:-1])
    innermost: npt.NDArray[np.intp] = order[~np.append(holds, False)[: len(order)]]
    return innermost
