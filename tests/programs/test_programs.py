"""What iotrace says of each program of the battery agrees with the program's own clock.

A small part runs always, all with --programs (``tools/test --programs``).
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.programs.catalog import Program, programs
from tests.programs.harness import examine


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "program" in metafunc.fixturenames:
        everything = metafunc.config.getoption("--programs")
        chosen = [one for one in programs() if everything or one.known.quick]
        metafunc.parametrize("program", chosen, ids=[one.name for one in chosen])


def test_agrees_with_its_own_clock(program: Program, tmp_path: Path) -> None:
    outcome = examine(program, tmp_path)
    if outcome.skipped is not None:
        pytest.skip(outcome.skipped)
    assert outcome.disagreements == []
