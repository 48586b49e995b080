"""How much tracing itself may have slowed a rank: counts of the run times costs measured on its machine."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from iotrace.analysis.batches import LoaderRun
from iotrace.analysis.results import Overhead
from iotrace.analysis.steps import Step
from iotrace.sources.records import Batch
from iotrace.sources.session import Rank, Session

Times = npt.NDArray[np.int64]


def overhead_of(session: Session, rank: Rank, primary: LoaderRun | None, kept: list[Step]) -> Overhead:
    """The rank's overhead; what rests on a cost that was not measured is None."""
    costs = session.costs
    calls = sum(len(session.calls_of(process)) for process in rank.processes) if session.posix_on else None
    call_ns = costs.posix_call_ns if costs else None
    span_ns = costs.span_ns if costs else None
    consumer = workers = None
    if primary is not None and kept and span_ns is not None and (call_ns is not None or not session.posix_on):
        consumer = _of_consumer(session, rank, kept, call_ns or 0, span_ns)
        if rank.workers:
            workers = _of_workers(session, rank, primary, kept, call_ns or 0, span_ns)
    slowed = None
    if consumer is not None:
        # Faster workers shorten a step by its wait at most.
        wait = sum(step.wait_ns for step in kept) / sum(step.duration_ns for step in kept)
        slowed = 100 * (consumer + min(workers or 0.0, wait))
    return Overhead(
        posix_calls=calls,
        spans=sum(len(process.spans) for process in rank.processes),
        processes=len(rank.processes),
        posix_call_us=None if call_ns is None else call_ns / 1e3,
        span_us=None if span_ns is None else span_ns / 1e3,
        process_start_ms=_ms(costs.process_start_ns) if costs else None,
        measured_on=costs.host if costs else None,
        consumer_pct_of_step=None if consumer is None else 100 * consumer,
        workers_pct_of_production=None if workers is None else 100 * workers,
        estimated_pct_of_step=slowed,
    )


def _ms(duration_ns: int | None) -> float | None:
    return None if duration_ns is None else duration_ns / 1e6


def _of_consumer(session: Session, rank: Rank, kept: list[Step], call_ns: int, span_ns: int) -> float:
    """The share of the measured steps that the consumer's own threads spent on being traced."""
    tids = sorted({batch.tid for batch in rank.main.of_type(Batch)})
    starts = np.array([step.start_ns for step in kept], dtype=np.int64)
    ends = np.array([step.end_ns for step in kept], dtype=np.int64)
    calls, spans = session.calls_of(rank.main), rank.main.spans
    own_calls = calls.start_ns[np.isin(calls.tid, tids)]
    own_spans = np.asarray(spans["start_ns"][np.isin(spans["tid"], tids)], dtype=np.int64)
    cost_ns = call_ns * count_inside(own_calls, starts, ends) + span_ns * count_inside(
        own_spans, starts, ends
    )
    return cost_ns / int((ends - starts).sum())


def _of_workers(
    session: Session, rank: Rank, primary: LoaderRun, kept: list[Step], call_ns: int, span_ns: int
) -> float | None:
    """The share of the productions of the measured steps' batches that workers spent on being traced."""
    awaited = {id(delivery) for step in kept for delivery in step.awaited}
    cost_ns = made_ns = 0
    for process in rank.workers:
        productions = sorted(
            (delivery.taken_ns, delivery.prepared_ns)
            for delivery in primary.deliveries
            if delivery.pid == process.pid
            and id(delivery) in awaited
            and delivery.taken_ns is not None
            and delivery.prepared_ns is not None
        )
        if not productions:
            continue
        starts, ends = np.array(productions, dtype=np.int64).T
        span_starts = np.asarray(process.spans["start_ns"], dtype=np.int64)
        cost_ns += call_ns * count_inside(session.calls_of(process).start_ns, starts, ends)
        cost_ns += span_ns * count_inside(span_starts, starts, ends)
        made_ns += int((ends - starts).sum())
    return cost_ns / made_ns if made_ns else None


def count_inside(times: Times, starts: Times, ends: Times) -> int:
    """How many of `times` lie in one of the disjoint windows ``[starts[i], ends[i])``."""
    ordered = np.sort(times)
    return int((np.searchsorted(ordered, ends) - np.searchsorted(ordered, starts)).sum())
