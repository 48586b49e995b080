"""``iotrace report --view NAME``: every view as text, JSON and CSV, also where nothing of it was recorded."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner

from iotrace.analysis.results import Gpu, HostUse, ProcessUse, RankReport, Report, System
from iotrace.analysis.traces import analyse_traces
from iotrace.cli import app
from iotrace.report.blocks import Field, Table, write_csv
from iotrace.report.console import make_console
from iotrace.report.layout import print_tables
from iotrace.report.views import VIEWS, tables_of
from tests.support.kineto import kernel, step, trace_of
from tests.support.results import unknown

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


def test_collectives_of_cpus_need_no_device() -> None:
    both = [str(GLOO), str(GLOO.with_name("gloo_rank1.json.gz"))]
    done = CliRunner().invoke(app, ["report", *both, "--view", "collectives"])
    assert "shows a device" not in done.output
    assert "Communication: which rank comes last" in done.output
    alone = text_of(*tables_of("collectives", analyse_traces([trace_of(step(1, 0, 9))])))
    assert "shows a device" in " ".join(alone)


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


def test_the_view_of_the_system_shows_means_and_peaks_of_what_is_declared() -> None:
    gpu = Gpu(index=1, uuid="", name="x", util_pct_mean=40.0, util_pct_peak=90.0, memory_bytes_peak=3 << 20)
    used = System(
        gpus=[gpu, Gpu(index=2, uuid="", name="x", pcie_sent_bytes_per_s_mean=2e6, power_w_peak=70.0)],
        cpu_pct_mean=150.0,
        rss_peak_bytes=8 << 20,
        processes=[ProcessUse(pid=7, role="main", cpu_pct_mean=50.0, rss_peak_bytes=4 << 20)],
        host=HostUse(cpu_busy_fraction=0.5, memory_available_bytes_min=1 << 30),
    )
    report = unknown(Report, ranks=[unknown(RankReport, rank=0, system=used)])
    (table,) = tables_of("system", report)
    assert [msgspec.structs.astuple(row) for row in table.rows] == [
        ("CPU of the rank's processes", 150.0, None, "% of one core"),
        ("memory of the rank's processes", None, 8.0, "MiB"),
        ("CPU of main, pid 7", 50.0, None, "% of one core"),
        ("memory of main, pid 7", None, 4.0, "MiB"),
        ("host's cores busy", 50.0, None, "%"),
        ("host's free memory, at least", 1024.0, None, "MiB"),
        ("gpu 1 utilisation", 40.0, 90.0, "%"),
        ("gpu 1 memory", None, 3.0, "MiB"),
        ("gpu 2 power", None, 70.0, "W"),
        ("gpu 2 sent over PCIe", 2.0, None, "MB/s"),
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
