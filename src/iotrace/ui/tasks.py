"""What the server asks of the process that analyses, and what that answers: plain data, as JSON.

An answer is kept as long as `hash_content` tells no change of what it was made from.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from iotrace.analysis.compare.results import Standing
from iotrace.session import names
from iotrace.session.listing import Headline
from iotrace.viewer.view import View

REPORT, COMPARISON, TIMELINE, SWEEP, HISTORY = "report", "comparison", "timeline", "sweep", "history"
CHECK = "check"
PAGE, DONE, TRACE, REPORT_JSON = "page.html", "done.json", "timeline.pftrace", "report.json"
_Kind = TypeVar("_Kind")


class Task(msgspec.Struct, frozen=True, kw_only=True):
    """What to make of `paths`: sessions, or traces where `traces` says so. `at` chooses a timeline's view.

    `timelines` are the addresses of the timelines of the runs on the page.
    `baselines` are reports that were kept: what to check a session against, or what to show.
    """

    kind: str
    paths: list[str] = []
    traces: bool = False
    baselines: list[str] = []
    timelines: list[str] = []
    at: dict[str, str] = {}


class Shown(msgspec.Struct, frozen=True, kw_only=True):
    """A table of a view as its tab shows it; `looks`: each row's place in the timeline, as (--around, 7).

    `meanings`: headings, and what the columns below them mean.
    """

    title: str
    headings: list[str]
    texts: list[bool]
    rows: list[list[str]]
    more: int = 0
    unknown: str = ""
    notes: list[str] = []
    looks: list[list[str]] = []
    meanings: list[tuple[str, str]] = []


class Judged(msgspec.Struct, frozen=True, kw_only=True):
    """A run of a history: what its report says, and how it compares with those before it."""

    path: str
    verdict: str
    headline: Headline
    standing: Standing


class Said(msgspec.Struct, frozen=True, kw_only=True):
    """What a check says: lines with their labels, then tables."""

    tone: str
    text: str
    lines: list[tuple[str, str]]
    tables: list[Shown]
    command: str


class Done(msgspec.Struct, frozen=True, kw_only=True):
    """How a task ended: `problem` says why nothing was made."""

    problem: str = ""
    verdict: str = ""
    headline: Headline = Headline()
    views: list[str] = []
    view: View | None = None
    judged: list[Judged] = []
    said: Said | None = None


def encoded(value: Any) -> bytes:
    """Return `value` as JSON in ASCII: the name of a file may be any bytes."""
    return json.dumps(msgspec.to_builtins(value)).encode()


def decoded(data: bytes, kind: type[_Kind]) -> _Kind:
    """Undo `encoded`.

    Raises:
        ValueError: it is no JSON, or of another kind.
    """
    return msgspec.convert(json.loads(data), kind)


def hash_content(paths: Iterable[Path]) -> bytes:
    """Hash the files' names, sizes and times; what readers make of a session is no part."""
    digest = hashlib.sha256()
    for path in paths:
        tree = os.walk(path) if path.is_dir() else iter([(str(path.parent), list[str](), [path.name])])
        for root, directories, files in tree:
            if Path(root) == path and names.OUT in directories:
                directories.remove(names.OUT)
            directories.sort()
            for name in sorted(set(files) - {names.COSTS, names.FILES}):
                with suppress(OSError):  # deleted meanwhile
                    status = os.lstat(os.path.join(root, name))
                    line = f"{name}\0{status.st_size}\0{status.st_mtime_ns}\0"
                    digest.update(os.fsencode(os.path.join(root, "")) + os.fsencode(line))
    return digest.digest()
