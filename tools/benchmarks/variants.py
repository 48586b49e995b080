"""The same command bare, with each source alone, with both, and under `iotrace run`."""

from __future__ import annotations

import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from iotrace.launch import posix
from iotrace.launch.capture import own_python, traced_environment
from iotrace.session import names

BARE, AGENT, POSIX, BOTH, RUN = "bare", "agent", "posix", "both", "run"


@dataclass(frozen=True)
class Sample:
    """One run. `report_s`: what `iotrace run` took before and after the command; None without it."""

    wall_s: float
    cpu_s: float | None
    report_s: float | None = None


def environment_of(variant: str, session: Path) -> dict[str, str]:
    """The command's environment with these sources; they write below `session`."""
    bare = {key: value for key, value in os.environ.items() if key != names.SETTINGS_VARIABLE}
    if variant == BARE:
        return bare
    for part in (names.PROCESSES, names.POSIX):
        (session / part).mkdir(parents=True, exist_ok=True)
    capture = posix.plan([*posix.python_directories(sys.executable), *own_python()], [])
    if capture.why_not and variant != AGENT:
        raise SystemExit(f"tools/bench: {capture.why_not}: {capture.remedy}")
    both = traced_environment(bare, capture, session, {})
    added = {key: value for key, value in both.items() if bare.get(key) != value}
    of_dftracer = {key for key in added if key.startswith("DFTRACER") or key == "LD_PRELOAD"}
    if variant == AGENT:
        return {**bare, **{key: added[key] for key in added.keys() - of_dftracer}}
    return {**bare, **{key: added[key] for key in of_dftracer}} if variant == POSIX else both


def measure(variant: str, command: list[str], directory: Path) -> Sample:
    """Run `command` once in `directory`; SystemExit with its last words if it fails."""
    with tempfile.TemporaryDirectory(prefix="iotrace-bench-") as scratch:
        session = Path(scratch) / "session"
        line = command
        if variant == RUN:
            line = [sys.executable, "-m", "iotrace", "run", "-o", str(session), "--", *command]
        environment = environment_of(BARE if variant == RUN else variant, session)
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        start = time.monotonic()
        done = subprocess.run(line, cwd=directory, env=environment, capture_output=True, text=True)
        wall_s = time.monotonic() - start
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        if done.returncode:
            raise SystemExit(f"tools/bench: {variant}: {' '.join(line)} failed:\n{done.stderr[-2000:]}")
        if variant == RUN:
            outcome = json.loads((session / names.OUTCOME).read_text())
            own_s = outcome["duration_ns"] / 1e9
            return Sample(own_s, None, wall_s - own_s)
        shutil.rmtree(session, ignore_errors=True)
        cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        return Sample(wall_s, cpu_s)


def interleaved(variants: list[str], passes: int) -> list[list[str]]:
    """The order of runs: each pass holds every variant once, every second one backwards (ABBA).

    What drifts slowly (heat, a neighbour's load) then falls on all alike.
    """
    return [variants if number % 2 == 0 else variants[::-1] for number in range(passes)]
