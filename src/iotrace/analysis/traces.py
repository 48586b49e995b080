"""A report from bare traces of torch.profiler, one rank per file: what they hold, and null for the rest."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
from msgspec.structs import replace

from iotrace.analysis.device.accelerator import KERNEL_GAP_US, DataWaits
from iotrace.analysis.device.activity import Activity
from iotrace.analysis.device.advice import Facts, device_advice
from iotrace.analysis.device.compute import Compute, compared_trace, compute_of
from iotrace.analysis.device.imbalance import imbalance_of
from iotrace.analysis.device.one_job import RankOfJob, why_not_compared
from iotrace.analysis.intervals import Coverage
from iotrace.analysis.loop.measured import summarise
from iotrace.analysis.results import (
    SCHEMA_VERSION,
    ClockInfo,
    DataWait,
    Excluded,
    Gpu,
    Memory,
    PhasesMs,
    RankReport,
    Recommendation,
    Report,
    SessionInfo,
    Steps,
    System,
    unknown,
)
from iotrace.analysis.verdict.trust import trust_of_traces
from iotrace.analysis.verdict.verdict import verdict_of
from iotrace.analysis.wait.data_wait import MODERATELY_PERCENT, bound_fraction, verdict
from iotrace.session.manifest import NotCaptured
from iotrace.sources.kineto.kinds import Kind, is_data_wait, is_unknown
from iotrace.sources.kineto.trace import Column, KinetoTrace

_NO_STEPS = "it has no ProfilerStep ranges: all of it is taken for one step"
_WITHOUT_WORKERS = "_SingleProcessDataLoaderIter"  # torch's name of what delivers such batches


class _TraceRank(msgspec.Struct, frozen=True):
    """A trace with the number of its rank; `starts` and `ends` are those of its steps, or of all of it."""

    number: int
    trace: KinetoTrace
    compute: Compute
    starts: Column
    ends: Column

    @property
    def host(self) -> str | None:
        name = self.trace.document.get("host_name")
        return name if isinstance(name, str) and name else None


def analyse_traces(traces: Sequence[KinetoTrace], kernel_gap_us: float = KERNEL_GAP_US) -> Report:
    """Make the report of `traces`; steps are their ProfilerStep ranges, all of them measured.

    A trace without such ranges is one step.
    """
    return report_of_computed([computed(trace, kernel_gap_us) for trace in traces])


def computed(trace: KinetoTrace, kernel_gap_us: float = KERNEL_GAP_US) -> Compute:
    """Derive the figures of one trace, which need nothing of the others: another process may do it."""
    return compute_of([Activity(trace)], kernel_gap_us=kernel_gap_us, whole=True)


def report_of_computed(found: Sequence[Compute]) -> Report:
    """Make the report of traces by their figures, in the order of the traces."""
    traces = [compute.activities[0].trace for compute in found]
    ranks = []
    numbered = zip(_numbers(traces), traces, found, strict=True)
    for number, trace, compute in sorted(numbered, key=lambda each: each[0]):
        (starts, ends), _ = compute.activities[0].step_spans()
        if not len(starts):
            starts, ends = compute.activities[0].whole()
        ranks.append(_TraceRank(number, trace, compute, starts, ends))
    about = unknown(
        SessionInfo,
        failures=[],
        path=_shared_path([str(trace.path) for trace in traces]),
        argv=[],
        state="ended",
        ended=True,
        complete=not any(trace.problems for trace in traces),
    )
    results = [_rank(rank) for rank in ranks]
    world_size = traces[0].world_size if len({trace.world_size for trace in traces}) == 1 else None
    apart = why_not_compared([_of_job(trace) for trace in traces])
    compared = [compared_trace(rank.number, rank.compute) for rank in ranks]
    imbalance = imbalance_of([one for one in compared if one], world_size) if apart is None else None
    stepped = all(rank.compute.activities[0].steps.any() for rank in ranks)
    trust = trust_of_traces(results, _recorded(traces), about.complete, stepped, apart)
    advice = [item for rank, result in zip(ranks, results, strict=True) for item in _advice(rank, result)]
    return Report(
        schema_version=SCHEMA_VERSION,
        session=about,
        verdict=verdict_of(about, results, imbalance, advice, trust),
        ranks=results,
        processes=[],
        imbalance=imbalance,
        recommendations=advice,
        not_captured=_not_captured(traces, apart),
        clocks=[_clock(rank) for rank in ranks],
    )


def _of_job(trace: KinetoTrace) -> RankOfJob:
    ends = trace.span_ns() if trace.base_ns is not None else None
    host = np.flatnonzero(np.isin(trace.kinds, (Kind.CPU_OP, Kind.RUNTIME, Kind.ANNOTATION)))
    process = trace.threads[trace.events.thread[host[0]]][0] if len(host) else None
    return RankOfJob(trace.path.name, trace.rank, trace.world_size, process, *(ends or (None, None)))


def _shared_path(paths: Sequence[str]) -> str:
    """Choose the only path, or the directory that all of `paths`, relative or absolute, lie below."""
    if len(paths) == 1:
        return paths[0]
    return os.path.commonpath([os.path.dirname(os.path.abspath(path)) for path in paths])


def _numbers(traces: Sequence[KinetoTrace]) -> list[int]:
    """Take the ranks that the traces name, where each names one of its own; else their order."""
    known = [trace.rank for trace in traces if trace.rank is not None]
    return known if len(set(known)) == len(traces) else list(range(len(traces)))


def _clock(rank: _TraceRank) -> ClockInfo:
    return ClockInfo(
        source=f"torch.profiler, rank {rank.number}",
        host=rank.host,
        # Their machine is not known; their times are taken for CLOCK_REALTIME of one machine.
        kind="none" if rank.trace.base_ns is None else "assumed",
        offset_ns=0,
        bound_ns=None,
        set=[],
    )


def _rank(rank: _TraceRank) -> RankReport:
    compute = rank.compute
    return unknown(
        RankReport,
        rank=rank.number,
        host=rank.host,
        world_size=rank.trace.world_size,
        incarnation=0,
        steps=_steps(rank),
        data_wait=_data_wait(rank),
        stages=[],
        phases_ms=unknown(PhasesMs),
        loaders=[],
        regions=[],
        breakdown_ms=compute.breakdown_ms,
        breakdown_raw_ms=compute.breakdown_raw_ms,
        breakdown_steps=compute.breakdown_steps,
        accelerator=compute.accelerator,
        operators=compute.operators,
        slow_steps=compute.slow_steps,
        file_groups=[],
        system=unknown(System, gpus=_gpus(rank.trace), processes=[]),
        models=[],
        memory=_memory(rank.trace),
        snapshots=[],
        gain=[],
        gain_withheld="a trace holds none of the loader's batches",
    )


def _memory(trace: KinetoTrace) -> Memory | None:
    if not len(trace.memory.bytes):
        return None
    from iotrace.analysis.program.memory import memory_of

    return memory_of([trace])


def _steps(rank: _TraceRank) -> Steps:
    """Sum up the steps; of a trace that is one for want of any, how many a second is unknown."""
    durations_ns, excluded = rank.ends - rank.starts, Excluded(first=0, warmup=0, profiled=0)
    found = summarise(durations_ns, durations_ns[:0], excluded, len(durations_ns))
    if rank.compute.activities[0].steps.any():
        return found
    return replace(found, per_second=None, unknown_why=_NO_STEPS)


def _gpus(trace: KinetoTrace) -> list[Gpu]:
    """List the devices that a trace names: nothing else of them was measured."""
    found = []
    for index, device in enumerate(trace.devices):
        memory, name = device.get("totalGlobalMem"), str(device.get("name", "unknown"))
        size = memory if isinstance(memory, int) else None
        about = {"index": index, "uuid": "", "name": name, "memory_total_bytes": size}
        found.append(unknown(Gpu, throttle_reasons={}, **about))
    return found


def _data_wait(rank: _TraceRank) -> DataWait:
    starts, ends = rank.starts, rank.ends
    count, total_ns = len(starts), int((ends - starts).sum())
    known: dict[str, Any] = {"causes_ms": {}, "by_loader": [], "files": [], "worst_batches": []}
    (waits,) = rank.compute.waits
    # A trace without any such range may be of a program with another loader.
    if count and len(waits.starts_ns):
        raw_ns = int(Coverage(waits.starts_ns, waits.ends_ns).within(starts, ends).sum())
        exposed_ns, source = _exposed(rank, waits, raw_ns)
        known["raw_ms"] = raw_ns / count / 1e6
        if total_ns:
            judged_ns = raw_ns if exposed_ns is None else exposed_ns
            known.update(raw_wait_fraction=raw_ns / total_ns, verdict=verdict(judged_ns / total_ns))
        if exposed_ns is not None:
            known.update(exposed_ms=exposed_ns / count / 1e6, exposed_source=source, exposed_steps=count)
            known["stall_fraction"] = exposed_ns / total_ns if total_ns else None
    return unknown(DataWait, **known)


def _advice(rank: _TraceRank, result: RankReport) -> list[Recommendation]:
    """Advise on the data wait, then on what else the device waits for."""
    advice = _workers(rank, result)
    if result.accelerator is not None:
        (waits,), (activity,) = rank.compute.waits, rank.compute.activities
        covered = Coverage(waits.starts_ns, waits.ends_ns)
        facts = Facts(rank.number, activity, result.accelerator, rank.starts, rank.ends, covered)
        advice += device_advice(facts)
    return advice


def _workers(rank: _TraceRank, result: RankReport) -> list[Recommendation]:
    """Advise workers where the trace shows that the loop waits for a DataLoader without any."""
    wait = result.data_wait
    if wait.raw_ms is None or 100 * (bound_fraction(wait) or 0.0) < MODERATELY_PERCENT:
        return []
    loaders = [name for name in rank.trace.names if is_data_wait(name)]
    if not loaders or not all(_WITHOUT_WORKERS in name for name in loaders):
        return []
    return [
        Recommendation(
            id="no-workers",
            severity="high",
            text=f"the loop waits {wait.raw_ms:.1f} ms a step for a DataLoader without workers: give it some",
            evidence={"raw_ms": wait.raw_ms},
            gain_ms_per_step=wait.raw_ms if wait.exposed_ms is None else wait.exposed_ms,
            remedy="DataLoader(num_workers=2) or more: it has none",
            fix="no-workers",
            rank=rank.number,
        )
    ]


def _exposed(rank: _TraceRank, waits: DataWaits, raw_ns: int) -> tuple[int | None, str]:
    """Find the wait in steps during which the device did nothing; None where it was not recorded."""
    if not rank.compute.has_device:
        return (None, "") if rank.trace.devices else (raw_ns, "cpu")
    busy = Coverage(*rank.compute.activities[0].busy())
    starts, ends = (waits.starts_ns, busy.starts), (waits.ends_ns, busy.ends)
    either = Coverage(np.concatenate(starts), np.concatenate(ends))
    bounds = rank.starts, rank.ends
    return int((either.within(*bounds) - busy.within(*bounds)).sum()), "kernels"


def _recorded(traces: Sequence[KinetoTrace]) -> list[str]:
    """Name what the profiler recorded beside times, in all of `traces`."""
    keys = {"shapes": "record_shapes", "stacks": "with_stack"}
    return [what for what, key in keys.items() if all(trace.document.get(key) for trace in traces)]


def _not_captured(traces: Sequence[KinetoTrace], apart: str | None) -> list[NotCaptured]:
    what, why = "causes of the data wait, files, I/O", "bare traces of torch.profiler hold none"
    found = [NotCaptured(what, why, "record with: iotrace run -- CMD")]
    if apart is not None:
        found.append(NotCaptured("the ranks beside each other", apart, "give the traces of one job's ranks"))
    for trace in traces:
        name = trace.path.name
        found += [NotCaptured(f"part of {name}", problem) for problem in trace.problems]
        if not trace.named(lambda name: name.startswith("ProfilerStep")).any():
            found.append(NotCaptured(f"steps of {name}", _NO_STEPS, "call profiler.step()"))
        found += _unknown_events(trace)
    return found


def _unknown_events(trace: KinetoTrace) -> list[NotCaptured]:
    """Name the categories of events that no figure counts; a device that is not known may have left them."""
    lasted = np.bincount(trace.events.category[~trace.events.instant], minlength=len(trace.categories))
    unknown = [
        f"{name} ({count})"
        for name, count in zip(trace.categories, lasted.tolist(), strict=False)
        if count and is_unknown(name)
    ]
    if not unknown:
        return []
    what = f"events of {trace.path.name} that no figure counts"
    return [NotCaptured(what, f"their categories are not known here: {', '.join(unknown)}", "")]
