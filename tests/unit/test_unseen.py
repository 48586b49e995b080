"""What is said of a command of which no process, or no batch, was seen."""

from __future__ import annotations

from iotrace.analysis.completeness.not_captured import _failed_early, _no_process


def test_a_command_that_failed_early_is_told_so_without_a_remedy() -> None:
    told = _failed_early(3)
    assert told.why == "the command failed (exit code 3) before a batch was delivered"
    assert told.remedy == ""


def test_a_command_without_python_is_not_said_to_have_refused_the_agent() -> None:
    told = _no_process(["sh", "-c", "exit 3"], 3)
    assert told.why.startswith("no Python process was started")
    assert "exit code 3" in told.why
    assert told.remedy == ""
    assert _no_process(["/bin/true"], 0).remedy.startswith("else run it by a Python")
    assert "could load the agent" in _no_process(["/opt/bin/python3.12", "-S", "a.py"], 1).why
