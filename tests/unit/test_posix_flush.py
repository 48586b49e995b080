"""The log that the agent takes for dftracer's: that of the program which runs, not of one before an exec."""

from __future__ import annotations

import os
from contextlib import ExitStack
from pathlib import Path

import pytest

from iotrace.agent.dftracer_compat import flush


@pytest.mark.parametrize("newest", [0, 1])
def test_of_several_open_logs_the_last_written_is_the_programs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, newest: int
) -> None:
    monkeypatch.setattr(flush, "_found", (0, -1, 0, 0))
    with ExitStack() as opened:
        logs = [opened.enter_context((tmp_path / f"{number}.pfw").open("wb")) for number in range(2)]
        for number in range(2):
            os.utime(tmp_path / f"{number}.pfw", ns=(0, 10 + (number == newest)))
        assert flush.find_log(str(tmp_path)) == logs[newest].fileno()


def test_no_log_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flush, "_found", (0, -1, 0, 0))
    assert flush.find_log(str(tmp_path)) == -1
