"""A program's own clock: when its steps began, what it waited for data, what it spent on evaluation.

It knows nothing of any profiler. `$OWN_CLOCK` names a file; at exit the clock writes there what it
measured, one file for each rank: `cuts`, the moments at which steps got their first batches, and the
intervals `waits` and `evaluations`. All times are seconds of one monotonic clock.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

_PROGRAM = os.getpid()
_cuts: list[float] = []
_waits: list[tuple[float, float]] = []
_evaluations: list[tuple[float, float]] = []
now = time.perf_counter


def begin() -> None:
    """Begin a step: its first batch is here."""
    _cuts.append(now())


def next_(iterator: Iterator[Any], step: bool = True) -> Any:
    """Return ``next(iterator)`` and count the wait; `step` begins a step with this batch.

    An ask that ends in StopIteration gave no batch: it is time of the loop, but no wait.
    """
    asked = now()
    batch = next(iterator)
    waited(asked, step)
    return batch


def steps(loader: Iterable[Any], every: int = 1, step: bool = True) -> Iterator[Any]:
    """Iterate over `loader`; each `every`-th batch begins a step."""
    iterator = iter(loader)
    number = 0
    while True:
        try:
            batch = next_(iterator, step and number % every == 0)
        except StopIteration:
            return
        number += 1
        yield batch


def until_none(take: Callable[[], Any]) -> Iterator[Any]:
    """Yield what `take` returns until that is None; arrays cannot be compared with it."""
    while (taken := take()) is not None:
        yield taken


def waited(asked: float, step: bool = True) -> None:
    """Count a wait that began at `asked` (of ``now()``) and ends now; `step` begins a step with its batch."""
    _waits.append((asked, now()))
    if step:
        begin()


def evaluated(began: float) -> None:
    """Leave out of the loop what lies between `began` and now: an evaluation."""
    _evaluations.append((began, now()))


@contextlib.contextmanager
def evaluation() -> Iterator[None]:
    """Leave the body out of the loop."""
    began = now()
    yield
    evaluated(began)


def _write() -> None:
    path = os.environ.get("OWN_CLOCK")
    if path is None or os.getpid() != _PROGRAM or not _cuts:
        return
    measured = {"cuts": _cuts, "waits": _waits, "evaluations": _evaluations}
    with open(f"{path}.{os.environ.get('RANK', '0')}", "w") as file:
        json.dump(measured, file)


atexit.register(_write)
