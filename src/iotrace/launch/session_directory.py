"""Where a launcher writes: a new session, or its own place in the session of its job. No locks."""

from __future__ import annotations

import os
import time
from pathlib import Path

from iotrace.errors import LaunchError, SessionError
from iotrace.session import names
from iotrace.session.manifest import Manifest, claim, launches, read_manifest, read_outcome

# torchrun calls all starts alike unless told otherwise (run "none", port 29500): yesterday's session of fewer
# tasks has room for those that it did not have. Tasks of one start begin together.
_SAME_START_NS = 60 * 1_000_000_000
_CHOOSE = "choose another directory with -o DIR"


def begin(directory: Path, manifest: Manifest) -> Path:
    """Make the session at `directory`, or join the one there if it is of the same job.

    Returns the launcher's own directory: the session itself, or one below its ``launches/``. LaunchError
    where something else is there, or nothing can be written.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True)
        _holds_session(directory)
        place = directory.resolve()
        if not claim(place, manifest):
            if not manifest.job or not may_join(directory, manifest.job, manifest.task):
                raise _taken(directory)
            name = f"{os.uname().nodename}-{os.getpid()}-{time.monotonic_ns():x}"
            place = place / names.LAUNCHES / name
            place.mkdir(parents=True)
            claim(place, manifest)
        for name in (names.PROCESSES, names.POSIX, names.OUT):
            (place / name).mkdir()
    except OSError as error:
        raise not_writable(directory, error) from error
    return place


def refuse_taken(directory: Path, job: str, task: str) -> None:
    """LaunchError where `begin` would find that `directory`, which exists, is taken. Nothing is written."""
    if _holds_session(directory) and not (job and may_join(directory, job, task)):
        raise _taken(directory)


def _holds_session(directory: Path) -> bool:
    """Whether a session is in `directory`; LaunchError where something else is."""
    # The order matters: a session's manifest is there before anything else of it.
    entries = [entry for entry in os.listdir(directory) if not entry.startswith(f".{names.MANIFEST}.")]
    session = (directory / names.MANIFEST).exists()
    if entries and not session:
        raise LaunchError(f"{directory} exists and is not a session", _CHOOSE)
    return session


def _taken(directory: Path) -> LaunchError:
    return LaunchError(
        f"{directory} already holds a session", f"{_CHOOSE}, or see it with: iotrace report {directory}"
    )


def not_writable(directory: Path, error: OSError) -> LaunchError:
    """What to raise where the session cannot be written."""
    return LaunchError(f"cannot write to {directory}: {error.strerror}", _CHOOSE)


def may_join(session: Path, job: str, task: str) -> bool:
    """Whether `session` is of the same start of `job`, and `task` is not in it yet.

    One that has ended a while ago is of an earlier start, unless `task` was started again.
    """
    try:
        first = read_manifest(session)
        if first.job != job:
            return False
        others = [read_manifest(path) for path in launches(session)]
        outcomes = [read_outcome(path) for path in (session, *launches(session))]
    except SessionError:
        return False
    ends = [outcome.ended_ns for outcome in outcomes if outcome is not None]
    restarted = task.partition(".")[2] not in ("", "0")
    if len(ends) == len(outcomes) and max(ends) < time.time_ns() - _SAME_START_NS and not restarted:
        return False
    return not task or task not in [other.task for other in (first, *others)]


def await_others(session: Path, expected: int | None, seconds: float) -> int:
    """Wait for the job's other launchers to end; returns how many of those known have not."""
    deadline = time.monotonic() + seconds
    while True:
        places = [session, *launches(session)]
        running = sum(read_outcome(place) is None for place in places)
        if expected is not None and len(places) < expected:
            running += expected - len(places)
        deleted = not (session / names.MANIFEST).exists()
        if not running or deleted or time.monotonic() >= deadline:
            return running
        time.sleep(0.1)
