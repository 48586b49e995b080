"""What each stage of a sample costs on both sides: the least noisy comparison that there is."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean
from typing import Any

import msgspec
import numpy as np

from iotrace.analysis.compare.basis import Rank
from iotrace.analysis.compare.results import StageChange
from iotrace.analysis.compare.spread import OF_TIME, have_others_taken, noise_of, prior_of, slowness_of
from iotrace.analysis.resampling import FEWEST, Floats
from iotrace.analysis.results import StageCost

_Key = tuple[str, str, str | None, str | None]  # stage, clock, file, dataset of several
_WITHOUT_FILE = ("transform", "collate")
_RESAMPLES = 400  # a variance needs fewer than the ends of an interval
# Of the change of the CPUs' speed that is taken out: caches and neighbours slow no two programs alike. Over
# 20 runs, where a fixed piece of work took up to 20 % longer, decoding differed by 6.5 %.
ERROR_OF_CORRECTION = 0.35


_OFTEN = 1.5  # times: so often a stage is needed for a sample beyond chance, which draws files
_UNKNOWN = math.log(10)  # half of an interval: such a change is unknown, and no figure
_TYPICAL = 4.0  # times its quartile: from there the mean is made by other calls than those of the quartile


class _Run(msgspec.Struct, frozen=True):
    """A run: its stages, and how slow its CPUs were."""

    costs: dict[_Key, StageCost]
    slowness: float

    def cost_ms(self, key: _Key, weight: float) -> float:
        return weight * self.costs[key].quartile_ms

    def decoded(self, weights: dict[_Key, float]) -> tuple[float, float] | None:
        """Return the bytes decoded for a sample and the variance of their logarithm; None: unknown."""
        total_bytes = variance = 0.0
        for key, weight in weights.items():
            cost = self.costs[key]
            if cost.decoded_bytes is None or cost.decoded_bytes_error is None:
                return None
            total_bytes += weight * cost.decoded_bytes
            variance += (weight * cost.decoded_bytes_error) ** 2
        return (total_bytes, variance / total_bytes**2) if total_bytes > 0 else None


def stage_changes(before: Sequence[Rank], after: Sequence[Rank]) -> list[StageChange]:
    """Compare the stages that all runs of both sides have: each file of all, and each stage over its files.

    The costliest come first. A stage over all files sums up the changes of its files, weighed by what they
    cost before: which file is drawn how often is chance, unless all are needed more or less often by far.
    A stage that few costly calls make, among many cheap ones, has no cost that a quartile tells: none is
    compared. CPU times are those at the speed of the first run.
    """
    ranks = [*before, *after]
    slowness = slowness_of(ranks)
    runs = [
        _Run({_key(cost): cost for cost in rank.stages}, slow / slowness[0])
        for rank, slow in zip(ranks, slowness, strict=True)
    ]
    first = runs[0].costs
    files = [{key for key in run.costs if key[2]} for run in runs]
    alike = all(own == files[0] for own in files)
    whole = sum(cost.per_sample * cost.quartile_ms for cost in first.values())
    sides = runs[: len(before)], runs[len(before) :]
    # One run of each side does not show what others do to it; how `iotrace check` takes that, it says itself.
    alone = len(ranks) == 2 and have_others_taken(ranks)
    found = []
    for stage, clock, loader in dict.fromkeys((*key[:2], key[3]) for key in first):
        keys = [
            key
            for key in first
            if (*key[:2], key[3]) == (stage, clock, loader)
            and all(key in run.costs and run.costs[key].quartile_ms > 0 for run in runs)
            # The other files are others, where not the same ones stand on their own.
            and (alike or key[2] is not None or stage in _WITHOUT_FILE)
        ]
        if not keys or not whole or not all(_is_typical(run, keys) for run in runs):
            continue
        prior = prior_of(clock, ranks)
        often = [_often(run, runs[0], keys) for run in runs]
        times = often[: len(before)], often[len(before) :]
        shown = max(prior, OF_TIME) if alone and not _is_quiet(runs, keys) else prior
        each = [_change([key], sides, times, whole, (prior, shown)) for key in keys if key[2] is not None]
        found += [_change(keys, sides, times, whole, (prior, shown)), *(each if len(keys) > 1 else [])]
    return sorted((change for change in found if change), key=lambda change: -change.share)


def _key(cost: StageCost) -> _Key:
    return cost.stage, cost.clock, cost.path, cost.loader


def _is_quiet(runs: Sequence[_Run], keys: Sequence[_Key]) -> bool:
    return all(run.costs[key].quiet for run in runs for key in keys)


def _is_typical(run: _Run, keys: Sequence[_Key]) -> bool:
    mean_ms, quartile_ms = (
        sum(run.costs[key].per_sample * getattr(run.costs[key], name) for key in keys)
        for name in ("mean_ms", "quartile_ms")
    )
    return bool(mean_ms <= _TYPICAL * quartile_ms)


def _often(run: _Run, first: _Run, keys: Sequence[_Key]) -> float:
    """How many times as often as in the `first` run a stage is needed for a sample; 1 within chance."""
    now, before = (sum(each.costs[key].per_sample for key in keys) for each in (run, first))
    ratio = now / before if now > 0 and before > 0 else 1.0
    return ratio if max(ratio, 1 / ratio) >= _OFTEN else 1.0


def _change(
    keys: Sequence[_Key],
    sides: tuple[list[_Run], list[_Run]],
    often: tuple[list[float], list[float]],
    whole: float,
    priors: tuple[float, float],
) -> StageChange | None:
    """Compare a stage; `priors` are of its noise, and of the interval that is shown."""
    stage, clock, path, loader = keys[0]
    first = sides[0][0].costs
    weights = {key: first[key].per_sample for key in keys}
    costs_ms = [
        [
            times * sum(run.cost_ms(key, weights[key]) for key in keys)
            for run, times in zip(*side, strict=True)
        ]
        for side in zip(sides, often, strict=True)
    ]
    logs = [
        [math.log(cost / (run.slowness if clock == "cpu" else 1.0)) for run, cost in zip(*side, strict=True)]
        for side in zip(sides, costs_ms, strict=True)
    ]
    variance = 0.0
    for runs in sides:
        own = [_log_variance(run, weights, seed) for seed, run in enumerate(runs)]
        known = [each for each in own if each is not None]
        if len(known) < len(own):
            return None
        variance += sum(known) / len(known) ** 2
    if clock == "cpu":
        variance += _of_correction([[run.slowness for run in runs] for runs in sides]) ** 2
    noise, shown = (noise_of(logs, prior, math.sqrt(variance)) for prior in priors)
    if noise.half95 > _UNKNOWN:
        return None
    change = fmean(logs[1]) - fmean(logs[0])
    file = path if len(keys) == 1 else None
    return StageChange(
        what=" of ".join(filter(None, (stage, file, loader))),
        stage=stage,
        file=file,
        clock=clock,
        quiet=_is_quiet([*sides[0], *sides[1]], keys),
        cost_ms=[fmean(side) for side in costs_ms],
        change_pct=_percent(change),
        ci95_pct=[_percent(change - shown.half95), _percent(change + shown.half95)],
        share=costs_ms[0][0] / whole,
        noise_pct=_percent(noise.exceeded_by_1_in_100),
        **_decoded(sides, often, weights),
    )


def _of_correction(slowness: Sequence[Sequence[float]]) -> float:
    """Return how far taking the CPUs' speed out of a change may err, as a deviation of its logarithm."""
    before, after = (fmean(map(math.log, side)) for side in slowness)
    return ERROR_OF_CORRECTION * abs(after - before)


def _decoded(
    sides: tuple[list[_Run], list[_Run]], often: tuple[list[float], list[float]], weights: dict[_Key, float]
) -> dict[str, Any]:
    """Compare the bytes decoded for a sample: both means, the change and its noise; nothing where unknown."""
    found = [
        [
            run.decoded({key: times * weight for key, weight in weights.items()})
            for run, times in zip(*side, strict=True)
        ]
        for side in zip(sides, often, strict=True)
    ]
    known = [[each for each in side if each is not None] for side in found]
    if [len(side) for side in known] != [len(side) for side in sides]:
        return {}
    logs = [[math.log(size_bytes) for size_bytes, _ in side] for side in known]
    within = math.sqrt(sum(variance / len(side) ** 2 for side in known for _, variance in side))
    # Nothing but the choice of samples changes a count: what each run shows of it is all that is expected.
    noise = noise_of(logs, 0.0, within)
    change = fmean(logs[1]) - fmean(logs[0])
    return {
        "decoded_bytes": [fmean(size_bytes for size_bytes, _ in side) for side in known],
        "decoded_change_pct": _percent(change),
        "decoded_noise_pct": _percent(noise.exceeded_by_1_in_100),
    }


def _percent(difference_of_logs: float) -> float:
    return 100 * math.expm1(difference_of_logs)


def _log_variance(run: _Run, weights: dict[_Key, float], seed: int) -> float | None:
    """Find the variance of the logarithm of a run's cost, by its blocks; None where they are too few."""
    resampled: Floats = np.zeros(_RESAMPLES)
    for row, (key, weight) in enumerate(weights.items()):
        values = np.array(run.costs[key].blocks_ms)
        if len(values) < FEWEST:
            return None
        rows = np.random.default_rng([row, seed]).integers(len(values), size=(_RESAMPLES, len(values)))
        resampled = resampled + weight * np.percentile(values[rows], 25, axis=1)
    return float(np.var(np.log(np.maximum(resampled, 1e-12))))
