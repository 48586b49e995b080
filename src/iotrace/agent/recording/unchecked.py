"""The lines in which a thread may have been since it last could give up the interpreter's lock.

CPython looks whether another thread asks for that lock behind calls, at a function's first instruction and
where a loop goes back. What an instruction in between takes, such as a slice of a long list or ``x in all``,
ends with a sample at the next such place, which may be of another line.
"""

from __future__ import annotations

import sys
from types import CodeType
from typing import Any

from iotrace.session.guard import ours

_MOST_PLACES = 4096
_MOST_INSTRUCTIONS = 200
_CHECKS = (
    "CALL",
    "JUMP_BACKWARD",
    "JUMP_ABSOLUTE",
    "POP_JUMP_BACKWARD",
    "RESUME",
    "YIELD",
    "SEND",
    "INSTRUMENTED",
)
# They run what an object does: its arithmetic, its comparison, its iterator, its end.
_WORK = ("BINARY", "COMPARE", "CONTAINS", "INPLACE", "STORE_S", "DELETE", "FOR_ITER", "UNPACK", "FORMAT")
_WORK_ENDS = ("_EXTEND", "_UPDATE", "_MERGE", "_UNPACK", "LIST_TO_TUPLE")

_found: dict[tuple[int, int], tuple[CodeType, int]] = {}  # with the code, which keeps its id so


def earliest_line(code: CodeType, last: int) -> int:
    """Return the first line of what may have run before instruction `last` without such a place.

    0: nothing of this function, which has just begun; or `dis` is not imported: nothing is for this.
    """
    known = _found.get((id(code), last))
    if known is None:
        if len(_found) >= _MOST_PLACES:
            return 0
        try:
            line = _earliest(code, last)
        except ours(Exception):  # a Python whose instructions are others: the sample's own line is told
            line = 0
        known = _found[id(code), last] = code, line
    return known[1]


def _earliest(code: CodeType, last: int) -> int:
    dis: Any = sys.modules.get("dis")
    if not hasattr(dis, "findlabels") or last < 0:
        return 0
    names, held, joined = dis.opname, code.co_code, set(dis.findlabels(code.co_code))
    lines = {at: line for first, end, line in code.co_lines() for at in range(first, end, 2)}
    earliest = lines.get(last) or 0
    if names[held[last]] == "RESUME" or last == 0:
        return 0
    jumped = last in joined  # another way leads here: past what is before
    for at in range(last - 2, max(-2, last - 2 * _MOST_INSTRUCTIONS), -2):
        name = names[held[at]]
        if name.startswith(_CHECKS) and not jumped:
            break
        jumped = at in joined or (jumped and "JUMP" not in name)
        line = lines.get(at)
        if line and (name.startswith(_WORK) or name.endswith(_WORK_ENDS)):
            earliest = min(earliest, line)
        if name == "FOR_ITER":
            break
    return earliest
