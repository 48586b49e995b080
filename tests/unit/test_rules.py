"""The catalogue of rules: each fires where it is true, and is silent where it only looks so."""

from __future__ import annotations

import json
from typing import Any

import pytest

from iotrace.analysis.rules.catalogue import Explained, explained, near
from iotrace.analysis.rules.facts.examples import facts_of
from iotrace.analysis.rules.model import SCOPES, Finding, Rule, catalogue
from tests.support.runs import in_process

RULES = {rule.code: rule for rule in catalogue()}


EXPLAINED = [explained(rule) for rule in RULES.values()]


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


@pytest.mark.parametrize("rule", EXPLAINED, ids=lambda rule: rule.code)
def test_a_rule_is_explained_by_code_and_by_name(rule: Explained) -> None:
    by_code, by_name = in_process("explain", rule.code.lower()), in_process("explain", rule.name)
    assert by_code.returncode == 0, by_code.stderr
    assert by_name.stdout == by_code.stdout
    shown = " ".join(by_code.stdout.split())
    told = [rule.about, *rule.meaning, *rule.bounds, rule.remedy, rule.example, rule.change]
    assert rule.example
    assert [text for text in told if " ".join(text.split()) not in shown] == []


def test_a_rule_that_advises_says_what_to_do() -> None:
    assert [rule.code for rule in EXPLAINED if rule.change and not rule.remedy] == []


def test_all_rules_are_listed() -> None:
    listed = in_process("rules").stdout
    rules = json.loads(in_process("rules", "--json").stdout)["rules"]
    assert [each["code"] for each in rules] == [*RULES]
    assert all(each["name"] in listed and each["summary"].endswith(".") for each in rules)


@pytest.mark.parametrize(
    ("typed", "meant"), [("IO2O4", "IO204"), ("io20", "IO201"), ("slow-read", "IO101"), ("quota", "IO303")]
)
def test_a_rule_that_is_nearly_typed_is_found(typed: str, meant: str) -> None:
    assert meant in near(typed)
