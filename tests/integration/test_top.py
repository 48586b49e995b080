"""`iotrace top` beside a real run, without torch: what it shows is what the report says afterwards."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

import pytest

from iotrace.analysis.rank import SessionAnalysis
from iotrace.analysis.results.top import Top
from iotrace.analysis.top import Watch
from iotrace.analysis.window import Window
from iotrace.session import names
from iotrace.sources.clocks.anchors import Clocks
from iotrace.sources.live.recorded import LiveRecorded, NewestCalls
from iotrace.sources.live.session import LiveCalls, LiveSession
from iotrace.sources.session import open_session
from tests.support.growing import agrees, looked
from tests.support.runs import environment, in_process, launcher

PROGRAM = """
import iotrace, os, time
with open("data.bin", "wb") as file:
    file.write(os.urandom(1 << 20))
def batches():
    while not os.path.exists("enough"):
        with open("data.bin", "rb") as file:
            yield file.read()
        time.sleep(0.01)
for batch in iotrace.batches(batches()):
    time.sleep(0.005)
"""

# The parent meets the file first, and then makes no call: dftracer would keep the file's name in its buffer.
FORKS = """
import os, subprocess, time
with open("forked.bin", "wb") as file:
    file.write(b"1")
if not os.fork():
    while not os.path.exists("enough"):
        with open("forked.bin", "rb") as file:
            file.read()
        time.sleep(0.002)
    os._exit(0)
os.wait()
"""


@pytest.mark.parametrize(("by", "kind"), [("iotrace", LiveRecorded), ("dftracer", LiveCalls)])
def test_files_have_names_while_forked_processes_read_them(
    tmp_path: Path, by: str, kind: type[NewestCalls]
) -> None:
    (tmp_path / "program.py").write_text(FORKS)
    line, session = launcher(tmp_path, ["program.py"], ["-q", "--no-telemetry", "--io-by", by])
    running = subprocess.Popen(line, cwd=tmp_path)
    try:
        calls = kind()
        found = calls.calls(Clocks())
        while len(found) < 60:
            assert running.poll() is None
            time.sleep(0.05)
            calls.poll([session / names.POSIX])
            found = calls.calls(Clocks())
    finally:
        (tmp_path / "enough").touch()
        assert running.wait(60) == 0
    assert not [file for file in found.files if "lost" in file]
    assert "forked.bin" in {Path(file).name for file in found.files}


def test_what_it_shows_while_a_program_runs_is_what_the_report_says(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    line, session = launcher(tmp_path, ["program.py"], ["-q"])
    running = subprocess.Popen(line, cwd=tmp_path, env=environment())
    try:
        while not (session / names.MANIFEST).exists():
            assert running.poll() is None
            time.sleep(0.02)
        watch = Watch(LiveSession(session), most=20)
        seen: list[tuple[Top, list[Window]]] = []
        while sum(found.ranks[0].steps.count == 20 for found, _ in seen if found.ranks) < 4:
            assert running.poll() is None
            seen.append(looked(watch))
            time.sleep(0.2)
        shown = in_process("top", session.name, "-n", "1", cwd=tmp_path)
        (tmp_path / "enough").touch()
        assert running.wait(60) == 0
    finally:
        running.kill()
    seen.append(looked(watch))
    process_calls = watch.live._calls.calls(Clocks())
    assert "data.bin" in {Path(file).name for file in process_calls.files}
    assert shown.returncode == 0, shown.stderr
    assert "\nWindow   the last 50 steps (" in shown.stdout
    states = [found.state for found, _ in seen]
    assert states[-1] == "ended"
    assert states[-2] == "running"
    whole = SessionAnalysis(open_session(session)).ranks
    for found, windows in seen:
        if found.ranks and found.ranks[0].steps.count:
            assert agrees(found, windows, whole) == found.ranks[0].steps.count
            (process,) = found.ranks[0].processes or [None]
            assert process is None or (process.rss_bytes or 0) > 0
