"""A check on the terminal."""

from __future__ import annotations

import shlex

from rich.console import Console
from rich.text import Text

from iotrace.analysis.compare.check_words import figure_text
from iotrace.analysis.compare.results import Check
from iotrace.report.comparison import print_stages, speed_of, trust_of
from iotrace.report.layout import line, say, say_each

_MOST_STAGES = 8
_NAMES = ("before", "now")


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
        # Of several runs those in the middle stand here: what they say of the step is not all that is known.
        if comparison.verdict != "unknown" and len(result.baselines) + len(result.sessions) == 2:
            say(console, "Step", comparison.text)
        say_each(console, "Sees", seen_by(result))
        say_each(console, "Trust", trust_of(comparison, _NAMES))
        differing = [*comparison.settings, *comparison.environment]
        say_each(console, "Differ", [f"{item.what}: {' / '.join(item.values)}" for item in differing])
        console.print()
        print_stages(comparison.stages[:_MOST_STAGES], console, _NAMES)
        console.print()
        if result.baseline != result.session:
            paths = f"{shlex.quote(result.baseline or '')} {shlex.quote(result.session)}"
            say(console, "Next", f"iotrace compare {paths}{' --anyway' if comparison.differs else ''}")
    else:
        say(console, "Next", f"iotrace report {shlex.quote(result.session)}")
