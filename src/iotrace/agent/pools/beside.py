"""Keep what is known of objects beside them, by their identity, until they are taken."""

from __future__ import annotations

from collections import deque

TYPE_CHECKING = False  # `typing` costs half of the agent's start-up
if TYPE_CHECKING:
    from typing import Any

MOST = 4096  # objects, of which some are never taken


class Beside(dict):  # type: ignore[type-arg]
    """By the id of an object what is known of it; of one that is put in several times, each in turn.

    Objects are not kept alive: who puts one in says so before it is handed on, and takes it when it comes.
    `count` is how many were put in and not taken.
    """

    __slots__ = ("count",)

    def __init__(self) -> None:
        self.count = 0

    def hold(self, thing: Any, known: Any) -> None:
        """Know this of `thing`."""
        key = id(thing)
        self.count += 1
        others = self.get(key)
        if others is None:
            if len(self) >= MOST:
                self.clear()
                self.count = 1
            self[key] = known
        elif type(others) is deque:
            others.append(known)
        else:
            self[key] = deque((others, known))

    def let_go(self, thing: Any, last: bool = False, of: Any = None) -> Any:
        """Return what is known of `thing`, the first or the `last` that was put in, and forget it.

        `of`: who asks has taken out what was known of all of them.
        """
        found = self.pop(id(thing), None) if of is None else of
        if found is None:
            return None
        self.count -= 1
        if type(found) is not deque:
            return found
        known = found.pop() if last else found.popleft()
        if found:
            self[id(thing)] = found
        return known
