"""The tools that run the user's program: offered with --allow-run alone. Each is a command of iotrace."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import IO

import anyio

import iotrace_command
from iotrace.errors import UsageError
from iotrace.mcp_server import results as r
from iotrace.mcp_server.answers import AT_MOST, PREDICTED, make_number, maybe, recorded
from iotrace.mcp_server.places import Places
from iotrace.mcp_server.results import Tool
from iotrace.session.manifest import read_document
from iotrace.trying.results import RESULT, Trial

_MOST_OUTPUT = 64 << 10
_LAST_LINES = 12
_TIMES = "times as fast"
_PATIENCE_S = 10.0


class Running:
    """The tools that start the user's program, in the directory that is shown; one at a time."""

    def __init__(self, places: Places) -> None:
        self._places = places
        self._busy = anyio.Lock()

    def tools(self) -> list[Tool]:
        """List the tools."""
        return [
            Tool(
                "run",
                "Run a training command and record it as a new session. It writes what the program writes.",
                r.AskedRun,
                r.Ran,
                self.run,
                True,
            ),
            Tool(
                "try_fix",
                "Measure what a fix gains: run the session's command several times, without and with it.",
                r.AskedTry,
                r.Ran,
                self.try_fix,
                True,
            ),
            Tool(
                "sweep",
                "Run a command with several numbers of loader workers, and say which is best.",
                r.AskedSweep,
                r.Ran,
                self.sweep,
                True,
            ),
        ]

    async def run(self, asked: r.AskedRun) -> r.Ran:
        """Record a run of a command."""
        target = self._new(asked.name)
        return await self._iotrace(["run", "-o", str(target), "--", *asked.command], asked.minutes, target)

    async def try_fix(self, asked: r.AskedTry) -> r.Ran:
        """Measure what a fix gains."""
        session = self._places.session(asked.session)
        target = self._new(f"iotrace-try-{datetime.now():%Y%m%d-%H%M%S}")
        line = ["try", str(session), "--fix", str(asked.fix), "--minutes", f"{asked.minutes:g}", "--yes"]
        # What runs when the time is over may end.
        return await self._iotrace([*line, "-o", str(target)], 2 * asked.minutes, target)

    async def sweep(self, asked: r.AskedSweep) -> r.Ran:
        """Compare numbers of workers."""
        target = self._new(asked.name)
        workers = ",".join(map(str, asked.workers))
        return await self._iotrace(
            ["sweep", "--workers", workers, "-o", str(target), "--", *asked.command], asked.minutes, target
        )

    def _new(self, name: str) -> Path:
        target = self._places.path(name)
        if target.exists():
            raise UsageError("there is something of that name already", "choose another name")
        return target

    async def _iotrace(self, words: Sequence[str], minutes: float, target: Path) -> r.Ran:
        if self._busy.statistics().locked:
            raise UsageError(
                "another run goes on: two at once would disturb each other", "wait until it has ended"
            )
        async with self._busy:
            with _output() as output:
                process = subprocess.Popen(
                    [sys.executable, iotrace_command.__file__, *words],
                    cwd=self._places.root,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
                early = False
                try:
                    early = not await _ended(process, 60 * minutes)
                finally:  # a client that cancels, too
                    with anyio.CancelScope(shield=True):
                        await _end(process)
                lines = _lines(output)
        return r.Ran(
            exit_code=process.returncode,
            ended_early=early,
            result=self._places.relative_name(target) if target.exists() else "",
            output=[recorded(self._places.below(line), 160) for line in lines[-_LAST_LINES:]],
            trial=_trial(target),
        )


def _trial(target: Path) -> r.TrialFound | None:
    """Return what a trial found, if that is what was run."""
    trial = read_document(target / RESULT, Trial)
    if trial is None:
        return None
    gain, told = trial.gain, trial.told
    kind = (
        PREDICTED
        if told is not None and (told.high is None or not told.about) and told.low is not None
        else AT_MOST
    )
    return r.TrialFound(
        proven=trial.proven,
        kind=trial.kind,
        fix=recorded(trial.fix_text),
        text=recorded(trial.text),
        why=maybe(trial.why),
        faster=None if gain is None else make_number(gain.median, _TIMES, interval=[gain.low, gain.high]),
        told=None
        if told is None
        else make_number(told.low if told.high is None else told.high, _TIMES, kind),
        settings={each.parameter: each.after for each in trial.settings},
        data=[
            r.CopyOfData(path=recorded(each.path), copy=recorded(each.new_path), how=each.how)
            for each in trial.data
        ],
    )


def _output() -> IO[bytes]:
    import tempfile

    return tempfile.TemporaryFile()


def _lines(output: IO[bytes]) -> list[str]:
    size = output.seek(0, os.SEEK_END)
    output.seek(max(0, size - _MOST_OUTPUT))
    return [line for line in output.read().decode(errors="replace").split("\n") if line.strip()]


async def _ended(process: subprocess.Popen[bytes], seconds: float) -> bool:
    """Wait for a process; False where it goes on after so many seconds."""
    waited = 0.0
    while process.poll() is None:
        if waited >= seconds:
            return False
        await anyio.sleep(0.2)
        waited += 0.2
    return True


async def _end(process: subprocess.Popen[bytes]) -> None:
    """End a process and those that it started, if they go on: first as Ctrl-C does."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL):
        if process.poll() is not None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        await _ended(process, _PATIENCE_S)
