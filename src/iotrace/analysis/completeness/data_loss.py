"""What a session has lost: parts of what was recorded that are cut, unreadable or were never written."""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np

from iotrace.analysis.intervals import Times
from iotrace.analysis.rules.capture_loss import BUFFERED_CALLS as BUFFERED_CALLS
from iotrace.analysis.rules.facts.capture import missing
from iotrace.analysis.table import key_of
from iotrace.session import names
from iotrace.session.liveness import RUNNING
from iotrace.session.manifest import NotCaptured
from iotrace.sources.columns import Columns
from iotrace.sources.processes import Process
from iotrace.sources.records import PoolWorker, PosixEnded, Tick
from iotrace.sources.session import Session
from iotrace.sources.telemetry import Telemetry

_MOST_ERRORS = 5
# How the system says that a disk, or somebody's quota of it, is full.
_FULL = re.compile("No space left on device|Disk quota exceeded")


def data_loss(session: Session) -> Iterator[NotCaptured]:
    """Find what was captured in part only, by process."""
    running = session.state == RUNNING
    disk = str(session.path)
    yield from _parts("the session", session.problems, disk)
    yield from _agent_errors(session)
    usual = {id(process) for process in workers_left(session)}
    for process in session.processes:
        name = named(process)
        if (
            not process.ended
            and id(process) not in usual
            and (_recorded_data(process) or _lost_calls_alone(session, process))
            and not (running and process.lives is not False)
        ):
            buffers = session.posix_on and session.posix_by == names.DFTRACER
            yield from missing(
                whose=name,
                end_lost=True,
                left_idle=process.idle,
                lost_calls_alone=not _recorded_data(process),
                buffered_calls=BUFFERED_CALLS if buffers else 0,
            )
        yield from _parts(name, process.problems, disk)
        yield from missing(whose=name, failed_to_start=bool(process.of_type(PosixEnded)))
    for rank in session.ranks:
        yield from _parts(
            f"the torch.profiler traces of rank {rank.number}", rank.main.windows.problems, disk
        )
    yield from _parts("the POSIX calls", session.calls.problems, disk)
    for node, pid in sorted(session.namesakes) if session.posix_on else ():
        yield from missing(whose=node, namesake=pid)
    for telemetry in session.telemetry:
        node = telemetry.sampler.node
        yield from _parts(f"the telemetry of {node}", telemetry.damage, disk)
        late_ns = _last_seen_ns(session, telemetry) - telemetry.last_ns
        if not telemetry.ended:
            killed_by = telemetry.killed_by or None
            yield from missing(whose=node, sampler_ended_by=killed_by, unsampled_s=late_ns / 1e9)


def _agent_errors(session: Session) -> Iterator[NotCaptured]:
    """Name what the agent could not do, each error once, with the processes that it happened in.

    What a full disk did is no error of the agent's.
    """
    happened: dict[str, list[str]] = {}
    for process in session.processes:
        for error in dict.fromkeys(process.agent_errors):
            happened.setdefault(error, []).append(named(process))
    for error, where in list(happened.items())[:_MOST_ERRORS]:
        whose = where[0] if len(where) == 1 else f"{where[0]} and {len(where) - 1} more"
        if _FULL.search(error):
            yield from _parts(whose, [error], str(session.path))
        else:
            yield from missing(whose=whose, agent_error=error)
    yield from missing(more_errors=max(0, len(happened) - _MOST_ERRORS))


def workers_left(session: Session) -> list[Process]:
    """Find workers that ended with their program, which ended in good order: all that it took is recorded.

    That is the usual end of persistent workers, and of those of a loader that the program left: a signal
    ends them while they wait for work or make a batch that nobody takes.
    """
    if session.exit_code:
        return []
    found = []
    for rank in session.ranks:
        batches = rank.main.rows(names.BATCH_ROW)
        made_tasks = [process.rows(names.MADE_ROW) for process in rank.workers]
        tasks = np.concatenate([key_of(made["pool"], made["task"]) for made in made_tasks] or [_NOTHING])
        for process in rank.workers:
            if rank.main.ended and process.worker is not None and not process.ended:
                taken, made = batches["pid"] == process.pid, process.rows(names.PRODUCED_ROW)
                wanted = key_of(batches["generation"][taken], batches["index"][taken])
                known = key_of(made["generation"], made["index"])
                whole = np.isin(wanted, known).all() and _has_all(batches, process, tasks)
                found += [process] if whole else []
    return found


_NOTHING = np.empty(0, np.int64)


def _has_all(batches: Columns, process: Process, tasks: Times) -> bool:
    """Whether `tasks` has all whose results were taken from the pool that `process` works for.

    Any process made them. Of the items that one task makes, the first may be told alone.
    """
    pools = [each.pool for each in process.of_type(PoolWorker)]
    own = np.isin(batches["generation"], np.array(pools, np.int64))
    pool, item = batches["generation"][own], batches["index"][own]
    told = np.isin(key_of(pool, item), tasks) | np.isin(key_of(pool, item % names.PART_OF_TASK), tasks)
    return bool(told.all())


def _parts(of: str, problems: list[str], disk: str) -> Iterator[NotCaptured]:
    for problem in problems:
        yield from missing(whose=of, damage=problem, full_disk=disk if _FULL.search(problem) else "")


def _last_seen_ns(session: Session, telemetry: Telemetry) -> int:
    """Find the latest time at which something of the run is known to have gone on, on one host."""
    sampler = telemetry.sampler
    clock = session.clocks.of(sampler.node)
    ends = [
        launch.outcome.ended_ns if clock is None else clock.real_to_session_ns(launch.outcome.ended_ns)
        for launch in session.launches
        if launch.outcome is not None and launch.manifest.host == sampler.host
    ]
    own = [process for process in session.processes if process.identity.node == sampler.node]
    ticks = [process.clock.to_session_ns(tick.clock[0]) for process in own for tick in process.of_type(Tick)]
    return max([*ends, *ticks], default=0)


def _recorded_data(process: Process) -> bool:
    return bool(len(process.spans) or process.of_type(Tick) or len(process.rows(names.PRODUCED_ROW)))


def _lost_calls_alone(session: Session, process: Process) -> bool:
    """Whether a process without records of data has left calls in dftracer's buffer as it died.

    One that executed another program has not: the agent has the buffer written before.
    """
    if process.pid in session.calls.ended or not (session.signal or len(session.calls_of(process))):
        return False
    same = [other.began_ns for other in session.processes if other.pid == process.pid]
    return session.posix_on and process.began_ns == max(same)


def named(process: Process) -> str:
    """Name a process as reports do: its role and its pid."""
    role = process.identity.role if process.worker is None else f"worker {process.worker}"
    return f"{role} (pid {process.pid})"
