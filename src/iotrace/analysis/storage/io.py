"""I/O by file: calls to the system, and those to C's buffered files with no such call inside them.

What a rank did with each file, from the sums that our recorder keeps of all calls.

How much was read again is known by the ranges. Where thousands of scattered reads were recorded together it
is known by a sample: of the offsets that are multiples of 4096 each process marks those that it read. Reads
that lie side by side share none of them, and whole files of any size have at least one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from iotrace.analysis.intervals import Times, grouped, holding, length, union
from iotrace.analysis.loop.deliveries import Interval
from iotrace.analysis.results import FileIo, Io
from iotrace.analysis.storage.kernel_account import (
    READS,
    coverage_of,
    data_coverage,
    seen_fraction,
    unseen_because,
)
from iotrace.analysis.storage.read_pattern import (
    SMALL_READ,
    FileCalls,
    add_times,
    extents_by_place,
    ranges_by_place,
)
from iotrace.session.names import KIND_READ_PATH, METADATA_CALLS
from iotrace.sources.dftracer import stdio
from iotrace.sources.posix_calls import FileSums, PosixCalls, concatenate
from iotrace.sources.recorder.layout import POINT_BYTES
from iotrace.sources.session import Rank, Session

METADATA, READING, WRITING = range(3)
_OPENING_CALLS = [METADATA_CALLS.index(name) for name in ("open", "fopen")]
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
        (METADATA, sums.kinds[:, _OPENING_CALLS].sum(axis=1), "opens"),
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
    ends = calls.offset[reads] + calls.result[reads]
    for place, extent in extents_by_place(place_of[calls.file[reads]], ends).items():
        if (file := found.get(paths[place])) is not None:
            file.extent_bytes = extent


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
        file.extent_bytes = max(file.extent_bytes, int(marked.max(initial=0)) * POINT_BYTES)
        file.ranged_bytes = file.read_bytes
        file.distinct_bytes = round(file.read_bytes * min(1.0, distinct / whole))


WRITES = stdio.WRITES | {"write", "pwrite", "pwrite64", "writev", "pwritev", "pwritev64", "pwritev2"}
WRITES |= {"copy_file_range (to)"}
OPENS = frozenset({"open", "open64", "openat", "openat64", "creat", "creat64"})
OPENS |= {"fopen", "fopen64", "freopen", "freopen64"}
_SEEKS = stdio.SEEKS | {"lseek", "lseek64", "ftell", "ftello", "ftello64"}
MAPS = frozenset({"mmap", "mmap64"})
Mask = npt.NDArray[np.bool_]


def io_of(
    session: Session, rank: Rank, steps: Interval | None = None
) -> tuple[Io, dict[str, FileCalls]] | None:
    """Sum up the I/O of a rank's processes by file; None where no POSIX calls were traced.

    `steps` are the bounds of the measured steps. Beside the result stand the calls that it is made of.
    """
    if not session.posix_on or not session.calls.pids:
        return None
    if any((process.identity.node, process.pid) in session.namesakes for process in rank.processes):
        return None
    of_each = [session.calls_of(process) for process in rank.processes]
    # Where a call of stdio holds the library's own calls, these are the I/O.
    counted = [own.where(~stdio.nested(own)[0]) for own in of_each]
    calls = concatenate(counted)
    shown = [session.paths.shown(file) for file in calls.files]
    sums = session.sums_of(rank.processes)
    files = _by_file(calls, shown) if sums is None else recorded_files(sums, calls, shown)
    in_read_paths = {
        session.paths.shown(file) for process in rank.processes for file in process.files_of(KIND_READ_PATH)
    }
    coverage = [
        coverage_of(process, own, session.children_of(process), steps)
        for process, own in zip(rank.processes, counted, strict=True)
    ]
    seen = seen_fraction((row.traced_bytes, row.kernel_bytes) for row in coverage)
    used = [item for item in files.items() if item[1].is_used]
    ordered = sorted(used, key=lambda item: -(item[1].read_ns + item[1].metadata_ns))
    of_data, of_steps = data_coverage(coverage)
    found = Io(
        data_coverage=of_data,
        data_coverage_of_steps=of_steps,
        coverage=seen,
        unseen_because=None if seen is None else unseen_because(session, rank, calls),
        only=session.manifest.posix.only or None,
        calls=sum(map(len, of_each)) if sums is None else _made(files),
        bytes=sum(file.read_bytes + file.write_bytes for file in files.values()),
        ms_total=sum(file.read_ns + file.write_ns + file.metadata_ns for file in files.values()) / 1e6,
        files=[_result(path, file, path in in_read_paths) for path, file in ordered],
        processes=coverage,
    )
    return found, files


def _by_file(calls: PosixCalls, shown: list[str]) -> dict[str, FileCalls]:
    """Sum up by file; files in the order in which they were first called."""
    paths = list(dict.fromkeys(shown))
    numbers = {path: number for number, path in enumerate(paths)}
    place = np.array([numbers[path] for path in shown], np.int64)[calls.file]
    seen, first, _ = grouped(place)
    files = {paths[number]: FileCalls() for number in seen[np.argsort(first)].tolist()}

    def add(name: str, rows: Mask, values: Times | None = None) -> None:
        own = None if values is None else values[rows]
        sums = np.bincount(place[rows], own, len(paths)).astype(np.int64)
        for number in np.flatnonzero(sums).tolist():
            setattr(files[paths[number]], name, int(sums[number]))

    taken_ns, result = calls.end_ns - calls.start_ns, calls.result
    reading, writing = calls.named(READS), calls.named(WRITES)
    rest = ~reading & ~writing
    made = reading & ((result >= 0) | calls.named(stdio.READS))
    sized = reading & (result >= 0)
    written = writing & ((result >= 0) | calls.named(stdio.WRITES))
    start, after_another, sequential = _places(calls, sized)
    add("read_ns", reading, taken_ns)
    add("reads", made)
    add("unsized_reads", made & ~sized)
    add("read_bytes", sized, result)
    add("filled", sized & (result > 0))
    add("small", sized & (result > 0) & (result < SMALL_READ))
    add("after_another", after_another)
    add("sequential", sequential)
    add("write_ns", writing, taken_ns)
    add("writes", written)
    add("write_bytes", written, np.maximum(result, 0))
    add("metadata", rest)
    add("touched", rest)
    add("metadata_ns", rest, taken_ns)
    add("opens", rest & calls.named(OPENS))
    add("maps", rest & calls.named(MAPS))
    pids, _, of = grouped(calls.pid)
    counts = np.bincount(place[made] * len(pids) + of[made])
    for each in np.flatnonzero(counts).tolist():
        files[paths[each // len(pids)]].by_worker[int(pids[each % len(pids)])] = int(counts[each])
    ranged = sized & (start >= 0) & (result > 0)
    for number, sums in ranges_by_place(place[ranged], start[ranged], result[ranged]).items():
        files[paths[number]].ranged_bytes, files[paths[number]].distinct_bytes = sums
    for number, extent in extents_by_place(place[ranged], start[ranged] + result[ranged]).items():
        files[paths[number]].extent_bytes = extent
    add_times(files, calls, shown)
    return files


def _places(calls: PosixCalls, sized: Mask) -> tuple[Times, Mask, Mask]:
    """Follow each process's position in each file, in order of time.

    Return where each of the `sized` reads began, -1 where that is not known; which of them have one before
    whose end is known; and which of these began there.
    """
    seeks, lost = calls.named(_SEEKS), calls.result < 0
    opens = calls.named(OPENS)
    told = opens | (seeks & ~lost) | (sized & (calls.offset >= 0))
    unknown = ~told & lost & calls.named(stdio.READS | stdio.SEEKS)
    order = np.lexsort((calls.file, calls.pid))  # stable: the order of time stays
    file, pid = calls.file[order], calls.pid[order]
    new = np.append(True, (file[1:] != file[:-1]) | (pid[1:] != pid[:-1]))[: len(order)]
    told, sized_here, result = told[order], sized[order], calls.result[order]
    offset = np.maximum(calls.offset[order], 0)
    behind = np.where(opens[order], 0, np.where(sized_here, offset + result, result))  # of those that tell
    moved = np.cumsum(np.where(sized_here & ~told, result, 0))
    since = np.maximum.accumulate(np.where(new | told | unknown[order], np.arange(len(order)), 0))
    known = sized_here & told[since]
    began = np.where(told, offset, behind[since] + moved - moved[since] - result)
    at = np.flatnonzero(known)  # each beside the one before, of one process and file
    same = np.cumsum(new)[at]
    follows = np.append(False, same[1:] == same[:-1])[: len(at)]
    ends = began[at] + result[at]
    start = np.full(len(order), -1, np.int64)
    after_another, sequential = np.zeros((2, len(order)), np.bool_)
    start[order[at]] = began[at]
    after_another[order[at]] = follows
    sequential[order[at]] = follows & (began[at] == np.append(-1, ends[:-1])[: len(at)])
    return start, after_another, sequential


def _made(files: Mapping[str, FileCalls]) -> int:
    return sum(file.reads + file.writes + file.metadata for file in files.values())


def _result(path: str, file: FileCalls, in_read_path: bool) -> FileIo:
    """Make a file's row; `in_read_path`: a library that the agent knows read it."""
    unseen = not file.reads and (file.maps > 0 or (file.opens > 0 and in_read_path))
    return FileIo(
        path=path,
        opens=file.opens,
        reads=file.reads,
        maps=file.maps,
        read_bytes=None if unseen or file.unsized_reads else file.read_bytes,
        read_ms_total=None if unseen else file.read_ns / 1e6,
        writes=file.writes,
        write_bytes=file.write_bytes,
        metadata_ms_total=file.metadata_ns / 1e6,
        sequential_fraction=file.sequential_fraction,
        reread_fraction=file.reread_fraction,
        by_worker={str(pid): reads for pid, reads in sorted(file.by_worker.items())},
    )
