"""What a call costs, counted: the same on any machine, however busy. Time is measured by tools/bench."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any


def instructions(call: Callable[[], object], within: str = "") -> int:
    """Count the interpreter's instructions that ``call()`` executes, in Python functions of this thread.

    Of functions whose file's name contains `within` alone.
    """
    counted = 0

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal counted
        if within not in frame.f_code.co_filename:
            return None
        frame.f_trace_lines, frame.f_trace_opcodes = False, True
        counted += event == "opcode"
        return trace

    before, collects = sys.gettrace(), gc.isenabled()
    gc.disable()  # what others left behind may run code of its own as it goes
    sys.settrace(trace)
    try:
        call()
    finally:
        sys.settrace(before)
        if collects:
            gc.enable()
    return counted


def calls(call: Callable[[], object]) -> int:
    """Count the functions that ``call()`` enters in this thread, those written in C among them."""
    counted = 0

    def profile(frame: FrameType, event: str, _: Any) -> None:
        nonlocal counted
        counted += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(profile)
    try:
        call()
    finally:
        sys.setprofile(before)
    return counted - 1  # the one that ends the count
