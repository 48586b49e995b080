"""Threads of libraries that make the samples: whose they are, how long a sample's own thread sleeps for them.

Such a thread sleeps while its library's threads compute, or wait for a CPU: it waits for no storage. The
kernel counts for each thread how long it was ready to run without a CPU.

How long the makers of batches were ready to run but had no CPU: a modifier of each cause of their waits.

The kernel counts it for each thread (schedstat), and the spans of samples, read paths and collate functions
hold how much it grew. In a read path it belongs to decoding first: a thread that computes is preempted.
"""

from __future__ import annotations

from collections import Counter

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

from iotrace.analysis.host.disturbance import is_disturbed
from iotrace.analysis.intervals import Times, distinct, holding
from iotrace.analysis.loop.deliveries import Deliveries, LoaderRun
from iotrace.analysis.rank import RankAnalysis
from iotrace.analysis.results import DataWait, HostUse, RankReport, System
from iotrace.analysis.wait.data_wait import quicker_by
from iotrace.analysis.wait.gain_bound import MOST, Replayed, replayed_gain_ms
from iotrace.analysis.wait.page_faults import holder
from iotrace.analysis.wait.production import PARTS, READING, outermost, outermost_of
from iotrace.analysis.wait.waits import Waits
from iotrace.session.names import KIND_CALLBACK, KIND_COLLATE, KIND_ITEM, KIND_READ_PATH
from iotrace.sources.columns import Columns
from iotrace.sources.processes import Process
from iotrace.sources.session import Rank
from iotrace.sources.stolen_time import run_delays

Floats = npt.NDArray[np.float64]
_READ, _DECODE, _TRANSFORM, _COLLATE = (
    PARTS.index(part) for part in ("read", "decode", "transform", "collate")
)


def cpu_waits(rank: Rank, waits: Waits) -> Floats:
    """Return, of shape (waits, `PARTS`), the ns of each production that its thread waited for a CPU.

    NaN where it is not known.
    """
    deliveries, found = waits.deliveries, np.full(waits.made.shape, np.nan, order="F")
    known = np.flatnonzero(~np.isnan(waits.made[:, 0]) & deliveries.made)
    makers = deliveries.maker(rank.main.pid)[known]
    for process in rank.processes:
        own = known[makers == process.pid]
        if not len(own):
            continue
        own = own[np.argsort(deliveries["taken_ns"][own], kind="stable")]
        taken_ns = np.append(deliveries["taken_ns"][own[::_AT_ONCE]], np.iinfo(np.int64).max)
        spans = [_by_start(outermost_of(process, *kinds)) for kinds in _KINDS]
        bounds = [np.searchsorted(each["start_ns"], taken_ns).tolist() for each in spans]
        for number, first in enumerate(range(0, len(own), _AT_ONCE)):
            rows = own[first : first + _AT_ONCE]
            near = [each[at[number] : at[number + 1]] for each, at in zip(spans, bounds, strict=True)]
            found[rows] = _delays(process, deliveries[rows], waits.made[rows], *near)
    return found


_KINDS = ((KIND_ITEM,), (KIND_COLLATE,), READING)
_AT_ONCE = 1 << 15  # batches: what was made in them stays in the CPU's cache


def _by_start(spans: Columns) -> Columns:
    starts = spans["start_ns"]
    return spans[np.argsort(starts, kind="stable")] if (starts[1:] < starts[:-1]).any() else spans


def _delays(
    process: Process, windows: Deliveries, made: Floats, items: Columns, collates: Columns, in_reads: Columns
) -> Floats:
    """Sum up the run delay of the spans that begin in each window; no part waits while it computes.

    The windows are sorted by their starts.
    """
    found = np.zeros(made.shape, order="F")
    of_items, of_collates = (_SpansOf(windows, own) for own in (items, collates))
    waited, collated = (
        spans.summed(own["run_delay_ns"]) for spans, own in ((of_items, items), (of_collates, collates))
    )
    of_reads = _SpansOf(windows, in_reads)
    within = of_reads.summed(in_reads["run_delay_ns"], unknown_is=0.0)
    reads = of_reads.summed(run_delays(process, in_reads), unknown_is=0.0)
    # What a thread computed it did not wait for a CPU.
    computed = of_reads.summed(in_reads["cpu_ns"], unknown_is=0.0)
    own_code = of_items.summed(items["cpu_ns"], unknown_is=0.0) - computed
    of_collate = of_collates.summed(collates["cpu_ns"], unknown_is=0.0)
    found[:, _DECODE] = np.minimum(reads, np.maximum(made[:, _DECODE] - computed, 0))
    found[:, _READ] = np.minimum(reads - found[:, _DECODE], made[:, _READ])
    left = np.maximum(made[:, _TRANSFORM] - np.maximum(own_code, 0), 0)
    found[:, _TRANSFORM] = np.clip(waited - within, 0, left)
    found[:, _COLLATE] = np.minimum(np.nan_to_num(collated), np.maximum(made[:, _COLLATE] - of_collate, 0))
    found[np.isnan(waited)] = np.nan
    return found


class _SpansOf:
    """Which spans begin in which window, of sorted ones."""

    def __init__(self, windows: Deliveries, spans: Columns) -> None:
        self._count = len(windows)
        at = holding(windows["taken_ns"], windows["prepared_ns"], spans["start_ns"])
        self._inside = np.flatnonzero(at >= 0)
        self._window = at[self._inside]

    def summed(self, delays: Times, unknown_is: float = np.nan) -> Floats:
        """Sum up run delays by window; `unknown_is` stands for one that the kernel does not say."""
        own = delays[self._inside]
        known = np.where(own >= 0, own.astype(np.float64), unknown_is)
        return np.bincount(self._window, known, self._count).astype(np.float64)


def cpu_causes_ns(waits: Waits, delays: Floats) -> dict[str, float] | None:
    """Return what each cause of these waits spent without a CPU, pro rata to its production; None: unknown.

    A wait without a known production counts with nothing, so it is a lower bound.
    """
    known = ~np.isnan(delays[:, 0])
    if not known.any():
        return None
    spent_ns = {}
    for part, own, made in zip(PARTS, delays.T, waits.made.T, strict=True):
        if part != "unknown":
            share = np.divide(own, made, out=np.zeros(len(own)), where=known & (made > 0))
            # Beside what stages before it made, which the wait holds, too.
            spent_ns[part] = float(np.minimum(waits.of_cause(part) * share, np.where(known, own, 0.0)).sum())
    return spent_ns


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
        making_least_ms=_making_least_ms(analysis) if is_disturbed(host) else None,
    )


def _making_least_ms(analysis: RankAnalysis) -> float | None:
    """Return what a step takes at the least for its workers to make batches in, if none queues for a CPU.

    None where no workers make them, or the kernel does not count it.
    """
    primary, steps = analysis.primary, len(analysis.kept)
    if primary is None or not primary.description.workers or primary.description.wrapped:
        return None
    explained = analysis.explained(primary)
    awaited = analysis.kept.awaited
    rows = distinct(awaited["number"][awaited["loader"] == primary.number])
    made_ns = explained.made[rows].sum(axis=1)
    least_ns = np.maximum(made_ns - cpu_waits(analysis.rank, explained[rows]).sum(axis=1), 0.0)
    known = ~np.isnan(least_ns)
    if not known.any():
        return None
    return float(least_ns[known].mean()) * len(rows) / steps / primary.description.workers / 1e6


def replayed(analysis: RankAnalysis, run: LoaderRun) -> Replayed:
    """Get the batches of a loader ready for replays without a part of their making."""
    first, awaited = analysis.explained(run).between(0, MOST), analysis.kept.awaited
    measured = distinct(awaited["number"][awaited["loader"] == run.number])
    delays_ns = cpu_waits(analysis.rank, first).sum(axis=1)
    shared = None if analysis.telemetry is None else analysis.telemetry.sampler.shared_cores
    # Ranks that run beside it spare as much: how many do is not asked, all of them may.
    makers = max(1, run.description.workers) * max(1, analysis.rank.world_size or 1)
    return Replayed(first, measured, len(analysis.kept), delays_ns, quicker_by(shared), makers)


def queueing_ms(analysis: RankAnalysis, transport: bool = True) -> float | None:
    """Bound, by a replay, what a step's wait loses where no maker of its batches queues for a CPU.

    `transport`: handing them over, of which no account tells, takes no time either. None: cannot be replayed.
    """
    primary = analysis.primary
    if primary is None or primary.description.wrapped or primary.description.in_order is False:
        return None
    replay = replayed(analysis, primary)
    less = np.nan_to_num(replay.delays_ns)
    return replayed_gain_ms(replay.waits.deliveries, replay.measured, replay.steps, less, transport)


LIBRARY_THREADS = 2.0  # for each CPU that the workers may use
_MOSTLY = 0.5
_WORKED = 0.2  # of the time: threads of the agent and of torch are busy in less of it
_RAN = 0.015  # of the time: those run for less, however long they queue on a busy host
_AS_BUSY = 0.5  # of the worker's other threads
_BUSY_OF_MANY = 0.2  # of the time in zarr's calls: the busiest of its threads has a part of the chunks
_BUSY = 0.4  # of the time asleep: of a pool that takes turns no thread is busy in all of it


class Pool(msgspec.Struct, frozen=True):
    """Threads of one library in the workers, beyond the CPUs that they may use."""

    library: str
    threads: int
    workers: int
    cpus: int


def pool_of(system: System) -> Pool | None:
    """Return the largest pool of the workers that worked; None where CPUs are enough for it.

    A library that is imported alone has no threads yet: workers' other threads were busy. Where
    pyarrow is, NumPy's OpenBLAS is, too; pyarrow decodes by as many threads of its own: those are meant.
    """
    usable = len(system.cpus_usable or [])
    workers = [each for each in system.processes if each.role != "main"]
    counts: Counter[str] = Counter()
    for each in workers:
        for library, count in each.library_threads.items():
            if 1 < count <= (each.threads_peak or 0):
                counts[library] += count
    library, count = max(counts.items(), key=lambda pair: (pair[1], pair[0] == "pyarrow"), default=("", 0))
    busy, delayed = (
        _mean([getattr(each, name) for each in workers])
        for name in ("pool_busy_pct_mean", "pool_delay_pct_mean")
    )
    worked = busy is not None and busy >= _WORKED and (delayed is None or busy - delayed >= _RAN)
    used = _mean([each.cpu_pct_mean for each in workers])
    if worked and busy is not None and delayed is not None and used is not None:
        # Threads that only fetch files, or serve Python's queues, do little beside the worker's own.
        worked = busy - delayed >= _AS_BUSY * (used - (busy - delayed))
    if not usable or count < LIBRARY_THREADS * usable or not worked:
        return None
    return Pool(library, count, len(workers), usable)


def asleep_for_pool(analysis: RankAnalysis, report: RankReport) -> float | None:
    """Return in what share of the samples' making their threads slept for a pool; None: in none of it.

    They slept for most of it, while one of the worker's other threads ran or had no CPU, and mostly had none.
    """
    source = analysis.source or analysis.primary
    workers = [each for each in report.system.processes if each.role != "main"]
    if pool_of(report.system) is None or source is None or not len(analysis.kept):
        return None
    asleep = samples_made(analysis, source)[0]
    delayed, busy = (
        _mean([getattr(each, name) for each in workers])
        for name in ("pool_delay_pct_mean", "pool_busy_pct_mean")
    )
    if asleep is None or asleep < _MOSTLY or delayed is None or busy is None:
        return None
    slept = asleep * _making(analysis)
    return asleep if busy >= _BUSY * slept and delayed >= _MOSTLY * busy else None


def computed_beside(analysis: RankAnalysis, report: RankReport, source: LoaderRun) -> float:
    """How long other threads of the workers compute, as a share of what the samples' own threads sleep.

    By all that the processes computed, also on threads that lived for one call. 0: it is not known. What they
    compute to put samples together, and to send them, is in it.
    """
    workers = [each for each in report.system.processes if each.role != "main"]
    used = _mean([each.cpu_pct_mean for each in workers])
    if used is None or not source.description.workers or source.description.pool or not len(analysis.kept):
        return 0.0
    asleep, on_cpu, _, threaded_cpu = samples_made(analysis, source)
    making = _making(analysis)
    return beside_sleep(used, asleep, (on_cpu or 0.0) + threaded_cpu, making)


def beside_sleep(used: float, asleep: float | None, known: float, making: float) -> float:
    """Of processes that used so much of the time: what is not `known` of the making, by its sleep."""
    slept = (asleep or 0.0) * making
    return max(0.0, used - known * making) / slept if slept > 0 else 0.0


def decoding_without_cpu(analysis: RankAnalysis, report: RankReport) -> float | None:
    """Return in what share of its decoding zarr's threads had no CPU; None: they had, or hardly worked.

    zarr's calls sleep while its threads decode, so the wait for a CPU is in no thread's own account.
    """
    pool, source = pool_of(report.system), analysis.source or analysis.primary
    if pool is None or pool.library != "zarr" or source is None or not len(analysis.kept):
        return None
    workers = [each for each in report.system.processes if each.role != "main"]
    delayed = _mean([each.pool_delay_pct_mean for each in workers])
    busy = _mean([each.pool_busy_pct_mean for each in workers])
    threaded = samples_made(analysis, source)[2]
    if threaded < _MOSTLY or delayed is None or not busy:
        return None
    enough = busy >= _BUSY_OF_MANY * threaded * _making(analysis)
    return min(1.0, delayed / busy) if enough and delayed >= _MOSTLY * busy else None


def samples_made(
    analysis: RankAnalysis, run: LoaderRun, kind: int = KIND_ITEM
) -> tuple[float | None, float | None, float, float]:
    """The shares of the making of a loader's samples in which its thread slept, and in which it computed.

    With another `kind` of spans those of what they are of, such as putting samples together.
    The last two are of libraries that work on threads of their own: their calls, which the first two leave
    out, and in these the CPU time of the process. What such calls waited for a CPU is in none. Of what the
    loop's own thread makes, items that other threads make meanwhile are none. Where a library calls functions
    of the program, these make the samples if the loop's own thread only waits for them.
    """
    called = kind == KIND_ITEM and bool(run.description.library) and analysis.has_callbacks
    called = called and _only_waits(analysis)
    kind = KIND_CALLBACK if called else kind
    inline = not (run.description.workers or run.description.pool or run.description.library)
    totals = np.zeros(5)
    made = run.deliveries[run.deliveries.made]
    makers = made.maker(analysis.rank.main.pid)
    for process in analysis.rank.processes:
        windows = made[makers == process.pid]
        windows = windows[np.lexsort((windows["prepared_ns"], windows["taken_ns"]))]
        spans = process.spans
        items = outermost_of(process, kind)
        items = items[(items["cpu_ns"] >= 0) & (items["run_delay_ns"] >= 0)]
        if inline:
            items = items[np.isin(items["tid"], windows["tid"])]
        if not len(items) or not (called or len(windows)):
            continue
        if not called:
            items = items[holding(windows["taken_ns"], windows["prepared_ns"], items["start_ns"]) >= 0]
        threaded_calls = (spans["kind"] == KIND_READ_PATH) & (spans["run_delay_ns"] < 0)
        calls = spans[outermost(spans, threaded_calls)]
        calls = calls[holder(items, calls["start_ns"], calls["tid"]) >= 0]
        delayed = np.maximum(run_delays(process, calls), 0).sum()
        # The kernel's count may be as old as the span before this one.
        queued = np.clip(items["run_delay_ns"], 0, np.maximum(items["duration_ns"] - items["cpu_ns"], 0))
        totals += [
            *(items["duration_ns"].sum(), items["cpu_ns"].sum(), queued.sum() + delayed),
            *(calls["duration_ns"].sum() - delayed, calls["cpu_ns"].sum()),
        ]
    whole, cpu, delayed, threaded, threaded_cpu = totals.tolist()
    if not whole:
        return None, None, 0.0, 0.0
    asleep, on_cpu = whole - threaded - cpu - delayed, cpu - threaded_cpu
    return max(0.0, asleep / whole), max(0.0, on_cpu / whole), threaded / whole, threaded_cpu / whole


def _only_waits(analysis: RankAnalysis) -> bool:
    """Whether the loop's own thread mostly sleeps while it takes samples: what it calls makes none."""
    items = outermost_of(analysis.rank.main, KIND_ITEM)
    items = items[(items["cpu_ns"] >= 0) & (items["run_delay_ns"] >= 0)]
    whole_ns = int(items["duration_ns"].sum())
    asleep_ns = whole_ns - int(items["cpu_ns"].sum()) - int(items["run_delay_ns"].sum())
    return 2 * asleep_ns >= whole_ns


def _making(analysis: RankAnalysis) -> float:
    """Return in what share of the measured time a worker makes a sample, the mean of all workers."""
    start_ns, end_ns = int(analysis.kept["start_ns"][0]), int(analysis.kept["end_ns"][-1])
    total = 0
    for process in analysis.rank.workers:
        items = outermost_of(process, KIND_ITEM)
        inside = (items["start_ns"] >= start_ns) & (items["start_ns"] < end_ns)
        total += int(items["duration_ns"][inside].sum())
    return total / max(1, end_ns - start_ns) / max(1, len(analysis.rank.workers))


def _mean(percents: list[float | None]) -> float | None:
    known = [each / 100 for each in percents if each is not None]  # of one that hardly lived it is not
    return sum(known) / len(known) if known else None
