"""Blocks on a terminal."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

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
    beside,
    blocks_of,
    grid_of,
    whose,
)
from iotrace.report.printing import GAP, in_bands, laid_out, middle_cut, visible

LABEL_WIDTH = 12
SHORT_LABEL = 6  # of a first screen, and of what reads like one
_NARROWEST = 20  # columns for text, however narrow the terminal
_WIDEST = 93  # where what belongs to the edge stands on a wide one
_APART = "   "
_BAR_CELLS = 20
_BAR_TEXTS = (10, 10, 6)  # columns: a part's name, how much, its share
_TONES = {
    "good": "bold green",
    "warn": "bold yellow",
    "bad": "bold red",
    "ok": "green",
    "caution": "yellow",
}


def plain(text: str | Text, style: str = "", lines: bool = False) -> Text:
    """Make a text in which nothing steers the terminal, as `visible` does; its length is then known."""
    if isinstance(text, str):
        return Text(visible(text, lines), style=style)
    if visible(text.plain, lines) == text.plain:
        return text
    whole = text.copy()
    whole.end = ""
    pieces = [(visible(each.text, lines), each.style or "") for each in whole.render(_PLAIN)]
    return Text.assemble(*pieces, style=text.style)


def line(console: Console, label: str | Text, text: str | Text, width: int, lines: bool = False) -> None:
    """Print a paragraph, wrapped beside its label of `width` columns (0: none); no line ends in a space.

    With `lines` it may be of several.
    """
    body = plain(text, lines=lines)
    _print_beside(console, label, width, body.wrap(console, _room(console, width)))


def print_document(document: Document, console: Console) -> None:
    """Print a head, and below it each part behind an empty line."""
    print_head(document.head, console)
    print_parts(document.parts, console)
    if document.command:
        line(console, "Next", document.command, SHORT_LABEL)


def print_head(head: Head, console: Console) -> None:
    """Print a banner, what stands below it, and trust."""
    style = _style(head.tone)
    whole = (
        Text.assemble((head.label, style), "   ", head.text) if head.label else Text(head.text, style=style)
    )
    line(console, "", whole, 0)
    print_blocks(head.lines, console)
    if head.level:
        trust = Text.assemble((head.level, _style(head.level)), f": {head.trust}")
        line(console, "Trust", trust, SHORT_LABEL)


def print_parts(parts: Iterable[Part], console: Console, width: int = SHORT_LABEL) -> None:
    """Print each part behind an empty line, labels in a column of `width`."""
    for part in parts:
        console.print()
        print_blocks(blocks_of(part), console, width)


def print_blocks(blocks: Iterable[Block], console: Console, width: int = SHORT_LABEL) -> None:
    """Print blocks below each other, labels in a column of `width`."""
    for block in blocks:
        match block:
            case Line():
                _print_line(block, console, width)
            case Paragraph():
                line(console, "", _toned(block), 0)
            case Facts():
                _print_facts(block, console, width)
            case Grid():
                for row in grid_rows(block, console.width):
                    console.print(row, soft_wrap=True)
            case Table():
                print_tables([block], console)
            case Bars():
                _print_bars(block, console, width)
            case Verbatim():
                for text in block.lines:
                    console.print(plain(text, _style(block.tone)), soft_wrap=True)
            case Commands():
                for number, (typed, what) in enumerate(block.rows):
                    _print_at_edge(console, "" if number else "Next", typed, Text(what, "dim"), whole=True)
            case Heading():
                console.rule(block.text, align="left")


def _style(tone: str) -> str:
    return _TONES.get(tone, tone)


def _print_line(block: Line, console: Console, width: int) -> None:
    short = beside(block) if width == SHORT_LABEL else block
    if short.side:
        _print_at_edge(console, short.label, short.text, short.side)
    else:
        line(console, short.label, _toned(short), width)
    if block.command:
        _print_at_edge(console, "", f"  {block.command}", "", whole=True)
    if block.note:
        line(console, "", Text(f"({block.note})", style="dim"), width)


def _toned(block: Line | Paragraph) -> Text:
    """Colour a text, or the part of it that is strong."""
    if not block.strong:
        return Text(block.text, style=_style(block.tone))
    before, strong, after = block.text.partition(block.strong)
    return Text.assemble(before, (strong, _style(block.tone or "bold")), after)


def _print_facts(block: Facts, console: Console, width: int) -> None:
    room, rows = _room(console, width), [Text()]
    for part in block.parts:
        body = plain(part)
        if rows[-1] and cell_len(rows[-1].plain) + len(_APART) + cell_len(body.plain) > room:
            rows.append(Text())
        rows[-1] = Text.assemble(rows[-1], _APART, body) if rows[-1] else body
    for number, row in enumerate(rows):
        line(console, "" if number else block.label, row, width)


def grid_rows(grid: Grid, width: int) -> Iterator[Text]:
    """Draw rows below their headings: texts share what figures leave of `width` columns.

    Figures that do not fit stand below, beside the texts once more: half a figure is none.
    """
    rows = [[visible(cell) for cell in row] for row in (grid.headings, *grid.rows)]
    widest = [max(map(cell_len, column)) for column in zip(*rows, strict=True)]
    filled = [at for at in grid.texts if all(row[at] for row in rows)]
    names = {tuple(row[at] for at in filled) for row in rows}
    figures = [at for at in range(len(widest)) if at not in grid.texts]
    first = figures[:1] if len(names) < len(rows) else []  # as a rank's number
    for shown in in_bands(widest, grid.texts, width, [*grid.texts, *first]):
        texts = [at for at, column in enumerate(shown) if column in grid.texts]
        band = [[row[column] for column in shown] for row in rows]
        for number, row in enumerate(laid_out(band, texts, width, middle_cut, cell_len), -1):
            tones = ["bold" if number < 0 else grid.tones.get((number, column), "") for column in shown]
            cells = [Text(cell, _style(tone)) for cell, tone in zip(row, tones, strict=True)]
            whole = Text(GAP, style=_style(grid.tones.get((number, None), ""))).join(cells)
            whole.rstrip()
            yield whole


def _print_bars(bars: Bars, console: Console, width: int) -> None:
    """Print a bar a row, the first one in red; below them what they are."""
    most = max((row.value for row in bars.rows), default=0.0)
    for number, row in enumerate(bars.rows):
        texts = [f"{row.name:{_BAR_TEXTS[0]}}", *map(str.rjust, row.texts, _BAR_TEXTS[1:])]
        room = min(_BAR_CELLS, _room(console, width) - len(" ".join(texts)) - 1)
        bar = "█" * max(1, round(room * row.value / most))
        text = Text.assemble(" ".join(texts), " ", (bar, "dim" if number else "red"))
        line(console, "" if number else bars.title, text, width)
    if bars.note:
        line(console, "", Text(bars.note, style="dim"), width)


def _room(console: Console, width: int) -> int:
    return max(_NARROWEST, console.width - len(_start("", width)))


def _start(label: str, width: int) -> str:
    return f"{label.ljust(width)} " if width else ""


def _print_beside(console: Console, label: str | Text, width: int, rows: Iterable[Text]) -> None:
    for number, row in enumerate(rows):
        row.rstrip()
        first = "" if number else label
        start = plain(_start(first, width) if isinstance(first, str) else first, style="bold")
        start.pad_right(len(_start("", width)) - start.cell_len)
        console.print(Text.assemble(start, row), soft_wrap=True)


def _print_at_edge(
    console: Console, label: str, left: str | Text, right: str | Text, whole: bool = False
) -> None:
    """Print `left` beside a short label, `right` at the edge of the screen; below it where both do not fit.

    `whole`: `left` is something to copy, and is never wrapped.
    """
    body, side = plain(left), plain(right)
    room = min(_room(console, SHORT_LABEL), _WIDEST)
    rows = [body] if whole else list(body.wrap(console, room))
    rows[-1].rstrip()
    if side:
        if cell_len(rows[-1].plain) + len(_APART) + cell_len(side.plain) > room:
            rows.append(Text())
        rows[-1].append(" " * max(0, room - cell_len(rows[-1].plain) - cell_len(side.plain)))
        rows[-1].append_text(side)
    _print_beside(console, label, SHORT_LABEL, rows)


def print_tables(tables: Sequence[Table], console: Console) -> None:
    """Print tables below each other; what is unknown is a question mark."""
    for number, (table, name) in enumerate(zip(tables, whose(tables), strict=True)):
        if number:
            console.print()
        line(console, "", f"{name}{table.title}", 0)
        if table.rows:
            print_blocks([grid_of(table)], console)
        else:
            line(console, "", table.unknown_text, 0)
        for note in table.notes:
            line(console, "", note, 0)
        if table.commands:
            line(console, "", "In the timeline, in the order above:", 0)
            print_blocks([Verbatim(table.commands)], console)


_PLAIN = Console(color_system=None, markup=False)
