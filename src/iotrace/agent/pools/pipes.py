"""Record what processes hand to each other by queues and pipes of ``multiprocessing``.

What is sent stays as it is. An item is known by its bytes, their number and a checksum of some of them, and a
pipe by its inode: both sides see these. The sender records how the item was made, the receiver who took it.
"""

from __future__ import annotations

import sys
from _functools import partial  # type: ignore[import-not-found]  # `functools` is five files to read
from binascii import crc32
from time import monotonic_ns

from iotrace.agent.patching import MARKER, WeakTable, hide_frame, observe, on_undo, patch
from iotrace.agent.pools import queues, tasks, workers
from iotrace.agent.pools.beside import Beside
from iotrace.agent.pools.callers import OTHERS, known_files, who_calls
from iotrace.agent.pools.queues import Channel, channels, has_put, stamp
from iotrace.agent.recording.recorder import Recorder
from iotrace.agent.recording.thread_clocks import current
from iotrace.session.guard import ours
from iotrace.session.names import MADE_ROW

TYPE_CHECKING = False  # `typing` costs half of the agent's start-up
if TYPE_CHECKING:
    from types import FrameType
    from typing import Any

    from iotrace.agent.pools.queues import Stamp

    Outgoing = tuple[Channel, Stamp]

_WHAT = "recording a hand-over"
_LAYER, _MAKING = "items", "making"
_WHOLE_BYTES = 4096  # of a longer message these parts are summed up
_PARTS, _PART_BYTES = 8, 256

_numbers = WeakTable()  # of pipes, by a connection
_outgoing = Beside()  # of items that are to be sent
_sending: dict[int, Outgoing] = {}  # by a thread's id: what it has pickled, and sends next
# By a thread's id: the pipe, the item that it got, and if that is large, when its bytes had come.
_receiving: dict[int, tuple[int, int, int] | None] = {}
_NOT = (0, 0, 0)  # receiving
_is_stage = False  # this process makes items for another one
_has_put = False  # or for one of its own threads
_follows = False  # pipes and queues are patched

_MAKERS = ("multiprocessing/context.py", "multiprocessing/queue.py", "multiprocessing/queues.py")


def watch_connections(module: Any, recorder: Recorder) -> None:
    """Patch the pipes of `module`, ``multiprocessing.connection``, once the program makes one, or a queue.

    Most processes have those of a DataLoader alone: each of its batches would pay for them.
    """
    if _follows:
        hook_connections(module, recorder)
    patch(module, "Pipe", partial(_make, recorder), _MAKING)


def watch_queues(module: Any, recorder: Recorder) -> None:
    """Patch the queues of `module`, ``multiprocessing.queues``, once the program makes one, or a pipe."""
    if _follows:
        hook_queues(module, recorder)
    for kind in (module.Queue, module.SimpleQueue):
        patch(kind, "__init__", partial(_make, recorder), _MAKING)


def hook_children(module: Any, recorder: Recorder) -> None:
    """Patch both in a process that another one spawned, by `module`, ``multiprocessing.spawn``."""
    observe(module, "_main", recorder, _WHAT, before=lambda *_: follow(recorder))


def follow(recorder: Recorder) -> None:
    """Patch pipes and queues, as far as they are imported; the rest is, when it is."""
    global _follows
    if _follows:
        return
    _follows = True
    on_undo(_unfollow)
    for name, hook in (("connection", hook_connections), ("queues", hook_queues)):
        module = sys.modules.get(f"multiprocessing.{name}")
        if module is not None:
            hook(module, recorder)


def _unfollow() -> None:
    global _follows
    _follows = False


def _make(recorder: Recorder, original: Any) -> Any:
    def make(*args: Any, **kwargs: Any) -> Any:
        try:
            frame: Any = None if _follows or recorder.over else sys._getframe(1)
            while frame is not None and frame.f_code.co_filename.endswith(_MAKERS):
                frame = frame.f_back
            if frame is not None and who_calls(frame)[0] != OTHERS:
                follow(recorder)
        except ours(Exception) as error:
            recorder.absorb(error, _WHAT)
        try:
            return original(*args, **kwargs)
        except BaseException as error:
            hide_frame(error)
            raise

    return make


def hook_connections(module: Any, recorder: Recorder) -> None:
    """Patch the pipes of `module`, ``multiprocessing.connection``."""
    patch(module.Connection, "send", partial(_put, recorder), _LAYER)
    patch(module.Connection, "recv", partial(_get, recorder), _LAYER)
    patch(module.Connection, "_send_bytes", partial(_send_bytes, recorder), _LAYER)
    patch(module.Connection, "_recv_bytes", partial(_recv_bytes, recorder), _LAYER)
    _hook_dumps(module._ForkingPickler)


def hook_queues(module: Any, recorder: Recorder) -> None:
    """Patch the queues of `module`, ``multiprocessing.queues``."""
    for kind in (module.Queue, module.JoinableQueue, module.SimpleQueue):
        for name, make in (("put", _put), ("get", _get)):
            if name in vars(kind):
                patch(kind, name, partial(make, recorder), _LAYER)


def _put(recorder: Recorder, original: Any) -> Any:
    def put(self: Any, *args: Any, **kwargs: Any) -> Any:
        put_by = None
        # Of other code than the program's, as a DataLoader's own queues, nothing is asked further.
        if known_files.get(sys._getframe(1).f_code.co_filename) != OTHERS and not recorder.over:
            try:
                whose, frame = who_calls(sys._getframe(1))
                if whose and (args or "obj" in kwargs) and not tasks.in_loader_worker():
                    if not _has_put:
                        _first_put(recorder, frame)
                    channel = channels.get(self) or _know(self)
                    item = args[0] if args else kwargs["obj"]
                    put_by = None if channel.is_fast else stamp(channel, item, frame, recorder)
                    known = None if put_by is None else channel.stamps.let_go(item, last=True)
                    if known is not None:
                        _outgoing.hold(item, (channel, known))
            except ours(Exception) as error:
                recorder.absorb(error, _WHAT)
        try:
            result = original(self, *args, **kwargs)
        except BaseException as error:
            if put_by is not None:
                _outgoing.let_go(item, last=True)
            hide_frame(error)
            raise
        if put_by is not None:
            has_put(*put_by)
        return result

    return put


def _first_put(recorder: Recorder, frame: FrameType | None) -> None:
    """Sample what this thread does, if another process has started this one."""
    global _has_put
    _has_put = True
    if getattr(sys.modules["multiprocessing.process"].current_process(), "_identity", ()):
        workers.sample(recorder, frame)


def _know(end: Any) -> Channel:
    """Know a queue or the end of a pipe."""
    kind = type(end)
    of_pipe = hasattr(end, "_send_bytes") and hasattr(end, "fileno")
    pipe = end if of_pipe else end._reader
    made_by = "multiprocessing.Pipe" if of_pipe else f"multiprocessing.{kind.__name__}"
    channel = Channel(made_by, getattr(end, "_maxsize", 0), _number(pipe))
    if channel.limit >= _UNBOUNDED:
        channel.limit = 0
    channels.put(end, channel)
    return channel


_UNBOUNDED = 1 << 15  # the most that a semaphore counts, which stands for a queue without a limit


def _number(pipe: Any) -> int:
    number: int | None = _numbers.get(pipe)
    if number is None:
        number = tasks.number_of(pipe)
        _numbers.put(pipe, number)
    return number


def _hook_dumps(kind: Any) -> None:
    """Patch a class method, which `patch` cannot: what a thread has pickled, it sends next."""
    original = vars(kind)["dumps"]
    function = original.__func__
    if hasattr(function, MARKER):
        return

    def dumps(cls: Any, obj: Any, *args: Any, **kwargs: Any) -> Any:
        tid = current.thread.tid
        _sending.pop(tid, None)
        own = _outgoing.let_go(obj) if _outgoing else None
        try:
            pickled = function(cls, obj, *args, **kwargs)
        except BaseException as error:
            hide_frame(error)
            raise
        if own is not None:
            _sending[tid] = own
        return pickled

    for attribute in ("__module__", "__name__", "__qualname__", "__doc__"):
        setattr(dumps, attribute, getattr(function, attribute))
    setattr(dumps, MARKER, function)
    kind.dumps = replacement = classmethod(dumps)

    def undo() -> None:
        if vars(kind).get("dumps") is replacement:
            kind.dumps = original

    on_undo(undo)


def _send_bytes(recorder: Recorder, original: Any) -> Any:
    def send_bytes(self: Any, buf: Any) -> None:
        own = _sending.pop(current.thread.tid, None) if _sending else None
        if own is not None and not recorder.over:
            try:
                _made(*own, self, buf, recorder)
            except ours(Exception) as error:
                recorder.absorb(error, _WHAT)
        began_ns = monotonic_ns()
        try:
            original(self, buf)
        except BaseException as error:
            hide_frame(error)
            raise
        if own is not None and own[1][1] is not None:
            try:
                workers.note_sent(recorder, _number(self), _key(buf), began_ns, buf)
            except ours(Exception) as error:
                recorder.absorb(error, _WHAT)

    return send_bytes


def _made(channel: Channel, known: Stamp, pipe: Any, buf: Any, recorder: Recorder) -> None:
    """Record how an item was made that is sent now."""
    if not _is_stage:
        _begin_stage(channel, recorder)
    if not channel.described:
        tasks.describe(channel, channel.name, recorder)
    _, made, span = known
    if made is None:
        return
    if span is not None:
        recorder.spans.append(span)
    recorder.records.append((MADE_ROW, _number(pipe), _key(buf), *made[3:]))
    if _is_stage:
        recorder.flush_soon()  # the process may be ended by a signal


def _begin_stage(channel: Channel, recorder: Recorder) -> None:
    """Say that this process works for the one that started it, where one did."""
    global _is_stage
    process: Any = sys.modules.get("multiprocessing.process")
    number = getattr(process.current_process(), "_identity", ())
    recorder.start()
    if number:
        _is_stage = True
        about = {"worker": number[0] - 1, "pool": channel.number, "mono_ns": monotonic_ns()}
        recorder.records.append({"type": "pool_worker", **about})


def _key(buf: Any) -> int:
    """Number a message by its length and some of its bytes."""
    data = memoryview(buf).cast("B")
    size = len(data)
    if size <= _WHOLE_BYTES:
        found = crc32(data)
    else:
        found, apart = 0, (size - _PART_BYTES) // (_PARTS - 1)
        for first in range(0, _PARTS * apart, apart):
            found = crc32(data[first : first + _PART_BYTES], found)
    return (found >> 1) << 30 | (size & (1 << 30) - 1)


def _recv_bytes(recorder: Recorder, original: Any) -> Any:
    def recv_bytes(self: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            buf = original(self, *args, **kwargs)
        except BaseException as error:
            hide_frame(error)
            raise
        # The first is the item's: to unpickle it, others may be asked for a file's descriptor.
        if _receiving and _receiving.get(tid := current.thread.tid, _NOT) is None:
            try:
                data = buf.getbuffer()
                came_ns = monotonic_ns() if len(data) >= workers.LARGE_BYTES else -1
                _receiving[tid] = _number(self), _key(data), came_ns
            except ours(Exception) as error:
                recorder.absorb(error, _WHAT)
        return buf

    return recv_bytes


def _get(recorder: Recorder, original: Any) -> Any:
    def get(self: Any, *args: Any, **kwargs: Any) -> Any:
        if known_files.get(sys._getframe(1).f_code.co_filename) == OTHERS:
            try:
                return original(self, *args, **kwargs)
            except BaseException as error:
                hide_frame(error)
                raise
        tid, follows = current.thread.tid, False
        if not recorder.over and tid not in _receiving:
            try:
                follows = bool(who_calls(sys._getframe(1))[0]) and not tasks.in_loader_worker()
                length = _length(self) if follows else -1
            except ours(Exception) as error:
                recorder.absorb(error, _WHAT)
        if follows:
            _receiving[tid] = None
        asked_ns = monotonic_ns()
        try:
            item = original(self, *args, **kwargs)
        except BaseException as error:
            if follows:
                _receiving.pop(tid, None)
                if (channel := channels.get(self)) is not None:
                    channel.asked.setdefault(tid, asked_ns)
            hide_frame(error)
            raise
        if follows:
            try:
                got = _receiving.pop(tid, None)
                if got is not None:
                    channel = channels.get(self) or _know(self)
                    if not channel.is_fast:
                        channel.counted += 1
                        if not channel.counted % queues.LOOK_EVERY:
                            channel.look(asked_ns, recorder)
                        known = got[1], None, None
                        frame = sys._getframe(1)
                        queues.took(channel, item, known, asked_ns, length, frame, recorder, got[2])
            except ours(Exception) as error:
                recorder.absorb(error, _WHAT)
        return item

    return get


def _length(queue: Any) -> int:
    """Count the items in a queue; -1 where it does not say."""
    limit, taken = getattr(queue, "_maxsize", None), getattr(queue, "_sem", None)
    return -1 if limit is None or taken is None else limit - taken._semlock._get_value()


def after_fork_in_child() -> None:
    """Forget the parent's threads."""
    global _is_stage, _has_put
    _is_stage = _has_put = False
    _outgoing.clear()
    _sending.clear()
    _receiving.clear()
