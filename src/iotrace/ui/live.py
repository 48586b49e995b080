"""Runs that go on: a process of its own looks at each that somebody asks for, and says what it sees."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

import msgspec

from iotrace.analysis.pulse import Pulse
from iotrace.analysis.results.top import Top
from iotrace.errors import IotraceError
from iotrace.session.hangs import WAITS_FOR_WORK, WAITS_FOR_WORKERS, Status, read_status

_LINE_BYTES = 64 << 20
_PATIENCE_S = 60.0  # nobody has asked: the looking ends
_HANG_EVERY_S = 5.0
_MOST_CPU = 0.005  # of a core: where a look costs more, looks are rarer; between them come pulses
_LOOK, _PULSE = b"L", b"P"  # what a line of the process that looks is
_CODE = "import sys; sys.path[:] = {path!r}; from iotrace.ui.live import look; look()"


class Look:
    """What was seen last of a run: `top`, what is known of a hang, its stacks; its `pulse` every second.

    `holds_up` is the rank that is named first in a hang: the others wait for it; None where that is unknown.
    `number` counts the looks, `news` tells those who wait of looks and pulses.
    """

    def __init__(self) -> None:
        self.top: Top | None = None
        self.pulse: Pulse | None = None
        self.hang: list[str] = []
        self.stacks: list[tuple[str, list[str]]] = []
        self.holds_up: int | None = None
        self.state = ""
        self.number = 0
        self.over = False
        self.asked = time.monotonic()
        self.news = asyncio.Condition()


class Feeds:
    """One look at each run, for all who watch it."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._looks: dict[Path, Look] = {}
        self._running: set[asyncio.Task[None]] = set()

    def of(self, path: Path) -> Look:
        """Return what is seen of the session at `path`; the looking begins where it has not."""
        look = self._looks.get(path)
        if look is None:
            look = self._looks[path] = Look()
            running = asyncio.create_task(self._watch(path, look))
            self._running.add(running)
            running.add_done_callback(self._running.discard)
        look.asked = time.monotonic()
        return look

    async def follow(self, path: Path) -> AsyncIterator[Look]:
        """Yield what each look and pulse sees, until the run is over; without news the same again."""
        look = self.of(path)
        while True:
            yield look
            if look.over:
                return
            async with look.news:
                if not look.over:
                    with suppress(asyncio.TimeoutError):
                        await asyncio.wait_for(look.news.wait(), _HANG_EVERY_S)
            if not look.over:
                look = self.of(path)

    async def close(self) -> None:
        """End all looking."""
        for running in list(self._running):
            running.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)

    async def _watch(self, path: Path, look: Look) -> None:
        # No module is imported from a directory that is served: the process has our path, and lies elsewhere.
        code = _CODE.format(path=[each for each in sys.path if each])
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", code, str(path)),
            cwd=self._directory,
            env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
            limit=_LINE_BYTES,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
        )
        assert process.stdout is not None
        hang_at = 0.0
        try:
            while line := await process.stdout.readline():
                with suppress(msgspec.DecodeError):
                    if line[:1] == _PULSE:
                        look.pulse = msgspec.json.decode(line[1:], type=Pulse)
                    else:
                        look.top = msgspec.json.decode(line[1:], type=Top)
                        look.number += 1
                if time.monotonic() - hang_at > _HANG_EVERY_S:
                    with suppress(IotraceError, OSError):
                        status = await asyncio.to_thread(read_status, path)
                        told = status.state, status.text, _stacks(status)
                        if told != (look.state, look.hang, look.stacks):
                            look.state, look.hang, look.stacks = told
                            look.holds_up = holds_up(status)
                            look.number += 1
                    hang_at = time.monotonic()
                await self._tell(look)
                if time.monotonic() - look.asked > _PATIENCE_S:
                    return
            look.over = True
        except ValueError:  # a line beyond the limit
            look.over = True
        finally:
            with suppress(ProcessLookupError):
                process.kill()
            self._looks.pop(path, None)
            await process.wait()
            await self._tell(look)

    async def _tell(self, look: Look) -> None:
        async with look.news:
            look.news.notify_all()


def holds_up(status: Status) -> int | None:
    """Return the rank that others wait for in a hang that goes on; None where all wait, or it is unknown."""
    blocked = [each for hang in status.hangs if not hang.resumed for each in hang.processes]
    ranks = {each.pid: each.rank for each in blocked if each.rank is not None}
    for each in blocked:
        if not each.collective and each.text not in (WAITS_FOR_WORK, WAITS_FOR_WORKERS):
            return ranks.get(each.pid if each.of is None else each.of)
    return None


def _stacks(status: Status) -> list[tuple[str, list[str]]]:
    """Return the stacks of processes that hang now, the innermost frame first."""
    blocked = [each for hang in status.hangs if not hang.resumed for each in hang.processes]
    ranks = {each.pid: f" of {each.role}" for each in blocked if each.rank is not None}
    return [
        (
            f"{each.role}{'' if each.rank is not None else ranks.get(each.of or 0, '')} (pid {each.pid})",
            each.stack,
        )
        for each in blocked
        if each.stack
    ]


def look() -> None:
    """Write a line of JSON a second of the session on the command line, until its run has ended."""
    from iotrace.analysis.looks import looks_and_pulses

    for message in looks_and_pulses(Path(sys.argv[1]), _MOST_CPU):
        kind = _PULSE if isinstance(message, Pulse) else _LOOK
        sys.stdout.buffer.write(kind + msgspec.json.encode(message) + b"\n")
        sys.stdout.buffer.flush()
