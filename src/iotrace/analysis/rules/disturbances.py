"""What else used the machine: other programs, the hypervisor, quotas, swap. Bounds are (caution, bad)."""

from __future__ import annotations

from collections.abc import Iterator

from iotrace.analysis.host.disturbance import BESIDE_FREE, OTHER_PROGRAMS, TAKEN, THROTTLED, alone
from iotrace.analysis.results import BAD, CAUTION
from iotrace.analysis.rules.facts.trust import TrustFacts
from iotrace.analysis.rules.model import Finding, fires, rule, silent
from iotrace.units import percent, size

SHORTER = 0.98  # of a step: what it takes alone, where that is worth a word
_USUAL_THROTTLE = "power cap"  # how a device works under full load
MIB = 1 << 20
Bounds = tuple[float, float]


def doubt(value: float | None, least: Bounds, text: str) -> Iterator[Finding]:
    if value is not None and value >= least[0]:
        yield Finding(level=BAD if value >= least[1] else CAUTION, text=text)


@rule(OTHER_PROGRAMS, "other-programs", "trust")
@fires(
    {
        "host": {"others_cpu_fraction": 0.3, "cpu_busy_fraction": 0.99},
        "wait": {"raw_ms": 60.0, "causes_ms": {"decode": 60.0}, "without_cpu_ms": {"decode": 40.0}},
        "processes": [{"role": "main", "run_delay_pct_mean": 5.0}],
    },
    {"host": {"others_cpu_fraction": 0.3, "cpu_busy_fraction": 0.99}},
    {"host": None},
)
@silent(
    {"host": {"others_cpu_fraction": 0.1, "cpu_busy_fraction": 0.5}},
    {"host": {"others_cpu_fraction": 0.01, "cpu_busy_fraction": 0.99}},
)
def other_programs(
    facts: TrustFacts, *, least: Bounds = TAKEN, least_beside_free: float = BESIDE_FREE
) -> Iterator[Finding]:
    """Other programs used the CPUs: times are no longer the job's own.

    Other programs can only make a run slower. If the kernel counted how long the job's threads were ready to
    run without a CPU, this says how long a step takes alone: at least what is left without that time. What is
    true in this whole interval is true whatever the others did. The figures are bad only if others took much
    and nothing was counted. If a CPU was free, they took none from the job.

    Remedy: none for what is true in the whole interval; for the rest, repeat the run with fewer other
    programs.
    """
    host = facts.report.system.host
    others = host.others_cpu_fraction if host is not None else None
    if host is None or others is None:
        if facts.report.steps.count:
            yield Finding(level=CAUTION, text="not known: whether other programs were busy")
        return
    if others < (least_beside_free if host.has_free_cpus else least[0]):
        return
    found = alone(facts.report)
    text = f"other programs used {percent(others)} of the CPUs"
    if found.kept < SHORTER:
        text += f": {found.said}"
    is_bad = not found.is_counted and others >= least[1]
    yield Finding(level=BAD if is_bad else CAUTION, text=text)


@rule("IO703", "hypervisor", "trust")
@fires({"host": {"cpu_stolen_fraction": 0.1}})
@silent({"host": {"cpu_stolen_fraction": 0.01}})
def hypervisor(facts: TrustFacts, *, least: Bounds = TAKEN) -> Iterator[Finding]:
    """The hypervisor gave CPU time of this machine to others."""
    host = facts.report.system.host
    stolen = host.cpu_stolen_fraction if host is not None else None
    yield from doubt(stolen, least, f"the hypervisor took {percent(stolen or 0.0)} of the CPUs' time")


@rule("IO704", "throttled", "trust")
@fires(
    {"host": {"cpu_throttled_fraction": 0.2}}, {"gpus": [{"index": 0, "throttle_reasons": {"thermal": 0.4}}]}
)
@silent(
    {"host": {"cpu_throttled_fraction": 0.05}},
    {"gpus": [{"index": 0, "throttle_reasons": {"power cap": 0.9}}]},
)
def throttled(facts: TrustFacts, *, least: float = THROTTLED) -> Iterator[Finding]:
    """A CPU quota held the job back, or a GPU was slowed down: the same run may be faster next time.

    A GPU under full load runs at its power cap; that is usual.
    """
    host = facts.report.system.host
    held = host.cpu_throttled_fraction if host is not None else None
    if held is not None and held >= least:
        text = f"the CPU quota held the job back in {percent(held)} of its periods"
        yield Finding(level=CAUTION, text=text)
    for gpu in facts.report.system.gpus:
        reasons = {why: share for why, share in gpu.throttle_reasons.items() if why != _USUAL_THROTTLE}
        why = max(reasons, key=lambda name: reasons[name], default="")
        if why and reasons[why] >= least:
            text = f"GPU {gpu.index} was slowed down {percent(reasons[why])} of the time ({why})"
            yield Finding(level=CAUTION, text=text)


@rule("IO705", "swapped", "trust")
@fires({"host": {"swap_in_bytes": 90 * MIB}, "processes": [{"role": "main", "swap_bytes_peak": 50 * MIB}]})
@silent({"host": {"swap_in_bytes": 90 * MIB}, "processes": [{"role": "main", "swap_bytes_peak": 0}]})
def swapped(facts: TrustFacts, *, least_bytes: int = 16 << 20) -> Iterator[Finding]:
    """Memory of the job was in swap, and came back in the steps."""
    host = facts.report.system.host
    own = [each.swap_bytes_peak or 0 for each in facts.report.system.processes]
    back = host.swap_in_bytes if host is not None else None
    if back is not None and min(back, sum(own)) >= least_bytes:
        yield Finding(level=CAUTION, text=f"memory in swap: {size(back)} of it came back in the steps")
