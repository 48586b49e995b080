"""Sessions, rules and other tools' figures as text; to import rich would take longer than the list."""

from __future__ import annotations

import shlex
import shutil
import textwrap
from collections.abc import Mapping
from datetime import datetime
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

from iotrace.report.blocks import Grid
from iotrace.report.printing import aligned, echo, echo_beside, visible
from iotrace.session.listing import ListedSession, Listing
from iotrace.units import size, time_span

if TYPE_CHECKING:  # the list of sessions needs no rules
    from iotrace.analysis.rules.catalogue import Explained, RuleList

_HEADINGS = ("session", "started", "took", "exit", "size")
_WIDEST, _LABEL = 100, 9  # columns of a rule's text, and of the words before it
_ENDS = {"running": "running", "killed": "killed", "unknown": "?"}


def print_sessions(listing: Listing) -> None:
    """Print two lines for each session: when it began, how it went and its size; its verdict and command."""
    width = shutil.get_terminal_size().columns
    grid = Grid(_HEADINGS, [_row(each) for each in listing.sessions])
    heading, *lines = aligned([grid.headings, *grid.rows], grid.texts, width, _cut)
    echo(heading)
    for each, line in zip(listing.sessions, lines, strict=True):
        echo(line)
        # Where the interpreter lies says little of a run.
        argv = [PurePath(word).name if place == 0 else word for place, word in enumerate(each.argv)]
        verdict = each.verdict or ("" if each.state == "running" else "no verdict")
        about = each.problem or " · ".join(filter(None, [verdict, shlex.join(argv)]))
        echo("  " + _cut(visible(" ".join(about.split())), width - 2))
    if any(not (each.verdict or each.problem or each.state == "running") for each in listing.sessions):
        echo("no verdict: none was kept for what is recorded; iotrace report SESSION shows it")
    if any(each.state == "unknown" for each in listing.sessions):
        echo("? : it ran on another host, which alone sees whether it still does")


def print_rules(found: RuleList) -> None:
    """Print a line for each rule, and below it what it means."""
    width = shutil.get_terminal_size().columns
    for each in found.rules:
        echo(f"{each.code} {each.name} ({each.scope})")
        echo(*textwrap.wrap(each.summary, width, initial_indent="  ", subsequent_indent="  "))
    echo("iotrace explain CODE says more of one; iotrace rules WORD finds some")


def print_rule(rule: Explained) -> None:
    """Print a rule: what it means, its bounds, what to do, an example."""
    width = min(_WIDEST, shutil.get_terminal_size().columns)
    echo(f"{rule.code} {rule.name}", f"  about {rule.about}")
    for paragraph in rule.meaning:
        echo("", *textwrap.wrap(paragraph, width))
    parts = [
        ("Bounds", rule.bounds),
        ("Remedy", [rule.remedy]),
        ("Example", [rule.example, rule.change and f"→ {rule.change}"]),
    ]
    for label, texts in parts:
        for place, text in enumerate(text for text in texts if text):
            if not place:
                echo("")
            echo_beside("" if place else label, text, _LABEL, width)


def _row(session: ListedSession) -> tuple[str, ...]:
    started = "" if session.started_ns is None else _date(session.started_ns)
    took = "" if session.seconds is None else time_span(session.seconds)
    end = _ENDS.get(session.state or "", "-" if session.exit_code is None else str(session.exit_code))
    return visible(session.name), started, took, end, "" if session.bytes is None else size(session.bytes)


def _date(time_ns: int) -> str:
    then = datetime.fromtimestamp(time_ns / 1e9)
    return f"{then:%d %b %H:%M}" if then.year == datetime.now().year else f"{then:%d %b %Y}"


def _cut(text: str, width: int) -> str:
    """Cut the end of a text that is too long, and show that it is."""
    return text if len(text) <= width else text[: max(0, width - 1)] + "…"


def print_compat(found: Mapping[str, Mapping[str, Any] | None]) -> None:
    """Print the figures of each trace, by its path; None where the tool finds nothing that it counts."""
    for path, figures in found.items():
        echo(path)
        for name, figure in (figures or {"figures": "none: the trace holds nothing that it counts"}).items():
            echo(f"  {name:24} {_text(figure)}")


def _text(figure: Any) -> str:
    if isinstance(figure, Mapping):
        return "  ".join(f"{key} {_text(value)}" for key, value in figure.items())
    if isinstance(figure, list):
        return " ".join(map(str, figure))
    if isinstance(figure, float):
        return f"{figure:.1f}" if figure >= 1 or not figure else f"{figure:.5f}"
    return str(figure)
