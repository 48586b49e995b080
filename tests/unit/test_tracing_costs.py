"""What tracing costs is measured by children, which leave nothing behind."""

from __future__ import annotations

from pathlib import Path

import pytest

from iotrace.launch import tracing_costs


@pytest.mark.parametrize(
    ("program", "answer"),
    [
        ("print('{\"call\": 2.5}')", {"call": 2.5}),
        ("print('no answer')", None),
        ("import time; print(1, flush=True); time.sleep(600)", None),
    ],
)
def test_a_child_is_waited_for_and_its_pipe_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: str, answer: dict[str, float] | None
) -> None:
    monkeypatch.setattr(tracing_costs, "_SECONDS", 0.2 if "sleep" in program else 60)
    child = tracing_costs._start(program, {}, tmp_path)
    assert child.stdout is not None
    assert tracing_costs._answer(child) == answer
    assert child.stdout.closed
    assert child.returncode is not None
