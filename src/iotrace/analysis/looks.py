"""Look at a session again and again, at a bounded cost."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

from iotrace.analysis.pulse import Pulse
from iotrace.analysis.results.top import Top
from iotrace.analysis.top import DEFAULT_STEPS, Watch
from iotrace.session.liveness import ENDED, KILLED
from iotrace.sources.live.session import LiveSession

_SECOND = 1.0


def looks_and_pulses(path: Path, most_cpu: float) -> Iterator[Top | Pulse]:
    """Yield what a session does every second: a look where `most_cpu` of a core pays for one, else a pulse.

    The last one is a look, when its run has ended.
    """
    watch = Watch(LiveSession(path))
    due = 0.0
    while True:
        began, used = time.monotonic(), time.process_time()
        if began >= due or watch.may_have_ended():
            found = watch.look()
            yield found
            if found.state in (ENDED, KILLED):
                return
            due = began + (time.process_time() - used) / most_cpu
        else:
            yield watch.pulse()
        time.sleep(max(0.0, _SECOND - (time.monotonic() - began)))


def looks(path: Path, interval_s: float, most_cpu: float, steps: int = DEFAULT_STEPS) -> Iterator[Top]:
    """Yield a look at the session every `interval_s`, the last one when its run has ended.

    Looks, and what is done with each, take `most_cpu` of a core at most: costlier ones are rarer.
    """
    watch = Watch(LiveSession(path), steps)
    while True:
        began, used = time.monotonic(), time.process_time()
        found = watch.look()
        yield found
        if found.state in (ENDED, KILLED):
            return
        rest = (time.process_time() - used) / most_cpu
        time.sleep(max(0.0, max(interval_s, rest) - (time.monotonic() - began)))
