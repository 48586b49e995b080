"""What a step took in all on both sides: with the start of workers, iterators made anew, and evaluations."""

from __future__ import annotations

from iotrace.analysis.compare.basis import Rank
from iotrace.analysis.compare.results import WholeRun
from iotrace.analysis.results import (
    BAD,
    FIRST_BATCHES,
    FIRST_START,
    ITERATORS,
    VALIDATION_ITERATORS,
    Trust,
)

_STARTING = (FIRST_START, ITERATORS, FIRST_BATCHES, VALIDATION_ITERATORS)
# What is seen a few times in a run differs more from run to run than a mean of many steps.
_SPREAD, _SPREAD_UNTRUSTED = 0.25, 0.5
_MOSTLY = 0.5  # of the change: what starting has to have for the whole to be judged


def whole_run(ranks: tuple[Rank, Rank], trusts: tuple[Trust, Trust]) -> WholeRun | None:
    """Compare the whole loops and the first starts, per step; None where a side does not have them."""
    one, other = (rank.account for rank in ranks)
    if one is None or other is None or one.step_ms is None or other.step_ms is None:
        return None
    steps_ms = [one.step_ms, other.step_ms]
    parts_ms = {
        part.name: [account.part_ns(part.name) / account.steps / 1e6 for account in (one, other)]
        for part in one.parts
        if part.in_loop or part.name == FIRST_START
    }
    by_starting_ms = sum(
        after - before for before, after in (parts_ms.get(name, [0.0, 0.0]) for name in _STARTING)
    )
    by_ms = steps_ms[1] - steps_ms[0]
    spreads = [_SPREAD_UNTRUSTED if trust.level == BAD else _SPREAD for trust in trusts]
    bounds = [(ms * (1 - spread), ms * (1 + spread)) for ms, spread in zip(steps_ms, spreads, strict=True)]
    verdict = None
    if by_ms and by_starting_ms / by_ms >= _MOSTLY:
        if bounds[1][1] < bounds[0][0]:
            verdict = "faster"
        elif bounds[0][1] < bounds[1][0]:
            verdict = "slower"
    return WholeRun(
        verdict=verdict,
        step_ms=steps_ms,
        change_pct=100 * by_ms / steps_ms[0],
        parts_ms=parts_ms,
        starting_ms=[sum(parts_ms.get(name, [0.0, 0.0])[side] for name in _STARTING) for side in (0, 1)],
    )
