"""Record how many threads the imported libraries may use in this process, on which CPUs.

Nothing is imported for it: a library that the program has not imported has no threads. A library's own
setting is asked where it has a function for it, else the environment stands for it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from functools import partial
from time import monotonic_ns
from typing import Any

from iotrace.session.guard import ours

_VARIABLES = (
    *("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_MAX_THREADS"),
    *("BLOSC_NTHREADS", "OMP_PROC_BIND", "OMP_PLACES", "KMP_AFFINITY", "GOMP_CPU_AFFINITY"),
    *("SLURM_CPU_BIND", "SLURM_CPUS_PER_TASK", "SLURM_CPUS_ON_NODE"),
)


def _blosc() -> int | None:
    """Return how many threads numcodecs' blosc uses here: none in a worker, nor where zarr 3 uses it."""
    module = getattr(sys.modules.get("numcodecs.blosc"), "__dict__", {})
    own = module.get("_get_use_threads")
    return module["get_nthreads"]() if own is not None and own() else None


def _zarr() -> Any:
    """Return how many threads that zarr 3 has started may work at once; an error where it is not there."""
    module = getattr(sys.modules.get("zarr.core.sync"), "__dict__", {})
    pools = [module.get("_executor"), *(getattr(each, "_default_executor", None) for each in module["loop"])]
    started = {id(pool): len(pool._threads) for pool in pools if pool is not None}  # both may be one
    together = sys.modules["zarr"].config.get("async.concurrency")
    return min(sum(started.values()), together)


# How its functions are named, by how the library was built: numpy's wheels, scipy's, distributions'.
_OPENBLAS = ("scipy_openblas_{}64_", "scipy_openblas_{}", "openblas_{}64_", "openblas_{}")


def openblas_calls(name: str) -> list[Any]:
    """Return the function of this name of numpy's OpenBLAS, if it has it.

    Raises:
        LookupError, OSError, ValueError: numpy is not imported, or its wheel brings no OpenBLAS.
    """
    numpy, ctypes = (getattr(sys.modules.get(each), "__dict__", {}) for each in ("numpy", "ctypes"))
    directory = f"{os.path.dirname(numpy['__file__'])}.libs"
    (file,) = [each for each in os.listdir(directory) if "openblas" in each]
    library = ctypes["CDLL"](f"{directory}/{file}", os.RTLD_NOLOAD | os.RTLD_LAZY)
    found = [getattr(library, pattern.format(name), None) for pattern in _OPENBLAS]
    return [each for each in found if each is not None][:1]


def _openblas() -> int | None:
    """Return how many threads numpy's OpenBLAS may use; an error where numpy's wheel brings none."""
    return next((call() for call in openblas_calls("get_num_threads")), None)


def _own(module: str, attribute: str) -> Any:
    """Return what a function or a value of `module` says; None where it is not imported, or has none."""
    found = getattr(sys.modules.get(module), "__dict__", {}).get(attribute)
    return found() if callable(found) else found


_COUNTS: dict[str, Callable[[], Any]] = {
    "torch": partial(_own, "torch", "get_num_threads"),
    "cv2": partial(_own, "cv2", "getNumThreads"),
    "blosc2": partial(_own, "blosc2", "nthreads"),
    "numexpr": partial(_own, "numexpr.utils", "get_num_threads"),
    "pyarrow": partial(_own, "pyarrow", "cpu_count"),
    "blosc": _blosc,
    "zarr": _zarr,
    "openblas": _openblas,
}


def thread_counts() -> dict[str, Any]:
    """Return a record of this process's settings as they are now."""
    threads = {}
    for name, find in _COUNTS.items():
        try:
            count = find()
        except ours(Exception):
            continue  # it is not there, or not what its name says
        if type(count) is int and count > 0:
            threads[name] = count
    affinity = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    variables = {name: os.environ[name] for name in _VARIABLES if name in os.environ}
    return {
        "type": "threads",
        "mono_ns": monotonic_ns(),
        "threads": threads,
        "affinity": affinity,
        "variables": variables,
    }
