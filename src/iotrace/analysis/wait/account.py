"""Account for all of a training process's run: each instant of its training thread has one part.

Definitions: docs/definitions.md, "account".
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from iotrace.analysis.completeness.hung import hangs_of_rank
from iotrace.analysis.intervals import Intervals, distinct, intersect, length, subtract, union
from iotrace.analysis.loop.deliveries import Deliveries
from iotrace.analysis.loop.iterations import Iterations, ended_ns, evaluations_of, iterations_of, under_way
from iotrace.analysis.rank import RankAnalysis
from iotrace.analysis.results import (
    BEFORE_AND_AFTER,
    CHECKPOINTS,
    END,
    FIRST_BATCHES,
    FIRST_SAMPLING,
    FIRST_START,
    HANGING,
    ITERATORS,
    PARTS,
    PROFILER,
    SAMPLING,
    SKIPPED,
    START_UP,
    TRAINING,
    VALIDATION,
    VALIDATION_ITERATORS,
    WAITS,
    WRITING,
    Account,
    AccountPart,
    SpawnedWorkers,
)
from iotrace.analysis.startup.imports import imported_ns, imports_by_package
from iotrace.analysis.wait.checkpoints import saves_of, writes_of
from iotrace.analysis.wait.sampler_time import drawn, when
from iotrace.session.hangs import Hang
from iotrace.sources.processes import Process
from iotrace.sources.records import Pickled, Spawned, TorchWindow

_LEAST_SKIPPED = 10  # batches
_WORTH_NAMING = 0.05  # of what a spawned worker imports


def account_of(analysis: RankAnalysis, hangs: Sequence[Hang] = ()) -> Account | None:
    """Account for a rank's run, with the `hangs` of its session; None where no step of a loop was seen."""
    thread = analysis.loop.thread
    if not len(analysis.loop.steps) or thread is None:
        return None
    evaluations = evaluations_of(analysis)
    begun_ns, loop_ns, over_ns, ended_ns = _bounds(analysis, evaluations)
    before, loop = _one(begun_ns, loop_ns), _one(loop_ns, over_ns)
    iterations = iterations_of(analysis)
    asked = Deliveries.joined([thread.asked, thread.handed])
    saves = saves_of(analysis)
    skipped, batches_skipped = _skipped(analysis)
    checkpoints, writing = (saves.starts, saves.ends), writes_of(analysis)
    first_drawn, later_drawn = _drawn(analysis, iterations)
    claims = {
        FIRST_SAMPLING: first_drawn,
        FIRST_START: iterations.when(FIRST_START),
        CHECKPOINTS: checkpoints,  # also of one that follows an evaluation before the next step
        VALIDATION_ITERATORS: iterations.when(VALIDATION_ITERATORS),
        VALIDATION: evaluations,
        SAMPLING: later_drawn,
        ITERATORS: iterations.when(ITERATORS),
        FIRST_BATCHES: iterations.when(FIRST_BATCHES),
        SKIPPED: skipped,
        WAITS: union(asked["wait_start_ns"], asked["delivered_ns"]),
        WRITING: writing,
        PROFILER: profiler_of(analysis),
    }
    found: dict[str, int] = {}
    left, firsts_ns = loop, 0
    for name, own in claims.items():  # an instant belongs to the first that covers it
        own = intersect(own, left)
        found[name], left = length(own), subtract(left, own)
        if name == VALIDATION_ITERATORS:
            firsts_ns = length(intersect(own, iterations.when(name, awaiting=True)))
    found[TRAINING] = length(left)
    drawn_ns = length(intersect(first_drawn, before))
    before_ns = length(subtract(intersect(iterations.when(FIRST_START), before), first_drawn))
    found[START_UP] = loop_ns - begun_ns - before_ns - drawn_ns
    later_ns = found[FIRST_START] + found[FIRST_SAMPLING]  # of loaders that the loop asks later
    found[FIRST_START] += before_ns
    found[FIRST_SAMPLING] += drawn_ns
    hung = union(*np.array([each[2:] for each in hangs_of_rank(analysis, hangs)], np.int64).reshape(-1, 2).T)
    found[HANGING] = length(intersect(hung, _one(over_ns, ended_ns)))
    found[END] = ended_ns - over_ns - found[HANGING]
    unknown = set() if analysis.session.posix_on else {CHECKPOINTS, WRITING}
    if analysis.loop.unknown_why:
        unknown |= {WAITS, SKIPPED}
    later = [
        (each, bool(evaluates))
        for each, evaluates in zip(iterations.passes, iterations.evaluate, strict=True)
        if loop_ns <= each.of.asked_ns < over_ns and each.workers
    ]
    anew = [each.workers for each, _ in later if each.is_anew]
    times = {
        ITERATORS: sum(each.is_later and not evaluates for each, evaluates in later),
        SAMPLING: len(later_drawn[0]),
        VALIDATION_ITERATORS: sum(evaluates and each.is_anew for each, evaluates in later),
        VALIDATION: len(intersect(evaluations, loop)[0]),
        SKIPPED: batches_skipped,
        # Saved to memory, compressed and written, a checkpoint is one.
        CHECKPOINTS: len(
            distinct(
                np.searchsorted(
                    analysis.loop.steps["start_ns"], intersect(checkpoints, loop)[0], side="right"
                )
            )
        ),
    }
    steps_ns = over_ns - loop_ns - later_ns
    is_known = WAITS not in unknown and steps_ns > 0
    restarts_ns = found[ITERATORS] + found[VALIDATION_ITERATORS] + found[SAMPLING]
    loader_ns = restarts_ns + found[FIRST_BATCHES] + found[WAITS] + found[SKIPPED]
    return Account(
        whole_ns=ended_ns - begun_ns,
        loop_ns=steps_ns,
        steps=len(analysis.loop.steps) + 1,
        parts=_parts(found, unknown, ended_ns - begun_ns, times),
        loader_pct=100 * loader_ns / steps_ns if is_known else None,
        restarts_pct=100 * restarts_ns / steps_ns if is_known else None,
        validation_first_batches_ns=firsts_ns,
        iterators=sum(each.is_later for each, _ in later),
        one_batch_iterators=sum(each.is_single for each, _ in later),
        restarted=len(anew),
        workers_started=sum(anew),
        validation_workers_started=sum(each.workers for each, of in later if each.is_anew and of),
        spawned=_spawned(analysis),
    )


def _drawn(analysis: RankAnalysis, iterations: Iterations) -> tuple[Intervals, Intervals]:
    """When samplers chose samples as iterators were made: the first of each loader, and later ones."""
    times = drawn(analysis, iterations)
    later = np.array([each.is_later for each in iterations.passes], np.bool_)[times[:, 2]]
    return when(times[~later]), when(times[later])


def _skipped(analysis: RankAnalysis) -> tuple[Intervals, int]:
    """When the loop took many batches in one step, where others take few, and trained on the last alone.

    A program that resumes takes what it has trained on before. It also says how many these were.
    """
    steps, phases = analysis.loop.steps, analysis.phase_spans
    # Where a mark begins the first step, nothing is known of what came before.
    taken = (steps["behind"] - steps["first"]) * (not analysis.loop.marked)
    usual = int(np.median(taken))
    rows = np.flatnonzero(taken >= usual + max(_LEAST_SKIPPED, 9 * usual))
    asked_ns, delivered_ns = (steps.in_order[name] for name in ("wait_start_ns", "delivered_ns"))
    starts_ns, ends_ns = asked_ns[steps["first"][rows]], delivered_ns[steps["behind"][rows] - usual - 1]
    begun_ns = np.sort(phases["start_ns"])
    unused = np.searchsorted(begun_ns, starts_ns) == np.searchsorted(begun_ns, ends_ns)
    return union(starts_ns[unused], ends_ns[unused]), int((taken[rows] - usual)[unused].sum())


def _parts(
    found: dict[str, int], unknown: set[str], whole_ns: int, times: dict[str, int]
) -> list[AccountPart]:
    """Make the parts in their order; the time of an unknown one is in that of the training."""
    found[TRAINING] += sum(found[name] for name in unknown)
    return [
        AccountPart(
            name=name,
            in_loop=name not in BEFORE_AND_AFTER,
            ns=None if name in unknown else found[name],
            share_pct=None if name in unknown or not whole_ns else 100 * found[name] / whole_ns,
            times=None if name in unknown else times.get(name),
        )
        for name in PARTS
    ]


def _bounds(analysis: RankAnalysis, evaluations: Intervals) -> tuple[int, int, int, int]:
    """Return when the run began, the loop got its first batch, the loop was over, the run ended, in ns."""
    steps, main = analysis.loop.steps, analysis.rank.main
    loop_ns, over_ns = int(steps["start_ns"][0]), int(steps["end_ns"][-1])
    trained = [
        each.exhausted_ns
        for loader in analysis.loaders
        if loader.training or loader is analysis.primary
        for each in loader.passes.values()
    ]
    stops = [exhausted_ns[0] for exhausted_ns in trained if exhausted_ns is not None]
    rounds_ns = analysis.loop.thread.rounds.times_ns[-1:].tolist() if analysis.loop.thread else []
    left = under_way(analysis)
    until_ns = [] if left is None else [left.until_ns]
    over_ns = max([over_ns, *stops, *rounds_ns, *evaluations[1][-1:].tolist(), *until_ns])
    begun_ns = main.began_ns if analysis.startup is None else analysis.startup[0]
    return min(begun_ns, loop_ns), loop_ns, over_ns, max(over_ns, ended_ns(main))


def profiler_of(analysis: RankAnalysis) -> Intervals:
    """When iotrace's window of torch.profiler began, ended and was written: in calls for the next batch."""
    main = analysis.rank.main
    windows = main.of_type(TorchWindow)
    begun_ns = np.array([each.mono_ns for each in windows], np.int64)
    lasted_ns = np.array([each.duration_ns for each in windows], np.int64)
    return union(*map(main.clock.times_to_session_ns, (begun_ns, begun_ns + lasted_ns)))


def _spawned(analysis: RankAnalysis) -> SpawnedWorkers | None:
    """Sum up what spawned workers did before they worked; None where none of them recorded it."""
    own = [(worker, record) for worker in analysis.rank.workers for record in worker.of_type(Spawned)[:1]]
    if not own:
        return None
    times = np.array([_before_work_ns(worker, record) for worker, record in own], np.int64)
    import_ns, needed_ns, unpickle_ns, own_ns = (times.sum(axis=0) // len(own)).tolist()
    pickled = analysis.rank.main.of_type(Pickled)
    packages = Counter[str]()
    for worker, record in own:
        packages.update(imports_by_package(worker, *_bounds_of_imports(worker, record)))
    large = {name: ns // len(own) for name, ns in packages.most_common()}
    return SpawnedWorkers(
        count=len(own),
        script=next((record.script for _, record in own if record.script), None),
        import_ns=import_ns,
        needed_ns=needed_ns,
        own_ns=own_ns,
        packages={name: ns for name, ns in large.items() if ns >= _WORTH_NAMING * import_ns},
        forkserver=all(worker.identity.role == "forked" for worker, _ in own),
        unpickle_ns=unpickle_ns,
        pickle_ns=sum(record.duration_ns for record in pickled),
        pickled_bytes=sum(record.bytes for record in pickled),
    )


def _before_work_ns(worker: Process, record: Spawned) -> tuple[int, int, int, int]:
    """How long a worker imported the script, of that what it needs; how long it unpickled; ran own code."""
    start_ns, prepared_ns = _bounds_of_imports(worker, record)
    unpickled_ns = worker.clock.to_session_ns(record.unpickled_ns)
    imported = imported_ns(worker, prepared_ns, unpickled_ns)
    needed_ns = imported_ns(worker, start_ns, prepared_ns, needed=True)
    own_ns = prepared_ns - start_ns - imported_ns(worker, start_ns, prepared_ns)
    return prepared_ns - start_ns, needed_ns, unpickled_ns - prepared_ns - imported, own_ns


def _bounds_of_imports(worker: Process, record: Spawned) -> tuple[int, int]:
    """From when to when a worker imported the script."""
    return worker.clock.to_session_ns(record.start_ns), worker.clock.to_session_ns(record.prepared_ns)


def _one(start_ns: int, end_ns: int) -> Intervals:
    """Return one interval; none where it is empty."""
    return union(np.array([start_ns], np.int64), np.array([end_ns], np.int64))
