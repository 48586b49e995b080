"""Read where other threads are, while they go on.

A frame that is held keeps what its function has: a file that the program drops there stays open, and what
ends it later runs in this thread. So no frame is held while another thread may run. One call in C reads a
whole stack, without an instruction of Python at which the interpreter's lock could go to another thread.

Python 3.11 makes the object of a frame when it is asked for. Allocating it may begin a collection of
garbage, and what that ends may let go of the lock: the thread goes on, and the object is of a frame that is
over, whose memory is another's by then. That crashes. So the same call switches the collector off, and leaves
it as it was. Before 3.11 frames are objects; from 3.12 on a collection begins between two instructions alone.
"""

from __future__ import annotations

import _operator
import gc
import sys
from itertools import accumulate, chain, islice, repeat, takewhile

TYPE_CHECKING = False  # `typing` costs half of the agent's start-up
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from types import CodeType, FrameType
    from typing import Any

    # A function's code, its line, and the place of its instruction in bytes.
    Place = tuple[CodeType, int | None, int]

_MOST_FRAMES = 256  # the innermost
_MADE_LATE = sys.version_info[:2] == (3, 11)
_place = _operator.attrgetter("f_code", "f_lineno", "f_lasti")
# The caller of a frame again and again; `None` at last, which no frame is, so that none is held.
_OUTWARDS = (*repeat("f_back", _MOST_FRAMES - 1), "__doc__")

if _MADE_LATE:
    from _functools import partial  # type: ignore[import-not-found]

    _call = getattr(_operator, "call")  # noqa: B009 - of 3.11 on
    _was: list[bool] = []
    _note = partial(next, map(_was.append, iter(gc.isenabled, None)))
    _restore = partial(next, map(_call, map((gc.disable, gc.enable).__getitem__, iter(_was.pop, None))))


def places_of(thread: int) -> list[Place]:
    """Return where a thread is, by its identifier: the innermost function first; nothing where it is over."""
    frames = map(_operator.methodcaller("get", thread), islice(iter(sys._current_frames, None), 1))
    return _read(frames)


def threads() -> tuple[int, ...]:
    """Return the identifiers of the threads that are in a function, whoever started them."""
    found = map(tuple, islice(iter(sys._current_frames, None), 1))
    return (_without_collecting(partial(list, found)) if _MADE_LATE else list(found))[0]


def places_from(frame: FrameType) -> list[Place]:
    """Return where a frame of this thread is, and those that called it."""
    return _read((frame,))


def _read(innermost: Iterable[FrameType | None]) -> list[Place]:
    places = map(_place, takewhile(bool, accumulate(chain(innermost, _OUTWARDS), getattr)))  # type: ignore[arg-type]
    return _without_collecting(partial(list, places)) if _MADE_LATE else list(places)


def _without_collecting(function: Callable[[], Any]) -> Any:
    try:
        return [*map(_call, (_note, gc.disable, function, _restore))][2]
    except BaseException:  # as no memory is left
        if _was:
            _restore()
        raise
