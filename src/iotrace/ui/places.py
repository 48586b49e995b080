"""What lies below the served directories: found by walking them, never by a path that a request names."""

from __future__ import annotations

import gzip
import os
import re
import stat
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from iotrace.session import names
from iotrace.session.reading import open_regular
from iotrace.session.serving import MOST_DEPTH, find_key, prefixes

SESSION, SWEEP, TUNE, TRACE, CLOSED = "session", "sweep", "tune", "trace", "closed"
BASELINE = "baseline"  # a report that `iotrace check --save-baseline` wrote, or `iotrace report --json`
_LOOK_BYTES = 4096
_SUFFIXES = (".json", ".json.gz")
# What torch.profiler writes first; another program's events are no trace that a report is made of.
_TRACE_WORDS = (b'"traceEvents"', b'"deviceProperties"', b'"schemaVersion"', b'"baseTimeNanoseconds"')
_REPORT = re.compile(rb'\s*\{\s*"schema_version"\s*:\s*\d+\s*,\s*"session"\s*:\s*\{')


class Place(NamedTuple):
    """Something to show: its `key` names it in addresses, and is valid text whatever its path is.

    `in_series`: a run of a sweep, a tune or a trial, which differs from the others by what was tried.
    """

    key: str
    kind: str
    path: Path
    in_series: bool = False


class Places:
    """Walks the directories; follows no link below them. Each file is looked into once."""

    def __init__(self, roots: Sequence[Path]) -> None:
        self.roots = [root.resolve() for root in roots]
        self._kinds: dict[tuple[str, int, int], str | None] = {}

    def walk(self) -> Iterator[Place]:
        """Yield what is there now."""
        for root, prefix in zip(self.roots, prefixes(self.roots), strict=True):
            for kind, path, in_series in self._below(str(root), MOST_DEPTH, in_series=False):
                if (key := find_key(Path(path), root, prefix)) is not None:
                    yield Place(key, kind, Path(path), in_series)

    def _below(self, directory: str, depth: int, *, in_series: bool) -> Iterator[tuple[str, str, bool]]:
        """Yield kinds and paths, and whether a series holds them; a session holds no others."""
        try:
            with os.scandir(directory) as listing:
                entries = sorted(listing, key=lambda each: each.name)
        except OSError:
            yield CLOSED, directory, in_series
            return
        inside = {each.name for each in entries}
        if names.MANIFEST in inside:
            yield SESSION, directory, in_series
            return
        for kind, result in ((SWEEP, names.SWEEP_RESULT), (TUNE, names.TUNE_RESULT)):
            if result in inside:
                yield kind, directory, in_series
        in_series = in_series or not inside.isdisjoint(names.OF_SERIES)
        for each in entries:
            if each.name.startswith("."):
                continue
            try:
                if each.is_dir(follow_symlinks=False):
                    if depth and each.name != "node_modules":
                        yield from self._below(each.path, depth - 1, in_series=in_series)
                elif each.name.endswith(_SUFFIXES) and (found_kind := self._kind(each)) is not None:
                    yield found_kind, each.path, in_series
            except OSError:  # deleted meanwhile
                continue

    def _kind(self, entry: os.DirEntry[str]) -> str | None:
        status = entry.stat(follow_symlinks=False)
        if not stat.S_ISREG(status.st_mode):
            return None
        known = entry.path, status.st_mtime_ns, status.st_size
        if known not in self._kinds:
            self._kinds[known] = _tell_kind(Path(entry.path))
        return self._kinds[known]


def _tell_kind(path: Path) -> str | None:
    try:
        with open_regular(path, inside=True) as file:
            if path.suffix == ".gz":
                with gzip.open(file) as unpacked:
                    begin = unpacked.read(_LOOK_BYTES)
            else:
                begin = file.read(_LOOK_BYTES)
    except (OSError, EOFError, zlib.error):
        return None
    if _REPORT.match(begin) and path.suffix == ".json":
        return BASELINE
    return TRACE if any(word in begin for word in _TRACE_WORDS) else None
