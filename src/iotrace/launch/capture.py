"""One traced run: make the session, run the command with the agent in it, note how it ended."""

from __future__ import annotations

import glob
import os
import shutil
import sys
import time
from datetime import datetime
from pathlib import Path

from iotrace import __version__
from iotrace.errors import LaunchError
from iotrace.launch import child, posix
from iotrace.session import names
from iotrace.session.manifest import Manifest, NotCaptured, Outcome, PosixState, write_manifest, write_outcome

# NVIDIA, AMD, Intel. A node without a device behind it makes the exposed wait unknown, not wrong.
_ACCELERATOR_NODES = ("/dev/nvidia[0-9]*", "/dev/kfd", "/dev/dri/renderD*", "/dev/accel/accel*")
_SHIM = Path(__file__).parent.parent / "agent" / "shim"


def default_directory(suffix: str = "") -> Path:
    """A new name in the current directory, by time, with `suffix`."""
    base = Path(f"iotrace-{datetime.now():%Y%m%d-%H%M%S}{suffix}")
    candidate, number = base, 1
    while candidate.exists():
        number += 1
        candidate = Path(f"{base}-{number}")
    return candidate


def run(command: list[str], directory: Path, only: list[str]) -> int:
    """Run `command` traced into the new session `directory`; returns its exit code.

    Raises LaunchError (125, or 126 and 127 as a shell) before the program starts.
    """
    if not command:
        raise LaunchError("no command was given", "iotrace run -- python train.py")
    environment = dict(os.environ)
    program = child.find(command, environment.get("PATH"))
    make_session(directory)
    session = directory.resolve()
    capture = posix.plan([*posix.python_directories(program), *_own_python()], only)
    not_captured = []
    if capture.why_not:
        not_captured.append(NotCaptured("posix", capture.why_not, capture.remedy))
    else:
        inherited = environment.get("LD_PRELOAD", "")
        environment.update(posix.environment(capture, session / names.POSIX, inherited))
    environment.update(agent_environment(session, environment.get("PYTHONPATH", "")))
    state = PosixState(on=not capture.why_not, only=[_readable(path) for path in only])
    try:
        write_manifest(session, describe(command, state, not_captured))
    except OSError as error:
        raise not_writable(directory, error) from error
    started_ns = time.monotonic_ns()
    try:
        exit_code = child.run(command, environment)
    except LaunchError:
        shutil.rmtree(session, ignore_errors=True)  # nothing ran: the name is free for the next try
        raise
    write_outcome(
        session,
        Outcome(exit_code=exit_code, ended_ns=time.time_ns(), duration_ns=time.monotonic_ns() - started_ns),
    )
    return exit_code


def _own_python() -> list[str]:
    """Where iotrace runs from: its files, too, are no data."""
    roots = {sys.prefix, sys.base_prefix, str(Path(__file__).parent.parent)}
    return sorted(root for root in roots if root not in ("/", "/usr"))


def agent_environment(session: Path, python_path: str) -> dict[str, str]:
    """The variables that start the agent in a new Python process; `python_path` is PYTHONPATH as it was."""
    return {
        names.SETTINGS_VARIABLE: names.encode_settings({"session": str(session)}),
        "PYTHONPATH": os.pathsep.join([str(_SHIM), *filter(None, [python_path])]),
    }


def describe(command: list[str], posix_state: PosixState, not_captured: list[NotCaptured]) -> Manifest:
    """The manifest of a run of `command` that begins now, here."""
    return Manifest(
        format=names.FORMAT_VERSION,
        iotrace_version=__version__,
        argv=[_readable(word) for word in command],
        cwd=_readable(_working_directory()),
        host=_readable(_host()),
        started_ns=time.time_ns(),
        cpus=len(os.sched_getaffinity(0)),
        posix=posix_state,
        accelerators=sorted(node for pattern in _ACCELERATOR_NODES for node in glob.glob(pattern)),
        not_captured=not_captured,
    )


def _readable(text: str) -> str:
    """`text` as UTF-8 can hold it: names of files may be any bytes."""
    return os.fsencode(text).decode(errors="replace")


def _working_directory() -> str:
    try:
        return os.getcwd()
    except FileNotFoundError:  # deleted under us; the command may not care
        return os.environ.get("PWD", "/")


def _host() -> str:
    return os.environ.get(names.HOST_VARIABLE, "") or os.uname().nodename


_CHOOSE = "choose another directory with -o DIR"


def not_writable(directory: Path, error: OSError) -> LaunchError:
    """What to raise where the session cannot be written."""
    return LaunchError(f"cannot write to {directory}: {error.strerror}", _CHOOSE)


def make_session(directory: Path) -> None:
    """Make the directories of a new session; LaunchError where there is something already."""
    try:
        if (directory / names.MANIFEST).exists():
            raise LaunchError(
                f"{directory} already holds a session",
                f"{_CHOOSE}, or see it with: iotrace report {directory}",
            )
        if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
            raise LaunchError(f"{directory} exists and is not a session", _CHOOSE)
        directory.mkdir(parents=True, exist_ok=True)
        for name in (names.PROCESSES, names.POSIX, names.OUT):
            (directory / name).mkdir()
    except OSError as error:
        raise not_writable(directory, error) from error
