"""Record where the loop waits for other processes: at semaphores and the like of ``multiprocessing``.

What they hand over lies in memory that they share, where nobody sees it: such waits say how long the loop
slept, and where, no more.
"""

from __future__ import annotations

import sys
from _functools import partial  # type: ignore[import-not-found]  # `functools` is five files to read
from time import monotonic_ns

from iotrace.agent.patching import observe, observing, pass_for, patch
from iotrace.agent.pools import queues, tasks
from iotrace.agent.pools.callers import HERE, PROGRAMS, making, whose_file
from iotrace.agent.pools.queues import LOOK_EVERY, Channel
from iotrace.agent.recording.recorder import Recorder
from iotrace.agent.recording.thread_clocks import current
from iotrace.session.names import LOCK_AT, LOCKED_ROW

TYPE_CHECKING = False  # `typing` costs half of the agent's start-up
if TYPE_CHECKING:
    from typing import Any

_WHAT = "recording a wait for another process"
_LEAST_NS = 100_000


def hook_locks(module: Any, recorder: Recorder) -> None:
    """Patch `module`, ``multiprocessing.synchronize``."""
    known = {name: Channel(f"multiprocessing.{name}", 0) for name in ("Semaphore", "Condition", "Event")}
    made = partial(_made, known["Semaphore"], recorder)
    observe(module.Semaphore, "__init__", recorder, _WHAT, after=made)
    for name in ("Condition", "Event"):
        patch(getattr(module, name), "wait", partial(_timed, known[name], recorder))
    observe(module.SemLock, "__enter__", recorder, _WHAT, before=_asks, ended=partial(_has_lock, recorder))


def _has_lock(recorder: Recorder, asked_ns: int | None, *_: Any) -> None:
    """Record how long a process waited for a lock that the program takes by ``with``."""
    now_ns = monotonic_ns()
    if not asked_ns or now_ns - asked_ns < _LEAST_NS or recorder.over:
        return
    frame: Any = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith(HERE):
        frame = frame.f_back
    if frame is not None and whose_file(frame.f_code.co_filename) == PROGRAMS:
        site = recorder.text(f"{LOCK_AT}:{frame.f_code.co_filename}:{frame.f_lineno}")
        recorder.records.append((LOCKED_ROW, current.thread.tid, asked_ns, now_ns, now_ns - asked_ns, site))


def _made(channel: Channel, recorder: Recorder, *seen: Any) -> None:
    _, _, args, _ = seen
    semaphore = args[0]
    frame = making(semaphore, sys._getframe(2))
    while frame is not None and frame.f_globals.get("__name__") == "multiprocessing.context":
        frame = frame.f_back
    if frame is not None and whose_file(frame.f_code.co_filename) == PROGRAMS:
        semaphore.acquire = _timed(channel, recorder, semaphore.acquire)


def _timed(channel: Channel, recorder: Recorder, original: Any) -> Any:
    after = partial(_has_waited, channel, recorder)
    wait = observing(recorder, _WHAT, before=_asks, after=after)(original)
    pass_for(wait, original)
    return wait


def _asks(_args: list[Any], _kwargs: dict[str, Any]) -> int:
    return monotonic_ns()


def _has_waited(
    channel: Channel, recorder: Recorder, asked_ns: int | None, whole: Any, *_called: Any
) -> None:
    thread = current.thread
    if asked_ns is None or recorder.over or channel.is_fast or not queues.is_main(thread.tid) or thread.depth:
        return
    if whose_file(sys._getframe(2).f_code.co_filename) != PROGRAMS:
        return
    if not whole:
        channel.asked.setdefault(thread.tid, asked_ns)
        return
    channel.counted += 1
    if not channel.counted % LOOK_EVERY:
        channel.look(asked_ns, recorder)
    asked_ns = channel.asked.pop(thread.tid, asked_ns)
    of_channel = channel.number, channel.counted, -1, -1
    tasks.deliver(channel, "", asked_ns, monotonic_ns(), of_channel, recorder)
    tasks.note_doubt(channel, tasks.UNSEEN, recorder)
