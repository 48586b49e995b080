"""Analyses in processes of their own, and what they made, kept by the content of what they read."""

from __future__ import annotations

import asyncio
import hashlib
import os
import shutil
import sys
from collections import OrderedDict
from contextlib import suppress
from pathlib import Path

from iotrace.session import names
from iotrace.ui.tasks import DONE, Done, Task, decoded, encoded, hash_content

_AT_ONCE = 2
_MOST_SECONDS = 600.0
_MOST_KEPT = 100
_LEAST_BYTES = 1 << 30
_CODE = "import sys; sys.path[:] = {path!r}; from iotrace.ui.worker import main; main()"


class Job:
    """A task that runs, or has ended: then `done` is there, and `directory` holds what it made."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.done: Done | None = None
        self.ended = asyncio.Event()

    @property
    def name(self) -> str:
        """What addresses call it."""
        return self.directory.name


class Jobs:
    """Runs each task once for the same content; forgets what was asked for longest ago."""

    def __init__(
        self, directory: Path, most_seconds: float = _MOST_SECONDS, most_bytes: int | None = None
    ) -> None:
        self._directory = directory
        self._most_seconds = most_seconds
        self._most_bytes = most_bytes or max(_LEAST_BYTES, _memory_bytes() // 2)
        self._jobs: OrderedDict[str, Job] = OrderedDict()
        self._running: set[asyncio.Task[None]] = set()
        self._free = asyncio.Semaphore(_AT_ONCE)

    async def get(self, task: Task, seconds: float) -> Job:
        """Return the task's job; waits at most `seconds` for its end."""
        content = await asyncio.to_thread(hash_content, map(Path, [*task.paths, *task.baselines]))
        name = hashlib.sha256(encoded(task) + content).hexdigest()[:24]
        job = self._jobs.get(name)
        if job is None:
            job = self._jobs[name] = Job(self._directory / name)
            running = asyncio.create_task(self._run(task, job))
            self._running.add(running)
            running.add_done_callback(self._running.discard)
        self._jobs.move_to_end(name)
        with suppress(asyncio.TimeoutError):
            await asyncio.wait_for(job.ended.wait(), seconds)
        self._forget()
        return job

    def named(self, name: str) -> Job | None:
        """Return the job that addresses call so."""
        return self._jobs.get(name)

    async def close(self) -> None:
        """End what runs."""
        for running in list(self._running):
            running.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)

    async def _run(self, task: Task, job: Job) -> None:
        try:
            async with self._free:
                job.done = await self._work(task, job.directory)
        except OSError as error:
            job.done = Done(problem=f"it cannot be analysed: {error.strerror}")
        finally:
            job.done = job.done or Done(problem="it was stopped")
            job.ended.set()
        if job.done.problem:  # what failed may succeed at the next try: memory or the disk was full, say
            await asyncio.sleep(_AT_ONCE)
            self._drop(job)

    async def _work(self, task: Task, directory: Path) -> Done:
        directory.mkdir(names.DIRECTORY_MODE)
        # No module is imported from a directory that is served: the worker has our path, and lies in its own.
        code = _CODE.format(path=[each for each in sys.path if each])
        words = [sys.executable, "-c", code, encoded(task).decode(), str(directory)]
        process = await asyncio.create_subprocess_exec(
            *words,
            str(self._most_bytes),
            cwd=directory,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
        )
        try:
            _, said = await asyncio.wait_for(process.communicate(), self._most_seconds)
        except (asyncio.TimeoutError, asyncio.CancelledError) as error:
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()
            if isinstance(error, asyncio.CancelledError):
                raise
            return Done(problem=f"its analysis took more than {self._most_seconds:.0f} s, and was ended")
        with suppress(OSError, ValueError):
            return decoded((directory / DONE).read_bytes(), Done)
        last = said.decode(errors="replace").strip().rpartition("\n")[2]
        ended = process.returncode or 0
        how = f"signal {-ended}" if ended < 0 else last or "no word"
        return Done(problem=f"its analysis ended with {how}; iotrace report may say more")

    def _forget(self) -> None:
        ended = [job for job in self._jobs.values() if job.done is not None]
        for job in ended[: max(0, len(self._jobs) - _MOST_KEPT)]:
            self._drop(job)

    def _drop(self, job: Job) -> None:
        if self._jobs.get(job.name) is job:
            del self._jobs[job.name]
            shutil.rmtree(job.directory, ignore_errors=True)


def _memory_bytes() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
