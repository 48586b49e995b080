"""Functions of the program that the loop is in for more or less time than before, by samples."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence

from msgspec.structs import replace

from iotrace.analysis.compare.basis import Code, Rank
from iotrace.analysis.compare.results import OF_TRAINING, OTHER, REST, PartChange
from iotrace.analysis.compare.step_parts import rest_parts
from iotrace.analysis.host.disturbance import grown_beside_others
from iotrace.analysis.results import FEWEST_SAMPLES, MOST_CODE

_FUNCTION = re.compile(r"(?P<name>.+) \((?P<place>.+)\)")  # a line has no name
_MORE = " and other lines"
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
        for change, error in _changes(ranks)
        if abs(change.by_ms) >= _WORTH * max(steps_ms)
        and _ratio(change.step_ms) > (1 + grown) * math.exp(_NORMAL95 * error)
        and change.ci95_ms is not None
        and change.ci95_ms[0] * change.ci95_ms[1] > 0
    ]
    return sorted(found, key=lambda change: -abs(change.by_ms))


def _ratio(step_ms: Sequence[float]) -> float:
    return max(step_ms) / min(step_ms) if min(step_ms) > 0 else math.inf


def _changes(ranks: tuple[Rank, Rank]) -> Iterator[tuple[PartChange, float]]:
    """Yield the changes, each with the standard error of its logarithm: samples come by chance."""
    one, other = (_by_name(rank.loop_code) for rank in ranks)
    for key in {**one, **other}:
        before, after = one.get(key), other.get(key)
        # A line of the loop is another one when the file was edited.
        if before is not None and after is not None and _FUNCTION.fullmatch(before.function):
            error_ms = math.hypot(_error_ms(before), _error_ms(after))
            code = before if before.ms_per_step >= after.ms_per_step else after
            change = _changed(code, [before.ms_per_step, after.ms_per_step], error_ms)
            yield change, math.hypot(_error(before), _error(after))
    rest = rest_parts(ranks)
    for side, (own, others) in enumerate(((one, other), (other, one))):
        for code in (code for key, code in own.items() if key not in others):
            most_ms = _most_ms(ranks[1 - side], rest, 1 - side, code.within)
            if most_ms is not None and code.ms_per_step > most_ms:
                step_ms = [code.ms_per_step, most_ms] if side == 0 else [most_ms, code.ms_per_step]
                yield _changed(code, step_ms, _error_ms(code), bounded=True), _error(code)


def _by_name(found: Sequence[Code]) -> dict[tuple[str, bool], Code]:
    """Sum up lines that one function of a file is in, the longest first: which line has a time may change."""
    summed: dict[tuple[str, bool], Code] = {}
    for code in sorted(found, key=lambda each: -each.ms_per_step):
        key = _name(code), code.within
        known = summed.setdefault(key, code)
        if known is not code and _file(known) == _file(code):
            ms_per_step, samples = known.ms_per_step + code.ms_per_step, known.samples + code.samples
            function = f"{key[0]} ({_place(known)}{_MORE})"
            summed[key] = replace(known, function=function, ms_per_step=ms_per_step, samples=samples)
    return summed


def _most_ms(rank: Rank, rest: dict[str, list[float]], side: int, within: bool) -> float | None:
    """What a function takes at most on a side that does not name it: with all else where it would be."""
    if within:
        phases = [values[side] for name, values in rest.items() if name in OF_TRAINING]
        return min(sum(phases), _unnamed_most_ms(rank.loop_code)) if phases else None
    rest_ms = rest.get(OTHER) or rest.get(REST)
    return None if rest_ms is None else min(rest_ms[side], _unnamed_most_ms(rank.loop_code))


def _unnamed_most_ms(named: Sequence[Code]) -> float:
    """What a function takes at most that is not among the named ones: too few samples, or less than these."""
    if not named:
        return math.inf
    last = min(named, key=lambda code: code.ms_per_step)
    return last.ms_per_step if len(named) >= MOST_CODE else FEWEST_SAMPLES * last.ms_per_step / last.samples


def _changed(code: Code, step_ms: list[float], error_ms: float, bounded: bool = False) -> PartChange:
    by_ms, error_ms = step_ms[1] - step_ms[0], _NORMAL95 * error_ms
    return PartChange(
        what=code.function,
        step_ms=step_ms,
        times=None,
        bounded=bounded,
        ci95_ms=[by_ms - error_ms, by_ms + error_ms],
        within=code.within,
    )


def _name(code: Code) -> str:
    found = _FUNCTION.fullmatch(code.function)
    return found["name"] if found else code.function


def _file(code: Code) -> str:
    return _place(code).rpartition(":")[0] or code.function


def _place(code: Code) -> str:
    found = _FUNCTION.fullmatch(code.function)
    return found["place"].removesuffix(_MORE) if found else ""


def _error(code: Code) -> float:
    """The standard error of the logarithm of its time."""
    return 1 / math.sqrt(code.samples)


def _error_ms(code: Code) -> float:
    """The standard error of its time."""
    return code.ms_per_step * _error(code)
