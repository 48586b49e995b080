"""The terminal that commands print on, and how the report sets its lines."""

from __future__ import annotations

import shlex
from collections.abc import Container, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from iotrace.report.printing import aligned_within, visible

if TYPE_CHECKING:  # a command that shows no report imports none of its results
    from iotrace.report.blocks import Document, Field, Grid, Head, Line, Table as TableBlock

LABEL_WIDTH = 12
SHORT_LABEL = 6  # of a first screen, and of what reads like one
_NARROWEST = 20  # columns for text, however narrow the terminal
_WIDEST = 93  # where what belongs to the edge stands on a wide one
_GAP = "   "
_NARROWEST_NAME = 10
TONES = {"good": "bold green", "warn": "bold yellow", "bad": "bold red"}
_LEVELS = {"ok": "green", "caution": "yellow", "bad": "bold red"}
_BETWEEN, _NARROWEST_TEXT = 2, 8  # columns between two of a table, and of one with texts


def command(argv: list[str], width: int) -> str:
    """A command in one line of at most `width` columns: what is too long is cut in its middle."""
    text = visible(" ".join(shlex.join(argv).split()))  # a program may stand in it (``python -c``)
    # The end of a command tells runs apart, its beginning the program.
    return middle_cut(text, width, " … ")


def middle_cut(text: str, width: int, sign: str = "…", parts: int = 2) -> str:
    """Cut a long text in its middle: beginning, one of `parts`, and end tell names apart."""
    if len(text) <= width:
        return text
    kept = max(0, width - len(sign))
    end = kept * (parts - 1) // parts
    return f"{text[: kept - end]}{sign}{text[len(text) - end :]}"


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


def line(
    console: Console, label: str | Text, text: str | Text, width: int = LABEL_WIDTH, lines: bool = False
) -> None:
    """Print a paragraph, wrapped beside its label of `width` columns (0: none); no line ends in a space.

    With `lines` it may be of several.
    """
    body = plain(text, lines=lines)
    _print_beside(console, label, width, body.wrap(console, _room(console, width)))


def say(console: Console, label: str, text: str | Text) -> None:
    """Print a paragraph beside a short label."""
    line(console, label, text, SHORT_LABEL)


def print_head(head: Head, console: Console) -> None:
    """Print a banner, what stands below it, and trust."""
    style = TONES[head.tone]
    whole = (
        Text.assemble((head.label, style), "   ", head.text) if head.label else Text(head.text, style=style)
    )
    line(console, "", whole, 0)
    print_lines(head.lines, console)
    if head.level:
        style = _LEVELS.get(head.level, "")
        say(console, "Trust", Text.assemble((head.level, style), f": {head.trust}"))


def print_document(document: Document, console: Console) -> None:
    """Print a head, and below it each part behind an empty line."""
    from iotrace.report.blocks import Grid, Table

    print_head(document.head, console)
    for part in document.parts:
        console.print()
        if isinstance(part, Grid):
            print_grid(part, console)
        elif isinstance(part, Table):
            print_tables([part], console)
        else:
            print_lines(part, console)
    if document.command:
        say(console, "Next", document.command)


def print_grid(grid: Grid, console: Console) -> None:
    """Print rows whose first column gives room to the others, nothing behind the last one."""
    rows = [tuple(map(visible, row)) for row in (grid.headings, *grid.rows)]
    cut = partial(middle_cut, parts=3)  # a stage and its file's name tell it
    for number, row in enumerate(aligned_within(console.width, _NARROWEST_NAME, cut, rows)):
        console.print(Text(row, style="" if number else "bold"), soft_wrap=True)


def print_lines(lines: Iterable[Line], console: Console) -> None:
    """Print lines, each beside its short label, what belongs to its side at the edge."""
    from iotrace.report.blocks import beside

    for each in map(beside, lines):
        if each.side:
            two_columns(console, each.label, each.text, each.side)
        else:
            say(console, each.label, each.text)
        if each.command:
            two_columns(console, "", f"  {each.command}", "", whole=True)
        if each.note:
            say(console, "", Text(f"({each.note})", style="dim"))


def say_each(console: Console, label: str, texts: Iterable[str | Text]) -> None:
    """Print paragraphs beside one short label."""
    for number, text in enumerate(texts):
        say(console, "" if number else label, text)


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


def facts(console: Console, label: str, parts: Iterable[str | Text]) -> None:
    """Print `parts` beside a short label: on one line as long as they fit, each on its own where not."""
    room, rows = _room(console, SHORT_LABEL), [Text()]
    for part in parts:
        body = plain(part)
        if rows[-1] and cell_len(rows[-1].plain) + len(_GAP) + cell_len(body.plain) > room:
            rows.append(Text())
        rows[-1] = Text.assemble(rows[-1], _GAP, body) if rows[-1] else body
    say_each(console, label, rows)


def two_columns(
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
        if cell_len(rows[-1].plain) + len(_GAP) + cell_len(side.plain) > room:
            rows.append(Text())
        rows[-1].append(" " * max(0, room - cell_len(rows[-1].plain) - cell_len(side.plain)))
        rows[-1].append_text(side)
    _print_beside(console, label, SHORT_LABEL, rows)


def table_of(headings: Iterable[str], texts: Container[str]) -> Table:
    """Make a table without lines: a column for each heading, of text below those in `texts`, else figures."""
    table = Table(box=None, pad_edge=False, padding=(0, 1))
    for heading in headings:
        table.add_column(heading, justify="left" if heading in texts else "right", no_wrap=True)
    return table


def print_tables(tables: Sequence[TableBlock], console: Console) -> None:
    """Print tables below each other; what is unknown is a question mark."""
    from iotrace.report.blocks import cells_of, whose

    for number, (table, name) in enumerate(zip(tables, whose(tables), strict=True)):
        if number:
            console.print()
        line(console, "", f"{name}{table.title}", 0)
        if table.rows:
            print_table(console, _grid(table.fields, cells_of(table), console.width))
        else:
            line(console, "", table.unknown_text, 0)
        for note in table.notes:
            line(console, "", note, 0)
        if table.commands:
            line(console, "", "In the timeline, in the order above:", 0)
        for typed in table.commands:
            console.print(plain(typed), soft_wrap=True)


def _grid(fields: Sequence[Field], cells: Sequence[Sequence[str]], width: int) -> Table:
    """Lay the rows out; texts share the room that figures leave."""
    headings = [field.heading for field in fields]
    widest = [max(map(len, column)) for column in zip(headings, *cells, strict=True)]
    texts = [at for at, field in enumerate(fields) if field.is_text]
    room = width - _BETWEEN * (len(widest) - 1)
    room -= sum(each for at, each in enumerate(widest) if at not in texts)
    for left, at in zip(range(len(texts), 0, -1), sorted(texts, key=lambda at: widest[at]), strict=True):
        widest[at] = min(widest[at], max(_NARROWEST_TEXT, room // left))
        room -= widest[at]
    grid = table_of(headings, [headings[at] for at in texts])
    for column, wide in zip(grid.columns, widest, strict=True):
        column.width = wide
    for row in cells:
        grid.add_row(*map(middle_cut, row, widest))
    return grid


def print_table(console: Console, table: Table) -> None:
    """Print a table, no line of which ends in a space."""
    for segments in console.render_lines(table, pad=False):
        row = Text.assemble(*((segment.text, segment.style or "") for segment in segments))
        row.rstrip()
        console.print(row, soft_wrap=True)


class _Console(Console):
    """Standard output, or standard error, possibly of a program that continues."""

    def on_broken_pipe(self) -> None:
        """Stop printing. rich would make standard output, maybe the program's, /dev/null, and exit."""
        self.quiet = True
        raise

    def render_str(self, text: str, **given: Any) -> Text:
        """Take `text` as it is: a name may hold what rich would take for markup."""
        return super().render_str(visible(text, lines=True), **given)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Yield what is printed. What made a text without `plain` gives only its width wrong."""
        for segment in super().render(renderable, options):
            text = segment.text if segment.control else visible(segment.text, lines=True)
            yield segment if text == segment.text else Segment(text, segment.style)


def make_console(stderr: bool, **given: Any) -> Console:
    """Make a console that obeys NO_COLOR and COLUMNS; it highlights nothing, and knows no markup."""
    return _Console(stderr=stderr, highlight=False, soft_wrap=False, markup=False, emoji=False, **given)


_PLAIN = Console(color_system=None, markup=False)
