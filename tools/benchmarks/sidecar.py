"""What the telemetry sidecar takes: its own account of its CPU time, beside nine processes that rest."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from tools.benchmarks.variants import TELEMETRY, environment_of

from iotrace.launch.telemetry.start import DEFAULT_INTERVAL_MS, start
from iotrace.session import names

_WORKERS = 8
_SECONDS = 12
_PROGRAM = f"""
import os, time
for _ in range({_WORKERS}):
    if os.fork() == 0:
        time.sleep({_SECONDS})
        os._exit(0)
time.sleep({_SECONDS})
"""


def sidecar_cost() -> dict[str, Any]:
    """CPU ms of its start and first sample, then per cent of a core, at the default interval."""
    with tempfile.TemporaryDirectory(prefix="iotrace-bench-") as scratch:
        session = (Path(scratch) / "session").resolve()
        environment = environment_of(TELEMETRY, session)
        sidecar = start(session, DEFAULT_INTERVAL_MS)
        subprocess.run([sys.executable, "-IS", "-c", _PROGRAM], env=environment, check=True)
        sidecar.release()
        (path,) = session.glob(f"{names.TELEMETRY}/*/{names.RECORDS}")
        records = [json.loads(line) for line in path.read_text().splitlines()]
    seen = sum(record["type"] == "process" for record in records)
    if seen != 1 + _WORKERS:
        raise SystemExit(f"tools/bench: the sidecar saw {seen} processes instead of {1 + _WORKERS}")
    marks = [
        (record["clock"][0], record["sampler_cpu_ns"]) for record in records if record["type"] == "system"
    ]
    # The second is of the first whole second; the last, of when everything has ended.
    (begin_ns, before_ns), (end_ns, after_ns) = marks[1], marks[-2]
    return {
        "processes": seen,
        "interval_ms": DEFAULT_INTERVAL_MS,
        "start_ms": marks[0][1] / 1e6,
        "core_pct": 100 * (after_ns - before_ns) / (end_ns - begin_ns),
    }
