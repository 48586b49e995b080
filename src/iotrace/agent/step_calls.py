"""Record the calls that train a model without torch, such as ``partial_fit``: the turns of a loop.

Such a loop has no loader: its own lines make what the call is given. Which lines these are is found once, in
the loop's source; where the loop is between two calls is sampled. Only the main thread's calls
count, and only those that the program itself makes: estimators call each other.
"""

from __future__ import annotations

import linecache
import sys
from time import monotonic_ns
from typing import Any

from iotrace.agent import training
from iotrace.agent.loop_feeds import Feeds, feeds_of
from iotrace.agent.patching import observe
from iotrace.agent.pools import queues, tasks
from iotrace.agent.pools.callers import PROGRAMS, who_calls, whose_file
from iotrace.agent.recording.borders import find_border
from iotrace.agent.recording.loop_stacks import LoopStacks
from iotrace.agent.recording.recorder import Recorder
from iotrace.agent.recording.thread_clocks import current
from iotrace.session.names import TURN_ROW

_WHAT = "recording a call that trains"
_SHORTEST_S = 0.005  # between two samples
_OUTWARDS = 8  # frames in which the loop is looked for
_METHODS = ("partial_fit", "train_on_batch")


def hook_calls(module: Any, recorder: Recorder, name: str) -> None:
    """Patch the methods that train, of each class that the module `name` defines with one."""
    sites: dict[tuple[Any, int], int] = {}
    since: list[tasks.Begun] = []  # the end of the last call

    def observed(owner: Any, attribute: str, method: str) -> None:
        def before(args: list[Any], _: dict[str, Any]) -> tuple[int, int] | None:
            thread = current.thread
            if recorder.over or thread.depth or not queues.is_main(thread.tid):
                return None
            whose, frame = who_calls(sys._getframe(1))
            if whose != PROGRAMS or frame is None:
                return None
            key = frame.f_code, frame.f_lineno
            site = sites.get(key)
            called = f"{type(args[0]).__name__}.{method}"
            if site is None:
                site = sites[key] = _site(frame, called, recorder)
            begun = tasks.begin_task()
            find_border()[0] = begun[1]
            if since:
                recorder.spans.append(
                    tasks.span_of(recorder, since.pop(), begun, f"between calls of {called}")
                )
            return site, begun[1]

        def ended(begun: tuple[int, int] | None, *_: Any) -> None:
            if begun is not None:
                since[:] = [tasks.begin_task()]
                thread, end_ns = since[0][:2]
                find_border()[0] = end_ns
                recorder.records.append((TURN_ROW, begun[0], thread.tid, begun[1], end_ns))

        observe(owner, attribute, recorder, _WHAT, before=before, ended=ended, layer="step")

    for kind in [
        each for each in vars(module).values() if isinstance(each, type) and each.__module__ == name
    ]:
        for method in _METHODS:
            own = vars(kind).get(method)
            if hasattr(own, "fn"):  # a method that is there for some estimators alone
                observed(own, "fn", method)
            elif own is not None:
                observed(kind, method, method)


def _site(frame: Any, called: str, recorder: Recorder) -> int:
    """Describe where the program makes such a call, and have its loop sampled; return the site's number."""
    number = training.number_iterator(recorder)
    loop, feeds = _loop_of(frame, called.rpartition(".")[2])
    code = loop.f_code
    recorder.records.append(
        {
            "type": "step_call",
            "site": number,
            "called": called,
            "file": code.co_filename,
            "line": loop.f_lineno,
            "first_line": code.co_firstlineno,
            "feeds": feeds.lines,
            "by": feeds.name,
            "mono_ns": monotonic_ns(),
        }
    )
    locked = getattr(sys, "_is_gil_enabled", None)
    if feeds.lines and recorder.loop_stacks is None and (locked is None or locked()):
        recorder.pause()  # the writer, which samples, may have begun to sleep
        recorder.loop_stacks = LoopStacks(recorder, _SHORTEST_S)
    recorder.start_loop()
    return number


def _loop_of(frame: Any, called: str) -> tuple[Any, Feeds]:
    """Find the frame whose loop holds the call, and what feeds it there."""
    outer: Any = frame
    for _ in range(_OUTWARDS):
        if outer is None or whose_file(outer.f_code.co_filename) != PROGRAMS:
            break
        source = "".join(linecache.getlines(outer.f_code.co_filename, outer.f_globals))
        found = feeds_of(source, outer.f_lineno, called) if source else None
        if found is not None:
            return outer, found
        outer, called = outer.f_back, outer.f_code.co_name
    return frame, Feeds("", [])
