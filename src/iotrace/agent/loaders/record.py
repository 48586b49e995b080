"""Record the asks of other libraries' loaders, by the rows of `table`."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from iotrace.agent import training
from iotrace.agent.dataloader.fetch import dataset_name
from iotrace.agent.dataloader.wrapped_source import Pass, Recorded, ask
from iotrace.agent.loaders.table import GRAIN_DATASET, ROWS, Row
from iotrace.agent.patching import WeakTable, hide_frame, patch
from iotrace.agent.recording.recorder import Recorder
from iotrace.agent.recording.thread_clocks import current
from iotrace.session.guard import ours

_HEAP_TYPE = 1 << 9  # a class made by a `class` statement, which may be patched

# Iterators of Python classes that a loop was given, with their loaders and rows; the pass begins with the
# first ask.
_given = WeakTable()


def hook_loaders(module: Any, recorder: Recorder, name: str) -> None:
    """Patch the rows of the module called `name`."""
    for row in ROWS[name]:
        class_name, _, method = row.method.rpartition(".")
        owner = getattr(module, class_name, None)
        if owner is None:
            continue
        patch(owner, method, _passes_recorded(row, recorder))
        override = training.override
        if row.sweep and override is not None:
            override.hook_iteration(owner, method, "" if row.sweep == "self" else row.sweep)


def hook_grain(module: Any, recorder: Recorder) -> None:
    """Patch grain's datasets, of which each kind has an ``__iter__`` of its own.

    `module` is ``grain._src.python.dataset.dataset``: it defines kinds, and meets those that others define.
    """

    recorded = _passes_recorded(GRAIN_DATASET, recorder)

    def hook_kinds(kind: Any) -> None:
        for each in kind.__subclasses__():
            if "__iter__" in vars(each):
                patch(each, "__iter__", recorded)
            hook_kinds(each)

    def make(original: Any) -> Any:
        def output_dataset_injector(iterate: Any) -> Any:  # grain calls it for each new kind
            return recorded(original(iterate))

        return output_dataset_injector

    hook_kinds(module.IterDataset)
    patch(module, "output_dataset_injector", make)


def _passes_recorded(row: Row, recorder: Recorder) -> Callable[[Any], Any]:
    """Return what wraps a method that returns the iterator of a pass, so that passes are recorded."""

    def make(original: Any) -> Any:
        def iterate(*args: Any, **kwargs: Any) -> Any:
            current.thread.depth += 1
            try:
                iterator = original(*args, **kwargs)
            except BaseException as error:
                hide_frame(error)
                raise
            finally:
                current.thread.depth -= 1
            if current.thread.depth or recorder.over:
                return iterator
            try:
                if not row.own and _package(sys._getframe(1)) == row.library:
                    return iterator
                return _record(args[0], iterator, row, recorder)
            except ours(Exception) as error:
                recorder.absorb(error, f"recording a loader of {row.library}")
                return iterator

        return iterate

    return make


def _package(frame: Any) -> str:
    name: str = frame.f_globals.get("__name__", "")
    return name.partition(".")[0]


def _record(loader: Any, iterator: Any, row: Row, recorder: Recorder) -> Any:
    """Have the asks of `iterator` recorded; it stays the object that it is, unless that is a generator."""
    if not hasattr(iterator, "__next__") or isinstance(iterator, Recorded) or _in_worker(recorder):
        return iterator
    kind = type(iterator)
    if not kind.__flags__ & _HEAP_TYPE:  # a generator, or a class in C
        return Recorded(iterator, _pass(loader, iterator, row, recorder))
    if kind.__module__ != "torch.utils.data.dataloader":  # else it has records of its own
        _given.put(iterator, (loader, row, None))
        _hook_asks(kind, recorder)
    return iterator


def _in_worker(recorder: Recorder) -> bool:
    """Return whether this process loads for another one, which multiprocessing made as a daemon.

    The first time it is recorded as a worker, so that readers know it for no rank.
    """
    if training.in_worker():
        return True
    process: Any = sys.modules.get("multiprocessing.process")
    if process is None or not process.current_process().daemon:
        return False
    from iotrace.agent.dataloader.worker import enter_daemon

    enter_daemon(recorder)
    return True


def _hook_asks(kind: Any, recorder: Recorder) -> None:
    """Patch ``__next__`` of a library's iterators: only those that a loop was given are recorded."""

    def make(original: Any) -> Any:
        def begin(iterator: Any, loader: Any, row: Row) -> Pass:
            begun = _pass(loader, iterator, row, recorder)
            begun.take = begun.timed(original)
            _given.put(iterator, (loader, row, begun))
            return begun

        def __next__(self: Any) -> Any:  # noqa: N807
            given = None if current.thread.depth or recorder.over else _given.get(self)
            begun = None
            if given is not None:
                try:
                    begun = given[2]
                    if begun is None or begun.over:
                        begun = begin(self, given[0], given[1])
                except ours(Exception) as error:
                    recorder.absorb(error, f"recording a loader of {given[1].library}")
            try:
                return original(self) if begun is None else ask(begun.take, begun, self)
            except BaseException as error:
                hide_frame(error)
                raise

        return __next__

    patch(kind, "__next__", make)


def _pass(loader: Any, iterator: Any, row: Row, recorder: Recorder) -> Pass:
    found = [each for each in (_follow(loader, path) for path in row.dataset) if each is not None]
    workers = _follow(loader, row.workers) if row.workers else 0
    name = row.name or dataset_name(found[0] if found else loader)
    return Pass(loader, iterator, name, recorder, row.library, workers if isinstance(workers, int) else 0)


def _follow(start: Any, path: str) -> Any:
    """Return what the attributes of `path` lead to; None where there is none."""
    try:
        for step in path.split("."):
            if step.endswith("*"):
                start = _last(start, step[:-1])
            else:
                start = start[int(step)] if step.isdigit() else getattr(start, step)
    except ours(AttributeError, IndexError, KeyError, TypeError):
        return None
    return start


def _last(start: Any, attribute: str) -> Any:
    """Follow `attribute` as often as there is one."""
    try:
        while True:
            start = getattr(start, attribute)
    except ours(AttributeError, AssertionError):  # grain asserts that there is one
        return start
