"""What is derived from a session: each part is computed once, when it is first asked for.

Report, timeline, export and sweep take their figures from the same `RankAnalysis`.
"""

from __future__ import annotations

from functools import cached_property

import msgspec

from iotrace.analysis.completeness.data_loss import data_loss
from iotrace.analysis.device.accelerator import KERNEL_GAP_US
from iotrace.analysis.device.activity import Activity
from iotrace.analysis.device.compute import Compute, compute_of
from iotrace.analysis.loop.deliveries import Delivery, LoaderRun, Step
from iotrace.analysis.loop.join import loaders_of
from iotrace.analysis.loop.steps import Loop, loop_of, measured, profiled_intervals, program_intervals
from iotrace.analysis.results import Excluded
from iotrace.analysis.wait.waits import Explained, explain
from iotrace.session.manifest import NotCaptured
from iotrace.sources.session import Rank, Session


class RankAnalysis(msgspec.Struct, frozen=True, dict=True):
    """One rank: its loaders and steps, its explained waits, the activity that torch.profiler recorded."""

    session: Session
    rank: Rank
    kernel_gap_us: float = KERNEL_GAP_US
    _explained: dict[int, list[Explained]] = {}

    @cached_property
    def loaders(self) -> list[LoaderRun]:
        """The rank's loaders in the order they were first iterated."""
        return loaders_of(self.rank)

    @cached_property
    def loop(self) -> Loop:
        """The training loop: its primary loader and its closed steps."""
        return loop_of(self.rank, self.loaders)

    @property
    def primary(self) -> LoaderRun | None:
        """The loader that the training loop waits for."""
        return self.loop.primary

    @cached_property
    def measured(self) -> tuple[list[Step], Excluded]:
        """The measured steps, those that figures are made of; how many steps are left out, and why."""
        main = self.rank.main
        workers = self.primary.description.workers if self.primary else 0
        return measured(self.loop.steps, workers, profiled_intervals(main), program_intervals(main))

    @property
    def kept(self) -> list[Step]:
        """The measured steps."""
        return self.measured[0]

    def explained(self, loader: LoaderRun) -> list[Explained]:
        """The waits for the batches of `loader` (one of `loaders`), by cause; one entry per delivery."""
        if loader.number not in self._explained:
            self._explained[loader.number] = explain(self.session, self.rank, loader.deliveries)
        return self._explained[loader.number]

    @property
    def waits(self) -> list[Explained]:
        """All waits of the primary loader; empty without one."""
        return self.explained(self.primary) if self.primary else []

    @cached_property
    def measured_waits(self) -> list[Explained]:
        """The waits that lie in measured steps."""
        awaited = {delivery.number for step in self.kept for delivery in step.awaited}
        return [wait for wait in self.waits if wait.delivery.number in awaited]

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
