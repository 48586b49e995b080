"""What `iotrace top` shows at one moment. Names that a report has, too, mean what they mean there."""

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
