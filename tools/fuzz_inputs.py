"""Fuzzing of the readers and of whole sessions, by number: what is found, is found again by its number.

A case has 2 s of CPU time (20 s: a session) and 1 GiB of memory beyond what Python needs. Failures are a
traceback, a crash, a case that takes more, and a loss that is not told. They are printed once for each place
in the code; the exit code is 1 if there is one.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import re
import resource
import signal
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.support.fuzz import Readers, Sessions

_READER_SECONDS, _SESSION_SECONDS = 2, 20
_STUCK_SECONDS = 120  # of waiting without CPU time: no reader waits for anything
_MEMORY_BYTES = 1 << 30
_CHUNK = {True: 10_000, False: 100}
_FRAME = re.compile(r'File "[^"]*/src/(?P<file>[^"]+)", line (?P<line>\d+)')


class TooLongError(BaseException):
    """A case took more than its time; no reader catches it."""


def _too_long(number: int, _: Any) -> None:
    raise TooLongError("CPU time" if number == signal.SIGPROF else "it waits")


@contextmanager
def _bounded(seconds: float) -> Iterator[None]:
    signal.setitimer(signal.ITIMER_PROF, seconds)
    signal.setitimer(signal.ITIMER_REAL, _STUCK_SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.setitimer(signal.ITIMER_REAL, 0)


def _place(error: BaseException) -> str:
    text = "".join(traceback.format_exception(error))
    frames = [f"{found['file']}:{found['line']}" for found in _FRAME.finditer(text)]
    return f"{type(error).__name__} at {frames[-1] if frames else 'the test'}: {str(error)[:160]}"


def _cases(first: int, count: int, originals: list[Path], readers: bool) -> dict[str, list[str]]:
    """Try `count` cases from number `first` on; return the first few cases of each failure by its place."""
    signal.signal(signal.SIGPROF, _too_long)
    signal.signal(signal.SIGALRM, _too_long)
    failures: dict[str, list[str]] = {}
    base = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="fuzz-", dir=base) as name:
        directory = Path(name)
        run: Callable[[int], None]
        if readers:
            given = Readers(directory)
            kinds = list(given.kinds)

            def run(number: int) -> None:
                kind = kinds[number % len(kinds)]
                given.read(kind, given.damaged(kind, number))
        else:
            run = Sessions(directory, originals).run
            run(-1)
        resource.setrlimit(resource.RLIMIT_AS, (_size() + _MEMORY_BYTES,) * 2)
        for number in range(first, first + count):
            _current.value = number
            try:
                with _bounded(_READER_SECONDS if readers else _SESSION_SECONDS):
                    run(number)
            except BaseException as error:
                if isinstance(error, KeyboardInterrupt):
                    raise
                failures.setdefault(_place(error), []).append(str(number))
    return failures


def _size() -> int:
    return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()


_current: Any = None


def _in_child(shared: Any, out: str, *arguments: Any) -> None:
    global _current
    _current = shared
    Path(out).write_text(json.dumps(_cases(*arguments)))


def _run(
    count: int, first: int, processes: int, originals: list[Path], readers: bool, until: float
) -> tuple[int, dict[str, list[str]]]:
    context = multiprocessing.get_context("fork")
    chunks = [
        (at, min(_CHUNK[readers], first + count - at)) for at in range(first, first + count, _CHUNK[readers])
    ]
    running: list[tuple[Any, Any, str, int]] = []
    found: dict[str, list[str]] = {}
    seen: dict[Any, tuple[int, float]] = {}
    done = 0
    with tempfile.TemporaryDirectory(prefix="fuzz-") as name:
        while chunks or running:
            while chunks and len(running) < processes and time.monotonic() < until:
                at, size = chunks.pop(0)
                shared, out = context.Value("q", at), f"{name}/{at}"
                child = context.Process(target=_in_child, args=(shared, out, at, size, originals, readers))
                child.start()
                running.append((child, shared, out, size))
                seen[child.pid] = (at, time.monotonic())
            if not running:
                break
            for entry in list(running):
                child, shared, out, size = entry
                child.join(0.2)
                if child.exitcode is None:
                    if shared.value != seen[child.pid][0]:
                        seen[child.pid] = (shared.value, time.monotonic())
                    elif time.monotonic() - seen[child.pid][1] > 2 * _STUCK_SECONDS:
                        child.kill()  # in a loop of C, which no signal interrupts
                    continue
                running.remove(entry)
                done += size
                if child.exitcode == 0:
                    for place, numbers in json.loads(Path(out).read_text()).items():
                        found.setdefault(place, []).extend(numbers)
                else:
                    found.setdefault(f"the process ended with {child.exitcode}", []).append(str(shared.value))
                print(f"{'inputs' if readers else 'sessions'}: {done} tried, {len(found)} places", flush=True)
    return done, found


def main() -> int:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(prog="tools/fuzz", description=__doc__)
    parser.add_argument("--inputs", type=int, default=1_000_000, help="damaged inputs of readers")
    parser.add_argument("--sessions", type=int, default=5_000, help="damaged sessions")
    parser.add_argument("--first", type=int, default=0, help="the first number")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--minutes", type=float, default=120.0, help="start nothing later than that")
    parser.add_argument(
        "--originals", type=Path, help="a directory of sessions to damage; default: one made by hand"
    )
    given = parser.parse_args()
    originals = (
        sorted(path.parent for path in given.originals.glob("*/manifest.json")) if given.originals else []
    )
    began = time.monotonic()
    failed = False
    for readers, count in ((True, given.inputs), (False, given.sessions)):
        until = began + 60 * given.minutes
        done, found = _run(count, given.first, given.processes, originals, readers, until)
        what = "inputs" if readers else "sessions"
        print(f"{done} {what} in {time.monotonic() - began:.0f} s: {len(found)} places failed")
        for place, numbers in Counter({key: len(value) for key, value in found.items()}).most_common():
            print(f"  {numbers} x {place}  (numbers {', '.join(found[place][:5])})")
        failed = failed or bool(found)
    return int(failed)


if __name__ == "__main__":
    raise SystemExit(main())
