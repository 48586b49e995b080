"""Where a key's value is in a YAML file, of plain block mappings; in anything else nothing is found.

A file is read line by line, so that what surrounds a value stays as it is, and no YAML library is needed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

_LARGEST = 4 << 20
_KEY = re.compile(r"""^(?P<indent> *)(?P<key>[\w./@-]+|"[^"\\]*"|'[^']*') *:(?: +(?P<value>.*))?$""")
_SCALAR = re.compile(r"""(?P<value>[\w.+/-]+|"[^"\\]*"|'[^']*')(?P<rest>\s*(?:\s#.*)?)$""")
_PAIR = re.compile(r"""\s*(?P<key>[\w./@-]+)\s*:\s+(?P<value>[\w.+/-]+|"[^"\\]*"|'[^']*')\s*(?:,|$)""")
_WORDS = {"true": "True", "yes": "True", "on": "True", "false": "False", "no": "False", "off": "False"}
_WRITTEN = {"True": "true", "False": "false", "None": "null"}


class Scalar(NamedTuple):
    """A value in the file's text; `value` as Python writes it."""

    start: int
    end: int
    value: str


class YamlFile:
    """The lines of a YAML file; none where it cannot be read, or is not UTF-8."""

    def __init__(self, path: Path) -> None:
        self.path, self.text = path, ""
        try:
            if path.stat().st_size <= _LARGEST:
                self.text = path.read_bytes().decode()
        except (OSError, ValueError):
            pass

    def find(self, keys: Sequence[str]) -> Scalar | None:
        """Return the value of ``a.b.c``; None where the file has none, or it is not sure which."""
        values = [value for path, value in self.values() if path == tuple(keys)]
        return values[0] if len(values) == 1 else None

    def entries(self, key: str) -> list[tuple[str, str]]:
        """Return the ``- name: value`` of a list at the top, as Hydra's defaults."""
        entries, inside = [], False
        for line in self.text.splitlines():
            if match := re.match(rf"{key}:\s*(#.*)?$", line):
                inside = bool(match)
            elif inside and (entry := re.match(r"\s*- +([\w./-]+): +([\w./-]+)\s*(#.*)?$", line)):
                entries.append((entry[1], entry[2]))
            elif line[:1] not in ("", " ", "-", "#"):
                inside = False
        return entries

    def values(self) -> Iterator[tuple[tuple[str, ...], Scalar | None]]:
        """Yield the keys that have a value in their line: a scalar, or None of what is another."""
        above: list[tuple[int, str]] = []  # the mappings around a line: their indentation and key
        block: int | None = None  # the indentation of a key whose value is a text of many lines
        at = 0
        for line in self.text.split("\n"):
            start, at = at, at + len(line) + 1
            bare = line.rstrip("\r")
            indent = len(bare) - len(bare.lstrip(" "))
            if not bare.strip() or bare.lstrip().startswith("#"):
                continue
            if block is not None and indent > block:
                continue
            block = None
            while above and above[-1][0] >= indent:
                above.pop()
            match = _KEY.match(bare)
            if match is None:  # an entry of a list, and what is below it: no key of ours
                above.append((indent, ""))
                continue
            key = match["key"].strip("\"'")
            value = (match["value"] or "").strip()
            path = (*(name for _, name in above), key)
            above.append((indent, key))
            if value[:1] in ("|", ">"):
                block = indent
            elif pairs := list(_pairs(value, start + match.start("value"))):
                yield from (((*path, name), scalar) for name, scalar in pairs)
            elif value and not value.startswith("#"):
                yield path, _scalar(value, start + match.start("value"), match["value"])


def _pairs(value: str, start: int) -> Iterator[tuple[str, Scalar]]:
    """Yield the entries of a mapping in one line, ``{a: 1, b: 2}``, where all of them are scalars."""
    inner = re.fullmatch(r"\{([^{}\[\]#&*]*)\}\s*(?:\s#.*)?", value)
    pairs, at = [], 0
    while inner is not None and (match := _PAIR.match(inner[1], at)):
        at = match.end()
        pairs.append((match["key"], _as_scalar(match["value"], start + 1 + match.start("value"))))
    if inner is not None and not inner[1][at:].strip():
        yield from pairs


def _as_scalar(said: str, start: int) -> Scalar:
    return Scalar(start, start + len(said), _WORDS.get(said.lower(), said.strip("\"'")))


def _scalar(value: str, start: int, raw: str) -> Scalar | None:
    match = _SCALAR.match(value)
    if match is None:
        return None
    return _as_scalar(match["value"], start + len(raw) - len(raw.lstrip()))


def written(value: str) -> str:
    """Write a Python value as YAML does."""
    return _WRITTEN.get(value, value.strip("\"'"))
