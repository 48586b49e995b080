"""What `iotrace top` shows at one moment. Names that a report has, too, mean what they mean there.

What only a page shows: steps, batches and samples one by one, as columns. None is unknown, never 0.
"""

from __future__ import annotations

import msgspec

from iotrace.analysis.results.base import ReportPart
from iotrace.analysis.results.host import Forecast
from iotrace.analysis.results.io import FileGroup
from iotrace.analysis.results.loop import DataWait, Steps

SCHEMA_VERSION = 1


class TopProcess(ReportPart, frozen=True, kw_only=True):
    """A process of a rank now; `busy_fraction`: of the window's time a worker made batches."""

    pid: int
    role: str
    cpu_pct: float | None = None
    rss_bytes: int | None = None
    read_bytes_per_s: float | None = None
    storage_read_bytes_per_s: float | None = None
    busy_fraction: float | None = None


class TopGpu(ReportPart, frozen=True, kw_only=True):
    """An accelerator that the rank uses, now."""

    index: int
    name: str
    util_pct: float | None = None
    memory_bytes: int | None = None
    memory_total_bytes: int | None = None


class TopRank(ReportPart, frozen=True, kw_only=True):
    """A rank over its window: its newest measured steps of which everything is on disk.

    `age_s` is how long ago the newest of them ended, `idle_s` how long ago the newest step of all did.
    `last_steps_ms` are these steps one by one, `last_waits_ms` their waits: of the rank in `verdict` alone.
    """

    rank: int
    incarnation: int
    host: str | None = None
    steps: Steps
    seconds: float | None = None
    age_s: float | None = None
    idle_s: float | None = None
    since: str | None = None
    data_wait: DataWait
    file_groups: list[FileGroup]
    processes: list[TopProcess]
    gpus: list[TopGpu]
    last_steps_ms: list[float] = msgspec.field(default_factory=list)
    last_waits_ms: list[float] = msgspec.field(default_factory=list)


class TopHost(ReportPart, frozen=True, kw_only=True):
    """A host of the job: its CPUs that the job may use, and its memory, now."""

    host: str
    cpu_busy_fraction: float | None = None
    memory_available_bytes: int | None = None


class TopVerdict(ReportPart, frozen=True, kw_only=True):
    """What holds for the window of the rank that waits for the largest share of its steps."""

    text: str
    why: str | None = None
    rank: int | None = None


class Top(ReportPart, frozen=True, kw_only=True):
    """One look at a session.

    `state`: ``awaiting`` (no figures yet), ``running``, ``ended``, ``killed``, or ``unknown`` where it cannot
    be seen from here whether it runs. `awaited` says what is missing for figures, `news_s` how long ago
    anything was recorded. Causes and files are those of the rank in `verdict`; of a restarted job the last
    start counts.
    """

    schema_version: int
    time_s: float
    path: str
    argv: list[str]
    state: str
    exit_code: int | None = None
    running_s: float | None = None
    awaited: str | None = None
    news_s: float | None = None
    window_steps: int
    verdict: TopVerdict | None = None
    ranks: list[TopRank]
    hosts: list[TopHost]
    notes: list[str]
    forecasts: list[Forecast] = msgspec.field(default_factory=list)


class StepColumns(ReportPart, frozen=True, kw_only=True):
    """The loop's steps in order of time: an entry is `bin` consecutive steps, of which it has the mean.

    `first` is the number of its first step, from 0; `longest` that of its longest one, whose length is
    `longest_ms`, and which the timeline calls `numbers`. `wait_ms` is None where the data wait is unknown; then `causes_ms` is empty.
    """

    steps: int
    bin: int
    first: list[int]
    measured: list[bool]
    step_ms: list[float]
    wait_ms: list[float] | None = None
    causes_ms: dict[str, list[float]]
    longest: list[int]
    longest_ms: list[float]
    numbers: list[int] = msgspec.field(default_factory=list)
    longest_wait_ms: list[float] | None = None


class BatchWindow(ReportPart, frozen=True, kw_only=True):
    """Consecutive steps around the longest wait, and the batches made or awaited in them.

    Times are ms since the window's start. A batch was made from `taken_ms` to `prepared_ms`, mostly by
    `made_of`, and awaited from `asked_ms` to `delivered_ms`, mostly for `cause`; `computed_ms` is when the
    loop asked again. `ready` batches lay prepared and not yet delivered from each of `ready_at_ms` on.
    """

    first_step: int
    steps: int
    length_ms: float
    step_starts_ms: list[float]
    batch: list[int]
    epoch: list[int]
    worker: list[int | None]
    taken_ms: list[float | None]
    prepared_ms: list[float | None]
    asked_ms: list[float]
    delivered_ms: list[float]
    computed_ms: list[float | None]
    cause: list[str]
    made_of: list[str | None]
    file: list[str | None]
    worst: int | None = None
    ready_at_ms: list[float]
    ready: list[int]


class SampledSeries(ReportPart, frozen=True, kw_only=True):
    """A figure over time, `time_s` since the command's launch, means of bins; `peak` is of all samples.

    `most` is the largest value that it can have.
    """

    name: str
    unit: str
    time_s: list[float]
    value: list[float]
    peak: float
    most: float | None = None


class RankColumns(ReportPart, frozen=True, kw_only=True):
    """One rank, step by step."""

    rank: int
    incarnation: int
    steps: StepColumns | None = None
    window: BatchWindow | None = None
    series: list[SampledSeries]
