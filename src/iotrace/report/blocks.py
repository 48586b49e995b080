"""What is shown, as plain data: lines, facts, tables, bars. Each is made once, and drawn by every renderer.

A terminal draws them in `layout`, a page in `page.render`, Markdown in `markdown`. CSV and JSON have all rows
of a table, and all their fields, whatever a screen shows.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from iotrace.errors import replacing
from iotrace.report.printing import encode_json, visible
from iotrace.units import one_decimal, percent, size, three_digits

if TYPE_CHECKING:
    from iotrace.analysis.results import RankReport
    from iotrace.analysis.results.base import Figure


def us_as_ms(time_us: float) -> str:
    """Format µs as ms."""
    return f"{time_us / 1e3:.1f}"


def us_as_2_digits(time_us: float) -> str:
    """Format µs as ms with two decimals, where rows are short."""
    return f"{time_us / 1e3:.2f}"


def kernel_name(kernel: str) -> str:
    """Leave out of a kernel's name what all kernels share, and its parameters."""
    name = kernel.removeprefix("void ").replace("(anonymous namespace)::", "")
    return name.partition("(")[0].strip() or kernel


def dims(shapes: Sequence[Sequence[int]]) -> str:
    """Write the shapes of tensors, without what is no tensor."""
    return " ".join("x".join(map(str, shape)) for shape in shapes if shape)


# How a figure of a unit stands in a table.
_FORMS: Mapping[str, Callable[[Any], str]] = {
    "bytes": size,
    "ms": one_decimal,
    "s": one_decimal,
    "%": one_decimal,
    "0 to 1": percent,
    "1/s": three_digits,
    "GB/s": three_digits,
    "TFLOP/s": three_digits,
}


class Line(NamedTuple):
    """A text beside its label; `side` is a fix's gain, `note` why that is more than its cause costs.

    `command` is what to type for it. Without a label it goes on with the line before. `tone` is how it is
    coloured, or its part `strong` alone: ``good``, ``warn``, ``bad``, ``caution``, ``dim`` or ``bold``.
    """

    label: str
    text: str
    side: str = ""
    note: str = ""
    command: str = ""
    strong: str = ""
    tone: str = ""


class Paragraph(NamedTuple):
    """A text over the whole width, coloured as a line."""

    text: str
    strong: str = ""
    tone: str = ""


class Facts(NamedTuple):
    """Short texts beside a label, on one line as far as they fit."""

    label: str
    parts: Sequence[str]


class Verbatim(NamedTuple):
    """Lines that are never wrapped: commands to copy, a stack."""

    lines: Sequence[str]
    tone: str = ""


class Commands(NamedTuple):
    """What to type next, and what each shows."""

    rows: Sequence[tuple[str, str]]


class Heading(NamedTuple):
    """What the blocks below it are about."""

    text: str


class Bar(NamedTuple):
    """A part of a whole: how much, and the texts that stand beside its bar."""

    name: str
    value: float
    texts: Sequence[str]


class Bars(NamedTuple):
    """Parts beside each other as bars, each as long as it is large."""

    title: str
    rows: Sequence[Bar]
    note: str = ""


class Head(NamedTuple):
    """What a result says first: banner, reasons and fixes, and how far to trust it where that is known.

    `tone` is ``good``, ``warn`` or ``bad``. Without a label the text begins with it.
    """

    tone: str
    label: str
    text: str
    lines: Sequence[Line]
    level: str = ""
    trust: str = ""


def lines_of(label: str, texts: Sequence[str]) -> list[Line]:
    """Make a line of each text, of which the first has the label."""
    return [Line("" if number else label, text) for number, text in enumerate(texts)]


def beside(line: Line, most: int = 6) -> Line:
    """Put a label that is too long for its column before the text."""
    return line if len(line.label) <= most else line._replace(label="", text=f"{line.label} {line.text}")


class Grid(NamedTuple):
    """Rows of texts below headings; columns of `texts` stand left, the others are figures.

    `tones` colours a cell by its row and column, or a row by itself and None.
    """

    headings: Sequence[str]
    rows: Sequence[Sequence[str]]
    texts: Sequence[int] = (0,)
    title: str = ""
    tones: Mapping[tuple[int, int | None], str] = {}


class Document(NamedTuple):
    """All that a terminal and Markdown say of a result, in order; `command` is what to type next."""

    head: Head
    parts: Sequence[Part]
    command: str = ""


class Field(msgspec.Struct, frozen=True):
    """A field of a table's rows as a reader sees it: `form` makes its text.

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


Block = Line | Paragraph | Facts | Grid | Table | Bars | Verbatim | Commands | Heading
Part = Grid | Table | Sequence[Block]  # apart from others by an empty line


def blocks_of(part: Part) -> Sequence[Block]:
    """Return the blocks of a part, which may be one of them."""
    return [part] if isinstance(part, Grid | Table) else part


def columns(
    kind: type[msgspec.Struct],
    entries: Mapping[str, str] | None = None,
    without: Sequence[str] = (),
    /,
    **forms: Callable[[Any], str],
) -> list[Field]:
    """Make a column of each figure of `kind` that declares a heading: figures, then texts; or by `place`.

    A field of several figures is a column for each of `entries`, by heading. `forms` are those of fields
    that stand in a table in another way than their unit.
    """
    from iotrace.analysis.results.base import figures_of  # a list of sessions has none

    found = []
    for each in sorted(figures_of(kind), key=lambda each: (each.place, each.is_text)):
        if each.said and each.attribute not in without:
            form = forms.get(each.attribute) or _form(each)
            parts = entries or {} if "{}" in each.said else {"": ""}
            for entry, heading in parts.items():
                name = f"{each.attribute}.{entry}" if entry else each.attribute
                found.append(Field(name, each.said.format(heading), form, each.is_text, each.absent))
    return found


def _form(figure: Figure) -> Callable[[Any], str]:
    if figure.unit == "µs":
        return one_decimal if figure.said.endswith("us") else us_as_ms
    return str if figure.is_text else _FORMS.get(figure.unit, str)


def of_ranks(ranks: Sequence[RankReport], *makers: Callable[[RankReport], Table]) -> list[Table]:
    """Make the first kind of table for each rank, then the next one."""
    return [msgspec.structs.replace(make(rank), rank=rank.rank) for make in makers for rank in ranks]


def shortened(table: Table, most: int) -> Table:
    """Leave out all but the first `most` rows, and say how many there are more."""
    more = len(table.rows) - most
    notes = [f"{more} more rows: --json", *table.notes] if more > 0 else table.notes
    return msgspec.structs.replace(table, rows=table.rows[:most], notes=notes)


def known(table: Table) -> Table:
    """Leave out the columns that no row knows."""
    cells = zip(*cells_of(table), strict=True) if table.rows else ()
    fields = [field for field, own in zip(table.fields, cells, strict=False) if {*own} != {field.absent}]
    return msgspec.structs.replace(table, fields=fields or table.fields)


def whose(tables: Sequence[Table]) -> list[str]:
    """Name the rank of each table, where there are several."""
    several = len({table.rank for table in tables if table.rank is not None}) > 1
    return [f"rank {table.rank}: " if several and table.rank is not None else "" for table in tables]


def cells_of(table: Table) -> list[list[str]]:
    """Make the text of each cell."""
    return [[_cell(field, row) for field in table.fields] for row in table.rows]


def grid_of(table: Table) -> Grid:
    """Make the texts of a table."""
    texts = [at for at, field in enumerate(table.fields) if field.is_text]
    return Grid([field.heading for field in table.fields], cells_of(table), texts, table.title)


def _cell(field: Field, row: msgspec.Struct) -> str:
    name, _, entry = field.name.partition(".")
    value = getattr(row, name)
    if entry and value is not None:
        value = value.get(entry)
    return field.absent if value is None else visible(field.form(value))


def as_json(name: str, tables: Sequence[Table]) -> dict[str, Any]:
    """Make what ``--view NAME --json`` prints: all fields of the rows, null where unknown."""
    from iotrace.analysis.results import SCHEMA_VERSION

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
        replacing(path, "choose another --csv FILE") as made,
        made.open("w", newline="", encoding="utf-8", errors="backslashreplace") as file,
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
                values = [plain_value(getattr(row, each)) for each in before]
                writer.writerow([*of_rank, table.title, *values])


def plain_value(value: Any) -> Any:
    """Return a value as it is where a table's cell holds it, several values as JSON."""
    if value is None or isinstance(value, str | int | float):
        return value
    return encode_json(value).decode()
