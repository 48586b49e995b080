"""What changed between two sessions: the step, the causes of its wait, the files; with intervals."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from iotrace.analysis.compare.basis import Rank
from iotrace.analysis.compare.results import Changed
from iotrace.analysis.resampling import Floats, interval_of, resampled_means
from iotrace.analysis.results import StepBlocks

REST = "the rest of the step"
PHASES = ("forward", "backward", "optimizer", "other")  # what the rest consists of, where it is known
_WORTH_NAMING = 0.01  # of the step before
_MOSTLY = 0.6  # of a cause's change: what one file has to change to stand for it


def step_change(ranks: tuple[Rank, Rank]) -> tuple[list[float], float, list[float] | None]:
    """Return the two mean steps in ms, the change in percent of the first, and its 95 % interval."""
    steps_ms = [rank.steps.mean_ms or 0.0 for rank in ranks]
    change_pct = 100 * (steps_ms[1] / steps_ms[0] - 1)
    before, after = _resampled(ranks, "step")
    if before is None or after is None:
        return steps_ms, change_pct, None
    return steps_ms, change_pct, _around(change_pct, 100 * (after / before - 1))


def changed_parts(ranks: tuple[Rank, Rank]) -> list[Changed]:
    """List the parts of a step that changed beyond their intervals, and by 1 % of the step, largest first.

    The parts are the causes of the data wait and the rest of the step. A cause is told as one file's where
    that file has most of its change.
    """
    one, other = (rank.data_wait for rank in ranks)
    if one.raw_ms is None or other.raw_ms is None:
        return []
    found = list(_changes(ranks))
    least_ms = _WORTH_NAMING * (ranks[0].steps.mean_ms or 0.0)
    beyond = [
        change
        for change in found
        if abs(change.by_ms) >= least_ms
        and change.ci95_ms is not None
        and (change.ci95_ms[0] > 0 or change.ci95_ms[1] < 0)
    ]
    return sorted(beyond, key=lambda change: -abs(change.by_ms))


def _changes(ranks: tuple[Rank, Rank]) -> Iterator[Changed]:
    one, other = (rank.data_wait for rank in ranks)
    for cause in dict.fromkeys([*one.causes_ms, *other.causes_ms]):
        by_ms = other.causes_ms.get(cause, 0.0) - one.causes_ms.get(cause, 0.0)
        file = _file_behind(ranks, by_ms) if cause in ("read", "decode") else None
        yield Changed(
            what=f"{cause} of {file}" if file else cause,
            by_ms=by_ms,
            ci95_ms=_difference(ranks, cause, by_ms),
            cause=cause,
            file=file,
        )
    for part, values in rest_parts(ranks).items():
        by_ms = values[1] - values[0]
        yield Changed(what=part, by_ms=by_ms, ci95_ms=_difference(ranks, part, by_ms), cause=None, file=None)


def rest_parts(ranks: tuple[Rank, Rank]) -> dict[str, list[float]]:
    """Return what a step does besides waiting, before and after: its phases, where both sides have them."""
    phases = [rank.phases_ms for rank in ranks]
    if all(each.get(phase) is not None for each in phases for phase in PHASES):
        return {phase: [each[phase] or 0.0 for each in phases] for phase in PHASES}
    if any(rank.data_wait.raw_ms is None for rank in ranks):
        return {}
    return {REST: [(rank.steps.mean_ms or 0.0) - (rank.data_wait.raw_ms or 0.0) for rank in ranks]}


def _file_behind(ranks: tuple[Rank, Rank], by_ms: float) -> str | None:
    """Find the file whose read and decode time changed by most of `by_ms`, in the same direction."""
    costs = [{file.path: file.ms for file in rank.data_wait.files} for rank in ranks]
    changes = {path: costs[1].get(path, 0.0) - costs[0].get(path, 0.0) for path in {**costs[0], **costs[1]}}
    if not by_ms or len(changes) < 2:
        return None
    path = max(changes, key=lambda path: changes[path] / by_ms)
    return path if changes[path] / by_ms >= _MOSTLY else None


def _difference(ranks: tuple[Rank, Rank], part: str, by_ms: float) -> list[float] | None:
    before, after = _resampled(ranks, part)
    return None if before is None or after is None else _around(by_ms, after - before)


def _around(value: float, samples: Floats) -> list[float]:
    """Return the interval of `samples` about `value`: blocks leave out a few steps at the end."""
    low, high = interval_of(samples + (value - float(np.mean(samples))))
    return [low, high]


def _resampled(ranks: tuple[Rank, Rank], part: str) -> list[Floats | None]:
    """Resample the means of a part of the step, of each side on its own."""
    known = [None if rank.blocks is None else _part(rank.blocks, part) for rank in ranks]
    return [None if one is None else resampled_means(one, seed=seed) for seed, one in enumerate(known)]


def _part(blocks: StepBlocks, part: str) -> Floats | None:
    """Take the blocks of a part of the step; None where it is not known of them."""
    known = {**blocks.causes_ms, **blocks.phases_ms, "step": blocks.step_ms}
    if part in known:
        return np.array(known[part])
    if not blocks.wait_ms:
        return None
    rest = np.array(blocks.step_ms) - np.array(blocks.wait_ms)
    named = () if part == REST else blocks.phases_ms.values()
    return np.asarray(rest - sum(np.array(own) for own in named))
