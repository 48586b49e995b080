"""The bench's arithmetic, its order of runs, and its tables."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from tools.benchmarks import tables
from tools.benchmarks.compare import Added, Compared, command_of, summed_up
from tools.benchmarks.posix import DFTRACER, Figure, Group, _environment, _options, calls_ns, counted
from tools.benchmarks.scale import exponent, hours
from tools.benchmarks.statistics import differences, ratios, spread
from tools.benchmarks.steps import step_seconds, steps_for
from tools.benchmarks.variants import (
    AGAIN,
    AGENT,
    BARE,
    MEANINGS,
    NO_WINDOW,
    POSIX,
    RUN,
    TELEMETRY,
    WINDOW,
    Sample,
    environment_of,
    interleaved,
    measure,
)

from iotrace.session import names


def test_every_pass_holds_every_variant_in_another_order() -> None:
    orders = interleaved(["a", "b", "c", "d"], 40)
    assert all(sorted(order) == ["a", "b", "c", "d"] for order in orders)
    assert {order[0] for order in orders} == {order[-1] for order in orders} == {"a", "b", "c", "d"}
    assert orders == interleaved(["a", "b", "c", "d"], 40)


def test_ratios_and_differences_are_taken_pass_by_pass() -> None:
    found = ratios([1.1, 2.2, 5.5], [1.0, 2.0, 5.0])
    assert (round(found.median, 6), round(found.low, 6), round(found.high, 6)) == (1.1, 1.1, 1.1)
    assert differences([1.5, 9.5, 3.0], [1.0, 8.0, 2.0]).median == 1.0
    assert spread([1.0, 2.0, 3.0, 4.0, 5.0]).shown(1) == "3.0 ± 1.0"
    assert spread([1.0, 2.0, 9.0]).shown(1) == "2.0 ± 4.0"


def test_a_step_is_timed_between_the_lines_past_the_first_ones() -> None:
    lines = [(7, "ready\n"), (10, "step 10 loss 1\n"), (1_000, "step 20 loss 1\n"), (5_000, "step 40 loss\n")]
    step_s, whole_s = step_seconds([*lines, (6_000, "trained 40 steps in 2.9 s\n")])
    assert step_s == pytest.approx(200e-9)
    assert whole_s == pytest.approx(4_000e-9)
    assert step_seconds(lines[:3]) == (None, None)
    with pytest.raises(ValueError, match="order"):
        step_seconds([*lines, (9_000, "step 30 loss 1\n")])
    assert steps_for(step_s=0.1, seconds=3) == 50
    assert steps_for(step_s=5.0, seconds=3) == 30


def test_each_source_alone(tmp_path: Path) -> None:
    pytest.importorskip("dftracer")
    assert "LD_PRELOAD" not in environment_of(AGENT, tmp_path)
    assert "IOTRACE_AGENT" in environment_of(AGENT, tmp_path)
    assert "IOTRACE_AGENT" not in environment_of(POSIX, tmp_path)
    assert environment_of(POSIX, tmp_path)["IOTRACE_POSIX"] == str(tmp_path / "posix")
    assert "LD_PRELOAD" not in environment_of(WINDOW, tmp_path)
    for variant in (BARE, NO_WINDOW, RUN):
        assert not {"IOTRACE_POSIX", "IOTRACE_AGENT"} & environment_of(variant, tmp_path).keys()
    windows = [
        names.decode_settings(environment_of(variant, tmp_path)["IOTRACE_AGENT"]).get(names.TORCH_STEPS)
        for variant in (AGENT, WINDOW)
    ]
    assert windows == [None, "5:1:5:1"]


PROGRAM = """
import os, sys, time
for number in range(0, 60, 10):
    print("step", number, flush=True)
    time.sleep(0.2)  # the sidecar has to find it
print("IOTRACE_AGENT" in os.environ, file=open(sys.argv[1], "w"))
"""


def test_beside_the_sidecar_the_program_is_bare(tmp_path: Path) -> None:
    told = tmp_path / "told"
    sample = measure(TELEMETRY, [sys.executable, "-c", PROGRAM, str(told)], tmp_path)
    assert told.read_text() == "False\n"
    assert sample.step_s is not None
    assert sample.rest_s is not None
    assert 0 < 30 * sample.step_s + sample.rest_s == pytest.approx(sample.wall_s)
    assert (sample.launcher_s, sample.window_s) == (None, None)


def test_a_program_that_fails_is_told(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="no such luck"):
        measure(BARE, [sys.executable, "-c", "raise ValueError('no such luck')"], tmp_path)


def sample(wall_s: float, rest_s: float) -> Sample:
    return Sample(wall_s, rest_s, step_s=(wall_s - rest_s) / 100, cpu_s=wall_s)


def test_what_is_added_to_the_steps_and_apart_from_them() -> None:
    bare = [sample(12.0, 2.0), sample(22.0, 2.0)]
    added = summed_up([sample(12.6, 2.5), sample(22.7, 2.5)], bare)
    assert added.apart_s.median == pytest.approx(0.5)
    assert added.step.median == pytest.approx((1.01 + 1.01) / 2)
    assert added.cpu is not None
    assert added.cpu.median == added.wall.median
    assert (added.launcher_s, added.window_s) == (None, None)


def test_tables_fit_a_terminal() -> None:
    one = spread([1.234, 1.345])
    added = Added(wall=one, step=one, apart_s=one, cpu=one, launcher_s=one, window_s=one)
    found = Compared(["x.py"], 100, one, one, dict.fromkeys(MEANINGS, added), whole=True)
    lines = tables.workloads({"stream_iterable": found})
    assert max(len(line) for text in lines for line in text.splitlines()) <= 80
    assert any(line.startswith("| telemetry ") for line in lines)
    assert any(line.startswith("| stream_iterable ") for line in lines)


def test_every_workload_has_a_command() -> None:
    workloads = sorted((Path(__file__).parent.parent.parent / "workloads").glob("*.py"))
    assert workloads
    for workload in workloads:
        assert command_of(workload, 40)[-3:] == [str(workload), "--steps", "40"]


def test_wrong_usage_is_a_sentence() -> None:
    root = Path(__file__).parent.parent.parent
    for words, said in ((["nothing"], "no workload nothing"), (["--variants", "all"], "no variant all")):
        done = subprocess.run(
            [sys.executable, "-m", "tools.benchmarks.overhead", *words],
            cwd=root,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 2
        assert said in done.stderr


def figure(unit: str, most: float) -> Figure:
    found = Figure("a read", unit, most)
    for variant, values in ((BARE, [100, 200, 400]), (AGAIN, [101, 200, 399]), (POSIX, [160, 250, 480])):
        for value in values:
            found.note(variant, value)
    return found


def test_what_recording_adds_is_taken_round_by_round() -> None:
    assert figure("ns", 60).changes(POSIX) == [60, 50, 80]
    assert figure("", 1.25).changes(POSIX) == [1.6, 1.25, 1.2]


def test_a_bar_is_held_against_the_median_of_what_is_recorded() -> None:
    again, recorded = figure("ns", 60).rows()
    assert again[1:] == ["again", "200", "200", "0 (-1 to 1)", ""]
    assert recorded[1:] == ["recorder", "200", "250", "60 (50 to 80)", "60: met"]
    assert [row[-1] for row in figure("", 1.2).rows()] == ["", "1.2: missed"]
    lines = Group("ns for a call", [figure("ns", 60)], ["dftracer is left out: it is not installed"]).lines()
    assert lines[0] == "ns for a call:"
    assert lines[-2] == "dftracer is left out: it is not installed"
    assert len({len(line) for line in lines if line.startswith("|")}) == 1


def test_what_counters_and_calls_print() -> None:
    assert calls_ns("pread_4k 7000000\nstat 123\n", calls=20_000) == {"pread_4k": 350, "stat": 123 / 20_000}
    assert counted("124567,,instructions:u,1043267,100.00,,\n") == 124567
    assert counted("<not supported>,,instructions:u,0,100.00,,\n") == 0
    assert counted("==7== Events    : Ir\n==7== Collected : 49207353\n") == 49207353


def test_what_is_asked_of_the_calls() -> None:
    assert _options([]).only == ["calls", "instructions", "programs", "start", "commands"]
    assert _options(["--loops"]).only[-1] == "loops"
    assert _options(["--only", "start", "--only", "calls"]).only == ["calls", "start"]
    assert _options(["--only", "loops"]).only == ["loops"]
    assert _options(["--only", "start", "--loops"]).only == ["start", "loops"]
    for words in (["--rounds", "0"], ["--seconds", "0"], ["--only", "nothing"]):
        with pytest.raises(SystemExit):
            _options(words)


def test_calls_by_dftracer_leave_the_recorder_out(tmp_path: Path) -> None:
    pytest.importorskip("dftracer")
    recorded, logged = (_environment(variant, tmp_path / variant) for variant in (POSIX, DFTRACER))
    assert "_posix_recorder.so" in recorded["LD_PRELOAD"]
    assert "DFTRACER_ENABLE" not in recorded
    assert "libdftracer_preload.so" in logged["LD_PRELOAD"]
    assert not {"IOTRACE_POSIX", "IOTRACE_AGENT"} & logged.keys()


def test_what_many_ranks_take_is_extrapolated_by_the_exponent() -> None:
    assert exponent([10, 20, 40], [1, 2, 4]) == pytest.approx(1)
    assert exponent([10, 20, 40], [1, 4, 16]) == pytest.approx(2)
    assert hours(1000, 36, 10, 1, 100, 1) == pytest.approx(1)
    assert hours(1000, 36, 10, 0.5, 100, 4) == pytest.approx(0.25)  # no better than linear
    assert hours(1000, 36, 10, 2, 3600, 1) == pytest.approx(10)
