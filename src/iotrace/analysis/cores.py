"""Whether one more loader worker would have a core to run on."""

from __future__ import annotations

from iotrace.analysis.results import System
from iotrace.sources.session import Rank, Session

_BUSY = 0.9  # of the cores: what is left is no core for another process
_HELD_BACK = 0.01  # of the time, by the CPU quota


def core_free(session: Session, rank: Rank, workers: int, system: System) -> bool | None:
    """Whether a further worker of `rank`, which has `workers`, has a core; None where that is not known."""
    cpus, launched_on = rank.main.identity.cpus, session.manifest.cpus
    # Ranks of one host share its CPUs, unless each was given some of its own.
    shared = cpus is None or cpus >= launched_on
    peers = sum(shared and _beside(rank, other) for other in session.ranks)
    host = system.host
    busy = host.cpu_busy_fraction if host is not None else None
    if busy is None and system.cpu_pct_mean is not None:
        busy = system.cpu_pct_mean / 100 / launched_on
    return has_core(
        (1 + peers) * (1 + workers), cpus, busy, host.cpu_throttled_fraction if host is not None else None
    )


def _beside(rank: Rank, other: Rank) -> bool:
    """Whether `other` is another rank of the same job that ran on the same host at the same time."""
    same_start = (other.main.identity.node, other.incarnation) == (rank.main.identity.node, rank.incarnation)
    return other is not rank and same_start and (rank.world_size or 1) > 1


def has_core(
    processes: int, cpus: int | None, busy_fraction: float | None, throttled_fraction: float | None
) -> bool | None:
    """By the training processes and workers, the CPUs allowed, how busy these were, and the CPU quota."""
    if cpus is not None and processes >= cpus:
        return False
    if throttled_fraction is not None and throttled_fraction >= _HELD_BACK:
        return False
    return None if busy_fraction is None else busy_fraction < _BUSY
