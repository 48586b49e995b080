"""The differences of two folders of results, case by case."""

from __future__ import annotations

import difflib
import gzip
import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tools.golden_cases.write import MARKER

_SHOWN = 12  # differences of a file


def compare(first: Path, second: Path) -> Iterator[tuple[str, list[str]]]:
    """Each result that differs, and lines that say how."""
    in_first, in_second = _results(first), _results(second)
    for name in sorted(in_first.keys() | in_second.keys()):
        if name not in in_second:
            yield name, [f"only in {first}"]
        elif name not in in_first:
            yield name, [f"only in {second}"]
        else:
            a, b = _data(in_first[name]), _data(in_second[name])
            if a != b:
                lines = list(_differences(name, a, b))
                more = [f"... and {len(lines) - _SHOWN} more"] if len(lines) > _SHOWN else []
                yield name, lines[:_SHOWN] + more


def _results(directory: Path) -> dict[str, Path]:
    if not (directory / MARKER).exists():
        raise SystemExit(f"golden: {directory} holds no results of tools/golden write")
    found = (path for path in directory.rglob("*") if path.is_file() and path.name != MARKER)
    return {str(path.relative_to(directory)).removesuffix(".gz"): path for path in found}


def _data(path: Path) -> bytes:
    data = path.read_bytes()
    return gzip.decompress(data) if path.suffix == ".gz" else data


def _differences(name: str, a: bytes, b: bytes) -> Iterator[str]:
    if name.endswith(".pftrace"):
        yield f"bytes differ: {len(a)} against {len(b)}"
        return
    first, second = a.decode().splitlines(), b.decode().splitlines()
    documents = _document(first), _document(second)
    if None not in documents:
        yield from _outside(first, second)
        yield from values(documents[0], documents[1])
    elif ".json" in name:
        yield from _multisets(first, second)
    else:
        yield from _texts(first, second)


def _document(lines: list[str]) -> Any:
    """The JSON that a command printed, None where it printed none."""
    if "--- stdout" not in lines:
        return None
    start = lines.index("--- stdout") + 1
    end = lines.index("--- stderr") if "--- stderr" in lines else len(lines)
    try:
        return json.loads("\n".join(lines[start:end]).replace("<seconds>", "0"))
    except ValueError:
        return None


def _outside(first: list[str], second: list[str]) -> Iterator[str]:
    """What differs beside the JSON: exit codes, standard error."""
    for lines in (first, second):
        end = lines.index("--- stderr") if "--- stderr" in lines else len(lines)
        del lines[lines.index("--- stdout") : end]
    yield from _texts(first, second)


def values(a: Any, b: Any, path: str = "") -> Iterator[str]:
    """Where two JSON values differ, by path."""
    if isinstance(a, dict) and isinstance(b, dict):
        for key in [*a, *(key for key in b if key not in a)]:
            inner = f"{path}.{key}".lstrip(".")
            if key not in b:
                yield f"{inner}: {_short(a[key])} -> (absent)"
            elif key not in a:
                yield f"{inner}: (absent) -> {_short(b[key])}"
            else:
                yield from values(a[key], b[key], inner)
    elif isinstance(a, list) and isinstance(b, list):
        if len(a) != len(b):
            yield f"{path}: {len(a)} -> {len(b)} elements"
        for index, (one, other) in enumerate(zip(a, b, strict=False)):
            yield from values(one, other, f"{path}[{index}]")
    elif a != b or type(a) is not type(b):
        yield f"{path}: {_short(a)} -> {_short(b)}"


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 200 else f"{text[:200]}..."


def _multisets(first: list[str], second: list[str]) -> Iterator[str]:
    """Lines of one that the other does not have, by how often they occur."""
    a, b = Counter(first), Counter(second)
    less, more = list((a - b).elements()), list((b - a).elements())
    if less or more:
        yield f"lines: {len(less)} of {len(first)} gone, {len(more)} of {len(second)} new"
    for sign, lines in (("-", less), ("+", more)):
        yield from (f"{sign} {line[:300]}" for line in lines[:5])


def _texts(first: list[str], second: list[str]) -> Iterator[str]:
    for line in difflib.unified_diff(first, second, lineterm="", n=0):
        if not line.startswith(("---", "+++", "@@")):
            yield line
