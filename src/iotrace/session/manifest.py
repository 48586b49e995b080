"""Write and read how a session's run began (manifest), how it ended (outcome), and what tracing it cost."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec

from iotrace.errors import SessionError
from iotrace.session import names, reading

_Document = TypeVar("_Document")
_Int = Annotated[int, msgspec.Meta(ge=-(1 << 62), le=1 << 62)]  # in ns 146 years: what is beyond is damaged


class NotCaptured(msgspec.Struct, frozen=True):
    """Something that this session does not hold, why, and what would help; `code` is that of its rule."""

    what: str
    why: str
    remedy: str = ""
    code: str | None = None


class PosixState(msgspec.Struct, frozen=True):
    """Whether POSIX calls were traced, and by whom; `only` holds the user's ``--io`` paths."""

    on: bool
    only: list[str] = []
    by: str = names.DFTRACER  # of sessions of before there was the recorder


class Launcher(msgspec.Struct, frozen=True):
    """The process that writes the outcome: `iotrace run`, or the program that `iotrace.profile` records.

    `start_ticks` since the boot distinguish processes of one pid, `pid_namespace` is the kernel's number.
    """

    pid: _Int
    start_ticks: _Int
    node: str
    boot_id: str
    pid_namespace: _Int


class Manifest(msgspec.Struct, frozen=True):
    """How the run began. Times in ns of CLOCK_REALTIME; `accelerators` are device nodes found.

    `telemetry_ms` is how often processes are sampled, None where they are not.
    `job` is the scheduler's job and step, `task` the launcher's task of it; empty where there is none.
    `torch` holds the settings of the torch profiler, under the agent's names for them. `commit` is what the
    working directory's git repository had checked out; empty where that is not known.
    """

    format: _Int
    iotrace_version: str
    argv: list[str]
    cwd: str
    host: str
    started_ns: _Int
    cpus: _Int
    posix: PosixState
    job: str = ""
    task: str = ""
    accelerators: list[str] = []
    telemetry_ms: _Int | None = None
    not_captured: list[NotCaptured] = []
    torch: dict[str, str] = {}
    launcher: Launcher | None = None  # without it a session counts as one of another host
    commit: str = ""


class _Versioned(msgspec.Struct):
    format: _Int


class Outcome(msgspec.Struct, frozen=True):
    """How the run ended; absent while it runs and after the launcher was killed.

    `exit_code` is None for a part of a program, which has none. `signal` ended the command itself.
    `oom_kills` counts the processes of the launcher's control group that the kernel ended meanwhile for lack
    of memory; None where it is not known.
    """

    exit_code: _Int | None
    ended_ns: _Int
    duration_ns: _Int
    signal: _Int | None = None
    oom_kills: _Int | None = None


class Costs(msgspec.Struct, frozen=True):
    """CPU time that tracing adds, on `host`; None where a source was off and could not be measured.

    `posix_call_ns`: to a traced read of 4 KiB after other work; `next_posix_call_ns`: to one that follows
    another. `span_ns` and `next_span_ns`: likewise to a timed call. `process_start_ns`: to the start of a
    Python process, with all sources of the run.
    """

    host: str
    posix_call_ns: _Int | None = None
    next_posix_call_ns: _Int | None = None
    span_ns: _Int | None = None
    next_span_ns: _Int | None = None
    process_start_ns: _Int | None = None


def write_document(path: Path, value: Any) -> None:
    """Write `value` as JSON, atomically; ignore a session that was deleted meanwhile, or is full."""
    with suppress(OSError):
        write_atomically(path, _pretty(value))


def read_document(path: Path, kind: type[_Document]) -> _Document | None:
    """Read a `kind` from JSON; None where there is none, or it is damaged."""
    try:
        return msgspec.json.decode(reading.read_whole(path), type=kind)
    except (OSError, *reading.UNREADABLE):
        return None


def write_atomically(path: Path, data: bytes) -> None:
    """Write next to `path` and rename, so that a reader sees all or nothing."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        _write_private(temporary, data)
        temporary.replace(path)
    except BaseException:  # a full disk: what was written of it would stay
        temporary.unlink(missing_ok=True)
        raise


def _write_private(path: Path, data: bytes) -> None:
    path.unlink(missing_ok=True)
    # Exclusive: never through a link that someone put there.
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, names.FILE_MODE)
    with open(descriptor, "wb") as file:
        file.write(data)


def claim(session: Path, manifest: Manifest) -> bool:
    """Write the manifest unless there is one; return False where another launcher was first.

    A hard link is made once and whole, without a lock, on network file systems, too.
    """
    path = session / names.MANIFEST
    temporary = path.with_name(f".{path.name}.{os.uname().nodename}.{os.getpid()}")
    try:
        _write_private(temporary, _pretty(manifest))
        try:
            os.link(temporary, path)
        except FileExistsError:
            return False
        except OSError:  # a file system without hard links: two launchers at the same instant may both win
            if path.exists():
                return False
            temporary.replace(path)
        return True
    finally:
        temporary.unlink(missing_ok=True)


def read_manifest(session: Path) -> Manifest:
    """Read the manifest of the session at `session`; SessionError where there is none, or it is damaged."""
    path = session / names.MANIFEST
    try:
        data = reading.read_whole(path)
    except PermissionError as error:
        raise not_readable(session) from error
    except OSError as error:
        if path.exists():
            raise SessionError(f"{path} cannot be read: {error.strerror}") from error
        problem = "does not exist" if not session.exists() else "is not an iotrace session"
        if problem != "does not exist" and _is_empty(session):
            problem = "is empty: no session has begun there"
        traces = next((end for end in (".json.gz", ".json") if next(session.glob(f"*{end}"), None)), None)
        hint = f"of traces in it: iotrace report {session}/*{traces}" if traces else None
        raise SessionError(f"{session} {problem}", hint or "make one with: iotrace run -- CMD") from error
    try:
        version = msgspec.json.decode(data, type=_Versioned).format
        if version != names.FORMAT_VERSION:
            newer = version > names.FORMAT_VERSION
            raise SessionError(
                f"{session} was written by {'a newer' if newer else 'another'} iotrace "
                f"(format {version}; this one reads {names.FORMAT_VERSION})",
                "pip install --upgrade iotrace-agent" if newer else "repeat the run: iotrace run -- CMD",
            )
        return msgspec.json.decode(data, type=Manifest)
    except reading.UNREADABLE as error:
        raise SessionError(f"{path} is damaged", "repeat the run: iotrace run -- CMD") from error


def not_readable(session: Path) -> SessionError:
    """Make the error for a session of another user, which nobody else may read."""
    try:
        owner = session.owner()
    except (OSError, KeyError):
        owner = "another user"
    return SessionError(
        f"{session} cannot be read: it is {owner}'s alone", f"its owner can share it: chmod -R g+rX {session}"
    )


def _is_empty(directory: Path) -> bool:
    try:
        return not any(True for _ in directory.iterdir())
    except OSError:
        return False


def launches(session: Path) -> list[Path]:
    """Return the directories of the further launchers of the session's job, sorted by name."""
    paths = reading.entries(session / names.LAUNCHES)
    return [path for path in paths if reading.is_regular(path / names.MANIFEST)]


def read_outcome(session: Path) -> Outcome | None:
    """Read how the run ended; None where that is unknown."""
    return read_document(session / names.OUTCOME, Outcome)


def _pretty(value: Any) -> bytes:
    return msgspec.json.format(msgspec.json.encode(value), indent=2) + b"\n"
