"""Functions of the program that the loop is in for more or less time than before, by samples."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator

from iotrace.analysis.compare.basis import Code, Rank
from iotrace.analysis.compare.results import OTHER, REST, PartChange
from iotrace.analysis.compare.step_parts import rest_parts
from iotrace.analysis.compare.whole_run import WORTH
from iotrace.analysis.host.disturbance import grown_beside_others

_FUNCTION = re.compile(r"(?P<name>.+) \(.+\)")  # a line has no name
_NORMAL95 = 1.96


def code_changes(ranks: tuple[Rank, Rank]) -> list[PartChange]:
    """List the functions whose time changed beyond chance, and by a tenth of a step, the largest first.

    They are compared by name: their lines move. Of one that a side does not name it is known there that it
    takes no more than all that nothing else of a step has.
    """
    steps_ms = [rank.steps.mean_ms or 0.0 for rank in ranks]
    grown = grown_beside_others([rank.system.host for rank in ranks], "wall")
    found = [
        change
        for change in _changes(ranks)
        if abs(change.by_ms) >= WORTH * max(steps_ms)
        and max(change.step_ms) > (1 + grown) * min(change.step_ms)
        and change.ci95_ms is not None
        and change.ci95_ms[0] * change.ci95_ms[1] > 0
    ]
    return sorted(found, key=lambda change: -abs(change.by_ms))


def _changes(ranks: tuple[Rank, Rank]) -> Iterator[PartChange]:
    one, other = ({_name(code): code for code in reversed(rank.loop_code)} for rank in ranks)
    for name in {**one, **other}:
        before, after = one.get(name), other.get(name)
        # A line of the loop is another one when the file was edited.
        if before is not None and after is not None and _FUNCTION.fullmatch(before.function):
            yield _change(before, after)
    rest = rest_parts(ranks)
    most_ms = rest.get(OTHER) or rest.get(REST)
    for side, (own, others) in enumerate(((one, other), (other, one))):
        for code in (code for name, code in own.items() if name not in others and most_ms):
            bounds_ms = [most_ms[1 - side]] if most_ms else []
            values = [code.ms_per_step, *bounds_ms] if side == 0 else [*bounds_ms, code.ms_per_step]
            if values[side] > values[1 - side]:
                error = _NORMAL95 * _error_ms(code)
                by_ms = values[1] - values[0]
                yield PartChange(
                    what=code.function,
                    step_ms=values,
                    times=None,
                    bounded=True,
                    ci95_ms=[by_ms - error, by_ms + error],
                )


def _change(before: Code, after: Code) -> PartChange:
    by_ms = after.ms_per_step - before.ms_per_step
    error = _NORMAL95 * math.hypot(_error_ms(before), _error_ms(after))
    return PartChange(
        what=before.function,
        step_ms=[before.ms_per_step, after.ms_per_step],
        times=None,
        ci95_ms=[by_ms - error, by_ms + error],
    )


def _name(code: Code) -> str:
    found = _FUNCTION.fullmatch(code.function)
    return found["name"] if found else code.function


def _error_ms(code: Code) -> float:
    """The standard error of its time, as samples come by chance."""
    return code.ms_per_step / math.sqrt(code.samples)
