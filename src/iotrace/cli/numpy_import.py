"""The import of numpy, half of a short command's time."""

from __future__ import annotations

import os
from importlib import import_module

_THREADS = "OPENBLAS_NUM_THREADS"


def import_numpy() -> None:
    """Import numpy without OpenBLAS's threads, which spin for 80 ms: no command multiplies matrices.

    The environment stays as it was, for the programs that a command starts.
    """
    if _THREADS in os.environ:
        return
    os.environ[_THREADS] = "1"
    import_module("numpy")
    del os.environ[_THREADS]
