"""Arrays that HDF5 and zarr store in chunks: what accesses ask of them, and which chunks would fit these.

A chunk is decoded whole. How many chunks the accesses touched is recorded; HDF5 keeps some of them
decoded, so what was decoded lies between two bounds, which are one where a chunk does not fit its cache.
"""

from __future__ import annotations

import json
import os
import shlex
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from math import prod

from msgspec.structs import replace

from iotrace.analysis.results import ChunkedArray, total
from iotrace.analysis.storage.read_pattern import FileCalls
from iotrace.sources.paths import Paths
from iotrace.sources.records import ArrayInfo, Chunked
from iotrace.sources.session import Rank

_MOSTLY = 0.8  # of the accesses, that have one shape
_WORTH = 1.5  # decoded at least / predicted at most
_ANEW, _FEW_ANEW = 0.5, 16  # of the accesses: through objects that were made anew
_NO_CHUNK_BYTES = 4 << 10  # of a read of what says where chunks lie, at most
_LEAST_BYTES, _MOST_BYTES = 4 << 10, 64 << 20  # of a chunk: smaller ones cost more in calls than they save
# What a chunk costs beside its bytes, in ms, in zarr and in HDF5; and bytes that are decoded in 1 ms, about.
_ZARR_CHUNK_MS, _HDF5_CHUNK_MS, _DECODED_BY_MS = 0.2, 0.003, 500e3
_WORTH_LARGER = 0.5  # of what small chunks cost


def arrays_of(
    rank: Rank, paths: Paths, calls: Mapping[str, FileCalls], passes: Mapping[int, int]
) -> tuple[dict[str, list[ChunkedArray]], set[str]]:
    """Sum up the accesses of all processes to each array, by file; and the files with odd accesses."""
    told: dict[tuple[str, str], list[Chunked]] = defaultdict(list)
    once: Counter[tuple[str, str]] = Counter()
    sharded: set[str] = set()
    for process in rank.processes:
        last = {(record.path, record.dataset): record for record in process.of_type(Chunked)}
        for (path, dataset), record in last.items():
            key = paths.shown(path), dataset
            told[key].append(record)
            once[key] += passes.get(process.pid, 0) if record.complete else 0
        sharded |= {paths.shown(info.path) for info in process.of_type(ArrayInfo) if info.sharded}
    found: dict[str, list[ChunkedArray]] = defaultdict(list)
    alone = Counter(path for path, _ in told)
    for (path, dataset), records in told.items():
        # Of a file with several arrays, nobody knows which of them a call fetched.
        loads = calls.get(path) if dataset and alone[path] == 1 else None
        array = _array(path, dataset, records, loads, once[path, dataset])
        found[path].append(array if path in sharded else _with_suggestion(array, records[-1].version))
    found = {path: _with_lost(arrays, told, calls.get(path)) for path, arrays in found.items()}
    return _with_common_commands(found), {
        path for (path, _), records in told.items() if any(record.odd for record in records)
    }


def _array(
    path: str, dataset: str, records: Sequence[Chunked], calls: FileCalls | None, once: int
) -> ChunkedArray:
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
    least_bytes = least * chunk_bytes
    if least != largest and calls is not None:
        largest = min(touched, calls.reads)  # a chunk is fetched by one call
        least = min(largest, calls.filled - calls.small)  # no metadata is read in pieces of 64 KiB
        # Filters make chunks smaller; what is no chunk is read in small pieces.
        fetched_bytes = calls.read_bytes - _NO_CHUNK_BYTES * calls.reads
        least_bytes = min(largest * chunk_bytes, max(least * chunk_bytes, fetched_bytes))
    asked = sum(prod(extent) * count for extent, count in extents.items()) * about.item_bytes
    used_bytes = _sum((record.asked_bytes for record in records), asked)
    taken_bytes = _sum((record.elements for record in records), asked // about.item_bytes) * about.item_bytes
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
        decoded_at_least_bytes=least_bytes if about.whole else taken_bytes,
        decoded_at_most_bytes=largest * chunk_bytes if about.whole else taken_bytes,
        complete=sum(record.complete for record in records),
        complete_once=once,
        field=next((record.field for record in records if record.field), ""),
        array_bytes=prod(about.shape) * about.item_bytes,
        filtered=about.filtered,
        objects=sum(record.objects for record in records),
    )


def _with_lost(
    arrays: list[ChunkedArray], told: Mapping[tuple[str, str], Sequence[Chunked]], calls: FileCalls | None
) -> list[ChunkedArray]:
    """Count the chunks that were decoded again as objects were made anew, by what was read of the file.

    A chunk is as large in it as all of them are on average, at least.
    """
    again = [each for each in arrays if each.dataset and each.objects >= _ANEW * each.accesses > _FEW_ANEW]
    if not again or calls is None or not calls.distinct_bytes:
        return arrays
    chunks = sum(
        prod(-(-size // each) for size, each in zip(array.shape, array.chunk, strict=True))
        for array in arrays
    )
    touched = sum(each.chunks_touched for each in again)
    fetched = calls.read_bytes / (calls.distinct_bytes / chunks)
    kept = {each.dataset: sum(record.kept for record in told[each.path, each.dataset]) for each in again}
    # What the cache would not have held was fetched in any case.
    lost = max(0.0, min(fetched, touched) - (touched - sum(kept.values())))
    share = lost / max(1, sum(kept.values()))
    return [
        replace(each, lost=round(share * kept[each.dataset])) if each.dataset in kept else each
        for each in arrays
    ]


def _sum(counts: Iterable[int | None], unknown: int) -> int:
    found = total(counts)
    return unknown if found is None else found


def _with_suggestion(array: ChunkedArray, zarr: str) -> ChunkedArray:
    """Add the chunks that fit the accesses, where they would decode much less for certain."""
    if array.access is None or not prod(array.chunk):
        return array
    access, item_bytes = array.access, array.chunk_bytes // prod(array.chunk)
    chunk = _at_least(access, array.shape, _LEAST_BYTES // max(item_bytes, 1))
    chunk_bytes = prod(chunk) * item_bytes
    predicted = array.accesses * _touched(access, chunk, array.shape) * chunk_bytes
    if not _LEAST_BYTES <= chunk_bytes <= _MOST_BYTES or array.decoded_at_least_bytes < _WORTH * predicted:
        larger = _larger(array, access, item_bytes) if array.takes_small_chunks else None
        if larger is None:
            return array
        chunk = larger
        predicted = array.accesses * _touched(access, chunk, array.shape) * prod(chunk) * item_bytes
    command = (
        _h5repack({array.dataset: chunk}, array.path)
        if array.dataset
        else _from_array(array, chunk)
        if _from_array_is_there(zarr)
        else ""
    )
    return replace(array, suggested_chunk=chunk, predicted_bytes=predicted, command=command)


def _touched(access: Sequence[int], chunk: Sequence[int], shape: Sequence[int]) -> int:
    """Count the chunks that an access lies across at most: where it begins is not known."""
    return prod(
        1 if own == size else (length - 1) // own + (2 if own > 1 and length > 1 else 1)
        for length, own, size in zip(access, chunk, shape, strict=True)
    )


def _larger(array: ChunkedArray, access: Sequence[int], item_bytes: int) -> list[int] | None:
    """Choose chunks for accesses that take many small ones: all of an access, or single places of first axes.

    Samples that slide along an axis share what single places hold; what an access crosses is decoded twice.
    """
    by_chunk_ms = _HDF5_CHUNK_MS if array.dataset else _ZARR_CHUNK_MS

    def cost_ms(chunks: float, decoded_bytes: float) -> float:
        return chunks * by_chunk_ms + decoded_bytes / _DECODED_BY_MS

    now = (array.chunks_touched / array.accesses, array.decoded_at_least_bytes / array.accesses)
    best, best_ms = None, _WORTH_LARGER * cost_ms(*now)
    parts = [axis for axis, length in enumerate(access) if length < array.shape[axis]]
    for singly in range(len(parts) + 1):
        chunk = [1 if axis in parts[:singly] else length for axis, length in enumerate(access)]
        each, chunk_bytes = _touched(access, chunk, array.shape), prod(chunk) * item_bytes
        taken_ms = cost_ms(each, each * chunk_bytes)
        if _LEAST_BYTES <= chunk_bytes <= _MOST_BYTES and taken_ms < best_ms:
            best, best_ms = chunk, taken_ms
    return best


def _at_least(access: Sequence[int], shape: Sequence[int], elements: int) -> list[int]:
    """The shape of an access as a chunk, with more of the first axes where it holds too few elements."""
    chunk = [min(each, size) for each, size in zip(access, shape, strict=True)]
    for axis, size in enumerate(shape):
        more = -(-elements // max(prod(chunk), 1))
        chunk[axis] = min(size, chunk[axis] * more) if more > 1 else chunk[axis]
    return chunk


def _with_common_commands(found: Mapping[str, list[ChunkedArray]]) -> dict[str, list[ChunkedArray]]:
    """Let the command of each array of an HDF5 file, or of a store, re-chunk all that it suggests of it."""
    stores: dict[str, list[ChunkedArray]] = defaultdict(list)
    for array in (array for arrays in found.values() for array in arrays if array.command):
        stores[array.path if array.dataset else _store_of(array.path)].append(array)
    commands = {
        store: _h5repack({array.dataset: array.suggested_chunk or [] for array in arrays}, store)
        if arrays[0].dataset
        else _copied_store(store, arrays)
        for store, arrays in stores.items()
        if arrays[0].dataset or (arrays[0].path != store and "://" not in store)
    }
    return {
        path: [
            replace(each, command=commands.get(path if each.dataset else _store_of(path), each.command))
            if each.command
            else each
            for each in arrays
        ]
        for path, arrays in found.items()
    }


def _store_of(path: str) -> str:
    """The store that holds an array of zarr; the array itself where its path names none."""
    head, found, rest = path.partition(".zarr/")
    return f"{head}.zarr" if found and rest else path


def _copied_store(store: str, arrays: Sequence[ChunkedArray]) -> str:
    """Copy a store with its attributes and all that it holds beside; these arrays with other chunks."""
    target = f"{store.removesuffix('.zarr')}.rechunked.zarr"
    chunks = {array.path[len(store) + 1 :]: tuple(array.suggested_chunk or ()) for array in arrays}
    alike = len({*chunks.values()}) == 1
    named = ", ".join(f"{json.dumps(name)}: {chunk}" for name, chunk in chunks.items())
    each = f"n in {json.dumps([*chunks])}" if alike else f"n, c in {{{named}}}.items()"
    code = (
        f"import shutil, zarr; old, new = {json.dumps(store)}, {json.dumps(target)}; "
        "shutil.copytree(old, new); "
        '[zarr.from_array(f"{new}/{n}", data=(a := zarr.open_array(f"{old}/{n}", mode="r")), '
        f"chunks={next(iter(chunks.values())) if alike else 'c'}, attributes=dict(a.attrs), "
        'dimension_names=getattr(a.metadata, "dimension_names", None), overwrite=True) '
        f'for {each}]; zarr.open_group(old, mode="r").metadata.consolidated_metadata and '
        "zarr.consolidate_metadata(new)"
    )
    return shlex.join(["python", "-c", code])


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
