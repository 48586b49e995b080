"""Join the consumer's and the workers' records of each batch into loaders and deliveries."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import numpy as np
import numpy.typing as npt

from iotrace.analysis.intervals import Times
from iotrace.analysis.loop.deliveries import Deliveries, LoaderRun, Pass, PassKey
from iotrace.analysis.loop.hops import Made, made_of, scope_of
from iotrace.analysis.table import NONE, key_of, match
from iotrace.session import names
from iotrace.sources.columns import Columns
from iotrace.sources.processes import Process
from iotrace.sources.records import IteratorEnd, IteratorStart, PoolWorker, WorkerUp
from iotrace.sources.session import Rank


def loaders_of(rank: Rank) -> list[LoaderRun]:
    """Read the rank's loaders in the order they were first iterated.

    Loaders that one line makes anew, one after the other, with the same type of dataset,
    workers and kind, are one loader.
    """
    groups: list[list[LoaderRun]] = []
    alike: dict[Any, dict[int, int]] = defaultdict(dict)  # of one line and kind: when each group was over
    for loader in sorted(_as_recorded(rank), key=_began_ns):
        about, began_ns = loader.description, _began_ns(loader)
        own = alike[tuple(getattr(about, name) for name in _OF_ONE_LOADER), loader.kind]
        home = next((group for group, over_ns in own.items() if over_ns <= began_ns), None)
        if home is None or about.site is None:
            home = len(groups)
            groups.append([])
        groups[home].append(loader)
        own[home] = max(each.end_ns for each in loader.passes.values())
    return [_as_one(group) for group in groups]


_OF_ONE_LOADER = ("site", "dataset", "workers")


def _began_ns(loader: LoaderRun) -> int:
    return min(each.start_ns for each in loader.passes.values())


def _as_one(group: list[LoaderRun]) -> LoaderRun:
    if len(group) == 1:
        return group[0]
    number, epochs = group[0].number, 0
    parts: list[Deliveries] = []
    passes: dict[PassKey, Pass] = {}
    for loader in group:
        parts.append(loader.deliveries.changed(epoch=loader.deliveries["epoch"] + epochs))
        passes.update({(iterator, epochs + epoch): each for (iterator, epoch), each in loader.passes.items()})
        epochs = max(epoch for _, epoch in passes) + 1
    joined = Deliveries.joined(parts)
    deliveries = joined.changed(loader=number, number=np.arange(len(joined)))
    failures = [failure for loader in group for failure in loader.failures]
    return LoaderRun(number, group[-1].description, deliveries, passes, failures)


def _as_recorded(rank: Rank) -> list[LoaderRun]:
    """Read the loaders, each DataLoader object and wrapped source on its own."""
    main = rank.main
    started = main.of_type(IteratorStart)
    loader_of = {each.iterator: each.loader for each in started}
    iterators = np.array(sorted(loader_of), dtype=np.int64)
    rows = main.rows(names.BATCH_ROW)
    rows = rows[np.isin(rows["iterator"], iterators)]
    ends, asked_ns = _ends(main, rows)
    in_pass = _passes_of(rows)
    later_count = _later_counts(main, rows, in_pass, ends)
    own = np.array([loader_of[each] for each in iterators.tolist()], dtype=np.int64)
    deliveries = _deliveries(rank, rows, asked_ns, later_count)
    deliveries["loader"] = loader = (
        own[np.searchsorted(iterators, rows["iterator"])] if len(rows) else _NO_ROWS
    )
    descriptions: dict[int, IteratorStart] = {}
    starts: dict[int, dict[PassKey, IteratorStart]] = defaultdict(dict)
    for start in started:
        descriptions[start.loader] = start
        starts[start.loader].setdefault((start.iterator, start.epoch), start)
    by_asker = [number for number, about in descriptions.items() if about.wrapped and not about.pool]
    wrapped = np.array(by_asker, dtype=np.int64)
    inline = np.isin(loader, wrapped)
    deliveries["inline_tid"] = np.where(inline, deliveries["tid"], NONE)
    by_loader = np.argsort(loader, kind="stable")
    in_order, every = loader[by_loader], Columns(len(rows), deliveries)
    ends_of: dict[int, list[IteratorEnd]] = defaultdict(list)
    for (iterator, _), end in ends.items():
        ends_of[loader_of[iterator]].append(end)
    found = []
    for number, about in descriptions.items():
        mine = every[by_loader[slice(*np.searchsorted(in_order, [number, number + 1]))]]
        mine = mine.changed(number=np.arange(len(mine)))
        passes = {
            key: _pass(start, rows, asked_ns, in_pass.get(key, _NO_ROWS), ends.get(key), main)
            for key, start in starts[number].items()
        }
        failures = [end.outcome for end in ends_of[number] if end.outcome != "exhausted"]
        found.append(LoaderRun(number, about, Deliveries(mine, main.texts), passes, failures))
    return found


_NO_ROWS = np.empty(0, dtype=np.int64)
_AT_ONCE = (".map", ".Parallel")  # calls that may return several results at once
_CHECKSUMS = 1 << 30  # numbers of items from here on


def _ends(main: Process, rows: Columns) -> tuple[dict[PassKey, IteratorEnd], Times]:
    """Find how each pass ended, last, and when the wait for each batch began.

    An ask that failed, and was made again with nothing trained in between, is no end: the wait for the batch
    begins with the ask before.
    """
    asked_ns = rows["wait_start_ns"].copy()
    by_pass: dict[PassKey, list[IteratorEnd]] = defaultdict(list)
    known = {start.iterator for start in main.of_type(IteratorStart)}
    for end in main.of_type(IteratorEnd):
        if end.iterator in known:
            by_pass[end.iterator, end.epoch].append(end)
    found: dict[PassKey, IteratorEnd] = {}
    for key, ends in by_pass.items():
        found[key] = ends[-1]
        for number, failed in enumerate(ends):
            if failed.outcome == "exhausted":
                continue
            until_ns = ends[number + 1].mono_ns if number + 1 < len(ends) else np.iinfo(np.int64).max
            again = (rows["iterator"] == key[0]) & (rows["epoch"] == key[1])
            again &= (rows["delivered_ns"] >= failed.mono_ns) & (rows["delivered_ns"] < until_ns)
            again &= (rows["tid"] == failed.tid) & (rows["backward_count"] == failed.backward_count)
            if again.any():
                asked_ns[int(again.argmax())] = failed.wait_start_ns
                if number + 1 == len(ends):
                    del found[key]
    return found, asked_ns


def _later_counts(
    main: Process, rows: Columns, in_pass: dict[PassKey, Times], ends: dict[PassKey, IteratorEnd]
) -> Times:
    """Count the backward passes until the next ask of each batch's pass; of its last batch, until any ask."""
    count, found = rows["backward_count"], np.empty(len(rows), np.int64)
    for key, own in in_pass.items():
        last, end = int(own[-1]), ends.get(key)
        found[own[:-1]] = count[own[1:]]
        if end is not None:
            found[last] = end.backward_count
        else:
            found[last] = count[last + 1] if last + 1 < len(rows) else _count_at_end(main, rows[last])
    return found


def _count_at_end(main: Process, last: Any) -> int:
    """Count the backward passes that the process made until its records end; `last` is its last batch."""
    asks = [(each.mono_ns, each.backward_count) for each in main.of_type(IteratorEnd)]
    every = main.rows(names.BATCH_ROW)
    asks += zip(every["delivered_ns"][-1:].tolist(), every["backward_count"][-1:].tolist(), strict=True)
    at_ns, count = max([each for each in asks if each[0] >= last["delivered_ns"]], key=lambda ask: ask[0])
    rounds = main.rows(names.ROUND_ROW)
    backward = rounds["mono_ns"][rounds["what"] == names.ROUNDS.index("backward")]
    return int(count + (backward > at_ns).sum())


def _deliveries(rank: Rank, rows: Columns, asked_ns: Times, later_count: Times) -> dict[str, Times]:
    """Make the columns of the deliveries, joined with what their workers recorded."""
    main = rank.main
    shared = ("iterator", "epoch", "index", "tid", "grad", "phase", "worker", "pid")
    found = {field: rows[field] for field in shared}
    found["samples"] = rows["samples"].copy()
    for field in ("up_ns", "taken_ns", "prepared_ns", "size_bytes", "tensors"):
        found[field] = np.full(len(rows), NONE)
    for field in ("exposed_ns", "maker_tid", "piped_bytes", "arrived_ns", "given_bytes"):
        found[field] = np.broadcast_to(NONE, len(rows))
    real = main.clock.times_to_session_ns
    found["wait_start_ns"], found["delivered_ns"] = real(asked_ns), real(rows["delivered_ns"])
    found["sent_ns"] = np.where(rows["sent_ns"] == -1, NONE, real(rows["sent_ns"]))
    found["followed_by_backward"] = (later_count > rows["backward_count"]).astype(np.int64)
    found["handed_over"] = np.broadcast_to(0, len(rows))
    chosen = [start.iterator for start in main.of_type(IteratorStart) if start.sampler]
    found["sampled_ns"] = _sampled(rows, asked_ns, np.isin(rows["iterator"], np.array(chosen, np.int64)))
    own = (rows["worker"] == -1) & (rows["fetch_end_ns"] > 0)
    found["taken_ns"][own] = found["wait_start_ns"][own]
    found["prepared_ns"][own] = real(rows["fetch_end_ns"][own])
    pools = [start.iterator for start in main.of_type(IteratorStart) if start.pool]
    of_pools = np.isin(rows["iterator"], np.array(pools, np.int64))
    for name in ("taken_ns", "prepared_ns"):
        found[name][of_pools] = NONE
    for process in rank.workers:
        _join(found, rows, process)
    if pools:
        _join_tasks(found, rows, of_pools, rank)
    for field in ("worker", "pid", "samples", "size_bytes"):
        unknown = found[field] == -1
        found[field] = np.where(unknown, NONE, found[field]) if unknown.any() else found[field]
    exposed = main.rows(names.EXPOSED_ROW)
    if len(exposed):
        by_batch = (
            key_of(*(each[field] for field in ("iterator", "epoch", "index"))) for each in (rows, exposed)
        )
        at = match(*by_batch)
        found["exposed_ns"] = np.where(at >= 0, exposed["exposed_ns"][at], NONE)
    return found


def _sampled(rows: Columns, asked_ns: Times, by_program: npt.NDArray[np.bool_]) -> Times:
    """How long the loop chose samples in each wait: until its fetch began, or the last index was sent in it.

    It chooses those of a later batch when it has this one from the workers. There only samplers of the
    program count (`by_program`): torch's own take microseconds, and what is longer is a wait for a CPU.
    """
    inline = (rows["worker"] == -1) & (rows["fetch_start_ns"] >= asked_ns)
    found = np.where(inline, rows["fetch_start_ns"] - asked_ns, NONE)
    had_ns = np.maximum(rows["received_ns"], rows["pinned_ns"])
    own = np.flatnonzero(by_program & (rows["worker"] != -1) & (had_ns > 0))
    sent_ns = np.sort(rows["sent_ns"])
    last_ns = np.append(sent_ns, 0)[np.searchsorted(sent_ns, rows["delivered_ns"][own], side="right") - 1]
    found[own] = np.maximum(0, last_ns - np.maximum(asked_ns[own], had_ns[own]))
    return found


def _join(found: dict[str, Times], rows: Columns, worker: Process) -> None:
    """Add when a worker took and prepared each batch that it made, how many samples and bytes it holds."""
    of_worker = np.flatnonzero(rows["pid"] == worker.pid)
    produced = worker.rows(names.PRODUCED_ROW)
    key = key_of(*(rows[field][of_worker] for field in ("generation", "index")))
    at = match(key, key_of(produced["generation"], produced["index"]))
    joined, made = of_worker[at >= 0], at[at >= 0]
    up = next(iter(worker.of_type(WorkerUp)), None)
    found["up_ns"][joined] = NONE if up is None else worker.clock.to_session_ns(up.mono_ns)
    for field in ("taken_ns", "prepared_ns"):
        found[field][joined] = worker.clock.times_to_session_ns(produced[field][made])
    found["samples"][joined], found["size_bytes"][joined] = produced["samples"][made], produced["bytes"][made]
    many = worker.rows(names.TENSORS_ROW)
    at = match(key, key_of(many["generation"], many["index"]))
    found["tensors"][of_worker[at >= 0]] = many["tensors"][at[at >= 0]]


def _join_tasks(found: dict[str, Times], rows: Columns, of_pools: npt.NDArray[np.bool_], rank: Rank) -> None:
    """Add when and where the tasks of pools, and the items of queues, were made."""
    made, own = made_of(rank), np.flatnonzero(of_pools)
    pool, main = rows["generation"][own], rank.main
    row = made.rows_of(scope_of(pool, main), pool, rows["index"][own], found["delivered_ns"][own])
    joined, row = own[row >= 0], row[row >= 0]
    gathers = [each.iterator for each in main.of_type(IteratorStart) if each.pool.endswith(_AT_ONCE)]
    at_once = np.isin(rows["iterator"][joined], np.array(gathers, np.int64))
    begun_ns = made.taken_ns[row]
    begun_ns[at_once] = _begun_with(made, row[at_once], found["wait_start_ns"][joined[at_once]])
    summed = np.flatnonzero(
        of_pools & (rows["index"] >= _CHECKSUMS)
    )  # of pipes: no reader knows an item by it
    for field in ("index", "pid", "worker", "maker_tid", "piped_bytes", "given_bytes", "up_ns"):
        found[field] = found[field].copy()
    came_ns = np.where(of_pools, rows["received_ns"], -1)
    found["arrived_ns"] = np.where(came_ns < 0, NONE, main.clock.times_to_session_ns(came_ns))
    found["index"][summed] = np.arange(len(summed))
    found["taken_ns"][joined], found["prepared_ns"][joined] = begun_ns, made.prepared_ns[row]
    sent = at_once & (made.piped_bytes[row] != NONE)
    found["prepared_ns"][joined[sent]] = begun_ns[sent] + _making_ns(made, row[sent], begun_ns[sent])
    elsewhere = made.pid[row] != main.pid
    worker_of = {each.pid: NONE if each.worker is None else each.worker for each in rank.workers}
    found["maker_tid"][joined] = made.thread(rank)[row]
    found["piped_bytes"][joined], found["given_bytes"][joined] = made.piped_bytes[row], made.given_bytes[row]
    found["up_ns"][joined] = 0  # threads are there at once
    for process in rank.workers:
        began = [each.mono_ns for each in process.of_type(PoolWorker)]
        if began:
            found["up_ns"][joined[made.pid[row] == process.pid]] = process.clock.to_session_ns(min(began))
    found["pid"][joined[elsewhere]] = made.pid[row][elsewhere]
    found["worker"][joined[elsewhere]] = [worker_of[pid] for pid in made.pid[row][elsewhere].tolist()]


def _begun_with(made: Made, row: Times, asked_ns: Times) -> Times:
    """Find when the maker of each item began with it, or with others that came along with it.

    What a call returns at once is known by its last item; its maker has made others since the call began.
    """
    begun_ns: Times = made.taken_ns[row]
    along = np.ones(len(made.item), np.bool_)
    along[row] = False
    if not along.any():
        return begun_ns
    makers = _makers_of(made)
    for maker in np.unique(makers[row]).tolist():
        mine = np.flatnonzero(makers[row] == maker)
        starts = np.sort(made.taken_ns[along & (makers == maker)])
        first = np.append(starts, NONE)[np.searchsorted(starts, asked_ns[mine])]
        begun_ns[mine] = np.where(first == NONE, begun_ns[mine], np.minimum(first, begun_ns[mine]))
    return begun_ns


def _makers_of(made: Made) -> Times:
    """Number who made each item, and for which pool."""
    of = np.stack((made.scope, made.pool, made.pid, made.tid), 1)
    return np.asarray(np.unique(of, axis=0, return_inverse=True)[1].reshape(-1))


def _making_ns(made: Made, row: Times, begun_ns: Times) -> Times:
    """Sum up how long the maker of each item worked on it, and on those that come along, since `begun_ns`.

    In between it sent large results.
    """
    found = np.zeros(len(row), np.int64)
    makers = _makers_of(made) if len(row) else row
    for maker in np.unique(makers[row]).tolist() if len(row) else ():
        mine, own = np.flatnonzero(makers[row] == maker), np.flatnonzero(makers == maker)
        own = own[np.argsort(made.taken_ns[own], kind="stable")]
        lengths = np.where(made.taken_ns[own] == NONE, 0, made.prepared_ns[own] - made.taken_ns[own])
        until = np.append(0, np.cumsum(lengths))
        first, behind = (
            np.searchsorted(made.taken_ns[own], at) for at in (begun_ns[mine], made.prepared_ns[row[mine]])
        )
        found[mine] = until[behind] - until[first]
    return found


def _passes_of(rows: Columns) -> dict[PassKey, Times]:
    """The rows of the batches of each pass, in order."""
    order = np.lexsort((rows["epoch"], rows["iterator"]))
    iterator, epoch = rows["iterator"][order], rows["epoch"][order]
    cuts = np.flatnonzero((iterator[1:] != iterator[:-1]) | (epoch[1:] != epoch[:-1])) + 1
    parts = np.split(order, cuts) if len(order) else []
    return {(int(rows["iterator"][part[0]]), int(rows["epoch"][part[0]])): part for part in parts}


def _pass(
    start: IteratorStart, rows: Columns, asked_ns: Times, own: Times, end: IteratorEnd | None, main: Process
) -> Pass:
    """Make a pass of which the rows `own` are."""
    real = main.clock.to_session_ns
    exhausted = None
    if end is not None and end.outcome == "exhausted":
        exhausted = real(end.wait_start_ns), real(end.mono_ns)
    last = max([start.mono_ns, *rows["delivered_ns"][own[-1:]].tolist(), *([end.mono_ns] if end else [])])
    phase = main.texts.get(int(rows["phase"][own[0]])) if len(own) else start.phase
    first = int(asked_ns[own[0]]) if len(own) else start.mono_ns
    return Pass(real(start.mono_ns), real(first), real(last), len(own), phase, exhausted, start.tid)
