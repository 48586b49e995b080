"""Serve programs that use dftracer's Python module, beside the preloaded dftracer that records POSIX calls.

iotrace switches dftracer on in the environment, which the module reads. Where the user had not switched it
on, the program must see it off: no signal handlers, no log. Where the user had, the module starts a log of
the program, and the process's POSIX calls go there instead of the session: a record says where it is. In both
cases the functions and blocks that the program decorates for dftracer become spans.
"""

from __future__ import annotations

import os
from time import monotonic_ns, time_ns
from typing import Any

from iotrace.agent.dftracer_compat.flush import flush
from iotrace.agent.patching import observe, patch
from iotrace.agent.recording.recorder import Recorder
from iotrace.agent.recording.spans import timed
from iotrace.agent.recording.thread_clocks import thread_id
from iotrace.session.names import KIND_DFTRACER, POSIX

_UNIT_NS = {"NS": 1, "US": 1_000, "MS": 1_000_000, "SEC": 1_000_000_000}


def hook_settings(module: Any, enabled: bool) -> None:
    """Have ``dftracer.python.env`` say what the user's environment said."""
    module.DFTRACER_ENABLE = enabled and module.DFTRACER_ENABLE


def hook_events(module: Any, recorder: Recorder, session: str) -> None:
    """Record the functions and blocks of ``dftracer.python.common``, and the path of the program's log."""
    if module.DFTRACER_ENABLE:
        _hook_log_event(module, recorder)
        _hook_program_log(module, recorder, session)
    else:
        _hook_decorators(module, recorder)


def _hook_log_event(module: Any, recorder: Recorder) -> None:
    """Record all events of the module: ``log_event`` takes times of CLOCK_REALTIME in a unit that is set."""
    unit_ns = _UNIT_NS.get(os.environ.get("DFTRACER_TIME_METRIC", "US"), 1_000)

    def record(_: Any, name: Any, cat: Any, start_time: int, duration: int, *__: Any, **___: Any) -> None:
        start_ns = start_time * unit_ns - (time_ns() - monotonic_ns())
        _record_span(recorder, str(name), start_ns, duration * unit_ns)

    def logging(args: list[Any], kwargs: dict[str, Any]) -> None:
        record(*args, **kwargs)

    observe(module.dftracer, "log_event", recorder, "recording an event of dftracer's", before=logging)


def _record_span(recorder: Recorder, name: str, start_ns: int, duration_ns: int) -> None:
    recorder.start()
    what = (-1, thread_id(), recorder.text(name), -1, KIND_DFTRACER)
    recorder.spans.append((start_ns, duration_ns, -1, *what, -1, -1, -1, -1, -1))


def _hook_program_log(module: Any, recorder: Recorder, session: str) -> None:
    """Record the path of the program's own log, and when it ends: no POSIX call is traced after that."""

    def initializing(args: list[Any], kwargs: dict[str, Any]) -> None:
        if args and isinstance(args[0], module.dftracer):  # a static method, replaced by a plain one
            del args[0]
        logfile = args[0] if args else kwargs.get("logfile")
        if logfile:
            _record_log(recorder, os.path.abspath(os.fsdecode(logfile)), ended=False)
            flush(f"{session}/{POSIX}")  # what the preloaded dftracer drops as this log begins

    def finalized(*_: Any) -> None:
        _record_log(recorder, "", ended=True)

    what = "recording the program's dftracer"
    observe(module.dftracer, "initialize_log", recorder, what, before=initializing)
    observe(module.dftracer, "finalize", recorder, what, after=finalized)


def _record_log(recorder: Recorder, prefix: str, ended: bool) -> None:
    recorder.records.append({"type": "own_log", "prefix": prefix, "mono_ns": monotonic_ns(), "ended": ended})
    recorder.start()


def _hook_decorators(module: Any, recorder: Recorder) -> None:
    """Time dftracer's decorators and blocks, which do nothing while dftracer is off.

    Its own code stays off, which would read the arguments of the program's functions and may fail on them.
    """
    from functools import wraps

    def decorated(result: Any, name: str | None, function: Any) -> Any:
        shown = name or str(getattr(function, "__qualname__", repr(function)))
        return wraps(result)(timed(recorder, result, shown, KIND_DFTRACER, started))

    def started(*_: Any) -> tuple[int, str]:
        recorder.start()
        return -1, ""

    def make_decorator(original: Any) -> Any:
        def log(self: Any, func: Any = None, name: Any = None) -> Any:
            made = original(self, func, name)
            if callable(func) or isinstance(func, staticmethod):
                return decorated(made, name, getattr(func, "__func__", func))
            return lambda function: decorated(made(function), name, getattr(function, "__func__", function))

        return log

    def entering(args: list[Any], _: dict[str, Any]) -> None:
        args[0]._iotrace_start_ns = monotonic_ns()

    def leaving(args: list[Any], _: dict[str, Any]) -> None:
        block = args[0]
        start_ns = block.__dict__.pop("_iotrace_start_ns", None)
        if start_ns is not None:
            _record_span(recorder, block._name, start_ns, monotonic_ns() - start_ns)

    what = "recording a block of dftracer's"
    for name in ("log", "log_init", "log_static"):
        patch(module.dft_fn, name, make_decorator)
    observe(module.dft_fn, "__enter__", recorder, what, before=entering)
    observe(module.dft_fn, "__exit__", recorder, what, before=leaving)
