"""Hand-overs between threads and processes that make a loop's items: who took what, and who had made that.

A stage takes items from a queue or a pool, and puts others into a queue. So the making of an item holds waits
of its maker for what other stages make.
"""

from __future__ import annotations

import msgspec
import numpy as np
import numpy.typing as npt

from iotrace.analysis.intervals import Times, grouped, ranges
from iotrace.analysis.loop.deliveries import FIELDS, Deliveries
from iotrace.analysis.loop.queue_names import firsts_of, named_apart
from iotrace.analysis.table import NONE, key_of, match
from iotrace.session import names
from iotrace.sources.columns import Columns
from iotrace.sources.processes import Process
from iotrace.sources.records import Queue
from iotrace.sources.rows import TIME_FIELDS
from iotrace.sources.session import Rank


class Made(msgspec.Struct, frozen=True):
    """Items as columns, by whom they were made and when; `taken_ns` is `NONE` where the beginning is unknown.

    Queues of threads are numbered in each process anew: `scope` is its pid, 0 for what all processes know.
    `piped_bytes`: a large one is pickled and sent by a pipe; else `NONE`. `given_bytes`: likewise its task.
    """

    scope: Times
    pool: Times
    item: Times
    pid: Times
    tid: Times
    taken_ns: Times
    prepared_ns: Times
    fed: Times
    piped_bytes: Times
    given_bytes: Times

    def thread(self, rank: Rank) -> Times:
        """Return the thread that made each; `NONE` for all of a process whose main thread alone makes items.

        A library may read and decode on threads of its own there.
        """
        found: Times = self.tid.copy()
        for process in rank.workers:
            own = self.pid == process.pid
            if (self.tid[own] == process.pid).all():
                found[own] = NONE
        return found

    def rows_of(self, scope: Times, pool: Times, item: Times, taken_ns: Times) -> Times:
        """Find who made each item that was taken; -1: unknown. Those of one number come in order."""
        own = _counted(key_of(self.scope, self.pool, self.item), self.prepared_ns)
        return match(_counted(key_of(scope, pool, item), taken_ns), own)


def _counted(keys: Times, times: Times) -> Times:
    """Tell equal keys apart by their order in time."""
    order = np.lexsort((times, keys))
    first = np.append(True, keys[order][1:] != keys[order][:-1])[: len(order)]
    count = np.arange(len(order)) - np.maximum.accumulate(np.where(first, np.arange(len(order)), 0))
    found = np.empty(len(order), np.int64)
    found[order] = count
    return key_of(keys, found)


class Hops(msgspec.Struct, frozen=True):
    """Items that threads took, as deliveries in order of their taker and time; `taker` has its pid and tid.

    `queue` is the queue's place in `queues`, of a pool -1 less its loader's number. `length` says how many
    lay there when the thread asked, `kind` what class an item is of (a number in `kinds`); -1: unknown.
    """

    deliveries: Deliveries
    taker: Times
    queue: Times
    length: Times
    kind: Times
    kinds: list[str]
    queues: list[Queue | None]

    def inside(self, makers: Times, starts: Times, ends: Times) -> tuple[Times, Times]:
        """Find the rows that each maker took in its window, and the window of each."""
        numbers, first, of = grouped(self.taker)
        behind = np.append(first[1:], len(of))
        asked, got = self.deliveries["wait_start_ns"], self.deliveries["delivered_ns"]
        low, high = np.zeros(len(makers), np.int64), np.zeros(len(makers), np.int64)
        for number, begin, end in zip(numbers.tolist(), first.tolist(), behind.tolist(), strict=True):
            own = np.flatnonzero(makers == number)
            low[own] = begin + np.searchsorted(asked[begin:end], starts[own])
            high[own] = begin + np.searchsorted(got[begin:end], ends[own], side="right")
        return ranges(low, np.maximum(low, high))

    @classmethod
    def of_pools(cls, deliveries: Deliveries, takers: Times) -> Hops:
        """Take deliveries of pools for hand-overs to `takers`."""
        unknown = np.full(len(deliveries), -1)
        return cls(deliveries, takers, -1 - deliveries["loader"], unknown, unknown, [], [])

    @classmethod
    def joined(cls, parts: list[Hops]) -> Hops:
        """Put some behind the first, which has the queues; what several tell of counts once."""
        deliveries = Deliveries.joined(part.deliveries for part in parts)
        taker, queue, length, kind = (
            np.concatenate([getattr(part, field) for part in parts])
            for field in ("taker", "queue", "length", "kind")
        )
        _, first = np.unique(key_of(taker, deliveries["delivered_ns"]), return_index=True)
        rows = first[np.lexsort((deliveries["wait_start_ns"][first], taker[first]))]
        columns = (taker[rows], queue[rows], length[rows], kind[rows])
        return cls(deliveries[rows], *columns, parts[0].kinds, parts[0].queues)

    def rows_of(self, taken: Deliveries) -> Times:
        """Find the hand-overs that deliveries to threads of the rank's own process are; -1: none."""
        known = key_of(self.deliveries["tid"], self.deliveries["delivered_ns"])
        return match(key_of(taken["tid"], taken["delivered_ns"]), known)


def made_of(rank: Rank) -> Made:
    """Join what the processes of a rank say of the items that they made."""
    parts = []
    for process in rank.processes:
        rows = process.rows(names.MADE_ROW)
        real = process.clock.times_to_session_ns
        begun = np.where(rows["taken_ns"] < 0, NONE, real(rows["taken_ns"]))
        scope = scope_of(rows["pool"], process)
        pid = np.full(len(rows), process.pid)
        fields = (rows["pool"], rows["task"], pid, rows["tid"], begun, real(rows["prepared_ns"]), rows["fed"])
        large = (_piped(process, rows, kind) for kind in (names.SENT_ROW, names.GIVEN_ROW))
        parts.append((scope, *fields, *large))
    return _with_parts(Made(*(np.concatenate(columns) for columns in zip(*parts, strict=True))), rank.main)


def _with_parts(made: Made, main: Process) -> Made:
    """Add the items of a task that makes several: they come along with the first, which took all the time.

    The process that made them sends them as one, and does not tell of each.
    """
    rows = main.rows(names.BATCH_ROW)
    rows = rows[(rows["generation"] >= 0) & (rows["index"] >= names.PART_OF_TASK)]
    if not len(rows):
        return made
    pool, item, delivered_ns = rows["generation"], rows["index"], rows["delivered_ns"]
    scope, taken_ns = scope_of(pool, main), main.clock.times_to_session_ns(delivered_ns)
    told = made.rows_of(scope, pool, item, taken_ns) >= 0
    first = made.rows_of(scope, pool, item % names.PART_OF_TASK, taken_ns)
    chosen = np.flatnonzero(~told & (first >= 0))
    own = first[chosen]
    parts = {field: getattr(made, field)[own] for field in made.__struct_fields__}
    parts |= {"item": item[chosen], "taken_ns": made.prepared_ns[own], "fed": np.zeros(len(own), np.int64)}
    parts |= dict.fromkeys(("piped_bytes", "given_bytes"), np.full(len(own), NONE))
    return Made(**{field: np.concatenate((getattr(made, field), own)) for field, own in parts.items()})


def _piped(process: Process, made: Columns, kind: int) -> Times:
    """Find the bytes of each item that the process sent, or that its task came with; `NONE`: few."""
    sent = process.rows(kind)
    if not len(sent):
        return np.full(len(made), NONE)
    own = _counted(key_of(made["pool"], made["task"]), made["prepared_ns"])
    at = match(own, _counted(key_of(sent["pool"], sent["item"]), sent[TIME_FIELDS[kind] or ""]))
    return np.where(at >= 0, sent["bytes"][at], NONE)


def scope_of(pool: Times, process: Process) -> Times:
    """Return the process in which a number stands for a pool or a queue; 0: in all of them."""
    return np.where(pool % 2, 0, process.pid)


def maker_key(pid: Times, tid: Times) -> Times:
    """Return one number for each thread."""
    return np.asarray(pid * (1 << 32) + tid)


def hops_of(rank: Rank, made: Made) -> Hops:
    """Join what threads took from queues with who made it."""
    parts: list[tuple[Times, ...]] = []
    kinds: dict[str, int] = {}
    queues: dict[tuple[int, int], int] = {}
    about: list[Queue | None] = []
    for process in rank.processes:
        rows, described = process.rows(names.HANDED_ROW), process.of_type(Queue)
        for each in described:
            key = int(scope_of(np.array([each.queue]), process)[0]), each.queue
            if key not in queues:
                queues[key] = len(about)
                about.append(each)
            elif not getattr(about[queues[key]], "by", ""):  # who puts there knows it
                about[queues[key]] = each
        real, scope = process.clock.times_to_session_ns, scope_of(rows["queue"], process)
        kind_of = [kinds.setdefault(process.texts.get(one, ""), len(kinds)) for one in rows["kind"].tolist()]
        for key in {*zip(scope.tolist(), rows["queue"].tolist(), strict=True)} - queues.keys():
            queues[key] = len(about)
            about.append(None)
        place = [queues[key] for key in zip(scope.tolist(), rows["queue"].tolist(), strict=True)]
        pid, times = np.full(len(rows), process.pid), (real(rows["asked_ns"]), real(rows["taken_ns"]))
        numbers = (np.array(each, np.int64) for each in (place, kind_of))
        parts.append((scope, rows["queue"], rows["item"], pid, rows["tid"], *times, rows["length"], *numbers))
    scope, number, item, pid, tid, asked, taken, length, queue, kind = map(
        np.concatenate, zip(*parts, strict=True)
    )
    row = made.rows_of(scope, number, item, taken)

    def of_maker(column: Times) -> Times:
        none = np.full(len(row), NONE)
        return np.where(row >= 0, column[np.maximum(row, 0)], none) if len(column) else none

    columns: dict[str, npt.ArrayLike] = {
        **dict.fromkeys(FIELDS, NONE),
        **dict.fromkeys(("iterator", "epoch", "grad", "followed_by_backward", "handed_over"), 0),
        "loader": number,
        "number": np.arange(len(number)),
        "index": item,
        "wait_start_ns": asked,
        "delivered_ns": taken,
        "tid": tid,
        "pid": of_maker(made.pid),
        "maker_tid": of_maker(made.thread(rank)),
        "taken_ns": of_maker(made.taken_ns),
        "prepared_ns": of_maker(made.prepared_ns),
    }
    deliveries = Deliveries(Columns(len(number), columns), rank.main.texts)
    about = named_apart(about, firsts_of(about, queue, taken))
    found = Hops(deliveries, maker_key(pid, tid), queue, length, kind, [*kinds], about)
    return Hops.joined([found])
