"""What a rank's processes, its hosts and its devices do now: the newest samples."""

from __future__ import annotations

import numpy as np

from iotrace.analysis.host.system import devices_of
from iotrace.analysis.loop.step_table import StepTable
from iotrace.analysis.results.top import TopGpu, TopHost, TopProcess
from iotrace.analysis.window import Window
from iotrace.session import names
from iotrace.sources.processes import Process
from iotrace.sources.session import Session
from iotrace.sources.telemetry import SampledDevice, SampledProcess, Series

_LATE_NS = 5_000_000_000  # without a sample for so long, a process has gone


def processes_now(window: Window) -> list[TopProcess]:
    """The rank's processes that live."""
    telemetry = window.telemetry
    found = []
    for process in window.rank.processes:
        sampled = telemetry.process_of(process) if telemetry is not None else None
        gone = False
        if telemetry is not None and sampled is not None and len(sampled.samples):
            gone = int(sampled.samples["time_ns"][-1]) <= telemetry.last_ns - _LATE_NS
        if gone or window.fresh[process.identity.node, process.pid].ended:
            continue
        found.append(
            TopProcess(
                pid=process.pid,
                role="main" if process is window.rank.main else f"worker {process.worker}",
                cpu_pct=_growth(sampled, "cpu_ns", 1e-7),
                rss_bytes=_last(sampled.series("rss_bytes")) if sampled is not None else None,
                read_bytes_per_s=_growth(sampled, "rchar"),
                storage_read_bytes_per_s=_growth(sampled, "read_bytes"),
                busy_fraction=_busy(process, window.kept),
            )
        )
    return found


def _growth(sampled: SampledProcess | None, field: str, scale: float = 1.0) -> float | None:
    """The growth of a counter per second, over the samples at hand."""
    series = sampled.series(field) if sampled is not None else None
    if series is None or len(series.time_ns) < 2:
        return None
    length_s = float(series.time_ns[-1] - series.time_ns[0]) / 1e9
    return scale * float(series.value[-1] - series.value[0]) / length_s if length_s > 0 else None


def _last(series: Series | None) -> int | None:
    return int(series.value[-1]) if series is not None and len(series.value) else None


def _busy(process: Process, kept: StepTable) -> float | None:
    """The share of the window, up to the worker's last batch, in which it made batches."""
    if not len(kept) or process.worker is None:
        return None
    made = process.rows(names.PRODUCED_ROW)
    taken, prepared = (process.clock.times_to_session_ns(made[at]) for at in ("taken_ns", "prepared_ns"))
    begin_ns = kept[0].start_ns
    end_ns = min(kept[-1].end_ns, int(prepared.max(initial=0)))
    if end_ns <= begin_ns:
        return None
    inside = np.maximum(np.minimum(end_ns, prepared) - np.maximum(begin_ns, taken), 0)
    return int(inside.sum()) / (end_ns - begin_ns)


def gpus_now(window: Window) -> list[TopGpu]:
    """The devices that the rank uses."""
    telemetry = window.telemetry
    return [_gpu(device) for device in devices_of(telemetry, window.rank)] if telemetry is not None else []


def _gpu(device: SampledDevice) -> TopGpu:
    util = device.series.get("util_pct")
    return TopGpu(
        index=device.about.index,
        name=device.about.name,
        util_pct=None if util is None or not len(util.value) else float(util.value[-10:].mean()),
        memory_bytes=_last(device.series.get("memory_bytes")),
        memory_total_bytes=device.about.memory_total_bytes,
    )


def hosts_now(session: Session) -> list[TopHost]:
    found = {}
    for telemetry in session.telemetry:
        busy = telemetry.host.busy
        found[telemetry.sampler.host or telemetry.sampler.node] = TopHost(
            host=telemetry.sampler.host or telemetry.sampler.node,
            cpu_busy_fraction=None if len(busy) < 2 or np.isnan(busy[-1]).any() else float(busy[-1].mean()),
            memory_available_bytes=_last(telemetry.host.figures.get("memory_available_bytes")),
        )
    return list(found.values())
