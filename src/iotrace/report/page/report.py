"""The page of a report: verdict first, then where, when and why, at last what is not known.

The first screen as HTML, for a notebook: verdict, why, fixes, trust, a row for each rank.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timezone
from html import escape
from typing import Any

import msgspec
from msgspec.structs import replace

from iotrace.analysis.results import RankReport, Report
from iotrace.analysis.results.top import RankColumns
from iotrace.analysis.verdict.failed import last_hang
from iotrace.report import tables
from iotrace.report.blocks import Line, Table, grid_of, known
from iotrace.report.page import charts, sections
from iotrace.report.page.render import WORDS, render
from iotrace.report.page.sections import step_parts
from iotrace.report.screen import fact_rows, following, head_of, opened
from iotrace.report.screen_ranks import advice_rows
from iotrace.report.views import VIEWS, tables_of
from iotrace.report.views.ranks import ranks
from iotrace.report.words import part_not_captured, who_failed

_MOST_ROWS, _MOST_OF_RUN = 20, 100  # of a view, of another table
# What the page shows of its rank, by the names in its template.
_OF_RANK = {
    "tiles": charts.treemap,
    "files": sections.files_table,
    "parts": step_parts,
    "loaders": sections.loaders,
    "io": sections.io_section,
}
_SECTIONS = (
    ("hang", "The hang"),
    ("failures", "What failed"),
    ("ranks", "Ranks"),
    ("strip", "Steps"),
    ("where", "Where the wait goes"),
    ("worst", "Worst batches"),
    ("gantt", "Longest wait"),
    ("waterfall", "Batch by batch"),
    ("machine", "Machine"),
    ("parts", "Inside a step"),
    ("device", "Device"),
    ("loaders", "Loaders"),
    ("regions", "Regions"),
    ("io", "I/O"),
    ("advice", "Advice"),
    ("tables", "Traces"),
    ("missing", "Not captured"),
    ("about", "About"),
)


def report_page(report: Report, columns: RankColumns | None = None, timeline: str = "") -> str:
    """Write `report`, with `columns` of the rank that its verdict is about, as a page.

    `timeline` is the address of its timeline, with a query, for a page that is served beside that.
    """
    rank = sections.main_rank(report, columns)
    steps = columns.steps if columns is not None else None
    window = columns.window if columns is not None else None
    hang = last_hang(report.session)
    shown: dict[str, Any] = {
        "hang": hang if hang is not None and any(each.stack for each in hang.processes) else None,
        "failures": report.session.failures,
        "failed": [who_failed(each, len(report.ranks) > 1) for each in report.session.failures],
        "strip": charts.step_strip(steps) if steps is not None and steps.steps > 1 else None,
        "steps": steps,
        "window": window,
        "gantt": charts.gantt(window) if window is not None else None,
        "ready": charts.ready_area(window) if window is not None else None,
        "waterfall": charts.waterfall(window) if window is not None else None,
        "fetched": charts.fetched([window]) if window is not None else [],
        "ranks": sections.ranks_table(report),
        "sparks": [charts.sparkline(one) for one in columns.series] if columns is not None else [],
        "processes": _shown(tables.processes(report)),
        "gpus": sections.devices(rank),
        "device": _views(report, rank, of_device=True),
        "tables": _views(report, rank, of_device=False),
        "where": _shown(tables.causes(rank)) if rank is not None else None,
        "worst": _shown(tables.worst_batches(rank, report.session)) if rank is not None else None,
        "regions": _shown(tables.regions(rank)) if rank is not None else None,
        "advice": advice_rows(report.recommendations, several=len(report.ranks) > 1),
        "missing": [
            msgspec.structs.replace(item, what=part_not_captured(item.what)) for item in report.not_captured
        ],
        "about": about(report),
    }
    shown |= {name: make(rank) if rank is not None else None for name, make in _OF_RANK.items()}
    shown["tiles_height"] = charts.treemap_height(shown["tiles"] or [])
    shown["machine"] = bool(shown["sparks"] or shown["processes"] or shown["gpus"])
    return render(
        "report.html",
        {"report": report, "columns": columns},
        title=f"{report.verdict.banner} · {report.session.path}",
        banner=head_of(report, "the charts below show more", stacks_shown=True),
        facts=fact_rows(rank, report.verdict.why) if rank is not None else [],
        following=[*(opened(report) if report.session.argv else []), *following(report, verbose=True)],
        rank=rank,
        several=len(report.ranks) > 1,
        report=report,
        nav=[(name, title) for name, title in _SECTIONS if shown[name]],
        cause_words=tables.CAUSES,
        words=WORDS,
        timeline=timeline,
        **shown,
    )


def _shown(table: Table) -> dict[str, Any] | None:
    return sections.shown_table(table, _MOST_OF_RUN) if table.rows else None


def _views(report: Report, rank: RankReport | None, of_device: bool) -> list[dict[str, Any]]:
    """The views of what `rank`'s device did, or what else its traces hold: their first rows."""
    if rank is None:
        return []
    own = replace(report, ranks=[rank])
    device = ("device",) if rank.accelerator is not None else ()
    views = [name for name, view in VIEWS.items() if view.section and (view.section in device) == of_device]
    first = "gaps" if report.verdict.kind == "device-idle" else "kernels"
    views.sort(key=lambda name: name != first)
    return [
        sections.shown_table(table, _MOST_ROWS, names_first=True) | {"name": name}
        for name in views
        for table in tables_of(name, own)
        if table.rows
    ]


def about(report: Report) -> list[tuple[str, str]]:
    """Where the figures are from: command, versions, environment; no variables, which may be secret."""
    session = report.session
    rows = [("Session" if session.argv else "Traces", session.path)]
    if session.started_ns is not None:
        began = datetime.fromtimestamp(session.started_ns / 1e9, timezone.utc)
        rows.append(("Recorded", f"{began:%Y-%m-%d %H:%M} UTC"))
    if session.host:
        rows.append(("Host", ", ".join(dict.fromkeys([session.host, *(p.host for p in report.processes)]))))
    if session.exit_code is not None:
        rows.append(("Exit code", str(session.exit_code)))
    elif not session.ended:
        rows.append(("State", session.state))
    cpus = dict.fromkeys(rank.system.cpus for rank in report.ranks if rank.system.cpus)
    if cpus:
        rows.append(("CPUs of the job", ", ".join(map(str, cpus))))
    devices = dict.fromkeys(gpu.name for rank in report.ranks for gpu in rank.system.gpus)
    if devices:
        rows.append(("Devices", ", ".join(devices)))
    versions: dict[str, None] = {}
    for process in report.processes:
        versions[f"Python {process.python}"] = None
        versions.update(dict.fromkeys(f"{name} {text}" for name, text in process.versions.items()))
    if versions:
        rows.append(("Versions", ", ".join(versions)))
    if session.iotrace_version:
        rows.append(("Recorded by", f"iotrace {session.iotrace_version}"))
    return rows


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
