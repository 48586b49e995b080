"""What lies below the served directories: found by walking them, never by a path that a request names."""

from __future__ import annotations

import gzip
import os
import stat
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from iotrace.session import names
from iotrace.session.reading import open_regular

SESSION, SWEEP, TUNE, TRACE, CLOSED = "session", "sweep", "tune", "trace", "closed"
_MOST_DEPTH = 12
_LOOK_BYTES = 4096
_SUFFIXES = (".json", ".json.gz")
# What torch.profiler writes first; another program's events are no trace that a report is made of.
_TRACE_WORDS = (b'"traceEvents"', b'"deviceProperties"', b'"schemaVersion"', b'"baseTimeNanoseconds"')


class Place(NamedTuple):
    """Something to show: its `key` names it in addresses, and is valid text whatever its path is."""

    key: str
    kind: str
    path: Path


class Places:
    """Walks the directories; follows no link below them. Files that are no traces are looked into once."""

    def __init__(self, roots: Sequence[Path]) -> None:
        self.roots = [root.resolve() for root in roots]
        self._traces: dict[tuple[str, int, int], bool] = {}

    def walk(self) -> Iterator[Place]:
        """Yield what is there now."""
        for number, root in enumerate(self.roots):
            prefix = "" if len(self.roots) == 1 else f"{number + 1}-{root.name}"
            for kind, path in self._below(str(root), _MOST_DEPTH):
                relative = os.path.relpath(path, root)
                own = (prefix or root.name) if relative == "." else f"{prefix}/{relative}".lstrip("/")
                yield Place(os.fsencode(own).decode(errors="backslashreplace"), kind, Path(path))

    def _below(self, directory: str, depth: int) -> Iterator[tuple[str, str]]:
        """Yield kinds and paths; a session holds no others, a sweep holds those of its runs."""
        try:
            with os.scandir(directory) as found:
                entries = sorted(found, key=lambda each: each.name)
        except OSError:
            yield CLOSED, directory
            return
        inside = {each.name for each in entries}
        if names.MANIFEST in inside:
            yield SESSION, directory
            return
        for kind, result in ((SWEEP, names.SWEEP_RESULT), (TUNE, names.TUNE_RESULT)):
            if result in inside:
                yield kind, directory
        for each in entries:
            if each.name.startswith("."):
                continue
            try:
                if each.is_dir(follow_symlinks=False):
                    if depth and each.name != "node_modules":
                        yield from self._below(each.path, depth - 1)
                elif each.name.endswith(_SUFFIXES) and self._is_trace(each):
                    yield TRACE, each.path
            except OSError:  # deleted meanwhile
                continue

    def _is_trace(self, entry: os.DirEntry[str]) -> bool:
        status = entry.stat(follow_symlinks=False)
        if not stat.S_ISREG(status.st_mode):
            return False
        known = entry.path, status.st_mtime_ns, status.st_size
        if known not in self._traces:
            self._traces[known] = _looks_like_a_trace(Path(entry.path))
        return self._traces[known]


def _looks_like_a_trace(path: Path) -> bool:
    try:
        with open_regular(path, inside=True) as file:
            if path.suffix == ".gz":
                with gzip.open(file) as unpacked:
                    begin = unpacked.read(_LOOK_BYTES)
            else:
                begin = file.read(_LOOK_BYTES)
    except (OSError, EOFError, zlib.error):
        return False
    return any(word in begin for word in _TRACE_WORDS)
