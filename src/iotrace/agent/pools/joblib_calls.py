"""Record what a loop takes from ``joblib.Parallel``: one result after the other, or all of a call at once.

joblib takes the results of its pools itself: a task is known by joblib's own object for it, until the program
has the result.
"""

from __future__ import annotations

from _functools import partial  # type: ignore[import-not-found]  # `functools` is five files to read
from time import monotonic_ns

from iotrace.agent.patching import hide_frame, observe, pass_for, patch
from iotrace.agent.pools import process_pools, tasks
from iotrace.agent.pools.tasks import Task
from iotrace.agent.recording.recorder import Recorder
from iotrace.agent.unpatched import get_ident
from iotrace.session.guard import ours
from iotrace.session.names import MADE_ROW

TYPE_CHECKING = False  # `typing` costs half of the agent's start-up
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    Batch = tuple[Task, int]
    Known = tuple[Task | None, Any]  # a task of an executor; of a pool of ``multiprocessing`` its call

_WHAT = "recording a task of joblib"
_KNOWN = "_iotrace_task"  # the attribute of what joblib knows of a task
_OVER = object()  # after the last result
_LAST = "_iotrace_last"  # of a ``Parallel``: the task that ended last

_given: dict[int, Any] = {}  # by `get_ident`: joblib's object for the task whose result a thread was given


def hook_parallel(module: Any, recorder: Recorder) -> None:
    """Patch `module`, ``joblib.parallel``."""
    tracker = module.BatchCompletionCallBack
    observe(tracker, "register_job", recorder, _WHAT, before=_submitted)
    observe(tracker, "__call__", recorder, _WHAT, before=partial(_ended, recorder))
    observe(tracker, "get_result", recorder, _WHAT, before=_gives)
    patch(module.Parallel, "_get_outputs", partial(_outputs, recorder))
    patch(module.Parallel, "__call__", partial(_call, recorder))


def _submitted(args: list[Any], _: dict[str, Any]) -> None:
    tracker, job = args[:2]
    tracker.__dict__[_KNOWN] = job.__dict__.get(tasks.OF_FUTURE), process_pools.known_of(job)


def _ended(recorder: Recorder, args: list[Any], _: dict[str, Any]) -> None:
    """Remember which task of a call that returns a list ended last; of a thread's tell how it was made."""
    tracker, known = args[0], args[0].__dict__.get(_KNOWN)
    if tracker.parallel.return_generator or known is None or recorder.over:
        return
    task, call = known
    if call is not None:
        task = process_pools.task_of(call)
        if task.made is not None and task.pool is not None:
            row, span = task.made
            recorder.spans.append(span)
            recorder.records.append((MADE_ROW, call.pool.number, task.number, *row))
            task.made = None
        tracker.__dict__[_KNOWN] = task, None
    tracker.parallel.__dict__[_LAST] = tracker


def _gives(args: list[Any], _: dict[str, Any]) -> None:
    if args[0].parallel.return_generator:
        _given[get_ident()] = args[0]


def _outputs(recorder: Recorder, original: Any) -> Any:
    def outputs(self: Any, *args: Any) -> Iterator[Any]:
        results = original(self, *args)
        try:
            yield next(results, None)  # it has begun
            batch = None  # the task of the last result, which may have made this one, too
            while True:
                asked_ns = monotonic_ns()
                given = [next(results, _OVER)]
                if given[0] is _OVER:
                    return
                if self.return_generator and not recorder.over:
                    try:
                        tracker = _given.pop(get_ident(), None)
                        batch = _take_next(tracker, batch, asked_ns, recorder)
                    except ours(Exception) as error:
                        recorder.absorb(error, _WHAT)
                yield given.pop()
        except BaseException as error:
            hide_frame(error)
            raise
        finally:
            results.close()

    pass_for(outputs, original)
    return outputs


def _call(recorder: Recorder, original: Any) -> Any:
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        asked_ns = monotonic_ns()
        try:
            results = original(self, *args, **kwargs)
        except BaseException as error:
            hide_frame(error)
            raise
        finally:
            last = self.__dict__.pop(_LAST, None)
        if last is not None and not recorder.over:
            try:
                _take(last, asked_ns, recorder)
            except ours(Exception) as error:
                recorder.absorb(error, _WHAT)
        return results

    pass_for(call, original)
    return call


def _take_next(tracker: Any, batch: Batch | None, asked_ns: int, recorder: Recorder) -> Batch | None:
    """Record that the loop has a result; return its task, and which of the task's results it is."""
    if tracker is not None:
        task = _take(tracker, asked_ns, recorder, tracker.batch_size)
        return None if task is None else (task, 0)
    if batch is None:
        return None
    task, part = batch[0], batch[1] + 1
    tasks.take_along(task, part, asked_ns, recorder)
    return task, part


def _take(tracker: Any, asked_ns: int, recorder: Recorder, parts: int = 1) -> Task | None:
    known: Known | None = tracker.__dict__.pop(_KNOWN, None)
    if known is None:
        return None
    task, call = known
    if task is None and call is not None:
        task = process_pools.task_of(call)
    if task is not None and task.pool is not None:
        task.pool.made_by = "joblib.Parallel"
        tasks.take(task, asked_ns, False, recorder, of_program=True, parts=parts)
    return task


def after_fork_in_child() -> None:
    """Forget the parent's threads."""
    _given.clear()
