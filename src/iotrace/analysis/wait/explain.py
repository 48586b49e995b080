"""Explain waits: what made each batch, and what of its wait that was."""

from __future__ import annotations

from collections.abc import Iterator
from functools import reduce

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

from iotrace.analysis.intervals import Times, distinct, grouped, split_exactly
from iotrace.analysis.loop.deliveries import Deliveries
from iotrace.analysis.storage.io import MAPS
from iotrace.analysis.table import NONE, key_of, match
from iotrace.analysis.wait.called_files import with_called
from iotrace.analysis.wait.file_costs import Charges, FileCosts, FileNames
from iotrace.analysis.wait.inline import compose_inline
from iotrace.analysis.wait.page_faults import bounds
from iotrace.analysis.wait.production import PARTS, compose, without_holders
from iotrace.analysis.wait.read_ahead import threads_reading_ahead
from iotrace.analysis.wait.sending import sends_behind_next
from iotrace.analysis.wait.waits import CAUSES, Floats, Waits, split_waits
from iotrace.session.names import LOCKED_ROW
from iotrace.sources.posix_calls import PosixCalls
from iotrace.sources.processes import Process, SpansByStart
from iotrace.sources.session import Rank, Session

_STARTUP, _QUEUED, _SAMPLING, _TRANSPORT, _UNKNOWN = (
    CAUSES.index(cause) for cause in ("startup", "queued", "sampling", "transport", "unknown")
)
_OF_PARTS = [CAUSES.index(part) for part in PARTS]
_NEVER_IDLE = 0.9  # of a batch's way to the loop: so long its worker makes others
_MOST_AT_ONCE = 1 << 15  # batches that are composed together: their columns stay in the CPU's cache
_MOST_LATER = 64  # batches that a worker makes while one of its own is under way


class Within(msgspec.Struct, frozen=True):
    """Waits inside of the deliveries of a loader: wait i is inside the delivery in row `of[i]`.

    Each lies in the wait for that one. As a part of its production it lasts from `starts[i]` to `ends[i]`.
    """

    waits: Waits
    of: Times
    starts: Times
    ends: Times

    @classmethod
    def whole(cls, waits: Waits, of: Times) -> Within:
        """Take waits that lie inside of others as a whole."""
        return cls(waits, of, waits.deliveries["wait_start_ns"], waits.deliveries["delivered_ns"])

    @classmethod
    def joined(cls, one: Within, other: Within, names: FileNames) -> Within:
        """Put some behind others."""
        waits = Waits.joined([one.waits, other.waits], names)
        columns = ((getattr(one, field), getattr(other, field)) for field in ("of", "starts", "ends"))
        return cls(waits, *map(np.concatenate, columns))


def explain(
    session: Session,
    rank: Rank,
    deliveries: Deliveries,
    inner: Within | None = None,
    mapped_by: dict[int, list[str]] | None = None,
    names: FileNames | None = None,
) -> Waits:
    """Explain every delivery's wait, in the order given.

    `inner` has the waits that lie inside each, where a wrapped source asks other loaders. `mapped_by` keeps
    the mapped files of each process from one loader to the next, `names` number all files.
    """
    mapped_by, names = {} if mapped_by is None else mapped_by, names or FileNames()
    held = None if inner is None else (inner.of, inner.starts, inner.ends)
    parts, files = composed(session, rank, deliveries, held, mapped_by, names)
    return explained(deliveries, parts, files, inner, _locked_ns(rank.main, deliveries))


def _locked_ns(main: Process, deliveries: Deliveries) -> Times:
    """Sum up how long the loop's thread waited for the interpreter's lock in each ask."""
    rows, found = main.rows(LOCKED_ROW), np.zeros(len(deliveries), np.int64)
    rows = rows[rows["file"] < 0]
    asked_ns = main.clock.times_to_session_ns(rows["start_ns"])
    for tid in distinct(deliveries["tid"]).tolist() if len(rows) else ():
        own, mine = np.flatnonzero(deliveries["tid"] == tid), rows["tid"] == tid
        at = match(asked_ns[mine], deliveries["wait_start_ns"][own])
        found[own[at[at >= 0]]] = rows["waited_ns"][mine][at >= 0]
    return np.asarray(np.minimum(found, deliveries.wait_ns))


def composed(
    session: Session,
    rank: Rank,
    deliveries: Deliveries,
    held: tuple[Times, Times, Times] | None,
    mapped_by: dict[int, list[str]],
    names: FileNames,
) -> tuple[Floats, FileCosts]:
    """Compose the production of each delivery, outside of what is `held` by it: whose, starts, ends.

    Returns the parts, of shape (deliveries, `PARTS`) in ns, NaN where they are not known; and the files.
    """
    by_pid = {process.pid: process for process in rank.processes}
    ahead: dict[int, frozenset[int]] = {}
    parts, charges = (
        np.zeros((len(deliveries), len(PARTS)), order="F"),
        [],
    )  # a column of zeros takes no memory
    starts, ends, number = _windows(deliveries, held)
    unknown = np.ones(len(deliveries), np.bool_)
    unknown[number] = False
    parts[unknown] = np.nan
    threads = (deliveries.maker(rank.main.pid), deliveries["inline_tid"], deliveries["maker_tid"])
    of, by_thread = _by_thread(number, *threads)
    for (pid, tid, thread), group in by_thread:
        own = np.flatnonzero(of == group)
        if (starts[own][1:] <= starts[own][:-1]).any():
            own = own[np.lexsort((number[own], ends[own], starts[own]))]
        process = by_pid[pid]
        if tid == NONE and pid not in mapped_by:
            mapped_by[pid] = _mapped_files(session, process)
        if pid not in ahead:
            ahead[pid] = threads_reading_ahead(process, session.calls_of(process))
            process = by_pid[pid] = with_called(process, session.calls_of(process), session.paths)
        by_start = process.spans_by_start()
        for block in np.split(own, range(_MOST_AT_ONCE, len(own), _MOST_AT_ONCE)):
            window = starts[block], ends[block]
            near, calls = _near(session, process, by_start, int(window[0][0]), int(window[1].max()))
            if held is not None and tid == NONE:  # its own items hold pieces; of other loaders are those that
                near = without_holders(near, *_whole(deliveries[distinct(number[block])]))  # hold it whole
            if thread != NONE:  # of a pool: its other threads make other batches
                near = replace(near, spans=near.spans[near.spans["tid"] == thread])
                calls = calls.where(calls.tid == thread)
            if tid == NONE:
                cut = held is not None
                made = compose(
                    near, calls, session.paths, *window, mapped_by[pid], cut, names=names, ahead=ahead[pid]
                )
            else:
                made = compose_inline(near, calls, session.paths, *window, tid, names=names, ahead=ahead[pid])
            if held is None:  # one window each
                for column in np.flatnonzero(made.parts.any(axis=0)).tolist():
                    parts[number[block], column] = made.parts[:, column]
            else:
                np.add.at(parts, number[block], made.parts)
            charges.append(made.files.owned_by(number[block]))
    del starts, ends, number, of
    return parts, FileCosts.of(names, charges)


def _by_thread(rows: Times, *columns: Times) -> tuple[Times, list[tuple[tuple[int, ...], int]]]:
    """Group rows by what columns say of them: the group of each, and what they say of each group, sorted."""
    several = [column[rows] for column in columns if len(column) and (column != column[0]).any()]
    key = several[0] if len(several) == 1 else key_of(*several) if several else np.zeros(len(rows), np.int64)
    _, first, of = grouped(key)
    told = zip(*(column[rows[first]].tolist() for column in columns), strict=True)
    return of, sorted(zip(told, range(len(first)), strict=True))


def _near(
    session: Session, process: Process, by_start: SpansByStart, start_ns: int, end_ns: int
) -> tuple[Process, PosixCalls]:
    """Take the spans and the calls of a process that bear on an interval."""
    spans = process.spans[by_start.between(start_ns, end_ns)]
    if len(spans):  # what a span holds counts, also where the span is longer than the interval
        start_ns = min(start_ns, int(spans["start_ns"].min()))
        end_ns = max(end_ns, int(bounds(spans)[1].max()))
    return replace(process, spans=spans), session.calls_of(process).between(start_ns, end_ns)


def _whole(made: Deliveries) -> tuple[Times, Times]:
    """When each of some productions began and ended, in order."""
    order = np.argsort(made["taken_ns"], kind="stable")
    return made["taken_ns"][order], np.maximum(made["taken_ns"], made["prepared_ns"])[order]


def _windows(
    deliveries: Deliveries, held_by: tuple[Times, Times, Times] | None
) -> tuple[Times, Times, Times]:
    """Cut the productions into what lies outside the waits inside of them: starts, ends, whose they are."""
    made = deliveries.made & (deliveries["taken_ns"] != 0) & (deliveries["prepared_ns"] != 0)
    number = np.flatnonzero(made)
    taken, prepared = deliveries["taken_ns"][number], deliveries["prepared_ns"][number]
    if held_by is None:
        return taken, np.maximum(taken, prepared), number
    of, begin, until = held_by
    order = np.lexsort((begin, of))
    order = order[made[of[order]]]
    of, begin, until = of[order], begin[order], until[order]
    behind = np.searchsorted(of, number, side="right")
    held = behind > np.searchsorted(of, number)
    last = np.where(held, np.append(until, 0)[behind - 1], taken)
    first_of = np.argsort(np.concatenate((number, of)), kind="stable")
    last_of = np.argsort(np.concatenate((of, number)), kind="stable")
    starts = np.concatenate((taken, until))[first_of]
    ends = np.concatenate((begin, np.maximum(last, prepared)))[last_of]
    return starts, ends, np.concatenate((number, of))[first_of]


def explained(
    deliveries: Deliveries,
    parts: Floats,
    files: FileCosts,
    inner: Within | None,
    locked_ns: Times | None = None,
) -> Waits:
    """Split each wait by what its production was made of, where that is known.

    `locked_ns` is what the loop itself waited for the interpreter's lock in each: the item lay ready then.
    """
    causes = np.zeros((len(deliveries), len(CAUSES)), dtype=np.int64, order="F")
    if inner is not None:
        np.add.at(causes, inner.of, inner.waits.causes)
    production, transport = np.empty((2, len(deliveries)), np.int64)
    for first in range(0, len(deliveries), _MOST_AT_ONCE):
        own = slice(first, first + _MOST_AT_ONCE)
        production[own], transport[own] = _divide(deliveries[own], parts[own], causes[own])
    known = ~np.isnan(parts[:, 0])
    whole = _summed(parts)
    scale = np.divide(production, whole, out=np.zeros(len(whole)), where=known & (whole > 0))
    charges: list[Charges | FileCosts] = [files.scaled(scale)]
    under_way = transport if locked_ns is None else np.maximum(transport - locked_ns, 0)
    for rows, following, meanwhile in _made_meanwhile(deliveries, under_way, known):
        split = split_exactly(meanwhile, parts[following])
        causes[rows, _TRANSPORT] -= meanwhile
        causes[rows[:, None], _OF_PARTS] += split
        causes[rows, _UNKNOWN] += meanwhile - split.sum(axis=1)
        made = np.maximum(whole[following], 1)
        charges.append(_charged(files, rows, following, meanwhile / made))
    if inner is not None:
        further = inner.waits.files.owned_by(inner.of)
        seen = known[further.owner]
        charges.append(Charges(further.owner[seen], further.file[seen], further.parts[seen]))
    return Waits(deliveries, causes, FileCosts.of(files.names, charges), parts, files)


def _divide(deliveries: Deliveries, parts: Floats, causes: Times) -> tuple[Times, Times]:
    """Add to `causes`, which has what lies inside of each wait, what the rest of it was.

    Returns how long each waited for its production, and for the batch on its way. A column of `causes` that
    nothing is added to takes no memory.
    """
    known, inside = ~np.isnan(parts[:, 0]), causes.sum(axis=1)
    startup, queued, production, transport = split_waits(deliveries)
    production = production - inside
    sampled = np.clip(np.where(deliveries.known("sampled_ns"), deliveries["sampled_ns"], 0), 0, None)
    # Once it had the batch, the loop chose samples for its worker; without one, before it made the batch.
    behind = np.where(known & deliveries.known("sent_ns"), np.minimum(sampled, transport), 0)
    transport = transport - behind
    split = split_exactly(np.where(known, production, 0), np.where(known[:, None], parts, 0.0))
    of_parts = zip(_OF_PARTS, split.T, strict=True)
    for cause, part in ((_STARTUP, startup), (_QUEUED, queued), (_TRANSPORT, transport), *of_parts):
        if part.any():
            causes[:, cause] += np.where(known, part, 0)
    causes[:, _UNKNOWN] += np.where(known, production - split.sum(axis=1), deliveries.wait_ns - inside)
    before = np.clip(sampled - behind, 0, causes[:, _UNKNOWN])
    if (behind + before).any():
        causes[:, _SAMPLING] += behind + before
        causes[:, _UNKNOWN] -= before
    return production, transport


def _made_meanwhile(
    deliveries: Deliveries, transport: Times, known: npt.NDArray[np.bool_]
) -> Iterator[tuple[Times, Times, Times]]:
    """Find how long waits for batches under way were spent beside the making of their worker's later ones.

    A worker that makes others all that time is what limits the loop: were the way shorter, the wait would be
    as long, and lie before it. Besides, a stage that holds the interpreter lock (a JSON parser) keeps the
    worker's own thread from sending what is made: then what of any wait lies beside the making counts
    (`sends_behind_next`). Else a worker that idles meanwhile shows that the way is long.
    Yields the rows of the waits, those of the later batches, and the ns of each pair.
    """
    rows = np.flatnonzero(known & (deliveries["inline_tid"] == NONE))
    maker, taken, prepared = (deliveries[name] for name in ("pid", "taken_ns", "prepared_ns"))
    order = rows[np.lexsort((taken[rows], maker[rows]))]
    end = deliveries["delivered_ns"]
    busy_ns, left, pairs = np.zeros(len(deliveries), np.int64), transport.copy(), []
    for later in range(1, _MOST_LATER + 1):
        of, following = order[:-later], order[later:]
        beside = (maker[of] == maker[following]) & (taken[following] < end[of])
        if not beside.any():
            break
        of, following = of[beside], following[beside]
        until = np.minimum(end[of], prepared[following])
        busy_ns[of] += np.maximum(0, until - np.maximum(prepared[of], taken[following]))
        awaited = until - np.maximum(end[of] - transport[of], taken[following])
        awaited = np.clip(awaited, 0, left[of])
        left[of] -= awaited
        pairs.append((of, following, awaited))
    if not pairs:
        return
    never_idle = busy_ns >= _NEVER_IDLE * (end - prepared)
    if sends_behind_next(deliveries, transport):
        never_idle[:] = True
    for of, following, awaited in pairs:
        held = never_idle[of] & (awaited > 0)
        if held.any():
            yield of[held], following[held], awaited[held]


def _charged(files: FileCosts, rows: Times, following: Times, shares: Floats) -> Charges:
    """Charge `rows` with so large a share of what the files of `following` cost."""
    own = files.of_owners(following)
    return Charges(rows[own.owner], own.file, own.parts * shares[own.owner][:, None])


def _summed(columns: Floats) -> Floats:
    """Sum up each row, from left to right."""
    return np.asarray(reduce(np.add, columns.T))


def hand_over(deliveries: Deliveries, taken: Waits) -> Waits:
    """Explain the waits for batches that another thread handed over: `taken` are that thread's for them.

    What made the batch is that wait and what the thread did with the batch afterwards, which is unknown; the
    hand-over is charged pro rata to both. What was not handed over stays as it is.
    """
    handed = deliveries["handed_over"] != 0
    if not handed.any():
        return taken
    weights = taken.causes.astype(np.float64)
    after_ns = np.maximum(0, deliveries["delivered_ns"] - taken.deliveries["delivered_ns"])
    weights[:, _UNKNOWN] = taken.causes[:, _UNKNOWN] + after_ns
    causes = split_exactly(deliveries.wait_ns, weights)
    causes[:, _UNKNOWN] += deliveries.wait_ns - causes.sum(axis=1)
    whole = _summed(weights)
    scale = np.divide(deliveries.wait_ns, whole, out=np.zeros(len(whole)), where=whole > 0)
    return Waits(
        Deliveries.joined([deliveries, taken.deliveries])[np.arange(len(handed)) + len(handed) * ~handed],
        np.where(handed[:, None], causes, taken.causes),
        taken.files.scaled(np.where(handed, scale, 1.0)),
        np.where(handed[:, None], np.nan, taken.made),
        taken.made_files,
    )


def _mapped_files(session: Session, process: Process) -> list[str]:
    """The files that the process mapped, or that its parent had mapped when it was forked."""
    identity = process.identity
    mappers = [process]
    if identity.role == "forked":
        mappers += session.numbered(identity.node, identity.ppid)
    files: set[str] = set()
    for mapper in mappers:
        calls = session.calls_of(mapper)
        files.update(calls.files[number] for number in distinct(calls.file[calls.named(MAPS)]).tolist())
    return sorted(files)
