"""Record the calls that train without torch, such as ``partial_fit``: the turns of a loop.

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

WHAT = "recording a call that trains"
_SHORTEST_S = 0.005  # between two samples
_OUTWARDS = 8  # frames in which the loop is looked for
_METHODS = ("partial_fit", "train_on_batch")
TRAINS, COMPUTES, AWAITS, FAST = "trains", "computes", "awaits", "fast"
WITHIN = "within"  # it asks for its batch itself
Begun = tuple["Site", int]  # where, and when it began

_calls: Calls | None = None


def hook_calls(module: Any, recorder: Recorder, name: str) -> None:
    """Patch the methods that train, of each class that the module `name` defines with one."""
    calls = calls_of(recorder)

    def observed(owner: Any, attribute: str, method: str) -> None:
        def before(args: list[Any], _: dict[str, Any]) -> Begun | None:
            return calls.begin(f"{type(args[0]).__name__}.{method}", sys._getframe(1))

        def ended(begun: Begun | None, *_: Any) -> None:
            if begun is not None:
                calls.end(begun, TRAINS)

        observe(owner, attribute, recorder, WHAT, before=before, ended=ended, layer="step")

    for kind in [
        each for each in vars(module).values() if isinstance(each, type) and each.__module__ == name
    ]:
        for method in _METHODS:
            own = vars(kind).get(method)
            if hasattr(own, "fn"):  # a method that is there for some estimators alone
                observed(own, "fn", method)
            elif own is not None:
                observed(kind, method, method)


def hook_fit(module: Any, recorder: Recorder) -> None:
    """Patch `module`, ``keras.src.callbacks.callback_list``: what is called around each step of `fit`.

    TensorFlow asks for the batch within the step, which it has compiled: nobody else sees that wait. Where it
    does not know how many batches there are, an epoch ends with a step that begins, finds no batch, and has
    no end.
    """
    calls, begun = calls_of(recorder), list[Begun]()

    def drop(*_: Any) -> None:
        if begun:
            begun.clear()
            calls.drop()

    def before(*_: Any) -> None:
        drop()
        keras = sys.modules.get("keras.src.backend.config")
        if keras is not None and keras.backend() == "tensorflow":
            found = calls.begin("fit", _program_of(sys._getframe(1)))
            begun[:] = [] if found is None else [found]

    def after(*_: Any) -> None:
        if begun:
            calls.end(begun.pop(), WITHIN)

    observe(module.CallbackList, "on_train_batch_begin", recorder, WHAT, before=before)
    observe(module.CallbackList, "on_train_batch_end", recorder, WHAT, before=after)
    observe(module.CallbackList, "on_epoch_end", recorder, WHAT, before=drop)


def _program_of(frame: Any) -> Any:
    """Return the innermost frame of the program's own code, or None."""
    while frame is not None and whose_file(frame.f_code.co_filename) != PROGRAMS:
        frame = frame.f_back
    return frame


class Site:
    """Where the program makes such a call: its number, what is called, and its record."""

    def __init__(self, called: str, about: dict[str, Any]) -> None:
        self.called, self.about = called, about
        self.number: int = about["site"]
        self.described = self.is_fast = False
        self.counted = self.looked_ns = 0


class Calls:
    """The calls that train, in turn: one at a time, as others within it are parts of it.

    `open` says that one is under way, `since` when the last one ended.
    """

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder
        self.open = False
        self._sites: dict[tuple[Any, int, str], Site] = {}
        self._since: list[tasks.Begun] = []

    def begin(self, called: str, frame: Any, awaits: bool = False) -> Begun | None:
        """Begin with a call of the code in `frame`; None where it is no call of the program's loop.

        One that `awaits` what was computed counts behind another call alone.
        """
        recorder, thread = self.recorder, current.thread
        if recorder.over or self.open or thread.depth or not queues.is_main(thread.tid):
            return None
        whose, frame = who_calls(frame)
        if whose != PROGRAMS or frame is None or (awaits and not self._since):
            return None
        key = frame.f_code, frame.f_lineno, called
        site = self._sites.get(key)
        if site is None:
            site = self._sites[key] = _site(frame, called, recorder, awaits)
        if site.is_fast:
            return None
        begun = tasks.begin_task()
        find_border()[0] = begun[1]
        if self._since and not awaits:
            between = f"between calls of {called}"
            recorder.spans.append(tasks.span_of(recorder, self._since.pop(), begun, between))
        self.open = True
        return site, begun[1]

    def drop(self) -> None:
        """Forget the call that is under way: it trained nothing. The next one may begin."""
        self.open = False
        self._since[:] = [tasks.begin_task()]

    def end(self, begun: Begun, kind: str) -> None:
        """End the call; of which `kind` it is shows in the first one of a place."""
        self.open = False
        site, start_ns = begun
        self._since[:] = [tasks.begin_task()]
        thread, end_ns = self._since[0][:2]
        find_border()[0] = end_ns
        if not site.described:
            site.described = True
            self.recorder.records.append({**site.about, "kind": kind})
            if kind == TRAINS and self.recorder.startup is not None:  # a library had imported torch
                training.end_startup(self.recorder, with_torch=False)
        self.recorder.records.append((TURN_ROW, site.number, thread.tid, start_ns, end_ns))
        site.counted += 1
        if not site.counted % queues.LOOK_EVERY:
            site.is_fast = end_ns - site.looked_ns < queues.LOOK_EVERY * queues.FAST_NS
            site.looked_ns = end_ns
            if site.is_fast:
                self.recorder.records.append({**site.about, "kind": FAST})


def calls_of(recorder: Recorder) -> Calls:
    """Return the calls that this recorder knows."""
    global _calls
    if _calls is None or _calls.recorder is not recorder:
        _calls = Calls(recorder)
    return _calls


def _site(frame: Any, called: str, recorder: Recorder, awaits: bool) -> Site:
    """Describe where the program makes such a call, and have its loop sampled."""
    number = training.number_iterator(recorder)
    loop, feeds = (frame, Feeds("", [])) if awaits else _loop_of(frame, called.rpartition(".")[2])
    code = loop.f_code
    about = {
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
    locked = getattr(sys, "_is_gil_enabled", None)
    if feeds.lines and recorder.loop_stacks is None and (locked is None or locked()):
        recorder.pause()  # the writer, which samples, may have begun to sleep
        recorder.loop_stacks = LoopStacks(recorder, _SHORTEST_S)
    recorder.start_loop()
    return Site(called, about)


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
