"""Two traces beside each other: what appeared, vanished, took more."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
from click.testing import CliRunner

from iotrace.analysis.compare.traces import TraceComparison, compare_traces
from iotrace.analysis.traces import analyse_traces
from iotrace.cli import app
from iotrace.errors import UsageError
from iotrace.report.comparison import print_trace_comparison, trace_head
from iotrace.report.layout import make_console
from tests.support.kineto import kernel, operator, step, trace_of

DATA = Path(__file__).parent.parent / "data"


def compared(before: list[Any], after: list[Any], **around: Any) -> TraceComparison:
    return compare_traces(analyse_traces([trace_of(*before)]), analyse_traces([trace_of(*after, **around)]))


def test_kernels_and_operators_a_step_by_name() -> None:
    before = [
        *(step(1, 0, 1000), operator("aten::mm", 0, 100), operator("aten::old", 200, 210)),
        *(kernel(300, 500, 10, "gemm"), kernel(600, 650, 20, "gone"), kernel(700, 710, 30, "same")),
    ]
    after = [
        *(step(1, 0, 1000), step(2, 1000, 3000)),
        *(operator("aten::mm", 0, 100), operator("aten::mm", 1100, 1180)),
        *(kernel(300, 600, 10, "gemm"), kernel(1300, 1800, 1110, "gemm")),
        *(kernel(700, 710, 30, "same"), kernel(1900, 1910, 1120, "same"), kernel(2000, 2010, 1130, "new")),
    ]
    found = compared(before, after)
    assert (found.steps, found.step_ms, found.change_pct) == ([1, 2], [1.0, 1.5], 50)
    assert [(one.name, one.change, one.by_us, one.us, one.calls) for one in found.kernels or ()] == [
        ("gemm", "more", 200, [200, 400], [1, 1]),
        ("gone", "vanished", -50, [50, 0], [1, 0]),
        ("new", "appeared", 5, [0, 5], [0, 0.5]),
        ("same", "same", 0, [10, 10], [1, 1]),
    ]
    assert {one.name: one.change for one in found.operators or ()} == {
        "aten::mm": "less",
        "aten::old": "vanished",
    }
    assert found.differs == []
    console = make_console(False, width=80, color_system=None)
    with console.capture() as captured:
        print_trace_comparison(found, console)
    lines = captured.get().splitlines()
    assert lines[0] == "STEP   1.0 ms, then 1.5 ms (+50 %)"
    assert all(len(line) <= 80 and line == line.rstrip() for line in lines)


def test_the_part_that_changed_most_comes_first() -> None:
    found = msgspec.structs.replace(
        compared([step(1, 0, 100)], [step(1, 0, 100)]),
        breakdown_ms={"kernel": [96.7, 99.0], "memcpy": [1.0, 1.0], "dataloader": [35.5, 0.3]},
    )
    label, text, *_ = trace_head(found).lines[0]
    assert (label, text) == ("Parts", "dataloader -35.2 (35.5 to 0.3) · kernel +2.3 (96.7 to 99.0)")


def test_what_else_differs_is_told() -> None:
    named = {"deviceProperties": [{"name": "A"}]}
    found = compared([kernel(0, 10, -5)], [step(1, 0, 100), kernel(0, 10, -5)], **named)
    assert found.differs == [
        "the device: unknown and A",
        "steps: one of the two has none, and is taken for one",
    ]


def test_the_command_compares_traces() -> None:
    traces = [str(DATA / f"gloo_rank{rank}.json.gz") for rank in (0, 1)]
    done = CliRunner().invoke(app, ["compare", *traces, "--json"])
    found = json.loads(done.output)
    assert (done.exit_code, found["kernels"], found["steps"]) == (0, None, [4, 4])
    assert "unknown: a trace shows no device" in CliRunner().invoke(app, ["compare", *traces]).output


def test_the_command_writes_a_page_markdown_and_csv(tmp_path: Path) -> None:
    paths = []
    for name, length in (("a", 10), ("b", 30)):
        events = [step(1, 0, 100), *kernel(20, 20 + length, 10, "<gemm>"), operator("aten::mm", 5, 15)]
        paths.append(tmp_path / f"{name}.json")
        paths[-1].write_text(json.dumps({"traceEvents": events, "baseTimeNanoseconds": 0}))
    page, table = tmp_path / "page.html", tmp_path / "table.csv"
    given = [*map(str, paths), "--html", str(page), "--csv", str(table), "--format", "md"]
    done = CliRunner().invoke(app, ["compare", *given])
    assert done.exit_code == 0, done.output
    assert done.stdout.startswith("### ⚠️ STEP: 0.1 ms, then 0.1 ms (+0 %)")
    shown = page.read_text()
    assert shown.count("&lt;gemm&gt;") == 1
    assert "0.01 &gt; 0.03" in shown
    assert table.read_text().splitlines()[0] == "rank,table,name,change,by_us,us,calls"
    assert ',<gemm>,more,20.0,"[10.0,30.0]","[1.0,1.0]"' in table.read_text()


def test_csv_is_of_traces(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["compare", str(tmp_path), str(DATA), "--csv", "x.csv"])
    assert isinstance(done.exception, UsageError)
    assert str(done.exception) == "--csv writes the tables of two traces"
