"""``iotrace report --view NAME``: every view as text, JSON and CSV, also where nothing of it was recorded."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner

from iotrace.analysis.traces import analyse_traces
from iotrace.cli import app
from iotrace.report.layout import make_console
from iotrace.report.views import VIEWS, tables_of
from iotrace.report.views.table import Field, Table, print_tables, write_csv
from tests.support.kineto import kernel, step, trace_of

GLOO = Path(__file__).parent.parent / "data" / "gloo_rank0.json.gz"


class Row(msgspec.Struct):
    name: str
    total_us: float | None
    parts: dict[str, float]


FIELDS = (
    Field("total_us", "us", "{:.1f}".format),
    Field("parts.read", "read"),
    Field("name", "name", is_text=True),
)


def text_of(*tables: Table) -> list[str]:
    console = make_console(False, width=80, color_system=None, record=True)
    with console.capture() as captured:
        print_tables(tables, console)
    return captured.get().splitlines()


@pytest.mark.parametrize("name", VIEWS)
def test_every_view_is_printed_with_and_without_a_device(name: str) -> None:
    for trace in (trace_of(step(1, 0, 100), kernel(10, 20, 5), kernel(40, 60, 30)), trace_of(step(1, 0, 9))):
        tables = tables_of(name, analyse_traces([trace]))
        lines = text_of(*tables)
        assert lines
        assert all(len(line) <= 80 and line == line.rstrip() for line in lines)


def test_unknown_is_a_question_mark_and_long_names_are_cut_in_their_middle() -> None:
    long = "void " + "x" * 200 + "(Tensor)"
    first, heading, *rows = text_of(
        Table(title="T", rows=[Row(long, None, {}), Row("b", 2.0, {"read": 1.5})], fields=FIELDS)
    )
    assert (first, heading.split()) == ("T", ["us", "read", "name"])
    assert rows[0].split()[:2] == ["?", "?"]
    assert rows[0].endswith("(Tensor)")
    assert len(rows[0]) == 80
    assert rows[1].split() == ["2.0", "1.5", "b"]
    assert text_of(Table(title="T", rows=[], fields=FIELDS, unknown="no device", remedy="do so")) == [
        "T",
        "unknown: no device → do so",
    ]


def test_csv_holds_all_fields_of_rows_of_each_kind(tmp_path: Path) -> None:
    class Other(msgspec.Struct):
        rank: int

    tables = [
        Table(title="T", rows=[Row("a,b", None, {"read": 1.5})], fields=FIELDS, rank=3),
        Table(title="U", rows=[Other(5)], fields=[Field("rank", "rank")]),
    ]
    write_csv(tables, tmp_path / "out.csv")
    with (tmp_path / "out.csv").open(newline="") as file:
        assert list(csv.reader(file)) == [
            ["rank", "table", "name", "total_us", "parts"],
            ["3", "T", "a,b", "", '{"read":1.5}'],
            [],
            ["table", "rank"],
            ["U", "5"],
        ]


def test_the_command_line(tmp_path: Path) -> None:
    def call(*words: str) -> tuple[int, str]:
        done = CliRunner().invoke(app, ["report", str(GLOO), *words])
        return done.exit_code, done.output

    name = next(iter(VIEWS))
    code, text = call("--view", name, "--json")
    found = json.loads(text)
    assert (code, found["view"], found["tables"][0]["rows"]) == (0, name, [])
    assert found["tables"][0]["unknown"]
    assert call("--view", name, "--csv", str(tmp_path / "none" / "out.csv"))[0] == 1


@pytest.mark.parametrize("form", [("--json",), ("--format", "json")])
def test_figures_of_other_tools_as_json(form: tuple[str, ...]) -> None:
    done = CliRunner().invoke(app, ["report", "--compat", "tb", str(GLOO), *form])
    assert (done.exit_code, list(json.loads(done.output))) == (0, [str(GLOO)])
