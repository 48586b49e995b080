"""``iotrace report`` on bare traces of torch.profiler, as a user calls it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

DATA = Path(__file__).parent.parent / "data"
RANKS = [str(DATA / f"gloo_rank{number}.json.gz") for number in (0, 1)]


def report(*arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "iotrace", "report", *arguments], capture_output=True, text=True, cwd=cwd
    )


def test_two_ranks_are_compared() -> None:
    done = report(*RANKS, "--json")
    assert (done.returncode, done.stderr) == (0, "")
    found = json.loads(done.stdout)
    assert [rank["rank"] for rank in found["ranks"]] == [0, 1]
    assert found["imbalance"]["stragglers"][0]["severity"] == "critical"
    for rank in found["ranks"]:
        assert sum(rank["breakdown_ms"].values()) == pytest.approx(rank["steps"]["mean_ms"])
    screen = report(*RANKS).stdout
    assert screen.startswith("RANK LATE   rank 1 is late")
    assert "iotrace run -- CMD" in screen
    details = report(*RANKS, "-v").stdout
    assert details.startswith(screen.partition("\nNext")[0])
    assert "the others wait for rank 1" in details
    assert "breakdown" in details


def test_ranks_are_chosen() -> None:
    found = json.loads(report(*RANKS, "--ranks", "1", "--json").stdout)
    assert [rank["rank"] for rank in found["ranks"]] == [1]
    assert found["verdict"]["rank"] == 1
    for words, why in (("7-9", "it has 0 to 1"), ("first", "takes numbers and ranges")):
        refused = report(*RANKS, "--ranks", words)
        assert (refused.returncode, refused.stdout) == (2, "")
        assert why in refused.stderr


def test_relative_paths_are_below_the_directory_that_they_share() -> None:
    names = [Path(path).name for path in RANKS]
    for traces in (names, [names[0], RANKS[1]], [names[0], f"../data/{names[1]}"]):
        done = report(*traces, "--json", cwd=DATA)
        assert (done.returncode, done.stderr) == (0, "")
        assert json.loads(done.stdout)["session"]["path"] == str(DATA)


def test_figures_of_other_tools() -> None:
    done = report(RANKS[0], "--compat", "tb")
    assert done.returncode == 0
    assert "cpu_op" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "code", "sentence"),
    [
        (["{none}"], 1, "does not exist"),
        (["{text}"], 1, "is no trace in Chrome's JSON format"),
        (["{execution}"], 1, "an execution trace of torch"),
        (["{rocprof}"], 1, "rocprofv3's JSON"),
        (["{directory}", RANKS[0]], 2, "a report is of one session, or of traces"),
        (["{directory}", "--compat", "hta"], 2, "--compat takes traces"),
        ([RANKS[0], "--view", "none"], 2, "--view is kernels, operators"),
        ([RANKS[0], "--view", "modules", "--compat", "tb"], 2, "--view and --compat exclude each other"),
        ([RANKS[0], "--csv", "out.csv"], 2, "--csv writes the tables of a view"),
    ],
)
def test_wrong_arguments_get_a_sentence(
    tmp_path: Path, arguments: list[str], code: int, sentence: str
) -> None:
    (tmp_path / "text.json").write_text("hello")
    (tmp_path / "execution.json").write_text('{"schema": "1.1.1-chakra.0.0.4", "nodes": [{"id": 1}]}')
    (tmp_path / "rocprof.json").write_text('{"rocprofiler-sdk-tool": [{"metadata": {"pid": 1}}]}')
    places = {name: tmp_path / f"{name}.json" for name in ("none", "text", "execution", "rocprof")}
    places["directory"] = tmp_path
    done = report(*[argument.format(**places) for argument in arguments])
    assert done.returncode == code
    assert sentence in done.stderr
    assert "Traceback" not in done.stderr
