"""Find who this process is (role, rank, host), from the environment and /proc, and how its clocks relate.

Used inside traced processes: it imports little.
"""

from __future__ import annotations

import os
import sys
from posix import close, open, read
from time import monotonic_ns, time_ns

from iotrace.session.guard import ours
from iotrace.session.masks import masked
from iotrace.session.names import HOST_VARIABLE

TYPE_CHECKING = False  # `typing` costs half of the agent's start-up
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

# By the module that starts a process of multiprocessing. A helper loads no data and gets no recorder.
_ROLES = {
    "multiprocessing.resource_tracker": "helper",
    "multiprocessing.semaphore_tracker": "helper",
    "multiprocessing.forkserver": "forkserver",
    "multiprocessing.spawn": "spawned",
}

# torchrun, Open MPI, PALS and PMI (MPICH, Intel MPI, Cray), Slurm: the innermost launcher first.
_RANK_VARIABLES = {
    "rank": ("RANK", "OMPI_COMM_WORLD_RANK", "PALS_RANKID", "PMI_RANK", "SLURM_PROCID"),
    "local_rank": (
        "LOCAL_RANK",
        "OMPI_COMM_WORLD_LOCAL_RANK",
        "PALS_LOCAL_RANKID",
        "PMI_LOCAL_RANK",
        "MPI_LOCALRANKID",
        "SLURM_LOCALID",
    ),
    "world_size": ("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"),
}
# What launchers and schedulers tell of the nodes of a job; the ranks of a job, and those on this node.
_NODE_VARIABLES = ("SLURM_JOB_NUM_NODES", "SLURM_NNODES", "PALS_NNODES", "GROUP_WORLD_SIZE")
_SIZE_VARIABLES = (
    ("WORLD_SIZE", "LOCAL_WORLD_SIZE"),
    ("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE"),
    ("PMI_SIZE", "PMI_LOCAL_SIZE"),
)
_READINGS = 5


def role(arguments: list[str]) -> str:
    """Return ``helper``, ``forkserver``, ``spawned`` or ``main``, by the command line (`sys.orig_argv`)."""
    code = arguments[arguments.index("-c") + 1 :][:1] if "-c" in arguments else []
    return next((role for module, role in _ROLES.items() if any(module in text for text in code)), "main")


def nodes(environment: Mapping[str, str]) -> int:
    """Return how many nodes a job has, by the variables of launchers and schedulers; 1 where none says it."""
    told = [environment.get(name, "") for name in _NODE_VARIABLES]
    counts = [int(text) for text in told if text.isdigit()]
    for variables in _SIZE_VARIABLES:
        everyone, here = (environment.get(name, "") for name in variables)
        if everyone.isdigit() and here.isdigit() and int(here):
            counts.append(-(-int(everyone) // int(here)))
    return max([1, *counts])


def ranks(environment: Mapping[str, str]) -> dict[str, int | None]:
    """Return rank, local rank and world size by the launcher's variables; None where they are not set."""
    ranks: dict[str, int | None] = {}
    for name, variables in _RANK_VARIABLES.items():
        values = [environment.get(variable, "") for variable in variables]
        ranks[name] = next((int(text) for text in values if text.isdigit()), None)
    return ranks


def boot_id() -> str:
    """Return the id of this boot of the kernel, empty if unknown; processes of one boot share its clocks."""
    try:
        return read_proc("/proc/sys/kernel/random/boot_id", 64).decode().strip()
    except ours(OSError, ValueError):
        return ""


def read_proc(path: str, most: int) -> bytes:
    """Return the first `most` bytes of a file of /proc, as the kernel gives them in one call.

    It is opened each time: a number that is kept may become a file of the program's.
    """
    descriptor = open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return read(descriptor, most)
    finally:
        close(descriptor)


def io_account() -> dict[str, int]:
    """Return the kernel's own account of what this process read and wrote; as far as it can be read."""
    account: dict[str, int] = {}
    try:
        for line in read_proc("/proc/self/io", 512).decode().splitlines():
            key, _, value = line.partition(": ")
            account[key] = int(value)
    except ours(OSError, ValueError):
        pass
    return account


def describe(process_role: str) -> dict[str, Any]:
    """Return the content of process.json for this process, apart from its clock."""
    node = os.uname().nodename
    restarts = os.environ.get("TORCHELASTIC_RESTART_COUNT", "")
    return {
        "pid": os.getpid(),
        "ppid": os.getppid(),
        "role": process_role,
        "node": node,
        "host": os.environ.get(HOST_VARIABLE) or node,
        "boot_id": boot_id(),
        **ranks(os.environ),
        "incarnation": int(restarts) if restarts.isdigit() else 0,
        "argv": masked(list(getattr(sys, "orig_argv", []))),
        "python": sys.version.split()[0],
        "executable": sys.executable or "",
        "prefixes": sorted({sys.prefix, sys.base_prefix, sys.exec_prefix}),
        "cpus": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
    }


def clock_anchor() -> list[int]:
    """Return ``[mono_ns, real_ns, bound_ns]``: both clocks at one instant, ± the bound.

    It is the best of five readings of REALTIME, each between two of MONOTONIC.
    """
    best = (1 << 62, 0, 0)
    for _ in range(_READINGS):
        before = monotonic_ns()
        real = time_ns()
        after = monotonic_ns()
        best = min(best, (after - before, (before + after) // 2, real))
    width, mono, real = best
    return [mono, real, width // 2 + 1]
