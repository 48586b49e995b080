"""I/O by file: calls to the system, and those to C's buffered files with no such call inside them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

from iotrace.analysis.loop.deliveries import Interval
from iotrace.analysis.results import FileIo, Io
from iotrace.analysis.storage.kernel_account import (
    READS,
    coverage_of,
    data_coverage,
    seen_fraction,
    unseen_because,
)
from iotrace.analysis.storage.read_pattern import SMALL_READ, FileCalls, add_times
from iotrace.analysis.storage.recorded_files import recorded_files
from iotrace.session.names import KIND_READ_PATH
from iotrace.sources.dftracer import stdio
from iotrace.sources.posix_calls import PosixCalls, concatenate
from iotrace.sources.session import Rank, Session

WRITES = stdio.WRITES | {"write", "pwrite", "pwrite64", "writev", "pwritev", "pwritev64", "pwritev2"}
WRITES |= {"copy_file_range (to)"}
_OPENS = frozenset({"open", "open64", "openat", "openat64", "creat", "creat64"})
_OPENS |= {"fopen", "fopen64", "freopen", "freopen64"}
_SEEKS = stdio.SEEKS | {"lseek", "lseek64", "ftell", "ftello", "ftello64"}
MAPS = frozenset({"mmap", "mmap64"})


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
        calls=sum(map(len, of_each)) if sums is None else _made(files),
        bytes=sum(file.read_bytes + file.write_bytes for file in files.values()),
        ms_total=sum(file.read_ns + file.write_ns + file.metadata_ns for file in files.values()) / 1e6,
        files=[_result(path, file, path in in_read_paths) for path, file in ordered],
        processes=coverage,
    )
    return found, files


def _by_file(calls: PosixCalls, shown: list[str]) -> dict[str, FileCalls]:
    """Go through the calls in order of time, following each process's position in each file."""
    files: dict[str, FileCalls] = defaultdict(FileCalls)
    position: dict[tuple[int, int], int] = {}
    read_end: dict[tuple[int, int], int] = {}
    columns = zip(
        calls.name.tolist(),
        calls.file.tolist(),
        calls.pid.tolist(),
        calls.result.tolist(),
        calls.offset.tolist(),
        (calls.end_ns - calls.start_ns).tolist(),
        strict=True,
    )
    for name_id, file_id, pid, result, offset, duration_ns in columns:
        name, file, at = calls.names[name_id], files[shown[file_id]], (pid, file_id)
        if name in READS:
            file.read_ns += duration_ns
            if result < 0 and name not in stdio.READS:
                continue
            file.reads += 1
            file.by_worker[pid] += 1
            if result < 0:  # of stdio: how much it read, and where it stands, is not known
                file.unsized_reads += 1
                position.pop(at, None)
                continue
            file.read_bytes += result
            file.filled += result > 0
            file.small += 0 < result < SMALL_READ
            start = offset if offset >= 0 else position.get(at)
            if start is None:
                continue
            if at in read_end:
                file.after_another += 1
                file.sequential += start == read_end[at]
            if result:
                file.ranges.append((start, start + result))
            read_end[at] = position[at] = start + result
        elif name in WRITES:
            file.write_ns += duration_ns
            if result >= 0 or name in stdio.WRITES:
                file.writes += 1
                file.write_bytes += max(result, 0)
        else:
            file.metadata += 1
            file.touched += 1
            file.metadata_ns += duration_ns
            if name in _OPENS:
                file.opens += 1
                position[at] = 0
            elif name in MAPS:
                file.maps += 1
            elif name in _SEEKS and result >= 0:
                position[at] = result
            elif name in stdio.SEEKS:  # to a place that the log does not say
                position.pop(at, None)
    for file in files.values():
        file.sum_up_ranges()
    add_times(files, calls, shown)
    return dict(files)


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
