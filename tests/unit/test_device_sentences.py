"""What the first screen says of real traces: the kind of verdict, the first fix, and what must not be said.

The traces and the figures that independent sums gave lie beside the checkout (`shared/traces`, README).
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

from iotrace.analysis.results import Report
from iotrace.analysis.rules.model import rules_of
from iotrace.analysis.traces import analyse_traces, report_of_parts, trace_part
from iotrace.merge.input_files import CHROME, InputFile
from iotrace.merge.survey import Wants, survey
from iotrace.report.views.ranks import WaitRow, waits
from iotrace.sources.kineto.reader import read_kineto
from tests.support.traces import SHARED, shared_trace

pytestmark = pytest.mark.skipif(
    SHARED is None or not (SHARED / "round3").is_dir(),
    reason="shared/traces/round3 lies beside the checkout on some machines alone",
)


H100 = Path(__file__).parents[1] / "data" / "h100"


class Said(NamedTuple):
    """`kind` of the verdict, the code of the first fix, and words that have to be in it, or must not."""

    kind: str
    fix: str | None
    words: tuple[str, ...]
    never: tuple[str, ...] = ()
    traces: tuple[str, ...] = ()


_GRAPHS = "CUDA graphs launch them at once"
_DLRM = tuple(f"round3/dlrm_rank{number}" for number in range(8))
_RESNET = "resnet50_num_workers_{}.pt.trace"
BATTERY = {
    "round3/vllm_pw_exec": Said(
        "device-idle", "IO615", ("49 %", "from the first launch"), ("100 %", _GRAPHS)
    ),
    "round3/vllm_full_exec": Said("device-idle", "IO615", ("44 %",), ("100 %", _GRAPHS)),
    "round3/tc_triton": Said("device-busy", None, ("64 % GEMM", "29 % attention"), ("IDLE", _GRAPHS)),
    "round3/sgl_decode": Said(
        "device-idle",
        "IO609",
        ("98 %", "463.2 ms", "hipMemcpyWithStream"),
        (_GRAPHS, "launches kernels too late"),
    ),
    "round3/norm": Said(
        "device-idle", "IO611", ("slow calls of hipLaunchKernel",), (_GRAPHS, "launches kernels too late")
    ),
    "round3/h100_timesf": Said(
        "device-idle",
        "IO608",
        ("59 %", "218.0 ms before the first kernel", "video_classification.py(129): preprocess"),
        (_GRAPHS, "kernels are short"),
    ),
    "round3/a100_negq": Said(
        "device-idle", "IO610", ("64 %", "616.4 ms", "CUDA graphs that were launched in time"), (_GRAPHS,)
    ),
    "round3/triton_ex": Said("device-idle", None, ("after the last kernel",), ("first 0 steps", _GRAPHS)),
    "round3/h100_bert": Said("device-idle", "IO604", ("93 %", "launches kernels too late")),
    "round3/rtx_linear": Said("device-idle", "IO604", ("63 %", "launches kernels too late"), ("data",)),
    "round3/h100_qwen": Said("device-busy", "IO618", ("54 % elementwise, 28 % GEMM",), ("UNKNOWN", _GRAPHS)),
    "round3/mi300_qwen": Said("device-busy", "IO618", ("41 % elementwise, 39 % GEMM",), ("UNKNOWN", _GRAPHS)),
    "dlrm": Said(
        "communication-bound",
        "IO617",
        ("all_to_all", "waits for other ranks are 55 % of each step"),
        ("INPUT-BOUND", "SendRecv", "send_recv"),
        _DLRM,
    ),
    "sampled": Said(
        "device-idle",
        "IO612",
        ("55 %", "host does other work", "communication that no compute hides"),
        (_GRAPHS,),
        ("round3/sampled0", "round3/sampled1"),
    ),
    _RESNET.format(0): Said("input-bound", "IO600", ("23 %",), ("IDLE",)),
    _RESNET.format(4): Said("device-idle", "IO604", ("launches kernels too late",), ("INPUT-BOUND",)),
    "mi300_owlv2": Said("input-bound", "IO600", ("64 %",), (_GRAPHS,)),
    "recsys_8ranks_rank3": Said(
        "communication-bound", "IO617", ("all_to_all",), ("INPUT-BOUND", "send_recv")
    ),
    "nccl_2ranks_rank0": Said("device-idle", "IO612", ("76 %", "host does other work"), ("INPUT-BOUND",)),
    "mi210_gpu_only": Said("device-idle", "IO604", ("11 %",), ("INPUT-BOUND",)),
    "cpu_only_300ranks_rank34": Said("wait-unknown", None, (), ("IDLE", "BUSY")),
}


@cache
def report_of(*names: str) -> Report:
    return report_of_parts([trace_part(read_kineto(shared_trace(f"{name}.json.gz"))) for name in names])


@pytest.mark.parametrize("name", BATTERY)
def test_the_first_sentence_is_right(name: str) -> None:
    said = BATTERY[name]
    verdict = report_of(*(said.traces or (name,))).verdict
    fixes = [fix.text for fix in verdict.fixes]
    text = "\n".join([verdict.text, verdict.why or "", *fixes])
    assert (verdict.kind, verdict.fixes[0].code if verdict.fixes else None) == (said.kind, said.fix), text
    for word in said.words:
        assert word in f"{verdict.text}\n{verdict.why}", text
    assert not [word for word in said.never if word in text], text


def test_no_change_promises_more_than_the_idle_time_that_it_can_end() -> None:
    """CUDA graphs were promised 246 times the speed of a program that replays one."""
    for name, said in BATTERY.items():
        for fix in report_of(*(said.traces or (name,))).verdict.fixes:
            assert fix.speedup is None or fix.speedup < 3, (name, fix.text)


def test_updates_of_the_optimizer_are_the_steps_of_a_trace_without_others() -> None:
    (rank,) = report_of("round3/rtx_linear").ranks
    assert rank.steps.count == 40
    assert rank.steps.mean_ms == pytest.approx(25.2, abs=0.1)


def test_collectives_are_those_of_the_ranges_around_their_launches() -> None:
    (rank,) = report_of("round3/a100_negq").ranks
    assert rank.accelerator is not None
    found = {one.kind: one for one in rank.accelerator.collectives}
    calls = {"all_reduce": 10, "all_to_all": 45, "reduce_scatter": 10, "all_gather": 10, "send_recv": 5}
    assert {kind: one.calls for kind, one in found.items()} == calls
    assert found["all_reduce"].total_us == pytest.approx(126_555)
    assert found["all_reduce"].bytes == 8_965_794_640
    assert found["send_recv"].bytes is None  # these five have no launch in the trace
    assert found["all_gather"].bytes is None  # a range tells what went in alone
    (rank,) = report_of("round3/sampled0").ranks
    assert rank.accelerator is not None
    kinds = {one.kind: one.calls for one in rank.accelerator.collectives}
    assert kinds == {"all_to_all": 4, "all_reduce": 4, "all_gather": 2}


def test_clocks_are_compared_by_the_exchanges_too() -> None:
    """An all_to_all of older NCCL is a kernel SendRecv; the ranges around the launches tell which it is."""
    for name in _DLRM:
        file = InputFile(shared_trace(f"{name}.json.gz"), CHROME, name)
        kinds = [key[0].partition("_RING")[0] for key in survey(file, Wants(collectives=True)).collectives]
        assert sorted(kinds) == 5 * ["all_to_all"] + 3 * ["ncclKernel_AllReduce"]


def test_ranks_are_compared_by_what_their_ranges_tell() -> None:
    found = report_of(*_DLRM).imbalance
    assert found is not None
    assert (found.collectives.matched, found.collectives.unmatched) == (8, 0)
    assert found.collectives.skew_ms_max == pytest.approx(7.625)
    assert found.collectives.skew_ms_mean == pytest.approx(1.405, abs=1e-3)
    assert max(found.stragglers, key=lambda one: one.last_to_arrive).rank == 7


def test_communication_without_waits_and_what_each_rank_waited() -> None:
    found = report_of(*_DLRM).imbalance
    assert found is not None
    speeds = found.collectives.speeds
    exchanged = [one for one in speeds if one.kind == "all_to_all"]
    assert sum(one.calls for one in exchanged) == 5
    waited = {rank: sum(one.waited_us[str(rank)] for one in speeds) for rank in range(8)}
    assert waited[1] == pytest.approx(1e3 * (found.ranks[1].communication_wait_ms or 0), rel=0.05)
    assert min(waited, key=lambda rank: waited[rank]) == 7
    assert all(one.bus_gb_per_s for one in speeds if one.bytes_per_call and one.kind == "all_reduce")


def test_the_view_of_what_each_rank_waits_for_the_others() -> None:
    found = report_of(*_DLRM).imbalance
    assert found is not None
    table = waits(report_of(*_DLRM))
    told = {row.rank: row.waited_us for row in table.rows if isinstance(row, WaitRow)}
    assert list(told)[-1] == 7  # the last to come in most calls
    assert sum(told.values()) == pytest.approx(
        sum(us for one in found.collectives.speeds for us in one.waited_us.values())
    )
    assert [field.heading for field in table.fields][:4] == ["rank", "in all", "all_reduce", "all_to_all"]
    assert waits(report_of("mi300_owlv2")).rows == []


def test_copies_to_pageable_memory_lie_on_the_critical_path() -> None:
    for name, kind, least_ms in (("h100_timesf", "kernel", 118), ("a100_negq", "kernel", 100)):
        (rank,) = report_of(f"round3/{name}").ranks
        assert rank.accelerator is not None
        path = rank.accelerator.critical_path
        assert path is not None
        assert path.by_kind_us[kind] >= 1e3 * least_ms
        assert path.by_kind_us["runtime"] < path.span_us / 10


def test_the_view_of_calls_has_the_wait_that_no_other_view_showed() -> None:
    (rank,) = report_of("round3/a100_negq").ranks
    assert rank.accelerator is not None
    calls = {one.name: one for one in rank.accelerator.runtime_calls}
    waited = calls["cudaDeviceSynchronize"]
    assert (waited.calls, waited.waits) == (1, True)
    assert waited.total_us == pytest.approx(158_183)
    assert (calls["cudaMemcpyAsync"].waits, calls["cudaMemcpyAsync"].called_by) == (True, "aten::copy_")
    assert not calls["cudaGraphLaunch"].waits


# No trace at hand allocates behind its first step; a made-up one is in test_device_advice.py.
_NO_REAL_TRACE = {"IO606"}
# Of rules that name a small part: a real trace in which it costs enough, and one in which it costs less.
_FIRES_AND_IS_SILENT = {
    "IO601": (_RESNET.format(4), _RESNET.format(0)),  # 2.2 and 1.1 % of the time
    "IO602": ("recsys_8ranks_rank3", "round3/a100_negq"),  # 3.6 and 1.5 %
    "IO603": ("round3/dlrm_rank7", "round3/h100_qwen"),  # 3.4 and 0.9 %
    "IO613": ("round3/a100_negq", "round3/h100_qwen"),  # 3.7 %, and none
    "IO616": ("mi300_owlv2", "round3/h100_timesf"),  # 4.2 and 1.2 %
}


@pytest.mark.parametrize("code", _FIRES_AND_IS_SILENT)
def test_a_small_part_is_named_where_it_is_worth_a_change(code: str) -> None:
    fires, silent = _FIRES_AND_IS_SILENT[code]
    assert code in _codes(report_of(fires))
    assert code not in _codes(report_of(silent))


def test_each_rule_of_the_device_fires_on_a_real_trace_and_is_silent_on_another() -> None:
    fired = [_codes(report_of(*(said.traces or (name,)))) for name, said in BATTERY.items()]
    fired += [_codes(analyse_traces([read_kineto(path)])) for path in H100.glob("*.json.gz")]
    known = {rule.code for rule in rules_of("device")}
    assert set.intersection(*fired) == set()
    assert known - set.union(*fired) == _NO_REAL_TRACE


def _codes(report: Report) -> set[str]:
    return {item.code for item in report.recommendations if item.code is not None}
