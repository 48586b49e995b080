"""How much tracing itself may have slowed a rank: counts of the run times costs measured on its machine."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from iotrace.analysis.rank import RankAnalysis
from iotrace.analysis.results import Overhead
from iotrace.sources.dftracer.calls import PosixCalls
from iotrace.sources.records import Batch
from iotrace.sources.session import Session

Times = npt.NDArray[np.int64]
_AT_ONCE_NS = 20_000  # from call to call, within which caches still hold what tracing needs


def overhead_of(analysis: RankAnalysis) -> Overhead:
    """Estimate the rank's overhead; what rests on a cost that was not measured is None."""
    session, rank = analysis.session, analysis.rank
    costs = session.costs
    posix = _PosixCosts.of(session)
    calls = sum(len(session.calls_of(process)) for process in rank.processes) if session.posix_on else None
    span_ns = costs.span_ns if costs else None
    shares = least = None
    if analysis.primary is not None and analysis.kept and span_ns is not None and posix is not None:
        shares = _shares(analysis, posix, span_ns)
        least = _shares(analysis, replace(posix, all_after_work=False), span_ns)
    return Overhead(
        posix_calls=calls,
        spans=sum(len(process.spans) for process in rank.processes),
        processes=len(rank.processes),
        posix_call_us=_us(costs.posix_call_ns) if costs else None,
        next_posix_call_us=_us(costs.next_posix_call_ns) if costs else None,
        span_us=_us(span_ns),
        process_start_ms=_ms(costs.process_start_ns) if costs else None,
        measured_on=costs.host if costs else None,
        consumer_pct_of_step=_percent(shares.consumer if shares else None),
        workers_pct_of_production=_percent(shares.workers if shares else None),
        estimated_pct_of_step=_percent(shares.step if shares else None),
        least_pct_of_step=_percent(least.step if least else None),
    )


@dataclass(frozen=True)
class _Shares:
    """What tracing took of the steps on the consumer's threads, of the workers' productions, of the steps."""

    consumer: float
    workers: float | None
    step: float


def _shares(analysis: RankAnalysis, posix: _PosixCosts, span_ns: int) -> _Shares:
    kept = analysis.kept
    consumer = _of_consumer(analysis, posix, span_ns)
    workers = _of_workers(analysis, posix, span_ns) if analysis.rank.workers else None
    # Faster workers shorten a step by its wait at most.
    wait = sum(step.wait_ns for step in kept) / sum(step.duration_ns for step in kept)
    return _Shares(consumer, workers, consumer + min(workers or 0.0, wait))


@dataclass(frozen=True)
class _PosixCosts:
    """What a call adds that comes after other work, and one that follows another at once.

    With `all_after_work` every call is taken for the former: what a program does between two is not known.
    """

    first_ns: int
    next_ns: int
    all_after_work: bool = True

    @classmethod
    def of(cls, session: Session) -> _PosixCosts | None:
        """None where they are not known, nothing where no calls were traced."""
        if not session.posix_on:
            return cls(0, 0)
        costs = session.costs
        if costs is None or costs.posix_call_ns is None:
            return None
        next_ns = costs.posix_call_ns if costs.next_posix_call_ns is None else costs.next_posix_call_ns
        return cls(costs.posix_call_ns, min(costs.posix_call_ns, next_ns))

    def added_ns(self, calls: PosixCalls, starts: Times, ends: Times) -> int:
        """What the calls added that begin in the windows."""
        if self.all_after_work:
            return self.first_ns * count_inside(calls.start_ns, starts, ends)
        follows = following(calls)
        return self.first_ns * count_inside(
            calls.start_ns[~follows], starts, ends
        ) + self.next_ns * count_inside(calls.start_ns[follows], starts, ends)


def following(calls: PosixCalls) -> npt.NDArray[np.bool_]:
    """Which calls of a process begin within 20 µs of the end of their thread's last one."""
    order = np.argsort(calls.tid, kind="stable")  # they are in the order of their starts
    tid, start, end = calls.tid[order], calls.start_ns[order], calls.end_ns[order]
    found = np.zeros(len(calls), np.bool_)
    found[order[1:]] = (tid[1:] == tid[:-1]) & (start[1:] - end[:-1] < _AT_ONCE_NS)
    return found


def _percent(share: float | None) -> float | None:
    """Costs are of another moment: they may come to more than there was."""
    return None if share is None else min(100.0, 100 * share)


def _us(duration_ns: int | None) -> float | None:
    return None if duration_ns is None else duration_ns / 1e3


def _ms(duration_ns: int | None) -> float | None:
    return None if duration_ns is None else duration_ns / 1e6


def _of_consumer(analysis: RankAnalysis, posix: _PosixCosts, span_ns: int) -> float:
    """Estimate the share of the measured steps that the consumer's own threads spent on being traced."""
    main = analysis.rank.main
    tids = sorted({batch.tid for batch in main.of_type(Batch)})
    starts = np.array([step.start_ns for step in analysis.kept], dtype=np.int64)
    ends = np.array([step.end_ns for step in analysis.kept], dtype=np.int64)
    calls, spans = analysis.session.calls_of(main), main.spans
    own_calls = calls.where(np.isin(calls.tid, tids))
    own_spans = np.asarray(spans["start_ns"][np.isin(spans["tid"], tids)], dtype=np.int64)
    cost_ns = posix.added_ns(own_calls, starts, ends) + span_ns * count_inside(own_spans, starts, ends)
    return cost_ns / int((ends - starts).sum())


def _of_workers(analysis: RankAnalysis, posix: _PosixCosts, span_ns: int) -> float | None:
    """Estimate the share of the measured batches' productions that workers spent on being traced."""
    awaited = [wait.delivery for wait in analysis.measured_waits]
    cost_ns = made_ns = 0
    for process in analysis.rank.workers:
        productions = sorted(
            (delivery.taken_ns, delivery.prepared_ns)
            for delivery in awaited
            if delivery.pid == process.pid
            and delivery.taken_ns is not None
            and delivery.prepared_ns is not None
        )
        if not productions:
            continue
        starts, ends = np.array(productions, dtype=np.int64).T
        span_starts = np.asarray(process.spans["start_ns"], dtype=np.int64)
        cost_ns += posix.added_ns(analysis.session.calls_of(process), starts, ends)
        cost_ns += span_ns * count_inside(span_starts, starts, ends)
        made_ns += int((ends - starts).sum())
    return cost_ns / made_ns if made_ns else None


def count_inside(times: Times, starts: Times, ends: Times) -> int:
    """How many of `times` lie in one of the disjoint windows ``[starts[i], ends[i])``."""
    ordered = np.sort(times)
    return int((np.searchsorted(ordered, ends) - np.searchsorted(ordered, starts)).sum())
