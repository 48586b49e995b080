"""The library of the loops that are written in C, where it was compiled when iotrace was installed.

It uses none of Python's headers: plain memory goes in and out by ctypes, so one library serves every Python
of a platform. Each room binds the functions of its own sources: `sources/chrome/scan.py` those of
the scanner, `timeline/writers` those of the writers and of the lanes.
"""

from __future__ import annotations

import ctypes
from functools import cache
from pathlib import Path

LIBRARY = "_compiled.so"
_INTERFACE = 7  # of `scan.c`: a library that was compiled before an update is not used


@cache
def library() -> ctypes.CDLL | None:
    """Load the library; None where it is missing, or was compiled of another version's sources."""
    try:
        found = ctypes.CDLL(str(Path(__file__).parent / LIBRARY))
        found.iotrace_interface.restype = ctypes.c_int64
        return found if found.iotrace_interface() == _INTERFACE else None
    except (OSError, AttributeError):
        return None


def available() -> bool:
    """Return whether the library can be used."""
    return library() is not None


def missing(effect: str) -> str:
    """Say what the library's absence leads to, and the remedy."""
    return f"the compiled library of iotrace is missing: {effect}; with a C compiler, install iotrace again"


def loaded() -> ctypes.CDLL:
    """Return the library.

    Raises:
        RuntimeError: It is not available.
    """
    found = library()
    if found is None:
        raise RuntimeError(f"{LIBRARY} is not available")
    return found
