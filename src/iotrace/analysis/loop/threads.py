"""Which thread trains, and which batches other threads hand over to it."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

from iotrace.analysis.intervals import Times, distinct, grouped, ranges
from iotrace.analysis.loop.cuts import Rounds, is_warm_up, off_cpu_fraction, rounds_by_thread
from iotrace.analysis.loop.deliveries import Deliveries, Interval, LoaderRun
from iotrace.analysis.loop.unfed import Called, called_by, calls_without_gradients
from iotrace.analysis.table import NONE, key_of, sums
from iotrace.session import names
from iotrace.sources.processes import Process

# A wait that timed out is one with the next wait, if that follows as soon.
_AT_ONCE_NS = 1_000_000


class Inner(msgspec.Struct, frozen=True):
    """Deliveries inside of others: `deliveries`, sorted by the one that holds them."""

    deliveries: Deliveries
    loader: Times
    number: Times
    keys: Times

    @classmethod
    def of(cls, deliveries: Deliveries, outer: Deliveries) -> Inner:
        """Take `deliveries`, each of which the delivery in the same row of `outer` holds."""
        keys = key_of(outer["loader"], outer["number"])
        order = np.argsort(keys, kind="stable")
        return cls(deliveries[order], outer["loader"][order], outer["number"][order], keys[order])

    def of_rows(self, outer: Deliveries) -> tuple[Times, Times]:
        """Find the rows of `deliveries` inside of each of `outer`, and the row of that one; in its order."""
        keys = key_of(outer["loader"], outer["number"])
        return ranges(np.searchsorted(self.keys, keys), np.searchsorted(self.keys, keys, side="right"))

    def with_inner(self, outer: Deliveries) -> Deliveries:
        """Return each of `outer`, followed by those inside of it."""
        if not len(self.deliveries):
            return outer
        rows, of = self.of_rows(outer)
        order = np.argsort(np.concatenate((np.arange(len(outer)), of)), kind="stable")
        return Deliveries.joined([outer, self.deliveries[rows]])[order]


class Blocked(msgspec.Struct):
    """A thread waited for a condition, or called ``get`` or ``put`` of a queue; `by` ended its wait."""

    tid: int
    start_ns: int
    end_ns: int
    by: int | None
    call: str


class TrainingThread(msgspec.Struct, frozen=True):
    """The thread whose loop is reported: what it asked for, outermost, and what else bears on its waits.

    `asked` are the deliveries to it that no other ask of it holds, in order; `inner` those inside. `handed`
    are the batches that other threads took and handed over, with the thread's own waits for them; `unhanded`
    are threads that took batches, and handed none over as far as is seen. `calls` are its calls of a model
    without gradients: their starts and ends; `called` is what its loop had called, by samples.
    """

    tid: int
    rounds: Rounds
    asked: Deliveries
    inner: Inner
    handed: Deliveries
    handing: set[int]
    unhanded: set[int]
    off_cpu_fraction: float | None
    calls: Times = np.empty((0, 2), np.int64)
    called: Called | None = None


def training_thread(main: Process, loaders: list[LoaderRun]) -> TrainingThread | None:
    """Find the thread of `main` that trains; without rounds the main thread if it asks or is handed batches.

    None where no thread asked for a batch and none trained.
    """
    rounds = rounds_by_thread(main)
    deliveries = Deliveries.joined([loader.deliveries for loader in loaders])
    deliveries = deliveries[np.argsort(deliveries["delivered_ns"], kind="stable")]
    blocked = _blocked(main)
    tids, first, of = grouped(deliveries["tid"])
    counts = np.bincount(of)
    asking = dict(zip(tids.tolist(), first.tolist(), strict=True))  # its first delivery, by thread
    busiest = max(rounds, key=lambda one: len(rounds[one].times_ns)) if rounds else main.pid
    # Who trains on the batches that it takes hands none over: others wait for it to have their turn.
    taken = zip(tids.tolist(), counts.tolist(), strict=True)
    training = {one for one, count in taken if one in rounds and 2 * len(rounds[one].steps_ns) >= count}
    handers = _handing_threads(set(asking) - training - {busiest}, training | {busiest}, blocked)
    if rounds:
        tid = busiest
    elif main.pid in asking or any(wait.tid == main.pid and wait.by in handers for wait in blocked):
        tid = main.pid
    elif asking:
        most = tids[counts == counts.max()].tolist()
        tid = min(most, key=lambda one: asking[one])
    else:
        return None
    own = deliveries[deliveries["tid"] == tid]
    stops = [each.exhausted_ns for loader in loaders for each in loader.passes.values() if each.exhausted_ns]
    asked, inside, outer = _outermost(own, stops)
    handed = _handed_over(tid, deliveries, blocked, handers)
    handed, of_asked, held_by = _place_handed(handed, asked)
    inner = Inner.of(Deliveries.joined([inside, of_asked]), Deliveries.joined([asked[outer], asked[held_by]]))
    asked = _with_figures_of(inner, asked)
    evaluates = {*asking} - {*distinct(deliveries["tid"][deliveries["grad"] != 0]).tolist()}
    others = {*asking} - {tid} - training - evaluates
    apart = training | {tid}
    begun = deliveries["delivered_ns"]
    handing = {one for one in others if _meets(one, tid, apart, int(begun[asking[one]]), blocked)}
    nothing = Rounds(*np.empty((2, 0), np.int64))
    found = rounds.get(tid, nothing)
    if is_warm_up(found, asked):
        found = nothing
    waits = [(wait.start_ns, wait.end_ns) for wait in blocked if wait.tid == tid]
    asks = np.stack((own["wait_start_ns"], own["delivered_ns"]), axis=1)
    off_cpu = off_cpu_fraction(main, tid, np.concatenate((asks, _pairs(waits))))
    calls = calls_without_gradients(main, tid)
    called = called_by(main, tid) if len(calls) else None
    return TrainingThread(tid, found, asked, inner, handed, handing, others - handing, off_cpu, calls, called)


def _pairs(intervals: Sequence[Interval]) -> Times:
    return np.array(intervals, dtype=np.int64).reshape(-1, 2)


def _outermost(own: Deliveries, stops: Sequence[Interval]) -> tuple[Deliveries, Deliveries, Times]:
    """Divide a thread's deliveries into those that no other ask holds, and those inside of one of these.

    The third says which one that is.
    """
    ending = _pairs(stops)
    starts = np.concatenate((own["wait_start_ns"], ending[:, 0]))
    ends = np.concatenate((own["delivered_ns"], ending[:, 1]))
    order = np.lexsort((-ends, starts))
    starts, ends = starts[order], ends[order]
    until = np.maximum.accumulate(np.append(0, ends))[:-1]
    is_inside = (ends <= until) & (starts < until)
    is_delivery = order < len(own)
    asked = np.cumsum(is_delivery & ~is_inside) - 1  # the row of the last one that is asked
    outer = np.maximum.accumulate(np.where(is_inside, -1, np.arange(len(order))))
    held = is_inside & is_delivery & is_delivery[outer]
    return own[order[is_delivery & ~is_inside]], own[order[held]], asked[outer[held]]


def _blocked(main: Process) -> list[Blocked]:
    """The waits in the session's time, by start; a wait that timed out is one with the next.

    What a thread gets from a queue without a wait comes from the thread that puts there.
    """
    rows = main.rows(names.BLOCKED_ROW)
    rows = rows[np.argsort(rows["start_ns"], kind="stable")]
    calls = [names.CALLS[call] if 0 <= call < len(names.CALLS) else "" for call in rows["call"].tolist()]
    fields = [rows[field].tolist() for field in ("tid", "by", "queue")]
    putting: dict[int, int] = {}
    for call, tid, by, queue in zip(calls, *fields, strict=True):
        if call == "put" or by != -1:
            putting.setdefault(queue, tid if call == "put" else by)
    times = (main.clock.times_to_session_ns(rows[field]).tolist() for field in ("start_ns", "end_ns"))
    found: list[Blocked] = []
    last: dict[int, Blocked] = {}
    for call, tid, by, queue, start_ns, end_ns in zip(calls, *fields, *times, strict=True):
        if by == -1 and call == "get":
            by = putting.get(queue, -1)
        wait = Blocked(tid, start_ns, end_ns, None if by == -1 else by, call)
        before = last.get(tid)
        if before is not None and before.by is None and wait.start_ns - before.end_ns < _AT_ONCE_NS:
            before.end_ns, before.by = wait.end_ns, wait.by
        else:
            found.append(wait)
            last[wait.tid] = wait
    return found


def _handing_threads(asking: set[int], apart: set[int], blocked: list[Blocked]) -> set[int]:
    """Threads that take batches, and those that such a thread meets at a condition; none of `apart`."""
    found = set(asking)
    grown = True
    while grown:
        met = {wait.tid for wait in blocked if wait.by in found}
        met |= {wait.by for wait in blocked if wait.tid in found and wait.by is not None}
        more = met - found - apart
        found |= more
        grown = bool(more)
    return found


def _meets(one: int, tid: int, apart: set[int], first_ns: int, blocked: list[Blocked]) -> bool:
    """Tell whether the thread `one`, or one that it hands batches to, met `tid` at a condition.

    Before its first batch, at `first_ns`, a thread is met by whoever starts it.
    """
    since = [wait for wait in blocked if wait.end_ns > first_ns]
    among = _handing_threads({one}, apart, since)
    return any(
        (wait.tid == tid and wait.by in among) or (wait.by == tid and wait.tid in among) for wait in since
    )


def _handed_over(tid: int, deliveries: Deliveries, blocked: list[Blocked], handers: set[int]) -> Deliveries:
    """Make a delivery of each wait of `tid` that a thread with batches ended: the last batch taken before."""
    others: Deliveries = deliveries[np.flatnonzero(deliveries["tid"] != tid)]
    waits = [
        (wait.start_ns, wait.end_ns, wait.by)
        for wait in blocked
        if wait.tid == tid and wait.by in handers and wait.by is not None and wait.call != "put"
    ]
    if not len(others) or not waits:
        return others[:0]
    starts, ends, by = np.array(waits, dtype=np.int64).T
    # A thread between the two has taken no batch itself.
    row: Times = np.searchsorted(others["delivered_ns"], ends, side="right") - 1
    for one in distinct(others["tid"]).tolist():
        taken, own = np.flatnonzero(others["tid"] == one), by == one
        at = np.searchsorted(others["delivered_ns"][taken], ends[own], side="right") - 1
        row[own] = np.where(at >= 0, taken[np.maximum(at, 0)], -1)
    seen = row >= 0
    taken_last: Times = row[seen]
    return others[taken_last].changed(
        tid=tid,
        wait_start_ns=starts[seen],
        delivered_ns=ends[seen],
        exposed_ns=NONE,
        sampled_ns=NONE,
        handed_over=1,
    )


def _place_handed(handed: Deliveries, asked: Deliveries) -> tuple[Deliveries, Deliveries, Times]:
    """Divide hand-overs into those outside all asks, and those inside one of a wrapped source: which."""
    at = np.searchsorted(asked["wait_start_ns"], handed["wait_start_ns"], side="right") - 1
    if not len(asked):
        return handed, handed[:0], at[:0]
    ask = asked[np.maximum(at, 0)]
    outside = (at < 0) | (handed["wait_start_ns"] >= ask["delivered_ns"])
    inside = ~outside & ask.known("inline_tid") & (handed["delivered_ns"] <= ask["delivered_ns"])
    return handed[outside], handed[inside], at[inside]


def _with_figures_of(inner: Inner, asked: Deliveries) -> Deliveries:
    """Give an ask the samples, and the idle time of the device, of those that it holds, where all are known.

    Only events around an ask of this thread tell how long the device idled. What the outer ask does besides
    is taken as time in which the device had work: it moves the batch there.
    """
    rows, of = inner.of_rows(asked)
    held = np.bincount(of, minlength=len(asked))
    behind = np.cumsum(held)
    within = inner.deliveries[rows]
    exposed_ns = np.minimum(within["exposed_ns"], within.wait_ns)
    columns = {}
    for field, values in (
        ("samples", within["samples"]),
        ("exposed_ns", np.where(within["tid"] == asked["tid"][of], exposed_ns, NONE)),
    ):
        unknown = sums(values == NONE, behind - held, behind)
        whole = sums(np.where(values == NONE, 0, values), behind - held, behind)
        made_of = ~asked.known(field) & (held > 0) & (unknown == 0)
        columns[field] = np.where(made_of, whole, asked[field])
    return asked.changed(**columns)
