"""Whether the cores had room for another loader worker."""

from __future__ import annotations

from iotrace.analysis.results import System
from iotrace.sources.session import Session

_BUSY = 0.9  # of the cores: what is left is no core for another process
_HELD_BACK = 0.1  # of the CPU quota's periods: below, bursts alone use it up


def core_free(session: Session, system: System) -> bool | None:
    """Whether the cores were not all busy while the job ran; None where that is not known.

    Workers that sleep in reads need none: their number says nothing of it.
    """
    host = system.host
    busy = host.cpu_busy_fraction if host is not None else None
    if busy is None and system.cpu_pct_mean is not None:
        busy = system.cpu_pct_mean / 100 / session.manifest.cpus
    return has_core(busy, host.cpu_throttled_fraction if host is not None else None)


def has_core(busy_fraction: float | None, throttled_fraction: float | None) -> bool | None:
    """By how busy the cores were, and in how many of its periods the CPU quota held the job back."""
    if throttled_fraction is not None and throttled_fraction >= _HELD_BACK:
        return False
    return None if busy_fraction is None else busy_fraction < _BUSY
