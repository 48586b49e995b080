"""A report: the session, its ranks, what to change, what was not captured."""

from __future__ import annotations

import msgspec

from iotrace.analysis.results.base import ReportPart
from iotrace.analysis.results.device import Accelerator, Operator, SlowStep
from iotrace.analysis.results.gain import GainRow
from iotrace.analysis.results.host import FileGroup, Io, Overhead, System
from iotrace.analysis.results.loop import (
    DataWait,
    LoaderResult,
    LoopReads,
    PhasesMs,
    RegionResult,
    Startup,
    Steps,
)
from iotrace.analysis.results.program import Memory, Model, Snapshot, Speed, TrainerTimes
from iotrace.analysis.results.ranks import Imbalance
from iotrace.analysis.results.samples import StageCost, StepBlocks
from iotrace.analysis.results.verdict import Culprit, Verdict
from iotrace.session.manifest import NotCaptured

SCHEMA_VERSION = 1


class Failure(ReportPart, frozen=True, kw_only=True):
    """An exception that nothing caught, or a signal that ended a process; `type` is its name.

    `at` is the innermost line of the program's own code, `file` what was read, where the exception is about
    that. `epoch` and `batch` are what a worker made, or what its loop worked on or asked for; `sample` is the
    index with which the dataset was asked.
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
    def called(self) -> str:
        """What a reader knows it by: processes that nothing numbers are no ranks of one job."""
        return f"rank {self.rank}" if self.pid is None else f"process {self.pid}"


class Recommendation(ReportPart, frozen=True, kw_only=True):
    """Advice: `text` is the whole sentence, `remedy` the change in it, `fix` names it in the verdict.

    `gain_ms_per_step` is an upper bound of what it saves; where `gain_interval_ms` is known it is a
    prediction, the row `gain` of the rank's, with that interval.
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
