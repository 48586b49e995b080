"""Functions of the program that the loop is in for more or less time than before, by samples."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence

from iotrace.analysis.compare.basis import Code, Rank
from iotrace.analysis.compare.results import OTHER, REST, PartChange
from iotrace.analysis.compare.step_parts import rest_parts
from iotrace.analysis.host.disturbance import grown_beside_others
from iotrace.analysis.results import FEWEST_SAMPLES, MOST_CODE

_FUNCTION = re.compile(r"(?P<name>.+) \(.+\)")  # a line has no name
_NORMAL95 = 1.96
_WORTH = 0.05  # of a step


def code_changes(ranks: tuple[Rank, Rank]) -> list[PartChange]:
    """List the functions whose time changed beyond chance, and by a twentieth of a step, the largest first.

    They are compared by name: their lines move. One that a side does not name takes no more there than those
    that it names, than few samples say, and than all that nothing else of a step has.
    """
    steps_ms = [rank.steps.mean_ms or 0.0 for rank in ranks]
    grown = grown_beside_others([rank.system.host for rank in ranks], "wall")
    found = [
        change
        for change in _changes(ranks)
        if abs(change.by_ms) >= _WORTH * max(steps_ms)
        and max(change.step_ms) > (1 + grown) * min(change.step_ms)
        and change.ci95_ms is not None
        and change.ci95_ms[0] * change.ci95_ms[1] > 0
    ]
    return sorted(found, key=lambda change: -abs(change.by_ms))


def _changes(ranks: tuple[Rank, Rank]) -> Iterator[PartChange]:
    one, other = (
        {_name(code): code for code in reversed(rank.loop_code) if not code.within} for rank in ranks
    )
    for name in {**one, **other}:
        before, after = one.get(name), other.get(name)
        # A line of the loop is another one when the file was edited.
        if before is not None and after is not None and _FUNCTION.fullmatch(before.function):
            error_ms = math.hypot(_error_ms(before), _error_ms(after))
            yield _changed(before.function, [before.ms_per_step, after.ms_per_step], error_ms)
    rest = rest_parts(ranks)
    rest_ms = rest.get(OTHER) or rest.get(REST)
    if rest_ms is None:
        return
    for side, (own, others) in enumerate(((one, other), (other, one))):
        most_ms = min(rest_ms[1 - side], _unnamed_most_ms(ranks[1 - side].loop_code))
        for code in (code for name, code in own.items() if name not in others):
            if code.ms_per_step > most_ms:
                step_ms = [code.ms_per_step, most_ms] if side == 0 else [most_ms, code.ms_per_step]
                yield _changed(code.function, step_ms, _error_ms(code), bounded=True)


def _unnamed_most_ms(named: Sequence[Code]) -> float:
    """What a function takes at most that is not among the named ones: too few samples, or less than these."""
    if not named:
        return math.inf
    last = min(named, key=lambda code: code.ms_per_step)
    return last.ms_per_step if len(named) >= MOST_CODE else FEWEST_SAMPLES * last.ms_per_step / last.samples


def _changed(function: str, step_ms: list[float], error_ms: float, bounded: bool = False) -> PartChange:
    by_ms, error_ms = step_ms[1] - step_ms[0], _NORMAL95 * error_ms
    ci95_ms = [by_ms - error_ms, by_ms + error_ms]
    return PartChange(what=function, step_ms=step_ms, times=None, bounded=bounded, ci95_ms=ci95_ms)


def _name(code: Code) -> str:
    found = _FUNCTION.fullmatch(code.function)
    return found["name"] if found else code.function


def _error_ms(code: Code) -> float:
    """The standard error of its time, as samples come by chance."""
    return code.ms_per_step / math.sqrt(code.samples)
