"""What is derived from a session: each part is computed once, when it is first asked for.

Report, timeline, export and sweep take their figures from the same `RankAnalysis`.
"""

from __future__ import annotations

from functools import cached_property

import msgspec
import numpy as np
import numpy.typing as npt

from iotrace.analysis.completeness.data_loss import data_loss
from iotrace.analysis.device.accelerator import KERNEL_GAP_US
from iotrace.analysis.device.activity import Activity
from iotrace.analysis.device.compute import Compute, compute_of
from iotrace.analysis.device.gaps import Origin
from iotrace.analysis.failures import timed_failures
from iotrace.analysis.intervals import Intervals, distinct, union
from iotrace.analysis.loop.deliveries import Deliveries, LoaderRun
from iotrace.analysis.loop.join import loaders_of
from iotrace.analysis.loop.measured import measured, profiled_intervals, program_intervals, untrained
from iotrace.analysis.loop.pools import Inputs, inputs_of
from iotrace.analysis.loop.step_table import Step, StepTable
from iotrace.analysis.loop.steps import Loop, loop_of
from iotrace.analysis.results import Excluded, Failure
from iotrace.analysis.table import key_of
from iotrace.analysis.wait.chains import Chains
from iotrace.analysis.wait.explain import Within, explain, hand_over
from iotrace.analysis.wait.file_costs import FileNames
from iotrace.analysis.wait.waits import Waits
from iotrace.session.hangs import Hang, hangs_told, over_ns
from iotrace.session.manifest import NotCaptured
from iotrace.session.names import KIND_CALLBACK, KIND_PHASE, KIND_REDUCTION
from iotrace.sources.columns import Columns
from iotrace.sources.session import Rank, Session
from iotrace.sources.telemetry import SampledProcess, Telemetry

_MOSTLY = 0.5  # of a wait


class RankAnalysis(msgspec.Struct, frozen=True, dict=True):
    """One rank: its loaders and steps, its explained waits, the activity that torch.profiler recorded."""

    session: Session
    rank: Rank
    kernel_gap_us: float = KERNEL_GAP_US
    names: FileNames = msgspec.field(default_factory=FileNames)
    _explained: dict[int, Waits] = {}
    _explaining: set[int] = set()
    _mapped_by: dict[int, list[str]] = {}

    @cached_property
    def loaders(self) -> list[LoaderRun]:
        """The rank's loaders in the order they were first iterated."""
        return self.inputs.loaders

    @cached_property
    def inputs(self) -> Inputs:
        """What feeds the loop: its loaders, pools and queues."""
        return inputs_of(self.session, self.rank, loaders_of(self.rank))

    @cached_property
    def by_number(self) -> dict[int, LoaderRun]:
        """The loaders by their numbers."""
        return {loader.number: loader for loader in self.loaders}

    @cached_property
    def loop(self) -> Loop:
        """The training loop: its primary loader and its closed steps."""
        return loop_of(self.rank, self.loaders, self.inputs.why_none)

    @cached_property
    def telemetry(self) -> Telemetry | None:
        """What was sampled on the host of the training process."""
        return self.session.telemetry_of(self.rank.main)

    @cached_property
    def sampled(self) -> SampledProcess | None:
        """What was sampled of the training process."""
        return None if self.telemetry is None else self.telemetry.process_of(self.rank.main)

    @cached_property
    def startup(self) -> tuple[int, int] | None:
        """From the start of its process, in the session, to the first request, ns; None without a loop."""
        main, steps = self.rank.main, self.loop.steps
        if not len(steps):
            return None
        known_ns = main.began_ns if self.sampled is None else min(self.sampled.start_ns, main.began_ns)
        return max(known_ns, self.launched_ns or known_ns), int(steps["start_ns"][0])

    @property
    def launched_ns(self) -> int | None:
        """When the command was launched on the host of the training process, in ns; None where unknown."""
        return min(self._launched_ns, default=None)

    @cached_property
    def _launched_ns(self) -> list[int]:
        main = self.rank.main
        return [
            main.clock.to_reference.map_one(each.manifest.started_ns)
            for each in self.session.launches
            if each.manifest.host == main.identity.node
        ]

    @property
    def primary(self) -> LoaderRun | None:
        """The loader that the training loop waits for."""
        return self.loop.primary

    @cached_property
    def source(self) -> LoaderRun | None:
        """The loader that makes the loop's batches: the primary one, or the one loader that it wraps."""
        primary, inner = self.primary, self._wrapped
        return primary if inner is None or self.taken_from is not None else inner

    @cached_property
    def taken_from(self) -> LoaderRun | None:
        """The pool or queue whose items the loop's thread works on for most of its wait; None without one."""
        primary, inner = self.primary, self._wrapped
        if primary is None or inner is None or not inner.description.pool:
            return None
        return inner if inner.waited_ns < _MOSTLY * primary.waited_ns else None

    @cached_property
    def _wrapped(self) -> LoaderRun | None:
        """The one loader that the primary one asks; None where that is none, or several."""
        primary, thread = self.primary, self.loop.thread
        if primary is None or thread is None or not primary.description.wrapped:
            return None
        inner = thread.inner
        inside = distinct(inner.deliveries["loader"][inner.loader == primary.number]).tolist()
        wrapped = [loader for loader in self.loaders if loader.number in inside]
        return wrapped[0] if len(wrapped) == 1 else None

    @cached_property
    def within(self) -> dict[int, int]:
        """Of each loader that another one asks for all of its batches, that other one."""
        if self.loop.thread is None:
            return {}
        inner = self.loop.thread.inner
        own = inner.deliveries["handed_over"] == 0
        pairs = np.stack((inner.deliveries["loader"][own], inner.loader[own]), axis=1)
        asked, counts = np.unique(pairs, axis=0, return_counts=True)
        return {
            loader: outer
            for (loader, outer), count in zip(asked.tolist(), counts.tolist(), strict=True)
            if count == len(self.by_number[loader].deliveries)
        }

    @cached_property
    def measured(self) -> tuple[StepTable, Excluded]:
        """The measured steps, those that figures are made of; how many steps are left out, and why."""
        return self._measured_of(self.loop.steps)

    def _measured_of(self, steps: StepTable, first: Step | None = None) -> tuple[StepTable, Excluded]:
        main = self.rank.main
        workers = self.source.description.workers if self.source else 0
        return measured(steps, workers, profiled_intervals(main), program_intervals(main), first)

    @property
    def kept(self) -> StepTable:
        """The measured steps."""
        return self.measured[0]

    def nests(self, run: LoaderRun) -> bool:
        """Whether the samples of a DataLoader without workers iterate another one, as a queue of patches."""
        about = run.description
        return not (about.workers or about.wrapped) and run.number in self.within.values()

    def explained(self, loader: LoaderRun) -> Waits:
        """The waits for the batches of `loader` (one of `loaders`), by cause; one row per delivery."""
        if loader.number not in self._explained:
            # Damaged records may nest loaders in each other, or in themselves.
            self._explaining.add(loader.number)
            within = self._within(loader)
            self._explaining.discard(loader.number)
            found = explain(self.session, self.rank, loader.deliveries, within, self._mapped_by, self.names)
            if within is not None and loader.description.pool:
                found.made[within.of] = np.nan  # what other stages made is none of its maker's own
            self._explained[loader.number] = found
        return self._explained[loader.number]

    def _within(self, loader: LoaderRun) -> Within | None:
        """The waits inside of those for the batches of `loader`."""
        if self.loop.thread is None:
            return None
        found = None
        if len(self.loop.thread.inner.deliveries):
            rows, of = self.loop.thread.inner.of_rows(loader.deliveries)
            inner = self.loop.thread.inner.deliveries[rows]
            others = ~np.isin(inner["loader"], [*self._explaining])
            found = Within.whole(self.waits_for(inner[others]), of[others]) if others.any() else None
        if found is not None or not loader.description.wrapped or self.chains is None:
            return found
        return self.chains.within(loader.deliveries)

    @cached_property
    def chains(self) -> Chains | None:
        """What threads and processes handed to each other, besides what the loop took; None without any."""
        hops = self.inputs.hops
        if hops is None or not len(hops.deliveries):
            return None
        return Chains(self.session, self.rank, hops, self._mapped_by, self.names)

    @cached_property
    def has_callbacks(self) -> bool:
        """Whether a library called functions of the program to make batches."""
        return any((process.spans["kind"] == KIND_CALLBACK).any() for process in self.rank.processes)

    def waits_for(self, deliveries: Deliveries) -> Waits:
        """The waits for some batches, by cause; of a batch that was handed over the training thread's."""
        numbers = distinct(deliveries["loader"])
        tables = [self.explained(self.by_number[number]) for number in numbers.tolist()]
        first = np.cumsum([0, *map(len, tables)])
        rows = first[np.searchsorted(numbers, deliveries["loader"])] + deliveries["number"]
        taken = tables[0] if len(tables) == 1 else Waits.joined(tables, self.names)
        if len(rows) and (np.diff(rows) == 1).all():
            taken = taken.between(int(rows[0]), int(rows[-1]) + 1)
        else:
            taken = taken[rows]
        return hand_over(deliveries, taken)

    @cached_property
    def phase_spans(self) -> Columns:
        """The phases of the training thread, as spans, in the order in which they ended."""
        main, thread = self.rank.main, self.loop.thread
        tid = thread.tid if thread is not None else main.pid
        found: Columns = main.spans[(main.spans["kind"] == KIND_PHASE) & (main.spans["tid"] == tid)]
        return found

    @cached_property
    def collectives(self) -> Intervals:
        """When the training thread waited in collectives: its own calls, and its gradients' reduction."""
        spans, thread = self.rank.main.spans, self.loop.thread
        own = spans[
            (spans["kind"] == KIND_REDUCTION) & (spans["tid"] == (-1 if thread is None else thread.tid))
        ]
        return union(own["start_ns"], own["start_ns"] + own["duration_ns"])

    @cached_property
    def waits(self) -> Waits:
        """The waits of the loop, in order: those in its steps, and all others for the primary loader."""
        awaited = self.loop.steps.awaited
        if self.primary is not None:
            others = self.primary.deliveries
            if self.loop.thread is not None:
                others = others[others["tid"] == self.loop.thread.tid]
            awaited = Deliveries.joined([awaited, others[~_are_among(others, awaited)]])
        return self.waits_for(awaited[np.argsort(awaited["wait_start_ns"], kind="stable")])

    @cached_property
    def measured_waits(self) -> Waits:
        """The waits that lie in measured steps."""
        return self.waits_for(self.kept.awaited)

    @cached_property
    def source_waits(self) -> Waits:
        """Of the measured waits those for batches of `source`."""
        if self.source is None:
            return self.measured_waits[:0]
        found = self.with_inner(self.measured_waits.deliveries)
        own = found["loader"] == self.source.number
        same = found is self.measured_waits.deliveries and own.all()
        return self.measured_waits if same else self.waits_for(found[own])

    def with_inner(self, deliveries: Deliveries) -> Deliveries:
        """Return some deliveries, each followed by those inside of it."""
        return deliveries if self.loop.thread is None else self.loop.thread.inner.with_inner(deliveries)

    def produced_by(self, pid: int) -> Deliveries:
        """The deliveries that a process made and whose production is known, loader by loader."""
        rows = self._produced
        own: npt.NDArray[np.bool_] = rows.maker(self.rank.main.pid) == pid
        return rows[own]

    @cached_property
    def _produced(self) -> Deliveries:
        return Deliveries.joined(loader.deliveries[loader.deliveries.made] for loader in self.loaders)

    @cached_property
    def activities(self) -> list[Activity]:
        """The traces of torch.profiler, in order of time; not those of windows in which nothing trained."""
        left_out, traces = untrained(self.rank.main), self.rank.main.windows.traces
        return [Activity(trace) for trace in traces if trace.path.name not in left_out]

    @cached_property
    def compute(self) -> Compute:
        """What those traces say of the steps and of the accelerator."""
        origin = Origin(str(self.session.path), self.session.manifest.started_ns)
        return compute_of(self.activities, self.waits, self.loop.steps, self.kernel_gap_us, origin=origin)


def _are_among(deliveries: Deliveries, known: Deliveries) -> npt.NDArray[np.bool_]:
    own, others = (key_of(each["loader"], each["number"]) for each in (deliveries, known))
    return np.isin(own, others)


class SessionAnalysis(msgspec.Struct, frozen=True, dict=True):
    """A session with the analyses of its ranks; gaps below `kernel_gap_us` count as the kernels' own."""

    session: Session
    kernel_gap_us: float = KERNEL_GAP_US

    @cached_property
    def ranks(self) -> list[RankAnalysis]:
        """One analysis per rank, in the order of ``session.ranks``."""
        return [RankAnalysis(self.session, rank, self.kernel_gap_us) for rank in self.session.ranks]

    @cached_property
    def by_process(self) -> dict[int, RankAnalysis]:
        """The rank that each of its processes, by its id here, trains or reads for."""
        found: dict[int, RankAnalysis] = {}
        for one in self.ranks:
            for process in one.rank.processes:
                found.setdefault(id(process), one)
        return found

    @cached_property
    def timed_failures(self) -> list[tuple[float, Failure]]:
        """What failed, in order, each with its time in ns; -inf where a launcher told of it later."""
        return timed_failures(self.session, self.by_process)

    @cached_property
    def hangs(self) -> list[Hang]:
        """What each host's sampler told of processes that hang."""
        return hangs_in(self.session)

    @cached_property
    def data_loss(self) -> list[NotCaptured]:
        """What was captured in part only."""
        return list(data_loss(self.session))


def hangs_in(session: Session) -> list[Hang]:
    """Return what each host's sampler told of processes that hang, and how long that lasted."""
    return hangs_told(session.path, over_ns(session.launches))
