"""A check on the terminal."""

from __future__ import annotations

import shlex

from rich.console import Console
from rich.text import Text

from iotrace.analysis.compare.check import figure_text
from iotrace.analysis.compare.results import Check
from iotrace.report.comparison import print_stages, say, say_each, trust_of
from iotrace.report.layout import line

_MOST_STAGES = 8
_NAMES = ("before", "now")


def print_check(result: Check, console: Console) -> None:
    """Print `result`: what it says first, then the figures; it reads the same without colour."""
    style = "bold red" if not result.ok else "bold yellow" if result.untold else "bold green"
    line(console, "", Text(result.text, style=style), 0)
    label = "Why" if result.text.startswith("FAILED") else "Worse"
    say_each(console, label, [finding.text for finding in result.worse])
    say_each(console, "Untold", [finding.text for finding in result.untold])
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
        if comparison.verdict != "unknown":
            say(console, "Step", comparison.text)
        say_each(console, "Trust", trust_of(comparison, _NAMES))
        differing = [*comparison.settings, *comparison.environment]
        say_each(console, "Differ", [f"{item.what}: {' / '.join(item.values)}" for item in differing])
        console.print()
        print_stages(comparison.stages[:_MOST_STAGES], console, _NAMES)
        console.print()
        if result.baseline != result.session:
            paths = f"{shlex.quote(result.baseline or '')} {shlex.quote(result.session)}"
            say(console, "Next", f"iotrace compare {paths}")
    else:
        say(console, "Next", f"iotrace report {shlex.quote(result.session)}")
