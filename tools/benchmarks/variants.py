"""The same command bare, with each source alone, and under `iotrace run`."""

from __future__ import annotations

import json
import os
import random
import resource
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from tools.benchmarks.steps import Printed, step_seconds

from iotrace.launch import posix, traced_run
from iotrace.launch.telemetry.start import DEFAULT_INTERVAL_MS, Telemetry, start
from iotrace.launch.traced_run import traced_environment
from iotrace.session import names

BARE, AGAIN, AGENT, POSIX, BOTH = "bare", "again", "agent", "posix", "both"
TELEMETRY, WINDOW, NO_WINDOW, RUN = "telemetry", "window", "no-window", "run"
MEANINGS = {
    AGAIN: "the bare program once more: the noise",
    AGENT: "the agent alone",
    POSIX: "the tracer of POSIX calls alone",
    TELEMETRY: "the sidecar alone",
    WINDOW: "the agent with a window of torch.profiler, which needs it",
    NO_WINDOW: "`iotrace run --torch-steps off`",
    RUN: "`iotrace run`",
}
_LAUNCHED = {NO_WINDOW: ["--torch-steps", names.OFF], RUN: []}
# The sidecar knows a command by a variable, which would also start the agent: a shell has it, its child not.
_HIDING = ["sh", "-c", f'env -u {names.SETTINGS_VARIABLE} "$@"; exit $?', "sh"]


@dataclass(frozen=True)
class Sample:
    """One run. `step_s`: of the steps behind the first and the window; None where too few were told.

    `rest_s`: all but those steps. `launcher_s`: what `iotrace run` took before and after the command.
    `window_s`: what the window took from the program to begin, end and be written. None: not there.
    """

    wall_s: float
    rest_s: float | None
    step_s: float | None
    cpu_s: float | None
    launcher_s: float | None = None
    window_s: float | None = None


def environment_of(variant: str, session: Path) -> dict[str, str]:
    """The command's environment with these sources; they write below `session`."""
    bare = {key: value for key, value in os.environ.items() if key != names.SETTINGS_VARIABLE}
    if variant in (BARE, AGAIN, *_LAUNCHED):
        return bare
    if variant == TELEMETRY:
        session.mkdir(parents=True, exist_ok=True)
        return {**bare, names.SETTINGS_VARIABLE: names.encode_settings({"session": str(session)})}
    for part in (names.PROCESSES, names.POSIX):
        (session / part).mkdir(parents=True, exist_ok=True)
    capture = posix.plan(sys.executable, [])
    if capture.why_not and variant in (POSIX, BOTH):
        raise SystemExit(f"tools/bench: {capture.why_not}: {capture.remedy}")
    torch = traced_run.settings(traced_run.DEFAULT_STEPS, "", "all") if variant == WINDOW else {}
    both = traced_environment(bare, capture, session, torch)
    added = {key: value for key, value in both.items() if bare.get(key) != value}
    of_agent = {names.SETTINGS_VARIABLE, "PYTHONPATH"}
    if variant in (AGENT, WINDOW):
        return {**bare, **{key: added[key] for key in added.keys() & of_agent}}
    return {**bare, **{key: added[key] for key in added.keys() - of_agent}} if variant == POSIX else both


def measure(variant: str, command: list[str], directory: Path) -> Sample:
    """Run `command` once in `directory`; SystemExit with its last words if it fails."""
    with tempfile.TemporaryDirectory(prefix="iotrace-bench-", ignore_cleanup_errors=True) as scratch:
        session = Path(scratch) / "session"
        line = command
        if variant in _LAUNCHED:
            own = [sys.executable, "-m", "iotrace", "run", "-o", str(session), *_LAUNCHED[variant]]
            line = [*own, "--", *command]
        # Each line has to come when it is printed: its time is taken.
        environment = {**environment_of(variant, session), "PYTHONUNBUFFERED": "1"}
        sidecar = Telemetry(None)
        if variant == TELEMETRY:
            line = [*_HIDING, *command]
            sidecar = start(session.resolve(), DEFAULT_INTERVAL_MS)
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        wall_s, printed = _run(variant, line, environment, directory)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        cpu_s: float | None = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        sidecar.release()
        sampled = any(path.stat().st_size for path in session.glob(f"{names.TELEMETRY}/*/{names.SAMPLES}"))
        if variant == TELEMETRY and not sampled:
            raise SystemExit("tools/bench: the sidecar did not sample the program")
        launcher_s = window_s = None
        if variant in _LAUNCHED:
            outcome = json.loads((session / names.OUTCOME).read_text())
            whole_s, wall_s = wall_s, outcome["duration_ns"] / 1e9
            launcher_s, cpu_s = whole_s - wall_s, None  # the launcher's own is in it
        if variant in (WINDOW, RUN):
            window_s = _window_seconds(session)
        step_s, steps_s = step_seconds(printed)
        rest_s = None if steps_s is None else wall_s - steps_s
        return Sample(wall_s, rest_s, step_s, cpu_s, launcher_s, window_s)


def _run(
    variant: str, line: list[str], environment: dict[str, str], directory: Path
) -> tuple[float, list[Printed]]:
    """Its time in seconds, and what it printed when."""
    printed: list[Printed] = []
    with tempfile.TemporaryFile("w+", errors="replace") as errors:
        begin_ns = time.monotonic_ns()
        process = subprocess.Popen(
            line, cwd=directory, env=environment, stdout=subprocess.PIPE, stderr=errors, text=True
        )
        try:
            assert process.stdout is not None
            for text in process.stdout:
                printed.append((time.monotonic_ns(), text))
            code = process.wait()
        except BaseException:
            process.terminate()
            process.wait()
            raise
        wall_s = (time.monotonic_ns() - begin_ns) / 1e9
        if code:
            errors.seek(0)
            raise SystemExit(f"tools/bench: {variant}: {' '.join(line)} failed:\n{errors.read()[-2000:]}")
    return wall_s, printed


def _window_seconds(session: Path) -> float:
    """What its windows took from the process that lost most by them."""
    longest_ns = 0
    for path in session.glob(f"{names.PROCESSES}/*/{names.RECORDS}"):
        records = [json.loads(line) for line in path.read_text().splitlines() if '"torch_window"' in line]
        longest_ns = max(longest_ns, sum(record["duration_ns"] for record in records))
    return longest_ns / 1e9


def interleaved(variants: list[str], passes: int) -> list[list[str]]:
    """The order of runs: each pass holds every variant once, shuffled, the same each time this is asked.

    What drifts slowly (heat, a neighbour's load) then falls on all alike, and no variant always follows the
    same one: by turns forwards and backwards, bare runs stood side by side, and all others seemed 2 % slower.
    """
    dice = random.Random(0)
    return [dice.sample(variants, len(variants)) for _ in range(passes)]
