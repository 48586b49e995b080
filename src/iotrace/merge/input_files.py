"""What a file is, by its content, and what has to be known of it before it is merged."""

from __future__ import annotations

import filecmp
import glob
import hashlib
import json
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from iotrace.errors import IotraceError
from iotrace.session import names
from iotrace.session.listing import session_of_timeline, session_title
from iotrace.sources.byte_stream import blocks
from iotrace.sources.xplane import XPLANE

if TYPE_CHECKING:  # it imports numpy and more
    from iotrace.analysis.rank import SessionAnalysis

CHROME, DFTRACER, SESSION = "chrome", "dftracer", "session"
_HEAD_BYTES = 1 << 20
_LOOK_BYTES = 1 << 16
_UTF16 = (b"\xff\xfe", b"\xfe\xff", b"{\0", b"[\0", b"\0{", b"\0[")
_TRACES = (".json", ".json.gz", ".pfw", ".pfw.gz", ".trace", ".json.1", XPLANE)
_AGAIN = ".trace.json.gz"


class MergeError(IotraceError):
    """Inputs that cannot be merged, or an output that cannot be written."""


class UnreadableError(MergeError):
    """An input that may be a trace, and cannot be read."""


@dataclass
class InputFile:
    """One input: where it is and what it is. Of a session, the rank that is called `session_rank`.

    `of_session`: it is a trace that lies in a session. `session` is what has been read of the rank's, if
    anything; its timeline then holds torch's traces. One process reads a session once in a `job`.
    """

    path: Path
    kind: str
    label: str
    session_rank: str = ""
    session: SessionAnalysis | None = None
    of_session: bool = False
    job: str = ""


def expand(patterns: Iterable[str], notes: list[str]) -> list[tuple[Path, bool]]:
    """Files and sessions that the arguments name, each once, and whether one was named itself.

    What lies in a directory may be something else than a trace. A timeline of ours leads to its session,
    which holds more: `notes` say so.
    """
    unique: dict[str, tuple[Path, bool]] = {}
    for pattern in patterns:
        try:
            for path, named in _named_by(pattern):
                session = session_of_timeline(path)
                if session is not None:
                    notes.append(f"{path} is a timeline of the session {session}: that is merged")
                meant = session or path
                real = os.path.realpath(meant)
                if named and unique.get(real, (path, False))[1]:
                    notes.append(f"{path} is named twice: merged once")
                unique.setdefault(real, (meant, named))
        except OSError as error:
            raise MergeError(f"{pattern} cannot be read: {error.strerror}") from error
    return list(unique.values())


def _named_by(pattern: str) -> list[tuple[Path, bool]]:
    path = Path(pattern)
    if path.is_dir():
        return _in_directory(path)
    if os.path.lexists(path):
        return [(path, True)]
    matches = sorted(Path(match) for match in glob.glob(pattern, recursive=True))
    if not matches:
        raise MergeError(
            f"{pattern} does not exist", "name a trace, a directory of traces, a pattern or a session"
        )
    paths = []
    for match in matches:
        paths += _in_directory(match) if match.is_dir() else [(match, False)]
    return paths


def _in_directory(path: Path) -> list[tuple[Path, bool]]:
    if (path / names.MANIFEST).exists():
        return [(path, True)]
    sessions = {item.parent for item in path.rglob(names.MANIFEST)}  # what lies in one is part of it
    traces = {item for item in path.rglob("*") if _is_trace(item) and sessions.isdisjoint(item.parents)}
    inside = sorted(sessions | traces)
    if not inside:
        raise MergeError(f"no traces in {path}", "they are called *.json, *.pfw (also .gz) or *.xplane.pb")
    return [(item, False) for item in inside]


def _is_trace(path: Path) -> bool:
    """Whether a file in a directory is a trace by its name. JAX writes a profile as JSON, too."""
    name = path.name
    again = name.endswith(_AGAIN) and path.with_name(name.removesuffix(_AGAIN) + XPLANE).exists()
    return name.endswith(_TRACES) and not again and not name.startswith(".") and not path.is_dir()


def identify(path: Path, problems: list[str], notes: list[str]) -> InputFile | None:
    """What `path` is; None where it is empty, as one of the lists then says; MergeError if it is no trace."""
    if path.is_dir():
        return InputFile(path, SESSION, session_title(path))
    if os.path.exists(path) and not os.path.isfile(path):
        raise MergeError(f"{path} is no regular file")
    try:
        with_problems: list[str] = []
        head = next(iter(blocks(path, with_problems)), b"")[:_HEAD_BYTES]
    except OSError as error:
        raise UnreadableError(f"{path} cannot be read: {error.strerror}") from error
    if not head.strip():
        # dftracer leaves empty files behind where a process forked and executed another program.
        residue = ".pfw" in path.name and not with_problems
        what = with_problems or ["it is empty"]
        (notes if residue else problems).extend(f"{path.name}: {problem}" for problem in what)
        return None
    kind = _kind(head)
    if kind is None and head.startswith(_UTF16):
        raise MergeError(
            f"{path} is text in UTF-16", "make it UTF-8 first, as traces are: iconv -f UTF-16 -t UTF-8"
        )
    if kind is None:
        raise MergeError(
            f"nothing is merged: {path} is no trace that iotrace merge knows",
            "it reads Chrome JSON (torch.profiler and others), .xplane.pb (JAX, TensorFlow), "
            "dftracer's .pfw, and sessions of iotrace run",
        )
    return InputFile(path, kind, path.name)


def _kind(head: bytes) -> str | None:
    text = head.lstrip(b"\xef\xbb\xbf \t\r\n\0")
    if _looks_like_dftracer(text):
        return DFTRACER
    if text[:1] == b"[" and text[1:].lstrip()[:1] in (b"{", b"]", b""):
        return CHROME
    if text[:1] == b"{" and (b'"traceEvents"' in text or (len(text) >= _HEAD_BYTES and b'"ph"' not in text)):
        return CHROME
    return None


def _looks_like_dftracer(text: bytes) -> bool:
    """One object a line, without commas between them (1.x and dftracer_split open with a bracket)."""
    lines = [line for line in text[:200_000].splitlines() if line.strip() not in (b"", b"[", b"]")][:20]
    if len(text) > 200_000 and len(lines) < 20:
        lines = lines[:-1]
    count = 0
    for line in lines:
        try:
            value = json.loads(line.strip().rstrip(b",").decode(errors="replace"), strict=False)
        except (ValueError, RecursionError):
            continue
        if not isinstance(value, dict) or "ph" not in value:
            return False
        if line.rstrip().endswith(b","):
            return False
        if (
            isinstance(value["ph"], int)
            or value.get("cat") == "dftracer"
            or "hhash" in str(value.get("args"))
        ):
            return True
        count += 1
    return count >= 2


def each_once(files: list[InputFile], notes: list[str]) -> list[InputFile]:
    """Without files of the same content: a session holds copies of the traces that its program exported."""
    kept: list[InputFile] = []
    looks: dict[tuple[int, bytes], list[InputFile]] = {}
    for file in files:
        if file.kind != SESSION:
            alike = looks.setdefault(_fingerprint(file.path), [])
            same = next((other for other in alike if filecmp.cmp(other.path, file.path, shallow=False)), None)
            if same is not None:
                notes.append(f"{file.path} and {same.path} are the same: merged once")
                continue
            alike.append(file)
        kept.append(file)
    return kept


def _fingerprint(path: Path) -> tuple[int, bytes]:
    """What files of the same content have in common, and few others."""
    with path.open("rb") as file:
        return path.stat().st_size, hashlib.blake2b(file.read(_LOOK_BYTES), digest_size=16).digest()
