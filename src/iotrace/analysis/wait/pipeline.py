"""The stages that make a loop's items: how busy each is, how much lies before it, which holds the loop up."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
from msgspec.structs import replace

from iotrace.analysis.intervals import Times, distinct, holding, subtract, union
from iotrace.analysis.loop.deliveries import Deliveries
from iotrace.analysis.loop.hops import maker_key
from iotrace.analysis.loop.queue_names import firsts_of
from iotrace.analysis.loop.taken_items import most_at_once
from iotrace.analysis.rank import RankAnalysis
from iotrace.analysis.results import HotLine, PipelineStage
from iotrace.analysis.table import sums
from iotrace.analysis.wait.called import called_by, shown_site, with_settings
from iotrace.analysis.wait.chains import Chains, makers_of
from iotrace.analysis.wait.hot_lines import Stack, hot_line, stack_samples
from iotrace.analysis.wait.locks import FILE, locks_of
from iotrace.session.names import KIND_ITEM
from iotrace.sources.records import LoopStacks

_MOST_STAGES = 16
_IDLE = 0.05  # of its time
_ROOM = 0.5  # of its time
_LEAST_SHARE = 0.25  # of the loop's wait: with less no stage holds the loop up


def pipeline_of(analysis: RankAnalysis) -> list[PipelineStage]:
    """Find the stages behind what the loop takes from queues and pools, the first one first."""
    chains, kept = analysis.chains, analysis.kept
    library = "" if analysis.source is None else analysis.source.description.library
    if not len(kept) or (analysis.loop.unknown_why and not library):
        return []
    start_ns, end_ns = int(kept["start_ns"].min()), int(kept["end_ns"].max())
    if analysis.loop.unknown_why:  # how long a function of the program works is known all the same
        called = called_by(library, analysis, start_ns, end_ns)
        return [replace(stage, wait_ms=0.0) for stage in reversed(with_settings(analysis, called))]
    awaited = kept.awaited
    found: list[PipelineStage] = []
    if chains is not None:
        items = _Items(analysis, chains, bool(library), start_ns, end_ns)
        worked: Counter[int] = Counter()
        for queue, ns in chains.worked(awaited).items():
            worked[items.first_of(queue)] += ns
        for queue in items.backwards(awaited):
            stage = items.stage(queue, worked[queue] / len(kept) / 1e6)
            # A library's own threads, which pass items on, are nothing to the program unless they work.
            if stage is not None and (stage.name != library or stage.busy >= _IDLE * stage.makers):
                found.append(stage)
    if library and all(stage.name == library for stage in found):
        found = called_by(library, analysis, start_ns, end_ns) or found
    found = with_settings(analysis, found)
    most = max(found, key=_holds_up, default=None)
    wait_ms = int(kept.wait_ns.sum()) / len(kept) / 1e6
    limits = most is not None and most.wait_ms > _LEAST_SHARE * wait_ms
    # One that waits for room as long is not too slow: the queue behind it is too short.
    limits = limits and most is not None and (most.room_fraction or 0.0) < _ROOM
    return [replace(stage, slowest=limits and stage is most) for stage in reversed(found)]


def _holds_up(stage: PipelineStage) -> float:
    """Weigh a stage's part of the wait by how much of its time it works: one with room to spare follows."""
    return stage.wait_ms * min(1.0, stage.busy / max(1, stage.makers))


class _Items:
    """All items that were handed over while the steps were measured, those of the loop among them.

    `renewed`: queues of a library, which makes new ones for each pass.
    """

    def __init__(
        self, analysis: RankAnalysis, chains: Chains, renewed: bool, start_ns: int, end_ns: int
    ) -> None:
        self._analysis, self._chains, hops = analysis, chains, chains.hops
        self._start_ns, self._end_ns = start_ns, end_ns
        pools = [each.deliveries for each in analysis.loaders if each.description.pool]
        of_loop = Deliveries.joined(pools)
        of_loop = of_loop[hops.rows_of(of_loop) < 0]
        self._all = Deliveries.joined([hops.deliveries, of_loop]) if len(of_loop) else hops.deliveries
        self._own_queue = np.concatenate((hops.queue, -1 - of_loop["loader"]))
        self._renewed = renewed
        self._first = firsts_of(hops.queues, hops.queue, hops.deliveries["delivered_ns"], renewed)
        self._queue = self._firsts(self._own_queue)
        self._makers = makers_of(self._all, analysis.rank.main.pid)
        self._locks = locks_of(analysis)

    def first_of(self, queue: int) -> int:
        """Return the queue, or pool, by which a stage is known."""
        return int(self._first[queue]) if queue >= 0 else queue

    def _firsts(self, queues: Times) -> Times:
        known = queues >= 0
        found: Times = queues.copy()
        found[known] = self._first[queues[known]]
        return found

    def backwards(self, awaited: Deliveries) -> list[int]:
        """List the queues and pools that the loop's items came through, the last one first."""
        through = self._firsts(self._chains.queues_of(awaited))
        # A source of the loop's own thread is no stage: those are, from which it takes meanwhile.
        sources = [-1 - each.number for each in self._analysis.loaders if not each.description.pool]
        inside, of = self._chains.inside(awaited)
        from_source = np.isin(through, sources)
        firsts = (through[~from_source], self._firsts(self._chains.hops.queue[inside[from_source[of]]]))
        found = [*dict.fromkeys(np.concatenate(firsts).tolist())]
        for queue in found:  # which grows
            rows = np.flatnonzero((self._queue == queue) & self._all.made)
            inside, _ = self._chains.inside(self._all[rows])
            before = distinct(self._firsts(self._chains.hops.queue[inside])).tolist()
            found += [each for each in before if each not in found and len(found) < _MOST_STAGES]
        # A library's own queues lie before and behind each stage, as one: time tells which comes first.
        return sorted(found, key=self._begun, reverse=True) if self._renewed else found

    def _begun(self, queue: int) -> int:
        ends = self._all["prepared_ns"][(self._queue == queue) & self._all.made]
        return int(ends.min()) if len(ends) else 0

    def stage(self, queue: int, wait_ms: float) -> PipelineStage | None:
        """Sum up who puts into a queue; None where nothing is known of their making."""
        rows = np.flatnonzero((self._queue == queue) & self._all.made)
        own = self._all[rows]
        within = (own["prepared_ns"] > self._start_ns) & (own["taken_ns"] < self._end_ns)
        rows, own = rows[within], own[within]
        if not len(own):
            return None
        inside, of = self._chains.inside(own)
        taken = self._chains.hops.deliveries
        waits = self._clipped(taken["wait_start_ns"][inside], taken["delivered_ns"][inside])
        first = np.searchsorted(of, np.arange(len(own)))
        waited = sums(waits, first, np.searchsorted(of, np.arange(len(own)), side="right"))
        busy_ns = self._clipped(own["taken_ns"], own["prepared_ns"]) - waited
        main = self._analysis.rank.main.pid
        by = self._makers[rows]
        makers = most_at_once(by, own["taken_ns"], own["prepared_ns"])
        name, puts, site = self._called(queue)
        length = self._chains.hops.length[inside]
        limits = [self._limit(each) for each in distinct(self._chains.hops.queue[inside]).tolist()]
        known = length >= 0
        return PipelineStage(
            name=name,
            makers=makers,
            of="threads" if (by >> 32 == main).any() else "processes",
            busy=int(busy_ns.sum()) / (self._end_ns - self._start_ns),
            items=len(own),
            item_ms=int(busy_ns.sum()) / len(own) / 1e6,
            **self._on_cpu(own, int(busy_ns.sum())),
            before=float(length[known].mean()) if known.any() else None,
            before_limit=next(iter(filter(None, limits)), None),
            room_fraction=self._room(by, makers, own) if self._limit(queue) else None,
            after_limit=self._limit(queue) or None,
            **self._locks_of(own, int(busy_ns.sum())),
            puts=puts,
            wait_ms=wait_ms,
            site=shown_site(self._analysis, site),
            hot=self._hot(name, own, by, inside),
        )

    def _room(self, by: Times, makers: int, own: Deliveries) -> float:
        """Find the share of the makers' time from the end of an item's making to the begin of the next."""
        order = np.lexsort((own["taken_ns"], by))
        same = by[order][1:] == by[order][:-1]
        ends, starts = own["prepared_ns"][order][:-1][same], own["taken_ns"][order][1:][same]
        whole_ns = makers * (self._end_ns - self._start_ns)
        return int(self._clipped(ends, starts).sum()) / whole_ns

    def _locks_of(self, own: Deliveries, busy_ns: int) -> dict[str, Any]:
        """Find the waits for locks in the making of items, ms of each.

        Of the interpreter's what lies in waits for input is not told apart: they are no longer than the work.
        """
        main = self._analysis.rank.main.pid
        waited = {lock: int(each.of(own, main).sum()) for lock, each in self._locks.items()}
        files = self._locks[FILE].files
        return {
            "locks_ms": {lock: min(ns, busy_ns) / len(own) / 1e6 for lock, ns in waited.items() if ns},
            "lock_file": max(files, key=lambda path: files[path]) if waited[FILE] else None,
        }

    def _clipped(self, starts: Times, ends: Times) -> Times:
        inside = np.minimum(ends, self._end_ns) - np.maximum(starts, self._start_ns)
        return np.asarray(np.maximum(0, inside))

    def _called(self, queue: int) -> tuple[str, str, str | None]:
        """Return what makes the items of a queue or a pool, its class, and the line of what makes them."""
        about = self._chains.hops.queues[queue] if queue >= 0 else None
        if about is not None:
            return about.by, about.of, about.site
        pools = {each.number: each.description for each in self._analysis.inputs.pools}
        pool = pools.get(-1 - queue)
        return ("", "", None) if pool is None else (pool.dataset or pool.pool, pool.pool, pool.item_site)

    def _hot(self, stage: str, own: Deliveries, by: Times, inside: Times) -> HotLine | None:
        """Find the line that the making of items is mostly in, outside of waits for what others make.

        A function whose lines share the time is told where it is not the one that `stage` goes by.
        """
        taken, found = self._chains.hops.deliveries[inside], list[Stack]()
        waits = taken["wait_start_ns"], taken["delivered_ns"], self._chains.hops.taker[inside]
        for process in self._analysis.rank.processes:
            for tid in {record.tid for record in process.of_type(LoopStacks)}:
                maker = maker_key(np.array([process.pid]), np.array([tid]))[0]
                mine = by == maker
                samples = stack_samples(process, tid)
                if not mine.any() or not samples.asked:
                    continue
                made = union(own["taken_ns"][mine], own["prepared_ns"][mine])
                waited = union(*(times[waits[2] == maker] for times in waits[:2]))
                found += samples.chosen(holding(*subtract(made, waited), samples.times) >= 0).each
        # Where a function calls what the stage does, its own line says nothing.
        calls = 2 * sum(stack.own is not None for stack in found) > len(found)
        paths = self._analysis.session.paths
        hot = hot_line(found, paths, of_called=calls, is_known=not calls)
        is_own = calls and hot is not None and hot.in_callee_of(stage) is None
        return hot_line(found, paths, of_called=True) if is_own else hot

    def _limit(self, queue: int) -> int:
        about = self._chains.hops.queues[queue] if queue >= 0 else None
        return 0 if about is None else about.limit

    def _on_cpu(self, own: Deliveries, busy_ns: int) -> dict[str, Any]:
        """Find the shares of the making in which its threads computed, and lacked a CPU; None: not timed."""
        pids, cpu_ns, delay_ns, timed = own.maker(self._analysis.rank.main.pid), 0, 0, 0
        for process in self._analysis.rank.processes:
            mine = own[pids == process.pid]
            spans = process.spans[process.spans["kind"] == KIND_ITEM]
            ends = (
                process.spans["start_ns"][:0] if not len(spans) else spans["start_ns"] + spans["duration_ns"]
            )
            held = np.isin(ends, mine["prepared_ns"])
            cpu_ns, timed = cpu_ns + int(spans["cpu_ns"][held].sum()), timed + int(held.sum())
            delay_ns += int(np.maximum(spans["run_delay_ns"][held], 0).sum())
        if 2 * timed < len(own) or busy_ns <= 0:
            return {"on_cpu_fraction": None, "queued_fraction": None}
        on_cpu = min(1.0, cpu_ns / busy_ns)
        return {"on_cpu_fraction": on_cpu, "queued_fraction": min(1 - on_cpu, delay_ns / busy_ns)}
