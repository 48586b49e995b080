"""One run of the command at one point: ``iotrace run`` in a process of its own, its output kept beside it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import iotrace_command
from iotrace.session import names
from iotrace.sweeps.grid import PREFETCH, WORKERS, asked_of_agent, environment_of, fill
from iotrace.sweeps.measure import measure
from iotrace.sweeps.results import SweepRun

OUTPUT = "output.log"
_REPLAYED = 4  # batches kept in memory for the ceiling


@dataclass(frozen=True)
class Request:
    """What to run: a point of the grid, the kind of run, and where it goes."""

    command: list[str]
    params: dict[str, str]
    kind: str
    repeat: int
    directory: Path
    steps: int | None = None
    inference: bool = False
    options: tuple[str, ...] = ()


Executor = Callable[[Request], SweepRun]


def execute(request: Request) -> SweepRun:
    """Run the request's command traced to its end and measure it.

    KeyboardInterrupt passes, once the command, which the key reached too, has ended. SIGTERM, which reaches
    this process alone, is handed on and becomes a KeyboardInterrupt.
    """
    request.directory.parent.mkdir(names.DIRECTORY_MODE, exist_ok=True)
    request.directory.mkdir(names.DIRECTORY_MODE, exist_ok=True)
    session = request.directory / "session"
    # Steps inside a window of torch.profiler are no measure of a loader.
    line = [sys.executable, iotrace_command.__file__, "run", "--quiet", "--torch-steps", "off"]
    line += ["-o", str(session), *request.options, "--"]
    line += fill(request.command, request.params)
    started = time.monotonic()
    (request.directory / OUTPUT).touch(names.FILE_MODE)
    with (request.directory / OUTPUT).open("wb") as output:
        process = subprocess.Popen(
            line,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, **_variables(request)},
        )
        try:
            with _handing_on(process):
                exit_code = process.wait()
        except BaseException:
            process.wait()
            raise
    run = SweepRun(
        params=request.params,
        kind=request.kind,
        repeat=request.repeat,
        session=str(session),
        status="ok",
        exit_code=128 - exit_code if exit_code < 0 else exit_code,
        seconds=time.monotonic() - started,
    )
    return measure(run, WORKERS in asked_of_agent(request.command, request.params))


@contextmanager
def _handing_on(process: subprocess.Popen[bytes]) -> Iterator[None]:
    """Hand SIGTERM on to `process`, where nobody else handles it."""
    mine = threading.current_thread() is threading.main_thread()
    if not mine or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return

    def terminate(*_: object) -> None:
        process.terminate()
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, terminate)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _variables(request: Request) -> dict[str, str]:
    settings = asked_of_agent(request.command, request.params)
    if request.steps is not None:
        settings["steps"] = str(request.steps)
    if request.kind == "ceiling":
        # Batches from memory need no worker, which would only disturb the training.
        settings.update(replay=str(_REPLAYED), workers="0")
        settings.pop(PREFETCH, None)
    if settings and request.inference:
        settings["inference"] = "yes"
    found = environment_of(request.command, request.params)
    return {**found, names.OVERRIDE_VARIABLE: names.encode_settings(settings)} if settings else found


def tail(run: SweepRun, lines: int = 5) -> str:
    """The last lines that the run's command printed."""
    try:
        text = (Path(run.session).parent / OUTPUT).read_text(errors="replace")
    except OSError:
        return ""
    return "\n".join(text.splitlines()[-lines:])
