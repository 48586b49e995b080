"""The doctor's checks as they are run: late, failing, interrupted."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from iotrace.cli import _main
from iotrace.doctor.diagnose import Catalog
from iotrace.doctor.results import Check, CheckError, ok
from iotrace.doctor.run import PATIENCE_SECONDS, BadDataError, ClosedError, Sandbox, run_checks


def test_a_check_that_fails_or_hangs_is_unknown_and_the_others_count() -> None:
    release = threading.Event()

    def fails() -> None:
        raise OSError("no such thing")

    def hangs() -> None:
        release.wait()

    found = run_checks(
        [("a", fails), ("b", hangs), ("c", lambda: ok("c", "fine"))],  # type: ignore[list-item]
        seconds=2,
    )
    release.set()
    assert [(check.id, check.status) for check in found] == [("a", "unknown"), ("b", "unknown"), ("c", "ok")]
    assert "OSError: no such thing" in found[0].why
    assert "2.0 s" in found[1].why


def test_a_check_that_may_take_longer_is_waited_for_and_named() -> None:
    release, told = threading.Event(), []

    def waits() -> Check:
        assert release.wait(60)
        return ok("b", "at last")

    def hangs() -> Check:
        threading.Event().wait()
        return ok("c", "never")

    def waiting(names: list[str]) -> None:
        told.append(names)
        release.set()

    checks = [("a", lambda: ok("a", "fine")), ("b", waits), ("c", hangs), ("d", list)]
    found = run_checks(checks, 0.2, {"b": 200.0}, waiting)  # type: ignore[arg-type]
    assert [(check.id, check.status) for check in found] == [("a", "ok"), ("b", "ok"), ("c", "unknown")]
    assert told == [["b"]]
    assert "0.2 s" in found[2].why


def test_a_user_waits_for_five_seconds_at_most() -> None:
    assert PATIENCE_SECONDS < 5


def test_a_wrong_use_ends_all_checks_at_once() -> None:
    """The other check still hangs then."""
    release = threading.Event()

    def hangs() -> None:
        release.wait()

    def refuses() -> None:
        raise BadDataError("no such data")

    with pytest.raises(BadDataError):
        run_checks([("a", hangs), ("b", refuses)], seconds=200)  # type: ignore[list-item]
    release.set()


def test_without_threads_nothing_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    def start(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", start)
    found = run_checks([("a", lambda: ok("a", ""))])
    assert [(check.status, check.why) for check in found] == [("unknown", "can't start new thread")]


def test_a_closed_sandbox_has_ended_its_processes_and_removed_its_directories(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    sandbox, codes = Sandbox(), []

    def work() -> None:
        with sandbox.directory() as directory:
            line = [sys.executable, "-c", "import signal; signal.pause()"]
            codes.append(sandbox.run(line, dict(os.environ), 50, directory).returncode)

    thread = threading.Thread(target=work)
    thread.start()
    while not sandbox._groups:
        time.sleep(0.01)
    assert len(list(tmp_path.iterdir())) == 1
    sandbox.close()
    thread.join()
    assert codes == [-9]
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(ClosedError), sandbox.directory():
        pass


def test_nothing_is_made_in_the_users_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))  # as where neither TMPDIR nor /tmp can be written
    with pytest.raises(CheckError, match="no temporary directory"), Sandbox().directory():
        pass
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    with Sandbox().directory() as directory:
        assert directory.parent == tmp_path


def test_the_reason_and_the_remedy_are_those_of_the_operating_system() -> None:
    def many_files() -> None:
        raise OSError(24, "Too many open files", "/tmp/x")

    def no_directory() -> None:
        raise CheckError("no directory", "set TMPDIR")

    found = run_checks([("a", many_files), ("b", no_directory)])  # type: ignore[list-item]
    assert [(check.status, check.why, check.remedy) for check in found] == [
        ("unknown", "Too many open files", "ulimit -n 1024"),
        ("unknown", "no directory", "set TMPDIR"),
    ]


def test_nothing_is_asked_of_a_path_outside_a_check(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []
    names: list[object] = []

    def hangs(path: object, *_: object, **__: object) -> None:
        asked.append(path)

    def list_checks(words: list[str], data: str, output: str, *_: object) -> None:
        for module, name in ((os, "stat"), (os, "lstat"), (os.path, "exists"), (shutil, "which")):
            monkeypatch.setattr(module, name, hangs)
        found = Catalog(words, data, output, {"PATH": "/dead"}).checks()
        monkeypatch.undo()
        names.extend(identity for identity, _ in found)
        raise BadDataError("enough")

    monkeypatch.setattr("iotrace.doctor.diagnose.diagnose", list_checks)
    words = [
        "doctor",
        "--data",
        "/dead/x",
        "-o",
        "/dead/y",
        "--",
        "/dead/python",
        "/dead/z.py",
        "--data=/dead",
    ]
    assert _main(words) == 1
    assert asked == []
    assert {"command", "agent", "output", "data", "page-cache"} <= set(names)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_doctor_leaves_nothing(number: signal.Signals, tmp_path: Path) -> None:
    slow = tmp_path / "python3.99"
    slow.write_text(f"#!/bin/sh\necho $$ >> {tmp_path}/pids; exec sleep 60\n")
    slow.chmod(0o755)
    (tmp_path / "tmp").mkdir()
    line = [sys.executable, "-m", "iotrace", "doctor", "--", str(slow)]
    doctor = subprocess.Popen(
        line,
        env={**os.environ, "TMPDIR": str(tmp_path / "tmp")},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    deadline = time.monotonic() + 120
    pids: list[str] = []
    while len(pids) < 2 and time.monotonic() < deadline:
        time.sleep(0.02)
        pids = (tmp_path / "pids").read_text().split() if (tmp_path / "pids").exists() else []
    doctor.send_signal(number)
    _, errors = doctor.communicate(timeout=120)
    assert doctor.returncode == (130 if number == signal.SIGINT else -number)
    assert b"Traceback" not in errors
    assert len(pids) == 2
    assert not [pid for pid in pids if Path(f"/proc/{pid}/exe").exists()]
    assert list((tmp_path / "tmp").iterdir()) == []
