"""What each stage of a sample costs in both sessions: the least noisy comparison that there is."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from iotrace.analysis.bootstrap import FEWEST, RESAMPLES, Floats, interval_of
from iotrace.analysis.compare.basis import Rank
from iotrace.analysis.compare.results import StageChange
from iotrace.analysis.results import StageCost

_Key = tuple[str, str, str | None]  # stage, clock, file
_WITHOUT_FILE = ("transform", "collate")


def stage_changes(ranks: tuple[Rank, Rank]) -> list[StageChange]:
    """Compare the stages that both sessions have: each file of both, and each stage over all its files.

    The costliest come first. A stage over all files sums up the changes of its files, weighed by what they
    cost before: which file is drawn how often is chance.
    """
    before, after = ({_key(cost): cost for cost in rank.stages} for rank in ranks)
    alike = {key for key in before if key[2]} == {key for key in after if key[2]}
    whole = sum(_of_sample(cost) for cost in before.values())
    found = []
    for stage, clock in dict.fromkeys(key[:2] for key in before):
        pairs = [
            (cost, after[key])
            for key, cost in before.items()
            if key[:2] == (stage, clock)
            and key in after
            and cost.quartile_ms > 0
            # The other files are others, where not the same ones stand on their own.
            and (alike or key[2] is not None or cost.stage in _WITHOUT_FILE)
        ]
        if not pairs or not whole:
            continue
        each = [_change([pair], whole) for pair in pairs]
        found += [change for change in [_change(pairs, whole), *(each if len(each) > 1 else [])] if change]
    return sorted(found, key=lambda change: -change.share)


def _key(cost: StageCost) -> _Key:
    return cost.stage, cost.clock, cost.path


def _of_sample(cost: StageCost) -> float:
    return cost.per_sample * cost.quartile_ms


def _change(pairs: Sequence[tuple[StageCost, StageCost]], whole: float) -> StageChange | None:
    weights = [before.per_sample for before, _ in pairs]
    costs_ms = [
        sum(weight * pair[side].quartile_ms for weight, pair in zip(weights, pairs, strict=True))
        for side in (0, 1)
    ]
    resampled = []
    for side in (0, 1):
        drawn = [_quartiles(pair[side], 2 * row + side) for row, pair in enumerate(pairs)]
        known = [values for values in drawn if values is not None]
        if len(known) < len(pairs):
            return None
        resampled.append(sum(weight * values for weight, values in zip(weights, known, strict=True)))
    change_pct = 100 * (costs_ms[1] / costs_ms[0] - 1)
    ratios = np.asarray(100 * (resampled[1] / np.maximum(resampled[0], 1e-12) - 1))
    low, high = interval_of(ratios + (change_pct - float(np.median(ratios))))
    cost = pairs[0][0]
    file = cost.path if len(pairs) == 1 else None
    return StageChange(
        what=f"{cost.stage} of {file}" if file else cost.stage,
        stage=cost.stage,
        file=file,
        clock=cost.clock,
        quiet=all(one.quiet for pair in pairs for one in pair),
        cost_ms=costs_ms,
        change_pct=change_pct,
        ci95_pct=[low, high],
        share=costs_ms[0] / whole,
    )


def _quartiles(cost: StageCost, seed: int) -> Floats | None:
    """Resample the lower quartile of a stage's cost, by its blocks; None where they are too few."""
    values = np.array(cost.blocks_ms)
    if len(values) < FEWEST:
        return None
    rows = np.random.default_rng(seed).integers(len(values), size=(RESAMPLES, len(values)))
    return np.asarray(np.percentile(values[rows], 25, axis=1))
