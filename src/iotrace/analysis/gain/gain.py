"""What each change would gain, with an interval; or why nothing is predicted."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import numpy as np

from iotrace.analysis.gain.changes import Change, changes_of
from iotrace.analysis.gain.pipeline import Floats, Pipeline, Replay, replay
from iotrace.analysis.gain.recorded import Recorded, Withheld, alone, as_it_was, recorded
from iotrace.analysis.host.disturbance import is_disturbed
from iotrace.analysis.rank import RankAnalysis
from iotrace.analysis.resampling import interval_of, resampled_means
from iotrace.analysis.results import DataWait, GainRow, System
from iotrace.analysis.wait.data_wait import MODERATELY_PERCENT, bound_fraction, device_waits
from iotrace.units import percent

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
    try:
        found = recorded(analysis, system)
    except Withheld as why:
        return Gain(withheld=str(why))
    if not _is_disturbed(found, system):
        return _judged([found], analysis, system, wait)
    return _judged([as_it_was(found), alone(found)], analysis, system, wait)


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
    disturbed = len(ways) > 1
    rows = []
    for way in ways:
        judge = _Judge(analysis, way, replay(way.pipeline), system, wait, step_ms, disturbed)
        rows.append([judge.row(change) for change in changes_of(way, wait, step_ms, system.cpus or 1)])
    others = {(row.id, row.change): row for row in rows[-1]}
    return Gain([_over_both(row, others.get((row.id, row.change), row)) for row in rows[0]], 100 * error)


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
