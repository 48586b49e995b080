"""The doctor on this machine: what it says is so."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.nvml import build_standin, needs_compiler
from tests.support.runs import environment
from tests.support.waiting import PATIENCE_S

# With time for every look: on a busy machine one may not end within the few seconds that users are given.
PATIENT = """
from iotrace.cli import main
from iotrace.doctor import probe, run
probe._SECONDS = 60
run.run_checks.__defaults__ = (80, *run.run_checks.__defaults__[1:])
main()
"""


def doctor(
    *words: str, cwd: Path | None = None, patient: bool = True, **variables: str
) -> tuple[int, dict[str, Any], dict[str, dict[str, Any]]]:
    """Exit code, the document, and its checks by id."""
    done = subprocess.run(
        [sys.executable, *(["-c", PATIENT] if patient else ["-m", "iotrace"]), "doctor", "--json", *words],
        capture_output=True,
        text=True,
        cwd=cwd,
        env=environment(**variables),
        timeout=PATIENCE_S,
    )
    assert done.stdout, done.stderr
    document = json.loads(done.stdout)
    return done.returncode, document, {check["id"]: check for check in document["checks"]}


def test_here_all_is_captured(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("")
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "a.bin").write_bytes(bytes(1 << 16))
    code, document, checks = doctor("--", sys.executable, "train.py", "--workers", "900", cwd=tmp_path)
    assert code == 0
    assert document["interpreter"] == sys.executable
    assert document["not_captured"] == []
    assert {"agent", "posix", "python", "start-method", "torch"} <= {
        name for name, check in checks.items() if check["status"] == "ok"
    }
    assert checks["posix"]["what"] == "the recorder saw all 8 reads of a tiny program"
    assert checks["cpus"]["what"].startswith("900 workers")
    assert checks["torch-profiler"]["status"] == "ok"
    assert checks["data"]["what"].startswith("data is on ")
    assert sorted(os.listdir(tmp_path)) == ["data", "train.py"]


def test_a_script_that_is_not_there_is_a_command_that_cannot_run(tmp_path: Path) -> None:
    code, document, checks = doctor("--", sys.executable, "nosuch.py", cwd=tmp_path)
    assert code == 1
    assert checks["command"]["status"] == "missing"
    assert "nosuch.py does not exist" in checks["command"]["what"]
    assert document["captured"] == []
    assert "POSIX calls" in document["not_captured"]


@pytest.mark.parametrize(
    ("options", "lost"),
    [(["-S"], "agent"), (["-I", "-S"], "agent")],
)
def test_options_that_keep_the_agent_out(options: list[str], lost: str, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("")
    code, document, checks = doctor("--", sys.executable, *options, "train.py", cwd=tmp_path)
    assert code == 1
    assert checks[lost]["status"] == "missing"
    assert checks["posix"]["status"] == "ok"
    assert "POSIX calls" in document["captured"]


def test_an_emptied_environment_keeps_both_out() -> None:
    code, document, checks = doctor("--", "env", "-i", sys.executable, "-S", "train.py")
    assert code == 1
    assert [checks[name]["status"] for name in ("agent", "posix")] == ["missing"] * 2
    assert document["captured"] == ["processes and host"]


def test_a_preload_that_is_there_stays_and_does_no_harm(tmp_path: Path) -> None:
    import dftracer

    other = str(Path(dftracer.__path__[0]) / "lib64" / "no-such-library.so")
    code, _, checks = doctor(LD_PRELOAD=other)
    assert code == 0
    assert checks["posix"]["what"] == f"the recorder saw all 8 reads of a tiny program, before {other}"


def test_a_shell_leaves_not_known_what_it_starts(tmp_path: Path) -> None:
    line = [sys.executable, "-m", "iotrace", "doctor", "--", "sh", "-c", "python x.py"]
    done = subprocess.run(
        line, capture_output=True, text=True, cwd=tmp_path, env={**os.environ, "COLUMNS": "300"}
    )
    assert done.returncode == 0
    told = next(line for line in done.stdout.splitlines() if line.startswith("not known"))
    assert "POSIX calls" in told
    assert "data waits" in told
    assert "interpreter: sh names no Python" in done.stdout


def test_an_output_that_cannot_be_written_captures_nothing() -> None:
    code, document, checks = doctor("-o", "/proc/iotrace")
    assert code == 1
    assert checks["output"]["status"] == "missing"
    assert document["captured"] == []


def test_it_reads_well_in_80_columns_without_colour() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "iotrace", "doctor", "--", sys.executable, "-S"],
        capture_output=True,
        text=True,
        env={**os.environ, "NO_COLOR": "1", "FORCE_COLOR": "", "COLUMNS": "80"},
    )
    lines = done.stdout.splitlines()
    assert done.returncode == 1
    assert max(map(len, lines)) <= 80
    assert "\x1b" not in done.stdout
    assert [line for line in lines if line != line.rstrip()] == []
    last = max(number for number, line in enumerate(lines) if not line.startswith(" "))
    assert lines[last].startswith("next ")
    assert any(line.startswith("missing agent") for line in lines)
    assert any(line.strip() == "→ leave out -S" for line in lines)


def test_an_interpreter_by_a_relative_path(tmp_path: Path) -> None:
    (tmp_path / "python3").symlink_to(sys.executable)
    code, _, checks = doctor("--", "./python3", "-S", "x.py", cwd=tmp_path)
    assert code == 1
    assert checks["agent"]["remedy"] == "leave out -S"
    assert checks["posix"]["status"] == "ok"


def test_a_script_that_starts_the_interpreter_and_hangs_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "python3.99").write_text(
        "#!/bin/sh\necho $$ >> pids; sleep 60 & echo $! >> pids; wait\n".replace(
            "pids", str(tmp_path / "pids")
        )
    )
    (tmp_path / "python3.99").chmod(0o755)
    _, _, checks = doctor("--timeout", "3", "--", "./python3.99", "x.py", cwd=tmp_path, patient=False)
    assert checks["agent"]["status"] == checks["torch-profiler"]["status"] == "unknown"
    started = (tmp_path / "pids").read_text().split()
    assert len(started) >= 4
    assert not [pid for pid in started if Path(f"/proc/{pid}/exe").exists()]  # a zombie has none


@needs_compiler
def test_devices_are_those_that_the_sidecar_finds(tmp_path: Path) -> None:
    library = str(build_standin(tmp_path / "library"))
    failing = "nvmlDeviceGetTemperature:0=4"
    _, document, checks = doctor(LD_LIBRARY_PATH=library, NVML_STANDIN_FAIL=failing)
    assert checks["nvidia"]["what"].startswith("NVML sees 1 x Stand-in A, 1 x Stand-in B,")
    assert "temperature: Insufficient Permissions" in checks["nvidia"]["why"]
    assert "GPUs" in document["captured"]
    hangs = "nvmlInitWithFlags"
    _, _, checks = doctor(LD_LIBRARY_PATH=library, NVML_STANDIN_HANG=hangs, patient=False)
    assert checks["nvidia"]["status"] == "unknown"


def test_every_finding_that_is_not_well_has_a_remedy_and_the_next_command_is_told(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("")
    _, document, _ = doctor("-o", "/dev/null", "--", "./train.py", "--workers", "64", cwd=tmp_path)
    assert [check for check in document["checks"] if check["status"] != "ok" and not check["remedy"]] == []
    assert document["captured"] == []
    shown = subprocess.run(
        [sys.executable, "-m", "iotrace", "doctor", "--", sys.executable, "train.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        env={**os.environ, "COLUMNS": "200"},
    )
    assert f"iotrace run -- {sys.executable} train.py" in shown.stdout


@pytest.mark.skipif(os.geteuid() == 0, reason="root may look at everything")
def test_data_that_may_not_be_looked_at_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "closed").mkdir(mode=0)
    done = subprocess.run(
        [sys.executable, "-m", "iotrace", "doctor", "--data", str(tmp_path / "closed" / "x")],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1
    assert "cannot be looked at: Permission denied" in done.stderr


def test_data_that_is_not_there_is_a_sentence() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "iotrace", "doctor", "--data", "/no/such"], capture_output=True, text=True
    )
    assert done.returncode == 1
    assert done.stderr.startswith("iotrace: --data /no/such does not exist")


def test_an_interpreter_is_told_by_the_name_it_was_started_by(tmp_path: Path) -> None:
    python = tmp_path / "bin" / "python3"
    python.parent.mkdir()
    python.symlink_to(os.path.realpath(sys.executable))
    (tmp_path / "pyvenv.cfg").write_text(f"home = {os.path.dirname(os.path.realpath(sys.executable))}\n")
    (tmp_path / "x.py").write_text("")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "COLUMNS": "200"}
    done = [
        subprocess.run(
            [python, "-m", "iotrace", "doctor", *words],
            capture_output=True,
            text=True,
            cwd=tmp_path,
            env=environment,
        ).stdout.splitlines()
        for words in ([], ["--", "bin/python3", "x.py"])
    ]
    assert done[0][0] == f"iotrace doctor no command given: {python}"
    assert [line.split() for line in done[1] if line.startswith("ok      command ")] == [
        ["ok", "command", "bin/python3"]
    ]
