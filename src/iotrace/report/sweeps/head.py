"""The first lines of a sweep and of a search: what to use, why, what it saves, how far to trust it."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.text import Text

from iotrace.analysis.results import Fix
from iotrace.report.layout import line, say, say_each, two_columns
from iotrace.report.screen import print_trust
from iotrace.sweeps.results import PointResult, SweepRun, SweepVerdict
from iotrace.units import digits, if_known, milliseconds, percent

_BANNERS = {
    "best": ("BEST", "bold green"),
    "at-ceiling": ("AT ITS CEILING", "bold green"),
    "no-advice": ("NO ADVICE", "bold yellow"),
}


def banner_of(found: SweepVerdict) -> tuple[str, str]:
    """Split a verdict into its banner and what follows."""
    label = f"{'LIKELY ' if found.likely else ''}{_BANNERS[found.kind][0]}"
    return label, found.text.removeprefix(label).lstrip()


def saved(fix: Fix) -> str:
    """Say what a change saves; nothing where it was not measured."""
    return f"saves {milliseconds(fix.gain_ms_per_step)} a step" if fix.gain_ms_per_step else ""


def figures_of(row: PointResult) -> list[str]:
    """Write a point's steps per second, their interval, and the share of a step that waits."""
    return [
        if_known(row.per_second, rate, "-"),
        f"{rate(row.ci95[0])} - {rate(row.ci95[1])}" if row.ci95 else "",
        if_known(row.raw_wait_fraction, percent),
    ]


def rate(per_second: float) -> str:
    """Steps per second, as the tables have it."""
    return f"{per_second:.1f}" if per_second < 1000 else f"{per_second:.0f}"


def print_run(run: SweepRun, console: Console) -> None:
    """Print the steps per second of a run that ended, or why it has none."""
    step_ms = run.compute_ms if run.kind == "ceiling" else run.step_ms  # it waits for copies
    figure = f"{digits(1e3 / step_ms)} steps/s" if run.ok and step_ms else run.status
    why = f": {run.reason}" if run.reason else ""
    console.print(f"  {figure}{why} in {run.seconds:.0f} s")


def print_warnings(warnings: Sequence[str], console: Console) -> None:
    """Print each warning."""
    for warning in warnings:
        line(console, "", Text.assemble(("warning: ", "yellow"), warning), 0)


def print_head(found: SweepVerdict, console: Console, more: Sequence[str] = ()) -> None:
    """Print the verdict, its reason, the fixes, `more` lines of them, and trust."""
    label, text = banner_of(found)
    line(console, "", Text.assemble((label, _BANNERS[found.kind][1]), "   ", text), 0)
    if found.why:
        say(console, "Why", found.why)
    for fix in found.fixes:
        two_columns(console, "Fix", fix.text, saved(fix))
    say_each(console, "", more)
    print_trust(found.trust, console)
