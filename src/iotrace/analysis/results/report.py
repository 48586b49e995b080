"""A report: the session, its ranks, what to change, what was not captured."""

from __future__ import annotations

import msgspec

from iotrace.analysis.results.base import ReportPart
from iotrace.analysis.results.device import Accelerator, Operator, SlowStep
from iotrace.analysis.results.host import Forecast, Overhead, System
from iotrace.analysis.results.io import FileGroup, Io
from iotrace.analysis.results.loop import (
    DataWait,
    HangInfo,
    LoaderResult,
    LoopReads,
    PhasesMs,
    RegionResult,
    SlowLoopSteps,
    StageCost,
    StepBlocks,
    Steps,
)
from iotrace.analysis.results.program import Memory, Model, Snapshot, Speed, TrainerTimes
from iotrace.analysis.results.ranks import Imbalance
from iotrace.analysis.results.startup import Startup
from iotrace.session.manifest import NotCaptured

SCHEMA_VERSION = 1


class Fix(ReportPart, frozen=True, kw_only=True):
    """A change to make; its gain is an upper bound, or where `gain_interval_ms` is known a prediction.

    Gains of several do not add up. `cost_ms_per_step` is the wait that its own cause or file costs now: what
    is gained beyond that is other wait, which ends as batches are made sooner.
    """

    id: str
    text: str
    gain_ms_per_step: float | None
    speedup: float | None
    at_most: bool = True
    gain_interval_ms: list[float] | None = None
    cost_ms_per_step: float | None = None
    code: str | None = None


OK, CAUTION, BAD = "ok", "caution", "bad"


class Trust(ReportPart, frozen=True, kw_only=True):
    """How far the figures can be relied on: ``ok``, ``caution`` or ``bad``, and what that rests on.

    `codes` are those of the rules that the reasons come from, in the same order; none where all is well.
    """

    level: str
    reasons: list[str]
    codes: list[str] = msgspec.field(default_factory=list)


class Verdict(ReportPart, frozen=True, kw_only=True):
    """What holds for the whole job; `rank` is the one that it is about, `text` begins with its `banner`.

    `until` is what held until the job failed; None where it did not. `culprit`: the id of the rank's culprit
    that `why` names before the cause.
    """

    text: str
    banner: str
    kind: str = msgspec.field(name="class")
    why: str | None
    file: str | None
    cause: str | None
    rank: int | None
    until: str | None
    fixes: list[Fix]
    trust: Trust
    culprit: str | None = None

    @property
    def said(self) -> str:
        """Return what `text` says behind its banner."""
        return self.text.removeprefix(self.banner).lstrip()


Evidence = dict[str, float | str | list[int]]


class Culprit(ReportPart, frozen=True, kw_only=True):
    """Who holds a stage up from outside: `text` is the sentence, `evidence` the figures that it rests on.

    `wait_ms` is what it has of the data wait per measured step; `leads`: a verdict names it before the cause.
    """

    id: str
    text: str
    evidence: Evidence
    wait_ms: float
    leads: bool
    remedy: str = ""
    gain_ms_per_step: float | None = None
    code: str | None = None


class Failure(ReportPart, frozen=True, kw_only=True):
    """An exception that nothing caught, or a signal that ended a process; `type` is its name.

    `at` is the innermost line of the program's own code, `file` what was read, where the exception is about
    that. `epoch` and `batch` are what a worker made, or what its loop worked on or asked for; `sample` is the
    index with which the dataset was asked. What ended a `thread` did not end the process. `read_last` was
    read last before, for the same sample or batch: it may have nothing to do with it.
    """

    process: int | None
    role: str | None
    rank: int | None
    worker: int | None
    type: str
    message: str
    at: str | None
    file: str | None
    batch: int | None
    epoch: int | None
    after_steps: int | None
    stack: str
    sample: int | None = None
    thread: str | None = None
    read_last: str | None = None


class SessionInfo(ReportPart, frozen=True, kw_only=True):
    """`failures` in order of time: the first is the cause. `signal` ended the command itself.

    `state`: ``ended``, ``running``, ``killed`` (nothing of it lives), ``unknown`` (on another host).
    """

    path: str
    argv: list[str]
    host: str | None
    started_ns: int | None
    exit_code: int | None
    signal: str | None
    oom_kills: int | None
    failures: list[Failure]
    state: str
    ended: bool
    complete: bool
    iotrace_version: str | None
    hangs: list[HangInfo] = msgspec.field(default_factory=list)


GONE, HALVED = "gone", "halved"  # `change` of a row of gain


class GainRow(ReportPart, frozen=True, kw_only=True):
    """A change, and the step that it would give. `kind` is ``cause``, ``file`` or ``knob``.

    `change` is ``gone``, ``halved`` or the new value of the knob. `interval_ms` is that of the prediction
    (95 %). Where `withheld` says why, nothing is predicted. `fix` names the verdict's fix that is the same.
    """

    id: str
    kind: str
    text: str
    change: str
    predicted_ms_per_step: float | None = None
    interval_ms: list[float] | None = None
    gain_ms_per_step: float | None = None
    speedup: float | None = None
    withheld: str | None = None
    fix: str | None = None


class RankReport(ReportPart, frozen=True, kw_only=True):
    rank: int
    pid: int | None = None
    host: str | None
    local_rank: int | None
    world_size: int | None
    incarnation: int
    startup: Startup | None
    steps: Steps
    blocks: StepBlocks | None
    data_wait: DataWait
    culprits: list[Culprit] = msgspec.field(default_factory=list)
    loop_reads: LoopReads | None
    loop_slow_steps: SlowLoopSteps | None
    stages: list[StageCost]
    phases_ms: PhasesMs
    phases_source: str | None
    phases_unknown_why: str | None
    loaders: list[LoaderResult]
    regions: list[RegionResult]
    breakdown_ms: dict[str, float] | None
    breakdown_raw_ms: dict[str, float] | None
    breakdown_steps: int | None
    accelerator: Accelerator | None
    operators: list[Operator] | None
    slow_steps: list[SlowStep]
    io: Io | None
    file_groups: list[FileGroup]
    system: System
    overhead: Overhead | None
    speed: Speed | None
    trainer: TrainerTimes | None
    models: list[Model]
    memory: Memory | None
    snapshots: list[Snapshot]
    gain: list[GainRow]
    self_prediction_error_pct: float | None
    gain_withheld: str | None

    @property
    def primary(self) -> LoaderResult | None:
        """The loader that the training loop waits for."""
        return next((loader for loader in self.loaders if loader.primary), None)

    @property
    def called(self) -> str:
        """What a reader knows it by: processes that nothing numbers are no ranks of one job."""
        return f"rank {self.rank}" if self.pid is None else f"process {self.pid}"


class Recommendation(ReportPart, frozen=True, kw_only=True):
    """Advice: `text` is the whole sentence, `remedy` the change in it, `fix` names it in the verdict.

    `gain_ms_per_step` is an upper bound of what it saves; where `gain_interval_ms` is known it is a
    prediction, the row `gain` of the rank's, with that interval. `command` makes the change, where one does.
    `cost_ms_per_step` is the wait that the cause or the file that it is about costs now.
    """

    id: str
    severity: str
    text: str
    evidence: dict[str, float]
    gain_ms_per_step: float | None
    remedy: str = ""
    fix: str | None = None
    rank: int | None = None
    gain: str | None = None
    gain_interval_ms: list[float] | None = None
    command: str = ""
    cost_ms_per_step: float | None = None
    code: str | None = None


class ClockSet(ReportPart, frozen=True, kw_only=True):
    """A host's clock was set by `by_ns` during the run, just after `at_ns`; undone."""

    at_ns: int
    by_ns: int


class ClockInfo(ReportPart, frozen=True, kw_only=True):
    """`kind` is ``exact``, ``measured`` or ``inferred`` beside the reference host's clock, ``assumed`` where
    another machine's clock was not compared (bound unknown), ``none`` where times have no date."""

    source: str
    host: str | None
    kind: str
    offset_ns: int
    bound_ns: int | None
    set: list[ClockSet]
    drift_ppb: float | None = None
    why: str | None = None


class ProcessInfo(ReportPart, frozen=True, kw_only=True):
    """A Python process of the job; `role` is as ``Session.role_of`` gives it; `versions` of libraries."""

    pid: int
    ppid: int
    host: str
    role: str
    rank: int | None
    local_rank: int | None
    incarnation: int
    start_method: str | None
    python: str
    versions: dict[str, str]


class Report(ReportPart, frozen=True, kw_only=True):
    schema_version: int
    session: SessionInfo
    verdict: Verdict
    ranks: list[RankReport]
    processes: list[ProcessInfo]
    imbalance: Imbalance | None
    recommendations: list[Recommendation]
    not_captured: list[NotCaptured]
    clocks: list[ClockInfo]
    forecasts: list[Forecast] = msgspec.field(default_factory=list)

    @property
    def main_rank(self) -> RankReport | None:
        """The rank that the verdict is about, as it trained last; without one the only rank."""
        own = [rank for rank in self.ranks if rank.rank == self.verdict.rank]
        about = max(own, key=lambda rank: (rank.steps.count > 0, rank.incarnation), default=None)
        return about or (self.ranks[0] if len(self.ranks) == 1 else None)
