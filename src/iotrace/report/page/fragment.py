"""The first screen as HTML, for a notebook: verdict, why, fixes, trust, a row for each rank."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

from iotrace.analysis.results import Report
from iotrace.report.blocks import Line, grid_of, known
from iotrace.report.screen import head_of
from iotrace.report.views.ranks import ranks

_MOST_FIXES = 3
_MOST_RANKS = 16
# Readable on white and on black.
_COLOURS = {"good": "#2a2", "warn": "#b80", "bad": "#d33"}
_TONES = {"ok": "good", "caution": "warn", "bad": "bad"}
_LEFT = 'style="text-align:left"'


def report_html(report: Report) -> str:
    """Return `report` as an HTML fragment without scripts, in the page's own colours."""
    head, beside = head_of(report, most=_MOST_FIXES), grid_of(known(ranks(report)[0]))
    level = _coloured(head.level, _TONES[head.level])
    rows = [(each.label, _text(each)) for each in head.lines] + [("Trust", f"{level}: {escape(head.trust)}")]
    body = "".join(f"<tr><th {_LEFT}>{label}</th><td {_LEFT}>{text}</td></tr>" for label, text in rows)
    shown = [_row(beside.headings, "th"), *(_row(row, "td") for row in beside.rows[:_MOST_RANKS])]
    table, more = f"<table>{''.join(shown)}</table>" if beside.rows else "", len(beside.rows) - _MOST_RANKS
    about = escape(" ".join(["iotrace report", report.session.path]))
    return (
        f"<div><p>{_coloured(head.label, head.tone)} {escape(head.text)}</p><table>{body}</table>"
        f"{table}{f'<p>{more} more ranks</p>' if more > 0 else ''}<p><code>{about}</code></p></div>"
    )


def _coloured(text: str, tone: str) -> str:
    return f'<strong style="color:{_COLOURS[tone]}">{escape(text)}</strong>'


def _text(line: Line) -> str:
    gain = ": ".join(filter(None, (line.side, line.note)))
    return escape(line.text) + (f" <em>({escape(gain)})</em>" if gain else "")


def _row(cells: Iterable[str], tag: str) -> str:
    return "<tr>" + "".join(f"<{tag}>{escape(cell)}</{tag}>" for cell in cells) + "</tr>"
