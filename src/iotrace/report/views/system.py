"""The view of the machine under a program: means and peaks of processes, host and devices."""

from __future__ import annotations

import msgspec

from iotrace.analysis.results import RankReport, Report
from iotrace.report.views.table import Field, Table, of_ranks
from iotrace.units import three_digits


class SystemRow(msgspec.Struct, frozen=True, kw_only=True):
    """A figure of the machine over the measured time: its mean, and its peak."""

    what: str
    mean: float | None
    peak: float | None
    unit: str


def system(report: Report) -> list[Table]:
    """Show the mean and the peak of what the rank's processes, its host and its devices used."""
    fields = (
        Field("what", "what", is_text=True),
        Field("mean", "mean", three_digits, absent="-"),
        Field("peak", "peak", three_digits, absent="-"),
        Field("unit", "unit", is_text=True),
    )

    def make(rank: RankReport) -> Table:
        return Table(
            title="System, over the measured steps",
            rows=_rows(rank),
            fields=fields,
            unknown="no sample was taken",
            remedy="iotrace run takes them, without --no-telemetry",
        )

    return of_ranks(report.ranks, make)


def _rows(rank: RankReport) -> list[SystemRow]:
    rows: list[SystemRow] = []

    def add(what: str, unit: str, mean: float | None, peak: float | None = None, scale: float = 1.0) -> None:
        if mean is not None or peak is not None:
            mean, peak = (None if value is None else value * scale for value in (mean, peak))
            rows.append(SystemRow(what=what, mean=mean, peak=peak, unit=unit))

    found = rank.system
    add("CPU of the rank's processes", "% of one core", found.cpu_pct_mean)
    add("memory of the rank's processes", "MiB", None, found.rss_peak_bytes, 2**-20)
    for process in found.processes:
        name = f"{process.role}, pid {process.pid}"
        add(f"CPU of {name}", "% of one core", process.cpu_pct_mean)
        add(f"memory of {name}", "MiB", None, process.rss_peak_bytes, 2**-20)
    if (host := found.host) is not None:
        add("host's cores busy", "%", host.cpu_busy_fraction, scale=100)
        add("of that: other programs", "%", host.others_cpu_fraction, scale=100)
        add("host waits for storage", "%", host.iowait_fraction, scale=100)
        add("host's free memory, at least", "MiB", host.memory_available_bytes_min, scale=2**-20)
    for gpu in found.gpus:
        name = f"gpu {gpu.index}"
        add(f"{name} utilisation", "%", gpu.util_pct_mean, gpu.util_pct_peak)
        add(f"{name} memory", "MiB", None, gpu.memory_bytes_peak, 2**-20)
        add(f"{name} memory of the rank", "MiB", None, gpu.rank_memory_bytes_peak, 2**-20)
        add(f"{name} memory bandwidth", "%", gpu.memory_util_pct_mean)
        add(f"{name} power", "W", gpu.power_w_mean, gpu.power_w_peak)
        add(f"{name} energy a step", "J", gpu.energy_j_per_step)
        add(f"{name} energy a sample", "J", gpu.energy_j_per_sample)
        add(f"{name} temperature", "°C", None, gpu.temperature_c_max)
        add(f"{name} received over PCIe", "MB/s", gpu.pcie_received_bytes_per_s_mean, scale=1e-6)
        add(f"{name} sent over PCIe", "MB/s", gpu.pcie_sent_bytes_per_s_mean, scale=1e-6)
    return rows
