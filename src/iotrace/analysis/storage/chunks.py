"""Stores of chunks: how many were read, how often, and how much of what was decoded was used.

Row groups of Parquet files: how often each was decoded, and which size would fit the reads.

A row group is decoded whole. Which of its rows a program then takes leaves no trace; that the same one is
decoded again and again within one pass over the data does. Calls that take a file whole are told apart:
smaller row groups spare nothing there, to keep what was read does.
"""

from __future__ import annotations

import json
import os
import re
import shlex
from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
from msgspec.structs import replace

from iotrace.analysis.results import Chunks, FileGroup, FileIo, Io, RowGroups, total
from iotrace.analysis.storage.amplification import given_bytes
from iotrace.analysis.storage.directories import parents
from iotrace.session.names import KIND_READ_PATH
from iotrace.sources.paths import Paths
from iotrace.sources.records import ArrayInfo, Gridded, RowGroupsRead
from iotrace.sources.session import Rank

_FIRST = re.compile(r"(?:c/)?(\d+)(?:[./]|$)")  # of a chunk's key: its place along the first axis


class _Array(msgspec.Struct):
    about: ArrayInfo
    used_bytes: int | None = 0
    opens: int = 0
    places: list[int] = msgspec.field(default_factory=list)
    read: int = 0


def with_chunks(groups: Sequence[FileGroup], io: Io | None, rank: Rank, paths: Paths) -> list[FileGroup]:
    """Add to each group what is known of the chunks in it."""
    arrays = {paths.shown(info.path): _Array(info) for info in _find_records(rank, ArrayInfo)}
    if not arrays or io is None:
        return list(groups)
    dates = {paths.shown(info.path): info for info in _find_records(rank, Gridded)}
    given = given_bytes(rank, paths)
    for path, array in arrays.items():
        array.used_bytes = given.get((path, KIND_READ_PATH), 0)
    holding: dict[str, set[str]] = defaultdict(set)
    for row in io.files:
        name = _array_of(row, arrays)
        if name is not None and row.group is not None:
            _add_chunk(arrays[name], row, row.path[len(name) + 1 :])
            holding[row.group].add(name)
    found = []
    for group in groups:
        own = [arrays[name] for name in sorted(holding[group.path])]
        found.append(replace(group, chunks=_chunks(own, group.path, dates)) if own else group)
    return found


def _find_records(rank: Rank, kind: type[Any]) -> list[Any]:
    return [record for process in rank.processes for record in process.of_type(kind)]


def _array_of(row: FileIo, arrays: dict[str, _Array]) -> str | None:
    """The array that a file is a chunk of; None of metadata and of other files."""
    name = row.path.rpartition("/")[2]
    if not row.reads or name.startswith(".") or name == "zarr.json":
        return None
    return next((parent for parent in parents(row.path) if parent in arrays), None)


def _add_chunk(array: _Array, row: FileIo, key: str) -> None:
    array.read += 1
    array.opens += row.opens
    match = _FIRST.match(key)
    if match is not None:
        array.places.append(int(match[1]))


def _chunks(arrays: Sequence[_Array], group: str, dates: dict[str, Gridded]) -> Chunks:
    sharded = any(array.about.sharded for array in arrays)
    decoded = None if sharded else sum(array.opens * array.about.chunk_bytes for array in arrays)
    used = total(array.used_bytes for array in arrays)
    about = next((info for path, info in dates.items() if f"{group}/".startswith(f"{path}/")), None)
    first = last = None
    if about is not None and about.dates > 1:
        largest = max(arrays, key=lambda array: array.about.chunks)
        if largest.places:
            each = largest.about.rows_per_chunk
            first = _date(about, min(largest.places) * each)
            last = _date(about, min((max(largest.places) + 1) * each, about.dates) - 1)
    return Chunks(
        read=sum(array.read for array in arrays),
        of=None if sharded else sum(array.about.chunks for array in arrays),
        times_read=sum(array.opens for array in arrays),
        decoded_bytes=decoded,
        used_bytes=used,
        amplification=decoded / used if decoded is not None and used else None,
        first_date=first,
        last_date=last,
        variables=about.variables if about is not None else [],
    )


def _date(about: Gridded, place: int) -> str | None:
    """The date at a place of a dataset whose dates are evenly spaced; None where they cannot be read."""
    try:
        first, last = np.datetime64(about.first, "s"), np.datetime64(about.last, "s")
    except ValueError:
        return None
    return str(first + (last - first) * min(place, about.dates - 1) // (about.dates - 1))


_WORTH = 1.5  # decoded / predicted at most
_LEAST_BYTES = 4 << 10  # of a row group: smaller ones cost more in metadata than they save
_MOST_GROUPS = (
    10_000  # of a file: its footer has an entry for each column of each, which is read at every open
)
_BATCH_ROWS = 1 << 16
_PACKED = frozenset({"snappy", "gzip", "brotli", "lz4", "zstd"})


# Which give all that they are asked for; of a dataset those of one file.
_WHOLE = frozenset({"read", "to_table", "iter_batches", "to_batches"})


class _Reader(msgspec.Struct, frozen=True):
    """A process that read a file whole: the passes that it may have seen, the bytes of one read."""

    passes: int
    once_bytes: int


def row_groups(
    rank: Rank, paths: Paths, passes: int | None, by_worker: int | None = None
) -> dict[str, RowGroups]:
    """Sum up what all processes read of each Parquet file, by its path; a worker sees `by_worker` passes.

    Files whose rows a call chose by a filter are left out: what is known is a part of what was decoded.
    """
    told: dict[str, list[RowGroupsRead]] = defaultdict(list)
    readers: dict[str, list[_Reader]] = defaultdict(list)
    for process in rank.processes:
        last = {
            (record.path, record.call, tuple(record.columns or ()), record.columns is None): record
            for record in process.of_type(RowGroupsRead)
        }
        for record in last.values():
            told[paths.shown(record.path)].append(record)
        seen = (passes if process.worker is None else by_worker) or 0
        once: Counter[str] = Counter()
        for record in filter(_is_whole, last.values()):
            once[paths.shown(record.path)] += sum(size_bytes for *_, size_bytes in record.read)
        for path, size_bytes in once.items():
            readers[path].append(_Reader(seen, size_bytes))
    whole = {path: records for path, records in told.items() if not any(each.is_filtered for each in records)}
    found = {path: _summed(path, records, passes, len(readers[path])) for path, records in whole.items()}
    return {path: _with_suggestion(each, told[path], readers[path]) for path, each in found.items()}


def _is_whole(record: RowGroupsRead) -> bool:
    return record.call in _WHOLE and bool(record.read)


def _whole_reads(records: Sequence[RowGroupsRead]) -> int:
    return sum(record.read[0][1] for record in records if _is_whole(record))


def _summed(path: str, records: Sequence[RowGroupsRead], passes: int | None, readers: int) -> RowGroups:
    reads = decoded = 0
    distinct: dict[tuple[tuple[str, ...] | None, int], int] = {}
    rows: dict[int, int] = {}
    for record in records:
        columns = None if record.columns is None else tuple(record.columns)
        for number, count, of_rows, size_bytes in record.read:
            reads += count
            decoded += count * size_bytes
            distinct[columns, number] = max(size_bytes, distinct.get((columns, number), 0))
            rows[number] = of_rows
    about = records[-1]
    once = sum(distinct.values())
    named = [record.columns for record in records]
    return RowGroups(
        path=path,
        rows=about.rows,
        groups=about.groups,
        group_rows=max(rows.values(), default=0),
        groups_read=len(rows),
        columns_read=about.of_columns
        if None in named
        else len({each for own in named for each in own or ()}),
        columns=about.of_columns,
        reads=reads,
        decoded_bytes=decoded,
        distinct_bytes=once,
        passes=passes,
        decoded_per_pass=decoded / once / passes if once and passes else None,
        whole_reads=_whole_reads(records),
        readers=readers,
    )


def _with_suggestion(
    found: RowGroups, records: Sequence[RowGroupsRead], readers: Sequence[_Reader]
) -> RowGroups:
    """Add what spares decoding where each group is decoded for several reads.

    That is to keep what was read where the file is taken whole, else row groups of a size that fits.
    """
    times, about = found.decoded_per_pass, records[-1]
    if times is None or times < _WORTH or not found.groups_read or not found.rows:
        return found
    if found.whole_reads:
        # Where both kinds of calls read it, neither remedy tells what it spares.
        each_pass_bytes = sum(reader.passes * reader.once_bytes for reader in readers)
        if not all(map(_is_whole, records)) or found.decoded_bytes < _WORTH * each_pass_bytes:
            return found
        return replace(found, keep=True, predicted_bytes=sum(reader.once_bytes for reader in readers))
    row_bytes = found.decoded_bytes / found.reads / (found.rows / found.groups)
    fitting = max(1, -int(-found.group_rows // times), -(-found.rows // _MOST_GROUPS))
    fitting = max(fitting, -int(-_LEAST_BYTES // max(row_bytes, 1e-9)))
    # Of several rows, nobody knows where they begin: they may lie across two groups.
    each = 1 if fitting == 1 else 2
    predicted = int(found.reads * each * fitting * row_bytes)
    if found.decoded_bytes < _WORTH * predicted:
        return found
    command = _command(found.path, fitting, about.compression)
    return replace(found, suggested_rows=fitting, predicted_bytes=predicted, command=command)


def _command(path: str, rows: int, compression: str) -> str:
    root, extension = os.path.splitext(path)
    packed = {"uncompressed": "none"}.get(compression.lower(), compression.lower())
    options = f", compression={json.dumps(packed)}" if packed in {*_PACKED, "none"} else ""
    target = json.dumps(f"{root}.regrouped{extension}")
    batch_rows = max(1, _BATCH_ROWS // rows) * rows
    code = (
        f"import pyarrow.parquet as pq; f = pq.ParquetFile({json.dumps(path)}); "
        f"w = pq.ParquetWriter({target}, f.schema_arrow{options}); "
        f"[w.write_batch(b, {rows}) for b in f.iter_batches({batch_rows})]; w.close()"
    )
    return shlex.join(["python", "-c", code])
