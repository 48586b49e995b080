"""A session's report: every figure of every rank, from columns to results."""

from __future__ import annotations

from collections import defaultdict

import numpy as np

from iotrace.analysis.advice import recommend
from iotrace.analysis.batches import Delivery, LoaderRun, loaders_of
from iotrace.analysis.compute import Compute, Exposure, compare, compute_of, exposure_of
from iotrace.analysis.exposed import exposed_wait
from iotrace.analysis.idle import KERNEL_GAP_US
from iotrace.analysis.io import io_of
from iotrace.analysis.losses import losses, not_captured
from iotrace.analysis.overhead import overhead_of
from iotrace.analysis.regions import regions_of
from iotrace.analysis.results import (
    SCHEMA_VERSION,
    ClockInfo,
    DataWait,
    FileCost,
    LoaderResult,
    ProcessInfo,
    RankReport,
    Report,
    SessionInfo,
    WorstBatch,
)
from iotrace.analysis.steps import Step, loop_of, measured, profiled_intervals, summarise
from iotrace.analysis.system import system_of
from iotrace.analysis.verdicts import MODERATELY_PERCENT, verdict
from iotrace.analysis.waits import CAUSES, Explained, behind_ready_ns, explain
from iotrace.sources.records import Process, Tick
from iotrace.sources.session import Rank, Session, rank_of

_WORST_BATCHES = 5
_CORES_FREE = 0.9  # "the cores allow more" while less than this share of them is busy


def analyse(session: Session, kernel_gap_us: float = KERNEL_GAP_US) -> Report:
    """Everything that `iotrace report` says of `session`."""
    found = [_rank(session, rank, kernel_gap_us) for rank in session.ranks]
    ranks = [rank for rank, _ in found]
    recommendations = [item for rank in ranks for item in recommend(rank)]
    # Of a restarted job the ranks of its last start are compared.
    last = max((rank.incarnation for rank, compute in found if compute.windows), default=0)
    compared = [(rank.rank, compute) for rank, compute in found if rank.incarnation == last]
    return Report(
        schema_version=SCHEMA_VERSION,
        session=SessionInfo(
            path=str(session.path),
            argv=session.manifest.argv,
            exit_code=session.exit_code,
            ended=session.ended,
            complete=session.ended and not losses(session),
            iotrace_version=session.manifest.iotrace_version,
        ),
        ranks=ranks,
        processes=[_process(session, process) for process in session.processes],
        imbalance=compare(compared, ranks[0].world_size if ranks else None),
        recommendations=recommendations,
        not_captured=not_captured(session),
        clocks=_clocks(session),
    )


def _process(session: Session, process: Process) -> ProcessInfo:
    identity = process.identity
    return ProcessInfo(
        pid=process.pid,
        ppid=identity.ppid,
        host=process.host,
        role=session.role_of(process),
        rank=rank_of(process)[0],
        local_rank=identity.local_rank,
        incarnation=identity.incarnation,
        start_method=None if identity.role == "main" else identity.role,
        python=identity.python,
    )


def _rank(session: Session, rank: Rank, kernel_gap_us: float) -> tuple[RankReport, Compute]:
    loaders = loaders_of(rank)
    loop = loop_of(rank, loaders)
    primary = loop.primary
    workers = primary.description.workers if primary else 0
    kept, excluded = measured(loop.steps, workers, profiled_intervals(rank.main))
    explained = explain(session, rank, primary.deliveries) if primary else []
    steps = summarise(kept, excluded)
    cpu_percent = _cpu_percent(rank, kept)
    compute = compute_of(rank.main.windows.traces, explained, loop.steps, kernel_gap_us)
    exposure = exposure_of(compute, loop.steps)
    report = RankReport(
        rank=rank.number,
        host=rank.main.host,
        local_rank=rank.main.identity.local_rank,
        world_size=rank.world_size,
        incarnation=rank.incarnation,
        steps=steps,
        data_wait=_data_wait(session, primary, kept, explained, cpu_percent, exposure),
        loaders=[_loader(loader, loader is primary) for loader in loaders],
        regions=regions_of(rank, kept, explained),
        breakdown_ms=compute.breakdown_ms,
        breakdown_raw_ms=compute.breakdown_raw_ms,
        breakdown_steps=compute.breakdown_steps,
        accelerator=compute.accelerator,
        io=io_of(session, rank),
        system=system_of(session, rank, kept, cpu_percent),
        overhead=overhead_of(session, rank, primary, kept),
    )
    return report, compute


def _data_wait(
    session: Session,
    primary: LoaderRun | None,
    kept: list[Step],
    explained: list[Explained],
    cpu_percent: float | None,
    exposure: Exposure | None,
) -> DataWait:
    total_ns = sum(step.duration_ns for step in kept)
    if primary is None or not total_ns:
        return DataWait(
            raw_ms=None,
            exposed_ms=None,
            exposed_source=None,
            exposed_steps=None,
            raw_wait_fraction=None,
            stall_fraction=None,
            verdict=None,
            causes_ms={},
            too_few_workers=None,
            behind_ready_ms=None,
            files=[],
            worst_batches=[],
        )
    awaited = {id(delivery) for step in kept for delivery in step.awaited}
    waits = [item for item in explained if id(item.delivery) in awaited]
    raw_ms = sum(step.wait_ns for step in kept) / len(kept) / 1e6
    fraction = sum(step.wait_ns for step in kept) / total_ns
    exposed = exposed_wait(kept, bool(session.accelerators), exposure)
    return DataWait(
        raw_ms=raw_ms,
        exposed_ms=exposed.ms,
        exposed_source=exposed.source,
        exposed_steps=exposed.steps,
        raw_wait_fraction=fraction,
        stall_fraction=exposed.fraction,
        verdict=verdict(fraction),
        causes_ms={cause: sum(item.causes[cause] for item in waits) / len(kept) / 1e6 for cause in CAUSES},
        too_few_workers=_too_few_workers(session, primary, kept, fraction, cpu_percent),
        behind_ready_ms=behind_ready_ns(primary.deliveries, waits) / len(kept) / 1e6,
        files=_file_costs(waits, len(kept)),
        worst_batches=_worst(waits),
    )


def _too_few_workers(
    session: Session, primary: LoaderRun, kept: list[Step], fraction: float, cpu_percent: float | None
) -> bool | None:
    """More production than the workers manage within the compute time, and cores to spare."""
    if primary.description.wrapped:
        return None  # who makes its batches, and with how many hands, is not known
    if 100 * fraction < MODERATELY_PERCENT:
        return False
    production_ms = _production_ms(primary.deliveries)
    if production_ms is None or cpu_percent is None:
        return None
    compute_ms = sum(step.duration_ns - step.wait_ns for step in kept) / len(kept) / 1e6
    workers = primary.description.workers
    behind = workers == 0 or production_ms / workers > compute_ms
    return behind and cpu_percent < 100 * session.manifest.cpus * _CORES_FREE


def _production_ms(deliveries: list[Delivery]) -> float | None:
    made = [
        delivery.prepared_ns - delivery.taken_ns
        for delivery in deliveries
        if delivery.prepared_ns is not None and delivery.taken_ns is not None
    ]
    return sum(made) / len(made) / 1e6 if made else None


def _file_costs(waits: list[Explained], steps: int) -> list[FileCost]:
    totals: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
    for item in waits:
        for path, (read, decode) in item.files.items():
            totals[path][0] += read
            totals[path][1] += decode
    costs = [
        FileCost(
            path=path,
            ms=(read + decode) / steps / 1e6,
            read_ms=read / steps / 1e6,
            decode_ms=decode / steps / 1e6,
        )
        for path, (read, decode) in totals.items()
        if read + decode > 0
    ]
    return sorted(costs, key=lambda cost: -cost.ms)


def _worst(waits: list[Explained]) -> list[WorstBatch]:
    worst = sorted(waits, key=lambda item: -item.delivery.wait_ns)[:_WORST_BATCHES]
    return [
        WorstBatch(
            batch=item.delivery.index,
            epoch=item.delivery.epoch,
            wait_ms=item.delivery.wait_ns / 1e6,
            delay_ms=_delay_ms(item.delivery),
            worker=item.delivery.worker,
            pid=item.delivery.pid,
            cause=item.cause,
            files=[path for path, _ in sorted(item.files.items(), key=lambda pair: -sum(pair[1]))[:3]],
        )
        for item in worst
    ]


def _delay_ms(delivery: Delivery) -> float | None:
    """How long the batch lay ready; None where the consumer made it itself."""
    if delivery.worker is None or delivery.prepared_ns is None:
        return None
    return (delivery.delivered_ns - delivery.prepared_ns) / 1e6


def _loader(loader: LoaderRun, primary: bool) -> LoaderResult:
    deliveries = loader.deliveries
    # The first batch of the run waits for the workers' start: told apart, not averaged in.
    later = deliveries[1:]
    delays = [delay for delay in map(_delay_ms, later) if delay is not None]
    return LoaderResult(
        id=loader.number,
        kind=loader.kind,
        primary=primary,
        dataset=loader.description.dataset,
        wrapped=loader.description.wrapped,
        workers=loader.description.workers,
        batches=len(deliveries),
        phases=loader.phases,
        raw_ms=sum(delivery.wait_ns for delivery in later) / len(later) / 1e6 if later else None,
        delay_ms=sum(delays) / len(delays) if delays else None,
        production_ms=_production_ms(deliveries),
        queue_depth_mean=queue_depth(later) if loader.description.workers else None,
        epochs=loader.epochs,
        start_method=loader.description.start_method,
        first_batch_ms=deliveries[0].wait_ns / 1e6 if deliveries else None,
        failures=loader.failures,
    )


def queue_depth(deliveries: list[Delivery]) -> float | None:
    """How many batches lay ready when the consumer asked, on average over its asking."""
    ready = np.sort([delivery.prepared_ns for delivery in deliveries if delivery.prepared_ns is not None])
    asked = np.array([delivery.wait_start_ns for delivery in deliveries])
    if not len(asked) or len(ready) < len(asked):
        return None
    return float((np.searchsorted(ready, asked, side="right") - np.arange(len(asked))).mean())


def _cpu_percent(rank: Rank, kept: list[Step]) -> float | None:
    """CPU of the rank's processes between the first and the last measured step; 100 is one core."""
    if not kept:
        return None
    start, end = kept[0].start_ns, kept[-1].end_ns
    used = 0.0
    for process in rank.processes:
        ticks = process.of_type(Tick)
        if len(ticks) < 2:
            return None
        times = np.array([tick.clock[1] for tick in ticks]) - start
        cpu = np.array([tick.cpu_ns for tick in ticks])
        used += float(np.interp(end - start, times, cpu) - np.interp(0, times, cpu))
    return 100 * used / (end - start)


def _clocks(session: Session) -> list[ClockInfo]:
    """What is known of each host's clock; that of the first process is the reference."""
    clocks = []
    reference = session.processes[0].clock_domain if session.processes else ""
    for host in dict.fromkeys(process.host for process in session.processes):
        own = [process for process in session.processes if process.host == host]
        exact = all(process.clock_domain == reference for process in own)
        bound_ns = max(process.clock.bound_ns for process in own)
        # dftracer's times are whole microseconds.
        for source, bound in (("agent", bound_ns), ("dftracer", 1000)):
            if source == "agent" or any(len(session.calls_of(process)) for process in own):
                clocks.append(
                    ClockInfo(
                        source=source,
                        host=host,
                        kind="exact" if exact else "assumed",
                        offset_ns=0,
                        bound_ns=bound if exact else None,
                    )
                )
    return clocks
