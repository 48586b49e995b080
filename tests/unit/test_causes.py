"""A cause has its words, colour and remedy everywhere: the first screen would fail where one is missing."""

from __future__ import annotations

import pytest

from iotrace.analysis.rules.model import rules_of
from iotrace.analysis.verdict import reason
from iotrace.analysis.wait.production import PARTS
from iotrace.analysis.wait.waits import CAUSES
from iotrace.report import tables, terminal
from iotrace.report.page import render
from iotrace.report.words import part_name


@pytest.mark.parametrize("cause", CAUSES)
def test_a_cause_has_all_that_is_said_of_it(cause: str) -> None:
    assert cause in tables.CAUSES
    assert cause == "unknown" or f"{cause}: " in terminal._LEGEND
    assert cause in render.LIGHT
    assert cause in render.DARK
    assert cause in render.PATTERNS
    assert cause == "unknown" or cause in reason._CAUSES
    assert cause == "unknown" or f"{cause}-bound" in {rule.id for rule in rules_of("loader")}
    assert cause == "unknown" or part_name(cause) != cause


def test_what_a_production_is_made_of_is_a_cause() -> None:
    assert set(PARTS) < set(CAUSES)
