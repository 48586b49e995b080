"""Runs that go on: a process of its own looks at each that somebody asks for, and tells what it sees."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

import msgspec

from iotrace.analysis.results.top import Top
from iotrace.errors import IotraceError
from iotrace.session.hangs import Status, status_of

_INTERVAL_S = 1.0
_LINE_BYTES = 64 << 20
_PATIENCE_S = 60.0  # nobody has asked: the looking ends
_HANG_EVERY_S = 5.0
_MOST_CPU = 0.008  # of a core: where a look costs more, looks are rarer
_CODE = "import sys; sys.path[:] = {path!r}; from iotrace.ui.live import look; look()"


class Look:
    """What was seen last of a run: `top`, what is told of a hang, its stacks. `number` counts the looks."""

    def __init__(self) -> None:
        self.top: Top | None = None
        self.hang: list[str] = []
        self.stacks: list[tuple[str, list[str]]] = []
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
        """Yield each look, until the run is over; without news every few seconds the same again."""
        number = -1
        while True:
            look = self.of(path)
            async with look.news:
                if look.number == number and not look.over:
                    with suppress(asyncio.TimeoutError):
                        await asyncio.wait_for(look.news.wait(), _HANG_EVERY_S)
            number = look.number
            yield look
            if look.over:
                return

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
                    look.top = msgspec.json.decode(line, type=Top)
                if time.monotonic() - hang_at > _HANG_EVERY_S:
                    with suppress(IotraceError, OSError):
                        found = await asyncio.to_thread(status_of, path)
                        look.state, look.hang, look.stacks = found.state, found.text, _stacks(found)
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
            look.number += 1
            look.news.notify_all()


def _stacks(status: Status) -> list[tuple[str, list[str]]]:
    """Return the stacks of processes that hang now, the innermost frame first."""
    blocked = [each for hang in status.hangs if not hang.resumed for each in hang.processes]
    return [(f"{each.role} (pid {each.pid})".strip(), each.stack) for each in blocked if each.stack]


def look() -> None:
    """Write a line of JSON a look at the session on the command line, until its run has ended."""
    from iotrace.analysis.looks import looks

    for found in looks(Path(sys.argv[1]), _INTERVAL_S, _MOST_CPU):
        sys.stdout.buffer.write(msgspec.json.encode(found) + b"\n")
        sys.stdout.buffer.flush()
