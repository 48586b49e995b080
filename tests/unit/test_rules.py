"""The catalogue of rules: each fires where it is true, and is silent where it only looks so."""

from __future__ import annotations

import json
from collections.abc import Sequence
from random import Random
from typing import Any

import pytest

from iotrace.analysis.rules.advice import advice_of
from iotrace.analysis.rules.catalogue import Explained, explained, near
from iotrace.analysis.rules.facts.examples import facts_of
from iotrace.analysis.rules.model import SCOPES, Finding, Rule, catalogue, find_all
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


def test_what_two_changes_gain_together_is_said_where_both_loaders_need_one() -> None:
    rule = RULES["IO209"]
    alone, both = (found(rule, changes)[0].remedy for changes in rule.fires)
    assert "with that of training" not in alone
    assert both.endswith(": with that of training about 2.7x")  # 8 s, 5 of them these starts


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


_OUTSIDE = ("IO301", "IO302", "IO303", "IO304", "IO305", "IO306", "IO307", "IO401", "IO402", "IO403", "IO404")
_CAUSES = ("IO101", "IO102", "IO103", "IO104", "IO201", "IO202", "IO203")
_GAINS = (None, 1.0, 2.0, 2.0, 5.0, 9.0)


def _some_findings(random: Random) -> list[Finding]:
    """A set that the rules may find: in the order of scopes, of loaders and of codes."""

    def one(code: str, **known: Any) -> Finding:
        gain_ms = random.choice(_GAINS)
        return Finding(text=f"{code} {random.random()}", rule=code, gain_ms=gain_ms, **known)

    def some(codes: Sequence[str], share: float) -> list[str]:
        return [code for code in codes if random.random() < share]

    found = []
    for code in some(_OUTSIDE, 0.3):
        tries = code in ("IO301", "IO304") and random.random() < 0.5
        is_silent = code in ("IO305", "IO306", "IO307", "IO403")
        found.append(
            one(
                code,
                remedy="" if is_silent else f"{'try ' if tries else ''}to mend {code}",
                tries=tries,
                is_main_cause=code != "IO404" and random.random() < 0.5,
                spares_work=code == "IO403",
                silences={"IO301": ("IO204",), "IO401": ("IO103", "IO204", "IO501")}.get(code, ()),
            )
        )
    found += [one(code, remedy=f"to mend {code}") for code in some(("IO501", "IO502"), 0.3)]
    for loader in range(random.randrange(4)):
        for code in some((*_CAUSES, random.choice(("IO204", "IO205")), "IO206"), 0.4):
            tries = code in ("IO101", "IO201") and random.random() < 0.3
            spares_work = code in ("IO101", "IO102") and random.random() < 0.5
            remedy = f"{'try ' if tries else ''}to mend {code}"
            found.append(one(code, remedy=remedy, tries=tries, spares_work=spares_work, loader=loader))
    return found


def _told_in_order(found: list[Finding]) -> list[Finding]:
    """The order as it was before there were rules, step by step."""
    outside = [each for each in found if each.rule in _OUTSIDE]
    leading = {each.rule for each in outside if each.is_main_cause}
    of_swap = [each for each in found if each.rule == "IO501" and "IO401" not in leading]
    writing = [each for each in found if each.rule == "IO502"]
    workers = [each for each in found if each.rule in ("IO204", "IO205")]
    causes = [each for each in found if each.rule in _CAUSES]
    causes.sort(key=lambda each: -(each.gain_ms or 0.0))
    advised = [*workers, *causes, *(each for each in found if each.rule == "IO206")]
    if "IO301" in leading:
        advised = [each for each in advised if each.rule != "IO204"]
    if "IO401" in leading:
        advised = [each for each in advised if each.rule not in ("IO204", "IO103")]
    if "IO403" in leading:
        most_ms = max((each.gain_ms or 0.0 for each in advised), default=0.0)
        advised.sort(key=lambda each: not each.spares_work or (each.gain_ms or 0.0) < most_ms)
    first = [each for each in outside if each.is_main_cause and each.remedy]
    told = [*first, *of_swap, *advised, *writing]
    told.sort(key=lambda each: each.remedy.startswith("try "))
    return told


def test_order_is_that_of_a_slow_and_obvious_twin() -> None:
    random = Random(35)
    silenced = 0
    for _ in range(2000):
        found = _some_findings(random)
        told = _told_in_order(found)
        assert [item.text for item in advice_of(found, 0)] == [each.advice for each in told]
        silenced += len(told) < sum(bool(each.remedy) for each in found)
    assert silenced > 100


def test_who_took_the_other_cpus_comes_before_a_binding_that_gains_little() -> None:
    bound = [{"role": f"worker {number}", "cpus": [0]} for number in range(4)]
    host = {"others_cpu_fraction": 0.6, "cpu_busy_fraction": 0.99, "cpu_stolen_fraction": 0.2}
    changes = {"processes": bound, "host": {**host, "cpu_throttled_fraction": 0.4}}
    orders = [
        [each.rule for each in find_all("rank", facts_of(RULES["IO302"], {**changes, **more}))]
        for more in ({"cpus_beside_busy": False}, {"cpus_beside_busy": True})
    ]
    assert orders == [["IO302", "IO303", "IO305", "IO306"], ["IO305", "IO306", "IO303", "IO302"]]


def test_a_wait_that_is_longer_comes_before_padding() -> None:
    rule = RULES["IO512"]
    (of_short,) = found(rule, {**rule.fires[0], "phases_ms": {"forward": 60.0, "backward": 40.0}})
    (of_long,) = found(rule, {**rule.fires[0], "phases_ms": {"forward": 50.0, "backward": 30.0}})
    assert (of_short.is_main_cause, of_long.is_main_cause) == (True, False)  # of a wait of 60 ms


def test_workers_that_get_ahead_hand_batches_over_as_slowly() -> None:
    rule = RULES["IO217"]
    (told,) = found(rule, {**rule.fires[0], "causes_ms": {"sampling": 40.0, "transport": 10.0}})
    assert (told.gain_ms, told.most_ms) == (40.0, 50.0)
