"""Stores of chunks: how many were read, how often, and how much of what was decoded was used."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
from msgspec.structs import replace

from iotrace.analysis.results import Chunks, FileGroup, FileIo, Io, total
from iotrace.analysis.storage.amplification import given_bytes
from iotrace.analysis.storage.directories import parents
from iotrace.session.names import KIND_READ_PATH
from iotrace.sources.paths import Paths
from iotrace.sources.records import ArrayInfo, Gridded
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
    arrays = {paths.shown(info.path): _Array(info) for info in _told(rank, ArrayInfo)}
    if not arrays or io is None:
        return list(groups)
    dates = {paths.shown(info.path): info for info in _told(rank, Gridded)}
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


def _told(rank: Rank, kind: type[Any]) -> list[Any]:
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
