"""POSIX I/O by file, and how much of the kernel's own account the tracer saw."""

from __future__ import annotations

from collections import defaultdict

import msgspec
import numpy as np

from iotrace.analysis.intervals import union
from iotrace.analysis.results import FileIo, Io, ProcessCoverage
from iotrace.sources.dftracer.calls import PosixCalls, concatenate
from iotrace.sources.processes import Process
from iotrace.sources.records import Tick
from iotrace.sources.session import Rank, Session

READS = frozenset({"read", "pread", "pread64", "readv", "preadv", "preadv64", "preadv2"})
WRITES = frozenset({"write", "pwrite", "pwrite64", "writev", "pwritev", "pwritev64", "pwritev2"})
# Neither a system call that moved bytes nor metadata.
_BUFFERED = frozenset({"fread", "fwrite", "mmap", "mmap64"})
_OPENS = frozenset({"open", "open64", "openat", "openat64", "creat", "creat64", "fopen", "fopen64"})
_SEEKS = frozenset({"lseek", "lseek64"})


class _File(msgspec.Struct):
    opens: int = 0
    reads: int = 0
    read_bytes: int = 0
    read_ns: int = 0
    writes: int = 0
    write_bytes: int = 0
    metadata_ns: int = 0
    sequential: int = 0
    after_another: int = 0
    by_worker: dict[int, int] = msgspec.field(default_factory=lambda: defaultdict(int))
    ranges: list[tuple[int, int]] = []


def io_of(session: Session, rank: Rank) -> Io | None:
    """Sum up the I/O of a rank's processes by file; None where no POSIX calls were traced."""
    if not session.posix_on or not session.calls.pids:
        return None
    of_each = [session.calls_of(process) for process in rank.processes]
    calls = concatenate(of_each)
    files = _by_file(calls, [session.paths.shown(file) for file in calls.files])
    coverage = [
        _coverage(process, own, session.processes)
        for process, own in zip(rank.processes, of_each, strict=True)
    ]
    seen = [row for row in coverage if row.kernel_bytes]
    kernel_bytes = sum(row.kernel_bytes or 0 for row in seen)
    traced_bytes = sum(row.traced_bytes or 0 for row in seen)
    ordered = sorted(files.items(), key=lambda item: -(item[1].read_ns + item[1].metadata_ns))
    return Io(
        coverage=traced_bytes / kernel_bytes if kernel_bytes else None,
        calls=len(calls),
        bytes=sum(file.read_bytes + file.write_bytes for file in files.values()),
        ms_total=int((calls.end_ns - calls.start_ns).sum()) / 1e6,
        files=[_result(path, file) for path, file in ordered],
        processes=coverage,
    )


def _by_file(calls: PosixCalls, shown: list[str]) -> dict[str, _File]:
    """Go through the calls in order of time, following each process's position in each file."""
    files: dict[str, _File] = defaultdict(_File)
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
            if result < 0:
                continue
            file.reads += 1
            file.read_bytes += result
            file.by_worker[pid] += 1
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
            if result >= 0:
                file.writes += 1
                file.write_bytes += result
        elif name not in _BUFFERED:
            file.metadata_ns += duration_ns
            if name in _OPENS:
                file.opens += 1
                position[at] = 0
            elif name in _SEEKS and result >= 0:
                position[at] = result
    return dict(files)


def _result(path: str, file: _File) -> FileIo:
    reread = None
    if file.ranges:
        ranges = np.array(file.ranges, dtype=np.int64)
        starts, ends = union(ranges[:, 0], ranges[:, 1])
        reread = 1 - int((ends - starts).sum()) / int((ranges[:, 1] - ranges[:, 0]).sum())
    return FileIo(
        path=path,
        opens=file.opens,
        reads=file.reads,
        read_bytes=file.read_bytes,
        read_ms_total=file.read_ns / 1e6,
        writes=file.writes,
        write_bytes=file.write_bytes,
        metadata_ms_total=file.metadata_ns / 1e6,
        sequential_fraction=file.sequential / file.after_another if file.after_another else None,
        reread_fraction=reread,
        by_worker={str(pid): reads for pid, reads in sorted(file.by_worker.items())},
    )


def _coverage(process: Process, calls: PosixCalls, everyone: list[Process]) -> ProcessCoverage:
    """Compare the bytes read as traced with the kernel's ``rchar``, from the first to the last tick."""
    ticks = _accounts(process)
    if len(ticks) < 2:
        return ProcessCoverage(process.pid, process.identity.role, None, None, None)
    first, last = ticks[0], ticks[-1]
    kernel_bytes = int(last.rchar or 0) - int(first.rchar or 0)
    kernel_bytes -= _reaped_bytes(process, first, last, everyone)
    is_read = np.isin(calls.name, [i for i, name in enumerate(calls.names) if name in READS])
    begin_ns, end_ns = (process.clock.to_session_ns(tick.clock[0]) for tick in (first, last))
    inside = is_read & (calls.result > 0) & (calls.start_ns >= begin_ns) & (calls.end_ns <= end_ns)
    traced_bytes = int(calls.result[inside].sum())
    coverage = traced_bytes / kernel_bytes if kernel_bytes > 0 else None
    return ProcessCoverage(process.pid, process.identity.role, coverage, traced_bytes, max(kernel_bytes, 0))


def _accounts(process: Process) -> list[Tick]:
    return [tick for tick in process.of_type(Tick) if tick.rchar is not None]


def _reaped_bytes(process: Process, first: Tick, last: Tick, everyone: list[Process]) -> int:
    """Sum up what the kernel added to this process's account for children that it waited for meanwhile.

    (``wait_task_zombie`` in Linux's kernel/exit.c adds a child's whole account to its parent's.)
    """
    reaped = 0
    for child in everyone:
        accounts = _accounts(child)
        same_host = child.identity.node == process.identity.node
        if child.identity.ppid != process.pid or not same_host or not accounts or not child.ended:
            continue
        if first.clock[0] < accounts[-1].clock[0] <= last.clock[0]:
            reaped += int(accounts[-1].rchar or 0)
    return reaped
