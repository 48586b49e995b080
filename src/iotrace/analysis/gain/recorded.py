"""From a rank's records to the pipeline that is replayed, or to the reason why it is none.

What a batch costs between its worker and the consumer: its way, and to receive it.
"""

from __future__ import annotations

import math

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

from iotrace.analysis.gain.pipeline import Epoch, Floats, Pipeline
from iotrace.analysis.intervals import Times, distinct
from iotrace.analysis.loop.deliveries import Deliveries, LoaderRun, Pass
from iotrace.analysis.loop.thread_cpu import thread_cpu
from iotrace.analysis.rank import RankAnalysis
from iotrace.analysis.results import System
from iotrace.analysis.table import key_of, match
from iotrace.analysis.wait.production import PARTS, outermost_of
from iotrace.analysis.wait.sending import sends_behind_next
from iotrace.analysis.wait.waits import Waits, split_waits
from iotrace.session import names
from iotrace.session.names import KIND_COLLATE, KIND_ITEM
from iotrace.sources.records import Tick

_FEWEST_READY = 4  # batches that lay ready: from so many the consumer's own part of receiving is known
_MOST_HELD_NS = 3 * 5_000_000  # sending takes the interpreter's lock a few times; each takes 5 ms at most


class Transport(msgspec.Struct, frozen=True):
    """How long each batch was under way and what it took to receive it, in ns; whether a thread pins them.

    For `held_ns` of its way a batch may have waited for the interpreter's lock, while its worker computed
    the next ones.
    """

    latency_ns: Floats
    service_ns: Floats
    held_ns: Floats
    pinned: bool = False

    @classmethod
    def of(cls, analysis: RankAnalysis, own: Deliveries, cpu_ns: Floats, delay_ns: Floats) -> Transport:
        """Divide the time from a batch's making to its receipt.

        Its worker computed for `cpu_ns`, and waited for a CPU for `delay_ns`; long code kept the lock then.

        Of a batch that lay ready, all is receiving: what the consumer needs in any case. The rest of what an
        awaited batch takes is its way. Where none lay ready, the way is what the lock may have held.
        """
        rows = analysis.rank.main.rows(names.BATCH_ROW)
        at = match(key_of(own["iterator"], own["epoch"], own["index"]),
                   key_of(rows["iterator"], rows["epoch"], rows["index"]))  # fmt: skip
        real = analysis.rank.main.clock.times_to_session_ns
        found = np.where(at >= 0, rows["received_ns"][at], -1)
        pinned_ns = np.where(at >= 0, rows["pinned_ns"][at], -1)
        pinned = bool((pinned_ns > 0).any())
        received = np.where(found > 0, real(found), own["delivered_ns"])
        if pinned:
            received = np.where(pinned_ns > 0, real(pinned_ns), received)
        order = np.argsort(received, kind="stable")
        before = np.empty(len(own), np.int64)
        before[order] = np.concatenate([[0], received[order][:-1]])
        prepared = np.where(own.made, own["prepared_ns"], received)
        starts = np.maximum(prepared, before)
        if not pinned:  # the consumer receives while it asks, and only then
            ask = np.maximum(np.searchsorted(own["wait_start_ns"], received, side="right") - 1, 0)
            starts = np.maximum(starts, own["wait_start_ns"][ask])
        tail = np.maximum(received - starts, 0).astype(np.float64)
        ready = prepared < starts
        is_long = sends_behind_next(own, split_waits(own)[3])
        busy_ns = cpu_ns + delay_ns if is_long else cpu_ns
        held = _held(own, starts, received, busy_ns)
        held = np.minimum(held if is_long else np.minimum(held, _MOST_HELD_NS), np.minimum(tail, busy_ns))
        is_known = ready.sum() >= _FEWEST_READY and not is_long
        service = float(np.median(tail[ready])) if is_known else None
        if service is None:
            return cls(held, tail - held, held, pinned)
        latency = np.maximum(tail - service, 0.0)
        latency, held = (
            np.where(ready, float(np.median(each[~ready])) if (~ready).any() else 0.0, each)
            for each in (latency, np.minimum(held, latency))
        )
        return cls(latency, np.where(ready, tail, np.minimum(tail, service)), held, pinned)


def _held(own: Deliveries, starts: Times, received: Times, cpu_ns: Floats) -> Floats:
    """How long each batch's worker computed others, which may keep its sending thread from running, ns."""
    found = np.zeros(len(own))
    for pid in np.unique(own["pid"][own.made]).tolist():
        rows = np.flatnonzero(own.made & (own["pid"] == pid))
        rows = rows[np.argsort(own["taken_ns"][rows], kind="stable")]
        at = np.column_stack((own["taken_ns"][rows], own["prepared_ns"][rows])).ravel()
        computed = np.repeat(np.cumsum(cpu_ns[rows]), 2)
        computed[0::2] -= cpu_ns[rows]
        until, since = (np.interp(times[rows], at, computed) for times in (received, starts))
        found[rows] = np.maximum(until - since, 0)
    return found


MOST = 400  # batches that are replayed: of more, those up to the end of the first passes
FEWEST = 8  # measured batches, below which nothing is replayed
_UNKNOWN = 0.05  # of the batches: how many may have no known making
_MOST_WORKERS, _MOST_PREFETCHED = 1024, 65536  # of damaged records


class Withheld(Exception):  # noqa: N818 - no error: the reason why nothing is predicted
    """Why the recorded batches cannot be replayed: a sentence for the user."""


class Recorded(msgspec.Struct, frozen=True):
    """A pipeline with what was measured of it; rows are the batches that are replayed.

    `measured` marks those that measured steps await, `wait_ns` is what the consumer waited for each.
    `parts_ns` splits ``made_ns``, each batch's production, as `PARTS` does; `delay_ns` of it is a wait for a
    CPU; `held_ns` is `Transport`'s.
    """

    pipeline: Pipeline
    waits: Waits
    measured: npt.NDArray[np.bool_]
    wait_ns: Floats
    made_ns: Floats
    parts_ns: Floats
    delay_ns: Floats
    held_ns: Floats
    loop_delay_ns: Floats | None = None  # what the training thread waited for a CPU behind each batch


def as_it_was(found: Recorded) -> Recorded:
    """See each wait for a CPU as computing on CPUs that nobody else needs: the run as it went."""
    pipe = found.pipeline
    late = 0.0 if found.loop_delay_ns is None else found.loop_delay_ns
    pipeline = replace(
        pipe, cpu_ns=pipe.cpu_ns + found.delay_ns, idle_ns=pipe.idle_ns + late, cores=math.inf, foreign=0.0
    )
    return replace(found, pipeline=pipeline, delay_ns=np.zeros(len(pipe)))


def alone(found: Recorded) -> Recorded:
    """See the run with nobody else on its CPUs; the quickest hand-overs queued for none."""
    pipe = found.pipeline
    usual_ns = np.percentile(pipe.latency_ns, 25) if len(pipe) else 0.0
    return replace(
        found,
        pipeline=replace(pipe, foreign=0.0, latency_ns=np.minimum(pipe.latency_ns, usual_ns)),
        held_ns=np.minimum(found.held_ns, pipe.cpu_ns),
    )


def recorded(analysis: RankAnalysis, system: System) -> Recorded:
    """Make the pipeline of the loop's loader.

    Raises:
        Withheld: what is recorded does not suffice.
    """
    run = analysis.source
    if run is None or analysis.loop.unknown_why:
        raise Withheld("the loop takes its batches from no loader whose batches were recorded")
    if not system.cpus:
        raise Withheld("not known: how many CPUs the job may use")
    about = run.description
    if about.wrapped or about.library:
        raise Withheld(
            f"{about.library or about.dataset} makes batches in its own way, not as DataLoader does"
        )
    if not 0 <= about.workers <= _MOST_WORKERS or not 0 < (about.prefetch_factor or 2) <= _MOST_PREFETCHED:
        raise Withheld(f"{about.workers} workers with {about.prefetch_factor} batches each are no loader's")
    if analysis.nests(run):
        raise Withheld(
            "its samples iterate another DataLoader: what is made in them is none of its own making"
        )
    everything = run.deliveries
    if everything["handed_over"].any() or analysis.measured_waits.deliveries["handed_over"].any():
        raise Withheld("another thread takes the batches: when the loop asks for one is not known")
    numbers = distinct(analysis.source_waits.deliveries["number"])
    count = min(len(everything), MOST)
    if len(numbers) and numbers[0] > MOST // 2:
        raise Withheld(f"the first measured step awaits batch {numbers[0]}, and {MOST} are replayed")
    own = everything[:count]
    measured = np.isin(np.arange(count), numbers)
    if measured.sum() < FEWEST:
        raise Withheld(f"{measured.sum()} measured batches are fewer than {FEWEST}")
    known = own.made
    if (~known).mean() > _UNKNOWN:
        raise Withheld(f"of {(~known).sum()} of {count} batches it is not known when they were made")
    waits = analysis.explained(run).between(0, count)
    made_ns = (own["prepared_ns"] - own["taken_ns"]).astype(np.float64)
    made_ns[~known] = np.median(made_ns[known])
    cpu_ns, delay_ns = _computed(analysis, own, made_ns)
    if about.workers:
        cpu_ns = np.minimum(cpu_ns * _of_other_threads(analysis, own, cpu_ns), made_ns - delay_ns)
    blocked_ns = np.maximum(made_ns - cpu_ns - delay_ns, 0.0)
    none = np.zeros(count)
    way = Transport.of(analysis, own, cpu_ns, delay_ns) if about.workers else Transport(none, none, none)
    epochs, gap_ns = _epochs(run, own)
    share = _training_thread(analysis, own, measured, gap_ns, cpu_ns if not about.workers else None)
    free_ns = gap_ns * (1 - share.delayed)
    parts = np.nan_to_num(waits.made) if len(waits) else np.zeros((count, len(PARTS)))
    pipeline = Pipeline(
        workers=about.workers,
        prefetch=about.prefetch_factor or 2,
        in_order=about.in_order is not False,
        pinned=way.pinned,
        cores=float(system.cpus),
        foreign=_foreign(system),
        threads=share.threads,
        blocked_ns=blocked_ns + (_turn_ns(own) if about.workers else none),
        cpu_ns=cpu_ns,
        latency_ns=way.latency_ns,
        service_ns=way.service_ns,
        idle_ns=free_ns * (1 - share.on_cpu),
        compute_ns=free_ns * share.on_cpu,
        epochs=epochs,
    )
    wait_ns = own.wait_ns.astype(np.float64)
    late_ns = gap_ns * share.delayed
    return Recorded(pipeline, waits, measured, wait_ns, made_ns, parts, delay_ns, way.held_ns, late_ns)


def _foreign(system: System) -> float:
    """How many CPUs other programs, and other virtual machines, kept busy."""
    host = system.host
    if host is None:
        return 0.0
    taken_share = max(0.0, host.others_cpu_fraction or 0.0) + max(0.0, host.cpu_stolen_fraction or 0.0)
    return (system.cpus or 1) * min(1.0, taken_share)


def _computed(analysis: RankAnalysis, own: Deliveries, made_ns: Floats) -> tuple[Floats, Floats]:
    """The CPU time of each batch's making, and how long its worker waited for a CPU meanwhile, ns.

    Samples and collation state both; what lies between them is the fetcher's loop, and computes.
    """
    sums = np.zeros((3, len(own)))  # duration, CPU, delay
    makers = own.maker(analysis.rank.main.pid)
    for process in analysis.rank.processes:
        rows = np.flatnonzero((makers == process.pid) & own.made)
        if not len(rows):
            continue
        rows = rows[np.argsort(own["taken_ns"][rows], kind="stable")]
        spans = outermost_of(process, KIND_ITEM, KIND_COLLATE)
        at = np.searchsorted(own["taken_ns"][rows], spans["start_ns"], side="right") - 1
        inside = (at >= 0) & (spans["start_ns"] < own["prepared_ns"][rows][at])
        spans, of = spans[inside], rows[at[inside]]
        if len(spans) and (spans["cpu_ns"] == -1).mean() > _UNKNOWN:
            raise Withheld("the CPU time of the samples was not recorded")
        for line, field in enumerate(("duration_ns", "cpu_ns", "run_delay_ns")):
            sums[line] += np.bincount(of, np.maximum(spans[field], 0), len(own))
    duration, cpu_ns, delay_ns = sums
    between = np.maximum(made_ns - duration, 0.0)
    cpu_ns = np.minimum(cpu_ns + between, made_ns)
    return cpu_ns, np.minimum(delay_ns, made_ns - cpu_ns)


def _of_other_threads(analysis: RankAnalysis, own: Deliveries, cpu_ns: Floats) -> float:
    """By what factor workers computed more than their threads that make samples: libraries have threads."""
    seen = whole = 0.0
    for process in analysis.rank.workers:
        rows = np.flatnonzero(own.made & (own["pid"] == process.pid))
        ticks = process.of_type(Tick)
        if len(ticks) < 2:
            continue
        times = process.clock.times_to_session_ns([tick.clock[0] for tick in ticks])
        cpu = np.array([float(tick.cpu_ns) for tick in ticks])
        rows = rows[(own["taken_ns"][rows] >= times[0]) & (own["prepared_ns"][rows] <= times[-1])]
        if len(rows) < 2:
            continue
        begin, end = int(own["taken_ns"][rows].min()), int(own["prepared_ns"][rows].max())
        whole += float(np.interp(end, times, cpu) - np.interp(begin, times, cpu))
        seen += float(cpu_ns[rows].sum())
    return max(1.0, whole / seen) if seen > 0 else 1.0


def _turn_ns(own: Deliveries) -> Floats:
    """How long each batch's worker, which had nothing else to make, took to begin it: ns."""
    found = np.zeros(len(own))
    own_made = own.made & own.known("sent_ns")
    for pid in np.unique(own["pid"][own_made]).tolist():
        rows = np.flatnonzero(own_made & (own["pid"] == pid))
        rows = rows[np.argsort(own["taken_ns"][rows], kind="stable")]
        free = np.maximum(own["prepared_ns"][rows][:-1], own["sent_ns"][rows][1:])
        found[rows[1:]] = np.maximum(own["taken_ns"][rows][1:] - free, 0)
    return found


def _epochs(run: LoaderRun, own: Deliveries) -> tuple[tuple[Epoch, ...], Floats]:
    """The passes, and what the consumer did from each delivery to its next ask, or to its next pass."""
    cuts = np.flatnonzero(np.diff(key_of(own["iterator"], own["epoch"])) != 0) + 1
    firsts = [0, *cuts.tolist()]
    gap = np.append(own["wait_start_ns"][1:] - own["delivered_ns"][:-1], 0).astype(np.float64)
    epochs, shutdown = [], 0
    for first, behind in zip(firsts, [*firsts[1:], len(own)], strict=True):
        key = int(own["iterator"][first]), int(own["epoch"][first])
        one: Pass | None = run.passes.get(key)
        asked_ns = int(own["wait_start_ns"][first])
        start_ns = min(asked_ns, one.start_ns) if one is not None else asked_ns
        head = own[first : min(behind, first + max(1, run.description.workers))]
        taken_ns = head["taken_ns"][head.made]
        up_ns = max(0, int(np.median(taken_ns)) - start_ns) if len(taken_ns) else 0
        if first:
            gap[first - 1] = max(0, start_ns - int(own["delivered_ns"][first - 1]) - shutdown)
        ended = one.exhausted_ns if one is not None and behind < len(own) else None
        shutdown = max(0, ended[1] - ended[0]) if ended is not None else 0
        epochs.append(Epoch(first, behind, float(asked_ns - start_ns), float(up_ns), float(shutdown)))
    if len(gap) > 1:
        gap[-1] = gap[-2]
    return tuple(epochs), np.maximum(gap, 0.0)


class _Share(msgspec.Struct, frozen=True):
    """Of the time between waits: what of it the training thread waited for a CPU and computed of the rest.

    While it computes it keeps `threads` cores busy, with the threads of its operators.
    """

    delayed: float = 0.0
    on_cpu: float = 0.0
    threads: float = 1.0


def _training_thread(
    analysis: RankAnalysis,
    own: Deliveries,
    measured: npt.NDArray[np.bool_],
    gap_ns: Floats,
    inline_cpu_ns: Floats | None,
) -> _Share:
    main, rows = analysis.rank.main, np.flatnonzero(measured)
    begin, end = int(own["delivered_ns"][rows[0]]), int(own["delivered_ns"][rows[-1]])
    between = slice(int(rows[0]), int(rows[-1]))
    whole = float(gap_ns[between].sum())
    ticks = main.of_type(Tick)
    if len(ticks) < 2 or whole <= 0:
        raise Withheld("the CPU time of the training process was not recorded")
    times = main.clock.times_to_session_ns([tick.clock[0] for tick in ticks])
    cpu = np.array([float(tick.cpu_ns) for tick in ticks])
    process_ns = float(np.interp(end, times, cpu) - np.interp(begin, times, cpu))
    if inline_cpu_ns is not None:
        process_ns -= float(inline_cpu_ns[between].sum())
    account = thread_cpu(analysis, begin, end)
    thread_ns, delay_ns = account.cpu_ns, account.run_delay_ns or 0.0
    if thread_ns is None or inline_cpu_ns is not None:
        thread_ns = min(process_ns, whole)
    delayed = min(0.9, delay_ns / whole)
    free = whole * (1 - delayed)
    on_cpu = min(1.0, max(0.0, thread_ns) / free)
    threads = max(1.0, process_ns / thread_ns) if thread_ns > 0.05 * whole else 1.0
    return _Share(delayed, on_cpu, threads)
