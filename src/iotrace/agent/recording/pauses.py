"""Record what stops a program at any line: the collections of Python's garbage collector, compilations.

The entry in ``gc.callbacks`` runs no bytecode: `getattr`, `property`, `next`, `map` and `deque.append` are C.
So no signal handler of the program's runs in it, and nothing of ours can raise there. The writer's thread
makes rows of the stamps. Without the interpreter's lock such callbacks run on several threads: none there.
"""

from __future__ import annotations

import gc
import sys
from _collections import deque  # type: ignore[import-not-found]
from _functools import partial  # type: ignore[import-not-found]
from time import monotonic_ns
from typing import Any

from iotrace.agent.patching import on_undo
from iotrace.agent.recording.recorder import Recorder
from iotrace.agent.recording.thread_clocks import thread_id
from iotrace.session.guard import ours
from iotrace.session.names import PAUSE_ROW, PAUSES

_LEAST_NS = 100_000  # shorter collections are as frequent as allocations, and explain no slow step
_TOLD_NS, _TIMES = 200_000_000, 4  # of collecting until objects are counted; then at so many times that
_MORE = 1.25  # times as much collecting since, and only the collections are looked at again
_MOST_STAMPS = 4096  # between two writes: a program that collects more often loses the oldest
_COLLECTION, _COMPILATION, _JIT = map(PAUSES.index, ("collection", "compilation", "jit"))
_COMPILES = "/jax/core/compile/"  # how the events of JAX are called that its compiler takes time for


class _Stamps:
    """The times at which collections began and ended; asking for `start` or `stop` adds one."""

    def __init__(self) -> None:
        self.started, self.stopped = deque(maxlen=_MOST_STAMPS), deque(maxlen=_MOST_STAMPS)

        class Clock:
            start = property(partial(next, map(self.started.append, iter(monotonic_ns, None))))
            stop = property(partial(next, map(self.stopped.append, iter(monotonic_ns, None))))

        self.collected_ns, self.told_ns, self.looked_ns = 0, _TOLD_NS, 0
        # Called with the phase, which is ``start`` or ``stop``, and a dict: getattr(clock, phase, dict).
        self.callback = partial(getattr, Clock())

    def drain(self, recorder: Recorder) -> None:
        """Make rows of the stamps. One that is interrupted may make a row twice, and loses none."""
        started, stopped = self.started, self.stopped
        while started and stopped:
            if stopped[0] < started[0]:
                stopped.popleft()  # nobody saw it begin
            elif len(started) > 1 and started[1] < stopped[0]:
                started.popleft()  # nobody saw it end
            else:
                self.collected_ns += stopped[0] - started[0]
                if stopped[0] - started[0] >= _LEAST_NS:
                    recorder.append_row((PAUSE_ROW, _COLLECTION, -1, started[0], stopped[0]))
                started.popleft()
                stopped.popleft()
        if self.collected_ns >= self.told_ns:
            self.told_ns, self.looked_ns = _TIMES * self.collected_ns, self.collected_ns
            count = next(map(len, iter(gc.get_objects, None)))
            recorder.records.append({**_collector(), "objects": count, "frozen": gc.get_freeze_count()})
        elif self.looked_ns and self.collected_ns >= _MORE * self.looked_ns:
            self.looked_ns = self.collected_ns
            recorder.records.append(_collector())


def _collector() -> dict[str, Any]:
    """Return a record of the collector: its settings, how often it collected.

    What it looks at is counted later: that takes a fraction of a full collection. The list of all objects
    lives inside of one call in C then: none of the program's can die with it.
    """
    return {
        "type": "collector",
        "mono_ns": monotonic_ns(),
        "enabled": gc.isenabled(),
        "threshold": list(gc.get_threshold()),
        "collections": [each["collections"] for each in gc.get_stats()],
    }


_stamps: _Stamps | None = None
_compiles_since: dict[int, int] = {}  # by thread


def watch_collections(recorder: Recorder) -> None:
    """Record the collections of this process from now on; again after a fork, whose child records none."""
    global _stamps
    if "t" in getattr(sys, "abiflags", "") or (
        _stamps is not None
        and any(getattr(each, "func", None) == _stamps.drain for each in recorder.before_flush)
    ):
        return
    if _stamps is None:
        _stamps = _Stamps()
        gc.callbacks.append(_stamps.callback)
        on_undo(_leave)
    _stamps.started.clear()
    _stamps.stopped.clear()
    _stamps.collected_ns, _stamps.told_ns, _stamps.looked_ns = 0, _TOLD_NS, 0
    recorder.records.append(_collector())
    recorder.before_flush.append(partial(_stamps.drain, recorder))


def watching() -> bool:
    """Whether collections are recorded."""
    return _stamps is not None


def _leave() -> None:
    global _stamps
    stamps, _stamps = _stamps, None
    if stamps is not None and stamps.callback in gc.callbacks:
        gc.callbacks.remove(stamps.callback)


def compilation_begins() -> None:
    """Note that torch.compile begins to compile on this thread."""
    _compiles_since[thread_id()] = monotonic_ns()


def compilation_ended(recorder: Recorder) -> None:
    """Record the compilation that began last on this thread."""
    tid = thread_id()
    start_ns = _compiles_since.pop(tid, None)
    if start_ns is not None:
        recorder.records.append((PAUSE_ROW, _COMPILATION, tid, start_ns, monotonic_ns()))


def watch_jax(recorder: Recorder) -> None:
    """Record what JAX compiles from now on, as it reports that itself: ``jax.monitoring``."""
    monitoring: Any = sys.modules.get("jax.monitoring") or sys.modules.get("jax._src.monitoring")
    register = getattr(monitoring, "register_event_duration_secs_listener", None)
    if register is None:
        return

    def compiled(event: str, seconds: float, **_: Any) -> None:
        try:
            if not recorder.over and event.startswith(_COMPILES) and seconds * 1e9 >= _LEAST_NS:
                end_ns = monotonic_ns()
                start_ns = end_ns - int(seconds * 1e9)
                recorder.records.append((PAUSE_ROW, _JIT, thread_id(), start_ns, end_ns))
        except ours(Exception) as error:
            recorder.absorb(error, "recording a compilation")

    def leave() -> None:
        try:
            monitoring.unregister_event_duration_listener(compiled)
        except ours(AttributeError, AssertionError, ValueError):  # an old JAX, or the program has done it
            pass  # it does nothing any more

    register(compiled)
    on_undo(leave)
