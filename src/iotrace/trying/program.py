"""The program of a session, as a trial runs it again: its command, what it wrote, and which Python it has."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec

from iotrace.analysis.results import Report
from iotrace.errors import UsageError
from iotrace.session.masks import MASK
from iotrace.sources.session import Session

# What keeps trackers of experiments from sending a trial's runs.
_OFFLINE = {"WANDB_MODE": "offline", "NEPTUNE_MODE": "offline", "CLEARML_OFFLINE_MODE": "1"}
_MLFLOW = "MLFLOW_TRACKING_URI"


class Program(msgspec.Struct, frozen=True, kw_only=True):
    """What to run, from which directory; `python` is the interpreter that the recorded run had.

    `wrote` are the files that it wrote; None where calls were not recorded. `only` are paths of ``--io``.
    """

    command: list[str]
    working_directory: str
    python: str
    wrote: list[str] | None
    seconds: float | None
    only: list[str]


def find_program(session: Session, report: Report, command: Sequence[str]) -> Program:
    """Find the session's program; `command` replaces the recorded one.

    Raises:
        UsageError: it cannot be run again here.
    """
    manifest = session.manifest
    words = list(command) or list(manifest.argv)
    give = "give the command: iotrace try SESSION -- CMD"
    if len(session.launches) > 1:
        what = f"the session is a job of {len(session.launches)} launches, and a trial runs one command"
        raise UsageError(what, "record a run of one launcher: iotrace run -- torchrun ...")
    if not words:
        raise UsageError("the session is a part of a program, without a command", give)
    if not command and any(MASK in word for word in words):
        raise UsageError("the session's command holds a secret that was not recorded", give)
    if not os.path.isdir(manifest.cwd):
        raise UsageError(f"the program ran in {manifest.cwd}, which is not there any more", give)
    _check_start(words, manifest.cwd, give)
    pythons = [
        process.identity.executable
        for rank in session.ranks
        for process in (rank.main, *session.processes)
        if os.access(process.identity.executable, os.X_OK)
    ]
    outcome = session.launches[0].outcome
    return Program(
        command=words,
        working_directory=manifest.cwd,
        python=pythons[0] if pythons else sys.executable,
        wrote=_wrote(report, session) if manifest.posix.on else None,
        seconds=None if outcome is None else outcome.duration_ns / 1e9,
        only=manifest.posix.only,
    )


def _check_start(words: Sequence[str], directory: str, remedy: str) -> None:
    """Refuse a command whose program, or Python script, is not there."""
    first = words[0]
    program = os.path.join(directory, first) if "/" in first else shutil.which(first)
    if not program or not os.path.exists(program):
        raise UsageError(f"the program {first} is not found", remedy)
    script = words[1] if len(words) > 1 and os.path.basename(first).startswith("python") else ""
    if script.endswith(".py") and not os.path.exists(os.path.join(directory, script)):
        raise UsageError(f"the program {script} is not in {directory} any more", remedy)


def _wrote(report: Report, session: Session) -> list[str]:
    """Return the files that the ranks' processes opened and wrote and that are still there; most bytes first.

    What they wrote without opening it is the launcher's: its output, which a trial keeps for itself.
    """
    written: dict[str, int] = {}
    for rank in report.ranks:
        for file in rank.io.files if rank.io is not None else []:
            path = session.paths.absolute(file.path)
            if (
                file.opens
                and file.writes
                and os.path.isfile(path)
                and not path.startswith(("/dev/", "/proc/"))
            ):
                written[file.path] = max(written.get(file.path, 0), file.write_bytes or 0)
    return sorted(written, key=lambda path: -written[path])


def offline(directory: Path) -> dict[str, str]:
    """Return the variables that keep trackers from the network; what they log goes below `directory`."""
    return {**_OFFLINE, _MLFLOW: f"file://{directory.resolve()}/mlruns"}
