"""Two traces beside each other: what appeared, vanished, took more."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner

from iotrace.analysis.compare.traces import TraceComparison, compare_traces
from iotrace.analysis.traces import analyse_traces
from iotrace.cli import app
from iotrace.errors import UsageError
from iotrace.report.comparison import trace_document, trace_head
from iotrace.report.console import make_console
from iotrace.report.layout import print_document
from iotrace.sources.kineto.reader import read_kineto
from tests.support.kineto import kernel, operator, step, trace_of
from tests.support.traces import SHARED, shared_trace

DATA = Path(__file__).parent.parent / "data"


def compared(before: list[Any], after: list[Any], **around: Any) -> TraceComparison:
    sides = trace_of(*before), trace_of(*after, **around)
    return compare_traces(*(analyse_traces([each], of_steps=True) for each in sides))


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
        print_document(trace_document(found), console)
    lines = captured.get().splitlines()
    assert lines[0] == "STEP   1.0 ms, then 1.5 ms (+50 %)"
    assert all(len(line) <= 80 and line == line.rstrip() for line in lines)


def test_kernels_and_operators_outside_of_the_steps_are_left_out() -> None:
    """What began in a step without a launch was launched before the trace, for an earlier one."""
    outside = [
        *(operator("aten::warm_up", 10, 20), kernel(30, 90, 12, "warm_up")),
        kernel(1010, 1060, None, "earlier"),
        *(operator("aten::after", 2010, 2020), kernel(2030, 2090, 2012, "after")),
    ]
    inside = [
        step(1, 1000, 2000),
        *(operator("aten::mm", 1100, 1200), kernel(1300, 1400, 1110), kernel(2000, 2030, 1900, "last")),
    ]
    found = compared([*outside, *inside], inside)
    assert [(one.name, one.us) for one in found.kernels or ()] == [("gemm", [100, 100]), ("last", [30, 30])]
    assert [one.name for one in found.operators or ()] == ["aten::mm"]
    # A trace that has no launches at all tells by when kernels ran.
    bare = [step(1, 1000, 2000), kernel(900, 950), kernel(1300, 1400)]
    assert [one.us for one in compared(bare, inside).kernels or () if one.name == "gemm"] == [[100, 100]]


def shaped(at: float, us: float, size: int, name: str) -> list[Any]:
    told = {"Input_Dims": [[size, 8], [8, size]], "Input_type": ["float", "float"]}
    outer = operator("aten::linear", at, at + 9, **told)
    return [outer, operator("aten::mm", at + 1, at + 8, **told), *kernel(at + 10, at + 10 + us, at + 2, name)]


def test_the_same_work_on_devices_of_two_makers() -> None:
    """Their kernels have other names; operators with the same inputs do the same."""
    before = [step(1, 0, 1000), *shaped(10, 100, 64, "ampere_sgemm"), *shaped(300, 40, 32, "ampere_sgemm")]
    after = [step(1, 0, 1000), *shaped(10, 70, 64, "Cijk_Alik"), *shaped(300, 40, 16, "Cijk_Alik")]
    found = compared(before, after)
    assert {one.change for one in found.kernels or ()} == {"appeared", "vanished"}
    assert [(one.name, one.shapes[0], one.change, one.us) for one in found.shapes or ()] == [
        ("aten::mm", [32, 8], "vanished", [40, 0]),
        ("aten::mm", [16, 8], "appeared", [0, 40]),
        ("aten::mm", [64, 8], "less", [100, 70]),
    ]
    assert compared(before, [step(1, 0, 1000), kernel(10, 20, 5)]).shapes is None


def test_an_operator_that_a_long_list_lacks_did_not_vanish() -> None:
    many = [step(1, 0, 100_000)]
    many += [each for at in range(250) for each in shaped(300 * at, 100, 100 + at, "gemm")]
    few = [step(1, 0, 1000), *shaped(10, 20, 7, "gemm")]
    assert {one.change for one in compared(few, many).shapes or ()} == {"appeared"}
    # The short list has all that ran.
    assert {one.change for one in compared(many, few).shapes or ()} == {"vanished"}


@pytest.mark.skipif(SHARED is None, reason="shared/traces lies beside the checkout on some machines alone")
def test_a_model_on_two_makers_devices() -> None:
    """What independent sums gave: 31.8 and 29.7 ms a step, 24 calls of attention."""
    sides = (read_kineto(shared_trace(f"round3/{name}_qwen.json.gz")) for name in ("h100", "mi300"))
    found = compare_traces(*(analyse_traces([each], of_steps=True) for each in sides))
    totals = [sum(one.us[side] for one in found.kernels or ()) / 1e3 for side in (0, 1)]
    assert totals == pytest.approx([31.8, 29.7], abs=0.05)
    assert {one.change for one in found.shapes or ()} == {"more", "less"}
    (attention,) = [one for one in found.shapes or () if one.name == "aten::_flash_attention_forward"]
    assert attention.calls == [24, 24]


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
