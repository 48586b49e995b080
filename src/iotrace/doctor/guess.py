"""Guess from the command's words, without running it: workers, ranks and data."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

_WORKERS = re.compile(r"(?!.*persistent)(?:.*[-_.])?(?:num)?workers(?:\.[\w.]+)?")
_RANKS = re.compile(r"-{1,2}nproc[-_]per[-_]node")


def workers_of(command: list[str]) -> int | None:
    """Return how many loader workers the words ask for (``--workers 4``, ``num_workers=4``), if any."""
    return max(_numbers(command, _WORKERS), default=None)


def ranks_of(command: list[str]) -> int:
    """Return how many training processes the command starts on this host, by torchrun's option."""
    return max([1, *_numbers(command, _RANKS)])


def data_of(command: list[str], directory: Path) -> Path | None:
    """Guess the data: the existing path after an option with ``data`` in its name, else ``data`` here."""
    named = [value for name, value in _settings(command) if value and "data" in name.lower()]
    return next((Path(path) for path in (*named, "data") if (directory / path).exists()), None)


def _numbers(command: list[str], option: re.Pattern[str]) -> list[int]:
    settings = _settings(command)
    return [int(value) for name, value in settings if option.fullmatch(name) and value.isdecimal()]


def _settings(command: list[str]) -> Iterator[tuple[str, str]]:
    """Yield pairs of an option's name and its value, which follows ``=`` or is the next word."""
    for word, following in pairwise([*command, ""]):
        name, equals, value = word.partition("=")
        if equals or word.startswith("-"):
            yield name, value if equals else following
