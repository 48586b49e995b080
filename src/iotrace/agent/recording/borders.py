"""Borders in time that no burst of POSIX calls crosses: where spans, fetches and waits begin and end.

The preloaded recorder (capture/) joins calls that follow each other quickly. It compares one number of the
process, `border`, with the one when the burst began: writing any other number there ends the bursts of all
threads.

It also counts how long each thread has waited for the lock of Python's interpreter.
"""

from __future__ import annotations

import os

from iotrace.session.guard import ours
from iotrace.session.names import POSIX_VARIABLE

TYPE_CHECKING = False
if TYPE_CHECKING:
    Border = list[int] | memoryview[int]

_border: Border | None = None


def find_border() -> Border:
    """Return what holds the number in its first place; a list that nobody reads without a recorder."""
    global _border
    if _border is None:
        _border = [0]
        if os.environ.get(POSIX_VARIABLE):
            try:
                # Some ms of import, in processes that read data alone: numpy and torch import it, too.
                from ctypes import CDLL, c_uint64

                border = c_uint64.in_dll(CDLL(None), "iotrace_border")
                _border = memoryview(border).cast("B").cast("Q")
            except ours(Exception):  # the library is not preloaded: a program may drop LD_PRELOAD
                pass
    return _border


def find_lock_waits() -> Border:
    """Return what holds in its first place how long this thread has waited for the interpreter's lock, in ns.

    Without a recorder that stays 0.
    """
    if os.environ.get(POSIX_VARIABLE):
        try:
            from ctypes import POINTER, PyDLL, c_uint64

            find = PyDLL(None).iotrace_interpreter_waits
            find.restype = POINTER(c_uint64)
            return memoryview(find().contents).cast("B").cast("Q")
        except ours(Exception):  # likewise; or it does not know this interpreter
            pass
    return [0]
