"""Which thread trains, in which rounds; which batches other threads hand over to it."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable

import msgspec
from msgspec.structs import replace

from iotrace.analysis.loop.deliveries import Delivery, Interval, LoaderRun
from iotrace.sources.processes import Process
from iotrace.sources.records import BatchRecord, Blocked, IteratorEnd, Round

# A wait that timed out is one with the next wait, if that follows as soon.
_AT_ONCE_NS = 1_000_000


class Rounds(msgspec.Struct, frozen=True):
    """The backward passes and optimizer steps of a thread: times in ns, sorted, by what made them.

    `series` has the backward passes, all optimizer steps, and those of each optimizer.
    """

    times_ns: list[int]
    series: list[list[int]]

    @property
    def steps_ns(self) -> list[int]:
        """One time a step: the steps of the busiest optimizer, without one the backward passes."""
        by_optimizer = self.series[2:]
        return max(by_optimizer, key=len) if by_optimizer else self.times_ns

    def between(self, start_ns: int, end_ns: int) -> bool:
        """Tell whether one lies in ``(start_ns, end_ns]``."""
        return bisect_right(self.times_ns, start_ns) < bisect_right(self.times_ns, end_ns)


class TrainingThread(msgspec.Struct, frozen=True):
    """The thread whose loop is reported: what it asked for, outermost, and what else bears on its waits.

    `asked` are the deliveries to it that no other ask of it holds, in order; `inner` those inside, by the
    loader and number of the outer one. `handed` are the batches that other threads took and handed over, with
    the thread's own waits for them; `unhanded` are threads that took batches, and handed none over as far as
    is seen.
    """

    tid: int
    rounds: Rounds
    asked: list[Delivery]
    inner: dict[tuple[int, int], list[Delivery]]
    handed: list[Delivery]
    handing: set[int]
    unhanded: set[int]
    off_cpu_fraction: float | None


def training_thread(main: Process, loaders: list[LoaderRun]) -> TrainingThread | None:
    """Find the thread of `main` that trains; without rounds the main thread if it asks or is handed batches.

    None where no thread asked for a batch and none trained.
    """
    rounds = _rounds_by_thread(main)
    deliveries = sorted(
        (delivery for loader in loaders for delivery in loader.deliveries), key=lambda item: item.delivered_ns
    )
    blocked = _blocked(main)
    asked_by = Counter(delivery.tid for delivery in deliveries)
    busiest = max(rounds, key=lambda one: len(rounds[one].times_ns)) if rounds else main.pid
    handers = _handing_threads(set(asked_by) - {busiest}, busiest, blocked)
    if rounds:
        tid = busiest
    elif asked_by[main.pid] or any(wait.tid == main.pid and wait.by in handers for wait in blocked):
        tid = main.pid
    elif asked_by:
        tid = asked_by.most_common(1)[0][0]
    else:
        return None
    own = [delivery for delivery in deliveries if delivery.tid == tid]
    asks = [(delivery.wait_start_ns, delivery.delivered_ns) for delivery in own]
    stops = [each.exhausted_ns for loader in loaders for each in loader.passes.values() if each.exhausted_ns]
    asked, inner = _outermost(own, stops)
    handed = _place_handed(_handed_over(tid, deliveries, asked_by, blocked, handers), asked, inner)
    asked = [_with_samples(item, inner.get((item.loader, item.number), [])) for item in asked]
    evaluates = {item.tid for item in deliveries} - {item.tid for item in deliveries if item.grad}
    others = set(asked_by) - {tid} - evaluates
    first_ns = {one: next(item.delivered_ns for item in deliveries if item.tid == one) for one in others}
    handing = {one for one in others if _meets(one, tid, first_ns[one], blocked)}
    found = rounds.get(tid, Rounds([], []))
    off_cpu = _off_cpu_fraction(
        main, tid, [*asks, *((wait.start_ns, wait.end_ns) for wait in blocked if wait.tid == tid)]
    )
    return TrainingThread(tid, found, asked, inner, handed, handing, others - handing, off_cpu)


def _rounds_by_thread(main: Process) -> dict[int, Rounds]:
    real = main.clock.to_session_ns
    backward: dict[int, list[int]] = defaultdict(list)
    optimizers: dict[int, dict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
    for record in main.of_type(Round):
        time_ns = real(record.mono_ns)
        if record.what == "optimizer":
            optimizers[record.tid][record.number].append(time_ns)
        else:
            backward[record.tid].append(time_ns)
    if not backward and not optimizers:
        backward = _rounds_by_count(main)
    found = {}
    for tid in {*backward, *optimizers}:
        steps = [sorted(times) for times in optimizers[tid].values()]
        every_step = sorted(time_ns for times in steps for time_ns in times)
        found[tid] = Rounds(
            sorted([*backward[tid], *every_step]), [sorted(backward[tid]), every_step, *steps]
        )
    return found


def _rounds_by_count(main: Process) -> dict[int, list[int]]:
    """Read backward passes from the counts that deliveries carry: sessions of older agents have no more."""
    found: dict[int, list[int]] = defaultdict(list)
    last: BatchRecord | None = None
    count = 0
    for record in main.records:
        if isinstance(record, BatchRecord | IteratorEnd):
            if last is not None and record.backward_count > count:
                time_ns = main.clock.to_session_ns(last.delivered_ns) + 1
                found[last.tid] += [time_ns] * (record.backward_count - count)
            count = record.backward_count
            last = record if isinstance(record, BatchRecord) else last
    return found


def _outermost(
    own: list[Delivery], stops: Iterable[Interval]
) -> tuple[list[Delivery], dict[tuple[int, int], list[Delivery]]]:
    """Divide a thread's deliveries into those that no other ask holds, and those inside of one."""
    asks: list[tuple[int, int, Delivery | None]] = [
        *((item.wait_start_ns, item.delivered_ns, item) for item in own),
        *((start_ns, end_ns, None) for start_ns, end_ns in stops),
    ]
    asks.sort(key=lambda ask: (ask[0], -ask[1]))
    asked: list[Delivery] = []
    inner: dict[tuple[int, int], list[Delivery]] = defaultdict(list)
    outer: Delivery | None = None
    until_ns = 0
    for start_ns, end_ns, delivery in asks:
        if end_ns <= until_ns and start_ns < until_ns:
            if delivery is not None and outer is not None:
                inner[outer.loader, outer.number].append(delivery)
            continue
        outer, until_ns = delivery, end_ns
        if delivery is not None:
            asked.append(delivery)
    return asked, inner


def _blocked(main: Process) -> list[Blocked]:
    """The waits in the session's time, by start; a wait that timed out is one with the next.

    What a thread gets from a queue without a wait comes from the thread that puts there.
    """
    real = main.clock.to_session_ns
    records = sorted(main.of_type(Blocked), key=lambda wait: wait.start_ns)
    putting: dict[int | None, int | None] = {}
    for record in records:
        if record.call == "put" or record.by is not None:
            putting.setdefault(record.queue, record.tid if record.call == "put" else record.by)
    found: list[Blocked] = []
    last: dict[int, Blocked] = {}
    for record in records:
        by = record.by
        if by is None and record.call == "get":
            by = putting.get(record.queue)
        wait = replace(record, start_ns=real(record.start_ns), end_ns=real(record.end_ns), by=by)
        before = last.get(wait.tid)
        if before is not None and before.by is None and wait.start_ns - before.end_ns < _AT_ONCE_NS:
            before.end_ns, before.by = wait.end_ns, wait.by
        else:
            found.append(wait)
            last[wait.tid] = wait
    return found


def _handing_threads(asking: set[int], tid: int, blocked: list[Blocked]) -> set[int]:
    """Threads other than `tid` that take batches, and those that such a thread meets at a condition."""
    found = set(asking)
    grown = True
    while grown:
        met = {wait.tid for wait in blocked if wait.by in found}
        met |= {wait.by for wait in blocked if wait.tid in found and wait.by is not None}
        more = met - found - {tid}
        found |= more
        grown = bool(more)
    return found


def _meets(one: int, tid: int, first_ns: int, blocked: list[Blocked]) -> bool:
    """Tell whether the thread `one`, or one that it hands batches to, met `tid` at a condition.

    Before its first batch, at `first_ns`, a thread is met by whoever starts it.
    """
    since = [wait for wait in blocked if wait.end_ns > first_ns]
    among = _handing_threads({one}, tid, since)
    return any(
        (wait.tid == tid and wait.by in among) or (wait.by == tid and wait.tid in among) for wait in since
    )


def _handed_over(
    tid: int,
    deliveries: list[Delivery],
    asked_by: Counter[int],
    blocked: list[Blocked],
    handers: set[int],
) -> list[Delivery]:
    """Make a delivery of each wait of `tid` that a thread with batches ended: the last batch taken before."""
    others = [delivery for delivery in deliveries if delivery.tid != tid]
    if not others:
        return []
    taken = {one: [item for item in others if item.tid == one] for one in asked_by if one != tid}
    times = {one: [item.delivered_ns for item in own] for one, own in taken.items()}
    every = [item.delivered_ns for item in others]
    found = []
    for wait in blocked:
        if wait.tid != tid or wait.by not in handers or wait.by is None or wait.call == "put":
            continue
        # A thread between the two has taken no batch itself.
        own = taken.get(wait.by, others)
        index = bisect_right(times.get(wait.by, every), wait.end_ns) - 1
        if index >= 0:
            found.append(
                replace(
                    own[index],
                    tid=tid,
                    wait_start_ns=wait.start_ns,
                    delivered_ns=wait.end_ns,
                    exposed_ns=None,
                    handed_over=True,
                )
            )
    return found


def _place_handed(
    handed: list[Delivery], asked: list[Delivery], inner: dict[tuple[int, int], list[Delivery]]
) -> list[Delivery]:
    """Return the hand-overs outside all asks; one inside an ask of a wrapped source is part of that ask."""
    starts = [item.wait_start_ns for item in asked]
    outside = []
    for item in handed:
        at = bisect_right(starts, item.wait_start_ns) - 1
        if at < 0 or item.wait_start_ns >= asked[at].delivered_ns:
            outside.append(item)
        elif asked[at].inline_tid is not None and item.delivered_ns <= asked[at].delivered_ns:
            inner[asked[at].loader, asked[at].number].append(item)
    return outside


def _with_samples(delivery: Delivery, inner: list[Delivery]) -> Delivery:
    """Give a wrapped source's batch the samples of the batches that it was made of, where all are known."""
    counts = [item.samples for item in inner if item.samples is not None]
    if delivery.samples is not None or not inner or len(counts) < len(inner):
        return delivery
    return replace(delivery, samples=sum(counts))


def _off_cpu_fraction(main: Process, tid: int, waits: list[Interval]) -> float | None:
    """Find the share of the time between the first and the last round of `tid` that it slept, waits aside.

    Time that it was ready to run and had no CPU is no sleep. None where fewer than two rounds say.
    """
    rounds = sorted((item for item in main.of_type(Round) if item.tid == tid), key=lambda item: item.mono_ns)
    if len(rounds) < 2:
        return None
    first, last = rounds[0], rounds[-1]
    length_ns = last.mono_ns - first.mono_ns
    delay_ns = max(0, last.run_delay_ns - max(0, first.run_delay_ns))
    off_cpu_ns = length_ns - (last.cpu_ns - first.cpu_ns) - delay_ns
    start_ns, end_ns = main.clock.to_session_ns(first.mono_ns), main.clock.to_session_ns(last.mono_ns)
    waited_ns = covered = 0
    for begin_ns, until_ns in sorted(waits):
        begin_ns, until_ns = max(begin_ns, start_ns, covered), min(until_ns, end_ns)
        if begin_ns < until_ns:
            waited_ns += until_ns - begin_ns
            covered = until_ns
    return max(0, off_cpu_ns - waited_ns) / length_ns if length_ns else None


def first_at(times: list[int], time_ns: int) -> int | None:
    """Return the first of the sorted `times` that is not before `time_ns`; None without one."""
    index = bisect_left(times, time_ns)
    return times[index] if index < len(times) else None
