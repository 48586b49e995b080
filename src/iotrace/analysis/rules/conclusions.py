"""Findings as the report has them: what holds a rank up, and what to do in which order."""

from __future__ import annotations

from collections.abc import Sequence

from iotrace.analysis.results import Culprit, Recommendation
from iotrace.analysis.rules.model import Finding, resolve, rule_of


def culprits_of(found: Sequence[Finding]) -> list[Culprit]:
    """Return what holds the making of batches up from outside, in order."""
    return [
        Culprit(
            id=rule_of(each.rule).id,
            text=each.text,
            evidence=each.evidence,
            wait_ms=each.cost_ms or 0.0,
            leads=each.is_main_cause,
            remedy=each.remedy,
            gain_ms_per_step=each.gain_ms,
            code=each.rule,
        )
        for each in found
    ]


def advice_of(found: Sequence[Finding], rank: int | None) -> list[Recommendation]:
    """Return what to do, the first thing first; of causes from outside the main ones alone."""
    worth = [each for each in found if rule_of(each.rule).scope != "rank" or each.is_main_cause]
    return [_recommendation(each, rank) for each in resolve(worth)]


def _recommendation(found: Finding, rank: int | None) -> Recommendation:
    rule = rule_of(found.rule)
    return Recommendation(
        id=rule.id,
        severity=found.level,
        text=found.advice,
        evidence={"wait_ms": found.cost_ms or 0.0} if rule.scope == "rank" else dict(found.evidence),
        gain_ms_per_step=found.gain_ms,
        remedy=found.remedy,
        fix=rule.id if found.loader is None else f"{rule.id}:{found.loader}",
        rank=rank,
        gain=found.gain,
        gain_interval_ms=found.gain_interval_ms,
        command=found.command,
        cost_ms_per_step=found.cost_ms if rule.scope == "loader" else None,
        code=found.rule,
    )


def saves_wait(item: Recommendation) -> bool:
    """Whether what advice gains is data wait: an accelerator that works meanwhile bounds it."""
    return item.code is None or rule_of(item.code).saves_wait
