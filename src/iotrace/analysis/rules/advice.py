"""What findings advise: the order in which it is worth trying, and how a report tells it."""

from __future__ import annotations

from collections.abc import Sequence

from iotrace.analysis.results import Culprit, Evidence, Recommendation
from iotrace.analysis.rules.model import (
    MORE_WORKERS,
    ORDER,
    OUTSIDE,
    THE_CAUSE,
    THE_DEVICE,
    THE_LOOP,
    Finding,
    rule_of,
)

_OF_LOADERS, _BY_GAIN = (MORE_WORKERS, THE_CAUSE, ORDER), (THE_LOOP, THE_CAUSE, THE_DEVICE)


def resolve(found: Sequence[Finding]) -> list[Finding]:
    """Put the findings that have a remedy into the order in which they are worth trying.

    Main causes go before what only they make slow, and silence what would make them worse. What recurs in the
    loop and takes most of it comes first. Where needless
    work is a main cause, what spares it goes before what does it on more workers, unless another change
    gains more. What may gain nothing comes last.
    """
    left = [each for each in unsilenced(found) if each.remedy]
    is_wasted = any(each.is_main_cause and each.spares_work for each in found)
    of_loaders = [each for each in left if _turn(each) in _OF_LOADERS]
    most_ms = max((each.gain_ms or 0.0 for each in of_loaders), default=0.0)

    def place(each: Finding) -> tuple[bool, float, float]:
        turn = _turn(each)
        if turn == THE_LOOP and each.is_main_cause:
            return each.tries, OUTSIDE - 0.5, -_worth(each, turn)
        if each.first and each.is_main_cause:
            return each.tries, _OF_LOADERS[0] - 0.5, -1.0
        if is_wasted and turn in _OF_LOADERS and each.spares_work and (each.gain_ms or 0.0) >= most_ms:
            return each.tries, _OF_LOADERS[0] - 0.5, 0.0
        return each.tries, turn, -_worth(each, turn) if turn in _BY_GAIN else 0.0

    return sorted(left, key=place)


def unsilenced(found: Sequence[Finding]) -> list[Finding]:
    """Leave out what a main cause among these explains; of two that explain each other the later one."""
    silenced: set[tuple[str, str]] = set()  # a rule, and the one that explains it
    for each in found:
        if each.is_main_cause:
            silenced |= {(rule, each.rule) for rule in each.silences if (each.rule, rule) not in silenced}
    return [each for each in found if all(each.rule != rule for rule, _ in silenced)]


def _worth(each: Finding, turn: int) -> float:
    """What a change gains; of the loop, the device, and what leads without a gain also what it costs."""
    is_by_cost = turn in (THE_LOOP, THE_DEVICE) or (each.gain_ms is None and each.is_main_cause)
    return max(each.gain_ms or 0.0, (each.cost_ms or 0.0) if is_by_cost else 0.0)


def _turn(found: Finding) -> int:
    return rule_of(found.rule).turn


def culprits_of(found: Sequence[Finding]) -> list[Culprit]:
    """Return what holds the making of batches up, or is behind what seems to, in order."""
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
            tries=each.tries,
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
        seen=found.text,
        evidence={"wait_ms": found.cost_ms or 0.0} if rule.scope == "rank" else _figures(found.evidence),
        gain_ms_per_step=found.gain_ms,
        most_ms_per_step=found.most_ms,
        spares_fraction=found.spares,
        remedy=found.remedy,
        fix=rule.id if found.loader is None else f"{rule.id}:{found.loader}",
        rank=rank,
        gain=found.gain,
        gain_interval_ms=found.gain_interval_ms,
        command=found.command,
        change=found.change,
        cost_ms_per_step=found.cost_ms if rule.scope == "loader" else None,
        code=found.rule,
    )


def _figures(evidence: Evidence) -> dict[str, float]:
    return {name: value for name, value in evidence.items() if isinstance(value, int | float)}


def frees_cpus(item: Recommendation) -> bool:
    """Whether advice makes less to do, so that what is left gets quicker; else others only do it sooner."""
    return item.code is None or rule_of(item.code).turn in (OUTSIDE, THE_CAUSE)


def saves_wait(item: Recommendation) -> bool:
    """Whether what advice gains is data wait: an accelerator that works meanwhile bounds it."""
    return item.code is None or rule_of(item.code).saves_wait
