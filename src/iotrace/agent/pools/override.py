"""Apply what a sweep asks of this run to pools: how many threads or processes those of the program have."""

from __future__ import annotations

import sys
from _functools import partial  # type: ignore[import-not-found]  # `functools` is five files to read

from iotrace.agent.patching import observe
from iotrace.agent.pools.callers import PROGRAMS, making, whose_file
from iotrace.agent.recording.recorder import Recorder

TYPE_CHECKING = False  # `typing` costs half of the agent's start-up
if TYPE_CHECKING:
    from typing import Any

_WHAT = "overriding a pool"
# By the module that defines it: a class, its method, the parameter that says how many, and its place.
POOLS = {
    "concurrent.futures.thread": ("ThreadPoolExecutor", "__init__", "max_workers", 1),
    "concurrent.futures.process": ("ProcessPoolExecutor", "__init__", "max_workers", 1),
    "multiprocessing.pool": ("Pool", "__init__", "processes", 1),
    "joblib.parallel": ("Parallel", "__init__", "n_jobs", 1),
    "torchdata.nodes.map": ("ParallelMapper", "__init__", "num_workers", 3),
    "spdl.pipeline._builder": ("PipelineBuilder", "pipe", "concurrency", sys.maxsize),
}


def hook_pool(module: Any, recorder: Recorder, workers: int) -> None:
    """Have the pools of `module` that the program makes from now on work with so many."""
    kind, method, parameter, place = POOLS[module.__name__]
    before = partial(_making, parameter, place, workers)
    if workers and hasattr(module, kind):
        observe(getattr(module, kind), method, recorder, _WHAT, before=before, layer="override")


def _making(parameter: str, place: int, workers: int, args: list[Any], kwargs: dict[str, Any]) -> None:
    frame = making(args[0], sys._getframe(2))
    while frame is not None and frame.f_code.co_filename.endswith("multiprocessing/context.py"):
        frame = frame.f_back
    if frame is None or whose_file(frame.f_code.co_filename) != PROGRAMS:
        return
    if place < len(args):
        args[place] = workers
    else:
        kwargs[parameter] = workers
