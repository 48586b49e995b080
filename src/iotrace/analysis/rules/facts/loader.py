"""What is known of each loader that the loop waits for: what advice on it may rest on."""

from __future__ import annotations

from collections import defaultdict
from operator import attrgetter

import msgspec
import numpy as np
from msgspec.structs import replace

from iotrace.analysis.host.disturbance import alone, may_be_all_of_wait
from iotrace.analysis.intervals import distinct, union
from iotrace.analysis.loop.deliveries import Deliveries, LoaderRun
from iotrace.analysis.loop.iterations import Iterations, iterations_of
from iotrace.analysis.loop.loaders import collate_of, item_of, production_ms, ready_batches
from iotrace.analysis.rank import RankAnalysis
from iotrace.analysis.results import (
    HALVED,
    ChunkedArray,
    FileCost,
    FileGroup,
    FileIo,
    GainRow,
    PipelineStage,
    RankReport,
    total,
)
from iotrace.analysis.rules.facts.making import Making, making_of
from iotrace.analysis.wait.cpus import asleep_for_pool, replayed, samples_made
from iotrace.analysis.wait.data_wait import (
    KEPT_UP_PERCENT,
    MODERATELY_PERCENT,
    core_free,
    file_costs,
    is_of_the_loader,
    means_ms,
    unmade_fraction,
)
from iotrace.analysis.wait.gain_bound import FILES, RESIZED
from iotrace.analysis.wait.production import PARTS, outermost
from iotrace.analysis.wait.sending import sends_behind_next
from iotrace.analysis.wait.wait_code import WaitCode, code_of_waits
from iotrace.analysis.wait.waits import CAUSES, Waits, split_waits
from iotrace.session.names import KIND_COLLATE, KIND_ITEM, KIND_READ_PATH, LOCKED_ROW
from iotrace.sources.records import IteratorStart


class FileFacts(FileCost, frozen=True, kw_only=True):
    """A file's cost of the wait; bytes that calls read of it, and that libraries made of them.

    `delivered_bytes` is looked up of the file alone whose decoding costs most.
    """

    reads: int = 0
    opens: int = 0
    read_bytes: int | None = None
    delivered_bytes: int | None = None
    arrays: list[ChunkedArray] = msgspec.field(default_factory=list)


class TakenFrom(msgspec.Struct, frozen=True):
    """A pool or a queue: its class, what makes its items, how many threads or processes.

    Each item takes `item_ms`, less what its maker waited for a CPU or the interpreter's lock.
    """

    kind: str
    maker: str
    makers: int
    of: str
    item_ms: float

    @property
    def who(self) -> str:
        """Name who makes its items."""
        one = {"threads": "thread", "processes": "process"}[self.of]
        return f"the {self.makers} {self.of}" if self.makers > 1 else f"the {one}"


class LoaderFacts(msgspec.Struct, frozen=True, kw_only=True):
    """A loader and its part of the data wait. Figures in ms are means per measured step; None is unknown.

    `wait_ms` is the loop's wait; `idle_ms` that of the accelerator in the waits for all loaders. `about`
    has its settings, None where it has none of that name. `of_several`: the loop waits for others, too.
    `objects` counts the DataLoaders that it was, one after the other. `handed_over`: another thread takes
    its batches. `core_free`: the cores were not all busy. `asleep` and `on_cpu` are shares of the making
    of its samples, outside calls of libraries that work on threads of their own: these take `threaded` of
    it, and compute in `threaded_cpu` at least. `waits_alone`: others took CPUs, and without them the loop
    would wait, too, for 5 % of a step or more; `others_may_make_it`: perhaps for less than 10 %. `called`
    tells the loader from others of the program; else it is empty. `collate_line` is its collate function
    with its line. `storage_bytes` came from storage, to all processes of the rank, per step. `made_ms` is
    the production of a step's batches. `gains_ms` is what a step loses without a cause, without reading and
    decoding (`FILES`), without that of one file (``files:PATH``) and with the transform's (`RESIZED`), all
    else as it was; `most_ms` the same at most, where what is left gets quicker; `predicted` has what a
    replay on the model of the loader gives instead, where it may speak, by the row's id; `restart_ms` is
    what ending and starting workers takes in later epochs; `single` iterators were left after one batch;
    `all_bound_ms` is the sum of `bound_ms` of all loaders of the loop. `piped_bytes` of a batch came
    pickled through a pipe: what the process that trains read beyond calls on files. `ready`: so many
    batches lay ready when the loop came for one. `making`: how they are made. `waits_at`: where the
    loop's own thread is that makes them. `pipeline`: the stages that make them, of a loop that takes them
    from queues and pools. `taken_from`: whose items that thread works on for most of the wait.
    """

    number: int = 0
    about: IteratorStart
    of_several: bool = False
    step_ms: float = 0.0
    wait_ms: float = 0.0
    idle_ms: float | None = None
    causes_ms: dict[str, float] = {}
    gains_ms: dict[str, float] = {}
    most_ms: dict[str, float] = {}
    predicted: dict[str, GainRow] = {}
    files: list[FileFacts] = []
    groups: list[FileGroup] = []
    item: str = ""
    epochs: int = 1
    objects: int = 1
    handed_over: bool = False
    production_ms: float | None = None
    made_ms: float | None = None
    restart_ms: float = 0.0
    single: int = 0
    unmade_fraction: float = 0.0
    behind_ready_ms: float | None = None
    batch_bytes: float | None = None
    piped_bytes: float | None = None
    samples: float | None = None
    collate: str = ""
    collate_line: str = ""
    core_free: bool | None = None
    cpus: int | None = None
    accelerated: bool = False
    asleep: float | None = None
    on_cpu: float | None = None
    threaded: float = 0.0
    threaded_cpu: float = 0.0
    waits_alone: bool = False
    others_may_make_it: bool = False
    called: str = ""
    storage_bytes: float | None = None
    batches: int = 0
    batches_per_step: float = 1.0
    all_bound_ms: float | None = None
    ready: float | None = None
    making: Making = Making()
    waits_at: WaitCode = WaitCode()
    pipeline: list[PipelineStage] = []
    taken_from: TakenFrom | None = None

    @property
    def bound_ms(self) -> float:
        """What of the wait a faster loader can win at most: an accelerator works in the rest of it.

        Of a loop that works on a pool's items itself no more than leaves a step as long as their making.
        """
        bound_ms = self.wait_ms if self.idle_ms is None else min(self.wait_ms, self.idle_ms)
        taken = self.taken_from
        if taken is None:
            return bound_ms
        return min(bound_ms, max(0.0, self.step_ms - taken.item_ms / taken.makers))

    @property
    def is_single(self) -> bool:
        """Whether an iterator is made for most batches: `next(iter(loader))`."""
        return self.epochs > 2 and 2 * self.single >= self.epochs

    @property
    def is_waited_for(self) -> bool:
        """Whether the waits for all loaders of the loop are worth a word: 5 % of a step, or more of it."""
        all_ms = self.bound_ms if self.all_bound_ms is None else self.all_bound_ms
        handing_over = min(1.0, self.causes_ms.get("transport", 0.0) / self.wait_ms) if self.wait_ms else 0.0
        others = self.others_may_make_it
        return is_of_the_loader(
            100 * all_ms / self.step_ms, handing_over, self.ready, others_may_make_it=others
        )

    @property
    def first_samples_ms(self) -> float:
        """The wait for what new workers do in their first samples alone, as reading an index; 0: nothing.

        An iterable may do that in each pass, whoever makes it.
        """
        making = self.making
        if not self.about.workers or self.about.iterable or self.about.persistent_workers is not False:
            return 0.0
        usual_ms, first_ms = making.item_ms or 0.0, making.first_item_ms or 0.0
        return making.fill_ms if first_ms >= _FIRST_TIMES * usual_ms > 0 else 0.0

    @property
    def made_asleep(self) -> float:
        """The share of a batch's making in which its thread slept, samples and collating together."""
        return self._made_as(self.asleep, self.making.collate_asleep)

    @property
    def made_on_cpu(self) -> float:
        """The same of its computing."""
        return self._made_as(self.on_cpu, self.making.collate_on_cpu)

    @property
    def waits_undisturbed(self) -> bool:
        """Whether the loop would wait, too, if all makers of batches had a CPU each.

        Known from the steps, or from the makers' own CPU time, which is longer than the rest of a step.
        """
        if self.waits_alone or self.made_ms is None or self.handed_over or self.about.library:
            return self.waits_alone
        rest_ms = self.step_ms - self.wait_ms
        made_ms = self.made_ms * self.made_on_cpu / max(1, self.about.workers)
        # Without workers the loop itself makes its batches: each ms of it is a wait.
        longer_ms = made_ms - rest_ms if self.about.workers else made_ms
        return 100 * longer_ms >= MODERATELY_PERCENT * (longer_ms + rest_ms)

    def _made_as(self, samples: float | None, collated: float | None) -> float:
        parts_ms = {
            each: self.causes_ms.get(each, 0.0) for each in ("read", "decode", "transform", "collate")
        }
        whole_ms = sum(parts_ms.values())
        of_collate = parts_ms["collate"] / whole_ms if whole_ms and collated is not None else 0.0
        return (1 - of_collate) * (samples or 0.0) + of_collate * (collated or 0.0)


_FIRST_TIMES = 20.0  # as long as any other: a first sample in which a worker gets ready
_MOST_LOADERS = 32  # that advice is sought for


def loader_facts(analysis: RankAnalysis, report: RankReport) -> list[LoaderFacts]:
    """The loaders that the measured steps waited for, costliest first."""
    step_ms = report.steps.mean_ms
    if not report.data_wait.raw_ms or not step_ms:
        return []
    waits, runs = analysis.measured_waits, analysis.by_number
    wait_ms = {each.loader: each.raw_ms for each in report.data_wait.by_loader}
    costly = sorted(wait_ms, key=lambda number: -wait_ms[number])[:_MOST_LOADERS]
    of = waits.deliveries["loader"]
    made = iterations_of(analysis)
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
    iterations: Iterations,
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
    made = (analysis.source_waits if primary else waits).deliveries
    made = made[made.made]
    causes_ms = means_ms(waits, steps)
    files = _files(analysis, report, waits)
    wait_ms = int(waits.deliveries.wait_ns.sum()) / steps / 1e6
    slowest = next((stage.name for stage in report.pipeline if stage.slowest), "")
    gains_ms, most_ms = ({}, {}) if handed_over else _gains(analysis, run, causes_ms, files)
    return LoaderFacts(
        number=run.number,
        about=about,
        of_several=loaders > 1,
        step_ms=report.steps.mean_ms or 0.0,
        wait_ms=wait_ms,
        idle_ms=wait.exposed_ms,
        causes_ms=causes_ms,
        predicted={row.id: row for row in report.gain if row.change != HALVED}
        if run is analysis.source
        else {},
        gains_ms=gains_ms,
        most_ms=most_ms,
        files=files,
        groups=report.file_groups,
        epochs=source.epochs,
        objects=_objects(analysis, source),
        handed_over=handed_over,
        production_ms=production_ms(source.deliveries),
        made_ms=int((made["prepared_ns"] - made["taken_ns"]).sum()) / steps / 1e6 if len(made) else None,
        restart_ms=_restart_ms(analysis, run, iterations),
        single=iterations.single(run),
        unmade_fraction=unmade_fraction(waits),
        behind_ready_ms=wait.behind_ready_ms if primary else None,
        batch_bytes=int(sizes.sum()) / len(sizes) if len(sizes) else None,
        piped_bytes=_piped_bytes(report, len(waits)) if loaders == 1 else None,
        samples=int(samples.sum()) / len(samples) if len(samples) else None,
        collate=_collate(analysis, source),
        collate_line=collate_of(about, analysis.session.paths) or "",
        core_free=core_free(analysis, report.system),
        cpus=_cpus(analysis, report),
        accelerated=wait.exposed_source in ("cuda_events", "kernels"),
        asleep=asleep,
        on_cpu=on_cpu,
        threaded=threaded,
        threaded_cpu=threaded_cpu,
        waits_alone=_waits_alone(report),
        others_may_make_it=may_be_all_of_wait(report, KEPT_UP_PERCENT),
        called=_called(about.dataset, source, report),
        storage_bytes=_storage_bytes(report, steps),
        batches=len(source.deliveries),
        batches_per_step=len(waits) / steps,
        item=item_of(about, analysis.session.paths) or (slowest if primary else ""),
        ready=ready_batches(source),
        pipeline=report.pipeline if primary else [],
        waits_at=code_of_waits(analysis, source),
        making=making_of(analysis, source, analysis.source_waits if primary else waits, report),
        taken_from=_taken_from(analysis) if primary else None,
    )


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
) -> tuple[dict[str, float], dict[str, float]]:
    """Replay it without each cause that costs much, and its costliest file: all else as it was, and most."""
    about = run.description
    if about.wrapped or about.library or about.in_order is False:
        return {}, {}
    whole_ms = int(analysis.kept.duration_ns.sum()) / len(analysis.kept) / 1e6
    gone = [cause for cause in CAUSES if 100 * causes_ms[cause] >= MODERATELY_PERCENT * whole_ms]
    if "read" in gone or "decode" in gone:
        most = {max(files, key=cost).path for cost in map(attrgetter, ("read_ms", "decode_ms")) if files}
        gone += [FILES, *(f"{FILES}:{path}" for path in sorted(most))]
    if {"read", "decode", "transform"} & {*gone}:
        gone.append(RESIZED)
    replay = replayed(analysis, run)
    most_ms = {each: replay.most_ms(each) for each in gone}
    gains_ms = {each: replay.gain_ms(each) for each in gone}
    if sends_behind_next(run.deliveries, split_waits(run.deliveries)[3]):  # of which the replay knows nothing
        gains_ms.update({each: max(ms, causes_ms[each]) for each, ms in gains_ms.items() if each in PARTS})
    return (
        gains_ms,
        {each: most for each, most in most_ms.items() if most is not None},
    )


def _restart_ms(analysis: RankAnalysis, run: LoaderRun, iterations: Iterations) -> float:
    """What making and ending iterators takes a step, from the first measured one to the last.

    Steps between them that are not measured, such as profiled ones, make iterators, too.
    """
    every, kept = analysis.loop.steps, analysis.kept
    start_ns, end_ns = int(kept["start_ns"][0]), int(kept["end_ns"][-1])
    steps = int(((every["start_ns"] >= start_ns) & (every["end_ns"] <= end_ns)).sum())
    # The wait for new workers is part of both: where a measured step has it, it counts there.
    awaited = union(kept.awaited["wait_start_ns"], kept.awaited["delivered_ns"])
    return iterations.restart_ns(run, start_ns, end_ns, awaited) / steps / 1e6


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


def _piped_bytes(report: RankReport, batches: int) -> float | None:
    """What the process that trains read in the measured steps, but by no call on a file, for each batch."""
    account = report.io.processes if report.io else []
    main = next((each for each in account if each.role == "main"), None)
    if main is None or main.steps_kernel_bytes is None or not batches:
        return None
    return max(0, main.steps_kernel_bytes - (main.steps_traced_bytes or 0)) / batches


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
