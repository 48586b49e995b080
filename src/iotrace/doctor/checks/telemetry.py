"""What the sidecar will be able to sample of processes and host: asked of its own readers."""

from __future__ import annotations

import os
import resource

from iotrace.doctor.results import Check, CheckError, missing, ok, warning
from iotrace.launch.telemetry.procfs import parse_stat
from iotrace.launch.telemetry.system import System
from iotrace.launch.telemetry.tree import Member

# The sidecar's figures by what people call them.
_FIGURES = {
    "cpus": "CPUs",
    "memory": "memory",
    "disks": "disks",
    "net": "network",
    "cpu_pressure_us": "pressure (PSI)",
}
# All checks together, each reader with a file of its own.
_FEW_FILES = 64
_PRESSURE = "pressure (PSI)"
_ENERGY = "energy is that of GPUs; the CPUs' (RAPL) is not read"


def telemetry() -> Check:
    """`check_telemetry` of this machine."""
    few = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if 0 <= few < _FEW_FILES:  # else what cannot be opened would look as if the kernel hid it
        raise CheckError(f"{few} files may be open at once, which is too few to look", "ulimit -n 1024")
    system = System()
    system.read()  # CPUs are told from one reading to the next
    return check_telemetry(_samples_itself(), {name for name, found in system.read().items() if found})


def _samples_itself() -> bool:
    try:
        with open("/proc/self/stat", "rb") as file:
            member = Member(0, os.getpid(), parse_stat(file.read()), "")
    except OSError:
        return False
    try:
        return member.sample() is not None
    finally:
        member.close()


def check_telemetry(processes: bool, figures: set[str]) -> Check:
    """`processes`: whether one could be sampled; `figures`: those of the host that were told."""
    if not processes:
        return missing("telemetry", "/proc tells nothing of processes", "no telemetry", "mount /proc")
    there = [shown for name, shown in _FIGURES.items() if name in figures]
    lacking = [shown for name, shown in _FIGURES.items() if name not in figures]
    what = ", ".join(["processes", *there])
    if not lacking:
        return ok("telemetry", what, _ENERGY)
    remedy = "boot with psi=1" if lacking == [_PRESSURE] else "a container may show /proc and /sys in part"
    return warning("telemetry", what, f"not told here: {', '.join(lacking)}; {_ENERGY}", remedy)
