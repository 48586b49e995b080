"""Record a DataLoader worker: when it took each index, and when the batch was prepared."""

from __future__ import annotations

import inspect
import multiprocessing
import threading
from time import monotonic_ns
from typing import Any

from iotrace.agent import stacks, training
from iotrace.agent.dataloader.contents import contents_of
from iotrace.agent.patching import StandIn, observe
from iotrace.agent.recording.borders import find_border, find_lock_waits
from iotrace.agent.recording.loop_stacks import LoopStacks
from iotrace.agent.recording.pauses import watch_collections
from iotrace.agent.recording.recorder import Recorder
from iotrace.agent.recording.spans import begin, end_region
from iotrace.agent.recording.thread_clocks import current
from iotrace.agent.thread_counts import thread_counts
from iotrace.session.guard import ours
from iotrace.session.names import (
    LOCKED_ROW,
    OUTCOMES,
    PRODUCED_ROW,
    SENDING_AT,
    TENSORS_ROW,
    WORKER_STATE,
)

_BATCH, _STOP, _ERROR = map(OUTCOMES.index, ("batch", "stop", "error"))
_SAMPLED_S, _MOST_SAMPLES = 0.05, 64  # of its stack, and of a record: a worker may be ended at any moment
_LONG_WAIT_NS = 100_000  # for the interpreter
_MANY_TENSORS = 16  # in a batch: of fewer nothing is written


def hook_worker_loop(module: Any, recorder: Recorder) -> None:
    """Patch ``_worker_loop``, the target of every worker process, found by name under every start method.

    `module` is torch's, or torchdata's: that one's puts ``(data, worker, state)`` into the queue.
    """
    parameters = list(inspect.signature(module._worker_loop).parameters)
    index_at = parameters.index("index_queue")
    data_at = parameters.index("data_queue")
    worker_at = parameters.index("worker_id")
    count_at = parameters.index("num_workers")
    init_at = parameters.index("init_fn") if "init_fn" in parameters else None
    stateful = "worker_state" in parameters

    def starting(args: list[Any], _: dict[str, Any]) -> bool:
        if threading.current_thread() is not threading.main_thread():
            return False  # MONAI's workers may be threads of the training process
        training.enter_worker()
        init = init_at is not None and args[init_at] is not None
        worker = _Worker(recorder, module, args[worker_at], args[count_at], stateful, init)
        queues = _IndexQueue(args[index_at], worker), _DataQueue(args[data_at], worker)
        args[index_at], args[data_at] = queues
        return True

    def ended(is_process: bool | None, *_: Any) -> None:
        if is_process is not False:
            recorder.close()

    observe(module, "_worker_loop", recorder, "recording a worker", before=starting, ended=ended)
    if hasattr(module, "_make_state_dict"):

        def made(begun: Any, *_: Any) -> None:
            if begun is not None:
                end_region(recorder, begun, WORKER_STATE)

        what = "timing a worker's state"
        observe(module, "_make_state_dict", recorder, what, before=lambda *_: begin(), ended=made)


def enter_daemon(recorder: Recorder) -> None:
    """Record this process as a worker whose loop is a library's own: its batches are not known."""
    training.enter_worker()
    number = (*getattr(multiprocessing.current_process(), "_identity", ()), 1)[0] - 1
    recorder.records.append({"type": "worker", "worker": number, "count": 0, "mono_ns": monotonic_ns()})
    recorder.start()


class _Worker:
    """The state of this process's only worker loop."""

    def __init__(
        self, recorder: Recorder, module: Any, number: int, count: int, stateful: bool, init: bool
    ) -> None:
        self.stateful = stateful
        self.resume = module._ResumeIteration
        self.stop = module._IterableDatasetStopIteration
        self.recorder = recorder
        self.append = recorder.records.append
        self.flush = recorder.flush
        self.flush_soon = recorder.flush_soon
        self.generation = 0  # epochs of one iterator with persistent workers
        self.taken_ns = 0
        self.unsent = True  # nothing is put yet: no thread sends
        self.early = 2  # requests for an index until nothing is left to say about the worker itself
        watched = _watch_number(module, recorder)
        who = {"worker": number, "count": count, "init": init, "watched": watched}
        self.append({"type": "worker", **who, "mono_ns": monotonic_ns()})
        recorder.start()
        watch_collections(recorder)
        stacks.install(recorder)
        try:
            recorder.loop_stacks = LoopStacks(recorder, _SAMPLED_S, _MOST_SAMPLES)
        except ours(Exception) as error:
            recorder.absorb(error, "sampling a worker")
        recorder.flush()

    def ready(self) -> None:
        """Record that it asks for its first index; at the second the dataset has imported what it uses."""
        self.early -= 1
        if self.early:
            self.append({"type": "worker_up", "mono_ns": monotonic_ns()})
            return
        try:
            self.append(thread_counts())
        except ours(Exception) as error:
            self.recorder.absorb(error, "recording threads")

    def produced(self, index: int, data: Any, prepared_ns: int) -> None:
        """Record the batch `index`, which is `data`: a batch, the end of an iterable, or an exception."""
        if self.recorder.over:
            return
        start_ns, end_ns, samples = current.thread.ended
        outcome = _BATCH
        if self.stateful:
            data = data[0]
        if isinstance(data, self.stop):
            outcome = _STOP
        elif type(data).__name__ == "ExceptionWrapper":
            outcome = _ERROR
        if start_ns < self.taken_ns:
            start_ns = end_ns = samples = -1
        size, tensors = contents_of(data) if outcome == _BATCH else (-1, 0)
        self.append(
            (
                PRODUCED_ROW,
                *(self.generation, index, outcome, self.taken_ns, start_ns, end_ns, prepared_ns),
                *(samples, size),
            )
        )
        if tensors > _MANY_TENSORS:
            self.append((TENSORS_ROW, self.generation, index, tensors))
        if outcome == _ERROR:
            self._failed(data, index)

    def _failed(self, wrapper: Any, index: int) -> None:
        """Record the exception in `wrapper`, and write it: the program may end this worker when it has it."""
        try:
            from iotrace.agent.recording.failures import of_batch

            found = of_batch(wrapper, self.generation, index, self.taken_ns)
            self.append({**found, "sample": self.recorder.failures.of_fetch[1]})
            self.flush()
        except ours(Exception) as error:
            self.recorder.absorb(error, "recording a failure")


def _watch_sending(queue: Any, recorder: Recorder) -> None:
    """Record how long the thread that will send what is in `queue` waits for the interpreter before each."""
    if getattr(queue, "_thread", queue) is not None or "_send_bytes" not in vars(queue):
        return
    send, waits, sent_ns = queue._send_bytes, None, 0

    def send_bytes(buf: Any, *args: Any) -> None:
        nonlocal waits, sent_ns
        try:
            waits = waits or find_lock_waits()
            if waits is not None and waits[0] - sent_ns >= _LONG_WAIT_NS and not recorder.over:
                waited_ns, now_ns = waits[0] - sent_ns, monotonic_ns()
                row = LOCKED_ROW, current.thread.tid, now_ns - waited_ns, now_ns, waited_ns
                recorder.records.append((*row, recorder.text(SENDING_AT)))
        except ours(Exception) as error:
            recorder.absorb(error, "recording how a batch is sent")
        send(buf, *args)
        sent_ns = 0 if waits is None else waits[0]

    queue._send_bytes = send_bytes


class _Number:
    """Stands for `id` of torch's WorkerInfo, by which a dataset knows its part: records the first look.

    `slot` is what holds the number, where the class has slots.
    """

    def __init__(self, recorder: Recorder, slot: Any) -> None:
        self._append, self._slot, self._asked = recorder.records.append, slot, False

    def __get__(self, info: Any, owner: Any = None) -> Any:
        if info is None:
            raise AttributeError("id")
        if not self._asked:
            self._asked = True
            self._append({"type": "asked_number", "mono_ns": monotonic_ns()})
        if self._slot is not None:
            return self._slot.__get__(info, owner)
        if "id" not in info.__dict__:
            raise AttributeError("id")
        return info.__dict__["id"]

    def __set__(self, info: Any, value: Any) -> None:
        if self._slot is not None:
            self._slot.__set__(info, value)
        else:
            info.__dict__["id"] = value


def _watch_number(module: Any, recorder: Recorder) -> bool:
    """Record whether the program asks which worker it is in; this process does nothing but work."""
    try:
        slot = vars(module.WorkerInfo).get("id")
        if slot is not None and not hasattr(slot, "__set__"):
            return False  # a class of another make
        module.WorkerInfo.id = _Number(recorder, slot)
    except ours(Exception) as error:
        recorder.absorb(error, "watching who asks for the worker's number")
        return False
    return True


class _IndexQueue(StandIn):
    """Stands for the queue that this worker, its context, takes its batch indices from."""

    def get(self, *args: Any, **kwargs: Any) -> Any:
        worker: _Worker = self._context
        if worker.early:
            worker.ready()
        # A worker with nothing to do may be ended at any moment, as its program leaves: all is written now.
        if self._empty():
            worker.append({"type": "idle", "mono_ns": monotonic_ns()})
            worker.flush()
        task = self._of.get(*args, **kwargs)
        worker.taken_ns = find_border()[0] = monotonic_ns()
        if isinstance(task, worker.resume):
            worker.generation += 1
        return task

    def _empty(self) -> bool:
        try:
            return bool(self._of.empty())
        except ours(Exception):
            return False


class _DataQueue(StandIn):
    """Stands for the queue that this worker, its context, puts its batches into; a thread pickles them."""

    def put(self, item: Any, *args: Any, **kwargs: Any) -> None:
        prepared_ns = find_border()[0] = monotonic_ns()
        index, data = item
        worker: _Worker = self._context
        if worker.unsent:
            worker.unsent = False
            _watch_sending(self._of, worker.recorder)
        if isinstance(index, int):  # else the answer to a message
            worker.produced(index, data, prepared_ns)
        self._of.put(item, *args, **kwargs)
        worker.flush_soon()
