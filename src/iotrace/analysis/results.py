"""What a report says, as plain data: its JSON is the contract (docs/definitions.md has the meanings).

Times are means in ms: of ranks per measured step, of loaders per batch; ``total`` is a sum over the run.
None is unknown, never 0.
"""

from __future__ import annotations

import msgspec

from iotrace.session.manifest import NotCaptured

SCHEMA_VERSION = 1


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """Base of every result: immutable, encoded with all fields."""


class SessionInfo(Result, frozen=True, kw_only=True):
    path: str
    argv: list[str]
    exit_code: int | None
    complete: bool
    iotrace_version: str


class Excluded(Result, frozen=True, kw_only=True):
    """Steps left out of the figures: the first, those awaiting a worker's first batch, those profiled."""

    first: int
    warmup: int
    profiled: int


class Steps(Result, frozen=True, kw_only=True):
    count: int
    excluded: Excluded
    mean_ms: float | None
    p50_ms: float | None
    p95_ms: float | None
    per_second: float | None
    samples_per_second: float | None


class FileCost(Result, frozen=True, kw_only=True):
    """A file's share of the data wait."""

    path: str
    ms: float
    read_ms: float
    decode_ms: float


class WorstBatch(Result, frozen=True, kw_only=True):
    batch: int
    epoch: int
    wait_ms: float
    delay_ms: float | None
    worker: int | None
    pid: int | None
    cause: str
    files: list[str]


class DataWait(Result, frozen=True, kw_only=True):
    raw_ms: float | None
    exposed_ms: float | None
    exposed_source: str | None
    raw_wait_fraction: float | None
    stall_fraction: float | None
    verdict: str | None
    causes_ms: dict[str, float]
    too_few_workers: bool | None
    behind_ready_ms: float | None
    files: list[FileCost]
    worst_batches: list[WorstBatch]


class LoaderResult(Result, frozen=True, kw_only=True):
    id: int
    kind: str
    primary: bool
    dataset: str
    workers: int
    batches: int
    raw_ms: float | None
    delay_ms: float | None
    production_ms: float | None
    queue_depth_mean: float | None
    epochs: int
    start_method: str | None
    first_batch_ms: float | None
    failures: list[str]


class FileIo(Result, frozen=True, kw_only=True):
    path: str
    opens: int
    reads: int
    read_bytes: int
    read_ms_total: float
    writes: int
    write_bytes: int
    metadata_ms_total: float
    sequential_fraction: float | None
    reread_fraction: float | None
    by_worker: dict[str, int]


class ProcessCoverage(msgspec.Struct, frozen=True):
    pid: int
    role: str
    coverage: float | None
    traced_bytes: int | None
    kernel_bytes: int | None


class Io(Result, frozen=True, kw_only=True):
    coverage: float | None
    calls: int
    bytes: int
    ms_total: float
    files: list[FileIo]
    processes: list[ProcessCoverage]


class System(Result, frozen=True, kw_only=True):
    """`cpu_pct_mean`: CPU of the rank's processes over the measured steps; 100 is one core."""

    gpus: list[str]
    cpu_pct_mean: float | None
    rss_peak_bytes: int | None
    cpus: int | None


class Overhead(Result, frozen=True, kw_only=True):
    """What tracing itself may have cost: counts over the run, costs as measured on `measured_on` after it.

    The percentages are of the measured steps and of their batches' production; `estimated_pct_of_step` is
    an upper bound.
    """

    posix_calls: int | None
    spans: int
    processes: int
    posix_call_us: float | None
    span_us: float | None
    process_start_ms: float | None
    measured_on: str | None
    consumer_pct_of_step: float | None
    workers_pct_of_production: float | None
    estimated_pct_of_step: float | None


class RankReport(Result, frozen=True, kw_only=True):
    rank: int
    host: str
    local_rank: int | None
    world_size: int | None
    incarnation: int
    steps: Steps
    data_wait: DataWait
    loaders: list[LoaderResult]
    breakdown_ms: dict[str, float] | None
    accelerator: dict[str, float] | None
    io: Io | None
    system: System
    overhead: Overhead


class Recommendation(Result, frozen=True, kw_only=True):
    id: str
    severity: str
    text: str
    evidence: dict[str, float]
    gain_ms_per_step: float | None


class ClockInfo(Result, frozen=True, kw_only=True):
    """`kind` is ``exact``, or ``assumed`` where another machine's clock was not compared (bound unknown)."""

    source: str
    host: str
    kind: str
    offset_ns: int
    bound_ns: int | None


class ProcessInfo(Result, frozen=True, kw_only=True):
    """A Python process of the job; `role` is as ``Session.role_of`` gives it."""

    pid: int
    ppid: int
    host: str
    role: str
    rank: int | None
    local_rank: int | None
    incarnation: int
    start_method: str | None
    python: str


class Report(Result, frozen=True, kw_only=True):
    schema_version: int
    session: SessionInfo
    ranks: list[RankReport]
    processes: list[ProcessInfo]
    imbalance: None
    recommendations: list[Recommendation]
    not_captured: list[NotCaptured]
    clocks: list[ClockInfo]
