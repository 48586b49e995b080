"""Report, sweep, comparison and check as Markdown, for mail and pull requests."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from iotrace.analysis.compare.results import Check, Comparison
from iotrace.analysis.compare.traces import TraceComparison
from iotrace.analysis.results import Report
from iotrace.report import tables
from iotrace.report.blocks import Document, Grid, Head, Line, Table, grid_of, known, whose
from iotrace.report.comparison import check_document, comparison_document, trace_document
from iotrace.report.printing import visible
from iotrace.report.screen import fact_rows, following, head_of
from iotrace.report.sweep import point_rows, sweep_head
from iotrace.report.views.ranks import ranks
from iotrace.sweeps.results import SweepResult

_MOST_RANKS = 16
_MOST_BATCHES = 5
_SIGNS = {"good": "✅", "warn": "⚠️", "bad": "❌"}


def report_markdown(report: Report) -> str:
    """Write the first screen of `report`, its causes, ranks and worst batches."""
    lines = _head(head_of(report))
    rank = report.main_rank
    if rank is not None:
        whose = f" of {rank.called}" if len(report.ranks) > 1 else ""
        rows = [(label, "; ".join(parts)) for label, parts in fact_rows(rank)]
        lines += ["", *_grid(Grid((f"Figures{whose}", ""), rows, (0, 1)))]
        worst = tables.worst_batches(rank, report.session)
        lines += ["", *_grid(grid_of(worst), _MOST_BATCHES)] if worst.rows else []
    if len(report.ranks) > 1:
        lines += ["", *_grid(grid_of(known(ranks(report)[0])), _MOST_RANKS)]
    if report.not_captured:
        missing = dict.fromkeys(item.what for item in report.not_captured)
        lines += ["", f"Not captured: {escape(', '.join(missing))}"]
    return "\n".join([*lines, "", *_commands(following(report, verbose=False))])


def _head(head: Head) -> list[str]:
    """A banner as a heading, what stands below it as a list."""
    label = f"{escape(head.label)}: " if head.label else ""
    lines = [f"### {_SIGNS[head.tone]} {label}{escape(head.text)}", "", *_list(head.lines)]
    trust = f"- **Trust** {head.level}: {escape(head.trust)}"
    return [*lines, trust] if head.level else lines


def _list(lines: Iterable[Line]) -> list[str]:
    found = []
    for each in lines:
        gain = ": ".join(filter(None, (each.side, each.note)))
        label = f"**{each.label}**: " if each.label else ""
        typed = f": `{visible(each.command).replace('`', '')}`" if each.command else ""
        found.append(f"- {label}{escape(each.text)}{f' ({gain})' if gain else ''}{typed}")
    return found


def tables_markdown(found: Sequence[Table]) -> str:
    """Write the tables of a view, all their rows."""
    lines: list[str] = []
    for table, name in zip(found, whose(found), strict=True):
        lines += ["", f"**{escape(name + table.title)}**", ""]
        lines += _grid(grid_of(table)) if table.rows else [escape(table.unknown_text)]
        lines += [f"\n{escape(note)}" for note in table.notes]
        lines += [""] * bool(table.commands)
        lines += [
            f"{number}. `{visible(text).replace('`', '')}`" for number, text in enumerate(table.commands, 1)
        ]
    return "\n".join(lines[1:])


def sweep_markdown(result: SweepResult) -> str:
    """Write what a sweep advises, and its points."""
    headings, rows = point_rows(result)
    lines = [*_head(sweep_head(result.verdict)), "", *_grid(Grid(headings, rows, range(len(headings))))]
    return "\n".join(lines + [f"- warning: {escape(warning)}" for warning in result.warnings])


def comparison_markdown(result: Comparison) -> str:
    """Write what changed from one session to another."""
    return _document(comparison_document(result))


def check_markdown(result: Check) -> str:
    """Write whether a session passes, and what is worse."""
    found = check_document(result)
    return _document(found._replace(head=found.head._replace(label="iotrace check")))


def trace_comparison_markdown(result: TraceComparison) -> str:
    """Write what changed of a step between two traces, and which kernels and operators did."""
    return _document(trace_document(result))


def _document(document: Document) -> str:
    lines = _head(document.head)
    for part in document.parts:
        if isinstance(part, Table):
            lines += ["", *tables_markdown([part]).split("\n")]
        elif part:
            lines += ["", *(_grid(part) if isinstance(part, Grid) else _list(part))]
    lines += ["", *_commands([(document.command, "")])] if document.command else []
    return "\n".join(lines)


def _grid(grid: Grid, most: int | None = None) -> list[str]:
    sides = ["---" if at in grid.texts else "---:" for at in range(len(grid.headings))]
    rows = [f"| {' | '.join(map(escape, row))} |" for row in (grid.headings, *grid.rows[:most])]
    return [rows[0], f"|{'|'.join(sides)}|", *rows[1:]]


def _commands(commands: Iterable[tuple[str, str]]) -> list[str]:
    return [f"- `{visible(command).replace('`', '')}` {what}".rstrip() for command, what in commands]


def escape(text: str) -> str:
    """Keep what Markdown would take for markup: names of files hold underscores."""
    text = visible(text)
    for sign in "\\`*_{}[]<>|#":
        text = text.replace(sign, f"\\{sign}")
    return text
