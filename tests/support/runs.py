"""Running programs under iotrace, as a user does."""

from __future__ import annotations

import contextlib
import io
import itertools
import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from iotrace.analysis.rank import SessionAnalysis
from iotrace.cli import _main
from iotrace.merge.run import write_timeline
from iotrace.sources.session import open_session

PROJECT = Path(__file__).parent.parent.parent
UNET = str(PROJECT / "workloads" / "unet3d_hdf5.py")
SMALL_LOOP = str(Path(__file__).parent / "small_loop.py")
LAZY_TORCH = str(Path(__file__).parent / "lazy_torch")

_numbers = itertools.count()
_WORKER = os.environ.get("PYTEST_XDIST_WORKER", "")


@dataclass(frozen=True)
class Run:
    """What a traced program left."""

    code: int
    stdout: str
    stderr: str
    session: Path

    def report(self) -> dict[str, Any]:
        """The report as JSON."""
        return report_of(self.session)

    def details(self) -> str:
        """All that the report says on a terminal."""
        return in_process("report", str(self.session), "-v").stdout

    def timeline(self) -> Path:
        """The timeline, written now where the run was quiet."""
        path = self.session / "out" / "timeline.pftrace"
        if not path.exists():
            path.parent.mkdir(exist_ok=True)
            write_timeline(SessionAnalysis(open_session(self.session)), path)
        return path


def in_process(*words: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """What ``iotrace WORDS`` prints and returns, without an interpreter of its own.

    For commands that read what was recorded: they start in a fifth of the time.
    """
    before = os.getcwd()
    stdout, stderr = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8") for _ in range(2))
    with contextlib.redirect_stdout(stdout), contextlib.redirect_stderr(stderr):
        os.chdir(cwd or before)
        try:
            code = _main(list(words))
        finally:
            os.chdir(before)
    shown = []
    for stream in (stdout, stderr):
        stream.seek(0)
        shown.append(stream.read())
    return subprocess.CompletedProcess(list(words), code, *shown)


def report_of(session: Path) -> dict[str, Any]:
    """What ``iotrace report --json`` prints."""
    done = in_process("report", str(session), "--json")
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def launcher(directory: Path, command: list[str], options: list[str] | None = None) -> tuple[list[str], Path]:
    """The command line that runs ``python COMMAND`` traced in `directory`, and its session."""
    session = directory / f"session-{_WORKER}{next(_numbers)}"
    line = [sys.executable, "-m", "iotrace", "run", "-o", str(session), *(options or []), "--"]
    return [*line, sys.executable, *command], session


def after_announcement(stderr: str) -> str:
    """Standard error of a run without the two lines that say where the session is written to."""
    found = re.match(r"iotrace: tracing into \S.*\niotrace: while it runs: iotrace top \S.*\n", stderr)
    assert found is not None, stderr
    return stderr[found.end() :]


def environment(**variables: str) -> dict[str, str]:
    """The variables of a program with torch: what only torch.compile needs is imported where it is used.

    With --slow and --programs it is imported as anywhere.
    """
    lazy = {} if os.environ.get("IOTRACE_TESTS_WHOLE_TORCH") else {"PYTHONPATH": LAZY_TORCH}
    return {**os.environ, **lazy, **variables}


def run_traced(directory: Path, command: list[str], options: list[str] | None = None, **env: str) -> Run:
    """Run ``python COMMAND`` traced in `directory`."""
    line, session = launcher(directory, command, options)
    done = subprocess.run(
        line, cwd=directory, capture_output=True, text=True, env=environment(**env), timeout=280
    )
    return Run(done.returncode, done.stdout, done.stderr, session)


def run_bare(directory: Path, script: str, *arguments: str) -> Run:
    """Run the text of a program without the launcher; its session, if it makes one, is ``session``."""
    path = directory / "program.py"
    path.write_text(script)
    line = [sys.executable, str(path), *arguments]
    done = subprocess.run(line, cwd=directory, capture_output=True, text=True, env=environment(), timeout=280)
    return Run(done.returncode, done.stdout, done.stderr, directory / "session")


def run_script(directory: Path, script: str, *arguments: str, **env: str) -> Run:
    """Run the text of a program traced in `directory`; report and timeline are made when asked for."""
    path = directory / f"program_{next(_numbers)}.py"
    path.write_text(script)
    # Short programs: a window of torch.profiler would leave few steps that are measured.
    return run_traced(directory, [str(path), *arguments], ["--quiet", "--torch-steps", "off"], **env)
