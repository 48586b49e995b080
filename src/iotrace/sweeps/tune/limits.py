"""What a search has room for: settings are refused before they are tried, runs before they are begun."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import msgspec

from iotrace.sweeps.grid import PREFETCH, WORKERS
from iotrace.sweeps.model import Seen
from iotrace.units import percent, size

_SHARE = 0.8  # of what is left: what batches and workers may take of it
_WORKERS_PER_CPU = 4
_DESCRIPTORS = 64  # of a program, beside its workers'
_OF_WORKER, _OF_BATCH = 8, 4  # descriptors: pipes and queues; tensors on their way


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """What is left here; None is unknown. `cpus` may be a quota of a control group."""

    cpus: float
    memory_bytes: int | None = None
    shm_bytes: int | None = None
    descriptors: int | None = None


def refused(params: Mapping[str, str], seen: Seen, place: Place) -> str | None:
    """Say why there is no room for `params`; None where there is. `seen` is the program's own run."""
    settings = {**seen.settings, **params}
    workers, before = int(settings.get(WORKERS, 0)), int(seen.settings.get(WORKERS, 0))
    prefetch = int(settings.get(PREFETCH, 2))
    ranks = max(1, seen.ranks)
    of_ranks = f" for each of {ranks} ranks" if ranks > 1 else ""
    if workers * ranks > _WORKERS_PER_CPU * place.cpus:
        return f"{workers} workers{of_ranks} on {place.cpus:g} CPUs (over {_WORKERS_PER_CPU} for each)"
    more = ranks * (workers - before)
    if place.memory_bytes is not None and seen.worker_bytes and more > 0:
        needed = more * seen.worker_bytes
        if needed > _SHARE * place.memory_bytes:
            return f"{more} workers more may need {size(needed)} of memory: {_left(place.memory_bytes)}"
    if place.shm_bytes is not None and seen.batch_bytes:
        needed = int(ranks * workers * (prefetch + 1) * seen.batch_bytes)
        if needed > _SHARE * place.shm_bytes:
            return f"its batches need {size(needed)} of /dev/shm: {_left(place.shm_bytes)}"
    needed = _DESCRIPTORS + workers * (_OF_WORKER + prefetch * _OF_BATCH)
    if place.descriptors is not None and needed > place.descriptors:
        return f"it needs some {needed} descriptors, and the limit is {place.descriptors} (ulimit -n)"
    return None


def _left(free_bytes: int) -> str:
    return f"over {percent(_SHARE)} of the {size(free_bytes)} that are free"


class NoRoomError(Exception):
    """The budget has no room for one more run."""


class Budget:
    """`seconds` from `begin` on, without end where they are None."""

    def __init__(self, seconds: float | None, clock: Callable[[], float]) -> None:
        self._seconds, self.clock = seconds, clock
        self._until = math.inf
        self._took: list[float] = []

    def begin(self, took: list[float]) -> None:
        """Let the time run; `took` are the seconds of runs that are there already."""
        self._until = math.inf if self._seconds is None else self.clock() + self._seconds
        self._took = [*took]

    def add(self, seconds: float) -> None:
        """Note how long a run took, with the look at its session."""
        self._took.append(seconds)

    def has_room(self, runs: int) -> bool:
        """Whether so many further runs end in time; of the first one nobody knows."""
        return not self._took or self.clock() + runs * self._run_s <= self._until

    def check(self, runs: int) -> None:
        """Raise NoRoomError where so many further runs would not end in time."""
        if not self.has_room(runs):
            what = "one more run" if runs == 1 else "one more setting and a pair as proof:"
            each = f"of about {self._run_s:.0f} s" if runs == 1 else f"runs take about {self._run_s:.0f} s"
            raise NoRoomError(f"no room in the budget for {what} {each}")

    @property
    def _run_s(self) -> float:
        return sum(self._took) / len(self._took)
