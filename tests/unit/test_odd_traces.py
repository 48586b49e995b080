"""Odd traces through every view and format: what is possible is told, the rest is unknown, nothing breaks."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from msgspec.structs import replace

from iotrace.analysis.device.collectives import RankOfJob, ranks_missing
from iotrace.analysis.results import Report
from iotrace.analysis.traces import analyse_traces
from iotrace.cli import app
from iotrace.errors import TraceError
from iotrace.report.blocks import as_json, write_csv
from iotrace.report.console import make_console
from iotrace.report.layout import print_tables
from iotrace.report.markdown import report_markdown, tables_markdown
from iotrace.report.page.report import report_page
from iotrace.report.printing import encode_json
from iotrace.report.terminal import print_report
from iotrace.report.views import VIEWS, tables_of
from iotrace.sources.kineto.reader import read_kineto
from tests.support.odd_traces import (
    ODD,
    a_graph,
    a_rank_missing,
    launched_before,
    mtia,
    no_kernels,
    nothing_inside,
    two_jobs,
)
from tests.support.pages import Page

_NO_NUMBER = re.compile(r"(?<![\w.])-?(?:nan|inf|infinity)(?!\w)", re.IGNORECASE)
Make = Callable[[Path], list[Path]]


def report_of(make: Make, directory: Path) -> Report:
    return analyse_traces([read_kineto(path) for path in make(directory)])


def printed(width: int, show: Callable[[Any], None]) -> list[str]:
    console = make_console(False, width=width, color_system=None)
    with console.capture() as captured:
        show(console=console)
    return captured.get().splitlines()


def check(text: str) -> None:
    assert not _NO_NUMBER.search(text), _NO_NUMBER.findall(text)
    assert "Traceback" not in text


@pytest.mark.parametrize("make", ODD, ids=lambda make: make.__name__)
def test_every_view_in_every_format(make: Make, tmp_path: Path) -> None:
    report = report_of(make, tmp_path)
    plain = json.loads(encode_json(report), parse_constant=pytest.fail)
    assert plain["ranks"]
    for width in (60, 80, 120):
        for verbose in (False, True):
            lines = printed(width, partial(print_report, report, verbose=verbose))
            check("\n".join(lines))
            long = [line for line in lines if len(line) > width and "iotrace " not in line]
            assert not long, long
    check(report_markdown(report))
    page = Page(report_page(report))
    assert not page.faults
    check(page.text)
    for name in VIEWS:
        tables = tables_of(name, report)
        assert tables, name
        json.loads(encode_json(as_json(name, tables)), parse_constant=pytest.fail)
        check(tables_markdown(tables))
        write_csv(tables, tmp_path / "view.csv")
        check((tmp_path / "view.csv").read_text())
        for width in (60, 80, 120):
            lines = printed(width, partial(print_tables, tables))
            check("\n".join(lines))
            long = [line for line in lines if len(line) > width and "iotrace " not in line]
            assert not long, (name, long)
            assert all(line == line.rstrip() for line in lines), name


def test_what_is_not_there_is_unknown_and_no_zero(tmp_path: Path) -> None:
    (rank,) = report_of(no_kernels, tmp_path).ranks
    assert rank.accelerator is None
    assert [one.device_total_us for one in rank.operators or []] == [None]
    (rank,) = report_of(nothing_inside, tmp_path).ranks
    assert (rank.steps.mean_ms, rank.data_wait.raw_ms, rank.operators) == (None, None, None)
    (rank,) = report_of(launched_before, tmp_path).ranks
    assert rank.accelerator is not None
    assert rank.accelerator.without_launch == 2
    assert rank.accelerator.sm_efficiency_pct is None
    assert [one.op for one in rank.accelerator.kernels] == [None]
    report = report_of(mtia, tmp_path)
    assert report.ranks[0].accelerator is None
    assert any("mtia_ccp_events (5)" in item.why for item in report.not_captured)
    (rank,) = report_of(a_graph, tmp_path).ranks
    assert rank.accelerator is not None
    assert rank.accelerator.idle_other_us["graph_replay"] == pytest.approx(390)
    report = report_of(two_jobs, tmp_path)
    assert report.imbalance is None
    assert any(item.what == "the comparison of ranks" for item in report.not_captured)
    report = report_of(a_rank_missing, tmp_path)
    assert report.imbalance is not None
    assert "rank 2 of 4" in [item.what for item in report.not_captured]
    one = RankOfJob("0.json", 0, 20, 1, None, None)
    two = replace(one, rank=3)
    assert ranks_missing([one, two]) == "ranks 1, 2, 4, 5, 6, 7, 8, 9 and 10 more of 20"
    assert ranks_missing([one]) is None
    assert ranks_missing([replace(one, world_size=2), RankOfJob("1.json", 1, 2, 1, None, None)]) is None
    assert ranks_missing([replace(one, world_size=None), replace(two, world_size=None)]) is None


ROCPROF = {"rocprofiler-sdk-tool": [{"metadata": {}, "buffer_records": {}}]}
EXECUTION = {"schema": "1.1.1-chakra.0.0.4", "pid": 7, "nodes": [{"id": 1, "name": "aten::mm"}]}


@pytest.mark.parametrize(
    ("found", "name"), [(ROCPROF, "rocprofv3's JSON"), (EXECUTION, "an execution trace of torch")]
)
def test_other_formats_are_refused_by_name(found: dict[str, Any], name: str, tmp_path: Path) -> None:
    path = tmp_path / "other.json"
    path.write_text(json.dumps(found))
    for words in ([], ["--json"], ["--view", "kernels"], ["--format", "md"], ["--compat", "hta"]):
        done = CliRunner().invoke(app, ["report", str(path), *words])
        assert done.exit_code == 1
        assert isinstance(done.exception, TraceError)  # `cli` prints it as a sentence
        assert name in str(done.exception)


def test_a_view_as_markdown(tmp_path: Path) -> None:
    (path,) = a_graph(tmp_path)
    done = CliRunner().invoke(app, ["report", str(path), "--view", "kernels", "--format", "md"])
    assert done.exit_code == 0
    heading, _, columns, sides, first = done.output.splitlines()[:5]
    assert heading == "**Kernels**"
    assert columns.startswith("| ms | calls | median us |")
    assert sides == "|---:|---:|---:|---:|---:|---|---|"
    assert first.endswith("| k0 |")
