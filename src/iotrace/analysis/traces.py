"""A report from bare traces of torch.profiler, one rank per file: what they hold, and null for the rest."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
from msgspec.structs import replace

from iotrace.analysis.device.accelerator import KERNEL_GAP_US, DataWaits
from iotrace.analysis.device.activity import Activity
from iotrace.analysis.device.collectives import RankOfJob, RankTrace, ranks_missing, why_not_compared
from iotrace.analysis.device.compute import Compute, compared_trace, compute_of, memory_in
from iotrace.analysis.intervals import Coverage, union
from iotrace.analysis.loop.measured import summarise
from iotrace.analysis.results import (
    SCHEMA_VERSION,
    ClockInfo,
    DataWait,
    Excluded,
    Gpu,
    Imbalance,
    RankReport,
    Recommendation,
    Report,
    SessionInfo,
    Steps,
    System,
)
from iotrace.analysis.rules.advice import advice_of, culprits_of
from iotrace.analysis.rules.facts.capture import missing
from iotrace.analysis.rules.model import find_all, unasked
from iotrace.analysis.verdict.trust import trust_of_traces
from iotrace.analysis.verdict.verdict import verdict_of
from iotrace.analysis.wait.data_wait import MODERATELY_PERCENT, bound_fraction, verdict
from iotrace.session.manifest import NotCaptured
from iotrace.sources.kineto.kinds import Kind, is_unknown
from iotrace.sources.kineto.trace import Column, KinetoTrace

if TYPE_CHECKING:
    from iotrace.analysis.rules.facts.job import JobFacts

_NO_STEPS = "it has no ProfilerStep ranges: all of it is taken for one step"
_UPDATES = "it has no ProfilerStep ranges: a step ends as Optimizer.step does"
_RECORDED = {"shapes": "record_shapes", "stacks": "with_stack"}


class _Trace(msgspec.Struct, frozen=True):
    """A trace with its figures; `starts` and `ends` are those of its steps, or of all of it."""

    trace: KinetoTrace
    compute: Compute
    starts: Column
    ends: Column


class TracePart(msgspec.Struct, frozen=True):
    """A trace's part of a report, which is made by itself: the trace is needed no more.

    Which rank it is, all traces say together: `report`, `advice` and `compared` are of rank 0 until then.
    """

    path: str
    of_job: RankOfJob
    report: RankReport
    advice: list[Recommendation]
    compared: RankTrace | None
    clock_kind: str
    recorded: list[str]
    not_captured: list[NotCaptured]
    unasked: list[NotCaptured]
    stepped: bool
    complete: bool


def analyse_traces(
    traces: Iterable[KinetoTrace], kernel_gap_us: float = KERNEL_GAP_US, of_steps: bool = False
) -> Report:
    """Make the report of `traces`; steps are their ProfilerStep ranges, all of them measured.

    A trace without such ranges is one step. Of an iterator one trace is held at a time. `of_steps`: kernels
    and operators are those of the steps alone.
    """
    return report_of_parts([trace_part(trace, kernel_gap_us, of_steps) for trace in traces])


def trace_part(trace: KinetoTrace, kernel_gap_us: float = KERNEL_GAP_US, of_steps: bool = False) -> TracePart:
    """Make what a report says of one trace, which needs nothing of the others: another process may do it.

    `of_steps`: kernels and operators are those of the steps alone.
    """
    activity = Activity(trace, by_updates=True)
    counted = [_in_steps(activity)] if of_steps else None
    compute = compute_of([activity], kernel_gap_us=kernel_gap_us, whole=True, counted=counted)
    (starts, ends), _ = activity.step_spans()
    if not len(starts):
        starts, ends = activity.whole()
    one = _Trace(trace, compute, starts, ends)
    result = _rank(one)
    return TracePart(
        path=str(trace.path),
        of_job=_of_job(trace),
        report=result,
        advice=_advice(one, result),
        compared=compared_trace(0, compute),
        # Their machine is not known; their times are taken for CLOCK_REALTIME of one machine.
        clock_kind="none" if trace.base_ns is None else "assumed",
        recorded=_recorded(trace, result),
        not_captured=_not_captured(activity),
        unasked=unasked(),
        stepped=bool(activity.step_spans()[1]),
        complete=not trace.problems,
    )


def _in_steps(activity: Activity) -> Activity:
    """Leave out what was launched or ran outside of the steps; nothing where there are none.

    Where most launches are known, what has none was launched before the trace, for an earlier step.
    """
    events = activity.trace.events
    starts, ends = union(*activity.step_spans()[0])
    if not len(starts):
        return activity
    launched, device = activity.launch >= 0, activity.device
    tells = 2 * int(launched[device].sum()) >= int(device.sum())
    begun = np.where(device, activity.launched_ns(np.arange(len(events)), events.start_ns), events.start_ns)
    at = np.searchsorted(starts, begun, side="right") - 1
    inside = (at >= 0) & (begun < ends[np.maximum(at, 0)]) & (launched | ~(device & tells))
    counted = device | activity.operators | (activity.kinds == Kind.RUNTIME)
    return Activity(replace(activity.trace, events=events.select(inside | ~counted)), activity.by_updates)


def _job(ranks: list[RankReport], imbalance: Imbalance) -> JobFacts:
    """Imported where several ranks are compared."""
    from iotrace.analysis.rules.facts.job import job_facts

    return job_facts(ranks, imbalance, None)


def report_of_parts(found: Sequence[TracePart]) -> Report:
    """Make the report of traces by their parts, in the order of the traces."""
    about = SessionInfo(
        failures=[],
        path=_shared_path([part.path for part in found]),
        argv=[],
        state="ended",
        ended=True,
        complete=all(part.complete for part in found),
    )
    ranks = sorted(zip(_numbers(found), found, strict=True), key=lambda each: each[0])
    results = [replace(part.report, rank=number) for number, part in ranks]
    sizes = {part.of_job.world_size for part in found}
    apart = why_not_compared([part.of_job for part in found])
    compared = [replace(part.compared, rank=number) for number, part in ranks if part.compared]
    imbalance = job = None
    if apart is None and len(compared) > 1:
        from iotrace.analysis.device.imbalance import imbalance_of

        imbalance = imbalance_of(compared, sizes.pop() if len(sizes) == 1 else None)
        job = None if imbalance is None else _job(results, imbalance)
    stepped = all(part.stepped for part in found)
    recorded = [what for what in _RECORDED if all(what in part.recorded for part in found)]
    trust = trust_of_traces(results, recorded, about.complete, stepped, apart)
    advice = [replace(item, rank=number) for number, part in ranks for item in part.advice]
    lacking = missing(
        bare_traces=True,
        not_compared=apart,
        ranks_missing=None if apart is not None else ranks_missing([part.of_job for part in found]) or None,
    )
    return Report(
        schema_version=SCHEMA_VERSION,
        session=about,
        verdict=verdict_of(about, results, job, advice, trust),
        ranks=results,
        processes=[],
        imbalance=imbalance,
        culprits=[] if job is None else culprits_of(find_all("job", job)),
        recommendations=advice,
        not_captured=[
            *lacking,
            *(item for part in found for item in part.not_captured),
            *dict.fromkeys(item for part in found for item in part.unasked),
        ],
        clocks=[_clock(number, part) for number, part in ranks],
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


def _numbers(found: Sequence[TracePart]) -> list[int]:
    """Take the ranks that the traces name, free numbers for the others; where two name one, their order."""
    known = [part.of_job.rank for part in found if part.of_job.rank is not None]
    if len({*known}) < len(known):
        return list(range(len(found)))
    free = iter(sorted({*range(len(found))} - {*known}))
    return [next(free) if part.of_job.rank is None else part.of_job.rank for part in found]


def _clock(number: int, part: TracePart) -> ClockInfo:
    return ClockInfo(
        source=f"torch.profiler, rank {number}",
        host=part.report.host,
        kind=part.clock_kind,
        offset_ns=0,
        bound_ns=None,
        set=[],
    )


def _rank(rank: _Trace) -> RankReport:
    compute, host = rank.compute, rank.trace.document.get("host_name")
    return RankReport(
        rank=0,
        host=host if isinstance(host, str) and host else None,
        world_size=rank.trace.world_size,
        steps=_steps(rank),
        data_wait=_data_wait(rank),
        breakdown_ms=compute.breakdown_ms,
        breakdown_raw_ms=compute.breakdown_raw_ms,
        breakdown_steps=compute.breakdown_steps,
        accelerator=compute.accelerator,
        operators=compute.operators,
        slow_steps=compute.slow_steps,
        system=System(gpus=_gpus(rank.trace)),
        memory=memory_in([rank.trace]),
        gain_withheld="a trace holds none of the loader's batches",
    )


def _steps(rank: _Trace) -> Steps:
    """Sum up the steps; of a trace that is one for want of any, how many a second is unknown."""
    durations_ns, excluded = rank.ends - rank.starts, Excluded(first=0, warmup=0, profiled=0)
    found = summarise(durations_ns, durations_ns[:0], excluded, len(durations_ns))
    if rank.compute.activities[0].step_spans()[1]:
        return found
    return replace(found, per_second=None, unknown_why=_NO_STEPS)


def _gpus(trace: KinetoTrace) -> list[Gpu]:
    """List the devices that a trace names: nothing else of them was measured."""
    found = []
    for index, device in enumerate(trace.devices):
        memory, name = device.get("totalGlobalMem"), str(device.get("name", "unknown"))
        size = memory if isinstance(memory, int) else None
        found.append(Gpu(index=index, uuid="", name=name, memory_total_bytes=size))
    return found


def _data_wait(rank: _Trace) -> DataWait:
    starts, ends = rank.starts, rank.ends
    count, total_ns = len(starts), int((ends - starts).sum())
    known: dict[str, Any] = {}
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
    return DataWait(**known)


def _advice(rank: _Trace, result: RankReport) -> list[Recommendation]:
    """Advise on the data wait, then on what else the device waits for."""
    wait = result.data_wait
    waits = 100 * (bound_fraction(wait) or 0.0) >= MODERATELY_PERCENT
    if (not waits and rank.compute.accelerator is None) or "xplane" in rank.trace.document:
        return []  # what is advised are settings of torch, which JAX and TensorFlow lack
    from iotrace.analysis.rules.facts.device import DeviceFacts, device_facts, loads_itself

    facts = device_facts(rank.compute, whole=True) or DeviceFacts()
    if waits and loads_itself(rank.trace):
        facts = replace(facts, wait_ms=wait.raw_ms, exposed_wait_ms=wait.exposed_ms)
    return advice_of(find_all("device", facts), rank=0)


def _exposed(rank: _Trace, waits: DataWaits, raw_ns: int) -> tuple[int | None, str]:
    """Find the wait in steps during which the device did nothing; None where it was not recorded."""
    if not rank.compute.has_device:
        return (None, "") if rank.trace.devices else (raw_ns, "cpu")
    busy = Coverage(*rank.compute.activities[0].busy())
    starts, ends = (waits.starts_ns, busy.starts), (waits.ends_ns, busy.ends)
    either = Coverage(np.concatenate(starts), np.concatenate(ends))
    bounds = rank.starts, rank.ends
    return int((either.within(*bounds) - busy.within(*bounds)).sum()), "kernels"


def _recorded(trace: KinetoTrace, result: RankReport) -> list[str]:
    """Name what the profiler recorded beside times: as the trace says, or as its events show."""
    shapes = result.accelerator is not None and bool(result.accelerator.shapes)
    shown = {"shapes": shapes, "stacks": bool((trace.kinds == Kind.PYTHON).any())}
    return [what for what, key in _RECORDED.items() if trace.document.get(key) or shown[what]]


def _not_captured(activity: Activity) -> list[NotCaptured]:
    trace, name = activity.trace, activity.trace.path.name
    found = [each for problem in trace.problems for each in missing(whose=name, damage=problem)]
    if not trace.named(lambda name: name.startswith("ProfilerStep")).any():
        why = _UPDATES if activity.step_spans()[1] else _NO_STEPS
        found += missing(whose=name, no_steps=why)
    return [*found, *_unknown_events(trace)]


def _unknown_events(trace: KinetoTrace) -> Iterator[NotCaptured]:
    """Name the categories of events that no figure counts; a device that is not known may have left them."""
    lasted = np.bincount(trace.events.category[~trace.events.instant], minlength=len(trace.categories))
    unknown = [
        f"{name} ({count})"
        for name, count in zip(trace.categories, lasted.tolist(), strict=False)
        if count and is_unknown(name)
    ]
    yield from missing(whose=trace.path.name, unknown_events=unknown)
