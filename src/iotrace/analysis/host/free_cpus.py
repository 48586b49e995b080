"""Whether other programs and machines took CPUs from the job."""

from __future__ import annotations

from iotrace.analysis.results import HostUse

# From which share of the CPUs a figure is doubtful, and from which it is bad.
OTHERS_BOUNDS = (0.05, 0.20)  # where no CPU is free
STOLEN_BOUNDS = (0.05, 0.20)
_BUSY, _SATURATED = 0.9, 0.2  # no CPU is free


def free_cpus(host: HostUse) -> bool:
    """Whether there was a CPU that neither the job nor anything else kept busy."""
    busy, saturated = host.cpu_busy_fraction, host.cpu_saturated_fraction
    return busy is not None and busy < _BUSY and (saturated or 0.0) < _SATURATED


def disturbed(host: HostUse | None) -> bool:
    """Whether other programs or machines took so many of the CPUs that times are no longer the job's own."""
    if host is None:
        return False
    others = host.others_cpu_fraction or 0.0
    stolen = host.cpu_stolen_fraction or 0.0
    return (not free_cpus(host) and others >= OTHERS_BOUNDS[1]) or stolen >= STOLEN_BOUNDS[1]
