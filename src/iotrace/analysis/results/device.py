"""What the accelerator did in the traced window, in us."""

from __future__ import annotations

from iotrace.analysis.results.base import ReportPart


class IdleByModule(ReportPart, frozen=True, kw_only=True):
    """Idle time that kernels of a module and phase ended; communication that was launched there."""

    module: str | None
    phase: str
    idle_us: float
    comm_us: float


class StreamIdle(ReportPart, frozen=True, kw_only=True):
    """A stream's own gaps, whatever other streams did meanwhile."""

    device: int | None
    stream: int | None
    events: int
    busy_us: float
    idle_by_class_us: dict[str, float]


class Accelerator(ReportPart, frozen=True, kw_only=True):
    """Totals over the traced window, in us. `idle_by_class_us` and `idle_by_module` each sum to `idle_us`."""

    span_us: float
    busy_us: float
    idle_us: float
    compute_us: float
    non_compute_us: float
    comm_us: float
    memory_us: float
    comm_comp_overlap_us: float
    comm_comp_overlap_pct: float | None
    overlap_of_compute_pct: float | None
    overlap_of_span_pct: float | None
    kernel_gap_us: float
    idle_by_class_us: dict[str, float]
    data_wait_by_cause_us: dict[str, float] | None
    idle_by_module: list[IdleByModule]
    streams: list[StreamIdle]
