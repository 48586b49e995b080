"""The lines that a late sample may be of: what runs before the interpreter's lock can be given up."""

from __future__ import annotations

import dis
from collections.abc import Callable
from types import CodeType
from typing import Any

from iotrace.agent.recording.unchecked import earliest_line


def slices(items: list[int]) -> Any:
    first = items[:]
    return sorted(first)


def calls(items: list[int]) -> Any:
    first = list(items)
    return sorted(first)


def looks(items: list[int], seen: list[int]) -> None:
    total = len(items)
    while total not in seen:
        if total in items:
            seen.append(total)
        total = total + 1


def constants(items: list[int]) -> Any:
    limit = 3
    return sorted(items) if limit else None


def line_of(function: Callable[..., Any], name: str, last: bool = True) -> int:
    """The earliest line, counted from the function's first, of its last instruction whose name begins so."""
    code: CodeType = function.__code__
    found = [each.offset for each in dis.get_instructions(code) if each.opname.startswith(name)]
    line = earliest_line(code, found[-1 if last else 0])
    return line and line - code.co_firstlineno


def test_what_gives_up_no_lock_may_have_taken_the_time() -> None:
    assert line_of(slices, "CALL") == 1
    assert line_of(calls, "CALL") == 2
    assert line_of(constants, "CALL") == 2


def test_where_ways_join_both_count() -> None:
    assert line_of(looks, "CALL", last=False) == 1
    assert line_of(looks, "CALL") in (2, 3)  # `append`, behind `in items`


def test_a_function_that_has_just_begun_took_nothing() -> None:
    assert earliest_line(slices.__code__, 0) == 0
