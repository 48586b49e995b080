"""Whose fault reading is where files had been in memory: memory is full. Thresholds: docs/definitions.md."""

from __future__ import annotations

from iotrace.analysis.culprits import leads, worth_telling
from iotrace.analysis.host.measured import MeasuredTime
from iotrace.analysis.rank import RankAnalysis
from iotrace.analysis.results import Culprit, Evidence, HostUse, RankReport, total
from iotrace.sources.telemetry import Telemetry
from iotrace.units import percent, size

_AGAIN = 0.5  # of what the rank's processes read from storage
_OTHERS = 1.5  # times that: others in the group read again, too, and whose memory it was is unknown
_LEAST_BYTES = 16 << 20


def full_memory(analysis: RankAnalysis, report: RankReport) -> list[Culprit]:
    """Name memory where most of what is read from storage had been there, and was dropped for lack of it."""
    telemetry = analysis.session.telemetry_of(analysis.rank.main)
    read_ms = report.data_wait.causes_ms.get("read", 0.0)
    if telemetry is None or not worth_telling(read_ms, report):
        return []
    again = MeasuredTime(analysis.kept).growth(telemetry.host.figures.get("refaulted_file_bytes"))
    whole = total(each.storage_read_bytes for each in report.system.processes)
    if again is None or again < _LEAST_BYTES or not whole:
        return []
    if not _AGAIN <= again / whole <= _OTHERS:
        return []
    evidence: Evidence = {"read_again_bytes": again, "storage_read_bytes": float(whole)}
    share = percent(min(1.0, again / whole))
    text = f"memory is full: {share} of what is read from storage was in memory before: read {read_ms:.1f} ms"
    return [
        Culprit(
            id="memory-full",
            text=text,
            evidence=evidence | evidence_of(telemetry, report.system.host),
            wait_ms=read_ms,
            leads=leads(read_ms, report),
            remedy=f"{more_memory(telemetry)}, or data that fits in it",
        )
    ]


def evidence_of(telemetry: Telemetry, host: HostUse | None) -> Evidence:
    """Return the control group's limit, and in which share of the time some task waited for memory (PSI)."""
    found: Evidence = {}
    if (limit := _limit(telemetry)) is not None:
        found["limit_bytes"] = float(limit)
    if (pressed := pressure(host)) is not None:
        found["memory_pressure_fraction"] = pressed
    return found


def pressure(host: HostUse | None) -> float | None:
    """Return in which share of the time some task waited for memory, of the control group or the host."""
    if host is None:
        return None
    own = host.cgroup_pressure_fraction.get("memory")
    return host.pressure_fraction.get("memory") if own is None else own


def more_memory(telemetry: Telemetry) -> str:
    """Ask for more memory, and say what its control group may use where that has a limit."""
    limit = _limit(telemetry)
    return "give the job more memory" + (f" (its control group may use {size(limit)})" if limit else "")


def _limit(telemetry: Telemetry) -> int | None:
    limits = [each.group[1] for each in telemetry.memory if each.group is not None]
    return limits[-1] if limits else None
