"""The first screen as HTML, for a notebook: verdict, why, fixes, trust, a row for each rank."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from iotrace.analysis.results import RankReport, Report
from iotrace.report.screen import ending
from iotrace.report.words import gain_words
from iotrace.units import if_known, milliseconds, percent

_MOST_FIXES = 3
_MOST_RANKS = 16
# Readable on white and on black.
_RED, _YELLOW, _GREEN = "#d33", "#b80", "#2a2"
_WARNED = ("moderately-input-bound", "wait-unknown", "running")
_COLOURS = {"not-input-bound": _GREEN, **dict.fromkeys(_WARNED, _YELLOW)}
_TRUST = {"ok": _GREEN, "caution": _YELLOW, "bad": _RED}
_LEFT = 'style="text-align:left"'


def report_html(report: Report) -> str:
    """Return `report` as an HTML fragment without scripts, in the page's own colours."""
    found = report.verdict
    rows = [("Why", escape(found.why))] if found.why else []
    rows += [(label, escape(text)) for label, text in ending(report)]
    rows += [
        ("Fix" if not number else "or", _fix(fix.text, gain_words(fix)))
        for number, fix in enumerate(found.fixes[:_MOST_FIXES])
    ]
    level = _coloured(found.trust.level, _TRUST.get(found.trust.level, _YELLOW))
    rows.append(("Trust", f"{level}: {escape(', '.join(found.trust.reasons))}"))
    body = "".join(f"<tr><th {_LEFT}>{label}</th><td {_LEFT}>{text}</td></tr>" for label, text in rows)
    about = escape(" ".join(["iotrace report", report.session.path]))
    banner = _coloured(found.banner, _COLOURS.get(found.kind, _RED))
    return (
        f"<div><p>{banner} {escape(found.said)}</p><table>{body}</table>"
        f"{_ranks(report.ranks)}<p><code>{about}</code></p></div>"
    )


def _coloured(text: str, colour: str) -> str:
    return f'<strong style="color:{colour}">{escape(text)}</strong>'


def _fix(text: str, gain: str) -> str:
    return escape(text) + (f" <em>({escape(gain)})</em>" if gain else "")


def _ranks(ranks: Sequence[RankReport]) -> str:
    """Make a row for each rank, those that wait longest first where there are many."""
    if not ranks:
        return ""
    heads = ("rank", "steps", "step", "data wait", "of a step", "mostly", "costliest file")
    shown = list(ranks)
    if len(shown) > _MOST_RANKS:
        shown.sort(key=lambda rank: -(rank.data_wait.raw_wait_fraction or 0.0))
    rows = [_row(map(str, heads), "th")] + [_row(_cells(rank), "td") for rank in shown[:_MOST_RANKS]]
    more = len(ranks) - _MOST_RANKS
    return f"<table>{''.join(rows)}</table>" + (f"<p>{more} more ranks</p>" if more > 0 else "")


def _cells(rank: RankReport) -> list[str]:
    steps, wait = rank.steps, rank.data_wait
    most, most_ms = max(wait.causes_ms.items(), key=lambda pair: pair[1], default=("", 0.0))
    file = wait.files[0].path if wait.files and wait.files[0].ms > 0 else ""
    return [
        str(rank.rank),
        str(steps.count),
        if_known(steps.mean_ms, milliseconds, "unknown"),
        if_known(wait.raw_ms, milliseconds, "unknown"),
        if_known(wait.raw_wait_fraction, percent, "unknown"),
        most if most_ms > 0 else "",
        file,
    ]


def _row(cells: Iterable[str], tag: str) -> str:
    return "<tr>" + "".join(f"<{tag}>{escape(cell)}</{tag}>" for cell in cells) + "</tr>"
