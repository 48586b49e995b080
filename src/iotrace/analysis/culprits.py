"""Whose fault a wait is where its makers were ready to run but had no CPU: a binding, a quota, neighbours.

A rule is silent unless the wait for a CPU is large, and what was seen of the CPUs explains it. Thresholds:
docs/definitions.md, culprits.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from msgspec.structs import replace

from iotrace.analysis.host.measured import MeasuredTime
from iotrace.analysis.intervals import distinct
from iotrace.analysis.rank import RankAnalysis
from iotrace.analysis.results import (
    Culprit,
    DataWait,
    Evidence,
    ProcessUse,
    RankReport,
    Recommendation,
    System,
)
from iotrace.analysis.verdict.trust import free_cpus
from iotrace.analysis.wait.cpu_waits import cpu_causes_ns, cpu_waits
from iotrace.analysis.wait.data_wait import MODERATELY_PERCENT, bound_together
from iotrace.analysis.wait.gain_bound import replayed_gain_ms
from iotrace.analysis.wait.pools import asleep_for_pool, decoding_without_cpu, pool_of
from iotrace.sources.records import Threads
from iotrace.units import counted, percent

_TOLD = 0.25  # of the data wait
_LEADS = 0.5
_QUOTA = 0.1  # of its periods
_OTHERS = 0.2  # of the CPUs
_STOLEN = 0.05
_BUSY = 0.9  # of the time of the CPUs beside the bound ones
# Remedies that give the makers more CPUs: what that gains has a bound. Threads that are fewer compute less,
# too, where they spin, and nothing was seen of them without: nobody knows how much.
_UNBOUND = ("cpu-binding", "cpu-quota")
_SPIN = ("openblas", "torch")  # their threads spin while they wait; others sleep, and few gain little
# What binds threads to CPUs from outside of the program's own code.
_BINDING_VARIABLES = ("OMP_PROC_BIND", "OMP_PLACES", "KMP_AFFINITY", "GOMP_CPU_AFFINITY")


def with_cpu(wait: DataWait, analysis: RankAnalysis) -> DataWait:
    """Add what the causes of a wait spent without a CPU."""
    if not wait.raw_ms:
        return wait
    waits = analysis.measured_waits
    spent_ns = cpu_causes_ns(waits, cpu_waits(analysis.rank, waits))
    if spent_ns is None:
        return wait
    steps = len(analysis.kept)
    return replace(wait, without_cpu_ms={cause: ns / steps / 1e6 for cause, ns in spent_ns.items()})


def worth_telling(cost_ms: float, report: RankReport) -> bool:
    """Whether a culprit's part of the data wait is much of that, and of a step."""
    wait_ms, step_ms = report.data_wait.raw_ms, report.steps.mean_ms
    if not wait_ms or not step_ms:
        return False
    return cost_ms >= _TOLD * wait_ms and 100 * cost_ms >= MODERATELY_PERCENT * step_ms


def leads(cost_ms: float, report: RankReport) -> bool:
    """Whether it is so much of the data wait that a verdict names it before the cause."""
    return cost_ms >= _LEADS * (report.data_wait.raw_ms or 0.0)


def culprits_of(analysis: RankAnalysis, report: RankReport) -> list[Culprit]:
    """Find who kept CPUs from the makers of this rank's batches, most specific first."""
    wait, step_ms = report.data_wait, report.steps.mean_ms
    spent = wait.without_cpu_ms or {}
    lost_ms = sum(spent.values())
    if not step_ms or not worth_telling(lost_ms, report):
        return []
    cause = max(spent, key=lambda name: spent[name])
    stage = f"{cause} {wait.causes_ms[cause]:.1f} ms, {spent[cause]:.1f} of it waiting for a CPU"
    binding, others = [*_binding(analysis, report.system)], [*_others(report)]
    if binding and others and _elsewhere_busy(analysis, report.system):
        binding, others = others, binding  # to unbind gains little: all other CPUs are taken, too
    return [
        replace(
            each,
            text=f"{each.text}: {stage}",
            wait_ms=lost_ms,
            leads=leads(lost_ms, report),
            gain_ms_per_step=_gain_ms(analysis, report, step_ms) if each.id in _UNBOUND else None,
        )
        for each in (
            *binding,
            *_quota(report),
            *_threads(report),
            *others,
            *_own_processes(report.system),
        )
    ]


def advice_of(culprits: list[Culprit]) -> list[Recommendation]:
    """Advise to mend what can be mended; the gain, where one is told, is a bound."""
    return [
        Recommendation(
            id=each.id,
            severity="high",
            text=f"{each.text}: {each.remedy}",
            evidence={"wait_ms": each.wait_ms},
            gain_ms_per_step=each.gain_ms_per_step,
            remedy=each.remedy,
            fix=each.id,
        )
        for each in culprits
        if each.leads and each.remedy
    ]


def _culprit(name: str, text: str, evidence: Evidence, remedy: str = "") -> Culprit:
    return Culprit(id=name, text=text, evidence=evidence, wait_ms=0.0, leads=False, remedy=remedy)


def _binding(analysis: RankAnalysis, system: System) -> Iterator[Culprit]:
    """More processes than CPUs share a set that is not all of the host's."""
    found = bound_together(system.processes)
    online = system.cpus_online
    if found is None or online is None or len(found[0]) >= online:
        return
    cpus, sharing = found
    usable = system.cpus_usable or []
    inside = bool(set(usable) - set(cpus))  # the job itself may use more
    main = next((each for each in system.processes if each.role == "main"), None)
    variables: dict[str, str] = next((each.variables for each in analysis.rank.main.of_type(Threads)), {})
    workers, who = _who(sharing)
    if not inside:
        allotted = variables.get("SLURM_CPUS_PER_TASK")
        how = f"sbatch --cpus-per-task={workers + 1}" if allotted or "SLURM_CPU_BIND" in variables else ""
        remedy = f"give the job {workers + 1} CPUs, it has {len(cpus)}" + (f": {how}" if how else "")
    elif main is not None and main.cpus and [*main.cpus] == cpus:
        named = [f"{name}={variables[name]}" for name in _BINDING_VARIABLES if name in variables]
        by = f" (unset {named[0]})" if named else " (taskset, numactl, sched_setaffinity)"
        remedy = f"start the training unbound{by}: it may use {len(usable)} CPUs"
    else:
        remedy = f"do not bind workers (os.sched_setaffinity): {len(usable)} CPUs are theirs"
    text = f"{who} share{'s' if len(sharing) == 1 else ''} {_named(cpus)}"
    evidence: Evidence = {
        "affinity": cpus,
        "processes": float(len(sharing)),
        "cpus_usable": float(len(usable)),
        "cpus_online": float(online),
    }
    yield _culprit("cpu-binding", text, evidence, remedy)


def _own_processes(system: System) -> Iterator[Culprit]:
    """More processes than CPUs share all of the host: fewer of them may do as much."""
    found, online = bound_together(system.processes), system.cpus_online
    if found is not None and online is not None and len(found[0]) >= online:
        text = f"{_who(found[1])[1]} share all {counted(online, 'CPU')} of the host"
        yield _culprit(
            "too-few-cpus", text, {"processes": float(len(found[1])), "cpus_online": float(online)}
        )


def _who(sharing: list[ProcessUse]) -> tuple[int, str]:
    workers = sum(each.role != "main" for each in sharing)
    return workers, counted(workers, "worker") + (" and the training" if len(sharing) > workers else "")


def _named(cpus: list[int]) -> str:
    if len(cpus) == 1:
        return f"CPU {cpus[0]}"
    if cpus == [*range(cpus[0], cpus[-1] + 1)]:
        return f"CPUs {cpus[0]} to {cpus[-1]}"
    return f"{len(cpus)} CPUs"


def _elsewhere_busy(analysis: RankAnalysis, system: System) -> bool:
    """Whether the CPUs that the bound processes may not use were busy, as far as they were sampled."""
    found, telemetry = bound_together(system.processes), analysis.telemetry
    if found is None or telemetry is None:
        return False
    host = telemetry.host
    columns = [column for column, cpu in enumerate(host.cpus) if cpu not in found[0]]
    if not columns:
        return False
    mean = MeasuredTime(analysis.kept).mean_share(host.time_ns, host.busy[:, columns].mean(axis=1))
    return mean is not None and mean >= _BUSY


def _quota(report: RankReport) -> Iterator[Culprit]:
    host = report.system.host
    held = None if host is None else host.cpu_throttled_fraction
    if held is not None and held >= _QUOTA:
        text = f"the CPU quota stopped the job in {percent(held)} of its periods"
        remedy = "raise the CPU quota (cpu.max, Kubernetes' limits.cpu)"
        yield _culprit("cpu-quota", text, {"throttled_fraction": held}, remedy)


def _threads(report: RankReport) -> Iterator[Culprit]:
    """Libraries in workers that start more threads together than there are CPUs."""
    pool = pool_of(report.system)
    if pool is not None:
        workers = counted(pool.workers, "worker")
        text = f"{workers} started {pool.threads} threads of {pool.library} for {pool.cpus} CPUs"
        setting = _ONE_THREAD.get(pool.library, f"one thread of {pool.library} in each worker")
        evidence: Evidence = {"library": pool.library, "threads": float(pool.threads)}
        to_try = "" if pool.library in _SPIN else "try "
        yield _culprit("threads", text, evidence, f"{to_try}{setting} (worker_init_fn)")


def waiting_for_threads(analysis: RankAnalysis, report: RankReport) -> Iterator[Culprit]:
    """Name threads of a library for which those of the samples sleep: no storage, and no CPU to be had."""
    cause, how = "decode", "waiting for a CPU"
    share = decoding_without_cpu(analysis, report)
    if share is None and not any(each.id == "threads" for each in report.culprits):
        cause, how = "transform", "asleep for these"
        share = asleep_for_pool(analysis, report)
    cause_ms = report.data_wait.causes_ms.get(cause, 0.0)
    lost_ms = (share or 0.0) * cause_ms
    if not worth_telling(lost_ms, report):
        return
    for each in _threads(report):
        text = f"{each.text}: {cause} {cause_ms:.1f} ms, {lost_ms:.1f} of it {how}"
        yield replace(each, text=text, wait_ms=lost_ms, leads=leads(lost_ms, report))


_ONE_THREAD = {
    "torch": "torch.set_num_threads(1)",
    "cv2": "cv2.setNumThreads(0)",
    "blosc": "numcodecs.blosc.set_nthreads(1)",
    "blosc2": "blosc2.set_nthreads(1)",
    "openblas": "threadpoolctl.threadpool_limits(1)",
    "numexpr": "numexpr.set_num_threads(1)",
    "zarr": 'zarr.config.set({"async.concurrency": 1})',
}


def _others(report: RankReport) -> Iterator[Culprit]:
    """What nobody who runs the job can change: no remedy, but no storage to blame either."""
    host = report.system.host
    if host is None:
        return
    if (host.cpu_stolen_fraction or 0.0) >= _STOLEN:
        stolen = host.cpu_stolen_fraction or 0.0
        text = f"other virtual machines took {percent(stolen)} of the CPUs' time"
        yield _culprit("stolen", text, {"stolen_fraction": stolen})
    if (host.others_cpu_fraction or 0.0) >= _OTHERS and not free_cpus(host):
        others = host.others_cpu_fraction or 0.0
        text = f"other programs took {percent(others)} of the CPUs"
        yield _culprit("neighbours", text, {"others_cpu_fraction": others})


def _gain_ms(analysis: RankAnalysis, report: RankReport, step_ms: float) -> float | None:
    """Bound what a step loses: a replay without the waits for a CPU, and the work that CPUs have to do."""
    primary, system = analysis.primary, report.system
    if primary is None or primary.description.wrapped or primary.description.in_order is False:
        return None
    explained = analysis.explained(primary)
    awaited = analysis.kept.awaited
    measured = distinct(awaited["number"][awaited["loader"] == primary.number])
    less = np.nan_to_num(cpu_waits(analysis.rank, explained).sum(axis=1))
    gain_ms = replayed_gain_ms(explained.deliveries, measured, len(analysis.kept), less)
    others = None if system.host is None else system.host.others_cpu_fraction
    usable = len(system.cpus_usable or []) * (1 - (others or 0.0))
    if system.cpu_pct_mean is not None and usable > 0:
        gain_ms = min(gain_ms, max(0.0, step_ms - step_ms * system.cpu_pct_mean / 100 / usable))
    return gain_ms
