"""A report from bare traces of torch.profiler, one rank per file: what they hold, and null for the rest."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from iotrace.analysis.device.activity import Activity
from iotrace.analysis.device.compute import Compute, compare, compute_of
from iotrace.analysis.device.idle import KERNEL_GAP_US
from iotrace.analysis.intervals import Coverage
from iotrace.analysis.results import (
    SCHEMA_VERSION,
    ClockInfo,
    DataWait,
    Excluded,
    Gpu,
    RankReport,
    Report,
    SessionInfo,
    Steps,
    System,
)
from iotrace.analysis.thresholds import verdict
from iotrace.session.manifest import NotCaptured
from iotrace.sources.kineto.trace import KinetoTrace

_KNOWN_OF_DEVICES = frozenset({"index", "uuid", "name", "memory_total_bytes", "throttle_reasons"})


def analyse_traces(traces: Sequence[KinetoTrace], kernel_gap_us: float = KERNEL_GAP_US) -> Report:
    """The report of `traces`; steps are their ProfilerStep ranges, all of them measured."""
    found = [
        (number, trace, compute_of([Activity(trace)], kernel_gap_us=kernel_gap_us))
        for number, trace in zip(_numbers(traces), traces, strict=True)
    ]
    found.sort(key=lambda one: one[0])
    paths = [str(trace.path) for trace in traces]
    sizes = {trace.world_size for trace in traces}
    return Report(
        schema_version=SCHEMA_VERSION,
        session=SessionInfo(
            path=paths[0] if len(paths) == 1 else _directory_of(paths),
            argv=[],
            exit_code=None,
            ended=True,
            complete=not any(trace.problems for trace in traces),
            iotrace_version=None,
        ),
        ranks=[_rank(number, trace, compute) for number, trace, compute in found],
        processes=[],
        imbalance=compare(
            [(number, compute) for number, _, compute in found], sizes.pop() if len(sizes) == 1 else None
        ),
        recommendations=[],
        not_captured=_not_captured(traces),
        clocks=[
            ClockInfo(
                source=f"torch.profiler, rank {number}",
                host=_host(trace),
                # Their machine is not known; their stamps are taken for CLOCK_REALTIME of one machine.
                kind="none" if trace.base_ns is None else "assumed",
                offset_ns=0,
                bound_ns=None,
                set=[],
            )
            for number, trace, _ in found
        ],
    )


def _directory_of(paths: Sequence[str]) -> str:
    """Find the directory that all of `paths`, relative or absolute, lie below."""
    return os.path.commonpath([os.path.dirname(os.path.abspath(path)) for path in paths])


def _numbers(traces: Sequence[KinetoTrace]) -> list[int]:
    """The ranks that the traces name, where each names one of its own; else their order."""
    told = [trace.rank for trace in traces]
    known = [rank for rank in told if rank is not None]
    return known if len(set(known)) == len(told) else list(range(len(told)))


def _host(trace: KinetoTrace) -> str | None:
    name = trace.document.get("host_name")
    return name if isinstance(name, str) and name else None


def _rank(number: int, trace: KinetoTrace, compute: Compute) -> RankReport:
    (window,) = compute.activities
    (starts, ends), _ = window.step_spans()
    return RankReport(
        rank=number,
        host=_host(trace),
        local_rank=None,
        world_size=trace.world_size,
        incarnation=0,
        steps=_steps(ends - starts),
        data_wait=_data_wait(compute, trace),
        loaders=[],
        regions=[],
        breakdown_ms=compute.breakdown_ms,
        breakdown_raw_ms=compute.breakdown_raw_ms,
        breakdown_steps=compute.breakdown_steps,
        accelerator=compute.accelerator,
        io=None,
        system=System(
            gpus=[_gpu(index, device) for index, device in enumerate(trace.devices)],
            cpu_pct_mean=None,
            rss_peak_bytes=None,
            cpus=None,
            processes=[],
            host=None,
        ),
        overhead=None,
    )


def _gpu(index: int, device: dict[str, Any]) -> Gpu:
    """A device that a trace names: nothing else of it was measured."""
    memory = device.get("totalGlobalMem")
    unknown: dict[str, Any] = dict.fromkeys(
        field for field in Gpu.__struct_fields__ if field not in _KNOWN_OF_DEVICES
    )
    return Gpu(
        index=index,
        uuid="",
        name=str(device.get("name", "unknown")),
        memory_total_bytes=memory if isinstance(memory, int) else None,
        throttle_reasons={},
        **unknown,
    )


def _steps(durations_ns: np.ndarray) -> Steps:
    none = not len(durations_ns)
    ms = durations_ns / 1e6
    return Steps(
        count=len(ms),
        excluded=Excluded(first=0, warmup=0, profiled=0),
        mean_ms=None if none else float(ms.mean()),
        p50_ms=None if none else float(np.percentile(ms, 50)),
        p95_ms=None if none else float(np.percentile(ms, 95)),
        per_second=None if none else len(ms) / float(ms.sum() / 1e3),
        samples_per_second=None,
    )


def _data_wait(compute: Compute, trace: KinetoTrace) -> DataWait:
    (window,), (waits,) = compute.activities, compute.waits
    (starts, ends), _ = window.step_spans()
    count, total_ns = len(starts), int((ends - starts).sum())
    # A trace without any such range may be of a program with another loader.
    known = count > 0 and len(waits.starts_ns) > 0
    waiting = Coverage(waits.starts_ns, waits.ends_ns)
    raw_ns = int(waiting.within(starts, ends).sum())
    exposed_ns, source = _exposed(compute, trace, raw_ns)
    fraction = raw_ns / total_ns if known and total_ns else None
    exposed = known and exposed_ns is not None
    return DataWait(
        raw_ms=raw_ns / count / 1e6 if known else None,
        exposed_ms=exposed_ns / count / 1e6 if exposed and exposed_ns is not None else None,
        exposed_source=source if exposed else None,
        exposed_steps=count if exposed else None,
        raw_wait_fraction=fraction,
        stall_fraction=exposed_ns / total_ns if exposed and exposed_ns is not None and total_ns else None,
        verdict=None if fraction is None else verdict(fraction),
        causes_ms={},
        too_few_workers=None,
        behind_ready_ms=None,
        files=[],
        worst_batches=[],
    )


def _exposed(compute: Compute, trace: KinetoTrace, raw_ns: int) -> tuple[int | None, str]:
    """The wait in steps during which the device did nothing; unknown where the device was not recorded."""
    (window,), (waits,) = compute.activities, compute.waits
    (starts, ends), _ = window.step_spans()
    if compute.has_device:
        busy_starts, busy_ends = window.busy()
        either = Coverage(
            np.concatenate((waits.starts_ns, busy_starts)), np.concatenate((waits.ends_ns, busy_ends))
        )
        busy = Coverage(busy_starts, busy_ends)
        return int((either.within(starts, ends) - busy.within(starts, ends)).sum()), "kernels"
    return (None, "") if trace.devices else (raw_ns, "cpu")


def _not_captured(traces: Sequence[KinetoTrace]) -> list[NotCaptured]:
    found = [
        NotCaptured("causes of the data wait, files, I/O", "bare traces of torch.profiler hold none", _RUN)
    ]
    for trace in traces:
        name = trace.path.name
        found += [NotCaptured(f"part of {name}", problem) for problem in trace.problems]
        if not trace.named(lambda name: name.startswith("ProfilerStep")).any():
            found.append(
                NotCaptured(f"steps of {name}", "it has no ProfilerStep ranges", "call profiler.step()")
            )
    return found


_RUN = "record with: iotrace run -- CMD"
