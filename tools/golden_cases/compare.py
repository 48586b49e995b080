"""The differences of two folders of results, case by case."""

from __future__ import annotations

import gzip
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from tools.golden_cases import differences, normal
from tools.golden_cases.native import decoded
from tools.golden_cases.write import MARKER

_SHOWN = 12  # differences of a result


def compare(
    first: Path, second: Path, wanted: Callable[[str], bool], words: bool = True
) -> Iterator[tuple[str, list[str]]]:
    """Each wanted result that differs, and lines that say how.

    Without `words` sentences are compared by the numbers in them.
    """
    in_first, in_second = _results(first), _results(second)
    for name in filter(wanted, sorted(in_first.keys() | in_second.keys())):
        if name not in in_second:
            yield name, [f"only in {first}"]
        elif name not in in_first:
            yield name, [f"only in {second}"]
        else:
            lines = list(_compare(name, in_first[name], in_second[name], words))
            more = [f"... and {len(lines) - _SHOWN} more"] if len(lines) > _SHOWN else []
            if lines:
                yield name, lines[:_SHOWN] + more


def _results(directory: Path) -> dict[str, Path]:
    if not (directory / MARKER).exists():
        raise SystemExit(f"golden: {directory} holds no results of tools/golden write")
    found = (path for path in directory.rglob("*") if path.is_file() and not path.name.startswith("."))
    return {str(path.relative_to(directory)).removesuffix(".gz"): path for path in found}


def _compare(name: str, first: Path, second: Path, words: bool) -> Iterator[str]:
    a, b = _data(first), _data(second)
    if a == b:
        return
    if name.endswith(".pftrace"):
        a, b = _decoded(first, a), _decoded(second, b)
    one, other = a.decode(), b.decode()
    if name.endswith("/printed.txt"):
        yield from differences.printed(one, other, words)
    elif ".json" in name or name.endswith((".pftrace", ".pfw.txt")):
        lines = [normal.without_version(text.splitlines()) for text in (one, other)]
        yield from differences.multisets(*(lines if words else map(normal.without_words, lines)))
    else:
        yield from differences.texts(one.splitlines(), other.splitlines(), words)


def _data(path: Path) -> bytes:
    data = path.read_bytes()
    return gzip.decompress(data) if path.suffix == ".gz" else data


def _decoded(path: Path, data: bytes) -> bytes:
    """A native trace as text. It is kept beside the trace: decoding takes seconds."""
    kept = path.with_name(f".{path.name}.txt.gz")
    if kept.exists() and kept.stat().st_mtime_ns > path.stat().st_mtime_ns:
        return gzip.decompress(kept.read_bytes())
    with tempfile.NamedTemporaryFile(suffix=".pftrace") as plain:
        plain.write(data)
        plain.flush()
        try:
            text = decoded(Path(plain.name)).encode()
        except AssertionError as error:
            return f"Perfetto cannot read it: {error}\n".encode()
    kept.write_bytes(gzip.compress(text, 1))
    return text
