"""Record the Python that ``tf.data`` calls on threads in C++: of ``py_function``, ``from_generator``."""

from __future__ import annotations

from functools import partial
from typing import Any

from iotrace.agent.patching import observe
from iotrace.agent.pools import tasks
from iotrace.agent.recording.recorder import Recorder
from iotrace.agent.recording.thread_clocks import current
from iotrace.session.names import KIND_CALLBACK


def hook_functions(module: Any, recorder: Recorder) -> None:
    """Patch the registry of Python functions in `module`, ``tensorflow.python.ops.script_ops``."""

    def before(args: list[Any], _: dict[str, Any]) -> tuple[tasks.Begun, str] | None:
        if recorder.over or current.thread.depth:
            return None
        function = args[0].get(args[1])
        function = getattr(function, "_func", function)
        return tasks.begin_task(), str(getattr(function, "__qualname__", type(function).__qualname__))

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
