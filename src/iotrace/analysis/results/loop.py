"""The training loop: steps, their data wait, loaders, regions."""

from __future__ import annotations

import msgspec

from iotrace.analysis.results.base import ReportPart


class Excluded(ReportPart, frozen=True, kw_only=True):
    """Steps left out of the figures: the first, those awaiting a worker's first batch, those profiled."""

    first: int
    warmup: int
    profiled: int


class Steps(ReportPart, frozen=True, kw_only=True):
    """Measured steps; `begun` counts all that the loop began, `unknown_why` is why its data wait is null.

    `loop_seconds`: from the first step's beginning to the last known end, with all that is no measured step.
    `drift_pct`: by how much the second half of the steps is longer than the first; `ci95`: 95 % intervals.
    `per_update`: steps to one of the busiest optimizer's, and `batches`: of the loop's loader to a step: with
    gradient accumulation one of them is more than 1.
    """

    count: int
    begun: int | None
    unknown_why: str | None
    excluded: Excluded
    mean_ms: float | None
    mean_ci95_ms: list[float] | None
    drift_pct: float | None
    drift_ci95_pct: list[float] | None
    p50_ms: float | None
    p95_ms: float | None
    per_second: float | None
    samples_per_second: float | None
    loop_seconds: float | None
    per_update: float | None = None
    batches: float | None = None


class PhasesMs(ReportPart, frozen=True, kw_only=True):
    """Means per measured step of what the training thread was in; with the data wait they sum to the step."""

    forward: float | None
    backward: float | None
    optimizer: float | None
    other: float | None


class FileCost(ReportPart, frozen=True, kw_only=True):
    """A file's share of the data wait: `ms` in files, `transform_ms` behind reading this one alone."""

    path: str
    ms: float
    read_ms: float
    decode_ms: float
    transform_ms: float


class SlowLoopStep(ReportPart, frozen=True, kw_only=True):
    """A slow step: `step` is its number in the timeline, `ms` its length with evaluation passes.

    `parts_ms`: what it did longer than the median step, by cause; `unnamed_ms`: the rest of `over_ms`.
    `file`: that of its largest part; of a checkpoint also `write_bytes` and `write_mb_per_s`. `host_ms`:
    phases of the training thread that were longer than usual.
    """

    step: int
    epoch: int | None
    batch: int | None
    start_s: float
    ms: float
    over_ms: float
    parts_ms: dict[str, float]
    unnamed_ms: float
    host_ms: dict[str, float]
    file: str | None = None
    write_bytes: int | None = None
    write_mb_per_s: float | None = None


class SlowLoopSteps(ReportPart, frozen=True, kw_only=True):
    """The measured steps longer than `beyond_ms`: p95 and three times the median absolute deviation.

    `over_ms`, `parts_ms` and `unnamed_ms` are sums over all `count`; `steps` are the slowest.
    """

    count: int
    measured: int
    usual_ms: float
    beyond_ms: float
    over_ms: float
    explained_fraction: float | None
    parts_ms: dict[str, float]
    unnamed_ms: float
    unknown: dict[str, str]
    steps: list[SlowLoopStep]


class LoopReads(ReportPart, frozen=True, kw_only=True):
    """What the training thread read itself, beside its asks, in ms per measured step."""

    read_ms: float
    decode_ms: float
    files: list[FileCost]


class WorstBatch(ReportPart, frozen=True, kw_only=True):
    batch: int
    epoch: int
    wait_ms: float
    delay_ms: float | None
    worker: int | None
    pid: int | None
    cause: str
    files: list[str]

    @property
    def made_by(self) -> str:
        """Who fetched it: the loop itself where no worker did."""
        return "loop" if self.worker is None else f"worker {self.worker}"


class LoaderWait(ReportPart, frozen=True, kw_only=True):
    """A loader's share of the data wait, as a mean per measured step."""

    loader: int
    raw_ms: float


class DataWait(ReportPart, frozen=True, kw_only=True):
    raw_ms: float | None
    exposed_ms: float | None
    exposed_source: str | None
    exposed_steps: int | None
    raw_wait_fraction: float | None
    raw_wait_fraction_ci95: list[float] | None
    stall_fraction: float | None
    stall_fraction_ci95: list[float] | None
    verdict: str | None
    causes_ms: dict[str, float]
    by_loader: list[LoaderWait]
    too_few_workers: bool | None
    behind_ready_ms: float | None
    files: list[FileCost]
    worst_batches: list[WorstBatch]
    without_cpu_ms: dict[str, float] | None = None


class LoaderResult(ReportPart, frozen=True, kw_only=True):
    """A loader; `after_training`: it was first asked behind the last run of Lightning's trainer."""

    id: int
    kind: str
    primary: bool
    dataset: str
    item: str | None
    wrapped: bool
    within: int | None
    library: str | None
    workers: int
    batch_size: int | None
    prefetch_factor: int | None
    persistent_workers: bool | None
    pin_memory: bool | None
    in_order: bool | None
    batches: int
    phases: dict[str, int]
    raw_ms: float | None
    delay_ms: float | None
    production_ms: float | None
    queue_depth_mean: float | None
    epochs: int
    after_training: bool
    start_method: str | None
    first_batch_ms: float | None
    failures: list[str]


class RegionResult(ReportPart, frozen=True, kw_only=True):
    """A part of the program that its author named, over the whole run; `wait_ms` is per measured step."""

    name: str
    count: int
    ms_total: float
    cpu_ms_total: float
    wait_ms: float | None


class StepBlocks(ReportPart, frozen=True, kw_only=True):
    """Means of blocks of `steps` consecutive measured steps, in ms a step, in order of time.

    There are 64 at most, however long the run. `causes_ms` and `files_ms` (the costliest files) are parts
    of the wait; empty where it is unknown, and so is `wait_ms`. `phases_ms` has the phases that are known.
    """

    steps: int
    step_ms: list[float]
    wait_ms: list[float]
    causes_ms: dict[str, list[float]]
    files_ms: dict[str, list[float]]
    phases_ms: dict[str, list[float]] = msgspec.field(default_factory=dict)


class StageCost(ReportPart, frozen=True, kw_only=True):
    """What one stage costs in one file (None: in all others) each time that a sample needs it.

    `clock` is ``cpu`` or ``wall``. `quartile_ms` is the lower quartile over all `count` times, `blocks_ms`
    that of consecutive blocks of them, 40 at most: other programs only add to a cost, and seldom to all of
    it. Where `quiet`, times are those of seconds in which others took few of the CPUs; None: nobody knows.
    `per_sample` is how often a sample needs it. Of decoding, `decoded_bytes` is the mean of what the calls
    returned each time, `decoded_bytes_error` the standard error of that mean: a count, which no other program
    changes.
    """

    stage: str
    path: str | None
    clock: str
    quiet: bool | None
    count: int
    per_sample: float
    mean_ms: float
    quartile_ms: float
    blocks_ms: list[float]
    decoded_bytes: float | None = None
    decoded_bytes_error: float | None = None


class HungProcess(ReportPart, frozen=True, kw_only=True):
    """A process of a loop that hung, and what it was in. `stack`: Python frames, the innermost first.

    `stacks` is the file with those of all its threads; `collective` is what a rank was in with the others.
    """

    pid: int
    role: str
    rank: int | None
    host: str | None
    text: str
    state: str | None
    call: str | None
    file: str | None
    collective: str | None
    stack: list[str] | None
    stacks: str | None


class HangInfo(ReportPart, frozen=True, kw_only=True):
    """No batch came for `waited_seconds` when it was told; `text` says it in lines.

    `kind`: ``hung``, ``computing`` or ``waiting``. `resumed`: batches came again.
    """

    kind: str
    waited_seconds: float
    resumed: bool
    text: list[str]
    processes: list[HungProcess]
