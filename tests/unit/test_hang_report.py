"""A hang that a sampler told stands in the report: on the first screen, with -v, in JSON, in the timeline."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from iotrace.analysis.rank import SessionAnalysis
from iotrace.session import names
from iotrace.session.hangs import read_hangs
from iotrace.session.manifest import Outcome
from iotrace.sources.session import open_session
from iotrace.timeline.build import build
from iotrace.timeline.calls import hang_slices
from tests.support.runs import in_process, report_of
from tests.unit.test_failures import MS, found, loop

SECOND = 1_000_000_000
STACKS = "processes/11-0/stacks.txt"
LOCKED = 'waits for a lock, file "train.py", line 17 in __getitem__'


def session_that_hung(path: Path, signal: int = 15, kind: str = "hung", resumed_s: int = 0) -> Path:
    """A session whose worker waits for a lock, until a signal ends the command after 100 s."""
    found(path, Outcome(128 + signal, 100 * SECOND, 100 * SECOND, signal), {10: loop(40), 11: []})
    worker = {
        "pid": 11,
        "role": "worker 0",
        "text": LOCKED,
        "stack": ["x"],
        "stacks": STACKS,
        "call": "futex",
    }
    main = {"pid": 10, "role": "training", "text": "waits for its workers"}
    record: dict[str, Any] = {
        "type": "hang",
        "mono_ns": 50 * SECOND,
        "waited_ns": 47 * SECOND,
        "host": "host",
    }
    record["kind"] = kind
    record["processes"] = [worker, main]
    record["text"] = ["HUNG: no batch for 47 s", f"  worker 0 (pid 11) {LOCKED}", "  worker 1 waits for work"]
    lines = [json.dumps(record)]
    if resumed_s:
        lines.append(json.dumps({"type": "resumed", "mono_ns": resumed_s * SECOND}))
    sampler = path / names.TELEMETRY / "host-1"
    sampler.mkdir(parents=True)
    (sampler / names.HANGS).write_text("".join(f"{line}\n" for line in lines))
    return path


def test_a_run_that_hung_and_was_ended_says_in_what(tmp_path: Path) -> None:
    session = session_that_hung(tmp_path / "s")
    screen = " ".join(in_process("report", str(session)).stdout.split())
    assert "HUNG then ended: worker 0 waits for a lock, file" in screen
    assert "Why no batch for 47 s or more; then by SIGTERM (exit code 143)" in screen
    assert f"Hang HUNG: no batch for 47 s: worker 0 (pid 11) {LOCKED}" in screen
    assert (
        f"Python stacks: {session}/{STACKS}".replace(" ", "") in screen.replace(" ", "") or STACKS in screen
    )
    assert "waits for work" not in screen
    assert "hang HUNG: no batch for 47 s" in " ".join(in_process("report", str(session), "-v").stdout.split())
    (hang,) = report_of(session)["session"]["hangs"]
    assert (hang["kind"], hang["waited_seconds"], hang["resumed"]) == ("hung", 47.0, False)
    worker, main = hang["processes"]
    assert (worker["text"], worker["call"], worker["stacks"]) == (LOCKED, "futex", f"{session}/{STACKS}")
    assert (main["role"], main["host"], main["stack"]) == ("training", "host", None)


@pytest.mark.parametrize(
    ("resumed_s", "end_s", "lasts"), [(0, 900, "14 min"), (0, 0, "47 s"), (170, 900, "2 min")]
)
def test_a_hang_lasts_until_it_goes_on_or_the_run_ends(
    tmp_path: Path, resumed_s: int, end_s: int, lasts: str
) -> None:
    session = session_that_hung(tmp_path, resumed_s=resumed_s)
    (sampler,) = (tmp_path / names.TELEMETRY).iterdir()
    (sampler / names.RECORDS).write_text(json.dumps({"clock": [40 * SECOND, 1040 * SECOND, 100]}) + "\n")
    until_ns = (1000 + end_s) * SECOND if end_s else None
    (hang,) = read_hangs(session, until_ns=until_ns)
    assert hang.text[0] == f"HUNG: no batch for {lasts}"
    assert hang.text[1:] == [f"  worker 0 (pid 11) {LOCKED}", "  worker 1 waits for work"]
    known_s = {"14 min": 47 + 850, "2 min": 47 + 120}.get(lasts)
    assert hang.lasted_ns == (None if known_s is None else known_s * SECOND)


def test_how_long_a_call_lasted_is_not_told_of_later(tmp_path: Path) -> None:
    """Nobody looked at it again."""
    session = session_that_hung(tmp_path)
    (sampler,) = (tmp_path / names.TELEMETRY).iterdir()
    told = json.loads((sampler / names.HANGS).read_text())
    text = "is in openat of d for 45 s, file x"
    told["processes"][0] |= {"text": text, "call_since_ns": 5 * SECOND}
    told["text"][1] = f"  worker 0 (pid 11) {text}"
    (sampler / names.HANGS).write_text(json.dumps(told) + "\n")
    (sampler / names.RECORDS).write_text(json.dumps({"clock": [0, 0, 100]}) + "\n")
    for until_ns, says in ((None, text), (650 * SECOND, "is in openat of d, file x")):
        (hang,) = read_hangs(session, until_ns=until_ns)
        assert hang.processes[0].text == says
        assert hang.text[1] == f"  worker 0 (pid 11) {says}"


@pytest.mark.parametrize(("resumed_s", "end_s"), [(0, 100), (60, 60)])
def test_the_timeline_has_it_from_the_last_batch_until_it_ended(
    tmp_path: Path, resumed_s: int, end_s: int
) -> None:
    session = open_session(session_that_hung(tmp_path / "s", resumed_s=resumed_s))
    analysis = SessionAnalysis(session)
    (rank,) = analysis.ranks
    (shown,) = hang_slices(rank, analysis.hangs)
    assert (shown.start_ns, shown.end_ns) == (3 * SECOND, end_s * SECOND)
    assert shown.name == "hung: waits for its workers"
    assert [
        track.name
        for track in build(rank, [], analysis.hangs).processes[0].tracks
        if track.name.endswith("hang")
    ] == ["hang"]


def test_what_went_on_is_no_cause_of_the_end(tmp_path: Path) -> None:
    session = session_that_hung(tmp_path / "s", resumed_s=60)
    screen = in_process("report", str(session)).stdout
    assert "Hang" not in screen
    assert "no batch" not in screen
    assert "batches came again" in in_process("report", str(session), "-v").stdout


def test_a_run_that_did_not_hang_says_nothing_of_it(tmp_path: Path) -> None:
    found(tmp_path, Outcome(0, 500 * MS, 500 * MS), {10: loop(40)})
    assert report_of(tmp_path)["session"]["hangs"] == []
    assert "Hang" not in in_process("report", str(tmp_path)).stdout


def test_each_host_has_its_own_hang_in_the_timeline(tmp_path: Path) -> None:
    """Of two hosts the report makes one; their clocks since boot have nothing in common."""
    path = session_that_hung(tmp_path / "s")
    (own,) = (path / names.TELEMETRY).glob(f"*/{names.HANGS}")
    told = {**json.loads(own.read_text()), "world_size": 2}
    for host, at_s in (("host", 50), ("elsewhere", 9_000)):
        sampler = path / names.TELEMETRY / f"{host}-1"
        sampler.mkdir(exist_ok=True)
        record = {**told, "host": host, "mono_ns": at_s * SECOND, "kind": "waiting"}
        (sampler / names.HANGS).write_text(json.dumps(record) + "\n")
    assert len(read_hangs(path)) == 1
    for identity in path.glob(f"{names.PROCESSES}/*/{names.PROCESS}"):
        identity.write_text(json.dumps({**json.loads(identity.read_text()), "host": "host"}))
    analysis = SessionAnalysis(open_session(path))
    (shown,) = hang_slices(analysis.ranks[0], analysis.hangs)
    assert shown.start_ns == 3 * SECOND
