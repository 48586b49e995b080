"""Comparisons on the terminal, a check among them: verdict, why, trust, the parts of a step, what differs."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence

from rich.console import Console
from rich.text import Text

from iotrace.analysis.compare.check_words import figure_text
from iotrace.analysis.compare.results import Check, Comparison, StageChange
from iotrace.report.layout import line, middle_cut, say, say_each
from iotrace.report.printing import aligned_within, visible
from iotrace.units import digits, signed

NAMES = ("A", "B")
FROM_TO = ("before", "now")  # of a check
_LEAST_MS = 0.05  # a cause below it is not listed
_MOST_STAGES = 8
_MOST_REASONS = 5
_WORTH_TELLING_PCT = 1.0
_NARROWEST = 10  # columns of a name
_COLORS = {"slower": "bold red", "faster": "bold green"}


def print_comparison(result: Comparison, console: Console) -> None:
    """Print `result`; it reads the same without colour."""
    line(console, "", Text(result.text, style=_COLORS.get(result.verdict, "bold")), 0)
    say_each(console, "Work", [f"differs in {difference}" for difference in result.differs])
    if max(result.ranks) > 1:
        say(console, "Rank", f"{result.rank} stands for the job: it waits longest for its data")
    say_each(console, reasons_label(result), reasons_of(result))
    say_each(console, "Do", [result.remedy] if result.remedy else [])
    say_each(console, "Trust", trust_of(result))
    console.print()
    print_rows(console, ("ms a step", *NAMES, "change", "95 %"), part_texts(result))
    if result.stages:
        console.print()
        print_stages(result.stages[:_MOST_STAGES], console, ("A", "B"))
    console.print()
    for name, side in zip(NAMES, result.sessions, strict=True):
        recorded = f", recorded {side.recorded.replace('T', ' ')[:16]} UTC" if side.recorded else ""
        say(console, name, f"{side.path}{recorded}, {side.steps} steps")
    around = [f"{item.what}: {' / '.join(item.values)}" for item in result.environment]
    say_each(console, "Around", [*around, *speed_of(result)])
    say(console, "Next", f"iotrace report {shlex.quote(result.sessions[1].path)}")


def reasons_label(result: Comparison) -> str:
    """What names the list of changes: they are no reason where the step did not change for certain."""
    return "Why" if result.verdict in ("faster", "slower") else "Parts"


def reasons_of(result: Comparison) -> list[str]:
    """What changed, the largest first, and which settings did."""
    reasons = [
        f"{change.what}: {change.by_ms:+.1f} ms a step{_interval(change.ci95_ms)}"
        for change in result.changed[:_MOST_REASONS]
    ]
    reasons += [f"{item.what}: {item.values[0]} -> {item.values[1]}" for item in result.settings]
    return reasons or ["no part of the step changed beyond its noise"]


def speed_of(result: Comparison) -> list[str]:
    """Say how fast the CPUs were in the second run, where that differed."""
    slower = result.cpu_slower_pct
    if slower is None or abs(slower) < _WORTH_TELLING_PCT:
        return []
    how = "slower" if slower > 0 else "faster"
    return [f"CPUs {abs(slower):.1f} % {how} than before; taken out of CPU times"]


def trust_of(result: Comparison, names: tuple[str, str] = NAMES) -> list[str]:
    """How far to trust each side."""
    sides = zip(names, result.sessions, strict=True)
    return [f"{name} {side.trust.level}: {', '.join(side.trust.reasons)}" for name, side in sides]


def print_stages(stages: Iterable[StageChange], console: Console, names: tuple[str, str]) -> None:
    """Print what stages cost a sample, before and after."""
    print_rows(console, ("ms a sample", *names, "change", "95 %"), stage_rows(stages))


def stage_rows(stages: Iterable[StageChange]) -> list[tuple[str, ...]]:
    """A row for each stage: its name, both costs, the change and its interval."""
    return [
        (
            f"{change.what} ({'CPU' if change.clock == 'cpu' else 'time'})",
            *(f"{digits(cost)}" for cost in change.cost_ms),
            f"{change.change_pct:+.1f} %",
            f"{change.ci95_pct[0]:+.1f} to {change.ci95_pct[1]:+.1f}",
        )
        for change in stages
    ]


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


def _interval(interval: list[float] | None) -> str:
    return "" if interval is None else f" (95 %: {_bounds(interval)})"


def print_rows(console: Console, heading: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> None:
    """Print a table: names to the left, figures to the right, nothing behind the last column."""
    table = [heading, *(tuple(map(visible, row)) for row in rows)]
    for number, row in enumerate(aligned_within(console.width, _NARROWEST, _cut, table)):
        console.print(Text(row, style="" if number else "bold"), soft_wrap=True)


def _cut(name: str, width: int) -> str:
    return middle_cut(name, width, parts=3)  # a stage and its file's name tell it


def seen_by(result: Check) -> list[str]:
    """Say what growth of the costliest stage is told from noise, and how fast the CPUs were."""
    if result.comparison is None or not result.comparison.stages:
        return []
    runs = [len(result.baselines), len(result.sessions)]
    of = " and ".join(
        f"{count} {name}{'s' if count > 1 else ''}"
        for count, name in zip(runs, ("baseline", "session"), strict=True)
    )
    stage = result.comparison.stages[0]
    return [
        f"{stage.stage} from {stage.noise_pct:+.0f} % on, by {of}",
        *speed_of(result.comparison),
    ]


def print_check(result: Check, console: Console) -> None:
    """Print `result`: what it says first, then the figures; it reads the same without colour."""
    style = "bold red" if not result.ok else "bold yellow" if result.untold else "bold green"
    line(console, "", Text(result.text, style=style), 0)
    held = {item.condition for item in result.conditions if item.holds}
    label = "Why" if all(finding.what in held for finding in result.worse) else "Worse"
    say_each(console, label, [finding.text for finding in result.worse])
    say_each(console, "Maybe", [finding.text for finding in result.untold])
    say_each(console, "Warn", result.warnings)
    for item in result.conditions:
        if item.holds is False:
            is_known = item.value is not None
            say(
                console,
                "Passed",
                f"{figure_text(item)}; fails if {item.condition}" if is_known else item.condition,
            )
    comparison = result.comparison
    if comparison is not None:
        # Of several runs those in the middle stand here: what they say of the step is not all that is known.
        if comparison.verdict != "unknown" and len(result.baselines) + len(result.sessions) == 2:
            say(console, "Step", comparison.text)
        say_each(console, "Sees", seen_by(result))
        say_each(console, "Trust", trust_of(comparison, FROM_TO))
        differing = [*comparison.settings, *comparison.environment]
        say_each(console, "Differ", [f"{item.what}: {' / '.join(item.values)}" for item in differing])
        console.print()
        print_stages(comparison.stages[:_MOST_STAGES], console, FROM_TO)
        console.print()
        if result.baseline != result.session:
            paths = f"{shlex.quote(result.baseline or '')} {shlex.quote(result.session)}"
            say(console, "Next", f"iotrace compare {paths}{' --anyway' if comparison.differs else ''}")
    else:
        say(console, "Next", f"iotrace report {shlex.quote(result.session)}")
