"""How far the machine lets two sessions be told apart: other programs, and files that were not in memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from iotrace.analysis.compare.basis import Basis, Rank
from iotrace.analysis.host.others import QUIET
from iotrace.analysis.results import total
from iotrace.units import percent

_SEVERAL = 3  # baselines, to show how far runs differ
_MORE_FROM_STORAGE = 2.0  # times as many bytes a step
_FEW_BYTES = 1 << 16  # a step: as good as none


def busy(side: Basis) -> str | None:
    """Say what kept the CPUs of a session's hosts from the program; None where they were free for it."""
    return next(_disturbances(side), None)


def _disturbances(side: Basis) -> Iterator[str]:
    share = others_share(side)
    if share is None:
        yield "what other programs took of the CPUs is unknown"
    elif share > QUIET:
        yield f"other programs took {percent(share)} of the CPUs"
    stolen = [rank.system.host.cpu_stolen_fraction or 0.0 for rank in side.ranks if rank.system.host]
    if max(stolen, default=0.0) > QUIET:
        yield f"other virtual machines took {percent(max(stolen))} of the CPUs"
    held_back = [rank.system.host.cpu_throttled_fraction or 0.0 for rank in side.ranks if rank.system.host]
    if max(held_back, default=0.0) > QUIET:
        yield f"the CPU quota held it back in {percent(max(held_back))} of the periods"


def held_up_alike(baselines: Sequence[Basis], sessions: Sequence[Basis]) -> bool:
    """Whether others took as much of the CPUs in the sessions as in several baselines.

    Then the spread of the baselines shows what that does to the figures.
    """
    shares = [others_share(side) for side in baselines]
    known = [share for share in shares if share is not None]
    if len(known) < max(_SEVERAL, len(shares)):
        return False
    now = [others_share(side) for side in sessions]
    alike = (min(known) - QUIET, max(known) + QUIET)
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
