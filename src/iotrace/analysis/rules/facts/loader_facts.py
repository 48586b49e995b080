"""The facts of each loader that the loop waits for, from a rank's analysis and report."""

from __future__ import annotations

from collections import defaultdict
from operator import attrgetter
from typing import NamedTuple

import msgspec
import numpy as np
from msgspec.structs import replace

from iotrace.analysis.host.disturbance import alone, may_be_all_of_wait
from iotrace.analysis.intervals import Intervals, distinct, union
from iotrace.analysis.loop.deliveries import Deliveries, LoaderRun
from iotrace.analysis.loop.iterations import Iterations, iterations_of
from iotrace.analysis.loop.loaders import collate_of, item_of, production_ms, ready_batches, tensors_of
from iotrace.analysis.rank import RankAnalysis
from iotrace.analysis.results import (
    HALVED,
    ChunkedArray,
    FileIo,
    HotLine,
    PipelineStage,
    RankReport,
    total,
)
from iotrace.analysis.rules.facts.loader import FileFacts, LoaderFacts, TakenFrom
from iotrace.analysis.rules.facts.making import making_of
from iotrace.analysis.wait.cpus import asleep_for_pool, computed_beside, replayed, samples_made
from iotrace.analysis.wait.data_wait import (
    KEPT_UP_PERCENT,
    MODERATELY_PERCENT,
    core_free,
    file_costs,
    means_ms,
    unmade_fraction,
)
from iotrace.analysis.wait.gain_bound import FILES, RESIZED
from iotrace.analysis.wait.locks import INTERPRETER
from iotrace.analysis.wait.production import PARTS, outermost
from iotrace.analysis.wait.sampler_time import drawn, loop_samples, when
from iotrace.analysis.wait.sending import sends_behind_next
from iotrace.analysis.wait.taking import piped_bytes
from iotrace.analysis.wait.wait_code import asleep_in_event_loop, code_of_waits, lock_held
from iotrace.analysis.wait.waits import CAUSES, Waits, split_waits
from iotrace.session.names import KIND_COLLATE, KIND_ITEM, KIND_READ_PATH, LOCKED_ROW
from iotrace.sources.records import IteratorStart

_TIMED_MS = 1.0  # of shorter items nobody asks how long they had no CPU
_MOST_LOADERS = 32  # that advice is sought for


class _Made(NamedTuple):
    """The iterators of the loop, and when samplers chose samples as they were made."""

    every: Iterations
    choosing: Intervals


def loader_facts(analysis: RankAnalysis, report: RankReport) -> list[LoaderFacts]:
    """The loaders that the measured steps waited for, costliest first."""
    step_ms = report.steps.mean_ms
    if not report.data_wait.raw_ms or not step_ms:
        return []
    waits, runs = analysis.measured_waits, analysis.by_number
    wait_ms = {each.loader: each.raw_ms for each in report.data_wait.by_loader}
    costly = sorted(wait_ms, key=lambda number: -wait_ms[number])[:_MOST_LOADERS]
    of = waits.deliveries["loader"]
    iterations = iterations_of(analysis)
    made = _Made(iterations, when(drawn(analysis, iterations)))
    found = [_facts(analysis, report, runs[one], waits[of == one], len(wait_ms), made) for one in costly]
    return together(sorted(found, key=lambda facts: -facts.wait_ms))


def together(loaders: list[LoaderFacts]) -> list[LoaderFacts]:
    """Tell each loader of a loop what all of them cost."""
    all_ms = sum(facts.bound_ms for facts in loaders)
    return [replace(facts, all_bound_ms=all_ms) for facts in loaders]


def _facts(
    analysis: RankAnalysis,
    report: RankReport,
    run: LoaderRun,
    waits: Waits,
    loaders: int,
    iterators: _Made,
) -> LoaderFacts:
    steps = len(analysis.kept)
    primary = run is analysis.primary
    source = analysis.source if primary and analysis.source is not None else run
    about, wait = source.description, report.data_wait
    sizes, samples = (
        source.deliveries[field][source.deliveries.known(field)] for field in ("size_bytes", "samples")
    )
    handed_over = bool(waits.deliveries["handed_over"].any())
    asleep, on_cpu, threaded, threaded_cpu = samples_made(analysis, source)
    if asleep_for_pool(analysis, report) is not None:
        asleep = None  # for threads that compute, or would
    if about.library and not (about.workers or analysis.has_callbacks) and analysis.chains is not None:
        asleep = None  # the loop's own thread is, for the library's
    made = (analysis.source_waits if primary else waits).deliveries
    made = made[made.made]
    causes_ms = means_ms(waits, steps)
    files = _files(analysis, report, waits)
    wait_ms = int(waits.deliveries.wait_ns.sum()) / steps / 1e6
    slowest = next((stage for stage in report.pipeline if stage.slowest), None) if primary else None
    hot, item = _hot(report, source), item_of(about, analysis.session.paths) or ""
    if slowest is not None and not item:
        item = slowest.name
        if (
            len(report.pipeline) > 1 and not about.library
        ):  # the maker of the last stage mostly waits for those before
            (asleep, on_cpu), threaded, threaded_cpu = _did(slowest), 0.0, 0.0
    gains_ms, most_ms, spared = ({}, {}, {}) if handed_over else _gains(analysis, run, causes_ms, files)
    return LoaderFacts(
        number=run.number,
        about=about,
        of_several=loaders > 1,
        step_ms=report.steps.mean_ms or 0.0,
        wait_ms=wait_ms,
        idle_ms=wait.exposed_ms,
        causes_ms=causes_ms,
        # A loader around another one waits for that one's batches, which are replayed.
        predicted={row.id: row for row in report.gain if row.change != HALVED}
        if source is analysis.source
        else {},
        gains_ms=gains_ms,
        most_ms=most_ms,
        spared=spared,
        files=files,
        groups=report.file_groups,
        epochs=source.epochs,
        epochs_ended=source.epochs_ended,
        inner_workers=max((each.workers for each in report.loaders if each.within == run.number), default=0),
        objects=_objects(analysis, source),
        handed_over=handed_over,
        production_ms=production_ms(source.deliveries),
        made_ms=int((made["prepared_ns"] - made["taken_ns"]).sum()) / steps / 1e6 if len(made) else None,
        restart_ms=_restart_ms(analysis, run, iterators),
        first_code=next((each.first_code or "" for each in report.loaders if each.id == source.number), ""),
        draws=next((each.sampler for each in report.loaders if each.id == source.number), None),
        sees_draws=loop_samples(analysis) is not None,
        steps=0 if report.account is None else report.account.steps,
        single=iterators.every.single(run),
        unmade_fraction=unmade_fraction(waits),
        behind_ready_ms=wait.behind_ready_ms if primary else None,
        batch_bytes=int(sizes.sum()) / len(sizes) if len(sizes) else None,
        tensors=tensors_of(source.deliveries),
        given_bytes=_given_bytes(source),
        **(_sent(source) or {"piped_bytes": piped_bytes(report.io, len(waits)) if loaders == 1 else None}),
        taking_least_ms=wait.taking_least_ms if loaders == 1 else None,
        samples=int(samples.sum()) / len(samples) if len(samples) else None,
        collate=_collate(analysis, source),
        collate_line=collate_of(about, analysis.session.paths) or "",
        collate_hot=_collate_hot(report, source),
        core_free=core_free(analysis, report.system),
        cpus=_cpus(analysis, report),
        accelerated=wait.exposed_source in ("cuda_events", "kernels"),
        asleep=asleep,
        on_cpu=on_cpu,
        beside=computed_beside(analysis, report, source),
        threaded=threaded,
        threaded_cpu=threaded_cpu,
        waits_alone=_waits_alone(report),
        others_may_make_it=may_be_all_of_wait(report, KEPT_UP_PERCENT),
        called=_called(about.dataset, source, report),
        storage_bytes=_storage_bytes(report, steps),
        batches=len(source.deliveries),
        batches_per_step=len(waits) / steps,
        item=item,
        hot_in="" if hot is None or hot.library is None else hot.library,
        hot_line="" if hot is None else hot.said_in(item),
        hot_function="" if hot is None else hot.placed(item) if hot.in_callee_of(item) else "",
        hot_share=0.0 if hot is None else hot.calls_fraction or 0.0,
        hot_held=_held_at(hot),
        ready=ready_batches(source).in_turn,
        pipeline=report.pipeline if primary else [],
        slept_ms=_slept_ms(report),
        loop_cpu_ms=report.steps.thread_cpu_ms or 0.0,
        unqueued=_unqueued(report),
        waits_at=code_of_waits(analysis, source),
        lock_held=lock_held(analysis, source),
        queueing_ms=sum((wait.without_cpu_ms or {}).values()),
        event_loop=asleep_in_event_loop(analysis, source),
        making=making_of(analysis, source, analysis.source_waits if primary else waits, report),
        taken_from=_taken_from(analysis) if primary else None,
    )


def _did(stage: PipelineStage) -> tuple[float | None, float | None]:
    """In which shares of an item's making a stage slept, and computed; it may queue, too. None: not known.

    To wait for a CPU, or for the interpreter, is no sleep.
    """
    on_cpu, queued = stage.on_cpu_fraction, stage.queued_fraction
    if on_cpu is None or queued is None or stage.item_ms < _TIMED_MS:
        return None, None
    locked = stage.locks_ms.get(INTERPRETER, 0.0) / stage.item_ms
    return max(0.0, 1 - on_cpu - queued - locked), on_cpu


def _taken_from(analysis: RankAnalysis) -> TakenFrom | None:
    run = analysis.taken_from
    made = None if run is None else run.deliveries[run.deliveries.made]
    if run is None or made is None or not len(made) or not run.description.dataset:
        return None
    about, own = run.description, made.maker(analysis.rank.main.pid) == analysis.rank.main.pid
    item_ns = int((made["prepared_ns"] - made["taken_ns"]).sum()) - _queueing_ns(analysis, made)
    item_ms = max(0, item_ns) / len(made) / 1e6
    of = "threads" if own.any() else "processes"
    return TakenFrom(about.pool, about.dataset, max(1, about.workers), of, item_ms)


def _queueing_ns(analysis: RankAnalysis, made: Deliveries) -> int:
    """Sum up what makers waited for a CPU or the interpreter's lock: that may be for the loop's own work."""
    found = 0
    for process in analysis.rank.processes:
        items = process.spans[process.spans["kind"] == KIND_ITEM]
        own = np.isin(items["start_ns"] + items["duration_ns"], made["prepared_ns"])
        found += int(np.maximum(items["run_delay_ns"][own], 0).sum())
        locked = process.rows(LOCKED_ROW)
        own = (locked["file"] < 0) & np.isin(locked["tid"], made["maker_tid"])
        found += int(locked["waited_ns"][own].sum())
    return found


def _waits_alone(report: RankReport) -> bool:
    return alone(report).kept < 1 and not may_be_all_of_wait(report)


def _called(name: str, run: LoaderRun, report: RankReport) -> str:
    others = [loader.dataset for loader in report.loaders if not loader.wrapped and loader.id != run.number]
    return "" if not others else f"{name} (loader {run.number})" if name in others else name


def _gains(
    analysis: RankAnalysis, run: LoaderRun, causes_ms: dict[str, float], files: list[FileFacts]
) -> tuple[dict[str, float], dict[str, float], dict[str, float]]:
    """Replay it without each cause that costs much, and its costliest file.

    What a step loses with all else as it was, and at most, and what of the making each of them is.
    """
    about = run.description
    if about.wrapped or about.library or about.in_order is False:
        return {}, {}, {}
    whole_ms = int(analysis.kept.duration_ns.sum()) / len(analysis.kept) / 1e6
    gone = [cause for cause in CAUSES if 100 * causes_ms[cause] >= MODERATELY_PERCENT * whole_ms]
    if "read" in gone or "decode" in gone:
        most = {max(files, key=cost).path for cost in map(attrgetter, ("read_ms", "decode_ms")) if files}
        gone += [FILES, *(f"{FILES}:{path}" for path in sorted(most))]
    if {"read", "decode", "transform"} & {*gone}:
        gone.append(RESIZED)
    replay = replayed(analysis, run)
    most_ms = {each: replay.most_ms(each) for each in gone}
    spared = {each: replay.spared(replay.less_ns(each)) for each in gone}
    gains_ms = {each: replay.gain_ms(each) for each in gone}
    # The replay knows nothing of what other loaders make within a sample, or of what is sent behind the next.
    if analysis.nests(run):
        resized_ms = sum(causes_ms[each] for each in ("read", "decode", "transform"))
        charged_ms = {**causes_ms, RESIZED: resized_ms}
        for each in {*gone} & charged_ms.keys():
            gains_ms[each] = max(gains_ms[each], charged_ms[each])
            if (bound_ms := most_ms[each]) is not None:
                most_ms[each] = max(bound_ms, gains_ms[each])
    if sends_behind_next(run.deliveries, split_waits(run.deliveries)[3]):
        gains_ms.update({each: max(ms, causes_ms[each]) for each, ms in gains_ms.items() if each in PARTS})
    return (
        gains_ms,
        {each: most for each, most in most_ms.items() if most is not None},
        {each: share for each, share in spared.items() if share is not None},
    )


def _restart_ms(analysis: RankAnalysis, run: LoaderRun, made: _Made) -> float:
    """What making and ending iterators takes a step, without what samplers do there, in the measured steps.

    Steps between them that are not measured, such as profiled ones, make iterators, too.
    """
    every, kept = analysis.loop.steps, analysis.kept
    start_ns, end_ns = int(kept["start_ns"][0]), int(kept["end_ns"][-1])
    steps = int(((every["start_ns"] >= start_ns) & (every["end_ns"] <= end_ns)).sum())
    # The wait for new workers is part of both: where a measured step has it, it counts there.
    awaited = union(kept.awaited["wait_start_ns"], kept.awaited["delivered_ns"])
    beside = union(*map(np.concatenate, zip(awaited, made.choosing, strict=True)))
    return made.every.restart_ns(run, start_ns, end_ns, beside) / steps / 1e6


def _objects(analysis: RankAnalysis, run: LoaderRun) -> int:
    iterators = {iterator for iterator, _ in run.passes}
    starts = analysis.rank.main.of_type(IteratorStart)
    return len({start.loader for start in starts if start.iterator in iterators}) or 1


def _cpus(analysis: RankAnalysis, report: RankReport) -> int | None:
    """The CPUs for this rank: its host's, shared with the ranks that run beside it there."""
    rank, cpus = analysis.rank, report.system.cpus
    if cpus is None or (rank.world_size or 1) < 2:
        return cpus
    beside = [
        each
        for each in analysis.session.ranks
        if (each.main.host, each.incarnation) == (rank.main.host, rank.incarnation)
    ]
    return max(1, cpus // len(beside))


def _storage_bytes(report: RankReport, steps: int) -> float | None:
    processes = report.system.processes
    read_bytes = total(process.storage_read_bytes for process in processes) if processes else None
    return None if read_bytes is None else read_bytes / steps


def _sent(run: LoaderRun) -> dict[str, float | None]:
    """Return the bytes of a batch that another process sent by a pipe, and how long that took it, in ms."""
    own = run.deliveries[run.deliveries.known("piped_bytes", "arrived_ns", "prepared_ns")]
    if 2 * len(own) < len(run.deliveries) or not len(own):
        return {}
    under_way_ns = int((own["arrived_ns"] - own["prepared_ns"]).sum())
    return {
        "piped_bytes": int(own["piped_bytes"].sum()) / len(own),
        "piped_ms": under_way_ns / len(own) / 1e6,
    }


def _given_bytes(run: LoaderRun) -> float | None:
    """Return the bytes that a task is sent to another process with, where most are large."""
    given = run.deliveries["given_bytes"][run.deliveries.known("given_bytes")]
    return float(given.mean()) if len(given) and 2 * len(given) >= len(run.deliveries) else None


def _collate_hot(report: RankReport, run: LoaderRun) -> str:
    """The line of the program that the collate function is mostly in; empty where none is."""
    loader = next((each for each in report.loaders if each.id == run.number), None)
    return "" if loader is None or loader.collate_hot is None else loader.collate_hot.lines


def _collate(analysis: RankAnalysis, run: LoaderRun) -> str:
    """The name of the collate function; empty where the run's loaders have several, or none."""
    pids = {*distinct(run.deliveries.maker(analysis.rank.main.pid)).tolist()}
    names = {
        process.texts.get(number, "")
        for process in analysis.rank.processes
        if process.pid in pids
        for number in distinct(process.spans["name"][process.spans["kind"] == KIND_COLLATE]).tolist()
    }
    return next(iter(names)) if len(names) == 1 else ""


def _slept_ms(report: RankReport) -> float | None:
    """How long the training thread neither had a CPU in a step nor was ready to run; None: not known."""
    steps = report.steps
    if steps.mean_ms is None or steps.thread_cpu_ms is None or steps.thread_run_delay_ms is None:
        return None
    return max(0.0, steps.mean_ms - steps.thread_cpu_ms - steps.thread_run_delay_ms)


def _unqueued(report: RankReport) -> float | None:
    """The share in which the training thread had a CPU, of the time that it was ready to run."""
    cpu_ms, delay_ms = report.steps.thread_cpu_ms, report.steps.thread_run_delay_ms
    return cpu_ms / (cpu_ms + delay_ms) if cpu_ms and delay_ms is not None else None


def _hot(report: RankReport, run: LoaderRun) -> HotLine | None:
    """The line that the making of its samples is mostly in; None: no line is, or not known."""
    loader = next((each for each in report.loaders if each.id == run.number), None)
    return None if loader is None else loader.item_hot


_HELD = 0.5  # of the samples at a line


def _held_at(hot: HotLine | None) -> float:
    """The share of the samples' own code at a line that holds the interpreter's lock, and calls nothing."""
    if hot is None or hot.calls is not None or hot.library is not None:
        return 0.0
    return hot.fraction if (hot.held_fraction or 0.0) >= _HELD else 0.0


def _files(analysis: RankAnalysis, report: RankReport, waits: Waits) -> list[FileFacts]:
    """The files of these waits, costliest first."""
    read: dict[str, FileIo] = {file.path: file for file in report.io.files} if report.io else {}
    costs = file_costs(waits.files, len(analysis.kept))
    arrays: dict[str, list[ChunkedArray]] = defaultdict(list)
    for group in report.file_groups:
        for array in group.amplification.arrays if group.amplification else ():
            arrays[array.path].append(array)
    stores = {group.path: group for group in report.file_groups if group.members}
    decoded = max(costs, key=lambda cost: cost.decode_ms, default=None)
    found = []
    for cost in costs:
        calls, store = read.get(cost.path), stores.get(cost.path)
        of_store = (0, None) if store is None else (store.reads, store.read_bytes)
        found.append(
            FileFacts(
                **msgspec.structs.asdict(cost),
                reads=(calls.reads if calls else of_store[0]) or 0,
                opens=calls.opens if calls else 0,
                read_bytes=of_store[1] if calls is None else None if calls.maps else calls.read_bytes,
                delivered_bytes=_delivered(analysis, cost.path) if cost is decoded else None,
                arrays=arrays[cost.path],
            )
        )
    return found


def _delivered(analysis: RankAnalysis, path: str) -> int | None:
    """What libraries made of one file, in bytes; None where a span does not say it."""
    total_bytes, known = 0, False
    for process in analysis.rank.processes:
        files = process.span_files.items()
        numbers = [number for number, file in files if analysis.session.paths.shown(file) == path]
        own = process.spans[
            (process.spans["kind"] == KIND_READ_PATH) & np.isin(process.spans["file"], numbers)
        ]
        sizes = own["bytes"][outermost(own, np.ones(len(own), dtype=np.bool_))]
        if (sizes < 0).any():
            return None
        total_bytes, known = total_bytes + int(sizes.sum()), known or len(sizes) > 0
    return total_bytes if known else None
