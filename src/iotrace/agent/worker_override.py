"""Set what a trial asks of each worker once the program's own start of it has run: threads, and CPUs.

A library that is not imported yet finds the number in its variable.
"""

from __future__ import annotations

import inspect
import os
import sys
import threading
from typing import Any

from iotrace.agent.patching import observe
from iotrace.agent.recording.recorder import Recorder
from iotrace.agent.thread_counts import openblas_calls
from iotrace.session.guard import ours

_LAYER = "override"
_WHAT = "setting what a trial asks of a worker"
_SETTERS = {
    "torch": ("torch", "set_num_threads"),
    "cv2": ("cv2", "setNumThreads"),
    "blosc": ("numcodecs.blosc", "set_nthreads"),
    "blosc2": ("blosc2", "set_nthreads"),
    "numexpr": ("numexpr", "set_num_threads"),
    "pyarrow": ("pyarrow", "set_cpu_count"),
}
_VARIABLES = {
    "cv2": "OPENCV_FOR_THREADS_NUM",
    "blosc": "BLOSC_NTHREADS",
    "blosc2": "BLOSC_NTHREADS",
    "openblas": "OPENBLAS_NUM_THREADS",
    "numexpr": "NUMEXPR_NUM_THREADS",
    "zarr": "ZARR_ASYNC__CONCURRENCY",
}


class AtStart:
    """What is asked: threads by library, and the CPUs to use; empty leaves the program's own."""

    def __init__(self, settings: dict[str, str]) -> None:
        pairs = [each.partition("=") for each in settings.get("worker_threads", "").split(",") if each]
        self.threads = {library: int(count) for library, _, count in pairs}
        self.cpus = {int(each) for each in settings.get("cpus", "").split(",") if each}

    def __bool__(self) -> bool:
        return bool(self.threads or self.cpus)


def hook_workers(module: Any, recorder: Recorder, asked: AtStart) -> None:
    """Patch ``_worker_loop`` of torch's module: the worker's ``init_fn`` then sets what is asked."""
    at = list(inspect.signature(module._worker_loop).parameters).index("init_fn")

    def starting(args: list[Any], _: dict[str, Any]) -> None:
        if threading.current_thread() is threading.main_thread():  # not of the training process
            args[at] = _behind(args[at], asked, recorder)

    observe(module, "_worker_loop", recorder, _WHAT, before=starting, layer=_LAYER)


def _behind(own: Any, asked: AtStart, recorder: Recorder) -> Any:
    def start(number: int) -> None:
        if own is not None:
            own(number)
        unbind(asked.cpus, recorder)
        for library, count in asked.threads.items():
            try:
                _set(library, count)
            except ours(Exception) as error:
                recorder.absorb(error, _WHAT)

    return start


def _set(library: str, count: int) -> None:
    variable = _VARIABLES.get(library)
    if variable is not None:
        os.environ[variable] = str(count)
    if library == "openblas":
        for call in openblas_calls("set_num_threads"):
            call(count)
    elif library == "zarr" and "zarr" in sys.modules:
        sys.modules["zarr"].config.set({"async.concurrency": count})
    else:
        name, function = _SETTERS.get(library, ("", ""))
        module = sys.modules.get(name)
        if module is not None:
            getattr(module, function)(count)


def unbind(cpus: set[int], recorder: Recorder) -> None:
    """Let all threads of this process use these CPUs; none: what they use stays."""
    for thread in os.listdir("/proc/self/task") if cpus else ():
        try:
            os.sched_setaffinity(int(thread), cpus)
        except ours(OSError) as error:  # it has ended, or the job may not use them
            recorder.absorb(error, _WHAT)
