"""How long the makers of batches were ready to run but had no CPU: a modifier of each cause of their waits.

The kernel counts it for each thread (schedstat), and the spans of samples, read paths and collate functions
hold how much it grew. In a read path it belongs to decoding first: a thread that computes is preempted.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

from iotrace.analysis.host.disturbance import is_disturbed
from iotrace.analysis.intervals import Times, distinct, holding
from iotrace.analysis.loop.deliveries import Deliveries
from iotrace.analysis.rank import RankAnalysis
from iotrace.analysis.results import DataWait, HostUse
from iotrace.analysis.table import Columns
from iotrace.analysis.wait.gain_bound import replayed_gain_ms
from iotrace.analysis.wait.production import PARTS, READING, outermost_of
from iotrace.analysis.wait.waits import CAUSES, Waits
from iotrace.session.names import KIND_COLLATE, KIND_ITEM
from iotrace.sources.processes import Process
from iotrace.sources.run_delays import run_delays
from iotrace.sources.session import Rank

Floats = npt.NDArray[np.float64]
_READ, _DECODE, _TRANSFORM, _COLLATE = (
    PARTS.index(part) for part in ("read", "decode", "transform", "collate")
)


def cpu_waits(rank: Rank, waits: Waits) -> Floats:
    """Return, of shape (waits, `PARTS`), the ns of each production that its thread waited for a CPU.

    NaN where it is not known.
    """
    deliveries, found = waits.deliveries, np.full(waits.made.shape, np.nan)
    known = np.flatnonzero(~np.isnan(waits.made[:, 0]) & deliveries.made)
    makers = deliveries.maker(rank.main.pid)[known]
    for process in rank.processes:
        own = known[makers == process.pid]
        if len(own):
            found[own] = _delays(process, deliveries[own], waits.made[own])
    return found


def _delays(process: Process, windows: Deliveries, made: Floats) -> Floats:
    """Sum up the run delay of the spans that begin in each window; no part waits longer than it lasts."""
    found = np.zeros(made.shape)
    items, collates = (
        _by_window(own["run_delay_ns"], own, windows)
        for own in (outermost_of(process, KIND_ITEM), outermost_of(process, KIND_COLLATE))
    )
    in_reads = outermost_of(process, *READING)
    within = _by_window(in_reads["run_delay_ns"], in_reads, windows, unknown_is=0.0)
    reads = _by_window(run_delays(process, in_reads), in_reads, windows, unknown_is=0.0)
    found[:, _DECODE] = np.minimum(reads, made[:, _DECODE])
    found[:, _READ] = np.minimum(reads - found[:, _DECODE], made[:, _READ])
    found[:, _TRANSFORM] = np.clip(items - within, 0, made[:, _TRANSFORM])
    found[:, _COLLATE] = np.minimum(np.nan_to_num(collates), made[:, _COLLATE])
    found[np.isnan(items)] = np.nan
    return found


def _by_window(delays: Times, spans: Columns, windows: Deliveries, unknown_is: float = np.nan) -> Floats:
    """Sum up run delays by window; `unknown_is` stands for one that the kernel does not say."""
    order = np.argsort(windows["taken_ns"], kind="stable")
    starts, ends = windows["taken_ns"][order], windows["prepared_ns"][order]
    at = holding(starts, ends, spans["start_ns"])
    inside = at >= 0
    known = np.where(delays >= 0, delays.astype(np.float64), unknown_is)
    return np.bincount(order[at[inside]], known[inside], len(windows)).astype(np.float64)


def cpu_causes_ns(waits: Waits, delays: Floats) -> dict[str, float] | None:
    """Return what each cause of these waits spent without a CPU, pro rata to its production; None: unknown.

    A wait without a known production counts with nothing, so it is a lower bound.
    """
    known = ~np.isnan(delays[:, 0])
    if not known.any():
        return None
    shares = np.divide(
        delays, waits.made, out=np.zeros(delays.shape), where=known[:, None] & (waits.made > 0)
    )
    return {
        part: float((waits.causes[:, CAUSES.index(part)] * shares[:, number]).sum())
        for number, part in enumerate(PARTS)
        if part != "unknown"
    }


def with_cpu(wait: DataWait, analysis: RankAnalysis, host: HostUse | None = None) -> DataWait:
    """Add what the causes of a wait spent without a CPU, and what it loses without that beside others."""
    if not wait.raw_ms:
        return wait
    waits = analysis.measured_waits
    spent_ns = cpu_causes_ns(waits, cpu_waits(analysis.rank, waits))
    if spent_ns is None:
        return wait
    steps = len(analysis.kept)
    return replace(
        wait,
        without_cpu_ms={cause: ns / steps / 1e6 for cause, ns in spent_ns.items()},
        queueing_ms=queueing_ms(analysis) if is_disturbed(host) else None,
    )


def queueing_ms(analysis: RankAnalysis, transport: bool = True) -> float | None:
    """Bound, by a replay, what a step's wait loses where no maker of its batches queues for a CPU.

    `transport`: handing them over, of which no account tells, takes no time either. None: cannot be replayed.
    """
    primary = analysis.primary
    if primary is None or primary.description.wrapped or primary.description.in_order is False:
        return None
    explained = analysis.explained(primary)
    awaited = analysis.kept.awaited
    measured = distinct(awaited["number"][awaited["loader"] == primary.number])
    less = np.nan_to_num(cpu_waits(analysis.rank, explained).sum(axis=1))
    return replayed_gain_ms(explained.deliveries, measured, len(analysis.kept), less, transport)
