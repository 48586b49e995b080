"""One run of the command at one point: ``iotrace run`` in a process of its own, its output kept beside it."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from iotrace.session import names
from iotrace.sweeps.grid import asked_of_agent, fill
from iotrace.sweeps.measure import measure
from iotrace.sweeps.results import SweepRun

OUTPUT = "output.log"


@dataclass(frozen=True)
class Request:
    """What to run: a point of the grid, the kind of run, and where it goes."""

    command: list[str]
    params: dict[str, str]
    kind: str
    repeat: int
    directory: Path
    steps: int | None = None
    replay: int | None = None
    options: tuple[str, ...] = ()


Executor = Callable[[Request], SweepRun]


def execute(request: Request) -> SweepRun:
    """Run the request's command traced to its end and measure it.

    KeyboardInterrupt passes, once the command, which the key reached too, has ended.
    """
    request.directory.mkdir(parents=True, exist_ok=True)
    session = request.directory / "session"
    # Steps inside a window of torch.profiler are no measure of a loader.
    line = [sys.executable, "-m", "iotrace", "run", "--quiet", "--torch-steps", "off", "-o", str(session)]
    line += [*request.options, "--"]
    line += fill(request.command, request.params)
    busy_before, started = _busy_seconds(), time.monotonic()
    own_before = _children_seconds()
    with (request.directory / OUTPUT).open("wb") as output:
        process = subprocess.Popen(
            line,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, **_variables(request)},
        )
        try:
            exit_code = process.wait()
        except BaseException:
            process.wait()
            raise
    seconds = time.monotonic() - started
    run = SweepRun(
        params=request.params,
        kind=request.kind,
        repeat=request.repeat,
        session=str(session),
        status="ok",
        exit_code=128 - exit_code if exit_code < 0 else exit_code,
        others_pct=_others_percent(busy_before, own_before, seconds),
        seconds=seconds,
    )
    return measure(run)


def _variables(request: Request) -> dict[str, str]:
    settings = asked_of_agent(request.command, request.params)
    if request.steps is not None:
        settings["steps"] = str(request.steps)
    if request.replay is not None:
        # Batches from memory need no worker, which would only disturb the training.
        settings.update(replay=str(request.replay), workers="0")
        settings.pop("prefetch", None)
    return {names.OVERRIDE_VARIABLE: names.encode_settings(settings)} if settings else {}


def tail(run: SweepRun, lines: int = 5) -> str:
    """The last lines that the run's command printed."""
    try:
        text = (Path(run.session).parent / OUTPUT).read_text(errors="replace")
    except OSError:
        return ""
    return "\n".join(text.splitlines()[-lines:])


def _busy_seconds() -> float | None:
    """CPU time that the whole machine has used since its start."""
    try:
        fields = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]
    except OSError:
        return None
    user, nice, system, _idle, _iowait, irq, softirq = (int(field) for field in fields[:7])
    return (user + nice + system + irq + softirq) / os.sysconf("SC_CLK_TCK")


def _children_seconds() -> float:
    """CPU time of our ended children and theirs."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _others_percent(busy_before: float | None, own_before: float, seconds: float) -> float | None:
    """CPU that was neither the command's nor idle, in percent of one core."""
    busy_after = _busy_seconds()
    if busy_before is None or busy_after is None or seconds <= 0:
        return None
    others = (busy_after - busy_before) - (_children_seconds() - own_before)
    return max(0.0, 100 * others / seconds)
