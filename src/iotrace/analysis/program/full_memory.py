"""Memory that is full: files that are read from storage again, memory in swap that processes read back.

The kernel counts, for each control group, memory that came back from swap, and for each process only major
page faults and bytes from storage, whatever they were of. Whose it was is told where these agree, and where
no file was mapped. Thresholds: docs/definitions.md, culprits.
"""

from __future__ import annotations

import numpy as np
from msgspec.structs import replace

from iotrace.analysis.culprits import leads, worth_telling
from iotrace.analysis.host.measured import MeasuredTime, lifelong
from iotrace.analysis.program.numa import who
from iotrace.analysis.rank import RankAnalysis
from iotrace.analysis.results import (
    Culprit,
    Evidence,
    HostUse,
    ProcessUse,
    RankReport,
    Recommendation,
    System,
    total,
)
from iotrace.analysis.table import taken
from iotrace.analysis.wait.production import outermost
from iotrace.session.names import KIND_ITEM
from iotrace.sources.processes import Process
from iotrace.sources.records import Mapped
from iotrace.sources.telemetry import Telemetry
from iotrace.units import percent, size

_AGAIN = 0.5  # of what the rank's processes read from storage: files that had been in memory
_OTHERS = 1.5  # times that: others in the group read again, too, and whose memory it was is unknown
_LEAST_BYTES = 16 << 20
_OF_FAULTS = 0.5  # of what page faults fetched came from swap
_SMALLEST_PAGE = 4096
_FAULTS_PER_S = 500  # 5 % of the time, at the 0.1 ms that a quick disk takes for one
_PRESSED = 0.05  # of the time
_A_PART = 0.1  # of what came back: of whom it is told
_PARTS = ("read", "decode", "transform")  # in which a sample's page faults lie


def full_memory(analysis: RankAnalysis, report: RankReport) -> list[Culprit]:
    """Name memory where most of what is read from storage had been there, and was dropped for lack of it."""
    telemetry = analysis.telemetry
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


def with_swap(system: System, analysis: RankAnalysis) -> System:
    """Add what came back from swap in the measured time: of the control group, and of each process."""
    telemetry = analysis.telemetry
    if telemetry is None or system.host is None:
        return system
    time = MeasuredTime(analysis.kept)
    group = time.growth(telemetry.host.figures.get("swap_in_bytes"))
    fetched = [_by_faults(process, telemetry, time) for process in analysis.rank.processes]
    mapped = any(process.of_type(Mapped) for process in analysis.rank.processes)
    own = _shares(group, fetched, system.processes) if group == 0 or not mapped else None
    processes = system.processes
    if own is not None:
        processes = [
            replace(each, swap_in_bytes=each_own) for each, each_own in zip(processes, own, strict=True)
        ]
    host = replace(system.host, swap_in_bytes=None if group is None else round(group))
    return replace(system, processes=processes, host=host)


def _by_faults(process: Process, telemetry: Telemetry, time: MeasuredTime) -> float | None:
    """Return the bytes that page faults of a process fetched from storage, at least; None: not known."""
    sampled = telemetry.process_of(process)
    if sampled is None:
        return None
    faults, fetched, called = (
        time.growth(counter and lifelong(counter, sampled.start_ns, telemetry.last_ns))
        for counter in map(sampled.series, ("major_faults", "read_bytes", "rchar"))
    )
    if faults is None or fetched is None or called is None:
        return None
    return max(faults * _SMALLEST_PAGE, fetched - called, 0.0)


def _shares(
    group: float | None, fetched: list[float | None], processes: list[ProcessUse]
) -> list[int] | None:
    """Return what of `group` each process read back, at least; None where it may have been another's."""
    if group is None:
        return None
    if group == 0:
        return [0] * len(processes)
    whole, read = total(fetched), total(each.storage_read_bytes for each in processes)
    swapped = [each.swap_bytes_peak for each in processes]
    if whole is None or read is None or None in swapped or not _OF_FAULTS * whole <= group <= _OTHERS * read:
        return None
    pairs = zip(fetched, swapped, strict=True)
    return [round(min(own or 0.0, group)) if in_swap else 0 for own, in_swap in pairs]


def swapped(analysis: RankAnalysis, report: RankReport) -> list[Culprit]:
    """Name memory in swap where the makers of samples sleep until it is read back."""
    telemetry = analysis.telemetry
    wait, host = report.data_wait, report.system.host
    back = [each.swap_in_bytes or 0 for each in report.system.processes]
    if telemetry is None or host is None or not report.steps.mean_ms or sum(back) < _LEAST_BYTES:
        return []
    slept_ms = _asleep(analysis, back) * sum(wait.causes_ms.get(part, 0.0) for part in _PARTS)
    if not worth_telling(slept_ms, report):
        return []
    own = min(float(sum(back)), float(host.swap_in_bytes or 0))
    parts = [
        each
        for each, bytes_back in zip(report.system.processes, back, strict=True)
        if bytes_back >= _A_PART * sum(back)
    ]
    workers = any(each.role != "main" for each in parts)
    whose = "its" if len(parts) == 1 else "their"
    text = f"memory in swap: {' and '.join(who(parts))} read {size(own)} of {whose} own memory back"
    return [
        Culprit(
            id="swap",
            text=f"{text}: asleep for it {slept_ms:.1f} ms a step",
            evidence={
                "swap_in_bytes": own,
                "swap_bytes_peak": float(sum(each.swap_bytes_peak or 0 for each in parts)),
                "major_faults": float(sum(each.major_faults or 0 for each in parts)),
                **evidence_of(telemetry, host),
            },
            wait_ms=slept_ms,
            leads=leads(slept_ms, report),
            remedy=f"{more_memory(telemetry)}, {'fewer workers or ' if workers else ''}smaller caches",
        )
    ]


def swapping_advice(analysis: RankAnalysis, report: RankReport) -> list[Recommendation]:
    """Advise more memory where the training process itself reads much of its own back; no gain is known.

    How long its steps sleep for it is not recorded: the faults are counted, or tasks waited for memory (PSI).
    """
    telemetry = analysis.telemetry
    main = next((each for each in report.system.processes if each.role == "main"), None)
    steps, step_ms = report.steps.count, report.steps.mean_ms
    if main is None or telemetry is None or not step_ms or (main.swap_in_bytes or 0) < _LEAST_BYTES:
        return []
    pressed = pressure(report.system.host) or 0.0
    often = (main.major_faults or 0) >= _FAULTS_PER_S * steps * step_ms / 1e3
    if not (often or pressed >= _PRESSED) or any(
        each.id == "swap" and each.leads for each in report.culprits
    ):
        return []
    back = float(main.swap_in_bytes or 0)
    remedy = f"{more_memory(telemetry)}, or let the training hold less"
    return [
        Recommendation(
            id="swap",
            severity="medium",
            text=f"memory in swap: the training read {size(back)} of its own memory back, "
            f"{size(back / steps)} a step: {remedy}",
            evidence={
                "swap_in_bytes": back,
                "major_faults": float(main.major_faults or 0),
                "pressure": pressed,
            },
            gain_ms_per_step=None,
            remedy=remedy,
            fix="swap",
        )
    ]


def with_memory_first(advised: list[Recommendation], culprits: list[Culprit]) -> list[Recommendation]:
    """Leave out, where memory in swap leads, what it makes worse, and what it makes look slow.

    More workers hold more memory, and what the kernel computes to swap counts as the samples' own code.
    """
    if not any(each.id == "swap" and each.leads for each in culprits):
        return advised
    return [item for item in advised if item.id not in ("too-few-workers", "transform-bound")]


def _asleep(analysis: RankAnalysis, back: list[int]) -> float:
    """Return in what share of the samples' making their threads slept in page faults.

    A process that read nothing back from swap has slept for none of it.
    """
    start_ns, end_ns = int(analysis.kept["start_ns"][0]), int(analysis.kept["end_ns"][-1])
    slept = whole = 0.0
    for process, own in zip(analysis.rank.processes, back, strict=True):
        spans = process.spans
        items = taken(spans, outermost(spans, spans["kind"] == KIND_ITEM))
        items = items[(items["start_ns"] >= start_ns) & (items["start_ns"] < end_ns) & (items["cpu_ns"] >= 0)]
        lengths_ns = items["duration_ns"].astype(np.float64)
        whole += float(lengths_ns.sum())
        if own:
            ran_ns = items["cpu_ns"] + np.maximum(items["run_delay_ns"], 0)
            sleeps = np.maximum(items["voluntary_switches"], 1)
            share = np.clip(items["major_faults"] / sleeps, 0.0, 1.0)
            slept += float((np.maximum(lengths_ns - ran_ns, 0.0) * share).sum())
    return slept / whole if whole else 0.0
