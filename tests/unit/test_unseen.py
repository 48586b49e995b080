"""What is said of a command of which no process, or no batch, was seen."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from iotrace.analysis.completeness.not_captured import _no_process, _unseen_loops


def test_a_command_that_failed_early_is_told_so_without_a_remedy() -> None:
    session = SimpleNamespace(exit_code=3)
    loop = SimpleNamespace(marked=False, primary=None)
    (told,) = _unseen_loops(cast("Any", SimpleNamespace(session=session, ranks=[SimpleNamespace(loop=loop)])))
    assert told.why == "the command failed (exit code 3) before a batch was delivered"
    assert told.remedy == ""


def test_a_command_without_python_is_not_said_to_have_refused_the_agent() -> None:
    (told,) = _no_process(["sh", "-c", "exit 3"], 3)
    assert told.why.startswith("no Python process was started")
    assert "exit code 3" in told.why
    assert told.remedy == ""
    (untold,) = _no_process(["/bin/true"], 0)
    assert untold.remedy.startswith("else run it by a Python")
    (refused,) = _no_process(["/opt/bin/python3.12", "-S", "a.py"], 1)
    assert "could load the agent" in refused.why
