"""Programs that fail: they print what they print without iotrace, and the session says what failed.

(What a session says of workers that fail or are killed: test_loaders.py, tests/faults.)
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from iotrace.launch.traced_run import agent_environment
from iotrace.session import names
from iotrace.sources.processes import read_processes
from iotrace.sources.records import Failure

RAISES = """
def load(name):
    raise OSError(f"cannot read {name}")
"""
# What runs in a program's main part, with the exception that is recorded: its class, and how its text ends.
PROGRAMS = {
    "an exception": ("load('a.h5')", "OSError", "OSError: cannot read a.h5\n"),
    "a chain": (
        "try:\n    load('a.h5')\nexcept OSError as error:\n    raise RuntimeError('no sample') from error",
        "RuntimeError",
        "RuntimeError: no sample\n",
    ),
    "an interrupt": ("raise KeyboardInterrupt", "KeyboardInterrupt", "KeyboardInterrupt\n"),
    "an interrupt, imported": (
        "import traceback\ndef train():\n    raise KeyboardInterrupt\ntrain()",
        "KeyboardInterrupt",
        "in train\n    raise KeyboardInterrupt\nKeyboardInterrupt\n",
    ),
    "an own hook": (
        "sys.excepthook = lambda kind, *_: print('own', kind, file=sys.stderr)\nload('b')",
        "OSError",
        "OSError: cannot read b\n",
    ),
    "no standard error": ("os.close(2)\nload('c')", "OSError", "OSError: cannot read c\n"),
    "standard error is None": ("sys.stderr = None\nload('c')", "OSError", "OSError: cannot read c\n"),
    "an error that cannot be shown": (
        "class Odd(Exception):\n    def __str__(self):\n        raise ValueError\nraise Odd",
        "Odd",
        " failed>\n" if sys.version_info >= (3, 11) else " object>\n",
    ),
    "a long message": ("raise ValueError('x' * 1_000_000)", "ValueError", "ValueError: xxx"),
    "deep recursion": ("def deep():\n    deep()\ndeep()", "RecursionError", "recursion depth exceeded\n"),
    "a syntax error": ("exec('x = (')", "SyntaxError", "SyntaxError: '(' was never closed\n"),
    "what a test runner caught": (
        "def case():\n    try:\n        load('f')\n    except OSError as error:\n"
        "        sys.last_type, sys.last_value, sys.last_traceback = OSError, error, error.__traceback__\n"
        "case()\nsys.exit(1)",
        None,
        "",
    ),
    "sys.exit": ("sys.exit(3)", None, ""),
    "sys.exit with words": ("sys.exit('no data')", None, ""),
    "sys.exit in a handler": ("try:\n    load('d')\nexcept OSError:\n    sys.exit(1)", None, ""),
    "an exception of a thread": (
        "import threading\nother = threading.Thread(target=load, args=('e',))\nother.start()\nother.join()",
        None,
        "",
    ),
}
if sys.version_info >= (3, 11):
    PROGRAMS["a group"] = (
        "raise ExceptionGroup('two', [ValueError(1), OSError(2)])",
        "ExceptionGroup",
        "------------------------------------\n",
    )


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_fails_as_it_does_without_iotrace(tmp_path: Path, name: str) -> None:
    """Its standard error to the byte, its exit code; what Python printed is recorded."""
    body, error, end = PROGRAMS[name]
    (tmp_path / "program.py").write_text(f"import os, sys\n{RAISES}\n{body}\n")
    (tmp_path / "session" / names.PROCESSES).mkdir(parents=True)
    traced = {**os.environ, **agent_environment(tmp_path / "session", os.environ.get("PYTHONPATH", ""), {})}
    line = [sys.executable, "program.py"]
    bare, done = (
        subprocess.run(line, cwd=tmp_path, capture_output=True, env=env, timeout=60)
        for env in (os.environ, traced)
    )
    assert (done.returncode, done.stderr, done.stdout) == (bare.returncode, bare.stderr, bare.stdout)
    (process,), _ = read_processes(tmp_path / "session")
    assert process.ended
    assert not list(tmp_path.glob("session/processes/*/agent.log"))
    found = process.of_type(Failure)
    if error is None:
        assert not found
        return
    (failure,) = found
    assert failure.error == error
    assert len(failure.text) < 30_000
    assert end in failure.text
    assert failure.text.endswith(end) or name == "a long message"


KILLED_LATER = """
import glob, os, signal, threading, time, iotrace

def other():
    threading.main_thread().join()
    until = time.monotonic() + 60
    while time.monotonic() < until:
        if any('"failure"' in open(each).read() for each in glob.glob("session/processes/*/records.jsonl")):
            break
        time.sleep(0.05)
    os.kill(os.getpid(), signal.SIGKILL)

threading.Thread(target=other).start()
for number in iotrace.batches([1, 2, 3]):
    if number == 2:
        raise ValueError("in the loop")
"""


def test_a_failure_is_noted_before_the_main_thread_waits_for_others(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(KILLED_LATER)
    (tmp_path / "session" / names.PROCESSES).mkdir(parents=True)
    traced = {**os.environ, **agent_environment(tmp_path / "session", os.environ.get("PYTHONPATH", ""), {})}
    line = [sys.executable, "program.py"]
    subprocess.run(line, cwd=tmp_path, capture_output=True, env=traced, timeout=120, check=False)
    (process,), _ = read_processes(tmp_path / "session")
    assert [failure.error for failure in process.of_type(Failure)] == ["ValueError"]
    assert not process.ended
