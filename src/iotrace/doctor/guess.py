"""Guess from the command's words, without running it: workers, ranks and data."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

# The last words of an option's name, split at its dots, dashes and underscores.
_DATA = frozenset(
    {"data", "dataset", "datasets", "dataroot", "datadir", "traindir", "train", "input", "inputs"}
)
_DIRECTORY = frozenset({"dir", "path", "root", "file", "files", "folder", "directory"})
_NO_DATA = frozenset(
    {"log", "logs", "logdir", "logging", "out", "output", "outputs", "save", "checkpoint", "checkpoints"}
    | {"ckpt", "cache", "tmp", "temp", "run", "runs", "result", "results", "resume", "config", "venv"}
    | {"pythonpath", "home", "profile", "trace"}
)
_CODE = frozenset({".py", ".sh", ".yaml", ".yml", ".toml", ".json", ".cfg", ".ini"})
_WORKERS = re.compile(r"((?:.*[-_.])?(?:num)?)workers(?:\.[\w.]+)?")
_RANKS = re.compile(r"-{1,2}nproc[-_]per[-_]node")
_MODULE = re.compile(r"-[A-Za-z]*m")
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=")
_NUMBER = re.compile(r"\d{1,9}")


def workers_of(command: list[str]) -> int | None:
    """Return how many loader workers the words ask for (``--workers 4``, ``num_workers=4``), if any."""
    less_clear = None
    for name, value in _settings(command):
        match = _WORKERS.fullmatch(name)
        if match is None or not _NUMBER.fullmatch(value):
            continue
        before = _parts(match[1])[-1:]
        if before == ["num"]:
            return int(value)
        if less_clear is None and before != ["persistent"]:
            less_clear = int(value)
    return less_clear


def ranks_of(command: list[str]) -> int:
    """Return how many training processes the command starts on this host, by torchrun's option."""
    for name, value in _settings(command):
        if _RANKS.fullmatch(name) and _NUMBER.fullmatch(value):
            return max(1, int(value))
    return 1


def data_of(command: list[str], directory: Path) -> Path | None:
    """Guess the data: the existing path that an option named like data has as its value; else the first
    argument or other option's value that exists; else ``data`` in this directory.
    """
    settings = list(_settings(_arguments(command)))
    named = [value for name, value in settings if _names_data(name)]
    others = [value for name, value in settings if not _NO_DATA & set(_parts(name))]
    for text in (*named, *others):
        path = directory / text
        if text and not text.startswith("-") and path.suffix not in _CODE and _is_data(path):
            return Path(text)
    return Path("data") if (directory / "data").is_dir() else None


def _settings(command: list[str]) -> Iterator[tuple[str, str]]:
    """Yield pairs of an option's name and its value; a plain word is a value without a name.

    What follows an ``--option`` counts as its value, although the option may be a flag.
    """
    after_option = False
    for word, following in pairwise([*command[1:], ""]):
        name, equals, value = word.partition("=")
        if equals and (word.startswith("-") or "/" not in name):
            yield name, value
        elif word.startswith("-"):
            yield word, following
            after_option = not following.startswith("-")
            continue
        elif not after_option:
            yield "", word
        after_option = False


def _arguments(command: list[str]) -> list[str]:
    """Return `command` without the assignments of env, and without the name of a module that Python runs."""
    rest = list(command)
    if rest and os.path.basename(rest[0]) == "env":
        while len(rest) > 1 and _ASSIGNMENT.match(rest[1]):
            del rest[1]
    module = next((index for index, word in enumerate(rest) if _MODULE.fullmatch(word)), len(rest))
    return [*rest[:module], *rest[module + 2 :]]


def _names_data(name: str) -> bool:
    parts = _parts(name)
    while parts and parts[-1] in _DIRECTORY:
        parts.pop()
    return bool(parts) and parts[-1] in _DATA


def _parts(name: str) -> list[str]:
    return [part for part in re.split(r"[-_.]+", name.lower()) if part]


def _is_data(path: Path) -> bool:
    """Say whether `path` exists and is not a program."""
    return os.path.exists(path) and not (path.is_file() and os.access(path, os.X_OK))
