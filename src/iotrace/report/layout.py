"""The terminal that commands print on, and how the report sets its lines."""

from __future__ import annotations

import shlex

from rich.console import Console
from rich.table import Table
from rich.text import Text

LABEL_WIDTH = 12
_ELLIPSIS = " … "


def command(argv: list[str], width: int) -> str:
    """A command in one line of at most `width` columns: what is too long is cut in its middle."""
    text = " ".join(shlex.join(argv).split())  # a program may stand in it (``python -c``)
    if len(text) <= width:
        return text
    kept = max(0, width - len(_ELLIPSIS))
    # The end of a command tells runs apart, its beginning the program.
    return text[: kept - kept // 2] + _ELLIPSIS + text[len(text) - kept // 2 :]


def line(console: Console, label: str, text: str | Text) -> None:
    """One labelled paragraph, wrapped beside its label."""
    table = Table.grid(padding=(0, 1))
    table.add_column(width=LABEL_WIDTH, no_wrap=True)
    table.add_column(overflow="fold")
    table.add_row(Text(label, style="bold"), text if isinstance(text, Text) else Text(text))
    console.print(table)


def figures_table(titles: list[str], headings: list[str]) -> Table:
    """Make a table without lines: columns of text below `titles`, then figures below `headings`."""
    table = Table(box=None, pad_edge=False, padding=(0, 1))
    for title in titles:
        table.add_column(title, overflow="ellipsis", no_wrap=True)
    for heading in headings:
        table.add_column(heading, justify="right", no_wrap=True)
    return table


class _Console(Console):
    """Standard output, or standard error, possibly of a program that continues."""

    def on_broken_pipe(self) -> None:
        """Stop printing. rich would make standard output, maybe the program's, /dev/null, and exit."""
        self.quiet = True
        raise


def make_console(stderr: bool) -> Console:
    """Make a console that obeys NO_COLOR and COLUMNS, and highlights nothing by itself."""
    return _Console(stderr=stderr, highlight=False, soft_wrap=False)
