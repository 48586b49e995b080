"""Record the results of pools that coroutines await: ``run_in_executor``, ``to_thread``.

A thread that runs coroutines waits where its selector sleeps until something comes; timers are no input.
"""

from __future__ import annotations

import sys
from _functools import partial  # type: ignore[import-not-found]  # `functools` is five files to read
from time import monotonic_ns

from iotrace.agent.patching import hide_frame, observe, pass_for, patch
from iotrace.agent.pools import queues, tasks
from iotrace.agent.pools.callers import PROGRAMS, whose_file
from iotrace.agent.pools.queues import Channel
from iotrace.agent.recording.recorder import Recorder
from iotrace.agent.recording.thread_clocks import current
from iotrace.session.guard import ours

TYPE_CHECKING = False  # `typing` costs half of the agent's start-up
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

_WHAT = "recording a result that was awaited"

_PASSED_NS = 700  # a call of a selector costs so much more, between other calls
_AWAKE = (0, 0)
# By a thread's id: until when its selector slept, and how long since the last result, in ns.
_slept: dict[int, tuple[int, int]] = {}
# What has come from pools since then, when the wait for it began (0: nobody waited), whether a timer ran.
# Coroutines go on when the selector has been asked once more.
_come: dict[int, list[tuple[tasks.Task, int, bool]]] = {}


def hook_selectors(module: Any, recorder: Recorder) -> None:
    """Patch what the loops of `module`, ``asyncio.selector_events``, sleep in."""
    patch(module.selectors.DefaultSelector, "select", partial(_select, recorder))


def _select(recorder: Recorder, original: Any) -> Any:
    passes = recorder.own_times.passed(_PASSED_NS)

    def select(self: Any, timeout: float | None = None) -> Any:
        passes()
        start_ns = 0 if timeout == 0 else monotonic_ns()  # most are asked while there is work
        try:
            events = original(self, timeout)
        except BaseException as error:
            hide_frame(error)
            raise
        if events and start_ns:
            end_ns, tid = monotonic_ns(), current.thread.tid
            _slept[tid] = end_ns, _slept.get(tid, _AWAKE)[1] + end_ns - start_ns
        elif _come and (come := _come.pop(current.thread.tid, None)):
            try:
                for task, asked_ns, timed in come:
                    tasks.take(task, asked_ns or monotonic_ns(), False, recorder, of_program=True)
                    if timed and task.pool is not None:
                        tasks.note_doubt(task.pool, tasks.TIMED, recorder)
            except ours(Exception) as error:
                recorder.absorb(error, _WHAT)
        return events

    return select


def hook_futures(module: Any, recorder: Recorder) -> None:
    """Patch ``asyncio.futures``, `module`: where a coroutine's future gets a pool's result."""

    def copied(_: Any, __: Any, args: Sequence[Any], ___: dict[str, Any]) -> None:
        source, future = args
        task = getattr(source, "__dict__", {}).get(tasks.OF_FUTURE)
        if task is tasks.UNFOLLOWED:  # what is slept for a library's own is slept for the next result
            return
        tid = current.thread.tid
        end_ns, slept_ns = _slept.pop(tid, _AWAKE)
        if task is None or task.taken or recorder.over or future.cancelled() or source.exception():
            return
        # A coroutine that sleeps may be the one that trains: then nobody has waited.
        timed = bool(slept_ns and getattr(future.get_loop(), "_scheduled", None))
        _come.setdefault(tid, []).append((task, end_ns - slept_ns, timed))

    observe(module, "_copy_future_state", recorder, _WHAT, after=recorder.own_times.sampled(copied))


def hook_queues(module: Any, recorder: Recorder) -> None:
    """Patch `module`, ``asyncio.queues``: what a coroutine of the program takes there.

    Who made it is not recorded: coroutines share one thread, which may have made others meanwhile.
    """
    patch(module.Queue, "get", partial(_get, recorder))


def _get(recorder: Recorder, original: Any) -> Any:
    async def get(self: Any) -> Any:
        asked_ns = monotonic_ns()
        lying = len(getattr(self, "_queue", ()))
        try:
            item = await original(self)
        except BaseException as error:
            hide_frame(error)
            raise
        try:
            frame = sys._getframe(1)  # asked now: a coroutine that nobody awaits again shall be no cycle
            if not recorder.over and whose_file(frame.f_code.co_filename) == PROGRAMS:
                channel = queues.channels.get(self)
                if channel is None:
                    channel = Channel(f"asyncio.{type(self).__name__}", self.maxsize)
                    queues.channels.put(self, channel)
                if not channel.is_fast:
                    channel.counted += 1
                    if not channel.counted % queues.LOOK_EVERY:
                        channel.look(asked_ns, recorder)
                    known = channel.next_item(), None, None
                    queues.took(channel, item, known, asked_ns, lying, frame, recorder)
        except ours(Exception) as error:
            recorder.absorb(error, _WHAT)
        return item

    pass_for(get, original)
    return get


def after_fork_in_child() -> None:
    """Forget the parent's threads."""
    _slept.clear()
    _come.clear()
