"""Record how many threads the imported libraries may use in this process, on which CPUs.

Nothing is imported for it: a library that the program has not imported has no threads. A library's own
setting is asked where it has a function for it, else the environment stands for it.
"""

from __future__ import annotations

import os
import sys
from time import monotonic_ns
from typing import Any

from iotrace.session.guard import ours

# The module, and what in it gives the number: a function or a value.
_LIBRARIES = {
    "torch": ("torch", "get_num_threads"),
    "cv2": ("cv2", "getNumThreads"),
    "blosc": ("numcodecs.blosc", "get_nthreads"),
    "blosc2": ("blosc2", "nthreads"),
    "numexpr": ("numexpr.utils", "get_num_threads"),
}
_VARIABLES = (
    *("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_MAX_THREADS"),
    *("BLOSC_NTHREADS", "OMP_PROC_BIND", "OMP_PLACES", "KMP_AFFINITY", "GOMP_CPU_AFFINITY"),
    *("SLURM_CPU_BIND", "SLURM_CPUS_PER_TASK", "SLURM_CPUS_ON_NODE"),
)


def thread_counts() -> dict[str, Any]:
    """Return a record of this process's settings as they are now."""
    threads = {}
    for name, (module, attribute) in _LIBRARIES.items():
        try:
            found = getattr(sys.modules.get(module), "__dict__", {}).get(attribute)
            count = found() if callable(found) else found
            if type(count) is int and count > 0:
                threads[name] = count
        except ours(Exception):
            continue  # of a library that is not what its name says
    affinity = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    variables = {name: os.environ[name] for name in _VARIABLES if name in os.environ}
    return {
        "type": "threads",
        "mono_ns": monotonic_ns(),
        "threads": threads,
        "affinity": affinity,
        "variables": variables,
    }
