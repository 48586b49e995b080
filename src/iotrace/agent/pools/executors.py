"""Record the tasks of ``concurrent.futures``: what is known of one lies in an attribute of its future."""

from __future__ import annotations

import sys
from _functools import partial  # type: ignore[import-not-found]  # `functools` is five files to read
from itertools import count
from time import monotonic_ns, thread_time_ns

from iotrace.agent import imports
from iotrace.agent.patching import TIMED_EVERY, WeakTable, hide_frame, observe, on_undo, pass_for, patch
from iotrace.agent.pools import callers, results, tasks
from iotrace.agent.pools.tasks import Task
from iotrace.agent.pools.workers import Calls, Worker
from iotrace.agent.recording import borders
from iotrace.agent.recording.recorder import Recorder
from iotrace.agent.unpatched import get_ident
from iotrace.session.guard import ours

TYPE_CHECKING = False  # `typing` costs half of the agent's start-up
if TYPE_CHECKING:
    from typing import Any

_WHAT = "recording a task"
# So many of a library's own tasks in a row, and the next ones of that pool are looked at now and then.
_PASSED_NS = 2500  # to run one that is not followed costs so much more, between other calls
_FEW_TASKS, _LOOK_AT_LIBRARYS = 256, 16
_FINISHED = "FINISHED"  # the state of a future that is done

_pools = WeakTable()  # by an executor
_fast: set[int] = set()  # the numbers of pools whose tasks are followed no longer
_next_task = count().__next__  # of threads
# By `get_ident`: the future that a pool's thread works on, whether it is given data, and its beginning.
_begun: dict[int, tuple[Any, bool, tasks.Begun]] = {}


def _forget_session() -> None:
    for each in _pools.alive():  # which the next session may use
        _pools.get(each).forget()


def _task_of(future: Any) -> Task:
    task = future.__dict__.get(tasks.OF_FUTURE)
    if task is None:  # the pool's thread may meet it before `submit` has returned
        task = future.__dict__.setdefault(tasks.OF_FUTURE, Task())
    known: Task = task
    return known


def hook_futures(module: Any, recorder: Recorder) -> None:
    """Patch `module`, ``concurrent.futures._base``: who takes a result, and how long it waited."""
    patch(module.Future, "result", partial(_result, recorder))
    patch(module.Future, "done", _done)
    patch(module.Future, "set_result", partial(_set_result, recorder))
    observe(module, "wait", recorder, _WHAT, before=lambda *_: monotonic_ns(), ended=_waited)
    patch(module, "as_completed", _as_completed)
    on_undo(_forget_session)


def _result(recorder: Recorder, original: Any) -> Any:
    counted, times = 0, recorder.own_times

    def result(self: Any, timeout: float | None = None) -> Any:
        task = self.__dict__.get(tasks.OF_FUTURE)
        if task is None or task.taken or recorder.over:
            try:
                return original(self, timeout)
            except BaseException as error:
                hide_frame(error)
                raise
        was_done = self._state == _FINISHED
        lock_ns, asked_ns = borders.lock_wait_ns(), monotonic_ns()
        try:
            value = original(self, timeout)
        except BaseException as error:
            if not task.asked_ns:
                task.asked_ns = asked_ns  # the next call, if there is one, goes on waiting
            hide_frame(error)
            raise
        nonlocal counted
        counted += 1
        begun_ns = 0 if counted % TIMED_EVERY else thread_time_ns()
        try:
            tasks.take(task, task.asked_ns or asked_ns, was_done and not task.asked_ns, recorder)
            borders.note_lock_wait(lock_ns, asked_ns, recorder)
        except ours(Exception) as error:
            recorder.absorb(error, _WHAT)
        if begun_ns:
            times.add(begun_ns)
        return value

    pass_for(result, original)
    return result


def _done(original: Any) -> Any:
    def done(self: Any) -> Any:
        is_done = original(self)
        if not is_done and (task := self.__dict__.get(tasks.OF_FUTURE)) is not None:
            task.polled = True
        return is_done

    return done


def _set_result(recorder: Recorder, original: Any) -> Any:
    counted, times = 0, recorder.own_times

    def set_result(self: Any, result: Any) -> None:
        nonlocal counted
        begun = _begun.get(get_ident())
        if begun is not None and begun[0] is self:  # known before anybody has the result
            counted += 1
            begun_ns = 0 if counted % TIMED_EVERY else thread_time_ns()
            try:
                task = _task_of(self)
                task.made = tasks.end_task(recorder, begun[2], task.name, begun[1], task.feeds)
                task.number = _next_task()
                if task.pool is not None:
                    _count(task.pool)
                if "asyncio" in sys.modules:  # a coroutine may have another task put what it gets
                    results.hold(result, task.name, task.made)
                if task.feeds:  # the library takes it
                    recorder.spans.append(task.made[1])
                    task.taken = True
            except ours(Exception) as error:
                recorder.absorb(error, _WHAT)
            if begun_ns:
                times.add(begun_ns)
        try:
            original(self, result)
        except BaseException as error:
            hide_frame(error)
            raise

    return set_result


def _count(pool: tasks.Pool) -> None:
    pool.count()
    if pool.is_fast:
        _fast.add(pool.number)


def _waited(start_ns: int | None, *_: Any) -> None:
    if start_ns:
        tasks.awaited[get_ident()] = start_ns, monotonic_ns()


def _as_completed(original: Any) -> Any:
    def as_completed(fs: Any, timeout: float | None = None) -> Any:
        turns = original(fs, timeout)
        del fs  # as the original, which forgets what it has given
        try:
            start_ns = monotonic_ns()
            for future in turns:
                tasks.awaited[get_ident()] = start_ns, monotonic_ns()
                given = [future]
                del future
                yield given.pop()
                start_ns = monotonic_ns()
        except BaseException as error:
            hide_frame(error)
            raise
        finally:
            turns.close()

    pass_for(as_completed, original)
    return as_completed


def hook_threads(module: Any, recorder: Recorder) -> None:
    """Patch `module`, ``concurrent.futures.thread``: who submits a task, and which thread works on it."""

    patch(module._WorkItem, "run", partial(_run, recorder))
    _hook_submit(module.ThreadPoolExecutor, recorder)


def _run(recorder: Recorder, original: Any) -> Any:
    counted, times = 0, recorder.own_times
    passes = times.passed(_PASSED_NS)

    def run(self: Any, *args: Any) -> Any:
        # What is known of a task lies in its future as soon as `submit` returns, if not yet.
        task = self.future.__dict__.get(tasks.OF_FUTURE)
        if recorder.over or task is tasks.UNFOLLOWED or (_fast and task is None):
            passes()
            before_ns = borders.lock_wait_ns()
            try:
                result = original(self, *args)
            except BaseException as error:
                hide_frame(error)
                raise
            if task is tasks.UNFOLLOWED:
                try:
                    borders.note_queueing(before_ns, recorder)
                except ours(Exception) as error:
                    recorder.absorb(error, _WHAT)
            return result
        nonlocal counted
        counted += 1
        ident, own_ns = get_ident(), 0 if counted % TIMED_EVERY else thread_time_ns()
        try:
            given = self.task[1:] if hasattr(self, "task") else (self.args, self.kwargs)
            tasks.running.add(ident)
            fed = tasks.is_much((*given[0], *given[1].values()))
            _begun[ident] = self.future, fed, tasks.begin_task()
        except ours(Exception) as error:
            recorder.absorb(error, _WHAT)
        if own_ns:
            times.add(own_ns)
        try:
            original(self, *args)
        except BaseException as error:
            hide_frame(error)
            raise
        finally:
            _begun.pop(ident, None)
            tasks.running.discard(ident)

    return run


def hook_processes(module: Any, recorder: Recorder) -> None:
    """Patch `module`, ``concurrent.futures.process``, on both sides."""
    manager = getattr(module, "_ExecutorManagerThread", None)
    workers: list[_Process] = []  # this process, if it works for a pool

    def received(args: list[Any], _: dict[str, Any]) -> None:
        item = args[0].pending_work_items.get(getattr(args[1], "work_id", None))
        if item is not None:
            task = item.future.__dict__.get(tasks.OF_FUTURE)
            if task is None and _fast:
                return
            if task is tasks.UNFOLLOWED:
                return
            task = task or _task_of(item.future)
            task.number, task.arrived_ns = args[1].work_id, monotonic_ns()
            if task.pool is not None:
                _count(task.pool)

    def starting(args: list[Any], _: dict[str, Any]) -> None:
        workers.append(_Process(tasks.number_of(args[1]._writer), recorder))
        workers[-1].gets_by(args[0])
        args[0] = Calls(args[0], workers[-1])
        workers[-1].sends_by(args[1]._writer)

    def sending(args: list[Any], kwargs: dict[str, Any]) -> None:
        if workers:
            workers[-1].end(args[1], kwargs.get("exception") is None)

    def ended(*_: Any) -> None:
        recorder.flush()

    if manager is not None:
        observe(manager, "process_result_item", recorder, _WHAT, before=received)
        observe(module, "_process_worker", recorder, _WHAT, before=starting, ended=ended)
        observe(module, "_sendback_result", recorder, _WHAT, before=sending)
        _hook_submit(module.ProcessPoolExecutor, recorder)


class _Process(Worker):
    """This process."""

    def took(self, call: Any) -> None:
        """Begin with a task: its number, function and arguments."""
        self.begin(call.work_id, call.fn, call.args)
        code = tasks.code_of(tasks.called_in(call.fn))  # of joblib's tasks the program's function
        self.feeds = code is not None and callers.whose_file(code.co_filename) == callers.FEEDS
        if self.feeds:
            function = tasks.of_program((call.fn, *call.args))
            self.name = "" if function is None else tasks.name_of(function)


def _hook_submit(kind: Any, recorder: Recorder) -> None:
    def submitted(_: Any, future: Any, args: Any, kwargs: Any) -> None:
        if recorder.over:
            return
        executor, call = args[0], args[1]
        pool = _pools.get(executor)
        if pool is None:
            pool = tasks.Pool(executor, executor._max_workers, getattr(executor, "_result_queue", None))
            _pools.put(executor, pool)
        if pool.is_fast:
            return
        if _is_librarys(pool, sys._getframe(2), args):
            future.__dict__[tasks.OF_FUTURE] = tasks.UNFOLLOWED
            return
        task = _task_of(future)
        task.name = tasks.name_of(call)
        tasks.note_site(pool, task.name, call)
        task.chunked = getattr(call, "func", None) is not None and _items_of(call, args[2:]) > 1
        task.submitted_ns = monotonic_ns()
        task.pool = pool
        task.feeds = callers.feeds(sys._getframe(2))
        if task.feeds:
            function = tasks.of_program(args[1:])
            task.name = "" if function is None else tasks.name_of(function)
            if function is not None:
                imports.load("loaders.stages").tell(recorder, "", function)

    observe(kind, "submit", recorder, _WHAT, after=recorder.own_times.sampled(submitted))


def _is_librarys(pool: tasks.Pool, frame: Any, args: Any) -> bool:
    """Whether a library submits a task for itself, on a thread where nothing of the program runs.

    So zarr reads and decodes each chunk of an access: nobody takes those from a loop. `args`: of ``submit``.
    """
    if pool.of_library > _FEW_TASKS and pool.of_library % _LOOK_AT_LIBRARYS:
        pool.of_library += 1
        return True
    given = (*args[1:], *getattr(args[1], "args", ()))  # `asyncio.to_thread` makes a partial
    own = callers.is_librarys(frame) and tasks.of_program(given) is None
    pool.of_library = pool.of_library + 1 if own else 0
    return own


def _items_of(call: Any, args: Any) -> int:
    """How many items of ``map`` a task makes."""
    return len(args[0]) if getattr(call.func, "__name__", "") == "_process_chunk" and args else 1


def after_fork_in_child() -> None:
    """Forget the parent's threads."""
    _begun.clear()
