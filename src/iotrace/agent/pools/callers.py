"""Tell whose code hands something over: the program's, that of a library that feeds loops, or any other."""

from __future__ import annotations

import os
import sys
from itertools import islice

from iotrace.agent.unpatched import get_ident
from iotrace.session.guard import ours

TYPE_CHECKING = False  # `typing` costs half of the agent's start-up
if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import CodeType, FrameType
    from typing import Any

# Whose code it is: of Python, or a library that feeds no loop; the program's; of one that does; in between.
OTHERS, PROGRAMS, FEEDS, BETWEEN = range(4)
_FEEDING = ("datasets", "grain", "joblib", "monai", "spdl", "streaming", "torch_geometric", "torchdata")
_MOST_BETWEEN = 6  # frames
_CALLERS, _MOST_NODES = 2, 16  # frames of a library; nodes from one to the first
_COPIES = 0x1  # the flag of a function's code
_MOST_HELD, _MOST_WITHIN, _MOST_NAMES, _LONGEST = 64, 8, 6, 80  # variables, frames, names, characters
_FUNCTIONS = ("function", "method")
_OF_NOBODY_ELSE = 3  # the frame, a variable, and the call that counts
_DEEPEST = 64  # frames of a thread that are looked at
known_files: dict[str, int] = {}
_libraries: set[str] = set()  # of these those that are installed, and not Python's
HERE = f"{os.path.dirname(os.path.dirname(os.path.abspath(__file__)))}{os.sep}"


def who_calls(frame: FrameType | None) -> tuple[int, FrameType | None]:
    """Tell whose code this is, leaving out what stands between it and the queue."""
    while frame is not None:
        if (whose := whose_file(frame.f_code.co_filename)) != BETWEEN:
            return whose, frame
        frame = frame.f_back
    return OTHERS, None


def given_by_program(frame: FrameType) -> CodeType | None:
    """Return the program's function that a library's function in a frame was given; None without."""
    code, own = frame.f_code, variables_of(frame)
    for name in code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]:
        held = own.get(name)
        held = getattr(held, "func", held)  # of a partial
        found = getattr(getattr(held, "__func__", held), "__code__", None)
        if found is not None and whose_file(found.co_filename) == PROGRAMS:
            return found  # type: ignore[no-any-return]
    return None


def names_apart(frame: FrameType | None, sites: dict[str, str]) -> list[str]:
    """Name what else tells what this thread makes from what others make by the same function, best first.

    These are the program's function that it was given, the generator that it draws from, who calls it, and
    the thread. `sites` gets the lines of functions.
    """
    found: list[str] = []
    if frame is None or whose_file(frame.f_code.co_filename) != PROGRAMS:
        return found
    own = variables_of(frame)
    for each in islice((*own.values(), *_attributes(own.get("self"))), _MOST_HELD):
        code = _code_of(each)
        if code is not None and whose_file(code.co_filename) == PROGRAMS:
            found.append(note_site(code, sites))
    within = frame.f_back
    for _ in range(_MOST_WITHIN):
        if within is None:
            break
        if whose_file(within.f_code.co_filename) == PROGRAMS:
            found.append(note_site(within.f_code, sites))
        within = within.f_back
    found = [each for each in dict.fromkeys(found) if not each.startswith("<")][:_MOST_NAMES]
    return [each[:_LONGEST] for each in (*found, _thread_name()) if each]


def note_site(code: CodeType, sites: dict[str, str]) -> str:
    """Name a function, as `called` does, and note its line in `sites`; empty where two have one name."""
    name, site = called(code), f"{code.co_filename}:{code.co_firstlineno}"
    if sites.setdefault(name, site) != site:
        sites[name] = ""
    return name


def name_of(frame: FrameType | None, sites: dict[str, str] | None = None) -> str:
    """Name the function that runs in a frame; in one of a library the program's that it calls, or itself.

    `sites` gets its line.
    """
    if frame is None:
        return ""
    code = frame.f_code
    if whose_file(code.co_filename) == FEEDS:
        given = given_by_program(frame) or drawn_by(frame)
        if given is None:
            return code.co_filename.rpartition("-packages/")[2].partition("/")[0]
        code = given
    return called(code) if sites is None else note_site(code, sites)


def _attributes(thing: Any) -> list[Any]:
    """Return what an object holds, without running code of the program."""
    try:
        return [*object.__getattribute__(thing, "__dict__").values()]
    except ours(AttributeError, RuntimeError):  # without attributes; another thread adds one just now
        return []


def _code_of(held: Any) -> Any:
    """Return the code of a generator or a function, also of a partial, a method or an object."""
    held = getattr(held, "func", held) if type(held).__name__ == "partial" else held
    kind = type(held).__name__
    if kind == "generator":
        return held.gi_code
    if kind in _FUNCTIONS:
        return getattr(getattr(held, "__func__", held), "__code__", None)
    return getattr(type(held).__dict__.get("__call__"), "__code__", None)  # of an object that is called


def _thread_name() -> str:
    """Return what the program calls this thread, of one that Python knows, or this process."""
    threads: Any = sys.modules.get("threading")
    thread = getattr(threads, "_active", {}).get(get_ident())
    if thread is None or thread is threads.main_thread():
        process: Any = sys.modules.get("multiprocessing.process")
        running = None if process is None else process.current_process()
        return "" if running is None or not running._identity else f"process {running.name}"
    return f"thread {thread.name}"


def called(code: CodeType) -> str:
    """Name a function by its code."""
    name = str(getattr(code, "co_qualname", code.co_name)).rpartition("<locals>.")[2]
    name = name.removesuffix(".__call__")
    return f"lambda of line {code.co_firstlineno}" if name == "<lambda>" else name


def drawn_by(frame: FrameType) -> CodeType | None:
    """Return the program's function that a library's thread draws its items from, by torchdata's nodes.

    The last one that runs in that thread: a node with threads of its own is another stage.
    """
    node: Any = None
    within: FrameType | None = frame
    for _ in range(_CALLERS):
        if node is None and within is not None and within.f_code.co_filename == frame.f_code.co_filename:
            node, within = variables_of(within).get("source"), within.f_back
    for _ in range(_MOST_NODES):
        own = getattr(node, "__dict__", {})
        if own.get("num_workers"):
            return None
        drawn = own.get("iterable")
        for held in (own.get("map_fn"), drawn, getattr(type(drawn), "__iter__", None)):
            code = getattr(held, "gi_code", None) or getattr(
                getattr(held, "__func__", held), "__code__", None
            )
            if code is not None and whose_file(code.co_filename) == PROGRAMS:
                return code  # type: ignore[no-any-return]
        node = own.get("source")
    return None


def variables_of(frame: FrameType) -> Mapping[str, Any]:
    """Return the variables of a frame.

    Up to Python 3.12 a function's frame then has a copy of them, which would keep alive what they hold: it is
    emptied, unless the program has it, too, by `locals()`.
    """
    own = frame.f_locals
    if type(own) is not dict or not frame.f_code.co_flags & _COPIES:
        return own
    found = dict(own)
    if sys.getrefcount(own) <= _OF_NOBODY_ELSE:
        own.clear()
    return found


def making(thing: Any, frame: FrameType | None) -> FrameType | None:
    """Return the frame that makes `thing`, where `frame` may be an ``__init__`` of its classes.

    Not by what `self` is: to look at a frame's variables keeps alive what they hold, until it ends.
    """
    while frame is not None and frame.f_code.co_name == "__init__":
        own = (vars(kind).get("__init__") for kind in type(thing).__mro__)
        if not any(getattr(each, "__code__", None) is frame.f_code for each in own):
            break
        frame = frame.f_back
    return frame


def feeds(frame: FrameType | None) -> bool:
    """Whether a library that feeds loops calls, by way of Python's own modules (an event loop)."""
    for _ in range(_MOST_BETWEEN):
        whose, frame = who_calls(frame)
        if whose != OTHERS or frame is None:
            return whose == FEEDS
        frame = frame.f_back
    return False


def is_librarys(frame: FrameType | None) -> bool:
    """Whether a library runs here that feeds no loop, on a thread on which no code of the program does."""
    found = False
    for _ in range(_DEEPEST):
        if frame is None:
            return found
        file = frame.f_code.co_filename
        whose = whose_file(file)
        if whose in (PROGRAMS, FEEDS):
            return False
        found = found or (whose == OTHERS and file in _libraries)
        frame = frame.f_back
    return False


def whose_file(file: str) -> int:
    """Tell whose code a file holds."""
    if (whose := known_files.get(file)) is None:
        whose = known_files[file] = _whose(file)
    return whose


def _whose(file: str) -> int:
    if file.startswith(HERE) or file.endswith((f"{os.sep}queue.py", "multiprocessing/queues.py")):
        return BETWEEN
    _, installed, within = file.rpartition("-packages/")
    if installed:
        _libraries.add(file)
        return FEEDS if within.partition("/")[0] in _FEEDING else OTHERS
    if file.startswith("<") and hasattr(sys.modules.get("__main__"), "__file__"):
        # Of text that a library made, as proxies of a manager's are.
        return OTHERS if file.startswith("<frozen") else BETWEEN
    return OTHERS if file.startswith((os.path.dirname(os.__file__), "<frozen")) else PROGRAMS
