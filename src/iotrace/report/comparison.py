"""Comparisons, a check among them, as blocks: verdict, why, trust, the parts of a step, what differs."""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterable, Sequence

import msgspec

from iotrace.analysis.compare.results import (
    COMMIT,
    DATA,
    Changed,
    Check,
    Comparison,
    Differing,
    PartChange,
    StageChange,
)
from iotrace.analysis.compare.traces import NamedChange, ShapeChange, TraceComparison
from iotrace.analysis.rules.check import figure_text
from iotrace.report.blocks import Document, Field, Grid, Head, Line, Table, dims, kernel_name, lines_of
from iotrace.report.screen import trust_text
from iotrace.units import counted, digits, grown, milliseconds, signed, size

NAMES = ("A", "B")
FROM_TO = ("before", "now")  # of a check
_LEAST_MS = 0.05  # a cause below it is not listed
_MOST_STAGES = 8
_MOST_REASONS = 5
_MOST_ROWS = 10  # of changes
_LEAST_US = 5.0  # of such a row: less is printed as 0.00 ms; CSV and JSON have all
_WORTH_TELLING_PCT = 1.0
_ALIKE = 0.01  # by which bytes differ that are called as many
_TONES = {"slower": "bad", "unknown": "warn"}


def comparison_document(result: Comparison) -> Document:
    """Say how a step changed and why, what else differs, and what to look at next."""
    sides = []
    for name, side in zip(NAMES, result.sessions, strict=True):
        recorded = f", recorded {side.recorded.replace('T', ' ')[:16]} UTC" if side.recorded else ""
        sides.append(Line(name, f"{side.path}{recorded}, {side.steps} steps"))
    around = [f"{item.what}: {' / '.join(item.values)}" for item in result.environment if item.what != COMMIT]
    stages = [stage_grid(result.stages[:_MOST_STAGES], NAMES)] if result.stages else []
    return Document(
        comparison_head(result),
        [
            Grid((f"ms {result.unit}", *NAMES, "change", "95 %"), part_texts(result)),
            *stages,
            [
                *sides,
                *lines_of("Differ", [*around, *speed_of(result)]),
            ],
        ],
        f"iotrace report {shlex.quote(result.sessions[1].path)}",
    )


def comparison_head(result: Comparison) -> Head:
    """Say how a step changed, why, and how far to trust that."""
    lines = lines_of("Work", [f"differs in {difference}" for difference in result.differs])
    commits = [item.values for item in result.environment if item.what == COMMIT]
    lines += [Line("Code", f"commit {before} in A, {after} in B") for before, after in commits]
    if max(result.ranks) > 1:
        why = "the others wait for it" if result.is_late else "it waits longest for its data, in A or in B"
        lines.append(Line("Rank", f"rank {result.rank} of A is compared with rank {result.rank} of B: {why}"))
    if (start := result.startup) is not None:
        parts = ", ".join(f"{part.what} {part.seconds[1] - part.seconds[0]:+.1f} s" for part in start.parts)
        lines.append(Line("Start", f"start-up {start.seconds[0]:.1f} -> {start.seconds[1]:.1f} s: {parts}"))
    # Changes are no reason where the step did not change for certain.
    lines += lines_of("Why" if result.verdict in ("faster", "slower") else "Parts", _reasons(result))
    lines += lines_of("Do", [result.remedy] if result.remedy else [])
    lines += lines_of("Trust", trust_of(result))
    return Head(_TONES.get(result.verdict, "good"), "", result.text, lines)


def _reasons(result: Comparison) -> list[str]:
    """Which settings changed, and what takes more or less since, the largest change first."""
    settings = sorted(result.settings, key=lambda item: item.what != DATA)
    reasons = [_differing(item) for item in settings]  # what the rest is for
    reasons += [_of_epoch(result.epoch.times)] if result.epoch and result.epoch.times else []
    parts = [_of_part(part, result.unit) for part in result.causes[:_MOST_REASONS]]
    if parts and not reasons and (by_ms := result.unexplained_ms) is not None:
        reasons.append(f"what made most of the change ({by_ms:+.1f} ms {result.unit}) is not known")
    changed = {"faster": "got shorter", "slower": "got longer"}.get(result.verdict, "changed")
    reasons += [result.first] if result.first else []
    none = f"no part of the step {changed} beyond its noise"
    if not result.causes_ms and not result.rest_ms:
        none = "the parts of a step are not known"
    return [*reasons, *parts] or [none]


def _of_epoch(times: Sequence[int]) -> str:
    before, after = ("once" if each == 1 else f"{each} times" for each in times)
    return f"an epoch had each sample {before} in A, and has it {after} in B"


def _of_part(part: Changed | PartChange, unit: str) -> str:
    said = f"{part.what}: {part.by_ms:+.1f} ms {unit}"
    interval = f" (95 %: {_bounds(part.ci95_ms)})" if part.ci95_ms else ""
    unsure = "; other programs may have done that" if part.unsure else ""
    if isinstance(part, Changed):
        side = NAMES[0 if part.by_ms < 0 else 1]
        where = "" if part.code is None else f"; most of it in {side}: {part.code}"
        return f"{said}{interval}{where}{unsure}"
    least = "at least " if part.bounded else ""
    often = "" if part.times is None else f" ({_often(part.times)})"
    return f"{part.what}: {least}{part.by_ms:+.1f} ms {unit} in all{often}{interval}{unsure}"


def _often(times: Sequence[int]) -> str:
    """How often on both sides. Of what happened once, or behind the last step, nothing may have been seen."""
    if {*times} == {1}:
        return "once"
    if 0 in times and any(times):
        return " -> ".join(f"{each} times" if each > 1 else "once" if each else "none seen" for each in times)
    return f"{' -> '.join(map(str, dict.fromkeys(times)))} times"


def _differing(item: Differing) -> str:
    before, after = item.values
    if item.what == DATA:
        return f"reads {after} in place of {before}{_read_of(item.read_bytes)}"
    return f"{item.what}: {before} -> {after}"


def _read_of(read_bytes: list[int] | None) -> str:
    if read_bytes is None:
        return ""
    before, after = read_bytes
    if abs(after - before) <= _ALIKE * before:
        return ": as many bytes"
    return f": {size(before)} -> {size(after)} in traced reads"


def speed_of(result: Comparison, where: str = "in B than in A") -> list[str]:
    """Say how fast the CPUs were in the second run, where that differed."""
    slower = result.cpu_slower_pct
    if slower is None or abs(slower) < _WORTH_TELLING_PCT:
        return []
    how = "slower" if slower > 0 else "faster"
    return [f"the CPUs were {abs(slower):.1f} % {how} {where}; changes of CPU times leave that out"]


def trust_of(result: Comparison, names: tuple[str, str] = NAMES) -> list[str]:
    """How far to trust each side."""
    sides = zip(names, result.sessions, strict=True)
    return [
        f"{name} {side.trust.level}: {trust_text(side.trust.level, side.trust.reasons)}"
        for name, side in sides
    ]


def stage_grid(stages: Iterable[StageChange], names: tuple[str, str]) -> Grid:
    """What stages cost a sample, before and after: a row for each, with the change and its interval."""
    rows = [
        (
            f"{change.short} ({'CPU' if change.clock == 'cpu' else 'time'})",
            *(f"{digits(cost)}" for cost in change.cost_ms),
            grown(change.change_pct),
            " to ".join(grown(each, change.change_pct) for each in change.ci95_pct),
        )
        for change in stages
    ]
    return Grid(("ms a sample", *names, "change", "95 %"), rows)


def part_rows(result: Comparison) -> list[tuple[str, float, float, str]]:
    """The step and its parts: name, both values in ms, the change's interval."""
    intervals = {change.cause or change.what: change.ci95_ms for change in result.changed}
    parts = {cause: values for cause, values in result.causes_ms.items() if max(values) >= _LEAST_MS}
    ordered = sorted(parts.items(), key=lambda item: -max(item[1]))
    return [
        (name, before, after, _bounds(intervals.get(name)))
        for name, (before, after) in [("step", result.step_ms), *ordered, *result.rest_ms.items()]
    ]


def part_texts(result: Comparison) -> list[tuple[str, ...]]:
    """The rows of `part_rows` as texts, with the change."""
    return [
        (name, f"{before:.1f}", f"{after:.1f}", signed(after - before), bounds)
        for name, before, after, bounds in part_rows(result)
    ]


def _bounds(interval: list[float] | None) -> str:
    return "" if interval is None else f"{interval[0]:+.1f} to {interval[1]:+.1f}"


def check_document(result: Check, label: str = "") -> Document:
    """Say whether a session passes, what is worse, what the check can see, and how far to trust that.

    `label` names the command where that stands nowhere else.
    """
    held = {item.condition for item in result.conditions if item.holds}
    why = "Why" if all(finding.what in held for finding in result.worse) else "Worse"
    lines = [
        *lines_of(why, [finding.text for finding in result.worse]),
        *lines_of("Maybe", [finding.text for finding in result.untold]),
        *lines_of("Warn", result.warnings),
    ]
    for item in result.conditions:
        if item.holds is False:
            is_known = item.value is not None
            text = f"{figure_text(item)}; fails if {item.condition}" if is_known else item.condition
            lines.append(Line("Passed", text))
    head = Head("bad" if not result.ok else "warn" if result.untold else "good", label, result.text, lines)
    comparison = result.comparison
    if comparison is None:
        return Document(head, [], f"iotrace report {shlex.quote(result.session)}")
    # Of several runs those in the middle stand here: what they say of the step is not all that is known.
    if comparison.verdict != "unknown" and len(result.baselines) + len(result.sessions) == 2:
        lines.append(Line("Step", comparison.text))
    differing = [*comparison.settings, *comparison.environment]
    lines += lines_of("Finds", _found_by(result))
    lines += lines_of("Trust", trust_of(comparison, FROM_TO))
    lines += lines_of("Differ", [f"{item.what}: {' / '.join(item.values)}" for item in differing])
    paths = f"{shlex.quote(result.baseline or '')} {shlex.quote(result.session)}"
    again = f"iotrace compare {paths}{' --anyway' if comparison.differs else ''}"
    stages = [stage_grid(comparison.stages[:_MOST_STAGES], FROM_TO)] if comparison.stages else []
    return Document(head, [*stages, []], again if result.baseline != result.session else "")


def _found_by(result: Check) -> list[str]:
    """Say what growth of the costliest stage is told from noise, and how fast the CPUs were."""
    if result.comparison is None or result.finds_pct is None:
        return []
    runs = f"{counted(len(result.baselines), 'baseline')} and {counted(len(result.sessions), 'session')}"
    stage = result.comparison.stages[0].stage
    by_pct = result.finds_pct
    by = f"{math.ceil(by_pct)} %" if by_pct < 100 else f"{1 + by_pct / 100:.1f}x"
    return [
        f"{stage} if it is at least {by} slower, with {runs}; less is not clear",
        *speed_of(result.comparison, "now than before"),
    ]


class _Change(msgspec.Struct, frozen=True):
    by_ms: str
    ms: str
    calls: str
    change: str
    name: str


class _ShapeChange(_Change, frozen=True):
    shapes: str


_CHANGES = (
    Field("by_ms", "by"),
    Field("ms", "ms"),
    Field("calls", "calls"),
    Field("change", "change", is_text=True),
    Field("name", "name", kernel_name, is_text=True),
)


_NO_SHAPES = "a trace has none: torch.profiler with record_shapes=True"
_SHAPE_CHANGES = (*_CHANGES, Field("shapes", "input shapes", is_text=True))


def trace_document(found: TraceComparison) -> Document:
    """Say how long a step took in each trace, then what kernels and operators changed."""
    return Document(trace_head(found), change_tables(found, _MOST_ROWS))


def trace_head(found: TraceComparison) -> Head:
    """Say how a step changed by which parts, how far to trust that, and what else differs."""
    lines = []
    if found.breakdown_ms is not None:
        changes = sorted(found.breakdown_ms.items(), key=lambda part: -abs(part[1][1] - part[1][0]))
        parts = [
            f"{name.replace('_', ' ')} {after - before:+.1f} ({before:.1f} to {after:.1f})"
            for name, (before, after) in changes
            if abs(after - before) >= _LEAST_MS
        ]
        lines.append(Line("Parts", " · ".join(parts) or "none changed by 0.05 ms"))
    steps = " and ".join(counted(count, "step") for count in found.steps)
    lines.append(Line("Trust", f"caution: {steps}; of one trace each nothing tells what is chance"))
    lines += [Line("", f"differs in {text}") for text in found.differs]
    before, after = found.step_ms
    if before is None or after is None or found.change_pct is None:
        return Head("warn", "UNKNOWN", "a trace holds neither steps nor operators nor device events", lines)
    change = f"{milliseconds(before)}, then {milliseconds(after)} ({found.change_pct:+.0f} %)"
    return Head("warn", "STEP", change, lines)


def change_tables(found: TraceComparison, most: int | None = None) -> list[Table]:
    """Make the tables of kernels and operators that changed, the first `most` of each."""
    no_device, on_device = "a trace shows no device", "ms of a step on the device"
    on_host = "ms of a step on the host, without the operators inside"
    return [
        _changes(f"Kernels: {on_device}", found.kernels, most, no_device),
        _changes(f"Operators by input shapes: {on_device}", found.shapes, most, _NO_SHAPES, _SHAPE_CHANGES),
        _changes(f"Operators: {on_host}", found.operators, most, no_device),
    ]


def changes_of(found: TraceComparison) -> list[Table]:
    """Make the tables with all rows and fields, for CSV."""
    tables = zip(change_tables(found), (found.kernels, found.shapes, found.operators), strict=True)
    return [msgspec.structs.replace(table, rows=rows or []) for table, rows in tables]


def _changes(
    title: str,
    changes: Sequence[NamedChange] | None,
    most: int | None,
    why_none: str,
    fields: Sequence[Field] = _CHANGES,
) -> Table:
    shown = [one for one in changes or () if one.change != "same" and abs(one.by_us) >= _LEAST_US][:most]
    why = why_none if changes is None else "none changed by 0.005 ms or more"
    return Table(title=title, rows=[_row(one) for one in shown], fields=fields, unknown=why)


def _row(one: NamedChange) -> _Change:
    said = {
        "by_ms": f"{one.by_us / 1e3:+.2f}",
        "ms": f"{one.us[0] / 1e3:.2f} > {one.us[1] / 1e3:.2f}",
        "calls": f"{one.calls[0]:.0f} > {one.calls[1]:.0f}",
        "change": one.change,
        "name": one.name,
    }
    return _ShapeChange(**said, shapes=dims(one.shapes)) if isinstance(one, ShapeChange) else _Change(**said)
