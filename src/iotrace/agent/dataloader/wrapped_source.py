"""Record a source that is no torch DataLoader: one in ``iotrace.batches``, or a loader of another library.

Its records are those of a DataLoader with ``num_workers=0``: for all that is known, the consumer's thread
makes the batch. A source that is iterated within an ask of another one produces for it, and is not recorded.
"""

from __future__ import annotations

import sys
from time import monotonic_ns
from typing import Any

from iotrace.agent import handovers, training
from iotrace.agent.patching import StandIn, WeakTable, hide_frame
from iotrace.agent.recording.borders import find_border
from iotrace.agent.recording.loop_stacks import LoopStacks
from iotrace.agent.recording.recorder import Recorder
from iotrace.agent.recording.spans import begin, end_region, timed
from iotrace.agent.recording.thread_clocks import current
from iotrace.agent.torch_profiler import window
from iotrace.agent.unpatched import get_ident
from iotrace.session.guard import ours
from iotrace.session.names import BATCH_ROW, KIND_ITEM

_GENERATOR = 0x20  # a flag of a code: CO_GENERATOR of `inspect`
_SAMPLED_S = 0.005  # between two samples of a loop that takes from a pool

# Of a pool: its number, the task's, when it was submitted, when its result had come from another process.
Task = tuple[int, int, int, int]
Caller = tuple[str, int, str]  # a file, a line of it, the source's name

# Rows that come faster are recorded no longer.
_FAST_NS, _LOOK_EVERY = 50_000, 8192  # ns, rows

_by_object = WeakTable()
_by_caller: dict[Caller, training.Loader] = {}


def recorded(iterable: Any, iterator: Any, recorder: Recorder) -> Any:
    """Wrap `iterator`, made by ``iter(iterable)``, so that each item is recorded; called by `batches`."""
    torch_loader = sys.modules.get("torch.utils.data.dataloader")
    if torch_loader is not None and isinstance(iterable, torch_loader.DataLoader):
        return iterator
    if isinstance(iterator, Recorded):  # a library's loader, that its adapter records
        return iterator
    name = getattr(iterable, "__qualname__", type(iterable).__name__)
    return Recorded(iterator, Pass(iterable, iterator, name, recorder))


class Pass:
    """One pass over a source."""

    def __init__(
        self,
        iterable: Any,
        iterator: Any,
        name: str,
        recorder: Recorder,
        library: str | tuple[str, ...] = "",
        workers: int = 0,
        pool: str = "",
        rows: bool = False,
    ) -> None:
        frame = _caller(library)
        site, code = (frame.f_code.co_filename, frame.f_lineno), frame.f_code
        self.loader = source = _source_of(iterable, iterator, (*site, name))
        taker = {"taker": getattr(code, "co_qualname", code.co_name), "taker_line": code.co_firstlineno}
        if apart := getattr(iterable, "apart", None) if pool else None:
            taker |= {"apart": apart}
        if site_of_item := getattr(iterable, "sites", {}).get(name) if pool else None:
            taker |= {"item_site": site_of_item}
        loop = _loop_of(frame)
        if loop is not frame:
            taker |= {"taken_by": f"{loop.f_code.co_filename}:{loop.f_code.co_firstlineno}"}
        self.generation = 0  # always, as of all iterators without persistent workers
        self.recorder = recorder
        self.over = self.is_fast = False
        self.take: Any = None  # the iterator's timed `next`, where the iterator has no stand-in
        self._name = name
        self._append = recorder.records.append
        self.number = training.number_iterator(recorder)
        self._epoch = source.epochs
        self._delivered = 0
        self._code = code
        self._is_loop: bool | None = None  # it takes items itself; None: nothing has trained so far
        self._begun: Any = None
        self._rows, self._looked_ns = rows, monotonic_ns()
        source.epochs += 1
        self._append(
            {
                "type": "iterator",
                "iterator": self.number,
                "loader": source.number,
                "dataset": name,
                "iterable": True,
                "workers": workers,
                "wrapped": True,
                **({"pool": pool, **taker} if pool else {"library": library} if library else {}),
                **({"rows": True} if rows else {}),
                "epoch": self._epoch,
                "generation": 0,
                "phase": training.current_phase()[0],
                "site": f"{site[0]}:{site[1]}",
                "mono_ns": monotonic_ns(),
            }
        )
        sampled = not pool or loop is not frame  # a generator may work on what it takes from a pool
        if "torch" not in sys.modules and sampled and recorder.loop_stacks is None:  # else once it trains
            recorder.pause()  # the writer, which samples, may have begun to sleep
            recorder.loop_stacks = (
                LoopStacks(recorder, _SAMPLED_S, loop=loop) if pool else LoopStacks(recorder)
            )
        recorder.start_loop()

    def timed(self, take: Any) -> Any:
        """Wrap ``next`` of the source, so that each call is a span of the thread that makes the batch."""
        return timed(self.recorder, take, f"{self._name}.__next__", KIND_ITEM)

    def deliver(self, wait_start_ns: int, delivered_ns: int, task: Task | None = None) -> None:
        """Record the batch that the source has just returned; a pool's `task` has made it."""
        handovers.watched.add(get_ident())
        torch, recorder, phase, ahead = sys.modules.get("torch"), self.recorder, -1, 0
        if training.ask_phase is not None:
            named, ahead = training.ask_phase()
            phase = -1 if named is None else recorder.text(named)
        # Absent while torch is being imported.
        grad_enabled = None if torch is None else getattr(torch, "is_grad_enabled", None)
        grad = grad_enabled() if grad_enabled is not None else True
        pool, number, submitted_ns, arrived_ns = task or (0, self._delivered, -1, -1)
        recorder.append_row(
            (  # in one piece: parts that are put together cost more than all the rest
                BATCH_ROW,
                self.number,
                self._epoch,
                pool,
                number,
                current.thread.tid,
                wait_start_ns,
                delivered_ns,
                grad,
                training.backward_count,
                phase,
                ahead,
                -1,
                -1,
                submitted_ns,
                arrived_ns,
                -1,
                wait_start_ns,
                delivered_ns,
                -1,
            )
        )
        if recorder.asleep:
            recorder.wake()
        self._delivered += 1
        if task is not None and not self._is_loop and self.recorder.loop_stacks is not None:
            self._work_on(self.recorder.loop_stacks)
        if self._rows and not self._delivered % _LOOK_EVERY:
            self.is_fast = delivered_ns - self._looked_ns < _LOOK_EVERY * _FAST_NS
            self._looked_ns = delivered_ns
            if self.is_fast:  # to record each row would slow the program, and fill its memory
                self._append({"type": "pool_doubt", "iterator": self.number, "doubt": "fast"})
        if window.current is not None:
            window.current.delivered(self, grad)

    def _work_on(self, stacks: LoopStacks) -> None:
        """Time what the function that takes items makes of one, unless it is the loop's own."""
        thread = current.thread
        if self._is_loop is None:
            self._is_loop = stacks.trains_in(self._code)
        if not self._is_loop and thread.taken is None:
            self._begun = begin()
            thread.taken = self

    def begin_step(self) -> None:
        """Record what this thread made of the item that it took: its step begins."""
        current.thread.taken = None
        begun, self._begun = self._begun, None
        try:
            if begun is not None and not self.recorder.over:
                end_region(self.recorder, begun, self._code.co_name, KIND_ITEM)
        except ours(Exception) as error:
            self.recorder.absorb(error, "recording what was made of an item")

    def end(self, error: BaseException, wait_start_ns: int) -> None:
        """Record that the source raised `error` and returned no batch."""
        self.over = True
        self._append(training.end_record(self.number, self._epoch, error, wait_start_ns))
        window.epoch_ended(self)


def _source_of(iterable: Any, iterator: Any, caller: Caller) -> training.Loader:
    # A generator made anew for each epoch is the same source: it is known by the line that iterates it.
    if iterator is not iterable:
        known: training.Loader = _by_object.get(iterable) or training.Loader()
        if _by_object.put(iterable, known):
            return known
    return _by_caller.setdefault(caller, training.Loader())


def _loop_of(taker: Any) -> Any:
    """Return the frame that iterates what `taker` yields, if it is a generator; through other generators."""
    frame = taker
    while frame.f_code.co_flags & _GENERATOR and frame.f_back is not None:
        frame = frame.f_back
    return frame


def _caller(library: str | tuple[str, ...]) -> Any:
    """Return the innermost frame that is neither the agent's nor of `library`'s packages."""
    frame: Any = sys._getframe(1)
    ours = ("iotrace", *((library,) if isinstance(library, str) else library))
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] in ours:
        frame = frame.f_back
    return frame


class Recorded(StandIn):
    """Stands for the iterator of a pass: each ``next`` is recorded as an ask."""

    def __init__(self, iterator: Any, recording: Pass) -> None:
        super().__init__(iterator)
        self._pass = recording
        self._next = recording.timed(iterator.__next__)

    def __iter__(self) -> Recorded:
        return self

    def __next__(self) -> Any:
        try:
            return ask(self._next, self._pass)
        except BaseException as error:
            if (
                type(error.__cause__).__name__ == "StepsDone"
            ):  # a generator that passes no end of its loader on
                raise StopIteration from None
            hide_frame(error)
            raise


def ask(take: Any, recording: Pass, *args: Any) -> Any:
    """Call ``take(*args)``, as an ask of the pass unless it lies within another ask of this thread."""
    if current.thread.depth or recording.is_fast or recording.recorder.over:
        try:
            return take(*args)
        except BaseException as error:
            hide_frame(error)
            raise
    current.thread.depth = 1
    wait_start_ns = find_border()[0] = monotonic_ns()
    try:
        item = take(*args)
    except BaseException as error:
        current.thread.depth = 0
        hide_frame(error)
        recording.end(error, wait_start_ns)
        raise
    current.thread.depth = 0
    delivered_ns = find_border()[0] = monotonic_ns()
    recording.deliver(wait_start_ns, delivered_ns)
    return item
