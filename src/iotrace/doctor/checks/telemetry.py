"""Check what the sidecar can sample of processes and host, by its own readers."""

from __future__ import annotations

import os
from contextlib import closing, suppress

from iotrace.analysis.rules.facts.host import HostFacts
from iotrace.doctor.results import Check, judged
from iotrace.launch.telemetry.procfs import read_stat
from iotrace.launch.telemetry.system import System
from iotrace.launch.telemetry.tree import Member

# The sidecar's figures, and the names that people use.
_FIGURES = {"cpus": "CPUs", "memory": "memory", "disks": "disks", "net": "network"}
_FIGURES["cpu_pressure_us"] = "pressure (PSI)"
_ENERGY = "energy is that of GPUs; the CPUs' (RAPL) is not read"


def telemetry() -> Check:
    """Check this machine's figures."""
    system = System()
    system.read()  # CPUs are figures between two readings
    return check_telemetry(_samples_itself(), {name for name, found in system.read()[0].items() if found})


def _samples_itself() -> bool:
    with suppress(OSError), closing(Member(0, os.getpid(), read_stat("self"), "")) as member:
        return member.sample() is not None
    return False


def check_telemetry(processes: bool, figures: set[str]) -> Check:
    """Judge whether a process could be sampled, and which `figures` of the host were there."""
    found = [shown for name, shown in _FIGURES.items() if name in figures]
    lacking = [shown for name, shown in _FIGURES.items() if name not in figures]
    what = ", ".join(["processes", *found])
    facts = (
        HostFacts(what=what, why=_ENERGY, lacking=lacking) if processes else HostFacts(processes_hidden=True)
    )
    return judged("telemetry", facts, _ENERGY)
