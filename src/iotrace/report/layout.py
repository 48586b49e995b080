"""How the terminal report sets its lines."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table
from rich.text import Text

LABEL_WIDTH = 12


def line(console: Console, label: str, text: str | Text, style: str = "bold") -> None:
    """One labelled paragraph, wrapped beside its label."""
    table = Table.grid(padding=(0, 1))
    table.add_column(width=LABEL_WIDTH, no_wrap=True)
    table.add_column(overflow="fold")
    table.add_row(Text(label, style=style), text if isinstance(text, Text) else Text(text))
    console.print(table)
