"""How much tracing itself may have slowed a rank: counts of the run times costs measured on its machine."""

from __future__ import annotations

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

from iotrace.analysis.intervals import Intervals, Times, distinct, union
from iotrace.analysis.rank import RankAnalysis
from iotrace.analysis.results import Overhead
from iotrace.analysis.wait.page_faults import bounds
from iotrace.analysis.wait.production import PARTS
from iotrace.analysis.wait.waits import CAUSES, Waits
from iotrace.session import names
from iotrace.sources.columns import Columns
from iotrace.sources.posix_calls import PosixCalls
from iotrace.sources.processes import Process
from iotrace.sources.session import Session

_AT_ONCE_NS = 20_000  # from call to call, within which caches still hold what tracing needs


def overhead_of(analysis: RankAnalysis) -> Overhead:
    """Estimate the rank's overhead; what rests on a cost that was not measured is None."""
    session, processes = analysis.session, analysis.rank.processes
    measured, costs = session.costs, _Costs.of(session)
    shares = least = evaluation = None
    if analysis.primary is not None and len(analysis.kept) and costs is not None:
        # As if every call came after work: what a program does between two is unknown.
        most = replace(costs, next_ns=costs.first_ns, next_span_ns=costs.span_ns)
        shares, evaluation = _shares(analysis, most), _of_evaluation(analysis, most)
        least = _shares(analysis, costs)
    return Overhead(
        posix_calls=sum(session.calls_of(each).made for each in processes) if session.posix_on else None,
        spans=sum(len(process.spans) for process in processes),
        hooks_ms=sum(_in_all_ns(process) for process in processes) / 1e6,
        processes=len(processes),
        posix_call_us=_in_units(measured.posix_call_ns, 1e3) if measured else None,
        next_posix_call_us=_in_units(measured.next_posix_call_ns, 1e3) if measured else None,
        span_us=_in_units(measured.span_ns, 1e3) if measured else None,
        process_start_ms=_in_units(measured.process_start_ns, 1e6) if measured else None,
        measured_on=measured.host if measured else None,
        consumer_pct_of_step=_percent(shares.consumer if shares else None),
        workers_pct_of_production=_percent(shares.workers if shares else None),
        estimated_pct_of_step=_percent(shares.step if shares else None),
        least_pct_of_step=_percent(least.awaited if least else None),
        evaluation_pct=_percent(evaluation),
    )


class _Costs(msgspec.Struct, frozen=True):
    """What a span and a call add that come after other work, and those that follow another at once."""

    span_ns: int
    next_span_ns: int
    first_ns: int
    next_ns: int

    @classmethod
    def of(cls, session: Session) -> _Costs | None:
        """Read the measured costs; None where one is unknown. Calls that were not traced cost nothing."""
        costs = session.costs
        if costs is None or costs.span_ns is None:
            return None
        first_ns = costs.posix_call_ns if session.posix_on else 0
        if first_ns is None:
            return None
        next_ns = first_ns if costs.next_posix_call_ns is None else costs.next_posix_call_ns
        next_span_ns = costs.span_ns if costs.next_span_ns is None else costs.next_span_ns
        return cls(costs.span_ns, min(costs.span_ns, next_span_ns), first_ns, min(first_ns, next_ns))

    def added_ns(self, calls: PosixCalls, spans: Columns, starts: Times, ends: Times) -> int:
        """What the calls and spans added that begin in the windows ``[starts[i], ends[i])``."""
        added_ns = self.span_ns * count_inside(spans["start_ns"], starts, ends)
        if saved_ns := self.span_ns - self.next_span_ns:
            added_ns -= saved_ns * count_inside(spans["start_ns"][following_spans(spans)], starts, ends)
        added_ns += self.first_ns * count_inside(calls.start_ns, starts, ends)
        if saved_ns := self.first_ns - self.next_ns:
            added_ns -= saved_ns * count_inside(calls.start_ns[following(calls)], starts, ends)
        more = calls.calls > 1  # of a burst: each behind the other
        added_ns += self.next_ns * sum_inside(calls.start_ns[more], calls.calls[more] - 1, starts, ends)
        return added_ns


class _Shares(msgspec.Struct, frozen=True):
    """What tracing took of the steps on the consumer's threads, of the workers' productions, of the steps.

    `step` is at most, `awaited` at least: the workers' cost as far as the loop waited for their productions.
    """

    consumer: float
    workers: float | None
    step: float
    awaited: float


def _shares(analysis: RankAnalysis, costs: _Costs) -> _Shares:
    kept = analysis.kept
    steps_ns = int(kept.duration_ns.sum())
    starts, ends, _ = kept.pieces  # evaluation is no part of their length
    consumer = _consumer_ns(analysis, costs, starts, ends) / steps_ns
    added_ns = made_ns = 0
    awaited_ns = 0.0
    for worker in analysis.rank.workers:
        added, made = _of_worker(analysis, costs, worker)
        added_ns, made_ns = added_ns + added, made_ns + made
        if made:
            awaited_ns += min(1.0, added / made) * _awaited_ns(analysis.measured_waits, worker)
    workers = added_ns / made_ns if made_ns else None
    # Faster workers shorten a step by its wait at most, and by no more than all of them save.
    most = min(workers or 0.0, int(kept.wait_ns.sum()) / steps_ns, added_ns / steps_ns)
    return _Shares(consumer, workers, consumer + most, consumer + awaited_ns / steps_ns)


def _awaited_ns(waits: Waits, worker: Process) -> int:
    """How long the loop waited for what `worker` produced, while it is known what it did."""
    own = waits.causes[waits.deliveries["pid"] == worker.pid]
    return int(own[:, [CAUSES.index(part) for part in PARTS if part != "unknown"]].sum())


def _of_evaluation(analysis: RankAnalysis, costs: _Costs) -> float | None:
    """The share that tracing took of the evaluation passes between the measured steps; None without any."""
    starts, ends = analysis.kept.passes.T
    long_ns = int((ends - starts).sum())
    return _consumer_ns(analysis, costs, starts, ends) / long_ns if long_ns else None


def _consumer_ns(analysis: RankAnalysis, costs: _Costs, starts: Times, ends: Times) -> int:
    """What tracing added in some windows on the consumer's own threads."""
    main = analysis.rank.main
    tids = distinct(main.rows(names.BATCH_ROW)["tid"])
    calls, spans = analysis.session.calls_of(main), main.spans
    own_spans = spans[np.isin(spans["tid"], tids)]
    added_ns = costs.added_ns(calls.where(np.isin(calls.tid, tids)), own_spans, starts, ends)
    own = main.rows(names.OWN_ROW)
    return added_ns + hooks_ns(main, own[np.isin(own["tid"], tids)], starts, ends)


def _of_worker(analysis: RankAnalysis, costs: _Costs, worker: Process) -> tuple[int, int]:
    """What tracing added to a worker's productions of the measured batches, and how long they took; in ns."""
    made = analysis.measured_waits.deliveries
    made = made[(made["pid"] == worker.pid) & made.made]
    if not len(made):
        return 0, 0
    made = made[np.lexsort((made["prepared_ns"], made["taken_ns"]))]
    starts, ends = made["taken_ns"], made["prepared_ns"]
    added_ns = costs.added_ns(analysis.session.calls_of(worker), worker.spans, starts, ends)
    added_ns += hooks_ns(worker, worker.rows(names.OWN_ROW), starts, ends, _productions(worker))
    return added_ns, int((ends - starts).sum())


def _productions(worker: Process) -> Intervals:
    """All that a worker of torch's loader has produced; empty of another."""
    made, real = worker.rows(names.PRODUCED_ROW), worker.clock.times_to_session_ns
    return real(made["taken_ns"]), real(made["prepared_ns"])


def hooks_ns(
    process: Process, own: Columns, starts: Times, ends: Times, busy: Intervals | None = None
) -> int:
    """What the hooks took by themselves in the windows ``[starts[i], ends[i])``, by rows of their sums.

    Between two rows that is spread evenly: over the time, or over the windows and what else the process was
    `busy` with. A worker that waits for its next index calls none.
    """
    found = 0.0
    if busy is not None:
        busy = union(np.concatenate((busy[0], starts)), np.concatenate((busy[1], ends)))
        if not len(busy[0]):
            return 0
    for tid in distinct(own["tid"]).tolist():
        rows = own[own["tid"] == tid]
        at = np.append(process.began_ns, process.clock.times_to_session_ns(rows["mono_ns"]))
        sums = np.append(0, rows["own_ns"])
        first, last, at = (each if busy is None else _spent(busy, each) for each in (starts, ends, at))
        found += float((np.interp(last, at, sums) - np.interp(first, at, sums)).sum())
    return int(found)


def _spent(busy: Intervals, times: Times) -> Times:
    """How much of disjoint intervals, in their order, has passed at each of these times."""
    starts, ends = busy
    sums = np.append(0, np.cumsum(ends - starts))
    last = np.searchsorted(starts, times, side="right") - 1
    within = np.minimum(times - starts[last], (ends - starts)[last])
    return np.asarray(np.where(last < 0, 0, sums[last] + within))


def _in_all_ns(process: Process) -> int:
    own = process.rows(names.OWN_ROW)
    return sum(int(own["own_ns"][own["tid"] == tid].max()) for tid in distinct(own["tid"]).tolist())


def following(calls: PosixCalls) -> npt.NDArray[np.bool_]:
    """Mark the calls of a process that begin within 20 µs of the end of their thread's last one."""
    order = np.argsort(calls.tid, kind="stable")  # they are in the order of their starts
    tid, start, end = calls.tid[order], calls.start_ns[order], calls.end_ns[order]
    found = np.zeros(len(calls), np.bool_)
    found[order[1:]] = (tid[1:] == tid[:-1]) & (start[1:] - end[:-1] < _AT_ONCE_NS)
    return found


def following_spans(spans: Columns) -> npt.NDArray[np.bool_]:
    """Mark the spans that begin within 20 µs of the beginning or the end of their thread's last one."""
    order = np.lexsort((spans["start_ns"], spans["tid"]))
    tid, start = spans["tid"][order], spans["start_ns"][order]
    end = bounds(spans)[1][order]
    before = np.where(end[:-1] <= start[1:], end[:-1], start[:-1])
    found = np.zeros(len(spans), np.bool_)
    found[order[1:]] = (tid[1:] == tid[:-1]) & (start[1:] - before < _AT_ONCE_NS)
    return found


def _percent(share: float | None) -> float | None:
    """Costs are of another moment: they may come to more than there was."""
    return None if share is None else min(100.0, 100 * share)


def _in_units(duration_ns: int | None, unit_ns: float) -> float | None:
    return None if duration_ns is None else duration_ns / unit_ns


def sum_inside(times: Times, values: Times, starts: Times, ends: Times) -> int:
    """Sum up the `values` at those of `times` that lie in the disjoint windows ``[starts[i], ends[i])``."""
    order = np.argsort(times, kind="stable")
    sums = np.concatenate(([0], np.cumsum(values[order])))
    first, behind = (np.searchsorted(times[order], bounds) for bounds in (starts, ends))
    return int((sums[behind] - sums[first]).sum())


def count_inside(times: Times, starts: Times, ends: Times) -> int:
    """Count those of `times` that lie in one of the disjoint windows ``[starts[i], ends[i])``."""
    ordered = np.sort(times)
    return int((np.searchsorted(ordered, ends) - np.searchsorted(ordered, starts)).sum())
