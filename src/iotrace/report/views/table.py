"""A table of a view: results as rows, which of their fields the terminal shows, and how it is written out."""

from __future__ import annotations

import csv
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console
from rich.table import Table as Grid

from iotrace.analysis.results import SCHEMA_VERSION, RankReport
from iotrace.errors import writing
from iotrace.report.layout import line, middle_cut, plain, print_table
from iotrace.report.printing import encode_json, visible

_GAP = 2  # columns between two of the table
_NARROWEST = 8  # columns of a text


class Field(msgspec.Struct, frozen=True):
    """A field of a table's rows as the terminal shows it: `form` makes its text.

    Texts stand left, figures right. `name` may name an entry of a field, ``idle_us.other``; where it
    is None `absent` stands there.
    """

    name: str
    heading: str
    form: Callable[[Any], str] = str
    is_text: bool = False
    absent: str = "?"


class Table(msgspec.Struct, frozen=True, kw_only=True):
    """Rows of one kind, of `rank` or of the whole job. JSON and CSV hold all fields of the rows.

    Without rows `unknown` says why there are none, and `remedy` what records them. `commands` show the
    rows in the timeline, in their order.
    """

    title: str
    rows: Sequence[msgspec.Struct]
    fields: Sequence[Field]
    rank: int | None = None
    unknown: str = "none was recorded"
    remedy: str = ""
    notes: Sequence[str] = ()
    commands: Sequence[str] = ()

    @property
    def unknown_text(self) -> str:
        """Say why there are no rows, and what would record them."""
        return f"unknown: {self.unknown}" + (f" → {self.remedy}" if self.remedy else "")


def of_ranks(ranks: Sequence[RankReport], *makers: Callable[[RankReport], Table]) -> list[Table]:
    """Make the first kind of table for each rank, then the next one."""
    return [msgspec.structs.replace(make(rank), rank=rank.rank) for make in makers for rank in ranks]


def print_tables(tables: Sequence[Table], console: Console) -> None:
    """Print `tables` below each other; what is unknown is a question mark."""
    for number, (table, name) in enumerate(zip(tables, whose(tables), strict=True)):
        if number:
            console.print()
        line(console, "", f"{name}{table.title}", 0)
        if table.rows:
            print_table(console, _grid(table, console.width))
        else:
            line(console, "", table.unknown_text, 0)
        for note in table.notes:
            line(console, "", note, 0)
        if table.commands:
            line(console, "", "In the timeline, in the order above:", 0)
        for command in table.commands:
            console.print(plain(command), soft_wrap=True)


def whose(tables: Sequence[Table]) -> list[str]:
    """Name the rank of each table, where there are several."""
    several = len({table.rank for table in tables if table.rank is not None}) > 1
    return [f"rank {table.rank}: " if several and table.rank is not None else "" for table in tables]


def _grid(table: Table, width: int) -> Grid:
    """Lay the rows out; texts share the room that figures leave."""
    cells = cells_of(table)
    widest = [
        max(len(field.heading), *(len(row[at]) for row in cells)) for at, field in enumerate(table.fields)
    ]
    texts = [at for at, field in enumerate(table.fields) if field.is_text]
    room = width - _GAP * (len(widest) - 1) - sum(widest[at] for at in range(len(widest)) if at not in texts)
    for left, at in zip(range(len(texts), 0, -1), sorted(texts, key=lambda at: widest[at]), strict=True):
        widest[at] = min(widest[at], max(_NARROWEST, room // left))
        room -= widest[at]
    grid = Grid(box=None, pad_edge=False, padding=(0, 1))
    for at, field in enumerate(table.fields):
        justify = "left" if field.is_text else "right"
        grid.add_column(field.heading, justify=justify, no_wrap=True, width=widest[at])  # type: ignore[arg-type]
    for row in cells:
        grid.add_row(*(middle_cut(text, widest[at]) for at, text in enumerate(row)))
    return grid


def cells_of(table: Table) -> list[list[str]]:
    """Make the text of each cell."""
    return [[_cell(field, row) for field in table.fields] for row in table.rows]


def _cell(field: Field, row: msgspec.Struct) -> str:
    name, _, entry = field.name.partition(".")
    value = getattr(row, name)
    if entry and value is not None:
        value = value.get(entry)
    return field.absent if value is None else visible(field.form(value))


def as_json(name: str, tables: Sequence[Table]) -> dict[str, Any]:
    """Make what ``--view NAME --json`` prints: all fields of the rows, null where unknown."""
    return {
        "schema_version": SCHEMA_VERSION,
        "view": name,
        "tables": [
            {
                "title": table.title,
                "rank": table.rank,
                "rows": table.rows,
                "unknown": None if table.rows else table.unknown,
            }
            for table in tables
        ],
    }


def write_csv(tables: Sequence[Table], path: Path) -> None:
    """Write all rows, behind their rank and title; an empty line before rows with other fields.

    Raises:
        IotraceError: the file cannot be written.
    """
    with (
        writing(path, "choose another --csv FILE"),
        path.open("w", newline="", encoding="utf-8", errors="backslashreplace") as file,
    ):
        writer = csv.writer(file)
        before: tuple[str, ...] = ()
        for table in tables:
            for row in table.rows:
                if row.__struct_fields__ != before:
                    if before:
                        writer.writerow(())
                    before = row.__struct_fields__
                    own = ("rank",) if "rank" not in before else ()
                    writer.writerow([*own, "table", *row.__struct_encode_fields__])
                of_rank = () if "rank" in before else (table.rank,)
                writer.writerow(
                    [*of_rank, table.title, *(plain_value(getattr(row, each)) for each in before)]
                )


def plain_value(value: Any) -> Any:
    """Return a value as it is where a table's cell holds it, several values as JSON."""
    if value is None or isinstance(value, str | int | float):
        return value
    return encode_json(value).decode()
