"""How much of the kernel's own account of what a process read was traced, and why the rest was not."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from msgspec.structs import replace

from iotrace.analysis.loop.deliveries import Interval
from iotrace.analysis.results import ProcessCoverage
from iotrace.session.names import DFTRACER, GIVEN_ROW, HANDED_ROW, KIND_READ_PATH, RECORDER
from iotrace.sources.dftracer import stdio
from iotrace.sources.posix_calls import PosixCalls
from iotrace.sources.processes import Process
from iotrace.sources.records import IteratorStart, Tick, TorchProgramTrace, Worker
from iotrace.sources.session import Rank, Session
from iotrace.units import size

READS = stdio.READS | {"read", "pread", "pread64", "readv", "preadv", "preadv64", "preadv2"}
READS |= {"sendfile", "copy_file_range"}
_LEAST_NUMBER = 1 << 30  # of a message in a pipe
# They duplicate the descriptor and read through a FILE of their own, which dftracer does not know.
_DUPLICATING = ("numpy.load", "numpy.fromfile")


def coverage_of(
    process: Process, calls: PosixCalls, children: list[Process], steps: Interval | None = None
) -> ProcessCoverage:
    """Compare the bytes read as traced with the kernel's ``rchar``, from the first to the last tick.

    A program may take bytes from a buffer of stdio twice: no more is seen than there was. `steps` are the
    bounds of the measured steps.
    """
    whole = _coverage(process, calls, children, accounts_of_loop(process))
    if steps is None:
        return whole
    inside = [
        tick
        for tick in _accounts(process)
        if steps[0] <= process.clock.to_session_ns(tick.clock[0]) <= steps[1]
    ]
    found = _coverage(process, calls, children, inside)
    return replace(whole, steps_traced_bytes=found.traced_bytes, steps_kernel_bytes=found.kernel_bytes)


def _coverage(
    process: Process, calls: PosixCalls, children: list[Process], ticks: list[Tick]
) -> ProcessCoverage:
    about = process.pid, process.identity.role
    if len(ticks) < 2:
        return ProcessCoverage(*about, None, None, None, process.worker is not None)
    first, last = ticks[0], ticks[-1]
    kernel_bytes = int(last.rchar or 0) - int(first.rchar or 0)
    kernel_bytes -= _reaped_bytes(first, last, children) + _copied_bytes(process, first, last)
    kernel_bytes -= _handed_bytes(process, first, last)
    is_read = calls.named(READS)
    begin_ns, end_ns = (process.clock.to_session_ns(tick.clock[0]) for tick in (first, last))
    inside = is_read & (calls.result > 0) & (calls.start_ns >= begin_ns) & (calls.end_ns <= end_ns)
    traced_bytes = int(calls.result[inside].sum())
    if calls.named(stdio.READS)[inside].any():
        traced_bytes = min(traced_bytes, max(kernel_bytes, 0))
    coverage = traced_bytes / kernel_bytes if kernel_bytes > 0 else None
    kernel_bytes = max(kernel_bytes, 0)
    return ProcessCoverage(*about, coverage, traced_bytes, kernel_bytes, process.worker is not None)


def data_coverage(found: list[ProcessCoverage]) -> tuple[float | None, bool]:
    """The coverage of the processes that make batches; whether it is that of the measured steps alone.

    Without workers the training process makes them.
    """
    makers = [row for row in found if row.is_worker] or found
    of_steps = seen_fraction((row.steps_traced_bytes, row.steps_kernel_bytes) for row in makers)
    if of_steps is not None:
        return of_steps, True
    return seen_fraction((row.traced_bytes, row.kernel_bytes) for row in makers), False


def seen_fraction(bytes_of: Iterable[tuple[int | None, int | None]]) -> float | None:
    """The traced bytes of those that the kernel counted, from both of each process; None without any."""
    counted = [(traced or 0, kernel) for traced, kernel in bytes_of if kernel]
    return sum(traced for traced, _ in counted) / sum(kernel for _, kernel in counted) if counted else None


def accounts_of_loop(process: Process) -> list[Tick]:
    """The accounts since a training process first iterated a loader: imports read code before that."""
    ticks = _accounts(process)
    began = [start.mono_ns for start in process.of_type(IteratorStart)] if not process.of_type(Worker) else []
    since = [tick for tick in ticks if tick.clock[0] >= min(began)] if began else []
    return since if len(since) > 1 else ticks


def _accounts(process: Process) -> list[Tick]:
    return [tick for tick in process.of_type(Tick) if tick.rchar is not None]


def _reaped_bytes(first: Tick, last: Tick, children: list[Process]) -> int:
    """Sum up what the kernel added to a process's account for `children` that it waited for meanwhile.

    (``wait_task_zombie`` in Linux's kernel/exit.c adds a child's whole account to its parent's.)
    """
    reaped = 0
    for child in children:
        accounts = _accounts(child)
        if accounts and child.ended and first.clock[0] < accounts[-1].clock[0] <= last.clock[0]:
            reaped += int(accounts[-1].rchar or 0)
    return reaped


def _copied_bytes(process: Process, first: Tick, last: Tick) -> int:
    """Sum up what the agent read meanwhile to keep the traces that the program exported."""
    return sum(
        trace.bytes or 0
        for trace in process.of_type(TorchProgramTrace)
        if trace.path
        and first.clock[0] <= trace.mono_ns
        and trace.mono_ns + trace.duration_ns <= last.clock[0]
    )


def _handed_bytes(process: Process, first: Tick, last: Tick) -> int:
    """Sum up what came meanwhile through queues and pipes of processes that are followed: no data of files.

    A message's number, as `agent/pools/pipes.py` makes it of its bytes, ends with its length.
    """
    rows = process.rows(HANDED_ROW)
    of_pipes = (rows["queue"] % 2 == 1) & (rows["item"] >= _LEAST_NUMBER)
    inside = (rows["taken_ns"] > first.clock[0]) & (rows["taken_ns"] <= last.clock[0])
    given = process.rows(GIVEN_ROW)  # large tasks of a pool
    came = (given["came_ns"] > first.clock[0]) & (given["came_ns"] <= last.clock[0])
    return int((rows["item"][of_pipes & inside] & (_LEAST_NUMBER - 1)).sum() + given["bytes"][came].sum())


def unseen_because(session: Session, rank: Rank, calls: PosixCalls) -> str | None:
    """Say what kernel-counted bytes the tracer does not see, of this rank; None where it read no data."""
    spans = {name for process in rank.processes for name in _read_paths(process)}
    if not spans and not (calls.named(READS) & (calls.result != 0)).any():
        return None
    why = []
    duplicating = [name for name in _DUPLICATING if name in spans and session.posix_by == DFTRACER]
    if duplicating:
        why.append(f"{' and '.join(duplicating)} read through duplicated descriptors, which dftracer misses")
    tasks = [int(process.rows(GIVEN_ROW)["bytes"].max(initial=0)) for process in rank.processes]
    if any(tasks):
        why.append(f"a pool's tasks come by a pipe, with up to {size(max(tasks))} each")
    if calls.named(stdio.READS).any():
        why.append("C's buffered files read ahead of what the program takes")
    if only := session.manifest.posix.only:
        why.append(f"--io traces {', '.join(only)} alone")
    pipes = any(process.of_type(Worker) for process in rank.processes)
    why.append("code and the pipes of workers are not traced" if pipes else "code and pipes are not traced")
    if session.posix_by == RECORDER:
        why.append("raw system calls and io_uring are not seen, nor what is read by getc or fscanf")
    return "; ".join(why)


def _read_paths(process: Process) -> set[str]:
    """The names of the read paths that began within the process's account."""
    ticks, spans = accounts_of_loop(process), process.spans
    if not ticks:
        return set()
    began = spans["start_ns"] >= process.clock.to_session_ns(ticks[0].clock[0])
    numbers = np.unique(spans["name"][began & (spans["kind"] == KIND_READ_PATH)])
    return {process.texts.get(number, "") for number in numbers.tolist()}
