"""CPUs that the makers of batches were ready for and did not get: bindings, quotas, neighbours."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from iotrace.analysis.host.disturbance import TAKEN, THROTTLED, is_crowded
from iotrace.analysis.results import Change, Evidence, ProcessUse
from iotrace.analysis.rules.facts.rank import MAIN, RankFacts
from iotrace.analysis.rules.model import Finding, fires, rule, silent
from iotrace.analysis.wait.data_wait import bound_together
from iotrace.units import counted, percent

# Where all other CPUs are taken, too, to unbind gains little: who took them comes before the binding.
_BEFORE_BINDING, _BEHIND_OTHERS = "IO302", "IO306"
# What binds threads to CPUs from outside of the program's own code.
_BINDING_VARIABLES = ("OMP_PROC_BIND", "OMP_PLACES", "KMP_AFFINITY", "GOMP_CPU_AFFINITY")
_HALF = 0.5  # of the CPUs
_DOING = {"read": "reading", "decode": "decoding", "transform": "in transforms", "collate": "collating"}
# What rules on threads and CPUs share: four workers that wait 40 of 60 ms for a CPU.
_BOUND = [{"role": f"worker {number}", "cpus": [0]} for number in range(4)]
_WITH_LOOP = [*_BOUND, {"role": "main", "cpus": [0]}]
FREE = [{"role": f"worker {number}", "cpus": [*range(8)]} for number in range(4)]
_CROWDED = {"others_cpu_fraction": 0.6, "cpu_busy_fraction": 0.99, "cpu_saturated_fraction": 0.9}


@rule("IO302", "cpu-binding", "rank")
@fires(
    {"processes": _BOUND},
    {"processes": _BOUND[:2], "usable": 1, "variables": {"SLURM_CPUS_PER_TASK": "1"}},
    {"processes": _WITH_LOOP, "without_cpu_ms": 5.0, "steps": {"thread_run_delay_ms": 15.0}},
)
@silent(
    {"processes": _WITH_LOOP, "without_cpu_ms": 5.0, "steps": {"thread_run_delay_ms": 9.0}},
    {"processes": _BOUND, "without_cpu_ms": 5.0, "steps": {"thread_run_delay_ms": 15.0}},  # the loop is not
    {"processes": _WITH_LOOP, "online": 1, "without_cpu_ms": 5.0, "steps": {"thread_run_delay_ms": 15.0}},
    {"processes": [{"role": f"worker {number}", "cpus": [number]} for number in range(2)]},
    {"processes": _BOUND, "without_cpu_ms": 14.9},
    {"processes": FREE},
)
def cpu_binding(facts: RankFacts) -> Iterator[Finding]:
    """A set of CPUs has more processes bound to it than it has CPUs, and the host has other CPUs.

    The kernel says which CPUs each process may run on, and how long its threads were ready to run without
    one. The gain is a bound: a replay of the batches without these waits. Where the training is bound to the
    same CPUs, it may queue itself, also to take batches that lie ready: what that gains is not known.

    Remedy: depends on what binds them: the scheduler's request, a variable of OpenMP, or the program's own
    call.
    """
    system = facts.report.system
    found, online = bound_together(system.processes), system.cpus_online
    if found is None or online is None or len(found[0]) >= online:
        return
    if not (facts.lacks_cpus or facts.loop_lacks_cpus):
        return
    cpus, sharing = found
    usable = system.cpus_usable or []
    text = f"{_who(sharing)[1]} share{'s' if len(sharing) == 1 else ''} {_named(cpus)}"
    evidence: Evidence = {
        "affinity": cpus,
        "processes": float(len(sharing)),
        "cpus_usable": float(len(usable)),
        "cpus_online": float(online),
    }
    known: dict[str, Any] = {
        "remedy": _unbound(facts, cpus, sharing),
        "change": Change(cpus=usable) if set(usable) - set(cpus) else None,
        "place": _BEHIND_OTHERS if _is_no_binding(facts) else "",
    }
    if facts.lacks_cpus:
        yield _without_cpus(facts, text, evidence, gain_ms=facts.cpu_gain_ms, **known)
        return
    queued_ms, raw_ms = facts.loop_queues_ms, facts.report.data_wait.raw_ms or 0.0
    step_ms = facts.report.steps.mean_ms or 0.0
    yield Finding(
        text=f"{text}: the loop queues for it for up to {queued_ms:.1f} of {step_ms:.1f} ms of a step",
        evidence={**evidence, "queued_ms": queued_ms},
        cost_ms=min(queued_ms, raw_ms),
        is_main_cause=raw_ms > 0 and queued_ms >= MAIN * raw_ms,
        silences=("IO201",),  # to take a batch takes long, as the loop queues meanwhile
        **known,
    )


def _unbound(facts: RankFacts, cpus: list[int], sharing: list[ProcessUse]) -> str:
    """Say how the processes get more CPUs, by who bound them."""
    system, variables = facts.report.system, facts.variables
    usable, workers = system.cpus_usable or [], _who(sharing)[0]
    main = next((each for each in system.processes if each.role == "main"), None)
    if not set(usable) - set(cpus):  # the job itself may use no more
        is_slurm = variables.get("SLURM_CPUS_PER_TASK") or "SLURM_CPU_BIND" in variables
        wanted = min(workers + 1, system.cpus_online or workers + 1)
        how = f": sbatch --cpus-per-task={wanted}" if is_slurm else ""
        return f"give the job {wanted} CPUs, it has {len(cpus)}{how}"
    if main is not None and main.cpus and [*main.cpus] == cpus:
        named = [f"{name}={variables[name]}" for name in _BINDING_VARIABLES if name in variables]
        by = f" (unset {named[0]})" if named else " (taskset, numactl, sched_setaffinity)"
        return f"start the training unbound{by}: it may use {len(usable)} CPUs"
    return f"do not bind workers (os.sched_setaffinity): {len(usable)} CPUs are allowed"


def _is_no_binding(facts: RankFacts) -> bool:
    """Whether to unbind gains little: all other CPUs are taken, too."""
    return facts.cpus_beside_busy and (_is_stolen(facts) or _has_neighbours(facts))


@rule("IO303", "cpu-quota", "rank")
@fires({"processes": FREE, "host": {"cpu_throttled_fraction": 0.4, "cpu_busy_fraction": 0.1}})
@silent(
    {"processes": FREE, "host": {"cpu_throttled_fraction": 0.09, "cpu_busy_fraction": 0.1}},
    {"processes": FREE, "host": {"cpu_throttled_fraction": 0.4}, "without_cpu_ms": 5.0},
)
def cpu_quota(facts: RankFacts, *, least_of_periods: float = THROTTLED) -> Iterator[Finding]:
    """A CPU quota stops the job.

    A container is slow on an idle host, and steps take multiples of 100 ms, the quota's period. Short bursts
    alone use up a quota in up to 10 % of its periods.

    Remedy: raise it, or run fewer workers.
    """
    host = facts.report.system.host
    held = None if host is None else host.cpu_throttled_fraction
    if facts.lacks_cpus and held is not None and held >= least_of_periods:
        text = f"the CPU quota stopped the job in {percent(held)} of its periods"
        remedy = "raise the CPU quota (cpu.max, Kubernetes' limits.cpu)"
        evidence: Evidence = {"throttled_fraction": held}
        yield _without_cpus(facts, text, evidence, remedy=remedy, gain_ms=facts.cpu_gain_ms)


@rule("IO305", "stolen-cpus", "rank", id="stolen")
@fires({"processes": FREE, "host": {"cpu_stolen_fraction": 0.2}})
@silent({"processes": FREE, "host": {"cpu_stolen_fraction": 0.01}})
def stolen_cpus(facts: RankFacts) -> Iterator[Finding]:
    """Other virtual machines took CPU time of this one.

    The hypervisor counts it. The job cannot change it, and storage is not the cause.
    """
    host = facts.report.system.host
    if host is not None and facts.lacks_cpus and _is_stolen(facts):
        share = host.cpu_stolen_fraction or 0.0
        text = f"other virtual machines took {percent(share)} of the CPUs' time"
        place = _BEFORE_BINDING if _is_bound(facts) and _is_no_binding(facts) else ""
        yield _without_cpus(facts, text, {"stolen_fraction": share}, place=place)


@rule("IO306", "neighbours", "rank")
@fires({"processes": FREE, "host": _CROWDED})
@silent(
    {"processes": FREE, "host": {**_CROWDED, "cpu_busy_fraction": 0.7, "cpu_saturated_fraction": 0.0}},
    {"processes": FREE, "host": _CROWDED, "without_cpu_ms": 5.0},
)
def neighbours(facts: RankFacts) -> Iterator[Finding]:
    """Other programs on the host took the CPUs.

    No CPU was free while the makers of batches waited for one.
    """
    host = facts.report.system.host
    if host is not None and facts.lacks_cpus and _has_neighbours(facts):
        share = host.others_cpu_fraction or 0.0
        text = f"other programs took {percent(share)} of the CPUs"
        place = _BEFORE_BINDING if _is_bound(facts) and _is_no_binding(facts) else ""
        yield _without_cpus(facts, text, {"others_cpu_fraction": share}, place=place)


def _is_bound(facts: RankFacts) -> bool:
    found, online = bound_together(facts.report.system.processes), facts.report.system.cpus_online
    return found is not None and online is not None and len(found[0]) < online


def _is_stolen(facts: RankFacts) -> bool:
    host = facts.report.system.host
    return host is not None and (host.cpu_stolen_fraction or 0.0) >= TAKEN[0]


def _has_neighbours(facts: RankFacts) -> bool:
    return is_crowded(facts.report.system.host)


@rule("IO307", "too-few-cpus", "rank")
@fires({"processes": [{"role": f"worker {n}", "cpus": [0, 1]} for n in range(4)], "usable": 2, "online": 2})
@silent(
    {"processes": [{"role": "worker 0", "cpus": [0, 1]}], "usable": 2, "online": 2},
    {
        "processes": [{"role": f"worker {n}", "cpus": [0, 1]} for n in range(4)],
        "usable": 2,
        "online": 2,
        "without_cpu_ms": 5.0,
    },
    {  # others have most of these CPUs: without them the job has enough
        "processes": [
            {"role": role, "cpus": [0, 1], "cpu_pct_mean": 20.0} for role in ("main", "worker 0", "worker 1")
        ],
        "usable": 2,
        "online": 2,
        "host": _CROWDED,
    },
)
def too_few_cpus(facts: RankFacts) -> Iterator[Finding]:
    """More processes than the host has CPUs share all of them.

    Fewer workers may do as much: a sweep finds how many. Not where other programs took the CPUs, and the job
    had less than half of them.
    """
    system = facts.report.system
    found, online = bound_together(system.processes), system.cpus_online
    if found is not None and online and _has_neighbours(facts) and _used(found[1]) < _HALF * online:
        return
    if facts.lacks_cpus and found is not None and online is not None and len(found[0]) >= online:
        text = f"{_who(found[1])[1]} share all {counted(online, 'CPU')} of the host"
        evidence: Evidence = {"processes": float(len(found[1])), "cpus_online": float(online)}
        yield _without_cpus(facts, text, evidence)


def _used(sharing: list[ProcessUse]) -> float:
    """How many CPUs these processes kept busy; infinite where that is not known."""
    known = [each.cpu_pct_mean for each in sharing]
    return sum(each / 100 if each is not None else math.inf for each in known)


def _without_cpus(
    facts: RankFacts,
    text: str,
    evidence: Evidence,
    remedy: str = "",
    change: Change | None = None,
    gain_ms: float | None = None,
    place: str = "",
) -> Finding:
    lost_ms, wait = facts.without_cpu_ms, facts.report.data_wait
    # What hands batches over had no CPU either, and nobody counts that: it speaks for no other cause.
    makers_ms = (wait.raw_ms or 0.0) - wait.causes_ms.get("transport", 0.0)
    return Finding(
        text=f"{text}: {stage_of(facts)}",
        evidence=evidence,
        remedy=remedy,
        change=change,
        cost_ms=lost_ms,
        gain_ms=gain_ms,
        is_main_cause=lost_ms >= MAIN * makers_ms,
        place=place,
    )


def stage_of(facts: RankFacts) -> str:
    """Name the cause that waited most for CPUs."""
    wait = facts.report.data_wait
    spent = wait.without_cpu_ms or {}
    cause = max(spent, key=lambda name: spent[name])
    how = _DOING.get(cause, cause)
    return f"{spent[cause]:.1f} of {wait.causes_ms[cause]:.1f} ms {how} was queueing for a busy CPU"


def _who(sharing: list[ProcessUse]) -> tuple[int, str]:
    workers = sum(each.role != "main" for each in sharing)
    return workers, counted(workers, "worker") + (" and the training" if len(sharing) > workers else "")


def _named(cpus: list[int]) -> str:
    if len(cpus) == 1:
        return f"CPU {cpus[0]}"
    if cpus == [*range(cpus[0], cpus[-1] + 1)]:
        return f"CPUs {cpus[0]} to {cpus[-1]}"
    return f"{len(cpus)} CPUs"
