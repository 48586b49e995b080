"""What iotrace says of itself: where it writes, what still runs, which session is meant, what comes next."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.runs import after_announcement, in_process
from tests.support.waiting import eventually

_RUN = [sys.executable, "-m", "iotrace", "run"]


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with one session: that of a Python program without a loop."""
    directory = tmp_path_factory.mktemp("manners")
    line = [*_RUN, "-o", "session", "--", sys.executable, "-c", "import sys; print('own', file=sys.stderr)"]
    done = subprocess.run(line, cwd=directory, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0
    (directory / "told.txt").write_text(done.stderr)
    return directory


def test_a_run_says_at_once_where_it_writes(directory: Path) -> None:
    told = (directory / "told.txt").read_text()
    assert told.startswith("iotrace: tracing into session\niotrace: while it runs: iotrace top session\n")
    assert after_announcement(told).startswith("own\n")


def test_a_quiet_run_says_nothing(tmp_path: Path) -> None:
    line = [*_RUN, "--quiet", "-o", "session", "--", "sh", "-c", "echo own >&2"]
    done = subprocess.run(line, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "own\n")


def test_a_report_without_a_name_is_of_the_newest_session_and_ends_as_the_run(directory: Path) -> None:
    done = in_process("report", cwd=directory)
    assert (done.returncode, done.stderr) == (0, "iotrace: the newest session here is session\n")
    named = in_process("report", "session", cwd=directory)
    assert done.stdout == named.stdout
    told = [line.rstrip() for line in (directory / "told.txt").read_text().splitlines()]
    ends = [line.rstrip() for line in done.stdout.splitlines()]
    following = next(number for number, line in enumerate(ends) if line.startswith("Next "))
    assert told[following - len(ends) :] == ends[following:]


def test_our_own_timeline_leads_to_its_session(directory: Path) -> None:
    done = in_process("report", "session/out/timeline.pftrace", cwd=directory)
    assert done.returncode == 0
    assert done.stderr == (
        "iotrace: session/out/timeline.pftrace is a timeline of the session session; its report:\n"
    )
    assert done.stdout == in_process("report", "session", cwd=directory).stdout


def test_a_merge_takes_the_session_of_our_timeline_and_names_what_to_open(directory: Path) -> None:
    done = in_process("merge", "session/out/timeline.pftrace", "-o", "all.json", cwd=directory)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert "is a timeline of the session session: that is merged" in " ".join(done.stdout.split())
    assert "open         iotrace open all.json" in lines
    assert lines[-1] == "report       iotrace report session"
    summary = json.loads(in_process("merge", "session", "-o", "b.json", "--json", cwd=directory).stdout)
    assert json.loads((directory / "all.json").read_text())["traceEvents"]
    assert [source["kind"] for source in summary["sources"]] == ["session"]


def test_a_list_shows_the_verdict_that_the_run_stored(directory: Path) -> None:
    done = in_process("ls", "--json", cwd=directory)
    (session,) = json.loads(done.stdout)["sessions"]
    assert (session["name"], session["exit_code"], session["state"]) == ("session", 0, "ended")
    report = json.loads(in_process("report", "session", "--json", cwd=directory).stdout)
    assert session["verdict"] == report["verdict"]["text"]


def test_a_running_session_is_told_as_running_and_a_killed_one_as_killed(tmp_path: Path) -> None:
    line = [*_RUN, "-o", "session", "--", "sh", "-c", "echo ready; read line"]
    process = subprocess.Popen(
        line, cwd=tmp_path, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    with process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"

        def told() -> tuple[str, str]:
            report = json.loads(in_process("report", "session", "--json", cwd=tmp_path).stdout)
            missing = {item["what"]: item["why"] for item in report["not_captured"]}
            return report["session"]["state"], missing["the exit code"]

        assert told() == ("running", "the command still runs: these are its figures so far")
        shown = in_process("ls", cwd=tmp_path).stdout
        assert " running " in shown.splitlines()[1]
        eventually(lambda: any((tmp_path / "session").glob("telemetry/*/records.jsonl")))
        process.send_signal(signal.SIGKILL)
        process.wait()
        # The command outlives its launcher until it is told to end; then its sidecar ends, too.
        assert told()[0] == "running"
        process.communicate("\n", timeout=60)
        eventually(lambda: told()[0] != "running")
        assert told() == ("killed", "the launcher was killed before it saw the end of the command")
