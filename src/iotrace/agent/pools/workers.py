"""What processes do that work for a pool of their parent's: make tasks, which come and go through pipes."""

from __future__ import annotations

import sys
from time import monotonic_ns

from iotrace.agent.patching import StandIn
from iotrace.agent.pools import tasks
from iotrace.agent.recording.recorder import Recorder
from iotrace.session.guard import ours
from iotrace.session.names import GIVEN_ROW, SENT_ROW

TYPE_CHECKING = False  # `typing` costs half of the agent's start-up
if TYPE_CHECKING:
    from types import FrameType
    from typing import Any

_SAMPLED_S, _MOST_SAMPLES = 0.05, 64  # of its stack, and of a record: it may be ended at any moment
LARGE_BYTES = 1 << 20  # a message: to pickle, write, read and unpickle it takes milliseconds


def sample(recorder: Recorder, within: FrameType | None = None) -> None:
    """Sample what this thread computes, which makes items for another process; `within`: where it does so."""
    try:
        from iotrace.agent.recording.loop_stacks import LoopStacks

        if recorder.loop_stacks is None:
            loop = within or sys._getframe(1)
            recorder.loop_stacks = LoopStacks(recorder, _SAMPLED_S, _MOST_SAMPLES, loop=loop)
    except ours(Exception) as error:
        recorder.absorb(error, "sampling a process of a pool")


class Worker(tasks.Pace):
    """The state of this process, which works for a pool of its parent's."""

    def __init__(self, pool: int, recorder: Recorder) -> None:
        tasks.works_for_pool = True
        self.pool, self.recorder = pool, recorder
        self.task, self.name, self.fed, self.parts = -1, "", False, 1
        self.feeds = False  # a library makes batches so
        self.made = -1  # the task whose result is sent next
        self.came = (-1, 0)  # a large task, which is unpickled next: when its bytes had come, how many
        self.begun: tasks.Begun | None = None
        process: Any = sys.modules.get("multiprocessing.process")
        number = (*getattr(process.current_process(), "_identity", ()), 1)[0] - 1
        about = {"worker": number, "pool": pool, "mono_ns": monotonic_ns()}
        recorder.records.append({"type": "pool_worker", **about})
        recorder.start()
        sample(recorder)

    def idle(self, empty: bool) -> None:
        """Write what there is before there is nothing to do: the process may be ended by a signal."""
        if empty:
            self.recorder.records.append({"type": "idle", "mono_ns": monotonic_ns()})
            self.recorder.flush()
        else:
            self.recorder.flush_soon()

    def begin(self, task: int, call: Any, args: Any) -> None:
        """Begin with a task that was just taken."""
        if self.recorder.over:
            return
        self.count()
        self.task, self.name, self.fed = task, tasks.name_of(call), tasks.is_much((*args, call))
        self.parts = tasks.parts_of(call)
        (came_ns, size), self.came = self.came, (-1, 0)
        if came_ns >= 0:
            self.recorder.records.append((GIVEN_ROW, self.pool, task, came_ns, size))
        self.begun = tasks.begin_task()

    def gets_by(self, calls: Any) -> None:
        """Note how large tasks come from the queue `calls`, which are read and unpickled as a whole."""
        pipe = calls._reader
        receive = pipe.recv_bytes

        def recv_bytes(*args: Any) -> Any:
            buf = receive(*args)
            if len(buf) >= LARGE_BYTES:
                self.came = monotonic_ns(), len(buf)
            return buf

        pipe.recv_bytes = recv_bytes
        if hasattr(calls, "_recv_bytes"):  # of a `Queue`, the pipe's own
            calls._recv_bytes = recv_bytes

    def end(self, task: int, whole: bool) -> None:
        """Record the task, which has returned unless not `whole`."""
        begun, self.begun = self.begun, None
        if begun is None or self.recorder.over or task != self.task:
            return
        row, span = tasks.end_task(self.recorder, begun, self.name, self.fed, self.feeds)
        self.recorder.spans.append(span)
        if whole:
            self.recorder.records.extend(tasks.made_rows(self.pool, task, row, self.parts))
            self.made = task

    def sends_by(self, pipe: Any) -> None:
        """Record how large results are sent, which are pickled and written to `pipe` as a whole."""
        send = pipe.send_bytes

        def send_bytes(buf: Any, *args: Any) -> None:
            task, pickled_ns, self.made = self.made, monotonic_ns(), -1
            send(buf, *args)
            if task >= 0:
                note_sent(self.recorder, self.pool, task, pickled_ns, buf)

        pipe.send_bytes = send_bytes


def note_sent(recorder: Recorder, pool: int, item: int, pickled_ns: int, buf: Any) -> None:
    """Record that an item's bytes were written to a pipe, which holds little: mostly they were read, too."""
    if (size := memoryview(buf).nbytes) >= LARGE_BYTES and not recorder.over:
        recorder.records.append((SENT_ROW, pool, item, pickled_ns, monotonic_ns(), size))


class Calls(StandIn):
    """Stands for the queue that a worker, its context, takes its tasks from."""

    def get(self, *args: Any, **kwargs: Any) -> Any:
        worker = self._context
        if worker.is_fast:
            return self._of.get(*args, **kwargs)
        try:
            worker.idle(self._of.empty())
        except ours(Exception) as error:
            worker.recorder.absorb(error, "recording a task")
        call = self._of.get(*args, **kwargs)
        if call is not None:
            try:
                worker.took(call)
            except ours(Exception) as error:
                worker.recorder.absorb(error, "recording a task")
        return call
