"""The bench's arithmetic and its order of runs."""

from __future__ import annotations

from pathlib import Path

import pytest
from tools.benchmarks.overhead import command_of
from tools.benchmarks.statistics import ratios, spread
from tools.benchmarks.variants import AGENT, BARE, POSIX, environment_of, interleaved


def test_every_second_pass_runs_backwards() -> None:
    assert interleaved(["a", "b"], 3) == [["a", "b"], ["b", "a"], ["a", "b"]]


def test_ratios_are_taken_pass_by_pass() -> None:
    found = ratios([1.1, 2.2, 5.5], [1.0, 2.0, 5.0])
    assert (round(found.median, 6), round(found.low, 6), round(found.high, 6)) == (1.1, 1.1, 1.1)
    assert spread([1.0, 2.0, 3.0, 4.0, 5.0]).shown(1) == "3.0 [2.0, 4.0]"
    assert spread([1.0, 2.0, 9.0]).shown(1) == "2.0 [1.0, 9.0]"


def test_each_source_alone(tmp_path: Path) -> None:
    pytest.importorskip("dftracer")
    assert "LD_PRELOAD" not in environment_of(AGENT, tmp_path)
    assert "IOTRACE_AGENT" in environment_of(AGENT, tmp_path)
    assert "IOTRACE_AGENT" not in environment_of(POSIX, tmp_path)
    assert environment_of(POSIX, tmp_path)["DFTRACER_ENABLE"] == "1"
    assert "DFTRACER_ENABLE" not in environment_of(BARE, tmp_path)


def test_every_workload_has_a_command() -> None:
    workloads = sorted((Path(__file__).parent.parent.parent / "workloads").glob("*.py"))
    assert workloads
    for workload in workloads:
        assert str(workload) in command_of(workload, quick=True)
