"""Two traces of torch.profiler beside each other: kernels and operators that came, went, took more."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from iotrace.analysis.results import SCHEMA_VERSION, Accelerator, OperatorShapes, RankReport, Report

_ALL_SHAPES = 100  # a report of fewer rows has all of them: one that it lacks did not run


class NamedChange(msgspec.Struct, frozen=True, kw_only=True):
    """A kernel's time on the device, or an operator's own on the host, a step; sorted by what it changed.

    `change`: ``appeared``, ``vanished``, ``more``, ``less``, ``same``.
    """

    name: str
    change: str
    by_us: float
    us: list[float]
    calls: list[float]


class ShapeChange(NamedChange, frozen=True, kw_only=True):
    """An operator's own time on the device, a step, by the shapes and types of its inputs.

    It is the same work on devices of several makers, whose kernels have other names.
    """

    shapes: list[list[int]]
    types: list[str]


class TraceComparison(msgspec.Struct, frozen=True, kw_only=True):
    """Pairs are [before, after], a step; of a trace without steps, all of it. Unknown is None.

    Of one trace each nothing tells how much of a change is chance. What was launched outside of the steps
    is left out. `shapes` is None where a trace has none.
    """

    schema_version: int
    traces: list[str]
    steps: list[int]
    step_ms: list[float | None]
    change_pct: float | None
    devices: list[str | None]
    breakdown_ms: dict[str, list[float]] | None
    kernels: list[NamedChange] | None
    operators: list[NamedChange] | None
    shapes: list[ShapeChange] | None
    differs: list[str]


def compare_traces(before: Report, after: Report) -> TraceComparison:
    """Compare two reports of one trace each."""
    first, second = before.ranks[0], after.ranks[0]
    steps = first.steps.mean_ms, second.steps.mean_ms
    devices = [_device(each) for each in (first, second)]
    parts = first.breakdown_ms, second.breakdown_ms
    known = first.accelerator, second.accelerator
    counts = [max(1, each.steps.count) for each in (first, second)]
    return TraceComparison(
        schema_version=SCHEMA_VERSION,
        traces=[before.session.path, after.session.path],
        steps=[first.steps.count, second.steps.count],
        step_ms=list(steps),
        change_pct=100 * (steps[1] / steps[0] - 1) if steps[0] and steps[1] is not None else None,
        devices=devices,
        breakdown_ms=(
            {name: [parts[0][name], parts[1][name]] for name in parts[0]}
            if parts[0] is not None and parts[1] is not None
            else None
        ),
        kernels=_changes(known, counts, "kernels", "total_us"),
        operators=_changes(known, counts, "operators", "host_self_us"),
        shapes=_changed_shapes(known, counts),
        differs=_differs(first, second, devices),
    )


def _device(rank: RankReport) -> str | None:
    names = {gpu.name for gpu in rank.system.gpus}
    return names.pop() if len(names) == 1 else None


def _differs(first: RankReport, second: RankReport, devices: Sequence[str | None]) -> list[str]:
    """Say what else than the program may have made the difference."""
    found = []
    if devices[0] != devices[1]:
        found.append(f"the device: {devices[0] or 'unknown'} and {devices[1] or 'unknown'}")
    if first.world_size != second.world_size:
        sizes = first.world_size or "unknown", second.world_size or "unknown"
        found.append(f"the number of ranks: {sizes[0]} and {sizes[1]}")
    if (first.steps.unknown_why is None) != (second.steps.unknown_why is None):
        found.append("steps: one of the two has none, and is taken for one")
    return found


def _changed_shapes(known: Sequence[Accelerator | None], steps: Sequence[int]) -> list[ShapeChange] | None:
    """List what operators cost the device by their inputs, the largest change first; None without shapes.

    A trace of many kinds of inputs has the costliest alone: what it lacks may have run, and is left out.
    """
    traces = [one for one in known if one is not None]
    if len(traces) < len(known) or not all(one.shapes for one in traces):
        return None
    before, after = (_by_inputs(one.shapes) for one in traces)
    is_whole = [len(one.shapes) < _ALL_SHAPES for one in traces]
    found = []
    for key in dict.fromkeys((*before, *after)):
        if (key in before or is_whole[0]) and (key in after or is_whole[1]):
            name, shapes, types = key
            own = _change(name, before.get(key), after.get(key), steps)
            found.append(
                ShapeChange(
                    name=name,
                    change=own.change,
                    by_us=own.by_us,
                    us=own.us,
                    calls=own.calls,
                    shapes=[list(shape) for shape in shapes],
                    types=list(types),
                )
            )
    return sorted(found, key=lambda one: -abs(one.by_us))


_Inputs = tuple[str, tuple[tuple[int, ...], ...], tuple[str, ...]]
_Sum = tuple[int, float]  # calls, and their time in us


def _by_inputs(rows: Sequence[OperatorShapes]) -> dict[_Inputs, _Sum]:
    """Sum up what operators themselves launched; inputs that are no tensors make no row of their own."""
    found: dict[_Inputs, _Sum] = {}
    for one in rows:
        if one.device_self_us:
            key = one.name, tuple(map(tuple, one.shapes)), tuple(one.types)
            calls, us = found.get(key, (0, 0.0))
            found[key] = calls + one.calls, us + one.device_self_us
    return found


def _change(name: str, before: _Sum | None, after: _Sum | None, steps: Sequence[int]) -> NamedChange:
    """Tell what one costs a step in each trace; None where it did not run."""
    sums = before or (0, 0.0), after or (0, 0.0)
    calls = [own / count for (own, _), count in zip(sums, steps, strict=True)]
    us = [total / count for (_, total), count in zip(sums, steps, strict=True)]
    by_us = us[1] - us[0]
    change = "more" if by_us > 0 else "less" if by_us < 0 else "same"
    if before is None or after is None:
        change = "vanished" if after is None else "appeared"
    return NamedChange(name=name, change=change, by_us=by_us, us=us, calls=calls)


def _changes(
    known: Sequence[Accelerator | None], steps: Sequence[int], what: str, us_of: str
) -> list[NamedChange] | None:
    """List what changed by name, the largest change first; None where a trace shows no device."""
    if None in known:
        return None
    before, after = (
        {one.name: (one.calls, getattr(one, us_of)) for one in getattr(each, what)} for each in known
    )
    names = dict.fromkeys((*before, *after))
    found = [_change(name, before.get(name), after.get(name), steps) for name in names]
    return sorted(found, key=lambda one: -abs(one.by_us))
