"""How long a step took, from outside: the workloads print a line every tenth step."""

from __future__ import annotations

import re
from itertools import pairwise

Printed = tuple[int, str]

# The loader's start and the window of torch.profiler (steps 5 to 11) lie before; these are in the whole time.
LEFT_OUT = 20
_STEP = re.compile(r"step (\d+)\b")


def step_seconds(printed: list[Printed]) -> tuple[float | None, float | None]:
    """Seconds a step took on the mean, and all of these steps together, by the times (ns) of their lines.

    None, None where fewer than two lines tell of a step past the first `LEFT_OUT`.
    """
    marks = [(int(found[1]), at_ns) for at_ns, text in printed if (found := _STEP.match(text))]
    marks = [mark for mark in marks if mark[0] >= LEFT_OUT]
    if len(marks) < 2:
        return None, None
    if any(later[0] <= earlier[0] for earlier, later in pairwise(marks)):
        raise ValueError("the steps were not printed in order")
    (first, first_ns), (last, last_ns) = marks[0], marks[-1]
    whole_s = (last_ns - first_ns) / 1e9
    return whole_s / (last - first), whole_s


def steps_for(step_s: float, seconds: float) -> int:
    """How many steps a run needs for `seconds` of them, in tens."""
    return LEFT_OUT + max(10, 10 * round(seconds / step_s / 10))
