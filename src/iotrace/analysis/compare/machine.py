"""How alike the machine was in two sessions: other programs, and files that were not in memory."""

from __future__ import annotations

from collections.abc import Sequence

from iotrace.analysis.compare.basis import Basis, Rank
from iotrace.analysis.host.disturbance import disturbances
from iotrace.analysis.results import total

_ALIKE = 0.1  # of the CPUs: by how much the shares that others took may differ
_SEVERAL = 3  # baselines, to show how far runs differ
_MORE_FROM_STORAGE = 2.0  # times as many bytes a step
_FEW_BYTES = 1 << 16  # a step: as good as none


def busy(side: Basis) -> str | None:
    """Say what kept the CPUs of a session's hosts from the program; None where they were free for it."""
    hosts = [rank.system.host for rank in side.ranks if rank.steps.count]
    return next((why for host in hosts for why in disturbances(host)), None)


def held_up_alike(baselines: Sequence[Basis], sessions: Sequence[Basis]) -> bool:
    """Whether others took as much of the CPUs in the sessions as in several baselines.

    Then the spread of the baselines shows what that does to the figures.
    """
    shares = [others_share(side) for side in baselines]
    known = [share for share in shares if share is not None]
    if len(known) < max(_SEVERAL, len(shares)):
        return False
    now = [others_share(side) for side in sessions]
    alike = (min(known) - _ALIKE, max(known) + _ALIKE)
    return all(share is not None and alike[0] <= share <= alike[1] for share in now)


def others_share(side: Basis) -> float | None:
    """Find the share of the CPUs that other programs took, on the host where it was largest."""
    hosts = [rank.system.host for rank in side.ranks if rank.steps.count]
    shares = [None if host is None else host.others_cpu_fraction for host in hosts]
    return None if None in shares else max((share or 0.0 for share in shares), default=None)


def other_storage(ranks: tuple[Rank, Rank]) -> str | None:
    """Say that one session read far more from storage, the other from memory; None where both did alike."""
    known = [_from_storage(rank) for rank in ranks]
    if known[0] is None or known[1] is None:
        return None
    low, high = sorted(value for value in known if value is not None)
    if high <= _FEW_BYTES or high <= _MORE_FROM_STORAGE * low:
        return None
    cold = "the baseline" if known[0] > known[1] else "the session"
    return f"{cold} read its files from storage, the other from memory"


def _from_storage(rank: Rank) -> float | None:
    read_bytes = total(process.storage_read_bytes for process in rank.system.processes)
    if read_bytes is None or not rank.system.processes or not rank.steps.count:
        return None
    return read_bytes / rank.steps.count
