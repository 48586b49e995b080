"""Record what threads hand to each other by ``queue.Queue`` and ``SimpleQueue``: who made each item, when.

What is known of an item lies beside its queue, by the item's identity, until a thread takes it. A thread has
made an item since it last put one into the same queue; what it took from other queues meanwhile are rows of
their own, so that the work is followed from queue to queue. Only code of the program, or of a library that
feeds loops, counts: logging, pools and others have queues, too.
"""

from __future__ import annotations

import os
import sys
from _functools import partial  # type: ignore[import-not-found]  # `functools` is five files to read
from itertools import count
from time import monotonic_ns, thread_time_ns

from iotrace.agent.patching import TIMED_EVERY, WeakTable, hide_frame, on_undo, patch
from iotrace.agent.pools import results, tasks
from iotrace.agent.pools.beside import MOST, Beside
from iotrace.agent.pools.callers import (
    BETWEEN,
    FEEDS,
    OTHERS,
    PROGRAMS,
    known_files,
    name_of,
    names_apart,
    who_calls,
)
from iotrace.agent.pools.tasks import begin_task, later_span_of, running
from iotrace.agent.recording.borders import note_lock_wait
from iotrace.agent.recording.recorder import Recorder
from iotrace.agent.recording.thread_clocks import current
from iotrace.agent.unpatched import get_ident
from iotrace.session.guard import ours
from iotrace.session.names import HANDED_ROW, MADE_ROW

TYPE_CHECKING = False  # `typing` costs half of the agent's start-up
if TYPE_CHECKING:
    from types import FrameType
    from typing import Any

    from iotrace.agent.pools.tasks import Begun, LaterSpan, Span
    from iotrace.agent.recording.thread_clocks import Thread

    # An item's number, its `MADE_ROW`, and the span of its making, where that was timed.
    Stamp = tuple[int, tuple[int, ...] | None, Span | LaterSpan | None]

_WHAT = "recording a hand-over"
LAYER = "items"  # `handovers` records waits at the same methods
_SHORT_NS = 100_000  # an item that is made as quickly is not timed: that would take a part of it
_AT_ONCE_NS = 20_000  # a `put` that waits for no room returns sooner
_MOST_MAKERS = 256  # of a thread
# Items that come faster are followed no longer: to record them would slow the program, and fill its memory.
FAST_NS, LOOK_EVERY = 50_000, 8192  # ns, items

_SHORT_LIVED_NS, _LOOK_AT_NEW_EVERY = 2_000_000, 256  # ns, queues: likewise of new ones

channels = WeakTable()  # by a queue
held_by = channels.held.get
_new, _looked_at_new_ns = 0, 0
_main = os.getpid()  # the main thread's id, as the kernel has it
_child: bool | None = None  # ``multiprocessing`` has started this process


class Maker:
    """A thread that puts into a queue: when its last `put` ended, and its clocks then if they were read."""

    __slots__ = ("begun", "file", "function", "name", "since_ns", "site")

    def __init__(self) -> None:
        self.since_ns = -1
        self.file = self.function = self.name = ""
        self.site: Any = None  # the code that puts, where only that of one place does
        self.begun: Begun | None = None

    def called(self, frame: FrameType | None) -> str:
        """Name the function that puts, mostly the one that did before."""
        if frame is not None:
            code = frame.f_code
            if code.co_name is not self.function or code.co_filename is not self.file:
                self.function, self.file, self.name = code.co_name, code.co_filename, name_of(frame)
        return self.name


class Channel(tasks.Pool):
    """A queue's number and class, what is known of the items in it, and of the threads that put there."""

    def __init__(self, made_by: str, limit: int, number: int = 0) -> None:
        self.number = number or tasks.next_pool()
        self.made_by, self.limit, self.workers = made_by, max(limit, 0), 0
        self.taking: Any = None
        self.doubts: set[str] = set()
        self.name = ""  # of the function that put the first item
        self.apart: list[str] = []
        self.sites: dict[str, str] = {}
        self.next_item = count().__next__
        self.stamps = Beside()  # of items
        self.asked: dict[int, int] = {}  # by a thread's id: since when it asks in vain
        self.described = self.ignored = False

    def look(self, now_ns: int, recorder: Recorder) -> None:
        """Look at the time after some items; of too many in a short time none is followed any more."""
        if now_ns - self.looked_ns < LOOK_EVERY * FAST_NS:
            self.is_fast = True
            self.stamps.clear()
            tasks.note_doubt(self, tasks.FAST, recorder)
        self.looked_ns = now_ns


def hook_queues(module: Any, recorder: Recorder) -> None:
    """Patch ``queue.Queue`` and ``queue.SimpleQueue``."""
    for kind, names in ((module.Queue, ("",)), (module.SimpleQueue, ("", "_nowait"))):
        for name in names:  # `Queue.put_nowait` calls `put`
            patch(kind, f"put{name}", partial(_put, recorder), LAYER)
            patch(kind, f"get{name}", partial(_get, recorder), LAYER)
    on_undo(_forget_items)  # a queue may outlive the session, and be used in the next one


def _put(recorder: Recorder, original: Any) -> Any:
    counted, times = 0, recorder.own_times

    def put(self: Any, *args: Any, **kwargs: Any) -> Any:
        nonlocal counted
        put_by = None
        if not recorder.over:
            counted += 1
            begun_ns = 0 if counted % TIMED_EVERY else thread_time_ns()
            try:
                caller = sys._getframe(1)
                whose = known_files.get(caller.f_code.co_filename, BETWEEN)
                frame = caller if whose != BETWEEN else None
                if frame is None:
                    whose, frame = who_calls(caller)
                if whose == FEEDS and _runs_coroutines():
                    whose = OTHERS  # many stages share the thread of a library's event loop
                if not whose and tasks.running and tasks.is_task(frame):
                    whose, frame = PROGRAMS, None  # the program has a pool's thread put it
                if whose and (args or "item" in kwargs):
                    held = held_by(id(self))
                    channel = held[1] if held is not None and held[0]() is self else _know(self)
                    if not channel.is_fast:
                        item = args[0] if args else kwargs["item"]
                        put_by = stamp(channel, item, frame, recorder)
            except ours(Exception) as error:
                recorder.absorb(error, _WHAT)
            if begun_ns:
                times.add(begun_ns)
        try:
            result = original(self, *args, **kwargs) if kwargs else original(self, *args)
        except BaseException as error:
            if put_by is not None:
                channel.stamps.let_go(item, last=True)
            hide_frame(error)
            raise
        if put_by is not None:
            maker, start_ns, ended = put_by
            maker.begun, maker.since_ns = ended, monotonic_ns()
            if ended is not None and maker.since_ns - start_ns >= _AT_ONCE_NS:
                has_put(maker, start_ns, ended)
        return result

    return put


def _get(recorder: Recorder, original: Any) -> Any:
    counted, times = 0, recorder.own_times

    def get(self: Any, *args: Any, **kwargs: Any) -> Any:
        channel, length, held = None, 0, held_by(id(self))
        if held is not None and held[0]() is self and not recorder.over:
            channel = held[1]
            length = channel.stamps.count
        thread = current.thread
        waits = thread.lock_waits
        lock_ns, asked_ns = 0 if waits is None else waits[0], monotonic_ns()
        try:
            item = original(self, *args, **kwargs) if kwargs else original(self, *args)
        except BaseException as error:
            if channel is not None:
                channel.asked.setdefault(thread.tid, asked_ns)
            hide_frame(error)
            raise
        nonlocal counted
        counted += 1
        begun_ns = 0 if counted % TIMED_EVERY else thread_time_ns()
        try:
            channel = channel or (None if recorder.over else channels.get(self))
            known = None
            if channel is not None:
                known = channel.stamps.pop(id(item), None)
                if type(known) is tuple:  # one call less for each item
                    channel.stamps.count -= 1
                elif known is not None:
                    known = channel.stamps.let_go(item, of=known)
            if channel is not None and known is not None:
                taken_ns = took(channel, item, known, asked_ns, length, sys._getframe(1), recorder)
                if channel.taking is not None:
                    note_lock_wait(lock_ns, asked_ns, recorder, thread, taken_ns)
        except ours(Exception) as error:
            recorder.absorb(error, _WHAT)
        if begun_ns:
            times.add(begun_ns)
        return item

    return get


def _runs_coroutines() -> bool:
    running: Any = getattr(sys.modules.get("asyncio.events"), "_get_running_loop", None)
    return running is not None and running() is not None


def _know(queue: Any) -> Channel:
    """Know a queue, unless the program makes too many in a short time."""
    global _new, _looked_at_new_ns
    if _new < 0:
        return _unfollowed
    _new += 1
    if not _new % _LOOK_AT_NEW_EVERY:
        now_ns = monotonic_ns()
        if now_ns - _looked_at_new_ns < _LOOK_AT_NEW_EVERY * _SHORT_LIVED_NS:
            _new = -1
        _looked_at_new_ns = now_ns
    kind = type(queue)
    module = "queue" if kind.__module__ == "_queue" else kind.__module__
    channel = Channel(f"{module}.{kind.__qualname__}", getattr(queue, "maxsize", 0))
    channels.put(queue, channel)
    return channel


_unfollowed = Channel("", 0, 2)
_unfollowed.is_fast = True


def stamp(
    channel: Channel, item: Any, frame: FrameType | None, recorder: Recorder
) -> tuple[Maker, int, Begun | None]:
    """Note that this thread has made `item`, which it is about to put; return what `has_put` needs."""
    thread = current.thread
    tid, now_ns = thread.tid, monotonic_ns()
    if frame is None and get_ident() in running:
        return _stamp_result(channel, item, recorder), now_ns, None
    maker = thread.puts.get(channel.number) or maker_of(thread, channel, frame)
    since_ns, span, ended = maker.since_ns, None, None
    if since_ns < 0 or now_ns - since_ns >= _SHORT_NS:
        if not thread.sampled and recorder.loop_stacks is not None:
            sample_beside(thread, frame, recorder)
        ended = begin_task(thread)
        now_ns = ended[1]
        if maker.begun is not None:
            span = later_span_of(recorder, maker.begun, ended, maker.called(frame))
    fed = 1 if tid == _main and (_child is False or is_main(tid)) and tasks.is_much(item) else 0
    number = channel.next_item()
    made = MADE_ROW, channel.number, number, tid, since_ns, now_ns, fed
    stamps, key = channel.stamps, id(item)
    if key in stamps or len(stamps) >= MOST:
        stamps.hold(item, (number, made, span))
    else:  # one call less for each item
        stamps.count += 1
        stamps[key] = number, made, span
    channel.counted = counted = channel.counted + 1
    if not counted % LOOK_EVERY:
        channel.look(now_ns, recorder)
    return maker, now_ns, ended


def _stamp_result(channel: Channel, item: Any, recorder: Recorder) -> Maker:
    """Note who made `item`, which a pool's thread puts and has not made: another task, if it is known."""
    result = results.let_go(item)
    known: Stamp = channel.next_item(), None, None
    if result is not None:
        channel.name = channel.name or result.name
        (tid, begun_ns, ended_ns, _), since_ns = result.row, result.since_ns
        if since_ns >= 0:  # until then the thread had no task
            recorder.records.append((HANDED_ROW, -1, -1, tid, since_ns, begun_ns, -1, -1))
        made = MADE_ROW, channel.number, known[0], tid, since_ns if since_ns >= 0 else begun_ns, ended_ns, 0
        known = known[0], made, result.span
    channel.stamps.hold(item, known)
    channel.counted += 1
    if not channel.counted % LOOK_EVERY:
        channel.look(monotonic_ns(), recorder)
    return Maker()


def maker_of(thread: Thread, channel: Channel, frame: FrameType | None) -> Maker:
    """Return what is known of a thread that puts there; a program may make a queue for each request."""
    maker: Maker | None = thread.puts.get(channel.number)
    if maker is None:
        if len(thread.puts) >= _MOST_MAKERS:
            thread.puts.clear()
        maker = thread.puts[channel.number] = Maker()
        if not channel.name:
            channel.name = name_of(frame, channel.sites)
            channel.apart = names_apart(frame, channel.sites)
    return maker


def sample_beside(thread: Thread, frame: FrameType | None, recorder: Recorder) -> None:
    """Sample what this thread makes items in, once the loop's own thread is sampled."""
    if not thread.sampled and recorder.loop_stacks is not None and frame is not None:
        thread.sampled = True
        recorder.loop_stacks.beside(frame)


def has_put(maker: Maker, start_ns: int, ended: Begun | None) -> None:
    """Begin with the next item: this thread has put one."""
    maker.since_ns = now_ns = monotonic_ns()
    if ended is not None and now_ns - start_ns >= _AT_ONCE_NS:
        ended = tasks.begin_task()
        maker.since_ns = ended[1]
    maker.begun = ended


def took(
    channel: Channel,
    item: Any,
    known: Stamp,
    asked_ns: int,
    length: int,
    frame: FrameType,
    recorder: Recorder,
    arrived_ns: int = -1,
) -> int:
    """Record that this thread has taken an item: a turn of the loop, or a part of the making of another.

    Return when. `arrived_ns`: its bytes had come from another process, large as it is.
    """
    taken_ns, thread = monotonic_ns(), current.thread
    whose = known_files.get(frame.f_code.co_filename, BETWEEN)
    if whose == BETWEEN:
        whose, _ = who_calls(frame)
    tid, depth = thread.tid, thread.depth
    asked_ns = channel.asked.pop(tid, asked_ns) if channel.asked else asked_ns
    loops = (tid == _main and (_child is False or is_main(tid))) or tasks.trains()
    if not channel.described:
        channel.ignored = tasks.in_loader_worker()
        tasks.describe(channel, channel.name, recorder)
    if not whose or (loops and whose == FEEDS and not depth) or channel.ignored:
        return taken_ns
    number, made, span = known
    append = recorder.append_row  # the last row wakes the writer
    if span is not None:
        recorder.spans.append(span)
    if made is not None:  # else its maker, another process, records that
        append(made)
    if channel.limit:
        length = min(length, channel.limit)
    kind = recorder.text(type(item).__name__)
    hop = HANDED_ROW, channel.number, number, tid, asked_ns, taken_ns, length, kind
    if loops and not depth:
        append(hop)
        of_queue = channel.number, number, -1, arrived_ns
        if channel.taking is None:
            tasks.deliver(channel, channel.name, asked_ns, taken_ns, of_queue, recorder)
        else:  # one call less for each item
            channel.taking.deliver(asked_ns, taken_ns, of_queue)
    else:
        recorder.records.append(hop)
    return taken_ns


def is_main(tid: int) -> bool:
    """Whether a thread is the main one of a process whose loop it may be."""
    return tid == _main and not _is_child()


def _is_child() -> bool:
    """Whether ``multiprocessing`` has started this process: what it takes it may pass on."""
    global _child
    if _child is None:
        process: Any = sys.modules.get("multiprocessing.process")
        _child = process is not None and process.parent_process() is not None
    return _child


def after_fork_in_child() -> None:
    """Forget the parent's threads, and what its loop took."""
    global _main, _child
    _main, _child = os.getpid(), None
    _forget_items()


def _forget_items() -> None:
    for queue in channels.alive():
        channel = channels.get(queue)
        channel.asked.clear()
        channel.stamps.clear()
        channel.forget()
