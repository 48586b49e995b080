"""The sessions in a directory: which there are, how each went, and the verdict that its run stored."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

from iotrace.errors import SessionError
from iotrace.session import names
from iotrace.session.liveness import RUNNING, UNKNOWN, joint_exit_code, joint_state, read_launches
from iotrace.session.manifest import read_document, read_manifest, write_document
from iotrace.version import __version__

SCHEMA_VERSION = 1
_BY_READERS = (f"{names.OUT}/", names.COSTS, names.FILES)  # what is written into a session afterwards


def session_title(session: Path) -> str:
    """What a session is called: by its directory; a run of a sweep by its point, as ``point_workers=2_0``."""
    path = session.absolute()
    of_sweep = path.name == "session" and path.parent.parent.name == "runs"
    return path.parent.name if of_sweep else path.name


class Recorded(msgspec.Struct, frozen=True):
    """How much the run recorded: files and bytes, without what readers made of it."""

    files: int
    bytes: int


class Headline(msgspec.Struct, frozen=True, kw_only=True):
    """What a list shows of a report: the verdict's class, what it blames, and the figures of its rank.

    `wait_fraction` is the share of the measured steps that waited for data. None is what is not known.
    """

    verdict_class: str | None = None
    why: str | None = None
    file: str | None = None
    rank: int | None = None
    ranks: int | None = None
    step_ms: float | None = None
    steps_per_second: float | None = None
    wait_fraction: float | None = None


class StoredVerdict(msgspec.Struct, frozen=True):
    """What the report after the run said; it holds for these `recorded` data and this `iotrace_version`."""

    text: str
    iotrace_version: str
    recorded: Recorded
    headline: Headline = Headline()


class ListedSession(msgspec.Struct, frozen=True, kw_only=True):
    """A session in a list; `problem` says why it cannot be read, then the rest is None.

    `seconds` is how long it took, or has taken so far. `verdict` and `headline` are None where none
    was stored, or where it is not of the data that are there.
    """

    name: str
    path: str
    started_ns: int | None = None
    argv: list[str] = []
    seconds: float | None = None
    exit_code: int | None = None
    state: str | None = None
    verdict: str | None = None
    headline: Headline | None = None
    host: str | None = None
    bytes: int | None = None
    commit: str | None = None
    problem: str | None = None


class Listing(msgspec.Struct, frozen=True, kw_only=True):
    """The sessions in `directory`, the newest first."""

    schema_version: int
    directory: str
    sessions: list[ListedSession]


def sessions_in(directory: Path) -> list[Path]:
    """Return the sessions in `directory`, or itself; of a sweep's directory those of its runs."""
    if (directory / names.MANIFEST).is_file():
        return [directory]
    patterns = (f"*/{names.MANIFEST}", f"runs/*/session/{names.MANIFEST}")
    return sorted(path.parent for pattern in patterns for path in directory.glob(pattern))


def newest_session(directory: Path) -> Path:
    """Return the session in `directory` that began last.

    Raises:
        SessionError: there is none.
    """
    began: list[tuple[int, Path]] = []
    for path in sessions_in(directory):
        with suppress(SessionError):
            began.append((read_manifest(path).started_ns, path))
    if not began:
        raise SessionError(
            f"there is no session in {directory.absolute()}",
            "make one with: iotrace run -- CMD, or name one",
        )
    return max(began)[1]


def session_of_timeline(path: Path) -> Path | None:
    """Return the session whose timeline `path` is (in ``SESSION/out``); None where it is none."""
    session = path.parent.parent
    written = path.parent.name == names.OUT and path.name == names.TIMELINE
    return session if written and (session / names.MANIFEST).is_file() else None


def list_sessions(directory: Path) -> Listing:
    """List the sessions in `directory`, and how each went."""
    sessions = [_listed(path, directory) for path in sessions_in(directory)]
    sessions.sort(key=lambda each: each.started_ns or 0, reverse=True)
    return Listing(schema_version=SCHEMA_VERSION, directory=str(directory), sessions=sessions)


def delete_sessions(directory: Path, wanted: Sequence[str]) -> None:
    """Delete the sessions in `directory` with these names in its list: all, or none where one must stay.

    Raises:
        SessionError: there is no such session, it is a link, it still runs, or the system refuses.
    """
    known = {each.name: each for each in list_sessions(directory).sessions}
    for name in wanted:
        each = known.get(name.rstrip("/"))
        if each is None:
            raise SessionError(
                f"there is no session {name} in {directory.absolute()}", "iotrace ls lists them"
            )
        if each.state in (RUNNING, UNKNOWN):
            raise SessionError(f"{name} is not deleted: it may still run", "end it, or delete it yourself")
        if os.path.islink(each.path):
            raise SessionError(f"{name} is not deleted: it is a link", "delete it yourself")
    for name in dict.fromkeys(name.rstrip("/") for name in wanted):
        try:
            shutil.rmtree(known[name].path)
        except OSError as error:
            raise SessionError(f"cannot delete {name}: {error.strerror}", "delete it yourself") from error


def _listed(path: Path, directory: Path) -> ListedSession:
    return listed(path, path.resolve().name if path == directory else str(path.relative_to(directory)))


def listed(path: Path, name: str) -> ListedSession:
    """Say how the session at `path` went, and what was kept of its report; `name` is what a list calls it."""
    try:
        launches = read_launches(path)
    except SessionError as error:
        return ListedSession(name=name, path=str(path), problem=str(error))
    first, state = launches[0], joint_state(launches)
    ends_ns = [launch.outcome.ended_ns for launch in launches if launch.outcome is not None]
    seconds = None
    if state == RUNNING:
        seconds = time.time() - first.manifest.started_ns / 1e9
    elif len(launches) == 1 and first.outcome is not None:
        seconds = first.outcome.duration_ns / 1e9
    elif len(ends_ns) == len(launches):
        seconds = (max(ends_ns) - first.manifest.started_ns) / 1e9
    files = list(_files(path))
    stored = _stored(path, files)
    return ListedSession(
        name=name,
        path=str(path),
        started_ns=first.manifest.started_ns,
        argv=first.manifest.argv,
        seconds=seconds,
        exit_code=joint_exit_code(launches),
        state=state,
        verdict=None if stored is None else stored.text,
        headline=None if stored is None else stored.headline,
        host=first.manifest.host,
        bytes=sum(size for _, size in files),
        commit=first.manifest.commit or None,
    )


def store_verdict(session: Path, text: str, iotrace_version: str, headline: Headline | None = None) -> None:
    """Keep what the report says of `session`, for lists."""
    readable = text.encode(errors="replace").decode()
    stored = StoredVerdict(readable, iotrace_version, _recorded(_files(session)), headline or Headline())
    write_document(session / names.OUT / names.VERDICT, stored)


def _stored(session: Path, files: list[tuple[str, int]]) -> StoredVerdict | None:
    """Return what is stored in `session`; None where it is for other data, or from another iotrace."""
    stored = read_document(session / names.OUT / names.VERDICT, StoredVerdict)
    if stored is None or stored.iotrace_version != __version__ or stored.recorded != _recorded(files):
        return None
    return stored


def _recorded(files: Iterable[tuple[str, int]]) -> Recorded:
    sizes = [size for path, size in files if not path.startswith(_BY_READERS)]
    return Recorded(len(sizes), sum(sizes))


def _files(directory: Path) -> Iterator[tuple[str, int]]:
    """Yield the relative path and the size of each file below `directory`, but of hidden ones."""
    top = os.path.join(directory, "")  # with the slash at its end
    for root, _, files in os.walk(top):
        for name in files:
            path = os.path.join(root, name)
            with suppress(OSError):  # renamed or deleted meanwhile
                if not name.startswith("."):
                    yield path[len(top) :], os.lstat(path).st_size
