"""Whether a session that has no outcome still runs, and what a list says of it."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from iotrace.errors import SessionError
from iotrace.launch.session_directory import begin
from iotrace.launch.traced_run import describe
from iotrace.session import names
from iotrace.session.identity import boot_id, clock_anchor
from iotrace.session.listing import (
    list_sessions,
    listed,
    newest_session,
    session_of_timeline,
    sessions_in,
    store_verdict,
)
from iotrace.session.liveness import read_launches, this_process
from iotrace.session.manifest import Manifest, Outcome, PosixState, read_manifest, write_document
from iotrace.version import __version__
from tests.support.runs import in_process

OURS = this_process()
GONE = replace(OURS, start_ticks=OURS.start_ticks + 1)  # its pid is another process's now
ELSEWHERE = replace(OURS, node="another-host", boot_id="another-boot")
HOUR_S = 3600


def manifest(**known: Any) -> Manifest:
    return replace(describe(["python", "train.py"], PosixState(on=False), [], {}), **known)


def make(directory: Path, **known: Any) -> Path:
    begin(directory, manifest(**known))
    return directory


def state(session: Path) -> str:
    (launch,) = read_launches(session)
    return launch.state


def put(path: Path, document: dict[str, Any], age_s: float = 0) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document) + "\n")
    os.utime(path, (path.stat().st_mtime - age_s,) * 2)


def test_the_launcher_tells(tmp_path: Path) -> None:
    assert state(make(tmp_path / "runs")) == "running"
    assert state(make(tmp_path / "killed", launcher=GONE)) == "killed"
    ended = make(tmp_path / "ended", launcher=GONE)
    write_document(ended / names.OUTCOME, Outcome(exit_code=0, ended_ns=1, duration_ns=1))
    assert state(ended) == "ended"


def process(**known: Any) -> dict[str, Any]:
    """What the agent of the test's own process would write at its start."""
    own = {"pid": os.getpid(), "node": os.uname().nodename, "boot_id": boot_id(), "clock": clock_anchor()}
    return {**own, **known}


@pytest.mark.parametrize(
    ("known", "told"),
    [
        ({}, "running"),
        ({"clock": [1, 1, 1]}, "killed"),  # a process of that pid, which began long before this one
        ({"pid": 2**22 + 1}, "killed"),
        ({"boot_id": "before"}, "killed"),
        ({"clock": None}, "killed"),
    ],
)
def test_a_program_may_outlive_its_launcher(tmp_path: Path, known: dict[str, Any], told: str) -> None:
    session = make(tmp_path / "session", launcher=GONE)
    put(session / "processes" / "a" / "process.json", process(**known))
    assert state(session) == told


def test_its_sidecar_tells_too(tmp_path: Path) -> None:
    session = make(tmp_path / "session", launcher=GONE)
    sampler = session / "telemetry" / "a" / "records.jsonl"
    put(sampler, process(type="sampler", start_ticks=OURS.start_ticks))
    assert state(session) == "running"
    put(sampler, process(type="sampler", start_ticks=OURS.start_ticks + 1))
    assert state(session) == "killed"


@pytest.mark.parametrize(("age_s", "told"), [(0, "running"), (HOUR_S, "unknown"), (None, "unknown")])
def test_another_hosts_session_is_known_by_its_newest_sample(
    tmp_path: Path, age_s: float | None, told: str
) -> None:
    session = make(tmp_path / "session", launcher=ELSEWHERE)
    if age_s is not None:
        put(session / "telemetry" / "a" / "records.jsonl", {"type": "sampler"}, age_s)
    (launch,) = read_launches(session)
    assert launch.state == told
    assert (launch.heard_seconds is None) == (age_s is None or told == "running")


def test_a_session_without_a_launcher_counts_as_another_hosts(tmp_path: Path) -> None:
    session = make(tmp_path / "session", launcher=None)
    put(session / "processes" / "a" / "process.json", process())
    assert state(session) == "unknown"


def told(session: Path) -> tuple[str, dict[str, str]]:
    done = in_process("report", "--json", str(session))
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    found = {item["what"]: item["why"] + " " + item["remedy"] for item in report["not_captured"]}
    return report["verdict"]["class"], found


def test_the_report_says_which(tmp_path: Path) -> None:
    kind, missing = told(make(tmp_path / "runs"))
    assert kind == "running"
    assert missing["the program's processes"].startswith("none has begun to record yet look again")
    assert missing["the exit code"].startswith("the command still runs")
    kind, missing = told(make(tmp_path / "killed", launcher=GONE))
    assert kind != "running"
    assert missing["the exit code"].startswith("the launcher was killed")
    far = make(tmp_path / "far", launcher=ELSEWHERE, host="node7")
    put(far / "telemetry" / "a" / "records.jsonl", {"type": "sampler"}, HOUR_S)
    kind, missing = told(far)
    assert "only be seen on node7, last heard of 1 h ago" in missing["the exit code"]


# --- lists ---


def ended(directory: Path, started_ns: int, exit_code: int | None = 0) -> Path:
    make(directory, started_ns=started_ns, launcher=GONE)
    outcome = Outcome(exit_code=exit_code, ended_ns=started_ns + 90 * 10**9, duration_ns=90 * 10**9)
    write_document(directory / names.OUTCOME, outcome)
    return directory


def test_sessions_are_listed_the_newest_first(tmp_path: Path) -> None:
    old, new = ended(tmp_path / "old", 10**18), ended(tmp_path / "new", 15 * 10**17, 3)
    make(tmp_path / "now")
    ended(tmp_path / "sweep" / "runs" / "4" / "session", 1)  # of another directory
    ended(tmp_path / "runs" / "4" / "session", 1)
    (tmp_path / "other").mkdir()
    (tmp_path / "newer").mkdir()
    (tmp_path / "newer" / "manifest.json").write_text('{"format": 99}')
    found = {each.name: each for each in list_sessions(tmp_path).sessions}
    assert list(found) == ["now", "new", "old", "runs/4/session", "newer"]
    assert (found["new"].exit_code, found["new"].seconds, found["new"].state) == (3, 90.0, "ended")
    assert (found["now"].exit_code, found["now"].state) == (None, "running")
    assert "newer iotrace" in (found["newer"].problem or "")
    assert newest_session(tmp_path) == tmp_path / "now"
    assert sessions_in(old) == [old]
    assert newest_session(new) == new


def test_sessions_are_deleted_by_their_names(tmp_path: Path) -> None:
    for number, name in enumerate(("old", "new", "left")):
        ended(tmp_path / name, 10**18 + number)
    (tmp_path / "notes.txt").write_text("mine")
    done = in_process("ls", str(tmp_path), "--delete", "old", "--delete", "new/")
    assert done.returncode == 0, done.stderr
    assert "left" in done.stdout
    assert sorted(each.name for each in tmp_path.iterdir()) == ["left", "notes.txt"]


@pytest.mark.parametrize(
    ("named", "why"),
    [
        ("now", "it may still run"),
        ("far", "it may still run"),
        ("link", "it is a link"),
        ("notes", "there is no session notes"),
        ("..", "there is no session .."),
        ("ended/out", "there is no session ended/out"),
    ],
)
def test_nothing_is_deleted_where_one_cannot_be(tmp_path: Path, named: str, why: str) -> None:
    """Neither what is no session, nor the sessions that are named beside it."""
    here = tmp_path / "here"
    elsewhere = ended(tmp_path / "elsewhere", 1)
    ended(here / "ended", 2)
    (here / "ended" / "out").mkdir(exist_ok=True)
    make(here / "now")
    make(here / "far", launcher=ELSEWHERE)
    (here / "link").symlink_to(elsewhere)
    (here / "notes").mkdir()
    before = sorted(here.rglob("*"))
    done = in_process("ls", str(here), "--delete", "ended", "--delete", named)
    assert done.returncode == 1
    assert why in done.stderr
    assert sorted(here.rglob("*")) == before
    assert elsewhere.is_dir()


def test_where_there_is_no_session_that_is_said(tmp_path: Path) -> None:
    with pytest.raises(SessionError, match="there is no session in"):
        newest_session(tmp_path)
    done = in_process("ls", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "")
    assert done.stderr.splitlines() == [
        f"iotrace: there is no session in {tmp_path}",
        "  make one with: iotrace run -- CMD",
    ]
    done = in_process("ls", str(tmp_path / "nowhere"))
    assert done.returncode == 1
    assert "nowhere does not exist" in done.stderr
    done = in_process("report", cwd=tmp_path)
    assert done.returncode == 1
    assert "there is no session in" in done.stderr


def test_a_directory_that_holds_sessions_is_not_taken_for_one(tmp_path: Path) -> None:
    ended(tmp_path / "one", 10**18)
    ended(tmp_path / "two", 10**18)
    done = in_process("report", ".", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "iotrace: . is no session, but holds 2 sessions\n  iotrace ls . lists them\n"


def test_a_name_that_is_not_utf8_is_no_defect(tmp_path: Path) -> None:
    session = ended(tmp_path / os.fsdecode(b"\xff"), 10**18)
    (found,) = json.loads(in_process("ls", "--json", cwd=tmp_path).stdout)["sessions"]
    assert found["name"] == "?"
    assert json.loads(in_process("report", "--json", str(session)).stdout)["session"]["path"].endswith("/?")
    store_verdict(session, os.fsdecode(b"decode of \xff"), __version__)


@pytest.mark.parametrize("width", [60, 80, 120])
def test_a_list_fits_the_terminal(tmp_path: Path, width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    session = ended(tmp_path / "iotrace-20261122-101500", 10**18)
    store_verdict(session, "INPUT-BOUND 44 % of each step waits for data", __version__)
    make(tmp_path / ("a-very-long-name" * 3))
    done = in_process("ls", str(tmp_path))
    lines = done.stdout.splitlines()
    assert max(map(len, lines)) <= width
    assert all(line == line.rstrip() for line in lines)
    assert lines[0].split() == ["session", "started", "took", "exit", "size"]
    assert " 1 min 30 s " in lines[-2]
    assert lines[-1].startswith("  INPUT-BOUND 44 % of each step waits for data · ")


def test_a_stored_verdict_counts_for_the_same_data_and_iotrace_alone(tmp_path: Path) -> None:

    session = ended(tmp_path / "session", 10**18)
    put(session / "processes" / "a" / "records.jsonl", {})
    assert listed(session, "").verdict is None
    store_verdict(session, "INPUT-BOUND", __version__)
    (session / "files.json").write_text("{}")  # a reader's
    (session / "out" / "timeline.pftrace").write_bytes(b"")
    assert listed(session, "").verdict == "INPUT-BOUND"
    store_verdict(session, "INPUT-BOUND", "0.0.1")
    assert listed(session, "").verdict is None
    store_verdict(session, "INPUT-BOUND", __version__)
    put(session / "processes" / "a" / "records.jsonl", {"more": 1})
    assert listed(session, "").verdict is None


def test_a_timeline_of_ours_leads_to_its_session(tmp_path: Path) -> None:
    session = ended(tmp_path / "session", 10**18)
    assert session_of_timeline(session / "out" / "timeline.pftrace") == session
    assert session_of_timeline(session / "processes" / "rank0.json.gz") is None
    assert session_of_timeline(tmp_path / "out" / "timeline.pftrace") is None


@pytest.mark.parametrize(("version", "said"), [(99, "a newer iotrace"), (0, "another iotrace")])
def test_a_session_of_another_version_is_told(tmp_path: Path, version: int, said: str) -> None:
    session = ended(tmp_path / "session", 10**18)
    document = json.loads((session / "manifest.json").read_text())
    (session / "manifest.json").write_text(json.dumps({**document, "format": version}))
    with pytest.raises(SessionError, match=said):
        read_manifest(session)


def test_an_empty_directory_is_no_session_yet(tmp_path: Path) -> None:
    with pytest.raises(SessionError, match="is empty: no session has begun there"):
        read_manifest(tmp_path)
