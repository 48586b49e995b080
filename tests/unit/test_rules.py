"""The catalogue of rules: each fires where it is true, and is silent where it only looks so."""

from __future__ import annotations

from typing import Any

import pytest

from iotrace.analysis.rules.facts.examples import facts_of
from iotrace.analysis.rules.model import SCOPES, Finding, Rule, catalogue

RULES = {rule.code: rule for rule in catalogue()}


def found(rule: Rule, changes: dict[str, Any]) -> list[Finding]:
    return list(rule.find(facts_of(rule, changes)))


@pytest.mark.parametrize("code", RULES)
def test_a_rule_fires_where_it_is_true_and_only_there(code: str) -> None:
    rule = RULES[code]
    assert rule.fires, "a rule needs a case in which it is true"
    assert rule.silent, "a rule needs a case in which it only looks true"
    for changes in rule.fires:
        findings = found(rule, changes)
        assert findings, f"{code} is silent for {changes}"
        assert all(each.text for each in findings)
    for changes in rule.silent:
        assert not found(rule, changes), f"{code} fires for {changes}"


@pytest.mark.parametrize("code", RULES)
def test_a_rule_says_what_it_means(code: str) -> None:
    rule = RULES[code]
    assert rule.scope in SCOPES
    assert rule.summary.endswith(".")
    assert rule.name == rule.name.lower().replace(" ", "-")
    assert not rule.meaning.startswith("Return")
