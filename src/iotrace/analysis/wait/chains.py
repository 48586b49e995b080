"""Follow the work of a loop's items back through the stages that make them.

A stage that waits for its input waits for what the stage before makes meanwhile. So the loop's wait is that
of the stages which worked while it waited: each has a share by what its own work was made of.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from iotrace.analysis.intervals import Times, distinct
from iotrace.analysis.loop.deliveries import Deliveries
from iotrace.analysis.loop.hops import Hops, maker_key
from iotrace.analysis.table import NONE
from iotrace.analysis.wait.explain import Within, composed, explained
from iotrace.analysis.wait.file_costs import FileCosts, FileNames
from iotrace.analysis.wait.waits import Floats, Waits
from iotrace.sources.session import Rank, Session

_MOST_STAGES = 16  # one that is fed by itself, as by a queue of free places, has no first


def makers_of(deliveries: Deliveries, main_pid: int) -> Times:
    """Return the thread that made each: of a process that has one alone its main thread."""
    pid = deliveries.maker(main_pid)
    tid = np.where(deliveries.known("inline_tid"), deliveries["inline_tid"], deliveries["maker_tid"])
    return maker_key(pid, np.where(tid == NONE, pid, tid))


class Chains:
    """What was handed over between stages, each with what its making was made of."""

    def __init__(
        self, session: Session, rank: Rank, hops: Hops, mapped_by: dict[int, list[str]], names: FileNames
    ) -> None:
        self.hops, self._main_pid = hops, rank.main.pid
        deliveries = hops.deliveries
        rows, of = self.inside(deliveries)
        held = of, deliveries["wait_start_ns"][rows], deliveries["delivered_ns"][rows]
        self._parts: Floats
        self._files: FileCosts
        self._parts, self._files = composed(session, rank, deliveries, held, mapped_by, names)

    def inside(self, deliveries: Deliveries) -> tuple[Times, Times]:
        """Find what the maker of each of `deliveries` took while it made it, and for which of them."""
        makers = makers_of(deliveries, self._main_pid)
        starts, ends = deliveries["taken_ns"], deliveries["prepared_ns"]
        known = deliveries.made
        starts, ends = np.where(known, starts, 0), np.where(known, ends, 0)
        return self.hops.inside(makers, starts, ends)

    def within(self, deliveries: Deliveries) -> Within | None:
        """Explain the waits for other stages in the making of each of `deliveries`; None without any."""
        rows, of = self.inside(deliveries)
        if not len(rows):
            return None
        taken = self.hops.deliveries
        starts, ends = taken["wait_start_ns"][rows], taken["delivered_ns"][rows]
        begin = np.maximum(starts, deliveries["wait_start_ns"][of])
        until = np.maximum(begin, np.minimum(ends, deliveries["delivered_ns"][of]))
        return Within(self._waits(rows, begin, until, 1), of, starts, ends)

    def _waits(self, rows: Times, begin: Times, until: Times, depth: int) -> Waits:
        """Explain what of some hand-overs lies from `begin` to `until`."""
        deliveries = self.hops.deliveries[rows].changed(wait_start_ns=begin, delivered_ns=until)
        inner, awaited = None, np.flatnonzero(until > begin)
        if len(awaited) and depth < _MOST_STAGES:
            held, of = self.inside(deliveries[awaited])
            of = awaited[of]
            taken = self.hops.deliveries
            starts, ends = taken["wait_start_ns"][held], taken["delivered_ns"][held]
            first = np.maximum(starts, begin[of])
            last = np.maximum(first, np.minimum(ends, until[of]))
            if len(held):
                inner = Within(self._waits(held, first, last, depth + 1), of, starts, ends)
        return explained(deliveries, self._parts[rows], self._files.of_owners(rows), inner)

    def queues_of(self, deliveries: Deliveries) -> Times:
        """Return the queue, or the pool, that each came through, as `Hops.queue` has them."""
        row = self.hops.rows_of(deliveries)
        by_pool = -1 - deliveries["loader"]
        return np.where(row >= 0, self.hops.queue[row], by_pool) if len(self.hops.queue) else by_pool

    def worked(self, deliveries: Deliveries) -> dict[int, int]:
        """Sum up, by queue, how long its makers worked on what was awaited, while it was; in ns."""
        found: dict[int, int] = {}
        for _, queue, worked_ns, _ in self._stages(deliveries):
            for each in distinct(queue).tolist():
                found[each] = found.get(each, 0) + int(worked_ns[queue == each].sum())
        return found

    def within_locks(self, deliveries: Deliveries, locked: Callable[[Deliveries], Times]) -> int:
        """Sum up how much of what was awaited its makers waited for a lock; in ns.

        `locked` says that of each making. A maker may wait for it, too, as it takes what lies ready.
        """
        found = 0
        for own, _, worked_ns, late_ns in self._stages(deliveries):
            found += int(np.minimum(worked_ns + late_ns, locked(own)).sum())
        return found

    def _stages(self, deliveries: Deliveries) -> Iterator[tuple[Deliveries, Times, Times, Times]]:
        """Follow what was awaited back: items, their queues, and two times of the makers in ns, while it was.

        The first is their own work; in the second they had not yet taken what lay ready for them.
        """
        taken, queue = self.hops.deliveries, self.queues_of(deliveries)
        begin, until = deliveries["wait_start_ns"], deliveries["delivered_ns"]
        for _ in range(_MOST_STAGES):
            made = deliveries.made
            starts = np.maximum(begin, np.where(made, deliveries["taken_ns"], until))
            ends = np.minimum(until, np.where(made, deliveries["prepared_ns"], until))
            worked_ns, late_ns = np.maximum(0, ends - starts), np.zeros(len(deliveries), np.int64)
            rows, of = self.inside(deliveries)
            first = np.maximum(taken["wait_start_ns"][rows], begin[of])
            last = np.minimum(taken["delivered_ns"][rows], until[of])
            held = last > first
            rows, of, first, last = rows[held], of[held], first[held], last[held]
            np.subtract.at(worked_ns, of, last - first)
            inner = taken[rows]
            ready = np.where(inner.made, np.maximum(inner["prepared_ns"], first), last)
            np.add.at(late_ns, of, np.maximum(0, last - ready))
            yield deliveries, queue, np.maximum(0, worked_ns), late_ns
            if not len(rows):
                break
            deliveries, queue, begin, until = inner, self.hops.queue[rows], first, last
