"""The newest steps of a rank that runs, analysed as those of a whole session are."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property

import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

from iotrace.analysis.device.compute import Compute, compute_of
from iotrace.analysis.intervals import Times, distinct
from iotrace.analysis.loop.deliveries import Deliveries, LoaderRun
from iotrace.analysis.loop.join import loaders_of
from iotrace.analysis.loop.step_table import Step, StepTable
from iotrace.analysis.rank import RankAnalysis
from iotrace.analysis.results import Excluded
from iotrace.analysis.table import NONE, key_of
from iotrace.sources.live.session import Fresh

# So long a step waits for what its processes may not have written yet; then it counts, and that is unknown.
HOLD_NS = 10_000_000_000
# A process without a call for so long makes none. dftracer may hold its last 25 back; those of our recorder
# are known until now, but for another host's, whose file comes here late.
STILL_NS = 60_000_000_000
# A window lasts no longer, unless its steps would be fewer.
LONGEST_NS = 120_000_000_000
FEWEST = 5
_UNKNOWN_START = Step(None, 0, 0)


class Window(RankAnalysis, frozen=True, dict=True):
    """The newest measured steps of a rank of which all that was recorded is on disk: `most`, in 120 s.

    `first` is the first step of the run, where that is known and is not among the steps. `fresh` says, by
    host and pid, how much of what a process recorded is known.
    """

    most: int = 50
    first: Step | None = None
    fresh: Mapping[tuple[str, int], Fresh] = {}

    @cached_property
    def loaders(self) -> list[LoaderRun]:
        """The rank's loaders; how a batch was made is unknown where not all of it is known."""
        return [
            replace(loader, deliveries=self._as_known(loader.deliveries)) for loader in loaders_of(self.rank)
        ]

    def _as_known(self, deliveries: Deliveries) -> Deliveries:
        unknown = np.zeros(len(deliveries), np.bool_)
        for own, fresh in self._fresh_of(deliveries):
            since_ns = max(fresh.spans_since_ns, fresh.calls_since_ns)
            held_back = self._held_back(deliveries["prepared_ns"], fresh)
            unknown |= own & deliveries.made & ((deliveries["taken_ns"] < since_ns) | held_back)
        fields = ("up_ns", "taken_ns", "prepared_ns")
        return deliveries.changed(**{field: np.where(unknown, NONE, deliveries[field]) for field in fields})

    def _held_back(self, prepared_ns: Times, fresh: Fresh) -> npt.NDArray[np.bool_]:
        """Mark when calls that were made up to then may still be held back: long since, then."""
        if fresh.ended or fresh.calls_until_ns is None or self.newest_ns - STILL_NS >= fresh.calls_until_ns:
            return np.zeros(len(prepared_ns), np.bool_)
        return (prepared_ns <= self.newest_ns - HOLD_NS) & (fresh.calls_until_ns < prepared_ns)

    def _fresh_of(self, deliveries: Deliveries) -> Iterator[tuple[npt.NDArray[np.bool_], Fresh]]:
        """Yield how much is known of each process, and mark the deliveries that it made."""
        main = self.rank.main
        makers = deliveries.maker(main.pid)
        for pid in distinct(makers).tolist():
            fresh = self.fresh.get((main.identity.node, pid))
            if fresh is not None:
                yield makers == pid, fresh

    @cached_property
    def measured(self) -> tuple[StepTable, Excluded]:
        """The steps of the window; how many of those that are kept in memory are left out at the start."""
        steps = self.loop.steps
        first: Step | None = None
        if not self.main_fresh.whole:
            first = self.first or _UNKNOWN_START
            opening = first.delivery or next(iter(first.awaited), None)
            # Epochs are counted from the oldest that is known: they are the run's while its first pass lasts.
            if opening is None or opening.iterator not in steps.awaited["iterator"]:
                first = _UNKNOWN_START
        kept, excluded = self._measured_of(steps, first)
        in_part = np.flatnonzero(~self._are_whole(kept))
        whole = int(in_part[0]) if len(in_part) else len(kept)
        newest = kept[max(0, whole - self.most) : whole]
        if len(newest) > FEWEST:
            since = int(np.searchsorted(newest["start_ns"], newest["end_ns"][-1] - LONGEST_NS))
            newest = newest[min(since, len(newest) - FEWEST) :]
        return newest, excluded

    @property
    def key(self) -> tuple[str, int]:
        """The host and the pid of the training process."""
        return self.rank.main.identity.node, self.rank.main.pid

    @property
    def main_fresh(self) -> Fresh:
        """How far that process is known."""
        return self.fresh[self.key]

    @property
    def newest_ns(self) -> int:
        """How far its records go."""
        return self.main_fresh.records_until_ns

    def _are_whole(self, steps: StepTable) -> npt.NDArray[np.bool_]:
        """Mark the steps of which all that was recorded of the making of their batches is on disk."""
        batches = self.with_inner(steps.awaited)
        keys, asked = (key_of(each["loader"], each["number"]) for each in (batches, steps.awaited))
        outer = np.cumsum(np.isin(keys, asked)) - 1
        missing = np.zeros(len(steps), np.bool_)
        missing[steps.awaited_by[outer[~self._on_disk(batches)]]] = True
        return (steps["end_ns"] < self.newest_ns - HOLD_NS) | ~missing

    def _on_disk(self, batches: Deliveries) -> npt.NDArray[np.bool_]:
        found = np.ones(len(batches), np.bool_)
        for own, fresh in self._fresh_of(batches):
            if fresh.ended:
                continue
            known = fresh.records_until_ns >= batches["delivered_ns"]
            on_disk = np.where(batches.made, True, ~batches.known("worker") | known)
            # Agents write spans behind records, dftracer when its buffer is full, our recorder at once, a
            # sidecar once a second.
            for until_ns, field in (
                (fresh.spans_until_ns, "taken_ns"),
                (fresh.calls_until_ns, "prepared_ns"),
                (fresh.stolen_until_ns, "prepared_ns"),
            ):
                if until_ns is not None and self.newest_ns - HOLD_NS < until_ns:
                    on_disk &= ~batches.made | (batches[field] <= until_ns)
            found &= ~own | on_disk
        return found

    @cached_property
    def compute(self) -> Compute:
        """Nothing: traces of torch.profiler are read afterwards."""
        return compute_of([])
