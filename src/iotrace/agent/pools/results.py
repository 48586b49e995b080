"""What tasks of threads return, known beside it: a coroutine may have another task put that into a queue."""

from __future__ import annotations

import sys

from iotrace.agent.pools.beside import Beside
from iotrace.agent.recording.thread_clocks import current
from iotrace.agent.unpatched import get_ident

TYPE_CHECKING = False  # `typing` costs half of the agent's start-up
if TYPE_CHECKING:
    from typing import Any

    from iotrace.agent.pools import tasks

_MOST_LOOKED_INTO = 8

_results = Beside()  # while coroutines run in this process
# By `get_ident`, which a later thread may have again: the thread, and when its last task ended that made one.
_made_ns: dict[int, tuple[Any, int]] = {}


class Result:
    """What a task of a thread has made, which the program may have another task put into a queue.

    `since_ns`: when the thread's task before had made something; -1: none has. `of` is what it holds that can
    be referred to weakly: an object that comes later may have the same identity.
    """

    __slots__ = ("name", "of", "row", "since_ns", "span")

    def __init__(self, name: str, made: tasks.Made, since_ns: int, of: Any) -> None:
        self.name, self.since_ns, self.of = name, since_ns, of
        self.row, self.span = made


def hold(result: Any, name: str, made: tasks.Made) -> None:
    """Keep beside `result`, which a task of this thread returns, how that was made.

    Nothing of one whose parts allow no weak reference, as bytes.
    """
    weakref: Any = sys.modules.get("weakref")
    part = _part_of(result)
    if weakref is None or part is None:
        return
    ident, thread = get_ident(), current.thread
    before, since_ns = _made_ns.get(ident, (None, -1))
    _results.hold(result, Result(name, made, since_ns if before is thread else -1, weakref.ref(part)))
    _made_ns[ident] = thread, made[0][2]


def let_go(thing: Any) -> Result | None:
    """Return how `thing` was made, where it is a task's result, and forget it."""
    found: Result | None = _results.let_go(thing)
    return found if found is not None and found.of() is _part_of(thing) else None


def _part_of(result: Any) -> Any:
    """Return the first of what a result is, or holds, that can be referred to weakly; None without one."""
    if type(result) is dict:
        result = [*result.values()] if len(result) <= _MOST_LOOKED_INTO else ()
    given = result[:_MOST_LOOKED_INTO] if type(result) in (list, tuple) else (result,)
    return next((each for each in given if getattr(type(each), "__weakrefoffset__", 0)), None)


def after_fork_in_child() -> None:
    """Forget the parent's threads."""
    _results.clear()
    _made_ns.clear()
