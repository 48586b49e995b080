"""What is derived from a session: each part is computed once, when it is first asked for.

Report, timeline, export and sweep take their figures from the same `RankAnalysis`.
"""

from __future__ import annotations

from collections import Counter
from functools import cached_property

import msgspec

from iotrace.analysis.completeness.data_loss import data_loss
from iotrace.analysis.device.accelerator import KERNEL_GAP_US
from iotrace.analysis.device.activity import Activity
from iotrace.analysis.device.compute import Compute, compute_of
from iotrace.analysis.loop.deliveries import Delivery, LoaderRun, Step
from iotrace.analysis.loop.join import loaders_of
from iotrace.analysis.loop.measured import measured, profiled_intervals, program_intervals
from iotrace.analysis.loop.steps import Loop, loop_of
from iotrace.analysis.results import Excluded
from iotrace.analysis.wait.waits import Explained, explain, hand_over
from iotrace.session.manifest import NotCaptured
from iotrace.sources.session import Rank, Session


class RankAnalysis(msgspec.Struct, frozen=True, dict=True):
    """One rank: its loaders and steps, its explained waits, the activity that torch.profiler recorded."""

    session: Session
    rank: Rank
    kernel_gap_us: float = KERNEL_GAP_US
    _explained: dict[int, list[Explained]] = {}
    _explaining: set[int] = set()
    _mapped_by: dict[int, list[str]] = {}

    @cached_property
    def loaders(self) -> list[LoaderRun]:
        """The rank's loaders in the order they were first iterated."""
        return loaders_of(self.rank)

    @cached_property
    def by_number(self) -> dict[int, LoaderRun]:
        """The loaders by their numbers."""
        return {loader.number: loader for loader in self.loaders}

    @cached_property
    def loop(self) -> Loop:
        """The training loop: its primary loader and its closed steps."""
        return loop_of(self.rank, self.loaders)

    @cached_property
    def startup(self) -> tuple[int, int] | None:
        """From the launch to the first request, ns; None of a restart, and where the loop was not seen."""
        steps, rank = self.loop.steps, self.rank
        launched = [each for each in self.session.launches if each.manifest.host == rank.main.identity.node]
        if not steps or rank.incarnation or len(launched) != 1:
            return None
        return launched[0].manifest.started_ns, steps[0].start_ns

    @property
    def primary(self) -> LoaderRun | None:
        """The loader that the training loop waits for."""
        return self.loop.primary

    @cached_property
    def source(self) -> LoaderRun | None:
        """The loader that makes the loop's batches: the primary one, or the one loader that it wraps."""
        primary, thread = self.primary, self.loop.thread
        if primary is None or thread is None or not primary.description.wrapped:
            return primary
        inside = {
            each.loader for (outer, _), own in thread.inner.items() if outer == primary.number for each in own
        }
        wrapped = [loader for loader in self.loaders if loader.number in inside]
        return wrapped[0] if len(wrapped) == 1 else primary

    @cached_property
    def within(self) -> dict[int, int]:
        """Of each loader that another one asks for all of its batches, that other one."""
        thread = self.loop.thread
        asked = Counter(
            (each.loader, outer)
            for (outer, _), own in (thread.inner.items() if thread is not None else ())
            for each in own
            if not each.handed_over
        )
        counts = {loader.number: len(loader.deliveries) for loader in self.loaders}
        return {loader: outer for (loader, outer), count in asked.items() if count == counts[loader]}

    @cached_property
    def measured(self) -> tuple[list[Step], Excluded]:
        """The measured steps, those that figures are made of; how many steps are left out, and why."""
        return self._measured_of(self.loop.steps)

    def _measured_of(self, steps: list[Step]) -> tuple[list[Step], Excluded]:
        main = self.rank.main
        workers = self.source.description.workers if self.source else 0
        return measured(steps, workers, profiled_intervals(main), program_intervals(main))

    @property
    def kept(self) -> list[Step]:
        """The measured steps."""
        return self.measured[0]

    def explained(self, loader: LoaderRun) -> list[Explained]:
        """The waits for the batches of `loader` (one of `loaders`), by cause; one entry per delivery."""
        if loader.number not in self._explained:
            within = self.loop.thread.inner if self.loop.thread else {}
            # Damaged records may nest loaders in each other, or in themselves.
            self._explaining.add(loader.number)
            inner = [
                [
                    self.wait_of(each)
                    for each in within.get((loader.number, delivery.number), ())
                    if each.loader not in self._explaining
                ]
                for delivery in loader.deliveries
            ]
            self._explaining.discard(loader.number)
            self._explained[loader.number] = explain(
                self.session, self.rank, loader.deliveries, inner, self._mapped_by
            )
        return self._explained[loader.number]

    def wait_of(self, delivery: Delivery) -> Explained:
        """The wait for one batch, by cause; of a batch that was handed over the training thread's."""
        taken = self.explained(self.by_number[delivery.loader])[delivery.number]
        return hand_over(delivery, taken) if delivery.handed_over else taken

    @cached_property
    def waits(self) -> list[Explained]:
        """The waits of the loop, in order: those in its steps, and all others for the primary loader."""
        awaited = [delivery for step in self.loop.steps for delivery in step.awaited]
        seen = {(delivery.loader, delivery.number) for delivery in awaited}
        others = self.primary.deliveries if self.primary else []
        if self.loop.thread is not None:
            others = [each for each in others if each.tid == self.loop.thread.tid]
        awaited += [each for each in others if (each.loader, each.number) not in seen]
        return [self.wait_of(each) for each in sorted(awaited, key=lambda each: each.wait_start_ns)]

    @cached_property
    def measured_waits(self) -> list[Explained]:
        """The waits that lie in measured steps."""
        return [self.wait_of(delivery) for step in self.kept for delivery in step.awaited]

    @cached_property
    def source_waits(self) -> list[Explained]:
        """Of the measured waits those for batches of `source`."""
        if self.source is None:
            return []
        inner = self.loop.thread.inner if self.loop.thread is not None else {}
        found = [
            each
            for wait in self.measured_waits
            for each in (wait.delivery, *inner.get((wait.delivery.loader, wait.delivery.number), ()))
        ]
        return [self.wait_of(each) for each in found if each.loader == self.source.number]

    @cached_property
    def produced(self) -> dict[int, list[Delivery]]:
        """Per pid the deliveries that the process made and whose production is known, loader by loader."""
        found: dict[int, list[Delivery]] = {process.pid: [] for process in self.rank.processes}
        for loader in self.loaders:
            for delivery in loader.deliveries:
                maker = delivery.pid or self.rank.main.pid
                if delivery.taken_ns is not None and delivery.prepared_ns is not None and maker in found:
                    found[maker].append(delivery)
        return found

    @cached_property
    def activities(self) -> list[Activity]:
        """The traces of torch.profiler, in order of time."""
        return [Activity(trace) for trace in self.rank.main.windows.traces]

    @cached_property
    def compute(self) -> Compute:
        """What those traces say of the steps and of the accelerator."""
        return compute_of(self.activities, self.waits, self.loop.steps, self.kernel_gap_us)


class SessionAnalysis(msgspec.Struct, frozen=True, dict=True):
    """A session with the analyses of its ranks; gaps below `kernel_gap_us` count as the kernels' own."""

    session: Session
    kernel_gap_us: float = KERNEL_GAP_US

    @cached_property
    def ranks(self) -> list[RankAnalysis]:
        """One analysis per rank, in the order of ``session.ranks``."""
        return [RankAnalysis(self.session, rank, self.kernel_gap_us) for rank in self.session.ranks]

    @cached_property
    def data_loss(self) -> list[NotCaptured]:
        """What was captured in part only."""
        return list(data_loss(self.session))
