"""How two results differ, in lines to read."""

from __future__ import annotations

import difflib
import json
import re
from collections import Counter
from collections.abc import Iterator
from typing import Any

_EXAMPLES = 5
_NUMBER = re.compile(r"\d[\d.,]*(?:e[+-]?\d+)?")


def printed(first: str, second: str, words: bool = True) -> Iterator[str]:
    """What a command printed: JSON by path, all else by line."""
    beside_first, one = _document(first)
    beside_second, other = _document(second)
    if one is None or other is None:
        yield from texts(first.splitlines(), second.splitlines(), words)
        return
    yield from texts(beside_first, beside_second, words)
    yield from values(one, other, words=words)


def _document(text: str) -> tuple[list[str], Any]:
    """The lines beside the JSON on standard output, and the JSON, None where there is none."""
    head, found, rest = text.partition("\n--- stdout\n")
    output, _, errors = rest.partition("\n--- stderr\n")
    try:
        document = json.loads(output.replace("<seconds>", "0")) if found else None
    except ValueError:
        document = None
    return [*head.splitlines(), *errors.splitlines()], document


def values(a: Any, b: Any, path: str = "", words: bool = True) -> Iterator[str]:
    """Where two JSON values differ, by path."""
    if isinstance(a, dict) and isinstance(b, dict):
        for key in [*a, *(key for key in b if key not in a)]:
            inner = f"{path}.{key}".lstrip(".")
            if key == "bytes_written" and not words:  # sentences are part of a merged file
                continue
            if key not in b:
                yield f"{inner}: {_short(a[key])} -> (absent)"
            elif key not in a:
                yield f"{inner}: (absent) -> {_short(b[key])}"
            else:
                yield from values(a[key], b[key], inner, words)
        if a.keys() == b.keys() and list(a) != list(b):
            yield f"{path}: the keys' order: {', '.join(a)} -> {', '.join(b)}"
    elif isinstance(a, list) and isinstance(b, list):
        if len(a) != len(b):
            yield f"{path}: {len(a)} -> {len(b)} elements"
        for index, (one, other) in enumerate(zip(a, b, strict=False)):
            yield from values(one, other, f"{path}[{index}]", words)
    elif (a != b or type(a) is not type(b)) and not (not words and _same_figures(a, b)):
        yield f"{path}: {_short(a)} -> {_short(b)}"


def _same_figures(a: Any, b: Any) -> bool:
    """Whether two sentences (texts with a blank) hold the same numbers."""
    if not (isinstance(a, str) and isinstance(b, str) and " " in a and " " in b):
        return False
    return _numbers([a]) == _numbers([b])


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 200 else f"{text[:200]}..."


def multisets(first: list[str], second: list[str]) -> Iterator[str]:
    """Lines of one that the other does not have as often."""
    a, b = Counter(first), Counter(second)
    less, more = sorted((a - b).elements()), sorted((b - a).elements())
    if less or more:
        yield f"lines: {len(less)} of {len(first)} gone, {len(more)} of {len(second)} new"
    for sign, lines in (("-", less), ("+", more)):
        yield from (f"{sign} {line[:300]}" for line in lines[:_EXAMPLES])


def texts(first: list[str], second: list[str], words: bool = True) -> Iterator[str]:
    """Lines that differ; without `words` nothing where the numbers are the same, in the same order."""
    if not words and _numbers(first) == _numbers(second):
        return
    for line in difflib.unified_diff(first, second, lineterm="", n=0):
        if not line.startswith(("---", "+++", "@@")):
            yield line


def _numbers(lines: list[str]) -> list[str]:
    return [number.rstrip(".,") for line in lines for number in _NUMBER.findall(line)]
