"""The newest steps of a rank that runs, analysed as those of a whole session are."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property

from msgspec.structs import replace

from iotrace.analysis.device.compute import Compute, compute_of
from iotrace.analysis.loop.deliveries import Delivery, LoaderRun, Step
from iotrace.analysis.loop.join import loaders_of
from iotrace.analysis.rank import RankAnalysis
from iotrace.analysis.results import Excluded
from iotrace.sources.live.session import Fresh

# So long a step waits for what its processes may not have written yet; then it counts, and that is unknown.
HOLD_NS = 10_000_000_000
# A process without a call for so long makes none; dftracer may hold its last 25 back.
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
            replace(loader, deliveries=[self._as_known(each) for each in loader.deliveries])
            for loader in loaders_of(self.rank)
        ]

    def _as_known(self, delivery: Delivery) -> Delivery:
        fresh = self._fresh_of(delivery)
        if fresh is None or delivery.taken_ns is None or delivery.prepared_ns is None:
            return delivery
        passed_over = delivery.taken_ns < max(fresh.spans_since_ns, fresh.calls_since_ns)
        if passed_over or self._held_back(delivery.prepared_ns, fresh):
            return replace(delivery, up_ns=None, taken_ns=None, prepared_ns=None)
        return delivery

    def _held_back(self, prepared_ns: int, fresh: Fresh) -> bool:
        """Whether dftracer may still hold calls back that were made up to `prepared_ns`: long since, then."""
        if fresh.ended or fresh.calls_until_ns is None or prepared_ns > self.newest_ns - HOLD_NS:
            return False
        return self.newest_ns - STILL_NS < fresh.calls_until_ns < prepared_ns

    def _fresh_of(self, delivery: Delivery) -> Fresh | None:
        main = self.rank.main
        return self.fresh.get((main.identity.node, delivery.pid or main.pid))

    @cached_property
    def measured(self) -> tuple[list[Step], Excluded]:
        """The steps of the window; how many of those that are kept in memory are left out at the start."""
        steps = self.loop.steps
        first = self.first or _UNKNOWN_START
        if not self.main_fresh.whole:
            opening = first.delivery or next(iter(first.awaited), None)
            passes = {awaited.iterator for step in steps for awaited in step.awaited}
            # Epochs are counted from the oldest that is known: they are the run's while its first pass lasts.
            known = opening is not None and opening.iterator in passes
            steps = [first if known else _UNKNOWN_START, *steps]
        kept, excluded = self._measured_of(steps)
        whole = next((number for number, step in enumerate(kept) if not self._is_whole(step)), len(kept))
        newest = kept[max(0, whole - self.most) : whole]
        while len(newest) > FEWEST and newest[-1].end_ns - newest[0].start_ns > LONGEST_NS:
            del newest[0]
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

    def _is_whole(self, step: Step) -> bool:
        """Whether all that was recorded of the making of the step's batches is on disk."""
        if step.end_ns < self.newest_ns - HOLD_NS:
            return True
        inner = self.loop.thread.inner if self.loop.thread is not None else {}
        batches = [
            each
            for awaited in step.awaited
            for each in (awaited, *inner.get((awaited.loader, awaited.number), ()))
        ]
        return all(map(self._is_on_disk, batches))

    def _is_on_disk(self, delivery: Delivery) -> bool:
        fresh = self._fresh_of(delivery)
        if fresh is None or fresh.ended:
            return True
        if delivery.taken_ns is None or delivery.prepared_ns is None:
            return delivery.worker is None or fresh.records_until_ns >= delivery.delivered_ns
        # Agents write spans just behind records, dftracer when its buffer is full, a sidecar once a second.
        for until_ns, needed_ns in (
            (fresh.spans_until_ns, delivery.taken_ns),
            (fresh.calls_until_ns, delivery.prepared_ns),
            (fresh.stolen_until_ns, delivery.prepared_ns),
        ):
            if until_ns is not None and self.newest_ns - HOLD_NS < until_ns < needed_ns:
                return False
        return True

    @cached_property
    def compute(self) -> Compute:
        """Nothing: traces of torch.profiler are read afterwards."""
        return compute_of([])
