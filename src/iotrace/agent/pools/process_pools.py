"""Record the tasks of ``multiprocessing.pool``: what is known lies in an attribute of a result."""

from __future__ import annotations

from _functools import partial  # type: ignore[import-not-found]  # `functools` is five files to read
from collections import deque
from time import monotonic_ns

from iotrace.agent.patching import StandIn, WeakTable, hide_frame, observe, on_undo, pass_for, patch
from iotrace.agent.pools import tasks, workers
from iotrace.agent.recording import borders
from iotrace.agent.recording.recorder import Recorder
from iotrace.agent.unpatched import get_ident
from iotrace.session.guard import ours
from iotrace.session.names import MADE_ROW

TYPE_CHECKING = False  # `typing` costs half of the agent's start-up
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

_CALL = "_iotrace_call"  # the attribute of a result
_WHAT = "recording a task"

_pools = WeakTable()
# By `get_ident`: what it maps, whether by several items a task, whether all results come at once.
_calling: dict[int, tuple[str, bool, bool, Any]] = {}
_gathering = WeakTable()  # likewise by a pool, of calls whose results come at once
_made: dict[int, tasks.Made] = {}  # by job and index: what a thread has made, until its result knows


def _forget_session() -> None:
    for each in _pools.alive():  # which the next session may use
        _pools.get(each).forget()


class _Call:
    """The tasks of one call of a pool's method, which have one result or an iterator of results."""

    def __init__(self, pool: tasks.Pool, job: int, name: str, chunked: bool, gathers: bool) -> None:
        self.pool, self.job, self.name = pool, job, name
        self.chunked, self.gathers = chunked, gathers
        self.submitted_ns, self.asked_ns, self.polled = monotonic_ns(), 0, False
        self.given = 0  # results, so far
        self.order: deque[int] = deque()  # of results that come in no order: their indices
        self.made: dict[int, tasks.Made] = {}  # of threads, by index
        self.arrived: dict[int, int] = {}  # of processes likewise: when its result was unpickled


def _number(job: int, index: int | None) -> int:
    return job << 32 | (index or 0)


def hook_pool(module: Any, recorder: Recorder) -> None:
    """Patch `module`, ``multiprocessing.pool``, on both sides."""
    on_undo(_forget_session)
    observe(
        module,
        "worker",
        recorder,
        _WHAT,
        before=partial(_starting, recorder),
        ended=partial(_ended, recorder),
    )
    for method in ("imap", "imap_unordered", "apply_async"):
        observe(module.Pool, method, recorder, _WHAT, before=_mapping, ended=_mapped)
    for method in ("map", "starmap", "map_async", "starmap_async"):
        observe(module.Pool, method, recorder, _WHAT, before=_mapping_all, ended=_mapped)
    observe(module.MapResult, "_set", recorder, _WHAT, before=_setting_last)
    for kind in (module.IMapIterator, module.ApplyResult):
        observe(kind, "__init__", recorder, _WHAT, after=_submitted)
        observe(kind, "_set", recorder, _WHAT, before=_setting)
    observe(module.IMapUnorderedIterator, "_set", recorder, _WHAT, before=_setting_next)
    for method in ("next", "__next__"):
        patch(module.IMapIterator, method, partial(_next, recorder))
    patch(module.ApplyResult, "get", partial(_next, recorder))
    patch(module.ApplyResult, "ready", _ready)
    observe(module.ApplyResult, "wait", recorder, _WHAT, before=lambda *_: monotonic_ns(), ended=_waited)


def _mapping(args: list[Any], kwargs: dict[str, Any]) -> int:
    ident = get_ident()
    size = kwargs.get("chunksize", args[3] if len(args) > 3 else 1)  # of `apply_async` a dictionary
    _calling[ident] = tasks.name_of(args[1]), isinstance(size, int) and size > 1, False, args[1]
    return ident


def _mapping_all(args: list[Any], _: dict[str, Any]) -> int:
    ident = get_ident()
    _calling[ident] = tasks.name_of(args[1]), False, True, args[1]
    return ident


def _mapped(ident: int | None, *_: Any) -> None:
    _calling.pop(ident or 0, None)


def _submitted(_: Any, __: Any, args: Any, kwargs: Any) -> None:
    result, executor = args[0], args[1]
    named = _calling.get(get_ident())
    if named is None:
        return
    pools = _gathering if named[2] else _pools
    pool = pools.get(executor)
    if pool is None:
        pool = tasks.Pool(executor, executor._processes, executor._outqueue)
        pool.made_by += ".map" if named[2] else ""
        pools.put(executor, pool)
    if pool.is_fast:
        return
    tasks.note_site(pool, named[0], named[3])
    result.__dict__[_CALL] = _Call(pool, result._job, *named[:3])


def _setting(args: list[Any], _: dict[str, Any]) -> None:
    """Let a result know what a thread has made for it."""
    result, index = args[0], args[1]
    made = _made.pop(_number(result._job, index), None) if _made else None
    call = result.__dict__.get(_CALL)
    if call is not None:
        call.pool.count()
        if made is not None:
            call.made[index or 0] = made
        else:
            call.arrived[index or 0] = monotonic_ns()


def _setting_next(args: list[Any], kwargs: dict[str, Any]) -> None:
    _setting(args, kwargs)
    call = args[0].__dict__.get(_CALL)
    if call is not None:
        call.order.append(args[1])


def _setting_last(args: list[Any], kwargs: dict[str, Any]) -> None:
    """Remember which part of a call's tasks came last: its maker held the call up."""
    _setting(args, kwargs)
    call = args[0].__dict__.get(_CALL)
    if call is not None:
        call.order.clear()
        call.order.append(args[1])


def _next(recorder: Recorder, original: Any) -> Any:
    def next_(self: Any, timeout: float | None = None) -> Any:
        call = None if recorder.over else self.__dict__.get(_CALL)
        event = getattr(self, "_event", None)  # of one result
        was_done = event is not None and event.is_set()
        ident = get_ident()
        waited = tasks.awaited.get(ident)
        lock_ns, asked_ns = borders.lock_wait_ns(), monotonic_ns()
        try:
            value = original(self, timeout)
        except BaseException as error:
            if call is not None and not call.asked_ns and type(error) is not StopIteration:
                call.asked_ns = asked_ns  # the next call, if there is one, goes on waiting
            hide_frame(error)
            raise
        if call is not None:
            try:
                if waited is None or not was_done:
                    tasks.awaited.pop(ident, None)  # the call's own
                else:
                    tasks.awaited[ident] = waited
                parts = len(value) if call.chunked and type(value) is list else 0
                was_done = was_done and not call.asked_ns
                task = _take(self, call, call.asked_ns or asked_ns, was_done, recorder, parts)
                borders.note_lock_wait(lock_ns, asked_ns, recorder)
                if parts > 1 and task is not None:
                    value = _along(value, task, recorder)
            except ours(Exception) as error:
                recorder.absorb(error, _WHAT)
        return value

    pass_for(next_, original)
    return next_


def _take(
    result: Any, call: _Call, asked_ns: int, was_done: bool, recorder: Recorder, parts: int = 0
) -> tasks.Task | None:
    is_one = not hasattr(result, "_items")  # whose `get` returns the same each time
    task, call.asked_ns = task_of(call), 0
    if is_one and call.given != 1:
        return None
    for index, (row, span) in call.made.items() if call.gathers else ():
        recorder.spans.append(span)
        recorder.records.append((MADE_ROW, call.pool.number, _number(call.job, index), *row))
    task.chunked = parts > tasks.MOST_PARTS
    tasks.take(task, asked_ns, was_done, recorder, parts=max(1, parts))
    return task


def _along(items: list[Any], task: tasks.Task, recorder: Recorder) -> Iterator[Any]:
    """Hand over what a task of ``imap`` has made, item by item, to the generator that ``imap`` returned."""
    for part, item in enumerate(items):
        if part and not (recorder.over or task.pool is None or task.pool.is_fast):
            try:
                task.pool.count()
                tasks.take_along(task, part, monotonic_ns(), recorder)
            except ours(Exception) as error:
                recorder.absorb(error, _WHAT)
        yield item


def known_of(result: Any) -> Any:
    """Return what is known of the call that a result is of; None without."""
    return result.__dict__.get(_CALL)


def task_of(call: _Call) -> tasks.Task:
    """Return the task whose result is taken next."""
    index, task = call.order.popleft() if call.order else call.given, tasks.Task()
    task.pool, task.name, task.submitted_ns = call.pool, call.name, call.submitted_ns
    task.polled, task.number = call.polled, _number(call.job, index)
    task.made, task.arrived_ns = call.made.pop(index, None), call.arrived.pop(index, -1)
    call.given += 1
    return task


def _ready(original: Any) -> Any:
    def ready(self: Any) -> Any:
        is_ready = original(self)
        if not is_ready and (call := self.__dict__.get(_CALL)) is not None:
            call.polled = True
        return is_ready

    return ready


def _waited(start_ns: int | None, args: Any, _: Any) -> None:
    if start_ns and _CALL in args[0].__dict__:
        tasks.awaited[get_ident()] = start_ns, monotonic_ns()


def _starting(recorder: Recorder, args: list[Any], _: dict[str, Any]) -> Any:
    """Stand between a worker, a process or a thread, and its queues."""
    worker: Any
    if hasattr(args[0], "_reader"):
        worker = _Process(tasks.number_of(args[1]._writer), recorder)
        worker.sends_by(args[1]._writer)
        worker.gets_by(args[0])
    else:
        worker = _Thread(recorder)
    args[0] = workers.Calls(args[0], worker)
    args[1] = _Results(args[1], worker)
    return worker


def _ended(recorder: Recorder, worker: Any, *_: Any) -> None:
    if isinstance(worker, _Process):
        recorder.flush()


def _mapped_by(function: Any, given: Any) -> tuple[Any, Any]:
    """Return what a task calls, and with what: a part of ``map`` has both as its argument."""
    if getattr(function, "__name__", "") in ("mapstar", "starmapstar"):
        return given[0]  # type: ignore[no-any-return]
    return function, given


class _Process(workers.Worker):
    """This process."""

    def took(self, call: Any) -> None:
        """Begin with a task: its job and index, function and arguments."""
        self.begin(_number(*call[:2]), *_mapped_by(call[2], call[3]))


class _Thread(tasks.Pace):
    """A thread of a pool in the process that takes its results."""

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder
        self.begun: tasks.Begun | None = None
        self.name, self.fed = "", False

    def idle(self, empty: bool) -> None:
        """Do nothing: the process writes."""

    def took(self, call: Any) -> None:
        """Begin with a task."""
        if not self.recorder.over:
            self.count()
            tasks.running.add(get_ident())
            function, given = _mapped_by(call[2], call[3])
            self.name, self.fed = tasks.name_of(function), tasks.is_much((*given, function))
            self.begun = tasks.begin_task()

    def end(self, number: int, whole: bool) -> None:
        """Keep what is known of the task for its result."""
        tasks.running.discard(get_ident())
        begun, self.begun = self.begun, None
        if begun is not None and whole:
            _made[number] = tasks.end_task(self.recorder, begun, self.name, self.fed)


class _Results(StandIn):
    """Stands for the queue of results of a worker, its context."""

    def put(self, result: Any) -> None:
        worker = self._context
        try:
            job, index, (whole, _) = result
            worker.end(_number(job, index), whole)
        except ours(Exception) as error:
            worker.recorder.absorb(error, _WHAT)
        self._of.put(result)


def after_fork_in_child() -> None:
    """Forget the parent's threads."""
    _calling.clear()
    _made.clear()
