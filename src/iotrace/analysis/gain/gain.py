"""What each change would gain, with an interval; or why nothing is predicted.

The changes that are asked about: how each would alter the pipeline that was recorded.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

import msgspec
import numpy as np
from msgspec.structs import replace

from iotrace.analysis.gain.pipeline import Floats, Pipeline, Replay, replay
from iotrace.analysis.gain.recorded import Recorded, Withheld, alone, as_it_was, recorded
from iotrace.analysis.host.disturbance import is_disturbed
from iotrace.analysis.rank import RankAnalysis
from iotrace.analysis.resampling import interval_of, resampled_means
from iotrace.analysis.results import GONE, HALVED, DataWait, GainRow, System
from iotrace.analysis.wait.data_wait import MODERATELY_PERCENT, bound_fraction, device_waits
from iotrace.analysis.wait.gain_bound import FILES
from iotrace.analysis.wait.production import PARTS
from iotrace.analysis.wait.turns import take_turns
from iotrace.units import percent

_MOST_FILES = 3
_SHARES = {GONE: 1.0, HALVED: 0.5}
_SLOW = 3.0  # times the median: a batch that holds a slow sample
_MOST_WORKERS = 2  # for each CPU
_IN_TURNS = "its workers make samples in turns, as behind a lock: more of them gain nothing"
_EACH_ALL = "each worker reads all of the data: more of them, or fewer, do as much each"
_INLINE = "no worker made a batch: what it costs to bring one from there was not measured"


class Change(msgspec.Struct, frozen=True):
    """A change by its names in a report, and the pipeline with it; `withheld`: why nothing is told of it."""

    id: str
    kind: str
    text: str
    change: str
    pipeline: Pipeline
    withheld: str | None = None


def less(found: Recorded, costs: Mapping[str, Floats], share: float = 1.0) -> Pipeline:
    """Take `share` of some parts' costs out of the batches' making; in ns, one entry a batch.

    Reading sleeps and decoding computes, as far as there is sleep and computing; of all other parts each has
    the same share. A wait for a CPU goes with the computing, one for the interpreter's lock with its end.
    """
    pipe = found.pipeline
    parts = dict(zip(PARTS, found.parts_ns.T, strict=True))
    nothing = np.zeros(len(pipe))
    read, decode, *others = (costs.get(name, nothing) for name in PARTS)
    other = sum(others, nothing)
    awake = np.minimum(pipe.cpu_ns + found.delay_ns, found.made_ns)
    asleep = np.maximum(found.made_ns - awake, 0.0)
    read_asleep = np.minimum(parts["read"], asleep)
    decode_awake = np.minimum(parts["decode"], np.maximum(awake - (parts["read"] - read_asleep), 0.0))
    rest = sum((parts[name] for name in PARTS[2:]), nothing)
    rest_asleep = np.maximum(asleep - read_asleep - (parts["decode"] - decode_awake), 0.0)

    def part(cost: Floats, whole: Floats, of: Floats) -> Floats:
        return np.where(whole > 0, of * np.minimum(cost / np.where(whole > 0, whole, 1.0), 1.0), 0.0)

    sleep = part(read, parts["read"], read_asleep)
    sleep = sleep + part(decode, parts["decode"], parts["decode"] - decode_awake)
    sleep = sleep + part(other, rest, np.minimum(rest_asleep, rest))
    compute = np.minimum(np.maximum(read + decode + other - sleep, 0.0), awake)
    on_cpu = np.where(awake > 0, pipe.cpu_ns / np.where(awake > 0, awake, 1.0), 0.0)
    cpu_ns = np.maximum(pipe.cpu_ns - share * compute * on_cpu, 0.0)
    return replace(
        pipe,
        blocked_ns=np.maximum(pipe.blocked_ns - share * sleep, 0.0),
        cpu_ns=cpu_ns,
        latency_ns=np.maximum(pipe.latency_ns - np.maximum(found.held_ns - cpu_ns, 0.0), 0.0),
    )


def changes_of(
    found: Recorded, wait: DataWait, step_ms: float, cpus: int, in_turns: bool | None = None
) -> Iterator[Change]:
    """Yield the changes that are worth a look, causes first, then files and knobs.

    `in_turns`: whether its workers make samples one after the other.
    """
    least_ms = MODERATELY_PERCENT / 100 * step_ms
    yield from _causes(found, wait, least_ms)
    yield from _files(found, wait, least_ms)
    yield from _knobs(found, cpus, _IN_TURNS if in_turns else None)


def _causes(found: Recorded, wait: DataWait, least_ms: float) -> Iterator[Change]:
    nothing = np.zeros(len(found.pipeline))
    for cause in ("read", "decode", "transform", "collate"):
        if wait.causes_ms.get(cause, 0.0) >= least_ms:
            own = {cause: found.parts_ns[:, PARTS.index(cause)]}
            for change, share in _SHARES.items():
                yield Change(cause, "cause", cause, change, less(found, own, share))
    if wait.causes_ms.get("transport", 0.0) >= least_ms:
        pipeline = replace(found.pipeline, latency_ns=nothing, service_ns=nothing)
        yield Change("transport", "cause", "transport", GONE, pipeline)
        if found.pipeline.pinned:
            pipeline = replace(found.pipeline, service_ns=nothing)
            yield Change("pinning", "cause", "receiving and pinning", GONE, pipeline)
    made = found.pipeline.blocked_ns + found.pipeline.cpu_ns
    usual = float(np.median(made))
    slow = made > _SLOW * usual
    if slow.any() and usual > 0:
        factor = np.where(slow, usual / np.where(made > 0, made, 1.0), 1.0)
        pipe = found.pipeline
        pipeline = replace(pipe, blocked_ns=pipe.blocked_ns * factor, cpu_ns=pipe.cpu_ns * factor)
        text = f"slow samples: {slow.sum()} of {len(slow)} batches"
        yield Change("slow-samples", "cause", text, GONE, pipeline)
    if wait.causes_ms.get("startup", 0.0) >= least_ms:
        epochs = tuple(replace(each, setup_ns=0.0, up_ns=0.0) for each in found.pipeline.epochs)
        pipeline = replace(found.pipeline, epochs=epochs)
        yield Change("first-batch", "cause", "the slow first batch of each epoch", GONE, pipeline)


def _files(found: Recorded, wait: DataWait, least_ms: float) -> Iterator[Change]:
    costs = found.waits.made_files
    worth = [file for file in wait.files if file.ms >= least_ms]
    # Many files may cost much together: a fix of all of them has its gain from here, too.
    together_ms = wait.causes_ms.get("read", 0.0) + wait.causes_ms.get("decode", 0.0)
    if worth or together_ms >= least_ms:
        own = {name: found.parts_ns[:, PARTS.index(name)] for name in ("read", "decode")}
        yield Change(FILES, "file", "reading and decoding of all files", GONE, less(found, own))
    for file in worth[:_MOST_FILES]:
        rows = costs.file == costs.names.number(file.path)
        size = len(found.pipeline)
        own = {
            name: np.bincount(costs.owner[rows], costs.parts[rows, column], size).astype(np.float64)
            for column, name in enumerate(("read", "decode"))
        }
        text = f"reading and decoding of {file.path}"
        yield Change(f"{FILES}:{file.path}", "file", text, GONE, less(found, own))
        if file.decode_ms >= least_ms:
            for change, share in _SHARES.items():
                pipeline = less(found, {"decode": own["decode"]}, share)
                yield Change(f"decode:{file.path}", "file", f"decode of {file.path}", change, pipeline)


def _knobs(found: Recorded, cpus: int, withheld: str | None) -> Iterator[Change]:
    """Yield other settings; `withheld`: why nothing is known of other numbers of workers."""
    pipe = found.pipeline
    for workers in _workers(pipe, cpus):
        change = _knob("num_workers", str(workers), replace(pipe, workers=workers))
        yield replace(change, withheld=withheld)
    if not pipe.workers:
        yield replace(_knob("num_workers", "1", pipe), withheld=_INLINE)
        return
    doubled = 2 * pipe.prefetch
    yield _knob("prefetch_factor", str(doubled), replace(pipe, prefetch=doubled))
    if pipe.workers > 1 and pipe.in_order:
        yield _knob("in_order", "False", replace(pipe, in_order=False))
    if any(each.up_ns > 0 for each in pipe.epochs[1:]):
        yield _knob("persistent_workers", "True", persistent(pipe))


def _knob(name: str, value: str, pipeline: Pipeline) -> Change:
    return Change(f"{name}={value}", "knob", f"{name}={value}", value, pipeline)


def persistent(pipe: Pipeline) -> Pipeline:
    """Return the pipeline with workers that later epochs find up."""
    first, *later = (replace(each, shutdown_ns=0.0) for each in pipe.epochs)
    epochs = (first, *(replace(each, setup_ns=0.0, up_ns=0.0) for each in later))
    return replace(pipe, epochs=epochs)


def _workers(pipe: Pipeline, cpus: int) -> list[int]:
    """Other numbers of workers: one more, twice as many, enough to keep up, one for each CPU but one."""
    if not pipe.workers:
        return []
    makes = float(np.mean(pipe.blocked_ns + pipe.cpu_ns))
    takes = float(np.mean(pipe.idle_ns + pipe.compute_ns + pipe.service_ns))
    enough = math.ceil(makes / takes) if takes > 0 else 0
    found = {pipe.workers + 1, 2 * pipe.workers, enough, cpus - 1} - {pipe.workers}
    return sorted(number for number in found if 1 <= number <= max(_MOST_WORKERS * cpus, pipe.workers + 1))


_MISSED = 0.10  # of the wait: what the replay may differ from the run itself
_DELAYED = 0.10  # of the production: what workers may wait for a CPU before two replays are made
_DEMAND = 0.80  # of the CPUs: beyond it nothing is known from one number of workers
_FASTER = 1.05  # times the measured rate: from there storage and memory give more than was measured
_FROM_STORAGE = 1 << 20  # bytes a step
_MEMORY_RATE = 1 << 30  # bytes a second
# What predictions miss beyond the interval of the run (docs/prediction.md): of the step, and of the change.
MISSED_OF_STEP, MISSED_OF_GAIN = 0.02, 0.1


class Gain(msgspec.Struct, frozen=True):
    """Predictions for a rank, or why there are none; by how much the replay missed the run's own wait."""

    rows: list[GainRow] = []
    error_pct: float | None = None
    withheld: str | None = None


def gain_of(analysis: RankAnalysis, system: System, wait: DataWait) -> Gain:
    """Replay the recorded batches of a rank's loop with each change."""
    kept = analysis.kept
    fraction = bound_fraction(wait)
    if not len(kept) or fraction is None:
        return Gain(withheld="the loop's data wait is not known")
    if 100 * fraction < MODERATELY_PERCENT:
        return Gain(withheld=f"{percent(fraction)} of a step waits for data: there is nothing to gain")
    if (analysis.rank.world_size or 1) > 1:
        return Gain(withheld="ranks run in step: another one may hold up what this one gains")
    if _waits_for_others(analysis, wait, fraction):
        return Gain(withheld="the loop waits for several loaders, and one is replayed")
    try:
        found = recorded(analysis, system)
    except Withheld as why:
        return Gain(withheld=str(why))
    if not _is_disturbed(found, system):
        return _judged([found], analysis, system, wait)
    return _judged([as_it_was(found), alone(found)], analysis, system, wait)


def without_workers(row: GainRow) -> GainRow:
    """Withhold what another number of workers gives, where each of them makes all samples."""
    if not row.id.startswith("num_workers="):
        return row
    unknown = dict.fromkeys(("predicted_ms_per_step", "interval_ms", "gain_ms_per_step", "speedup"))
    return replace(row, **unknown, withheld=_EACH_ALL)


def _waits_for_others(analysis: RankAnalysis, wait: DataWait, fraction: float) -> bool:
    """Whether 5 % of a step or more is a wait for another loader than the primary one."""
    primary = analysis.primary
    of_all = sum(each.raw_ms for each in wait.by_loader)
    of_others = sum(
        each.raw_ms for each in wait.by_loader if primary is None or each.loader != primary.number
    )
    return of_all > 0 and 100 * fraction * of_others / of_all >= MODERATELY_PERCENT


def _judged(ways: list[Recorded], analysis: RankAnalysis, system: System, wait: DataWait) -> Gain:
    """Replay each change in each of the ways in which the run may be seen; the first is how it was."""
    found, kept = ways[0], analysis.kept
    own = replay(found.pipeline)
    error = _error(found, own)
    if not abs(error) <= _MISSED:
        return Gain(error_pct=100 * error, withheld=_missed(found, own))
    step_ms = int(kept.duration_ns.sum()) / len(kept) / 1e6
    if step_ms <= 0 or not own.delivered_ns[-1] > 0:
        return Gain(withheld="the steps took no time")
    disturbed, in_turns = len(ways) > 1, _waits_in_turns(analysis, found.pipeline)
    rows = []
    for way in ways:
        judge = _Judge(analysis, way, replay(way.pipeline), system, wait, step_ms, disturbed)
        changes = changes_of(way, wait, step_ms, system.cpus or 1, in_turns)
        rows.append([judge.row(change) for change in changes])
    others = {(row.id, row.change): row for row in rows[-1]}
    return Gain([_over_both(row, others.get((row.id, row.change), row)) for row in rows[0]], 100 * error)


def _waits_in_turns(analysis: RankAnalysis, pipe: Pipeline) -> bool:
    """Whether workers mostly sleep, each until another one has made its sample."""
    blocked_ns, cpu_ns = float(pipe.blocked_ns.sum()), float(pipe.cpu_ns.sum())
    source = analysis.source
    return source is not None and blocked_ns >= cpu_ns and take_turns(analysis, source) is True


def _is_disturbed(found: Recorded, system: System) -> bool:
    """Whether other work on the CPUs shaped the recorded times, or may have."""
    made = float(found.made_ns.sum())
    delayed = float(found.delay_ns.sum()) / made if made else 0.0
    host = system.host
    return delayed > _DELAYED or host is None or host.others_cpu_fraction is None or is_disturbed(host)


def _over_both(row: GainRow, other: GainRow) -> GainRow:
    """Widen a prediction to the one without the others on the CPUs; withheld where one of both is."""
    if row.interval_ms is None or other.interval_ms is None:
        return row if row.withheld else msgspec.structs.replace(other, withheld=other.withheld)
    low, high = (pick(row.interval_ms[end], other.interval_ms[end]) for end, pick in enumerate((min, max)))
    return msgspec.structs.replace(row, interval_ms=[low, high])


def _error(found: Recorded, own: Replay) -> float:
    """By what share of the measured wait the replay of the run itself misses it."""
    measured = float(found.wait_ns[found.measured].sum())
    return float(own.wait_ns[found.measured].sum()) / measured - 1 if measured else 0.0


def _missed(found: Recorded, own: Replay) -> str:
    told, was = (float(each[found.measured].mean()) / 1e6 for each in (own.wait_ns, found.wait_ns))
    return f"the model misses the run itself: {told:.1f} ms of wait a batch where {was:.1f} were measured"


class _Judge:
    """Makes a row of each change; silent where the change leads beyond what was measured."""

    def __init__(
        self,
        analysis: RankAnalysis,
        found: Recorded,
        own: Replay,
        system: System,
        wait: DataWait,
        step_ms: float,
        disturbed: bool = False,
    ) -> None:
        self.found, self.wait, self.step_ms, self.disturbed = found, wait, step_ms, disturbed
        self.rows = np.flatnonzero(found.measured[1:]) + 1
        self.own = self._cycles(own)
        read = [process.storage_read_bytes for process in system.processes]
        self.storage = sum(each or 0 for each in read) / max(1, len(analysis.kept))
        source = analysis.source
        assert source is not None  # its batches were replayed
        sizes = source.deliveries["size_bytes"][source.deliveries.known("size_bytes")]
        self.batch_bytes = float(np.mean(sizes)) if len(sizes) else 0.0

    def _cycles(self, of: Replay) -> Floats:
        """From the delivery before to its own, of each measured batch."""
        return np.diff(of.delivered_ns)[self.rows - 1]

    def row(self, change: Change) -> GainRow:
        """Replay a change."""
        row = GainRow(id=change.id, kind=change.kind, text=change.text, change=change.change)
        changed = replay(change.pipeline)
        cycles = self._cycles(changed)
        scale = self.step_ms / float(self.own.mean())
        predicted = float(cycles.mean()) * scale
        if why := change.withheld or next(self._beyond(change, changed, predicted), None):
            return msgspec.structs.replace(row, withheld=why)
        # A batch and itself with the change are drawn together: what varies in both is no uncertainty of a
        # small change. A large one leaves little of it: its step is surer than its ratio.
        means = resampled_means(np.stack((cycles, self.own), axis=1))
        assert means is not None  # there are more batches than an interval needs
        ratio, alone = interval_of(self.step_ms * means[:, 0] / means[:, 1]), interval_of(scale * means[:, 0])
        low, high = min(ratio, alone, key=lambda pair: pair.high - pair.low)
        wider = MISSED_OF_STEP * predicted + MISSED_OF_GAIN * abs(self.step_ms - predicted)
        # A shorter way is a guess unless it is what the change is about.
        guess = self.found.pipeline.latency_ns - change.pipeline.latency_ns
        longer = wider + (float(guess.mean()) / 1e6 if change.id != "transport" else 0.0)
        if device_waits(self.wait) and self.wait.exposed_ms is not None:
            # The device works through the rest of the wait: only its idle time can be won.
            least = self.step_ms - self.wait.exposed_ms
            predicted, low, high = (max(least, each) for each in (predicted, low, high))
        return msgspec.structs.replace(
            row,
            predicted_ms_per_step=predicted,
            interval_ms=[max(0.0, low - wider), high + longer],
            gain_ms_per_step=self.step_ms - predicted,
            speedup=self.step_ms / predicted if predicted > 0 else None,
        )

    def _beyond(self, change: Change, changed: Replay, predicted_ms: float) -> Iterator[str]:
        """Yield what of the changed run was never measured."""
        faster = self.step_ms / predicted_ms if predicted_ms > 0 else float("inf")
        if self.disturbed and change.id.startswith("num_workers=") and faster > _FASTER:
            yield "other programs keep the CPUs busy: what more workers get of them is not known"
        demand = _demand(change.pipeline, changed)
        if demand > _DEMAND and faster > _FASTER:
            yield f"it keeps over {percent(_DEMAND)} of the CPUs busy, and one number of workers was measured"
        reads = change.id not in ("read", "files") and not change.id.startswith("files:")
        if reads and faster > _FASTER and self.storage > _FROM_STORAGE:
            yield "it would read from storage faster than was measured"
        rate = self.batch_bytes / (float(self.own.mean()) / 1e9) * faster
        if faster > _FASTER and rate > _MEMORY_RATE:
            yield "it would move batches through memory faster than was measured"


def _demand(pipeline: Pipeline, changed: Replay) -> float:
    """The share of the CPUs that would be busy, with what other programs use."""
    whole = float(changed.delivered_ns[-1] - changed.delivered_ns[0])
    busy = pipeline.busy_ns / whole if whole > 0 else float("inf")
    return (busy + pipeline.foreign) / pipeline.cores
