"""Which function in C a function of the program calls: such a call has no frame on the stack.

Told of functions that other packages hold in modules, as ``linear_sum_assignment(cost)`` or ``cv2.resize(x)``
names them: nothing of the program is asked for, and nothing of it runs.
"""

from __future__ import annotations

import sys
from types import BuiltinFunctionType, CodeType, ModuleType
from typing import Any

from iotrace.session.guard import ours

_MOST_PLACES, _MOST_CODES, _MOST_BYTES = 1024, 64, 1 << 13
_PACKAGES = "-packages/"
# What trains calls these itself, in each line of a model.
_THAT_TRAIN = ("torch", "torchvision", "torchaudio", "numpy", "jax", "jaxlib", "tensorflow", "cupy")
_CYTHON = ("cython_function_or_method", "fused_cython_function")

# Of each code: where each instruction is, its name, what it loads, and where its source begins.
_read: dict[int, tuple[CodeType, list[tuple[int, str, Any, tuple[int | None, int | None]]]]] = {}
_found: dict[tuple[int, int], tuple[CodeType, CalledInC | None]] = {}  # with the code, which keeps its id so


class CalledInC:
    """A function in C, with the names that the code of one in Python has."""

    __slots__ = ("co_filename", "co_firstlineno", "co_name", "co_qualname")

    def __init__(self, file: str, name: str) -> None:
        self.co_filename, self.co_firstlineno = file, 0
        self.co_name = self.co_qualname = name


def called_in_c(code: CodeType, last: int) -> CalledInC | None:
    """Return the function in C that instruction `last` calls; None: it calls none, or none that is known."""
    known = _found.get((id(code), last))
    if known is None:
        if len(_found) >= _MOST_PLACES:
            return None
        try:
            called = _called(code, last)
        except ours(Exception):  # a Python whose instructions are others
            called = None
        known = _found[id(code), last] = code, called
    return known[1]


def _called(code: CodeType, last: int) -> CalledInC | None:
    found: Any = None
    for name in _names(code, last):
        if found is None:
            found = _global(code.co_filename, name)
        else:
            found = found.__dict__.get(name) if isinstance(found, ModuleType) else None
        if found is None:
            return None
    if type(found) is not BuiltinFunctionType and type(found).__name__ not in _CYTHON:
        return None
    module = sys.modules.get(found.__module__ or "")
    file = "" if module is None else module.__dict__.get("__file__") or ""
    package = file.rpartition(_PACKAGES)[2].partition("/")[0].partition(".")[0]
    if _PACKAGES not in file or package in _THAT_TRAIN:
        return None
    return CalledInC(file, str(found.__name__))


def _global(file: str, name: str) -> Any:
    """Look a name up in the module that a file is of."""
    for module in [*sys.modules.values()]:
        if type(module) is ModuleType and module.__dict__.get("__file__") == file:
            return module.__dict__.get(name)
    return None


def _names(code: CodeType, last: int) -> list[str]:
    """Return the names of what instruction `last` calls, as ``["cv2", "resize"]``; of anything else none.

    They are loaded where the source of the call begins. Python has such positions from 3.11 on.
    """
    instructions = _instructions(code) if last >= 0 else []
    called = next((each for each in instructions if each[0] == last), None)
    if called is None or not called[1].startswith("CALL") or None in called[3]:
        return []
    names: list[str] = []
    for at, name, loads, begins in instructions:
        if at >= last:
            break
        if begins != called[3]:
            continue
        if name in ("LOAD_GLOBAL", "LOAD_NAME"):
            names = [loads]
        elif name in ("LOAD_ATTR", "LOAD_METHOD") and names:
            names.append(loads)
        elif name.startswith(("CALL", "LOAD", "BINARY")):
            names = []
    return names


def _instructions(code: CodeType) -> list[tuple[int, str, Any, tuple[int | None, int | None]]]:
    known = _read.get(id(code))
    if known is not None:
        return known[1]
    dis: Any = sys.modules.get("dis")
    if not hasattr(dis, "Positions") or len(_read) >= _MOST_CODES or len(code.co_code) > _MOST_BYTES:
        return []
    found = [
        (each.offset, each.opname, each.argval, (each.positions[0], each.positions[2]))
        for each in dis.get_instructions(code)
    ]
    _read[id(code)] = code, found
    return found
