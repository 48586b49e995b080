"""How often loaders, and each process of a rank, went over the data."""

from __future__ import annotations

from collections.abc import Sequence

from iotrace.analysis.loop.deliveries import LoaderRun
from iotrace.sources.session import Rank


def passes_of(loaders: Sequence[LoaderRun]) -> int | None:
    """How often the rank's loaders went over their data, all of them together; None without any."""
    own = [loader for loader in loaders if not loader.description.wrapped] or loaders
    return sum(loader.epochs for loader in own) or None


def passes_lived(loaders: Sequence[LoaderRun], passes: int | None) -> int | None:
    """How many of the passes a worker sees at most: one where each is made by workers of its own."""
    kept = any(loader.description.persistent_workers is not False for loader in loaders)
    return passes if kept else min(1, passes or 0) or None


def passes_by_process(loaders: Sequence[LoaderRun], rank: Rank) -> dict[int, int]:
    """How often each process went over the data, by its pid: at most; empty without any loader."""
    passes = passes_of(loaders)
    if not passes:
        return {}
    by_worker = passes_lived(loaders, passes) or 0
    return {process.pid: passes if process.worker is None else by_worker for process in rank.processes}
