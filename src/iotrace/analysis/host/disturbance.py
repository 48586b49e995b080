"""What others did to a run: who took its CPUs, and what its steps would take if nobody had.

This is the one judge of it: reports, comparisons, checks, sweeps and searches ask here. Others only make a
run slower. So a step that took 90 ms, 40 of which its threads queued for a CPU, takes 50 to 90 ms alone: the
answer is an interval, and what holds all over it is certain whatever the neighbours did.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

import msgspec

from iotrace.analysis.results import HostUse, RankReport
from iotrace.analysis.wait.data_wait import MODERATELY_PERCENT
from iotrace.units import percent

# Of the CPUs' time where none was free: what others may take before it counts, and what is much of it.
TAKEN = (0.05, 0.20)
BESIDE_FREE = 0.25  # the same where a CPU was free: caches, memory bandwidth and clocks are shared still
THROTTLED = 0.10  # of a quota's periods: bursts alone use up less
# Who shares caches with others computes longer: 16 % where they had 65 % of the CPUs (docs/ci.md).
_CROWDING = 0.25
# What CPU times, and elapsed ones, may grow by beside others, however little these took.
_GROWN_LEAST = {"cpu": 0.30, "wall": 1.00}
_FEW, _MOSTLY = 0.1, 0.5  # of the steps; of the wait
_LEAST_SAID = 0.05  # of the measured step
_UNSEEN = 2.0  # times what the kernel counted of threads: those that end between two looks are not in it
OTHER_PROGRAMS, TRACING_COST = "IO702", "IO707"


class _Steps(Protocol):
    @property
    def mean_ms(self) -> float | None: ...
    @property
    def thread_cpu_ms(self) -> float | None: ...


class _Wait(Protocol):
    @property
    def raw_ms(self) -> float | None: ...
    @property
    def causes_ms(self) -> Mapping[str, float]: ...
    @property
    def without_cpu_ms(self) -> Mapping[str, float] | None: ...
    @property
    def queueing_ms(self) -> float | None: ...
    @property
    def making_least_ms(self) -> float | None: ...
    @property
    def taking_least_ms(self) -> float | None: ...


class _System(Protocol):
    @property
    def cpus(self) -> int | None: ...
    @property
    def host(self) -> HostUse | None: ...
    @property
    def processes(self) -> Sequence[Any]: ...


class Measured(Protocol):
    """What is judged: a rank's report, or what a comparison keeps of one."""

    @property
    def steps(self) -> _Steps: ...
    @property
    def data_wait(self) -> _Wait: ...
    @property
    def system(self) -> _System: ...


class Alone(msgspec.Struct, frozen=True):
    """What the mean step and its data wait take at the least if nobody else takes a CPU, in ms.

    As measured they took `step_ms` and `wait_ms`. `is_counted`: the kernel counted how long the threads
    queued; else it is reckoned by the others' share of the CPUs.
    """

    step_ms: float
    wait_ms: float
    least_step_ms: float
    least_wait_ms: float
    is_counted: bool

    @property
    def kept(self) -> float:
        """The share of a step that is left at the least."""
        return self.least_step_ms / self.step_ms if self.step_ms else 1.0

    @property
    def said(self) -> str:
        """Say what a step takes alone; a least that is next to nothing bounds nothing."""
        least = f"{self.least_step_ms:.1f} to" if self.kept >= _LEAST_SAID else "at most"
        return f"without them a step takes {least} {self.step_ms:.1f} ms"


def may_be_all_of_wait(rank: RankReport, least_percent: float = MODERATELY_PERCENT) -> bool:
    """Whether others may have made so much of the wait that too little of it is left for a verdict."""
    if _is_one_long_wait(rank):
        return False
    found = alone(rank)
    # At the least both may be 0: then others may have made all of it.
    return found.kept < 1 and 100 * found.least_wait_ms <= least_percent * found.least_step_ms


def _is_one_long_wait(rank: RankReport) -> bool:
    """Whether nobody explains the wait, and few of many steps hold it, which begin no pass.

    Others lengthen what each step waits for: they make no wait of seconds among short ones.
    """
    wait, count = rank.data_wait, rank.data_wait.long_wait_steps
    if count is None or wait.long_wait_first or count > _FEW * rank.steps.count:
        return False
    return wait.causes_ms.get("unknown", 0.0) >= _MOSTLY * (wait.raw_ms or 0.0)


def taken_share(host: HostUse | None) -> float | None:
    """Return the share of the CPUs' time that others took; None where nobody knows.

    Where a CPU was free, programs on the others took none of it from the job; a hypervisor did.
    """
    if host is None or host.others_cpu_fraction is None:
        return None
    others = 0.0 if host.has_free_cpus else host.others_cpu_fraction
    return min(1.0, max(0.0, others) + max(0.0, host.cpu_stolen_fraction or 0.0))


def is_disturbed(host: HostUse | None) -> bool:
    """Whether others took so much of the CPUs that times are no longer the job's own."""
    return (taken_share(host) or 0.0) >= TAKEN[0]


def is_crowded(host: HostUse | None) -> bool:
    """Whether other programs took much of the CPUs, and left none free."""
    return host is not None and not host.has_free_cpus and (host.others_cpu_fraction or 0.0) >= TAKEN[1]


def disturbances(host: HostUse | None) -> Iterator[str]:
    """Say what kept the CPUs from the job, what took most first; what is not known is one, too."""
    if host is None or host.others_cpu_fraction is None:
        yield "what other programs took of the CPUs is unknown"
    elif not host.has_free_cpus and host.others_cpu_fraction >= TAKEN[0]:
        yield f"other programs took {percent(host.others_cpu_fraction)} of the CPUs"
    if host is not None and (host.cpu_stolen_fraction or 0.0) >= TAKEN[0]:
        yield f"other virtual machines took {percent(host.cpu_stolen_fraction or 0.0)} of the CPUs"
    if host is not None and (host.cpu_throttled_fraction or 0.0) >= THROTTLED:
        yield f"the CPU quota held it back in {percent(host.cpu_throttled_fraction or 0.0)} of the periods"


def alone(rank: Measured) -> Alone:
    """Find what a step takes at the least where nobody else takes a CPU.

    All the time is given back in which a thread that the step waits for was ready and had no CPU, but no
    more than others used of the CPUs meanwhile. Of transport, and of what nobody explains, no account of
    the kernel tells: all of it may be waiting for a CPU, but for what taking batches costs at the least, and
    no more than twice what all threads of the job waited for one. CPU
    time that the job itself used does not go away, nor what the loop itself computes in a wait to choose
    samples.
    """
    step_ms, wait_ms = rank.steps.mean_ms or 0.0, rank.data_wait.raw_ms or 0.0
    host, taken = rank.system.host, taken_share(rank.system.host) or 0.0
    throttled = 0.0 if host is None else host.cpu_throttled_fraction or 0.0
    if not is_disturbed(host) and throttled < THROTTLED:
        return Alone(step_ms, wait_ms, step_ms, wait_ms, True)
    queued = _queued_ms(rank)
    if queued is None:
        of_wait, of_rest = taken * wait_ms, taken * (step_ms - wait_ms)
    else:
        most_ms = taken * (rank.system.cpus or 1) * step_ms
        of_wait, of_rest = queued
        scale = min(1.0, most_ms / (of_wait + of_rest)) if of_wait + of_rest > 0 else 1.0
        of_wait, of_rest = scale * of_wait, scale * of_rest
    # Of a hypervisor no thread's account tells: what it took looks like computing.
    stolen = 0.0 if host is None else host.cpu_stolen_fraction or 0.0
    slower = (1 - _CROWDING * taken) * (1 - (throttled if throttled >= THROTTLED else 0.0)) * (1 - stolen)
    # Where wait and rest both get shorter, what its workers make it in, and its own computing, are left.
    bound_ms = _bound_ms(rank)
    least_ms = slower * max(step_ms - of_wait - of_rest, bound_ms, 0.0)
    # The rest of a step takes no longer alone: what more its threads compute they do in the wait.
    own_ms = slower * bound_ms - (step_ms - wait_ms)
    least_wait_ms = max(0.0, slower * (wait_ms - of_wait), own_ms)
    return Alone(step_ms, wait_ms, least_ms, least_wait_ms, queued is not None)


def unqueued_step_ms(rank: Measured) -> float | None:
    """Return what is left of the mean step without all queueing for a CPU, whoever had it, in ms.

    To compare runs of one program: it hardly depends on what runs beside them. It bounds nothing, as threads
    of the job queue for each other, too. None where the kernel did not count it.
    """
    queued = _queued_ms(rank)
    return None if queued is None else max((rank.steps.mean_ms or 0.0) - sum(queued), _bound_ms(rank))


def _bound_ms(rank: Measured) -> float:
    """What a step takes at the least: its batch is made, and the training process computes."""
    work_ms = max(rank.data_wait.making_least_ms or 0.0, rank.steps.thread_cpu_ms or 0.0)
    return min(rank.steps.mean_ms or 0.0, work_ms)


def grown_beside_others(hosts: Sequence[HostUse | None], clock: str) -> float:
    """Return by what share times of this clock may have grown beside others that took s: s / (1 - s).

    They had that share of the caches, too. Measured at 65 %: 16 % in a stage of 4 ms, 95 % in one of 0.3 ms.
    """
    if not any(True for host in hosts for _ in disturbances(host)):
        return 0.0
    taken = max(map(_share, hosts))
    return max(_GROWN_LEAST[clock], taken / (1 - taken)) if taken < 1 else math.inf


def grown_between(before: HostUse | None, after: HostUse | None) -> float:
    """Return by what share CPU times may differ between two runs of a program beside others.

    A program suffers alike from crowds that are alike: what counts is how much they differ.
    """
    one, other = (taken / (1 - taken) if taken < 1 else math.inf for taken in map(_share, (before, after)))
    if one == other == 0.0:
        return 0.0
    low, high = sorted((one, other))
    return max(_GROWN_LEAST["cpu"], (1 + high) / (1 + low) - 1) if math.isfinite(high) else math.inf


def _share(host: HostUse | None) -> float:
    taken = taken_share(host) or 0.0
    return taken if taken >= TAKEN[0] else 0.0


def _queued_ms(rank: Measured) -> tuple[float, float] | None:
    """Return what of the wait, and of the rest of a step, may be queueing for a CPU; None: not known."""
    wait, step_ms = rank.data_wait, rank.steps.mean_ms or 0.0
    main = next((each for each in rank.system.processes if getattr(each, "role", None) == "main"), None)
    if main is None or main.run_delay_pct_mean is None or wait.without_cpu_ms is None:
        return None
    wait_ms, of_wait = wait.raw_ms or 0.0, wait.queueing_ms
    if of_wait is None:
        # No replay: batches made in half the time halve the step that waits for them, not the wait alone.
        counted_ms = sum(wait.causes_ms.get(cause, 0.0) for cause in wait.without_cpu_ms)
        share = sum(wait.without_cpu_ms.values()) / counted_ms if counted_ms else 0.0
        of_wait = min(counted_ms, share * step_ms)
        of_wait += min(max(0.0, wait_ms - counted_ms), _UNSEEN * _delayed(rank) * step_ms)
    of_rest = (main.run_delay_pct_mean + (main.pool_delay_pct_mean or 0.0)) / 100 * step_ms
    # Choosing samples is all or none of it in a replay: none where no worker makes the batches.
    chosen_ms = _chosen_ms(rank, main.run_delay_pct_mean / 100 * step_ms)
    if chosen_ms is not None:
        queued_ms = wait.causes_ms["sampling"] - chosen_ms
        of_wait = min(max(of_wait, queued_ms), wait_ms - chosen_ms)
    of_wait = min(of_wait, wait_ms - (wait.taking_least_ms or 0.0))
    return max(0.0, of_wait), min(of_rest, step_ms - wait_ms)


def _delayed(rank: Measured) -> float:
    """For what share of the time threads of the job were ready without a CPU, at most: infinite if not known.

    Each thread of a process waited no longer than the one that waited longest.
    """
    found = 0.0
    for each in rank.system.processes:
        main, others = getattr(each, "run_delay_pct_mean", None), getattr(each, "pool_delay_pct_mean", None)
        threads = getattr(each, "threads_peak", None)
        if main is None or threads is None or (others is None and threads > 1):
            return math.inf
        found += main / 100 + (threads - 1) * (others or 0.0) / 100
    return found


def _chosen_ms(rank: Measured, delay_ms: float) -> float | None:
    """What the training thread computes of a step's wait to choose samples: it chooses them itself.

    No account tells of that alone. The thread that chooses is ready all the time, so it computes in the share
    of its `sampling` in which it has a CPU wherever it is ready: `delay_ms` of a step it has none. None where
    it chooses none, or its CPU time is not known.
    """
    cpu_ms, sampling_ms = rank.steps.thread_cpu_ms, rank.data_wait.causes_ms.get("sampling", 0.0)
    return sampling_ms * cpu_ms / (cpu_ms + delay_ms) if cpu_ms and sampling_ms else None
