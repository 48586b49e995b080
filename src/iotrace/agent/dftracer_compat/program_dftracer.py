"""A program's own use of dftracer's Python module, beside the preloaded dftracer that records POSIX calls.

iotrace switches dftracer on in the environment, which the module reads. Where the user had not switched it
on, the program must see it off: no signal handlers, no log. Where the user had, the module starts a log of
the program's own, which takes over the POSIX calls of the process from the session's: readers are told where
it is. In both cases the functions and blocks that the program marked become spans.
"""

from __future__ import annotations

import os
from time import monotonic_ns, time_ns

from iotrace.agent.dftracer_compat.flush import write_out
from iotrace.agent.patching import hide_frame, patch
from iotrace.agent.recording.recorder import Recorder
from iotrace.agent.recording.spans import thread_id, timed
from iotrace.session.names import KIND_DFTRACER, POSIX

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_UNIT_NS = {"NS": 1, "US": 1_000, "MS": 1_000_000, "SEC": 1_000_000_000}


def hook_settings(module: Any, enabled: bool) -> None:
    """Have ``dftracer.python.env`` say what the user's environment said."""
    module.DFTRACER_ENABLE = enabled and module.DFTRACER_ENABLE


def hook_events(module: Any, recorder: Recorder, session: str) -> None:
    """Record what the program marks by ``dftracer.python.common``, and where its own log goes."""
    if module.DFTRACER_ENABLE:
        _hook_log_event(module, recorder)
        _hook_own_log(module, recorder, session)
    else:
        _hook_marks(module, recorder)


def _hook_log_event(module: Any, recorder: Recorder) -> None:
    """All events of the module's pass ``log_event``, with times of CLOCK_REALTIME in a unit that is set."""
    unit_ns = _UNIT_NS.get(os.environ.get("DFTRACER_TIME_METRIC", "US"), 1_000)

    def make(original: Any) -> Any:
        def log_event(
            self: Any, name: Any, cat: Any, start_time: Any, duration: Any, *args: Any, **kwargs: Any
        ) -> Any:
            try:
                start_ns = start_time * unit_ns - (time_ns() - monotonic_ns())
                _note(recorder, str(name), start_ns, duration * unit_ns)
            except Exception as error:
                recorder.log(f"an event of dftracer's is not recorded: {error!r}")
            try:
                return original(self, name, cat, start_time, duration, *args, **kwargs)
            except BaseException as error:
                hide_frame(error)
                raise

        return log_event

    patch(module.dftracer, "log_event", make)


def _note(recorder: Recorder, name: str, start_ns: int, duration_ns: int) -> None:
    recorder.start()
    what = (-1, thread_id(), recorder.text(name), -1, KIND_DFTRACER)
    recorder.spans.append((start_ns, duration_ns, -1, *what, -1, -1, -1, -1, -1))


def _hook_own_log(module: Any, recorder: Recorder, session: str) -> None:
    """Note the path of the program's own log, and when it ends: no POSIX call is traced after that."""

    def make_initialize(original: Any) -> Any:
        def initialize_log(*args: Any, **kwargs: Any) -> Any:
            if args and isinstance(args[0], module.dftracer):  # a static method, replaced by a plain one
                args = args[1:]
            logfile = args[0] if args else kwargs.get("logfile")
            if logfile:
                _write_out(session, recorder)
                _tell(recorder, os.path.abspath(os.fsdecode(logfile)), ended=False)
            try:
                return original(*args, **kwargs)
            except BaseException as error:
                hide_frame(error)
                raise

        return initialize_log

    def make_finalize(original: Any) -> Any:
        def finalize(self: Any) -> None:
            original(self)
            _tell(recorder, "", ended=True)

        return finalize

    patch(module.dftracer, "initialize_log", make_initialize)
    patch(module.dftracer, "finalize", make_finalize)


def _tell(recorder: Recorder, prefix: str, ended: bool) -> None:
    recorder.records.append({"type": "own_log", "prefix": prefix, "mono_ns": monotonic_ns(), "ended": ended})
    recorder.start()


def _write_out(session: str, recorder: Recorder) -> None:
    """Have the preloaded dftracer write the calls that it holds back: its buffer is dropped at the switch."""
    try:
        write_out(f"{session}/{POSIX}")
    except OSError as error:
        recorder.log(f"dftracer's buffer is not written before the program's own log: {error!r}")


def _hook_marks(module: Any, recorder: Recorder) -> None:
    """dftracer is off: its decorators and blocks do nothing, and are timed by us.

    Its own code stays off, which would read the arguments of the program's functions and may fail on them.
    """
    from functools import wraps

    def decorated(result: Any, name: Any, function: Any) -> Any:
        shown = name or getattr(function, "__qualname__", repr(function))
        return wraps(result)(timed(recorder, result, shown, KIND_DFTRACER, _started))

    def _started(*_: Any) -> tuple[int, str]:
        recorder.start()
        return -1, ""

    def make_decorator(original: Any) -> Any:
        def log(self: Any, func: Any = None, name: Any = None) -> Any:
            made = original(self, func, name)
            if callable(func) or isinstance(func, staticmethod):
                return decorated(made, name, getattr(func, "__func__", func))
            return lambda function: decorated(made(function), name, getattr(function, "__func__", function))

        return log

    def make_enter(original: Any) -> Any:
        def __enter__(self: Any) -> Any:  # noqa: N807
            self._iotrace_start_ns = monotonic_ns()
            return original(self)

        return __enter__

    def make_exit(original: Any) -> Any:
        def __exit__(self: Any, *error: Any) -> Any:  # noqa: N807
            start_ns = self.__dict__.pop("_iotrace_start_ns", None)
            if start_ns is not None:
                _note(recorder, self._name, start_ns, monotonic_ns() - start_ns)
            return original(self, *error)

        return __exit__

    for name in ("log", "log_init", "log_static"):
        patch(module.dft_fn, name, make_decorator)
    patch(module.dft_fn, "__enter__", make_enter)
    patch(module.dft_fn, "__exit__", make_exit)
