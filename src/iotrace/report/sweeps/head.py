"""The first lines of a sweep and of a search: what to use, why, what it saves, how far to trust it."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.text import Text

from iotrace.analysis.results import Fix
from iotrace.report.layout import line, two_columns
from iotrace.report.screen import WIDTH, print_trust
from iotrace.sweeps.results import SweepVerdict
from iotrace.units import milliseconds

_BANNERS = {
    "best": ("BEST", "bold green"),
    "at-ceiling": ("AT ITS CEILING", "bold green"),
    "no-advice": ("NO ADVICE", "bold yellow"),
}


def banner_of(found: SweepVerdict) -> tuple[str, str]:
    """Split a verdict into its banner and what follows."""
    label = _BANNERS[found.kind][0]
    return label, found.text.removeprefix(label).lstrip()


def saved(fix: Fix) -> str:
    """Say what a change saves; nothing where it was not measured."""
    return f"saves {milliseconds(fix.gain_ms_per_step)} a step" if fix.gain_ms_per_step else ""


def print_head(found: SweepVerdict, console: Console, more: Sequence[str] = ()) -> None:
    """Print the verdict, its reason, the fixes, `more` lines of them, and trust."""
    label, text = banner_of(found)
    line(console, "", Text.assemble((label, _BANNERS[found.kind][1]), "   ", text), 0)
    if found.why:
        line(console, "Why", found.why, WIDTH)
    for fix in found.fixes:
        two_columns(console, "Fix", fix.text, saved(fix), WIDTH)
    for one in more:
        line(console, "", one, WIDTH)
    print_trust(found.trust, console)
