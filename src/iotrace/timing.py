"""``iotrace.Timer``: sums of times by key, of the CPU's clock or of a device's events."""

from __future__ import annotations

import os
from array import array
from contextlib import ContextDecorator
from threading import get_ident
from time import monotonic_ns
from typing import Any, NamedTuple

from iotrace.agent.recording.regions import Region, region
from iotrace.errors import UsageError
from iotrace.session.identity import ranks

_MOST_KEPT = 1 << 20  # lengths of a key; those behind them count in sums alone


class Times(NamedTuple):
    """What a key came to: ms, of `calls` times; the percentiles are of the first million."""

    calls: int
    total_ms: float
    mean_ms: float
    p50_ms: float
    p95_ms: float
    max_ms: float


class _Key:
    """The times of one key: those that are open, by thread, and the lengths of those that have ended."""

    __slots__ = ("count", "kept", "longest", "open", "pairs", "region", "total")

    def __init__(self, name: str) -> None:
        self.region: Region = region(name)
        self.open: dict[int, list[Any]] = {}
        self.pairs: list[tuple[Any, Any]] = []  # of a device, which is not asked before they are read
        self.kept = array("q")
        self.count = self.total = self.longest = 0

    def add(self, length_ns: int) -> None:
        self.count += 1
        self.total += length_ns
        self.longest = max(self.longest, length_ns)
        if len(self.kept) < _MOST_KEPT:
            self.kept.append(length_ns)


class Timer:
    """Time parts of a program by key, nested or overlapping, in any thread.

    ``timer.start("IO")`` and ``timer.end("IO")``; ``with timer("Forward"):``; ``@timer("Batch")``. Any key
    will do; those of training are Epoch, Batch, Forward, Backward, Comm, IO and Other. Under `iotrace run`
    each time is also a region: in the report and on the timeline of its rank.

    `device` ``"cuda"`` times what is enqueued on the current stream by events (also of HIP), which are waited
    for when `times` is called, not before.

    Raises:
        UsageError: there is no such device.
    """

    def __init__(self, device: str = "cpu") -> None:
        self.rank = ranks(os.environ)["rank"] or 0
        self._keys: dict[str, _Key] = {}
        self._cuda: Any = None
        if device == "cuda":
            self._cuda = _cuda()
        elif device != "cpu":
            raise UsageError(f'Timer(device="{device}") is unknown', 'use Timer() or Timer(device="cuda")')

    def start(self, key: str) -> None:
        """Begin a time of `key`."""
        known = self._keys.get(key)
        if known is None:
            known = self._keys.setdefault(key, _Key(key))
        known.region.__enter__()
        known.open.setdefault(get_ident(), []).append(self._now())

    def end(self, key: str) -> None:
        """End the time of `key` that this thread began last; one that it has not begun is left out."""
        now = self._now()
        known = self._keys.get(key)
        begun = known.open.get(get_ident()) if known is not None else None
        if known is None or not begun:
            return
        before = begun.pop()
        known.region.__exit__(None, None, None)
        if self._cuda is None:
            known.add(now - before)
        else:
            known.pairs.append((before, now))

    def __call__(self, key: str) -> _Part:
        """Return the part of the program called `key`: ``with`` it, or decorate a function with it."""
        return _Part(self, key)

    def times(self) -> dict[str, Times]:
        """Sum up each key, in the order in which they were first begun."""
        found = {}
        for name, known in list(self._keys.items()):
            pairs, known.pairs = known.pairs, []
            for before, after in pairs:
                after.synchronize()
                known.add(round(before.elapsed_time(after) * 1e6))
            if known.count:
                ordered = sorted(known.kept)
                p50, p95 = (ordered[int(share * (len(ordered) - 1))] / 1e6 for share in (0.5, 0.95))
                mean = known.total / known.count / 1e6
                found[name] = Times(known.count, known.total / 1e6, mean, p50, p95, known.longest / 1e6)
        return found

    def _now(self) -> Any:
        if self._cuda is None:
            return monotonic_ns()
        event = self._cuda.Event(enable_timing=True)
        event.record()
        return event


class _Part(ContextDecorator):
    """A key of a timer, as a context and as a decorator."""

    __slots__ = ("_key", "_timer")

    def __init__(self, timer: Timer, key: str) -> None:
        self._timer, self._key = timer, key

    def __enter__(self) -> None:
        self._timer.start(self._key)

    def __exit__(self, *_: object) -> None:
        self._timer.end(self._key)


def _cuda() -> Any:
    """Return torch.cuda, of a device that is there."""
    try:
        import torch
    except ImportError:
        torch = None
    if torch is None or not torch.cuda.is_available():
        raise UsageError(
            'Timer(device="cuda") finds no device of CUDA or HIP', "use Timer(), the CPU's clock"
        )
    return torch.cuda
