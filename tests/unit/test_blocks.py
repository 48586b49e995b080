"""One block, each renderer: what a result says is made once, and all of them draw it."""

from __future__ import annotations

import csv
from io import StringIO
from pathlib import Path
from typing import Annotated

import msgspec
import pytest

from iotrace.analysis.results import RegionResult
from iotrace.analysis.results.base import figure, figures_of
from iotrace.report import markdown
from iotrace.report.blocks import (
    Document,
    Grid,
    Head,
    Line,
    Table,
    as_json,
    beside,
    columns,
    grid_of,
    known,
    lines_of,
    shortened,
    write_csv,
)
from iotrace.report.console import make_console
from iotrace.report.layout import grid_rows, print_document, print_tables
from iotrace.report.page.sections import shown_table


class Read(msgspec.Struct, frozen=True, kw_only=True):
    path: Annotated[str, figure("the file", said="file")]
    read_bytes: Annotated[int | None, figure("what was read", said="read", absent="-")] = None
    read_ms: Annotated[float, figure("the time of it", said="ms", place=-1)]
    kept: int = 0  # declares no heading: CSV and JSON alone have it


READS = [Read(path="a_b.bin", read_bytes=3 << 20, read_ms=1.25), Read(path="c|d", read_ms=20.0)]
TABLE = Table(title="Reads", rows=READS, fields=columns(Read), notes=["n"])
DOCUMENT = Document(
    Head("bad", "SLOW", "by reads", [Line("Why", "a disk"), Line("Until then", "all well", "2x", "or 3x")]),
    [Grid(("part", "ms"), [("read", "1.0")]), TABLE, lines_of("Around", ["one", "two"])],
    "iotrace report s",
)


def printed(document: Document, width: int = 60) -> list[str]:
    file = StringIO()
    print_document(document, make_console(stderr=False, width=width, file=file))
    return file.getvalue().splitlines()


def test_columns_are_what_is_declared_in_its_place_and_form() -> None:
    assert [field.heading for field in columns(Read)] == ["ms", "read", "file"]
    assert grid_of(TABLE).rows == [["1.2", "3.0 MiB", "a_b.bin"], ["20.0", "-", "c|d"]]
    assert grid_of(TABLE).texts == [2]
    assert [field.heading for field in columns(Read, None, ["read_ms"])] == ["read", "file"]
    (size, *_) = [each for each in columns(Read, read_bytes=str) if each.name == "read_bytes"]
    assert size.form(5) == "5"


def test_a_figure_of_several_is_a_column_for_each_entry() -> None:
    class Idle(msgspec.Struct):
        idle_us: Annotated[dict[str, float], figure("by class", said="{}")]

    table = Table(
        title="", rows=[Idle({"a": 1500.0})], fields=columns(Idle, {"a": "class a", "b": "class b"})
    )
    assert grid_of(table)[:2] == (["class a", "class b"], [["1.5", "?"]])


def test_the_terminal_draws_a_document() -> None:
    assert printed(DOCUMENT) == [
        "SLOW   by reads",
        "Why    a disk",
        "       Until then all well                                2x",
        "       (or 3x)",
        "",
        "part   ms",
        "read  1.0",
        "",
        "Reads",
        "  ms     read  file",
        " 1.2  3.0 MiB  a_b.bin",
        "20.0        -  c|d",
        "n",
        "",
        "Around one",
        "       two",
        "Next   iotrace report s",
    ]


def test_markdown_draws_the_same() -> None:
    assert markdown.document_markdown(DOCUMENT).splitlines() == [
        "### ❌ SLOW: by reads",
        "",
        "- **Why**: a disk",
        "- **Until then**: all well (2x: or 3x)",
        "",
        "| part | ms |",
        "|---|---:|",
        "| read | 1.0 |",
        "",
        "**Reads**",
        "",
        "| ms | read | file |",
        "|---:|---:|---|",
        "| 1.2 | 3.0 MiB | a\\_b.bin |",
        "| 20.0 | - | c\\|d |",
        "",
        "n",
        "",
        "- **Around**: one",
        "- two",
        "",
        "- `iotrace report s`",
    ]


def test_the_page_sorts_by_what_a_text_stands_for() -> None:
    found = shown_table(TABLE, 1)
    assert (found["rows"], found["more"]) == ([[("1.2", None), ("3.0 MiB", 3 << 20), ("a_b.bin", None)]], 1)
    assert shown_table(TABLE, 2)["rows"][1][1] == ("-", "")
    assert [field.heading for field in shown_table(TABLE, 1, names_first=True)["fields"]] == [
        "file",
        "ms",
        "read",
    ]


def test_csv_and_json_have_all_fields(tmp_path: Path) -> None:
    write_csv([TABLE], tmp_path / "t.csv")
    with (tmp_path / "t.csv").open(newline="") as file:
        assert list(csv.reader(file)) == [
            ["rank", "table", "path", "read_bytes", "read_ms", "kept"],
            ["", "Reads", "a_b.bin", str(3 << 20), "1.25", "0"],
            ["", "Reads", "c|d", "", "20.0", "0"],
        ]
    (table,) = as_json("v", [TABLE])["tables"]
    assert (table["title"], table["rows"], table["unknown"]) == ("Reads", READS, None)


def test_a_banner_that_the_text_begins_with_is_drawn_once() -> None:
    document = Document(Head("good", "", "FASTER 3 %", []), [])
    assert printed(document) == ["FASTER 3 %"]
    assert markdown.document_markdown(document).rstrip() == "### ✅ FASTER 3 %"


def test_rows_that_are_left_out_are_counted_and_columns_that_nothing_knows_are_not_shown() -> None:
    assert shortened(TABLE, 1).notes == ["1 more rows: --json", "n"]
    assert shortened(TABLE, 2) == TABLE
    unknown = Table(title="", rows=READS[1:], fields=columns(Read))
    assert [field.heading for field in known(unknown).fields] == ["ms", "file"]
    assert known(Table(title="", rows=[], fields=columns(Read))).fields == columns(Read)


def test_a_label_that_is_too_long_stands_before_the_text() -> None:
    assert beside(Line("Trust", "ok")) == Line("Trust", "ok")
    assert beside(Line("Until then", "ok", "2x")) == Line("", "Until then ok", "2x")


@pytest.mark.parametrize("width", [40, 200])
def test_a_table_of_nothing_says_why(width: int) -> None:
    file = StringIO()
    table = Table(title="T", rows=[], fields=columns(Read), unknown="no read", remedy="read")
    print_tables([table], make_console(stderr=False, width=width, file=file))
    assert file.getvalue() == "T\nunknown: no read → read\n"


def test_what_is_declared_is_known_to_the_renderers() -> None:
    (name, *_) = [each for each in figures_of(RegionResult) if each.attribute == "name"]
    assert (name.said, name.is_text, name.absent) == ("region", True, "?")


def test_figures_that_do_not_fit_stand_below_and_are_whole() -> None:
    grid = Grid(
        ("mark", "rank", "step ms", "data ms", "host"),
        [("late", "1", "287.9", "255.1", "vm"), ("", "0", "291.4", "8.3", "vm")],
        (0, 4),
    )
    assert [row.plain for row in grid_rows(grid, 34)] == [
        "mark  rank  step ms  data ms  host",
        "late     1    287.9    255.1  vm",
        "         0    291.4      8.3  vm",
    ]
    assert [row.plain for row in grid_rows(grid, 33)] == [
        "mark  rank  step ms  host",
        "late     1    287.9  vm",
        "         0    291.4  vm",
        "mark  rank  data ms  host",
        "late     1    255.1  vm",
        "         0      8.3  vm",
    ]
    named = grid._replace(rows=[(*row[:4], host) for row, host in zip(grid.rows, ("n1", "n2"), strict=True)])
    assert [row.plain for row in grid_rows(named, 33)][3:] == [
        "mark  data ms  host",
        "late    255.1  n1",
        "          8.3  n2",
    ]
