"""Kernels, operators, communication, copies, gaps by name: traces with answers by hand, SQL as the judge."""

from __future__ import annotations

from typing import Any

import pytest

from iotrace.analysis.device.accelerator import accelerator_of
from iotrace.analysis.device.gaps import OTHERS
from iotrace.analysis.results import Accelerator
from tests.support.kineto import AUTOGRAD, Event, activity_of, data_wait, event, kernel, operator


def found_in(*events: Event | list[Event], **around: Any) -> Accelerator:
    found = accelerator_of([activity_of(*events, **around)])
    assert found is not None
    return found


def test_a_kernel_is_its_innermost_operators_whatever_other_threads_do() -> None:
    found = found_in(
        operator("aten::linear", 0, 100),
        operator("aten::addmm", 10, 60),
        operator("aten::mul", 5, 90, tid=AUTOGRAD),
        kernel(200, 230, launched=20, name="gemm"),
        kernel(240, 250, launched=70, name="gemm"),
        kernel(260, 265, launched=None, name="early"),
    )
    by_name = {one.name: one for one in found.kernels}
    gemm, early = by_name["gemm"], by_name["early"]
    assert (gemm.calls, gemm.total_us, gemm.mean_us, gemm.max_us, gemm.op) == (2, 40, 20, 30, "aten::addmm")
    assert (early.op, early.module, found.without_launch) == (None, None, 1)


def test_host_and_device_time_of_nested_operators_count_once() -> None:
    found = found_in(
        operator("aten::a", 0, 100),
        operator("aten::b", 10, 50),
        operator("aten::a", 20, 30),  # inside another aten::a
        operator("aten::b", 60, 80),
        kernel(200, 207, launched=25),
        kernel(210, 213, launched=65),
        kernel(220, 221, launched=95),
    )
    by_name = {one.name: one for one in found.operators}
    outer, inner = by_name["aten::a"], by_name["aten::b"]
    assert (outer.calls, outer.host_total_us, outer.host_self_us) == (2, 100, 40 + 10)
    assert (inner.calls, inner.host_total_us, inner.host_self_us) == (2, 60, 30 + 20)
    assert (outer.device_total_us, outer.device_self_us) == (11, 8)
    assert (inner.device_total_us, inner.device_self_us) == (10, 3)


def test_neighbours_that_rounding_made_overlap_do_not_nest() -> None:
    found = found_in(
        operator("aten::a", 0, 10.001),
        operator("aten::b", 10, 20),
        operator("aten::c", 12, 14),
        kernel(30, 31, 13),
    )
    by_name = {one.name: one for one in found.operators}
    assert by_name["aten::a"].device_total_us == 0
    assert by_name["aten::b"].device_total_us == by_name["aten::c"].device_self_us == 1
    assert (by_name["aten::a"].host_self_us, by_name["aten::b"].host_self_us) == (10.001, 8)


def test_without_a_launch_the_external_id_tells_the_operator_where_it_is_another_number() -> None:
    late = kernel(200, 210, launched=None, name="late", External_id=77)
    same = kernel(220, 230, launched=None, name="same")
    same[0]["args"]["External id"] = same[0]["args"]["correlation"]
    op = operator("aten::x", 0, 5, External_id=77)
    other = operator("aten::y", 6, 9, External_id=same[0]["args"]["correlation"])
    by_name = {one.name: one.op for one in found_in(op, other, late, same).kernels}
    assert by_name == {"late": "aten::x", "same": None}


def test_kernels_of_a_graph_belong_to_its_launch() -> None:
    first, call = kernel(100, 110, launched=5, name="k1")
    call["name"] = "cudaGraphLaunch"
    second = {**first, "name": "k2", "ts": 200, "dur": 10}
    found = found_in(operator("graph", 0, 20), first, call, second)
    assert {one.name: one.op for one in found.kernels} == {"k1": "graph", "k2": "graph"}
    assert others(found) == {"graph_replay": 90}


def others(found: Accelerator) -> dict[str, float]:
    assert set(found.idle_other_us) == set(OTHERS)
    assert sum(found.idle_other_us.values()) == pytest.approx(found.idle_by_class_us["other"])
    return {name: us for name, us in found.idle_other_us.items() if us}


def call(name: str, start: float, end: float) -> Event:
    return event("cuda_runtime", name, start, end, correlation=-1)


def test_idle_time_before_what_was_launched_in_time() -> None:
    """A gap of 100 us: 20 of it while the call that launched what ended it had not returned."""
    first, launch = kernel(0, 100, -10), kernel(200, 210, 50, "late")
    launch[1]["dur"] = 70
    assert others(found_in(first, launch)) == pytest.approx({"launch_call": 20, "unexplained": 80})
    # The call returned before; a stream was told to wait right before it, with no launch between.
    launch[1]["dur"] = 5
    assert others(found_in(first, launch)) == {"unexplained": 100}
    assert others(found_in(first, call("cudaStreamWaitEvent", 40, 41), launch)) == {"stream_wait": 100}
    # Told to wait: another thread, or before another launch, or after it.
    elsewhere = {**call("cudaStreamWaitEvent", 40, 41), "tid": 99}
    assert others(found_in(first, elsewhere, launch)) == {"unexplained": 100}
    before, between = call("cudaStreamWaitEvent", -20, -19), call("cudaStreamWaitEvent", 57, 58)
    assert others(found_in(before, first, launch, between)) == {"unexplained": 100}
    # What launched it is not in the trace; launched behind the gap's begin it is the host's, not `other`.
    assert others(found_in(first, kernel(200, 210))) == {"unknown_launch": 100}
    assert others(found_in(first, kernel(200, 210, 101))) == {}


def test_a_stream_that_kineto_says_was_told_to_wait() -> None:
    """The call stands on the thread before another launch; the synchronisation names the stream."""
    told = event("cuda_sync", "Stream Wait Event", 40, 41, 7, device=0, stream=9, correlation=901)
    told["args"] |= {"wait_on_stream": 7, "wait_on_cuda_event_record_corr_id": 900}
    wait, record = call("cudaStreamWaitEvent", 40, 41), call("cudaEventRecord", 38, 39)
    wait["args"]["correlation"], record["args"]["correlation"] = 901, 900
    first, other, last = kernel(0, 100, -10), kernel(20, 90, 42, stream=8), kernel(200, 210, 50, stream=9)
    assert others(found_in(first, record, wait, other, last)) == {"unexplained": 100}
    assert others(found_in(first, record, wait, told, other, last)) == {"stream_wait": 100}


def collective(start: float, end: float, **args: Any) -> list[Event]:
    found = kernel(start, end, launched=start - 5, name="ncclDevKernel_AllReduce_Sum_f32_RING_LL", stream=20)
    found[0]["args"].update({key.replace("_", " "): value for key, value in args.items()})
    return found


def test_communication_has_bytes_bandwidth_and_what_no_compute_hid() -> None:
    group = {"Collective_name": "allreduce", "Process_Group_Name": "0", "Group_size": 4, "dtype": "BFloat16"}
    found = found_in(
        kernel(0, 50, launched=-5),
        collective(40, 140, In_msg_nelems=500_000, Out_msg_nelems=500_000, **group),
        collective(200, 300, In_msg_nelems=500_000, Out_msg_nelems=500_000, **group),
        kernel(400, 410, launched=395, name="multimem_all_reduce_kernel<16>"),
    )
    one, bare = found.collectives
    assert (one.kind, one.group, one.calls, one.bytes, one.total_us) == ("all_reduce", "0", 2, 2_000_000, 200)
    assert one.exposed_us == 190
    assert (one.algorithm_gb_per_s, one.bus_gb_per_s) == (10, 15)
    assert (bare.kind, bare.group, bare.bytes, bare.bus_gb_per_s) == ("all_reduce", None, None, None)


def test_copies_have_direction_bandwidth_and_overlap() -> None:
    def copy(start: float, end: float, name: str, **args: Any) -> list[Event]:
        return kernel(start, end, launched=start - 5, name=name, category="gpu_memcpy", stream=9, **args)

    found = found_in(
        kernel(0, 100, launched=-5),
        copy(50, 150, "Memcpy HtoD (Pageable -> Device)", bytes=200_000),
        copy(200, 300, "Memcpy HtoD (Pageable -> Device)", bytes=200_000),
        copy(310, 320, "Memcpy DtoH (Device -> Pinned)"),
    )
    there, back = found.memory_operations
    assert (there.direction, there.pinned, there.calls, there.bytes) == ("HtoD", False, 2, 400_000)
    assert (there.gb_per_s, there.overlapped_us) == (2, 50)
    assert (back.direction, back.pinned, back.bytes, back.gb_per_s) == ("DtoH", True, None, None)


def test_gaps_say_what_stands_around_them_and_who_ended_them() -> None:
    found = found_in(
        operator("aten::mm", 395, 399),
        data_wait(150, 390),
        kernel(0, 100, launched=-5, name="first"),
        kernel(50, 120, launched=-4, name="longer", stream=8),
        kernel(400, 500, launched=396, name="last"),
        kernel(501, 502, launched=400, name="soon"),
    )
    longest, short = found.gaps
    assert (longest.start_us, longest.us, longest.before, longest.after) == (125, 280, "longer", "last")
    assert (longest.op, longest.module, longest.kind) == ("aten::mm", None, "data_wait")
    assert (short.us, short.kind) == (1, "kernel_wait")


def test_gaps_name_the_line_that_launched_what_ended_them() -> None:
    frames = [("train.py(41): step", 100, 300), ("model.py(7): forward", 150, 250)]
    frames += [("torch/nn/modules/linear.py(9): forward", 160, 240), ("contextlib.py(81): inner", 165, 230)]
    found = found_in(
        *(event("python_function", name, start, end) for name, start, end in frames),
        kernel(0, 10, launched=-5),
        kernel(210, 220, launched=200),
        kernel(290, 295, launched=280),
        kernel(400, 410, launched=390),
        kernel(450, 460),
    )
    lines = {gap.us: gap.source for gap in found.gaps}
    assert lines == {200: "model.py(7): forward", 70: "train.py(41): step", 105: None, 40: None}


def test_kernels_of_no_length_at_the_ends_keep_the_sums() -> None:
    found = found_in(kernel(0, 0, launched=-5), kernel(10, 20, launched=-4), kernel(50, 50, launched=-3))
    assert (found.span_us, found.busy_us, found.idle_us) == (50, 10, 40)
    assert sum(found.idle_by_class_us.values()) == found.idle_us
    assert accelerator_of([activity_of(kernel(5, 5, launched=1))]) is None
