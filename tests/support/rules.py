"""What rules find in facts, as a report has it."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from iotrace.analysis.results import Culprit, Recommendation
from iotrace.analysis.rules.advice import advice_of, culprits_of
from iotrace.analysis.rules.facts.loader import LoaderFacts
from iotrace.analysis.rules.facts.loader_facts import together
from iotrace.analysis.rules.facts.rank import RankFacts
from iotrace.analysis.rules.model import Finding, find_all, rule_of


def found_by(code: str, facts: object) -> list[Finding]:
    """What one rule finds."""
    return [replace(each, rule=code) for each in rule_of(code).find(facts)]


def recommend(loaders: list[LoaderFacts]) -> list[Recommendation]:
    """The advice on the loaders of one loop."""
    found = [each for facts in together(loaders) for each in find_all("loader", facts)]
    return advice_of(found, None)


def blamed_by(code: str, report: Any, **known: Any) -> list[Culprit]:
    """What one rule says of what holds a rank up from outside."""
    return culprits_of(found_by(code, RankFacts(report=report, **known)))


def advised_by(code: str, report: Any, **known: Any) -> list[Recommendation]:
    """What one rule on a rank advises."""
    return advice_of(found_by(code, RankFacts(report=report, **known)), None)
