"""Sample what the training thread is in while it trains: code of the loop that has no other name.

The recorder's writer takes a sample now and then: it reads where the thread is. It changes nothing there, and
runs no line of the program. Of the program's own functions a sample has the line, too. Of one that came
late it has the first of the lines that the thread may have been in: `earliest_line`.
"""

from __future__ import annotations

import os
import sys
from time import monotonic_ns
from types import CodeType, FrameType
from typing import Any

from iotrace.agent.recording.c_calls import called_in_c
from iotrace.agent.recording.frames import places_from, places_of
from iotrace.agent.recording.lock_waits import LockWaits
from iotrace.agent.recording.sampling import Sampler
from iotrace.agent.recording.unchecked import earliest_line
from iotrace.agent.unpatched import get_ident, get_native_id

TYPE_CHECKING = False  # `typing` costs half of the agent's start-up
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

    from iotrace.agent.recording.c_calls import CalledInC
    from iotrace.agent.recording.frames import Place

_SHORTEST_S = 0.02
_RESOLUTION = 1500  # samples at most until a time has doubled
_MOST_FRAMES = 64  # the innermost
_MOST_SAMPLES = 256  # of a record
_MOST_BESIDE = 256  # threads of a process, one after the other
_OURS = os.path.join(__file__.rpartition(f"{os.sep}agent{os.sep}")[0], "")
_LIBRARIES = ("-packages/", "/lib/python", "<frozen ", _OURS)

_Stack = tuple[tuple[int, int], ...]  # a function by its code's id, and a line


class LoopStacks:
    """The samples of the thread that makes it, which trains or makes batches: `sample` takes one.

    `drain` hands them over.
    """

    over = False  # it goes on as long as the loop
    sampler = Sampler()

    def __init__(
        self,
        recorder: Any,
        shortest_s: float = _SHORTEST_S,
        most_samples: int = _MOST_SAMPLES,
        loop: FrameType | None = None,  # the caller's own, unless it is given
        beside: bool = False,  # another one takes its samples
    ) -> None:
        self._recorder, self._shortest_s = recorder, shortest_s
        self._most_beside = _MOST_BESIDE
        self._thread, self._tid = get_ident(), get_native_id()
        self._began_ns = monotonic_ns()
        # By a code's id, as Python computes the hash of a code anew each time, from all that it holds: the
        # code, which keeps its id so, and whether it is the program's.
        self._known: dict[int, tuple[CodeType | CalledInC, bool]] = {}
        self._path = self._stack_of(places_from(loop or sys._getframe(1)))  # where it trains
        self._forget()
        self._locks = None if beside else LockWaits(recorder)
        self._beside: dict[int, LoopStacks] = {}  # by Python's number of a thread
        self._new: list[LoopStacks] = []
        if not beside:
            recorder.before_flush.append(lambda: self.drain(recorder, most_samples))

    def _forget(self) -> None:
        # With the earliest line of the innermost that has one, and whether the interpreter's lock was free.
        self._stacks: dict[tuple[_Stack, int, bool], int] = {}
        self._asked = True
        self._times: list[int] = []  # ns of CLOCK_MONOTONIC
        self._numbers: list[int] = []

    @property
    def interval_s(self) -> float:
        """How long to wait for the next sample: a share of the time so far."""
        return max(self._shortest_s, (monotonic_ns() - self._began_ns) / 1e9 / _RESOLUTION)

    def trains_in(self, code: CodeType) -> bool:
        """Whether the thread was in a function of this code where it trained first."""
        return id(code) in {number for number, _ in self._path}

    def sample(self, times: int = 1, *, late: bool = False, held: bool = True, asked: bool = True) -> None:
        """Note what the thread is in, so many `times`, and which other threads wait for locks.

        `late`: it could not be sampled when it was due. Where it was not `asked` to make that possible, what
        it was in then is not known. `held`: a thread had the interpreter's lock, so no call that releases it.
        """
        places = places_of(self._thread)
        seen = self._locks.look(self._thread, places) if self._locks is not None else {}
        if seen and (self._new or self._beside):
            self._sample_beside(seen, times, late, held, asked)
        if places:
            self._note(places, times, late, held, asked)

    def beside(self, frame: FrameType) -> None:
        """Sample the calling thread, too, whose `frame` makes items for the loop."""
        if self._most_beside > 0 and self._thread != get_ident():
            self._most_beside -= 1
            self._new.append(LoopStacks(self._recorder, loop=frame, beside=True))

    def _sample_beside(
        self, seen: dict[int, list[Place]], times: int, late: bool, held: bool, asked: bool
    ) -> None:
        """Note what the other threads are in, of all that were `seen` now; what is over, is handed over."""
        while self._new:
            new = self._new.pop(0)
            former = self._beside.pop(new._thread, None)
            if former is not None:
                former.drain(self._recorder, 1)
            self._beside[new._thread] = new
        for ident, stacks in [*self._beside.items()]:
            if seen.get(ident):
                stacks._note(seen[ident], times, late, held, asked)
            else:
                self._beside.pop(ident).drain(self._recorder, 1)

    def _note(self, places: list[Place], times: int, late: bool, held: bool, asked: bool) -> None:
        self._asked = self._asked and asked
        stack = self._stack_of(places, in_c=not (late or held)) if asked or not late else ()
        since = self._since(places) if stack and late else 0
        number = self._stacks.setdefault((stack, since, held), len(self._stacks))
        self._numbers += [number] * times
        self._times += [monotonic_ns()] * times

    def _since(self, places: Iterable[Place]) -> int:
        """Return the first of the lines that the program's innermost function may have been in; 0: its own.

        Also where a function that it has called has just begun: what took the time may have been before.
        """
        for code, now, at in places:
            line = earliest_line(code, at)
            if line:
                own = self._known.get(id(code), (None, False))[1]
                return line if own and line != now else 0
        return 0

    def _stack_of(self, places: Iterable[Place], in_c: bool = False) -> _Stack:
        """Return functions and lines, the innermost first: a library's have no lines.

        Of what the program's innermost function has called it has the first alone; where it is `in_c`, which
        has no place, as far as that is known.
        """
        found: list[tuple[int, int]] = []
        within = True  # what the program's innermost function has called
        for code, line, at in places:
            number = id(code)
            known = self._known.get(number)
            if known is None:
                known = self._known[number] = code, _is_own(code)
            if known[1]:
                called = called_in_c(code, at) if in_c and within and not found else None
                if called is not None:
                    self._known.setdefault(id(called), (called, False))
                    found.append((id(called), 0))
                found.append((number, line or 0))
                within = False
            elif not within:
                found.append((number, 0))
            elif not (_OURS in code.co_filename or _is_generated(code)):
                found[:] = [(number, 0)]
            if len(found) >= _MOST_FRAMES:
                break
        return tuple(found)

    def drain(self, recorder: Any, least: int) -> None:
        """Record what was sampled since the last time, if there are so many samples; the writer calls it."""
        for each in [*self._beside.values()]:
            each.drain(recorder, least)
        if len(self._times) < least:
            return
        functions: dict[int, int] = {}
        stacks = [
            [[functions.setdefault(code, len(functions)), line] for code, line in stack]
            for stack in (self._path, *(stack for stack, _, _ in self._stacks))
        ]
        record = {
            "type": "loop_stacks",
            "tid": self._tid,
            "times_ns": self._times,
            "numbers": self._numbers,
            "path": stacks[0],
            "stacks": stacks[1:],
            "since": [line for _, line, _ in self._stacks],
            "held": [held for _, _, held in self._stacks],
            "asked": self._asked,
            "functions": [
                [code.co_filename, getattr(code, "co_qualname", code.co_name), code.co_firstlineno]
                for code in (self._known[number][0] for number in functions)
            ],
        }
        self._forget()
        recorder.records.append(record)


def _is_generated(code: CodeType) -> bool:
    """Whether a library has made a function's code as text, which is in no file: proxies of a manager's.

    What the program gives as text (``python -c``, a notebook) is the code of a main module without a file.
    """
    name = code.co_filename
    return (
        name.startswith("<")
        and not name.startswith("<frozen ")
        and hasattr(sys.modules["__main__"], "__file__")
    )


def _is_own(code: CodeType) -> bool:
    return not any(part in code.co_filename for part in _LIBRARIES) and not _is_generated(code)
