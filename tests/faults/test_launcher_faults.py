"""What surrounds the launcher."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

import iotrace_command
from tests.faults.harness import Trial
from tests.faults.rows import row

UNUSABLE = b"raise RuntimeError('made for another Python')"
# What the launcher and the agent import: of others, of the standard library, and iotrace itself.
SHADOWED = ("msgspec", "click", "numpy", "iotrace", "re")
USED_BY_AGENT = ("_json", "_struct", "fcntl")
IMPORTS = """
import sys
for name in sys.argv[1:]:
    try:
        module = __import__(name)
        print(name, getattr(module, "OWN", None), flush=True)
    except RuntimeError as error:
        print(name, error)
print(sys.path[1:])
"""


@row(
    "PYTHONPATH holds unusable packages of another Python, and an iotrace",
    kept="what the program imports, its PYTHONPATH; the launcher and the agent use their own",
    lost="nothing",
    default=True,
)
def test_packages_of_another_python(trial: Trial) -> None:
    trial.files = {f"other/{name}.py": UNUSABLE for name in (*SHADOWED, *USED_BY_AGENT)}
    path = os.pathsep.join(filter(None, ["other", os.environ.get("PYTHONPATH", "")]))
    pair = trial.both(IMPORTS, *SHADOWED, env={"PYTHONPATH": path}, python=["-u"])
    pair.assert_same()
    pair.assert_nothing_lost()
    assert len(pair.report["processes"]) == 1


@row(
    "the program has modules json, msgspec and iotrace of its own beside it",
    kept="they are what it imports",
    lost="nothing",
)
def test_modules_of_the_same_name(trial: Trial) -> None:
    for name in ("json", "msgspec", "iotrace"):
        (trial.directory / f"{name}.py").write_text("OWN = __name__")
    pair = trial.both(IMPORTS, "json", "msgspec", "iotrace")
    pair.assert_same()
    pair.assert_nothing_lost()
    assert "iotrace iotrace" in pair.traced.stdout


LEAVES_NOTHING = """
import os, shutil, sys
here = os.getcwd()
os.chdir("/")
shutil.rmtree(here)
print("done", flush=True)
sys.exit(int(sys.argv[1]))
"""


@row(
    "the program deletes its working directory, and the session in it",
    kept="the program's exit code",
    lost="the session",
    default=True,
)
@pytest.mark.parametrize("code", [0, pytest.param(3, marks=pytest.mark.fault)])
def test_the_working_directory_is_deleted(trial: Trial, code: int) -> None:
    pair = trial.both(LEAVES_NOTHING, str(code), options=["-o", "session"])
    assert (pair.traced.code, pair.traced.stdout) == (pair.bare.code, pair.bare.stdout) == (code, "done\n")
    assert pair.traced.stderr == ""


@row(
    "the program deletes its working directory; the session lies elsewhere",
    kept="the exit code, the session, the report",
    lost="nothing",
)
def test_the_session_lies_elsewhere(trial: Trial) -> None:
    pair = trial.both(LEAVES_NOTHING, "3")
    assert pair.traced.code == 3
    pair.assert_nothing_lost()
    here = trial.directory / "here"
    here.mkdir()
    line = [sys.executable, iotrace_command.__file__, "run", "-o", "../shown", "--"]
    shown = subprocess.run([*line, "sh", "-c", 'rm -r "$PWD"'], cwd=here, capture_output=True, text=True)
    assert (shown.returncode, "no report" in shown.stderr) == (0, False), shown.stderr


SECRET = "sk-4f1d9a"
STARTS_PROGRAMS = """
import os, subprocess, sys
for _ in range(40):
    open("data.bin").read()
line = ["true", "data.bin", "--api-key", sys.argv[2], f"--password={sys.argv[2]}"]
subprocess.run(line)
pid = os.fork()
if not pid:
    os.execvp("true", line)
os.waitpid(pid, 0)
os.system(" ".join(line))
print(len(sys.argv), os.umask(0o22))
"""


@row(
    "secrets on command lines and in variables; a umask of 0",
    kept="what the program gets; directories of mode 0700 and files of 0600 without the secrets",
    lost="the values of arguments and variables named like a token, key, secret or password",
    default=True,
)
def test_secrets_and_modes(trial: Trial) -> None:
    trial.files = {"data.bin": b"numbers"}
    arguments = ["--hf-token", SECRET, f"token={SECRET}", f"WANDB_API_KEY={SECRET}"]
    pair = trial.both(
        STARTS_PROGRAMS, *arguments, env={"WANDB_API_KEY": SECRET}, prepare=lambda: os.umask(0) and None
    )
    pair.assert_same()
    assert pair.report["session"]["argv"][-3:] == ["***", "token=***", "WANDB_API_KEY=***"]
    everything = [pair.session, *pair.session.rglob("*")]
    modes = {(path.is_dir(), path.stat().st_mode & 0o777) for path in everything}
    assert modes == {(True, 0o700), (False, 0o600)}
    assert [path for path in everything if path.is_file() and SECRET.encode() in path.read_bytes()] == []


@row(
    "two starts in the same second, without -o",
    kept="both runs; the later session gets a number",
    lost="nothing",
)
def test_two_starts_in_one_second(trial: Trial) -> None:
    line = [sys.executable, iotrace_command.__file__, "run", "-q", "--no-telemetry", "--", "true"]
    started = [subprocess.Popen(line, cwd=trial.directory) for _ in range(6)]
    assert [process.wait() for process in started] == [0] * 6
    sessions = [path.name for path in trial.directory.iterdir()]
    assert len(sessions) == 6
    assert all(re.fullmatch(r"iotrace-\d+-\d+(-\d)?", name) for name in sessions), sessions
