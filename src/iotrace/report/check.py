"""A check on the terminal, and as Markdown for a pull request."""

from __future__ import annotations

import shlex

from rich.console import Console
from rich.text import Text

from iotrace.analysis.compare.results import Check, Comparison
from iotrace.report.comparison import print_stages, say, say_each
from iotrace.report.layout import line
from iotrace.report.printing import visible

_MOST_STAGES = 8


def print_check(result: Check, console: Console) -> None:
    """Print `result`: what it says first, then the figures; it reads the same without colour."""
    style = "bold red" if not result.ok else "bold yellow" if result.untold else "bold green"
    line(console, "", Text(result.text, style=style), 0)
    say_each(console, "Worse", [finding.text for finding in result.worse])
    say_each(console, "Untold", [finding.text for finding in result.untold])
    for item in result.conditions:
        if item.holds is False:
            say(console, "Passed", item.condition)
    comparison = result.comparison
    if comparison is not None:
        if comparison.verdict != "unknown":
            say(console, "Step", comparison.text)
        say_each(console, "Trust", _trust(comparison))
        differing = [*comparison.settings, *comparison.environment]
        say_each(console, "Differ", [f"{item.what}: {' / '.join(item.values)}" for item in differing])
        console.print()
        print_stages(comparison.stages[:_MOST_STAGES], console, ("before", "now"))
        console.print()
        paths = f"{shlex.quote(result.baseline or '')} {shlex.quote(result.session)}"
        say(console, "Next", f"iotrace compare {paths}")
    else:
        say(console, "Next", f"iotrace report {shlex.quote(result.session)}")


def markdown(result: Check) -> str:
    """Write `result` as Markdown that GitHub and GitLab show alike."""
    sign = "❌" if not result.ok else "⚠️" if result.untold else "✅"
    lines = [f"### {sign} iotrace check: {_escape(result.text)}", ""]
    lines += [f"- **worse**: {_escape(finding.text)}" for finding in result.worse]
    lines += [f"- **cannot be told**: {_escape(finding.text)}" for finding in result.untold]
    lines += [f"- passed: `{item.condition}`" for item in result.conditions if item.holds is False]
    comparison = result.comparison
    if comparison is not None:
        lines += [f"- {_escape(comparison.text)}"] if comparison.verdict != "unknown" else []
        lines += [
            f"- {_escape(item.what)}: {_escape(' → '.join(item.values))}"
            for item in [*comparison.settings, *comparison.environment]
        ]
        lines += ["", "| ms a sample | before | now | change | 95 % |", "|---|---:|---:|---:|---:|"]
        lines += [
            f"| {_escape(change.what)} ({'CPU' if change.clock == 'cpu' else 'time'}) "
            f"| {change.cost_ms[0]:.3g} | {change.cost_ms[1]:.3g} | {change.change_pct:+.1f} % "
            f"| {change.ci95_pct[0]:+.1f} to {change.ci95_pct[1]:+.1f} |"
            for change in comparison.stages[:_MOST_STAGES]
        ]
        sides = zip(("before", "now"), comparison.sessions, strict=True)
        trust = "; ".join(
            f"{name} {side.trust.level}: {', '.join(side.trust.reasons)}" for name, side in sides
        )
        lines += ["", f"<sub>Trust {_escape(trust)}</sub>"]
    return "\n".join(lines)


def _trust(comparison: Comparison) -> list[str]:
    sides = zip(("before", "now"), comparison.sessions, strict=True)
    return [f"{name} {side.trust.level}: {', '.join(side.trust.reasons)}" for name, side in sides]


def _escape(text: str) -> str:
    """Keep what Markdown would take for markup: names of files hold underscores."""
    text = visible(text)
    for sign in "\\`*_{}[]<>|#":
        text = text.replace(sign, f"\\{sign}")
    return text
