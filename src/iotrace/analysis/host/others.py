"""CPU time on a rank's host that the job did not use: other programs', and what the hypervisor gave away."""

from __future__ import annotations

import numpy as np

from iotrace.analysis.host.measured import MeasuredTime, lifelong
from iotrace.analysis.intervals import Coverage
from iotrace.sources.processes import Process
from iotrace.sources.records import Tick
from iotrace.sources.session import Session
from iotrace.sources.telemetry import Floats, SampledProcess, Series, Telemetry

QUIET = 0.1  # of the CPUs: what others may take of a second that is called quiet


def others_and_stolen(
    session: Session, main: Process, telemetry: Telemetry, time: MeasuredTime
) -> tuple[float | None, float | None]:
    """Return the shares of the CPUs that other programs used, and that other virtual machines did.

    The first is None where the training process was not sampled: nobody knows then which of the busy time
    is its own.
    """
    shares = shares_by_second(session, main, telemetry)
    if shares is None:
        return None, None
    others, stolen = (time.mean_share(telemetry.host.time_ns, each) for each in shares)
    # An account of 10 ms ticks may put a tick into the wrong second.
    return None if others is None else max(0.0, others), stolen


def quiet_seconds(session: Session, main: Process, telemetry: Telemetry) -> Coverage | None:
    """Find the seconds in which others took less than `QUIET` of the CPUs; None where nobody knows."""
    shares = shares_by_second(session, main, telemetry)
    if shares is None or np.isnan(shares[0]).all():
        return None
    others, stolen = shares
    taken = (others + np.nan_to_num(stolen))[1:]
    quiet = np.flatnonzero(~np.isnan(taken) & (taken < QUIET))
    times = telemetry.host.time_ns
    return Coverage(times[quiet], times[quiet + 1])


def shares_by_second(session: Session, main: Process, telemetry: Telemetry) -> tuple[Floats, Floats] | None:
    """Return what shares of the CPUs other programs, and other machines, had each second; NaN: unknown."""
    host = telemetry.host
    if not host.cpus or len(host.time_ns) < 2:
        return None
    busy = host.busy.mean(axis=1)
    stolen = np.full(len(busy), np.nan)
    share = host.figures.get("stolen_share")
    if share is not None:
        row = np.searchsorted(host.time_ns, share.time_ns)
        known = row < len(stolen)  # a record that was cut may have the one without the other
        stolen[row[known]] = share.value[known]
        stolen *= busy
    sampled = telemetry.process_of(main)
    if sampled is None or not len(sampled.samples):
        return np.full(len(busy), np.nan), stolen
    capacity_ns = np.diff(host.time_ns, prepend=host.time_ns[0] - 1) * float(len(host.cpus))
    job = np.diff(_job_cpu_ns(session, telemetry), prepend=0.0) / capacity_ns
    return busy - np.nan_to_num(stolen) - job, stolen


def _job_cpu_ns(session: Session, telemetry: Telemetry) -> Floats:
    """Return how much CPU time the job's processes, and the sampler, had used at each time of the host's."""
    times = telemetry.host.time_ns
    total = np.zeros(len(times))
    own = telemetry.host.figures.get("sampler_cpu_ns")
    accounts = [] if own is None else [own]
    agents: dict[int, list[Series]] = {}
    for process in session.processes:
        if process.identity.node != telemetry.sampler.node:
            continue
        ticks = _ticks(process)
        sampled = telemetry.process_of(process)
        if sampled is not None:
            agents.setdefault(id(sampled), []).extend(ticks)
        else:  # it ended before it was found
            accounts += ticks
    for sampled in telemetry.processes:
        series = sampled.series("cpu_ns")
        # The agent's last account is later than the last sample, where the process ended by itself.
        known = [*agents.get(id(sampled), []), *([] if series is None else [series])]
        if known:
            accounts.append(_whole_life(sampled, known, telemetry.last_ns))
    for account in accounts:
        total += np.interp(times.astype(np.float64), account.time_ns.astype(np.float64), account.value)
    return total


def _ticks(process: Process) -> list[Series]:
    """Return the agent's account of the process, from its start on; none where it left none."""
    records = process.of_type(Tick)
    if not records:
        return []
    times = [process.clock.to_session_ns(record.clock[0]) for record in records]
    values = [float(record.cpu_ns) for record in records]
    began_ns = min(process.began_ns, times[0])
    return [Series(np.array([began_ns, *times]), np.array([0.0, *values]))]


def _whole_life(sampled: SampledProcess, known: list[Series], last_ns: int) -> Series:
    """Join accounts of one process: it had used nothing before its start, and no more after the last one."""
    times = np.concatenate([series.time_ns for series in known])
    values = np.concatenate([series.value for series in known])
    order = np.argsort(times, kind="stable")
    joined = Series(times[order], np.maximum.accumulate(values[order]))
    return lifelong(joined, sampled.start_ns, last_ns)
