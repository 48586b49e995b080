"""Report, sweep, comparison and check as Markdown, for mail and pull requests."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby

from iotrace.analysis.results import Report
from iotrace.report import tables
from iotrace.report.blocks import (
    Bars,
    Block,
    Commands,
    Document,
    Facts,
    Grid,
    Head,
    Heading,
    Line,
    Paragraph,
    Part,
    Table,
    Verbatim,
    blocks_of,
    grid_of,
    known,
    whose,
)
from iotrace.report.printing import visible
from iotrace.report.screen import fact_rows, following, head_of
from iotrace.report.sweep import point_rows, sweep_head
from iotrace.report.views.ranks import ranks
from iotrace.report.words import part_not_captured
from iotrace.sweeps.results import SweepResult

_MOST_RANKS = 16
_MOST_BATCHES = 5
_SIGNS = {"good": "✅", "warn": "⚠️", "bad": "❌"}


def report_markdown(report: Report) -> str:
    """Write the first screen of `report`, its causes, ranks and worst batches."""
    parts: list[Part] = []
    rank = report.main_rank
    if rank is not None:
        whose = f" of {rank.called}" if len(report.ranks) > 1 else ""
        rows = [(label, "; ".join(texts)) for label, texts in fact_rows(rank, report.verdict.why)]
        parts.append(Grid((f"Figures{whose}", ""), rows, (0, 1)))
        worst = tables.worst_batches(rank, report.session)
        parts += [_first(worst, _MOST_BATCHES)] if worst.rows else []
    if len(report.ranks) > 1:
        parts.append(_first(known(ranks(report)[0]), _MOST_RANKS))
    if report.not_captured:
        missing = dict.fromkeys(part_not_captured(item.what) for item in report.not_captured)
        parts.append([Paragraph(f"Not captured: {', '.join(missing)}")])
    parts.append([Commands(following(report, verbose=False))])
    return document_markdown(Document(head_of(report), parts))


def _first(table: Table, most: int) -> Grid:
    grid = grid_of(table)
    return grid._replace(rows=grid.rows[:most])


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


def document_markdown(document: Document) -> str:
    """Write a head, and below it each part."""
    lines = _head(document.head)
    for part in document.parts:
        if blocks := blocks_of(part):
            lines += ["", *_blocks(blocks)]
    lines += ["", *_commands([(document.command, "")])] if document.command else []
    return "\n".join(lines)


def _blocks(blocks: Iterable[Block]) -> list[str]:
    """Write blocks below each other, lines among them as one list, all else apart by empty lines."""
    lines: list[str] = []
    for is_list, own in groupby(blocks, key=lambda block: isinstance(block, Line)):
        for drawn in [_list(own)] if is_list else map(_block, own):  # type: ignore[arg-type]
            lines += ["", *drawn] if lines else drawn
    return lines


def _block(block: Block) -> list[str]:
    match block:
        case Grid():
            return _grid(block)
        case Table():
            return tables_markdown([block]).split("\n")
        case Bars():
            rows = [(row.name, *row.texts) for row in block.rows]
            texts = max((len(row) for row in rows), default=1) - 1
            note = ["", escape(block.note)] if block.note else []
            return [*_grid(Grid((block.title, *[""] * texts), rows)), *note]
        case Facts():
            return [f"- **{escape(block.label)}**: {escape('; '.join(block.parts))}"]
        case Commands():
            return _commands(block.rows)
        case Verbatim():
            return [f"    {visible(line)}" for line in block.lines]
        case Heading():
            return [f"#### {escape(block.text)}"]
        case _:
            return [escape(block.text)]


def _grid(grid: Grid) -> list[str]:
    sides = ["---" if at in grid.texts else "---:" for at in range(len(grid.headings))]
    rows = [f"| {' | '.join(map(escape, row))} |" for row in (grid.headings, *grid.rows)]
    return [rows[0], f"|{'|'.join(sides)}|", *rows[1:]]


def _commands(commands: Iterable[tuple[str, str]]) -> list[str]:
    return [f"- `{visible(command).replace('`', '')}` {what}".rstrip() for command, what in commands]


def escape(text: str) -> str:
    """Keep what Markdown would take for markup: names of files hold underscores."""
    text = visible(text)
    for sign in "\\`*_{}[]<>|#":
        text = text.replace(sign, f"\\{sign}")
    return text
