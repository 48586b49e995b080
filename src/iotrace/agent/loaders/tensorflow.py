"""Record the Python that ``tf.data`` calls on threads in C++: of ``py_function``, ``from_generator``."""

from __future__ import annotations

from functools import partial
from typing import Any

from iotrace.agent.patching import observe
from iotrace.agent.pools import tasks
from iotrace.agent.recording.recorder import Recorder
from iotrace.agent.recording.thread_clocks import current
from iotrace.session.names import KIND_CALLBACK

_FROM_GENERATOR = "_from_generator."  # a function of TensorFlow's, around the program's generator


def called(function: Any) -> Any:
    """Return the program's function behind one that ``tf.data`` calls; None: it is TensorFlow's own."""
    function = getattr(function, "_func", function)
    if not str(getattr(function, "__module__", "")).startswith("tensorflow."):
        return function
    if not str(getattr(function, "__qualname__", "")).startswith(_FROM_GENERATOR):
        return None
    if function.__name__ != "generator_py_func":  # it ends a pass
        return None
    within = getattr(function, "__wrapped__", function)
    held = (getattr(cell.cell_contents, "_generator", None) for cell in within.__closure__ or ())
    return next((each for each in held if each is not None), function)


def hook_functions(module: Any, recorder: Recorder) -> None:
    """Patch the registry of Python functions in `module`, ``tensorflow.python.ops.script_ops``."""

    def before(args: list[Any], _: dict[str, Any]) -> tuple[tasks.Begun, str] | None:
        if recorder.over or current.thread.depth:
            return None
        function = called(args[0].get(args[1]))
        if function is None:
            return None
        return tasks.begin_task(), tasks.name_of(function)

    observe(
        module.FuncRegistry,
        "__call__",
        recorder,
        "recording a function of tf.data",
        before=before,
        ended=partial(_ended, recorder),
    )


def _ended(recorder: Recorder, begun: tuple[tasks.Begun, str] | None, *_: Any) -> None:
    if begun is not None:
        ended = tasks.begin_task()
        recorder.spans.append(tasks.span_of(recorder, begun[0], ended, begun[1], KIND_CALLBACK))
