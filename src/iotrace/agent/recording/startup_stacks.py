"""Sample what the main thread computes until the first step: what has no other name is named by it.

The recorder's writer takes a sample now and then: it reads where the thread is that imported torch. It
changes nothing there, and runs no line of the program.
"""

from __future__ import annotations

from time import monotonic_ns
from types import CodeType
from typing import Any

from iotrace.agent.recording.frames import places_of
from iotrace.agent.recording.sampling import Sampler
from iotrace.agent.unpatched import get_ident, get_native_id

_SHORTEST_S = 0.05
_RESOLUTION = 600  # samples at most until a time has doubled
_LONGEST_NS = 3_600_000_000_000
_MOST_FRAMES = 64  # the innermost
_MOST_STACKS = 2000
_IMPORTING = "<frozen importlib"
_NONE = -1  # in an import, which is recorded by itself, or one stack too many


class StartupStacks:
    """The samples of one thread: `sample` takes one, `record` hands them over."""

    sampler = Sampler()

    def __init__(self) -> None:
        self._thread, self._tid = get_ident(), get_native_id()
        self._began_ns = monotonic_ns()
        self._stacks: dict[tuple[CodeType, ...], int] = {}
        self._ends: list[int] = []  # of runs of samples alike, ns of CLOCK_MONOTONIC
        self._numbers: list[int] = []

    @property
    def interval_s(self) -> float:
        """How long to wait for the next sample: a share of the time so far."""
        return max(_SHORTEST_S, (monotonic_ns() - self._began_ns) / 1e9 / _RESOLUTION)

    @property
    def over(self) -> bool:
        """Whether it has taken too long for a start."""
        return monotonic_ns() - self._began_ns > _LONGEST_NS

    def sample(self, *_: int, **__: bool) -> None:
        """Note what the thread is in: a stack stands for the time since the sample before."""
        codes: list[CodeType] = []
        importing = False
        for place in places_of(self._thread)[:_MOST_FRAMES]:
            code = place[0]
            importing = code.co_filename.startswith(_IMPORTING)
            codes.append(code)
            if importing:
                break
        number = _NONE
        if not importing and codes:
            stack = tuple(codes)
            if stack in self._stacks or len(self._stacks) < _MOST_STACKS:
                number = self._stacks.setdefault(stack, len(self._stacks))
        now_ns = monotonic_ns()
        if self._numbers and self._numbers[-1] == number:
            self._ends[-1] = now_ns
        else:
            self._ends.append(now_ns)
            self._numbers.append(number)

    def record(self) -> dict[str, Any]:
        """Return all samples as a record; a stack is the numbers of its functions, the innermost first.

        The writer may be in the middle of a sample: its number is the last thing that it adds.
        """
        functions: dict[CodeType, int] = {}
        numbers, known = list(self._numbers), list(self._stacks)
        stacks = [[functions.setdefault(code, len(functions)) for code in stack] for stack in known]
        return {
            "type": "startup_stacks",
            "tid": self._tid,
            "began_ns": self._began_ns,
            "ends_ns": self._ends[: len(numbers)],
            "numbers": numbers,
            "stacks": stacks,
            "functions": [
                [code.co_filename, getattr(code, "co_qualname", code.co_name)] for code in functions
            ],
        }
