"""What a rank did with each file, from the sums that our recorder keeps of all calls.

How much was read again is known by the ranges. Where thousands of scattered reads were recorded together it
is known by a sample: of the offsets that are multiples of 4096 each process marks those that it read. Reads
that lie side by side share none of them, and whole files of any size have at least one.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from iotrace.analysis.intervals import Times, holding, length, union
from iotrace.analysis.storage.kernel_account import READS
from iotrace.analysis.storage.read_pattern import FileCalls, add_times, ranges_by_place
from iotrace.session.names import METADATA_CALLS
from iotrace.sources.posix_calls import FileSums, PosixCalls
from iotrace.sources.recorder.layout import POINT_BYTES

METADATA, READING, WRITING = range(3)
_OPENS = [METADATA_CALLS.index(name) for name in ("open", "fopen")]
_TOUCHES = ("open", "fopen", "mmap", "fsync", "rename", "unlink", "truncate")
_TOUCHED = [METADATA_CALLS.index(name) for name in _TOUCHES]
_MAPS = METADATA_CALLS.index("mmap")


def recorded_files(sums: FileSums, calls: PosixCalls, shown: list[str]) -> dict[str, FileCalls]:
    """Sum up by file; `shown` names the files, `calls` are those of the same processes."""
    paths = list(dict.fromkeys(shown))
    places = {path: place for place, path in enumerate(paths)}
    place_of = np.array([places[path] for path in shown], np.int64)
    of = place_of[sums.file] if len(sums.file) else sums.file
    found = {paths[place]: FileCalls() for place in np.unique(of).tolist()}

    def by_place(group: int, values: Times) -> list[tuple[FileCalls, int]]:
        rows = sums.group == group
        whole = np.bincount(of[rows], values[rows], len(paths)).astype(np.int64)
        return [(found[paths[place]], whole[place]) for place in np.unique(of[rows]).tolist()]

    made = sums.kinds.sum(axis=1)
    for group, values, name in (
        (METADATA, made, "metadata"),
        (METADATA, sums.kinds[:, _OPENS].sum(axis=1), "opens"),
        (METADATA, sums.kinds[:, _TOUCHED].sum(axis=1), "touched"),
        (METADATA, sums.kinds[:, _MAPS], "maps"),
        (METADATA, sums.in_call_ns, "metadata_ns"),
        (READING, made - sums.failed, "reads"),
        (READING, sums.bytes, "read_bytes"),
        (READING, sums.in_call_ns, "read_ns"),
        (READING, sums.filled, "filled"),
        (READING, sums.small, "small"),
        (READING, sums.sequential, "sequential"),
        (READING, sums.after_another, "after_another"),
        (WRITING, made - sums.failed, "writes"),
        (WRITING, sums.bytes, "write_bytes"),
        (WRITING, sums.in_call_ns, "write_ns"),
    ):
        for file, value in by_place(group, values):
            setattr(file, name, int(value))
    reading = np.flatnonzero(sums.group == READING)
    for row in reading.tolist():
        found[paths[of[row]]].by_worker[int(sums.pid[row])] += int(made[row] - sums.failed[row])
    _add_ranges(found, calls, paths, place_of)
    points = np.bincount(of[reading], sums.points[reading], len(paths)).astype(np.int64)
    _add_points(found, calls, sums, paths, place_of, points)
    add_times(found, calls, shown)
    return found


def _add_ranges(
    found: dict[str, FileCalls], calls: PosixCalls, paths: Sequence[str], place_of: Times
) -> None:
    """Set how much of each file's reading was of other bytes, where all ranges are known."""
    reads = np.flatnonzero(calls.named(READS) & (calls.result > 0) & (calls.offset >= 0))
    of_each = ranges_by_place(place_of[calls.file[reads]], calls.offset[reads], calls.result[reads])
    for place, (ranged_bytes, distinct_bytes) in of_each.items():
        file = found.get(paths[place])
        if file is not None and file.read_bytes == ranged_bytes:
            file.ranged_bytes, file.distinct_bytes = ranged_bytes, distinct_bytes


def _add_points(
    found: dict[str, FileCalls],
    calls: PosixCalls,
    sums: FileSums,
    paths: Sequence[str],
    place_of: Times,
    points: Times,
) -> None:
    """Estimate that of the other files: by the ranges that are known, and the points read beside them."""
    reads = np.flatnonzero(calls.named(READS) & (calls.result > 0) & (calls.offset >= 0))
    block_of = place_of[sums.blocks[:, 0]] if len(sums.blocks) else np.zeros(0, np.int64)
    for place in np.flatnonzero(points).tolist():
        file = found[paths[place]]
        if file.ranged_bytes:
            continue
        own = reads[place_of[calls.file[reads]] == place]
        first = -(-calls.offset[own] // POINT_BYTES)
        behind = -(-(calls.offset[own] + calls.result[own]) // POINT_BYTES)
        begins, ends = union(first, behind)
        blocks = block_of == place
        bits = np.unpackbits(sums.bits[blocks], axis=1, bitorder="little")
        block, bit = np.nonzero(bits)
        marked = np.unique(sums.blocks[blocks][block, 1] + bit)
        within = holding(begins, ends, marked) >= 0
        distinct = length((begins, ends)) + int((~within).sum())
        whole = int(points[place]) + int((behind - first).sum())
        file.ranged_bytes = file.read_bytes
        file.distinct_bytes = round(file.read_bytes * min(1.0, distinct / whole))
