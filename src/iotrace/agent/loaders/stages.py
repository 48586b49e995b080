"""Record the functions of the program that a library calls to make batches: which, when, how many at once.

The threads that libraries run them on belong to `concurrent.futures` mostly (`pools.executors`). Here are the
settings that say how many work at once, SPDL's coroutines, and what grain calls within a task of its own.
"""

from __future__ import annotations

import sys
from time import monotonic_ns
from typing import Any

from iotrace.agent.patching import hide_frame, observe, pass_for, patch
from iotrace.agent.pools import tasks
from iotrace.agent.pools.callers import PROGRAMS, who_calls, whose_file
from iotrace.agent.recording.recorder import Recorder
from iotrace.agent.recording.thread_clocks import current
from iotrace.session.guard import ours
from iotrace.session.names import KIND_CALLBACK

_WHAT = "recording a function that a library calls"
_MOST_FRAMES = 12  # of a library, from the program's line
# By grain's module: its methods that call a function of the program.
_GRAIN_CALLS = (
    ("MapMapDataset", "_map_element"),
    ("RandomMapMapDataset", "_random_map_element"),
    ("MapWithIndexMapDataset", "_map_with_index_fn"),
)
_GRAIN_THREADS, _GRAIN_PROCESSES = 16, 10  # without options
_GRAIN_ITERATORS = ("_MapDatasetIterator", "_RandomMapDatasetIterator", "_MapWithIndexDatasetIterator")

_told: set[tuple[Any, ...]] = set()
_pace = tasks.Pace()
_mapping: dict[
    int, tuple[str, int, str | None]
] = {}  # by thread: the `map` of tf.data that traces a function


def tell(
    recorder: Recorder,
    library: str,
    function: Any = None,
    setting: str = "",
    value: Any = None,
    set_at: str | None = None,
) -> None:
    """Record once how many of `function` (None: of all that the library calls) work at once, and where it is.

    `value` is that number, unless it is one that the library chooses.
    """
    name, site = ("", None) if function is None else (tasks.name_of(function), _site_of(function))
    known = (library, name, site, setting, value, set_at)
    if known in _told:
        return
    _told.add(known)
    number = value if isinstance(value, int) and value >= 0 else -1
    about = {"library": library, "name": name, "site": site, "setting": setting, "value": number}
    recorder.records.append({"type": "stage", **about, "set_at": set_at, "mono_ns": monotonic_ns()})


def _site_of(function: Any) -> str | None:
    code = tasks.code_of(function)
    if code is None or whose_file(code.co_filename) != PROGRAMS:
        return None
    return f"{code.co_filename}:{code.co_firstlineno}"


def _set_at(frame: Any) -> str | None:
    """Return the program's line that leads to a library's frame; None where none does."""
    for _ in range(_MOST_FRAMES):
        whose, frame = who_calls(frame)
        if frame is None or whose == PROGRAMS:
            return None if frame is None else f"{frame.f_code.co_filename}:{frame.f_lineno}"
        frame = frame.f_back
    return None


def _given(args: list[Any], kwargs: dict[str, Any], place: int, name: str, default: Any = None) -> Any:
    return kwargs.get(name, args[place] if place < len(args) else default)


class _Calls:
    """Records the calls of one function, unless they are too many."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder

    def begin(self, library: str, function: Any) -> tuple[tasks.Begun, str] | None:
        if self._recorder.over or _pace.is_fast or tasks.code_of(function) is None:
            return None
        tell(self._recorder, library, function)
        return tasks.begin_task(), tasks.name_of(function)

    def end(self, begun: tuple[tasks.Begun, str] | None, *_: Any) -> None:
        if begun is not None:
            _pace.count()
            ended = tasks.begin_task()
            self._recorder.spans.append(
                tasks.span_of(self._recorder, begun[0], ended, begun[1], KIND_CALLBACK)
            )


# --- SPDL


def hook_spdl_builder(module: Any, recorder: Recorder) -> None:
    """Patch `module`, ``spdl.pipeline._builder``: the concurrency of each stage, the threads of all."""

    def piped(args: list[Any], kwargs: dict[str, Any]) -> None:
        at = _set_at(sys._getframe(2))
        if at is not None and who_calls(sys._getframe(2))[0] == PROGRAMS:
            tell(recorder, "spdl", args[1], "concurrency", kwargs.get("concurrency", 1), at)

    def built(_: list[Any], kwargs: dict[str, Any]) -> None:
        if who_calls(sys._getframe(2))[0] == PROGRAMS:
            at = _set_at(sys._getframe(2))
            tell(recorder, "spdl", None, "num_threads", kwargs.get("num_threads"), at)

    observe(module.PipelineBuilder, "pipe", recorder, _WHAT, before=piped, layer="stage")
    observe(module.PipelineBuilder, "build", recorder, _WHAT, before=built, layer="stage")


def hook_spdl_loader(module: Any, recorder: Recorder) -> None:
    """Patch `module`, ``spdl.dataloader._dataloader``: the threads of a loader."""

    def made(_: Any, __: Any, args: Any, ___: Any) -> None:
        threads = getattr(args[0], "_num_threads", None)
        tell(recorder, "spdl", None, "num_threads", threads, _set_at(sys._getframe(2)))

    observe(module.DataLoader, "__init__", recorder, _WHAT, after=made, layer="stage")


def hook_spdl_pipes(module: Any, recorder: Recorder) -> None:
    """Patch `module`, ``spdl.pipeline._components._pipe``: the calls of functions that are coroutines.

    Several of one thread run at once: their spans overlap, and what each computes is not known.
    """
    import inspect

    def make(original: Any) -> Any:
        def convert_to_async(op: Any, executor: Any) -> Any:
            called = original(op, executor)
            is_own = called is op or called is getattr(op, "__call__", None)  # noqa: B004
            if not is_own or not inspect.iscoroutinefunction(called):
                return called

            async def timed(item: Any) -> Any:
                start_ns = monotonic_ns()
                try:
                    return await called(item)
                except BaseException as error:
                    hide_frame(error)
                    raise
                finally:
                    try:
                        _slept(recorder, called, start_ns)
                    except ours(Exception) as error:
                        recorder.absorb(error, _WHAT)

            pass_for(timed, called)
            return timed

        return convert_to_async

    patch(module, "convert_to_async", make)


def _slept(recorder: Recorder, function: Any, start_ns: int) -> None:
    """Record a call of a coroutine."""
    if recorder.over or _pace.is_fast:
        return
    _pace.count()
    tell(recorder, "spdl", function)
    name = recorder.text(tasks.name_of(function))
    about = (-1, current.thread.tid, name, -1, KIND_CALLBACK)
    recorder.spans.append((start_ns, monotonic_ns() - start_ns, -1, *about, *(0, 0, 0, 0), -1))


# --- grain


def hook_grain_maps(module: Any, recorder: Recorder) -> None:
    """Patch `module`, ``grain…transformations.map``: what calls the functions that `map` was given."""
    calls = _Calls(recorder)

    def before(args: list[Any], _: dict[str, Any]) -> Any:
        return calls.begin("grain", args[0]._map_fn)

    def made(_: Any, __: Any, args: Any, ___: Any) -> None:
        iterator = args[0]
        iterator._map_fn = _timed(iterator._map_fn, calls)

    for kind, method in _GRAIN_CALLS:
        if hasattr(module, kind):
            observe(getattr(module, kind), method, recorder, _WHAT, before=before, ended=calls.end)
    for kind in _GRAIN_ITERATORS:
        if hasattr(module, kind):
            observe(getattr(module, kind), "__init__", recorder, _WHAT, after=made)


def _timed(function: Any, calls: _Calls) -> Any:
    def timed(*args: Any) -> Any:
        begun = calls.begin("grain", function)
        try:
            return function(*args)
        except BaseException as error:
            hide_frame(error)
            raise
        finally:
            calls.end(begun)

    pass_for(timed, function)
    return timed


def hook_grain_sources(module: Any, recorder: Recorder) -> None:
    """Patch `module`, ``grain…transformations.source``: ``__getitem__`` of a source of the program's."""
    calls = _Calls(recorder)

    def before(args: list[Any], _: dict[str, Any]) -> Any:
        function = getattr(type(args[0]._source), "__getitem__", None)
        return calls.begin("grain", function)

    observe(module.SourceMapDataset, "__getitem__", recorder, _WHAT, before=before, ended=calls.end)


def hook_grain_settings(module: Any, recorder: Recorder) -> None:
    """Patch `module`, ``grain…dataset.dataset``: how many threads read ahead, how many processes."""

    def asks(setting: str, option: str, otherwise: int) -> Any:
        def asked(args: list[Any], kwargs: dict[str, Any]) -> None:
            frame = sys._getframe(2)
            if who_calls(frame)[0] == PROGRAMS:  # grain calls it, too
                options = _given(args, kwargs, 1, option)
                name = setting.partition("(")[2].rstrip(")")
                tell(recorder, "grain", None, setting, getattr(options, name, otherwise), _set_at(frame))

        return asked

    threads = asks("ReadOptions(num_threads)", "read_options", _GRAIN_THREADS)
    processes = asks("mp_prefetch(num_workers)", "options", _GRAIN_PROCESSES)
    observe(module.MapDataset, "to_iter_dataset", recorder, _WHAT, before=threads, layer="stage")
    observe(module.IterDataset, "mp_prefetch", recorder, _WHAT, before=processes, layer="stage")


# --- keras, torchdata, tf.data


def hook_keras_datasets(module: Any, recorder: Recorder) -> None:
    """Patch `module`, ``keras…py_dataset_adapter``: what its threads or processes call of a `PyDataset`."""
    calls = _Calls(recorder)

    def function_of(dataset: Any) -> Any:
        return getattr(type(dataset), "__getitem__", None)

    def before(args: list[Any], _: dict[str, Any]) -> Any:
        return calls.begin("keras", function_of(module._SHARED_SEQUENCES[args[0]]))

    def made(_: Any, __: Any, args: Any, kwargs: Any) -> None:
        dataset, workers = _given(args, kwargs, 1, "py_dataset"), _given(args, kwargs, 2, "workers")
        tell(recorder, "keras", function_of(dataset), "workers", workers, _set_at(sys._getframe(2)))

    observe(module, "get_index", recorder, _WHAT, before=before, ended=calls.end)
    observe(module.OrderedEnqueuer, "__init__", recorder, _WHAT, after=made, layer="stage")


def hook_mapper(module: Any, recorder: Recorder) -> None:
    """Patch `module`, ``torchdata.nodes.map``: how many threads or processes apply a function."""

    def made(args: list[Any], kwargs: dict[str, Any]) -> None:
        function, workers = _given(args, kwargs, 2, "map_fn"), _given(args, kwargs, 3, "num_workers")
        tell(recorder, "torchdata", function, "num_workers", workers, _set_at(sys._getframe(2)))

    observe(module.ParallelMapper, "__init__", recorder, _WHAT, before=made, layer="stage")


def hook_tf_map(module: Any, recorder: Recorder) -> None:
    """Patch `module`, ``tensorflow.python.data.ops.dataset_ops``: how many calls of `map` run at once."""

    def before(args: list[Any], kwargs: dict[str, Any]) -> int:
        calls = _given(args, kwargs, 2, "num_parallel_calls")
        value = 1 if calls is None else calls if isinstance(calls, int) else -1
        _mapping[current.thread.tid] = "num_parallel_calls", value, _set_at(sys._getframe(2))
        return current.thread.tid

    def ended(tid: int | None, *_: Any) -> None:
        _mapping.pop(tid or 0, None)

    observe(module.DatasetV2, "map", recorder, _WHAT, before=before, ended=ended, layer="stage")


def hook_tf_functions(module: Any, recorder: Recorder) -> None:
    """Patch the registry of Python functions in `module`, ``tensorflow.python.ops.script_ops``."""
    from iotrace.agent.loaders.tensorflow import called  # other libraries' stages need none of it

    def inserted(args: list[Any], _: dict[str, Any]) -> None:
        function = called(args[1])
        if function is not None:
            tell(recorder, "tensorflow", function, *_mapping.get(current.thread.tid, ()))

    observe(module.FuncRegistry, "insert", recorder, _WHAT, before=inserted, layer="stage")
