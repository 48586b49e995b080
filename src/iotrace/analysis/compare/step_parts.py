"""The parts of a step on both sides: the causes of its wait and its phases, with intervals."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from iotrace.analysis.compare.basis import Rank
from iotrace.analysis.compare.results import OF_TRAINING, OTHER, REST, Changed
from iotrace.analysis.host.disturbance import grown_beside_others, is_disturbed
from iotrace.analysis.resampling import FEWEST, Floats, interval_of, resampled_means
from iotrace.analysis.results import StepBlocks

PHASES = (*OF_TRAINING, OTHER)  # what the rest consists of, where it is known
_WORTH_NAMING = 0.01  # of the step before
_OF_FILES = ("read", "decode")
_LEFT = 0.5  # of the variance: what a trend leaves at the most
_LEAST_FACTOR = 0.01  # of a mean: few blocks, widened for that, bound it no more
_MOSTLY = 0.6  # of a cause's change: what one file has to change to stand for it


def step_change(ranks: tuple[Rank, Rank]) -> tuple[list[float], float, list[float] | None]:
    """Return the two mean steps in ms, the change in percent of the first, and its 95 % interval."""
    steps_ms = [rank.steps.mean_ms or 0.0 for rank in ranks]
    change_pct = 100 * (steps_ms[1] / steps_ms[0] - 1)
    before, after = _resampled(ranks, "step")
    if before is None or after is None:
        return steps_ms, change_pct, None
    # By the factors of both: a mean of few blocks may come near nothing, and no ratio to it has a mean.
    low, high = interval_of(_factor(after) / np.maximum(_factor(before), _LEAST_FACTOR))
    ratio = steps_ms[1] / steps_ms[0]
    return steps_ms, change_pct, [100 * (ratio * low - 1), 100 * (ratio * high - 1)]


def _factor(samples: Floats) -> Floats:
    """Return each as a multiple of their mean."""
    return np.asarray(samples / np.mean(samples))


def changed_parts(ranks: tuple[Rank, Rank]) -> list[Changed]:
    """List the parts of a step that changed beyond their intervals, and by 1 % of the step, largest first.

    The parts are the causes of the data wait, where both sides know it, and the rest of the step. A cause is
    told as one file's where that file has most of its change.
    """
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
    for cause in dict.fromkeys([*one.causes_ms, *other.causes_ms] if _waits_known(ranks) else ()):
        by_ms = other.causes_ms.get(cause, 0.0) - one.causes_ms.get(cause, 0.0)
        file = _file_behind(ranks, cause, by_ms) if cause in _OF_FILES else None
        yield Changed(
            what=f"{cause} of {file}" if file else cause,
            by_ms=by_ms,
            ci95_ms=_difference(ranks, cause, by_ms),
            cause=cause,
            file=file,
            code=None if file else _code_behind(ranks, cause, by_ms),
        )
    for part, values in rest_parts(ranks).items():
        by_ms = values[1] - values[0]
        yield Changed(
            what=part,
            by_ms=by_ms,
            ci95_ms=_difference(ranks, part, by_ms),
            cause=None,
            file=None,
            unsure=part in OF_TRAINING and _others_may_have(ranks, values),
        )


def _others_may_have(ranks: tuple[Rank, Rank], values: list[float]) -> bool:
    """Whether a time changed by no more than it may have grown beside others."""
    hosts = [rank.system.host for rank in ranks]
    if not any(map(is_disturbed, hosts)):
        return False
    return max(values) <= (1 + grown_beside_others(hosts, "wall")) * min(values)


def _code_behind(ranks: tuple[Rank, Rank], cause: str, by_ms: float) -> str | None:
    """Name the line that most of a cause is in on the side that takes more; the other one may lack it."""
    loader = ranks[0 if by_ms < 0 else 1].primary
    hot = None if loader is None else loader.hot(cause)
    return None if hot is None else hot.placed(None)


def rest_parts(ranks: tuple[Rank, Rank]) -> dict[str, list[float]]:
    """Return what a step does besides waiting, before and after: its phases, where both sides have them.

    Where a side does not know its wait, that lies in the rest of both: what the known phases leave.
    """
    phases = [rank.phases_ms for rank in ranks]
    steps_ms = [rank.steps.mean_ms or 0.0 for rank in ranks]
    known = {
        phase: [each[phase] or 0.0 for each in phases]
        for phase in PHASES
        if all(each.get(phase) is not None for each in phases)
    }
    if not _waits_known(ranks):
        known.pop(OTHER, None)
        left_ms = [step - sum(own[side] for own in known.values()) for side, step in enumerate(steps_ms)]
        return {**known, REST: left_ms} if known else {}
    if len(known) == len(PHASES):
        return known
    return {REST: [step - (rank.data_wait.raw_ms or 0.0) for step, rank in zip(steps_ms, ranks, strict=True)]}


def _waits_known(ranks: tuple[Rank, Rank]) -> bool:
    return all(rank.data_wait.raw_ms is not None for rank in ranks)


def _file_behind(ranks: tuple[Rank, Rank], cause: str, by_ms: float) -> str | None:
    """Find the file whose wait by `cause` changed by most of `by_ms`, in the same direction."""
    costs = [{file.path: getattr(file, f"{cause}_ms") for file in rank.data_wait.files} for rank in ranks]
    if any(None in own.values() for own in costs):
        return None
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
    waits_known = _waits_known(ranks)
    known = [None if rank.blocks is None else _part(rank.blocks, part, waits_known) for rank in ranks]
    lengths = {(rank.blocks.steps, len(rank.blocks.step_ms)) for rank in ranks if rank.blocks is not None}
    if len(lengths) == 1:
        known = [None if one is None else _without_trend(one) for one in known]
    return [None if one is None else resampled_means(one, seed=seed) for seed, one in enumerate(known)]


def _without_trend(values: Floats) -> Floats:
    """Take out a trend that most of the variance is, of a loop as long as the one that it is compared with.

    What a program does more of from step to step, it does again in another run: that is no chance.
    """
    if len(values) < FEWEST:
        return values
    at = np.arange(len(values)) - (len(values) - 1) / 2
    mean = float(np.mean(values))
    left = values - mean - at * float(at @ (values - mean)) / float(at @ at)
    return np.asarray(left + mean) if np.var(left) <= _LEFT * np.var(values) else values


def _part(blocks: StepBlocks, part: str, waits_known: bool) -> Floats | None:
    """Take the blocks of a part of the step; None where it is not known of them.

    Unless the waits of both sides are known, the rest is what the phases leave.
    """
    known = {**blocks.causes_ms, **blocks.phases_ms, "step": blocks.step_ms}
    if part in known:
        return np.array(known[part])
    if waits_known and not blocks.wait_ms:
        return None
    named = [*blocks.phases_ms.values()] if part != REST or not waits_known else []
    named += [blocks.wait_ms] if waits_known else []
    return np.asarray(np.array(blocks.step_ms) - sum(np.array(own) for own in named))
