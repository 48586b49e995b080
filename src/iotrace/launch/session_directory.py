"""Make or join the directory that a launcher writes to, without locks: launchers of one job share a session.

``srun iotrace run -- CMD`` starts one launcher per task; each finds the others by the job's name.

Which commit a directory has checked out, read from the repository's files: no program of git runs.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator, Mapping
from itertools import count
from pathlib import Path

from iotrace.errors import LaunchError, SessionError
from iotrace.session import names
from iotrace.session.identity import ranks
from iotrace.session.manifest import Manifest, claim, launches, read_manifest, read_outcome
from iotrace.session.reading import open_regular

_HASH = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_REFERENCE = re.compile(r"refs/[^\0\n]{1,1000}")
_MOST_BYTES = 4 << 20
_MOST_ABOVE = 40


def read_commit(directory: Path) -> str:
    """Return the hash of the commit that `directory`, or one above it, has checked out; empty: not known.

    Whether its files were changed since is not known.
    """
    try:
        for above in [directory, *directory.parents][:_MOST_ABOVE]:
            if (above / ".git").exists():
                return _head(above / ".git")
    except (OSError, ValueError):
        pass
    return ""


def _head(git: Path) -> str:
    if git.is_file():  # a worktree, a submodule: it names where its own are
        git = git.parent / _text(git).removeprefix("gitdir:").strip()
    head = _text(git / "HEAD").strip()
    if not head.startswith("ref:"):
        return _hash(head)
    name = head.removeprefix("ref:").strip()
    if not _REFERENCE.fullmatch(name) or ".." in name:
        return ""
    common = git / _text(git / "commondir").strip() if (git / "commondir").exists() else git
    for place in (git, common):
        if (place / name).exists():
            return _hash(_text(place / name).strip())
    lines = (line.split(" ") for line in _text(common / "packed-refs").splitlines())
    return next((_hash(words[0]) for words in lines if words[1:] == [name]), "")


def _hash(text: str) -> str:
    return text if _HASH.fullmatch(text) else ""


def _text(path: Path) -> str:
    with open_regular(path) as file:
        return file.read(_MOST_BYTES).decode()


# By default all starts of torchrun have one name (run "none", port 29500): later tasks would seem to be the
# missing ones of yesterday's session. Tasks of one start begin together.
_SAME_START_NS = 60 * 1_000_000_000
_CHOOSE = "choose another directory with -o DIR"
# Variables that together are the same for every task of one start of a parallel program, and for no other
# start. A batch job's number alone is not enough: a job may start several programs.
_JOBS = (
    ("torchrun", ("TORCHELASTIC_RUN_ID", "MASTER_ADDR", "MASTER_PORT")),
    ("slurm", ("SLURM_JOB_ID", "SLURM_STEP_ID")),
    ("pals", ("PALS_APID",)),  # mpiexec on Aurora and other machines with PBS
    ("openmpi", ("PMIX_NAMESPACE",)),
    ("openmpi", ("OMPI_MCA_ess_base_jobid",)),  # before Open MPI 5
)


class TakenError(LaunchError):
    """The directory already holds something that this run does not belong to."""


def numbered(directory: Path) -> Iterator[Path]:
    """Yield `directory` and, for when it is taken, ``directory-2``, ``directory-3`` and so on."""
    yield directory
    for number in count(2):
        yield directory.with_name(f"{directory.name}-{number}")


def begin(directory: Path, manifest: Manifest) -> Path:
    """Make the session at `directory`, or join the one there if it belongs to the same job.

    Returns the launcher's directory: the session itself, or one below its ``launches/``.

    Raises:
        LaunchError: `directory` holds something else, or cannot be written.
    """
    try:
        directory.parent.mkdir(parents=True, exist_ok=True)
        directory.mkdir(names.DIRECTORY_MODE, exist_ok=True)
        _holds_session(directory)
        launch = directory.resolve()
        if not claim(launch, manifest):
            if not manifest.job or not may_join(directory, manifest.job, manifest.task):
                raise _taken(directory)
            name = f"{os.uname().nodename}-{os.getpid()}-{time.monotonic_ns():x}"
            launch = launch / names.LAUNCHES / name
            launch.parent.mkdir(names.DIRECTORY_MODE, exist_ok=True)
            launch.mkdir(names.DIRECTORY_MODE)
            claim(launch, manifest)
        for name in (names.PROCESSES, names.POSIX, names.OUT):
            (launch / name).mkdir(names.DIRECTORY_MODE)
    except OSError as error:
        raise not_writable(directory, error) from error
    return launch


def refuse_taken(directory: Path, job: str, task: str) -> None:
    """Raise LaunchError where `begin` would find the existing `directory` taken. Writes nothing."""
    if _holds_session(directory) and not (job and may_join(directory, job, task)):
        raise _taken(directory)


def _holds_session(directory: Path) -> bool:
    """Say whether `directory` holds a session; raise LaunchError where it holds something else."""
    # The order matters: a session's manifest is there before anything else of it.
    entries = [entry for entry in os.listdir(directory) if not entry.startswith(f".{names.MANIFEST}.")]
    session = (directory / names.MANIFEST).exists()
    if entries and not session:
        raise TakenError(f"{directory} exists and is not a session", _CHOOSE)
    return session


def _taken(directory: Path) -> TakenError:
    return TakenError(
        f"{directory} already holds a session", f"{_CHOOSE}, or see it with: iotrace report {directory}"
    )


def not_writable(directory: Path, error: OSError) -> LaunchError:
    """Make the error for a session that cannot be written."""
    return LaunchError(f"cannot write to {directory}: {error.strerror}", _CHOOSE)


def may_join(session: Path, job: str, task: str) -> bool:
    """Say whether `session` is from the same start of `job`, without `task`.

    A session that ended a while ago is from an earlier start, unless `task` was restarted.
    """
    try:
        if read_manifest(session).job != job:
            return False
        paths = [session, *launches(session)]
        tasks = [read_manifest(path).task for path in paths]
        outcomes = [read_outcome(path) for path in paths]
    except SessionError:
        return False
    ends = [outcome.ended_ns for outcome in outcomes if outcome is not None]
    restarted = task.partition(".")[2] not in ("", "0")
    if len(ends) == len(outcomes) and max(ends) < time.time_ns() - _SAME_START_NS and not restarted:
        return False
    return not task or task not in tasks


def await_others(session: Path, expected: int | None, seconds: float) -> int:
    """Wait for the job's other launchers to end; return how many have not."""
    deadline = time.monotonic() + seconds
    while True:
        paths = [session, *launches(session)]
        running = sum(read_outcome(launch) is None for launch in paths)
        if expected is not None and len(paths) < expected:
            running += expected - len(paths)
        deleted = not (session / names.MANIFEST).exists()
        if not running or deleted or time.monotonic() >= deadline:
            return running
        time.sleep(0.1)


def job_name(environment: Mapping[str, str]) -> str:
    """Return the job and step that `environment` names, such as ``slurm-4711.0``; empty: none.

    ``IOTRACE_JOB`` overrides what the scheduler says.
    """
    job = environment.get(names.JOB_VARIABLE, "")
    for scheduler, variables in _JOBS:
        values = [environment.get(variable, "") for variable in variables]
        if not job and all(values):
            job = f"{scheduler}-{'.'.join(values)}"
    return "".join(character if character.isalnum() or character in "._-" else "-" for character in job)


def task_name(environment: Mapping[str, str]) -> str:
    """Return which of the job's tasks this is; empty where nothing says.

    A task seen twice is another run: a second command typed into one interactive step.
    """
    rank = ranks(environment)["rank"]
    if rank is None:
        return ""
    restart = environment.get("TORCHELASTIC_RESTART_COUNT", "")
    return f"{rank}.{restart}" if restart else str(rank)
