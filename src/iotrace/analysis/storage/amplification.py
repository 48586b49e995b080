"""Read amplification: bytes fetched, bytes decoded of them, bytes used; which chunks would fit the accesses.

HDF5 and zarr decode a chunk whole. How many chunks the accesses touched is recorded; HDF5 keeps some of them
decoded, so what was decoded lies between two bounds, which are one where a chunk does not fit its cache.

What memory maps had read from storage for what was used of them, as far as the kernel tells.

No call reads a mapped file. The kernel counts what a process had read from storage, not of which file: what
its read calls may have had is taken off, so that what is left is a lower bound of what page faults fetched.
"""

from __future__ import annotations

import json
import os
import shlex
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from itertools import chain
from math import prod

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
from iotrace.analysis.storage.kernel_account import accounts_of_loop
from iotrace.analysis.storage.read_pattern import FileCalls
from iotrace.session.names import KIND_ITEM, KIND_MAPPED, KIND_READ_PATH
from iotrace.sources.columns import Columns
from iotrace.sources.paths import Paths
from iotrace.sources.processes import Process
from iotrace.sources.records import ArrayInfo, Chunked, Mapped
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
_MOSTLY = 0.8  # of the accesses, that have one shape
_WORTH = 1.5  # decoded at least / predicted at most
_LEAST_BYTES, _MOST_BYTES = 4 << 10, 64 << 20  # of a chunk: smaller ones cost more in calls than they save
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
) -> list[FileGroup]:
    """Add to each group how much was fetched and decoded for what was used, where its format tells."""
    arrays, odd = _arrays(rank, paths, calls)
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


def _arrays(
    rank: Rank, paths: Paths, calls: Mapping[str, FileCalls]
) -> tuple[dict[str, list[ChunkedArray]], set[str]]:
    """Sum up the accesses of all processes to each array, by file; and the files with odd accesses."""
    told: dict[tuple[str, str], list[Chunked]] = defaultdict(list)
    sharded: set[str] = set()
    for process in rank.processes:
        last = {(record.path, record.dataset): record for record in process.of_type(Chunked)}
        for (path, dataset), record in last.items():
            told[paths.shown(path), dataset].append(record)
        sharded |= {paths.shown(info.path) for info in process.of_type(ArrayInfo) if info.sharded}
    found: dict[str, list[ChunkedArray]] = defaultdict(list)
    alone = Counter(path for path, _ in told)
    for (path, dataset), records in told.items():
        # Of a file with several arrays, nobody knows which of them a call fetched.
        loads = calls.get(path) if dataset and alone[path] == 1 else None
        array = _array(path, dataset, records, loads)
        found[path].append(array if path in sharded else _with_suggestion(array, records[-1].version))
    for path, arrays in found.items():
        found[path] = _with_one_command(arrays)
    return found, {path for (path, _), records in told.items() if any(record.odd for record in records)}


def _array(path: str, dataset: str, records: Sequence[Chunked], calls: FileCalls | None) -> ChunkedArray:
    about = records[-1]
    chunk_bytes = prod(about.chunk) * about.item_bytes
    touched = sum(record.touched for record in records)
    extents: Counter[tuple[int, ...]] = Counter()
    for record in records:
        for extent, count in record.extents:
            extents[tuple(extent)] += count
    counted = sum(record.accesses - record.odd for record in records)
    ((access, most),) = extents.most_common(1) or [((), 0)]
    least, largest = (touched, touched) if chunk_bytes > about.cache_bytes else (0, touched)
    if least != largest and calls is not None:
        largest = min(touched, calls.reads)  # a chunk is fetched by one call
        least = min(largest, calls.filled - calls.small)  # no metadata is read in pieces of 64 KiB
    used_bytes = sum(prod(extent) * count for extent, count in extents.items()) * about.item_bytes
    return ChunkedArray(
        path=path,
        dataset=dataset,
        shape=about.shape,
        chunk=about.chunk,
        chunk_bytes=chunk_bytes,
        access=[*access] if counted and most >= _MOSTLY * counted else None,
        accesses=sum(record.accesses for record in records),
        chunks_touched=touched,
        used_bytes=used_bytes,
        decoded_at_least_bytes=least * chunk_bytes if about.whole else used_bytes,
        decoded_at_most_bytes=largest * chunk_bytes if about.whole else used_bytes,
    )


def _with_suggestion(array: ChunkedArray, zarr: str) -> ChunkedArray:
    """Add the chunks that fit the accesses, where they would decode much less for certain."""
    if array.access is None or not prod(array.chunk):
        return array
    chunk = [min(each, size) for each, size in zip(array.access, array.shape, strict=True)]
    chunk_bytes = prod(chunk) * array.chunk_bytes // prod(array.chunk)
    # Where an access begins is not known: between the ends it may lie across two chunks.
    each = prod(1 if length in (1, size) else 2 for length, size in zip(chunk, array.shape, strict=True))
    predicted = array.accesses * each * chunk_bytes
    if not _LEAST_BYTES <= chunk_bytes <= _MOST_BYTES or array.decoded_at_least_bytes < _WORTH * predicted:
        return array
    command = (
        _h5repack({array.dataset: chunk}, array.path)
        if array.dataset
        else _from_array(array, chunk)
        if _from_array_is_there(zarr)
        else ""
    )
    return replace(array, suggested_chunk=chunk, predicted_bytes=predicted, command=command)


def _with_one_command(arrays: list[ChunkedArray]) -> list[ChunkedArray]:
    """Let the command of each array of an HDF5 file re-chunk all of them: it writes the file anew."""
    suggested = [array for array in arrays if array.dataset and array.suggested_chunk]
    if len(suggested) < 2:
        return arrays
    command = _h5repack({array.dataset: array.suggested_chunk or [] for array in suggested}, arrays[0].path)
    return [replace(array, command=command) if array in suggested else array for array in arrays]


def _h5repack(chunks: Mapping[str, Sequence[int]], path: str) -> str:
    layouts = [f"{name.lstrip('/')}:CHUNK={'x'.join(map(str, chunk))}" for name, chunk in chunks.items()]
    root, extension = os.path.splitext(path)
    options = [word for layout in layouts for word in ("-l", layout)]
    return shlex.join(["h5repack", *options, path, f"{root}.rechunked{extension}"])


def _from_array(array: ChunkedArray, chunk: Sequence[int]) -> str:
    head, found, rest = array.path.partition(".zarr")
    target = f"{head}.rechunked{found}{rest}" if found else f"{array.path}.rechunked"
    opened = f'zarr.open_array({json.dumps(array.path)}, mode="r")'
    code = f"import zarr; zarr.from_array({json.dumps(target)}, data={opened}, chunks={tuple(chunk)})"
    return shlex.join(["python", "-c", code])


def _from_array_is_there(version: str) -> bool:
    """Whether this zarr has `zarr.from_array`, which 3.0 began without."""
    parts = version.split(".")[:2]
    return all(part.isdigit() for part in parts) and [*map(int, parts)] >= [3, 1]
