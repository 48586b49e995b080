"""A report: the session, its ranks, what to change, what was not captured."""

from __future__ import annotations

import posixpath
from collections.abc import Sequence
from typing import Annotated

import msgspec

from iotrace.analysis.results.base import ReportPart, figure
from iotrace.analysis.results.code import Feeding, LoopCode
from iotrace.analysis.results.device import Accelerator, Operator, SlowStep
from iotrace.analysis.results.host import Forecast, Overhead, System
from iotrace.analysis.results.io import FileGroup, Io
from iotrace.analysis.results.loop import DataWait, HangInfo, LoopEvents, LoopReads, PhasesMs, RegionResult, SlowLoopSteps, StepBlocks, Steps
from iotrace.analysis.results.making import LoaderResult, PipelineStage, RepeatedWork, SampleCall, StageCost
from iotrace.analysis.results.program import Account, Memory, Model, Snapshot, Speed, Startup, TrainerTimes
from iotrace.analysis.results.ranks import Imbalance, Lockstep
from iotrace.session.manifest import NotCaptured

SCHEMA_VERSION = 1


# How data may be stored otherwise, for the same values.
CHUNKS, LIGHTER, ROW_GROUPS, UNPACKED = "chunks", "lighter", "row-groups", "unpacked"
PARQUET = "parquet"  # CSV tables: the program has to read them by another call


class Change(ReportPart, frozen=True, kw_only=True):
    """What `iotrace try` does to carry a fix out without an edit of the program."""

    settings: Annotated[dict[str, str], figure("arguments of the loop's DataLoader, by name")] = msgspec.field(default_factory=dict)
    variables: Annotated[dict[str, str], figure("variables of the environment")] = msgspec.field(default_factory=dict)
    threads: Annotated[dict[str, str], figure("threads of libraries in each worker, by library")] = msgspec.field(default_factory=dict)
    kept_open: Annotated[list[str], figure("files that each process opens once")] = msgspec.field(default_factory=list)
    cpus: Annotated[list[int], figure("the CPUs that the loop and its workers are to use; empty where that stays")] = msgspec.field(default_factory=list)
    stored: Annotated[str, figure("how data is to be stored: `chunks`, `lighter` compression, `row-groups`, `unpacked`, `parquet`; else empty")] = ""
    paths: Annotated[list[str], figure("that data: files, stores, or a directory of files")] = msgspec.field(default_factory=list)


_LEAST = 0.01  # of a step, which no change makes shorter
_NEAR = 1.1  # times what a change gains with all else as it was: a bound that says it all
MOST_FACTOR, WIDE = 10.0, 2.0  # a larger one is no figure; times what a fix gains: from there its bound makes it a range


class Fix(ReportPart, frozen=True, kw_only=True):
    """A change to make; its gain is what goes with its cause, or where `gain_interval_ms` is known a prediction.

    Gains of several do not add up: of two causes (`joins`) both together gain more than each.
    """

    id: Annotated[str, figure("its name, by which others refer to it")]
    text: Annotated[str, figure("the change, in short; a sentence with its evidence is in `recommendations`")]
    gain_ms_per_step: Annotated[float | None, figure("what the change saves, all else as it was; of waits no more than `exposed_ms`", null="unknown")] = None
    speedup: Annotated[float | None, figure("step / (step - gain)", null="the gain is unknown")] = None
    at_most: Annotated[bool, figure("whether `most_ms_per_step` is all that is sure: nobody knows what the change leaves")] = True
    gain_interval_ms: Annotated[list[float] | None, figure("the interval of a gain that is predicted, up to the most", null="it is not predicted")] = None
    most_ms_per_step: Annotated[
        float | None, figure("what it saves at most, where [what is left gets quicker](#gains)", null="the gain is unknown, or nothing bounds it")
    ] = None
    cost_ms_per_step: Annotated[float | None, figure("the wait that the fix's own cause, or file, costs now", null="no replay says what ends with it")] = None
    code: Annotated[str | None, figure("the rule that says so: `iotrace explain CODE`", null="no rule does")] = None
    command: Annotated[str, figure("what to type, where a command makes the change")] = ""
    change: Annotated[Change | None, figure("the same, for programs", null="the program has to be edited")] = None
    joins: Annotated[str, figure("how it stands to the first one: `or`, another way to the same; `and`, it ends another cause")] = "or"
    is_minor: Annotated[bool, figure("whether it gains too little beside the first one for a first screen")] = False

    @property
    def is_predicted(self) -> bool:
        """Whether an interval says what it gains: of a setting, of which nothing is left to be guessed."""
        return self.gain_interval_ms is not None and not self.at_most and self.bound_ms is not None

    @property
    def bound_ms(self) -> float | None:
        """What it saves at most, ms per step; in older reports the gain itself is a bound."""
        if self.most_ms_per_step is None and self.at_most:
            return self.gain_ms_per_step
        return self.most_ms_per_step

    @property
    def most_speedup(self) -> float | None:
        """How many times as fast a step is at most; None: nothing bounds it, or the gain is unknown."""
        gain_ms, most_ms, speedup = self.gain_ms_per_step, self.bound_ms, self.speedup
        if gain_ms is None or most_ms is None or speedup is None:
            return None
        if speedup <= 1:
            return speedup
        step_ms = gain_ms / (1 - 1 / speedup)
        return step_ms / max(step_ms - most_ms, _LEAST * step_ms)

    @property
    def may_gain_none(self) -> bool:
        """Whether nothing says how much of what it costs the change ends."""
        return self.gain_interval_ms is not None and self.gain_interval_ms[0] <= 0

    @property
    def told(self) -> tuple[float | None, float | None]:
        """Of a gain that the change may not reach: how many times as fast about, and at most, is told.

        A bound that is near stands alone, as does one of a gain that may be none; one that nobody meets is none.
        """
        about, most = self.speedup, self.most_speedup
        if self.may_gain_none:
            return None, most if most is None or most <= MOST_FACTOR else None
        if about is None or (most is not None and (most < _NEAR * about or about > MOST_FACTOR)):
            return None, most
        return about, None if most is None or most > MOST_FACTOR else most


OK, CAUTION, BAD = "ok", "caution", "bad"


class Trust(ReportPart, frozen=True, kw_only=True):
    """How far the figures can be relied on, and what that rests on."""

    level: Annotated[str, figure("`ok`, `caution` or `bad`, see trust")]
    reasons: Annotated[list[str], figure("why it is not `ok`, the worst first; where it is, the facts that it rests on")]
    codes: Annotated[list[str], figure("of the reasons, in their order: the rules that they come from; empty where all is well")] = msgspec.field(
        default_factory=list
    )


class Verdict(ReportPart, frozen=True, kw_only=True):
    """What holds for the whole job."""

    text: Annotated[str, figure("the first line of the report")]
    banner: Annotated[str, figure("its first words")]
    kind: Annotated[str, figure("what holds, in a word: `input-bound`, `rank-late`, `failed` and so on")] = msgspec.field(name="class")
    why: Annotated[str | None, figure("the costliest cause, and the file on which at least half of it is spent", null="nothing is known")] = None
    beside: Annotated[
        str | None, figure("what else made the wait longer and is out of the job's hands, such as other programs on its CPUs", null="nothing is known")
    ] = None
    file: Annotated[str | None, figure("the path of the file or group that `why` names", null="none is named")] = None
    cause: Annotated[str | None, figure("the cause that `why` names", null="none is named")] = None
    rank: Annotated[int | None, figure("the rank that it is about", null="the whole job")] = None
    until: Annotated[str | None, figure("of a run that failed: the verdict on the steps before", null="it did not fail")] = None
    fixes: list[Fix]
    trust: Trust
    culprit: Annotated[str | None, figure("the id of the rank's culprit that `why` names before the cause", null="it names none")] = None

    @property
    def said(self) -> str:
        """Return what `text` says behind its banner."""
        return self.text.removeprefix(self.banner).lstrip(" ,")


Evidence = dict[str, float | str | list[int]]


class Culprit(ReportPart, frozen=True, kw_only=True):
    """Who holds a stage up from outside, or what is behind the code of a loader that is slow."""

    id: Annotated[str, figure("which one")]
    text: Annotated[str, figure("the sentence")]
    evidence: Annotated[Evidence, figure("the figures that it rests on")]
    wait_ms: Annotated[float, figure("what it has of the data wait", "ms per step")]
    leads: Annotated[bool, figure("whether a verdict names it before the cause")]
    remedy: Annotated[str, figure("what ends it")] = ""
    gain_ms_per_step: Annotated[float | None, figure("what that saves at most")] = None
    code: Annotated[str | None, figure("the rule that says so: `iotrace explain CODE`", null="in older reports")] = None
    tries: Annotated[bool, figure("whether its remedy may gain nothing")] = False


EXIT = "exit code "  # how the type of a failure begins that has no exception


class Failure(ReportPart, frozen=True, kw_only=True):
    """An exception that nothing caught, or a signal that ended a process."""

    process: Annotated[int | None, figure("its pid", null="which process is not known")] = None
    role: Annotated[str | None, figure("as in `processes`, or `helper`, or `process`", null="which process is not known")] = None
    rank: Annotated[int | None, figure("number of the rank", null="none")] = None
    worker: Annotated[int | None, figure("number of the worker in its loader", null="none")] = None
    type: Annotated[str, figure("class of the exception, or the signal's name; `exit code 7` of a rank that its launcher saw end so without one")]
    message: Annotated[str, figure("the first line of its message")]
    at: Annotated[str | None, figure("the innermost line of the program's own code in the traceback, as `file:line in function`", null="there is none")] = None
    file: Annotated[str | None, figure("the file that was read last before, where the exception is about it", null="not sure")] = None
    batch: Annotated[int | None, figure("of a worker the batch that it made; else the one that the loop asked for", null="no loop, or it was over")] = None
    epoch: Annotated[int | None, figure("of that batch", null="no loop, or it was over")] = None
    after_steps: Annotated[int | None, figure("steps of the rank that were ended", null="no loop was begun")] = None
    stack: Annotated[str, figure("the traceback, 80 lines at most; it holds source lines, but no values; empty of a signal")]
    sample: Annotated[int | None, figure("the index with which the dataset was asked", null="it came from elsewhere, or is no int")] = None
    thread: Annotated[str | None, figure("name of the thread that the exception ended", null="it ended the process, or a worker's batch")] = None
    read_last: Annotated[str | None, figure("the file that was read last for the sample or the batch", null="none was")] = None

    @property
    def is_exit(self) -> bool:
        """Whether the process ended with a code of its own, and no exception was seen."""
        return self.type.startswith(EXIT)


class SessionInfo(ReportPart, frozen=True, kw_only=True):
    """The session that was read."""

    path: Annotated[str, figure("the session, as given on the command line")]
    argv: Annotated[list[str], figure("the traced command")]
    host: Annotated[str | None, figure("the first launcher's host", null="bare traces")] = None
    started_ns: Annotated[int | None, figure("when its command started (CLOCK_REALTIME)", null="bare traces")] = None
    commit: Annotated[str | None, figure("what the git repository of the working directory had checked out", null="it is in none")] = None
    exit_code: Annotated[int | None, figure("its exit code; 128 + N where signal N ended it", null="an end was not seen, or a command still runs")] = None
    signal: Annotated[str | None, figure("name of the signal that ended the command itself", null="none did")] = None
    oom_kills: Annotated[int | None, figure("processes that the kernel ended during the run for lack of memory", null="the kernel does not say")] = None
    failures: Annotated[list[Failure], figure("exceptions that nothing caught and signals that ended processes, by time: the first is the cause")]
    state: Annotated[str, figure("`ended`, `running`, `killed` or `unknown`")]
    ended: Annotated[bool, figure("its end was seen")]
    complete: Annotated[bool, figure("its end was seen, and nothing recorded is known to be lost")]
    iotrace_version: Annotated[str | None, figure("version that recorded the session")] = None
    hangs: Annotated[list[HangInfo], figure("what samplers told of loops that did not go on, by host")] = msgspec.field(default_factory=list)


GONE, HALVED = "gone", "halved"  # `change` of a row of gain


class GainRow(ReportPart, frozen=True, kw_only=True):
    """A change, and the step that it would give."""

    id: Annotated[str, figure("which change it is")]
    kind: Annotated[str, figure("`cause`, `file` or `knob`")]
    text: Annotated[str, figure("the change as one reads it")]
    change: Annotated[str, figure("`gone`, `halved`, or the new value of the knob")]
    predicted_ms_per_step: Annotated[
        float | None, figure("the step with the change: the measured one x replayed cycles with it / without it", null="`withheld`", said="step ms")
    ] = None
    interval_ms: Annotated[list[float] | None, figure("its 95 % interval", null="`withheld`", said="95 %")] = None
    gain_ms_per_step: Annotated[float | None, figure("step - predicted; below 0: slower", null="`withheld`", said="saves ms")] = None
    speedup: Annotated[float | None, figure("step / predicted; below 1: slower", null="`withheld`", said="faster")] = None
    withheld: Annotated[str | None, figure("why this change is not predicted", null="it is")] = None
    fix: Annotated[str | None, figure("the `id` of the verdict's fix that means the same; both have one gain", null="there is none")] = None


class RankReport(ReportPart, frozen=True, kw_only=True):
    rank: int
    pid: int | None = None
    argv: Annotated[list[str], figure("the command line of a process that nothing numbers; empty of a rank")] = msgspec.field(default_factory=list)
    host: str | None = None
    local_rank: int | None = None
    world_size: int | None = None
    incarnation: int = 0
    startup: Startup | None = None
    account: Account | None = None
    steps: Steps
    blocks: StepBlocks | None = None
    data_wait: DataWait
    culprits: list[Culprit] = msgspec.field(default_factory=list)
    loop_reads: LoopReads | None = None
    loop_slow_steps: SlowLoopSteps | None = None
    loop_events: Annotated[list[LoopEvents], figure("what the loop does now and then between its steps, longest first")] = msgspec.field(default_factory=list)
    loop_code: Annotated[list[LoopCode], figure("what else the training thread is in, the eight longest")] = msgspec.field(default_factory=list)
    feeding: Annotated[
        Feeding | None, figure("what a loop without a loader does before its forward passes", null="a loader feeds the loop, or its steps have no forward pass")
    ] = None
    stages: list[StageCost] = msgspec.field(default_factory=list)
    pipeline: Annotated[list[PipelineStage], figure("the stages that make the loop's items by queues and pools, the first one first")] = msgspec.field(
        default_factory=list
    )
    phases_ms: PhasesMs = msgspec.field(default_factory=PhasesMs)
    phases_source: str | None = None
    phases_unknown_why: str | None = None
    loaders: list[LoaderResult] = msgspec.field(default_factory=list)
    regions: list[RegionResult] = msgspec.field(default_factory=list)
    sample_calls: list[SampleCall] = msgspec.field(default_factory=list)
    repeated: list[RepeatedWork] = msgspec.field(default_factory=list)
    breakdown_ms: dict[str, float] | None = None
    breakdown_raw_ms: dict[str, float] | None = None
    breakdown_steps: int | None = None
    accelerator: Accelerator | None = None
    operators: list[Operator] | None = None
    slow_steps: list[SlowStep] = msgspec.field(default_factory=list)
    io: Io | None = None
    file_groups: list[FileGroup] = msgspec.field(default_factory=list)
    system: System = msgspec.field(default_factory=System)
    overhead: Overhead | None = None
    speed: Speed | None = None
    trainer: TrainerTimes | None = None
    models: list[Model] = msgspec.field(default_factory=list)
    memory: Memory | None = None
    snapshots: list[Snapshot] = msgspec.field(default_factory=list)
    gain: list[GainRow] = msgspec.field(default_factory=list)
    self_prediction_error_pct: Annotated[
        float | None, figure("by how much the replay of the run itself misses its measured wait, of that", null="nothing was replayed")
    ] = None
    gain_withheld: Annotated[str | None, figure("why nothing is predicted, see below; `gain` is then empty", null="`gain` is predicted")] = None

    @property
    def recurring(self) -> list[LoopEvents | LoopCode]:
        """What the loop does now and then: what is known by its calls, and what by samples."""
        every: list[LoopEvents | LoopCode] = [*self.loop_events, *self.loop_code]
        return [each for each in every if each.recurs]

    @property
    def primary(self) -> LoaderResult | None:
        """The loader that the training loop waits for."""
        return next((loader for loader in self.loaders if loader.primary), None)

    @property
    def called(self) -> str:
        """What a reader knows it by: processes that nothing numbers are no ranks of one job."""
        return f"rank {self.rank}" if self.pid is None else f"process {self.pid}"


class Recommendation(ReportPart, frozen=True, kw_only=True):
    """Advice; its gain is what goes with its cause, or where `gain_interval_ms` is known a prediction."""

    id: Annotated[str, figure("`<cause>-bound`, or another id of the tables below")]
    severity: Annotated[str, figure("`high` where the cause is above 20 % of the mean step, else `medium`")]
    text: Annotated[str, figure("a sentence with the remedy; where the loop waits for several loaders it names the one")]
    evidence: Annotated[dict[str, float], figure("the figures that it rests on, by name; `loader`: its id, where the loop waits for several")]
    gain_ms_per_step: Annotated[float | None, figure("what the change saves, all else as it was, see gains")] = None
    most_ms_per_step: Annotated[float | None, figure("what of the data wait goes with it at most, see gains", null="all of it may")] = None
    seen: Annotated[str, figure("what was seen, which `text` says, too, before what to do")] = ""
    spares_fraction: Annotated[float | None, figure("what share of making batches it spares at most", null="all of it may be")] = None
    remedy: Annotated[str, figure("the change, in short")] = ""
    fix: Annotated[str | None, figure("the `id` of that fix in `verdict`")] = None
    rank: Annotated[int | None, figure("the rank that it is about", null="in older reports")] = None
    gain: Annotated[str | None, figure("the row of the rank's gain[] that means the same", null="the model says nothing of it")] = None
    gain_interval_ms: Annotated[list[float] | None, figure("the interval of its gain", null="the model says nothing of it")] = None
    command: Annotated[str, figure("what to type, where a command makes the change")] = ""
    change: Annotated[Change | None, figure("the same, for programs", null="the program has to be edited")] = None
    cost_ms_per_step: Annotated[float | None, figure("what the cause, or the file, that it is about costs of the wait", null="the gain is no replay's")] = None
    code: Annotated[str | None, figure("the rule that says so: `iotrace explain CODE`", null="in older reports")] = None


class ClockSet(ReportPart, frozen=True, kw_only=True):
    """A host's clock was set during the run; undone."""

    at_ns: Annotated[int, figure("at the earliest")]
    by_ns: Annotated[int, figure("by how much")]


class ClockInfo(ReportPart, frozen=True, kw_only=True):
    """How a clock relates to that of the reference host."""

    source: Annotated[str, figure("`agent`, and `recorder` or `dftracer` where calls were traced, once for each host")]
    host: Annotated[str | None, figure("the host's name")] = None
    kind: Annotated[str, figure("`exact`, `measured`, `inferred` or `assumed`")]
    offset_ns: Annotated[int, figure("what was added to the host's times, at the first exchange; 0 where `exact` or `assumed`")]
    bound_ns: Annotated[int | None, figure("how far the times may be off")] = None
    set: Annotated[list[ClockSet], figure("each time the host's clock was set during the run, undone: `at_ns`, at the earliest, and `by_ns`")]
    drift_ppb: Annotated[float | None, figure("what that grows by in ns a second; null where nothing was measured")] = None
    why: Annotated[str | None, figure("how it was measured, or why not; null where `exact`")] = None


class ProcessInfo(ReportPart, frozen=True, kw_only=True):
    """A Python process of the job."""

    pid: Annotated[int, figure("its pid")]
    ppid: Annotated[int, figure("its parent's")]
    host: Annotated[str, figure("its host")]
    role: Annotated[str, figure("`rank`, `loader worker`, `launcher`, `main` or `helper`")]
    rank: Annotated[int | None, figure("number of its rank")] = None
    local_rank: Annotated[int | None, figure("by the environment")] = None
    incarnation: Annotated[int, figure("restarts before this one")]
    start_method: Annotated[str | None, figure("`forked`, `spawned` or `forkserver`", null="a program of its own")] = None
    python: Annotated[str, figure("its version")]
    versions: Annotated[dict[str, str], figure("of libraries, where it iterates a loader")]


def last_start(ranks: Sequence[RankReport]) -> int:
    """Return the restarts before the last start of a job that trained."""
    trained = [rank.incarnation for rank in ranks if rank.steps.count]
    return max(trained or [rank.incarnation for rank in ranks], default=0)


def commands_of(ranks: Sequence[RankReport]) -> dict[int, str]:
    """Name several processes of a command by their scripts and what differs in their command lines, by pid.

    Empty where nothing differs.
    """
    known = {rank.pid: rank.argv for rank in ranks if rank.pid is not None and rank.argv}
    shared = set.intersection(*map(set, known.values())) if known else set()
    found = {}
    for pid, argv in known.items():
        at = next((at for at, each in enumerate(argv) if each.endswith(".py")), 0)
        rest = [each for each in argv[at + 1 :] if each not in shared]
        found[pid] = " ".join([posixpath.basename(argv[at]), *rest])
    return found if len({*found.values()}) > 1 else {}


class Report(ReportPart, frozen=True, kw_only=True):
    schema_version: int
    session: SessionInfo
    verdict: Verdict
    ranks: list[RankReport]
    processes: list[ProcessInfo]
    imbalance: Imbalance | None = None
    lockstep: Lockstep | None = None
    culprits: Annotated[list[Culprit], figure("what holds of the ranks together")] = msgspec.field(default_factory=list)
    recommendations: list[Recommendation]
    not_captured: list[NotCaptured]
    clocks: list[ClockInfo]
    forecasts: list[Forecast] = msgspec.field(default_factory=list)

    @property
    def last_start(self) -> int:
        """How often a job was restarted before the last start that trained."""
        return last_start(self.ranks)

    @property
    def main_rank(self) -> RankReport | None:
        """The rank that the verdict is about, as it trained last; without one the only rank."""
        own = [rank for rank in self.ranks if rank.rank == self.verdict.rank]
        about = max(own, key=lambda rank: (rank.steps.count > 0, rank.incarnation), default=None)
        return about or (self.ranks[0] if len(self.ranks) == 1 else None)
