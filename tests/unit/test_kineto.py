"""Reading Kineto's JSON: any layout, any cut, any damage, every nanosecond."""

from __future__ import annotations

import gzip
import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from iotrace.errors import TraceError
from iotrace.sources import byte_stream
from iotrace.sources.kineto.collectives import is_collective_kernel
from iotrace.sources.kineto.kinds import Kind, is_data_wait, module_of, step_of
from iotrace.sources.kineto.reader import read_kineto
from iotrace.sources.kineto.trace import KinetoTrace
from tests.support.traces import SHARED, shared_trace

BASE_NS = 217 * 7_889_238 * 10**9

KERNEL = {
    "ph": "X",
    "cat": "kernel",
    "name": "ncclDevKernel_AllReduce_Sum_f32_RING_LL",
    "pid": 0,
    "tid": 7,
    "ts": 4458676522690.655,
    "dur": 41.407,
    "args": {
        "External id": 12,
        "device": 0,
        "stream": 7,
        "correlation": 99,
        "bytes": 4096,
        "Collective name": "allreduce",
        "In msg nelems": 1024,
        "Out msg nelems": 1024,
        "Group size": 2,
        "dtype": "Float",
        "Process Group Name": "0",
        "Process Group Ranks": "[0, 1]",
        "Seq": 5,
        "nested": [{"a": 1}, {"b": [{}]}],
    },
}
OPERATOR = {
    "ph": "X",
    "cat": "cpu_op",
    "name": 'aten::mm }, { \\ " ]',
    "pid": 10,
    "tid": "11",
    "ts": 4458676522600,
    "dur": 3,
    "args": {"Sequence number": 8, "Fwd thread id": 1, "External id": 12},
}
GLOO = {
    "ph": "X",
    "cat": "user_annotation",
    "name": "gloo:all_reduce",
    "pid": 10,
    "tid": 12,
    "ts": 4458676522601.5,
    "dur": 3.25,
    "args": {"Input Dims": [[3, 7], [2]], "Input type": ["float", "float"]},
}
ARROW = [
    {"ph": "s", "id": 99, "cat": "async", "name": "launch", "pid": 10, "tid": 11, "ts": 4458676522600.5},
    {"ph": "f", "id": 99, "cat": "async", "name": "launch", "pid": 0, "tid": 7, "ts": 4458676522690.655},
]
NAMES = [
    {"ph": "M", "name": "process_name", "pid": 10, "tid": 0, "ts": 0, "args": {"name": "python3"}},
    {"ph": "M", "name": "thread_name", "pid": 10, "tid": "11", "args": {"name": "main"}},
    {"ph": "M", "name": "process_labels", "pid": 10, "tid": 0, "args": {"labels": "CPU"}},
]
EVENTS: list[dict[str, Any]] = [*NAMES, OPERATOR, KERNEL, GLOO, *ARROW]
AROUND = {
    "schemaVersion": 1,
    "deviceProperties": [{"id": 0, "name": "A100"}, {"id": 1, "name": "A100"}],
    "distributedInfo": {"backend": "nccl", "rank": 3, "world_size": 8},
    "traceEvents": EVENTS,
    "baseTimeNanoseconds": BASE_NS,
    "extra": [{"x": 1}, {"y": 2}],
}


def read(tmp_path: Path, data: bytes, **options: Any) -> KinetoTrace:
    path = tmp_path / "trace.json"
    path.write_bytes(data)
    return read_kineto(path, **options)


def layouts(value: Any) -> list[bytes]:
    kineto = json.dumps(value, indent=2).replace("\n    },\n", "\n  },\n")
    return [
        json.dumps(value).encode(),
        json.dumps(value, separators=(",", ":")).encode(),
        json.dumps(value, indent="\t").encode(),
        kineto.encode(),
    ]


@pytest.mark.parametrize("layout", range(4))
@pytest.mark.parametrize("chunk", [8 << 20, 700])
def test_every_layout_gives_the_same_columns(
    tmp_path: Path, layout: int, chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(byte_stream, "CHUNK_BYTES", chunk)
    trace = read(tmp_path, layouts({**AROUND, "traceEvents": EVENTS * 5})[layout])
    assert trace.problems == []
    assert (trace.rank, trace.world_size, trace.base_ns, len(trace.devices)) == (3, 8, BASE_NS, 2)
    assert trace.document["extra"] == [{"x": 1}, {"y": 2}]
    events = trace.events
    assert len(events) == 15
    assert events.start_ns[:3].tolist() == [
        BASE_NS + 4458676522600_000,
        BASE_NS + 4458676522690_655,
        BASE_NS + 4458676522601_500,
    ]
    assert events.duration_ns[:3].tolist() == [3000, 41407, 3250]
    assert [trace.threads[thread] for thread in events.thread[:3].tolist()] == [(10, 11), (0, 7), (10, 12)]
    assert trace.kinds[:3].tolist() == [Kind.CPU_OP, Kind.KERNEL, Kind.ANNOTATION]
    assert [trace.names[name] for name in events.name[:2].tolist()] == [OPERATOR["name"], KERNEL["name"]]
    assert events.correlation[:3].tolist() == [-1, 99, -1]
    assert (events.stream[1], events.device[1], events.bytes[1]) == (7, 0, 4096)
    assert (events.sequence[0], events.forward_thread[0], events.external_id[0]) == (8, 1, 12)
    kernel, gloo = (trace.collectives[events.collective[row]] for row in (1, 2))
    assert (kernel.name, kernel.elements, kernel.group, kernel.group_size) == ("allreduce", 1024, "0", 2)
    assert (kernel.ranks, kernel.sequence, kernel.dtype) == ((0, 1), 5, "Float")
    assert (gloo.name, gloo.elements, gloo.dtype, gloo.sequence) == ("all_reduce", 23, "float", None)
    assert trace.process_names == {10: "python3"}
    assert trace.thread_names == {(10, 11): "main"}
    assert trace.flow_categories == ["ac2g"]
    assert trace.flows.phase[:2].tolist() == [ord("s"), ord("f")]
    assert trace.flows.flow.tolist() == [99] * 10
    assert [trace.threads[thread] for thread in trace.flows.thread[:2].tolist()] == [(10, 11), (0, 7)]


def test_a_bare_array_and_an_archive(tmp_path: Path) -> None:
    path = tmp_path / "trace.json.gz"
    path.write_bytes(gzip.compress(json.dumps(EVENTS).encode()))
    trace = read_kineto(path, near_ns=BASE_NS + 10**15)
    assert len(trace.events) == 3
    assert trace.rank is None
    # What Kineto counts from was not told: inferred from when it was recorded.
    assert trace.base_ns == BASE_NS


@pytest.mark.parametrize("layout", range(4))
def test_a_cut_trace_keeps_its_whole_events(tmp_path: Path, layout: int) -> None:
    data = layouts(AROUND)[layout]
    first = data.index(b'"ph"')
    for end in range(first, len(data), 37):
        trace = read(tmp_path, data[:end])
        whole = sum(
            data.index(json.dumps(event["name"]).encode()) < end - 1000 for event in (OPERATOR, KERNEL, GLOO)
        )
        assert whole <= len(trace.events) <= 3
        assert trace.problems, end


def test_a_cut_archive_keeps_its_whole_events(tmp_path: Path) -> None:
    packed = gzip.compress(json.dumps({"traceEvents": EVENTS * 2000}).encode())
    path = tmp_path / "trace.json.gz"
    path.write_bytes(packed[: len(packed) // 2])
    trace = read_kineto(path)
    assert 2000 < len(trace.events) < 4000
    assert [re.split(" after | near ", problem)[0] for problem in trace.problems] == [
        "the gzip stream breaks off",
        "it breaks off before its end",
        "1 event could not be read, the first",
        "it does not say what its times are counted from: they have no date",
    ]


@pytest.mark.parametrize(
    ("damage", "problem", "kept"),
    [
        (b'"dur": NaN', "durations that are no numbers, shown as 0 (1)", 3),
        (b'"dur": N/A', "durations that are no numbers, shown as 0 (1)", 3),
        (b'"dur": -Infinity', "durations that are no numbers, shown as 0 (1)", 3),
        (b'"dur": 3, "args": {"stream": nan, "x": N/A, "y": -inf, "z": "nan, "}', "", 3),
        (b'"dur": 3, "x": "a\x01\n\tb"', "", 3),
        (b'"dur": 3, "x": "a\xff\xfe"', "bytes that are no UTF-8, shown as \\xNN (2)", 3),
        (b'"dur": 3, "x": oops', "1 event could not be read, the first near byte", 2),
        (b'"dur": "3.5"', "numbers that were strings (1)", 3),
    ],
)
def test_damage_costs_no_more_than_its_event(tmp_path: Path, damage: bytes, problem: str, kept: int) -> None:
    end = {"ph": "X", "name": "last", "cat": "cpu_op", "pid": 10, "tid": 11, "ts": 1, "dur": 1}
    data = json.dumps({**AROUND, "traceEvents": [*EVENTS, end]}).encode()
    trace = read(tmp_path, data.replace(b'"dur": 3,', damage + b",", 1))
    assert len(trace.events) == kept + 1
    assert trace.base_ns == BASE_NS
    assert len(trace.problems) == bool(problem)
    assert "".join(trace.problems).startswith(problem)


def test_keys_before_garbage_are_kept_and_the_garbage_is_said(tmp_path: Path) -> None:
    trace = read(tmp_path, json.dumps(AROUND).encode() + b' oops "')
    assert (trace.rank, trace.base_ns, trace.document["extra"]) == (3, BASE_NS, AROUND["extra"])
    assert trace.problems == ["the keys next to traceEvents could not all be read"]


def test_names_that_are_no_utf8_are_told_by_their_bytes(tmp_path: Path) -> None:
    data = json.dumps({"traceEvents": EVENTS}).encode().replace(b"gloo:", b"gl\xffo:")
    trace = read(tmp_path, data, near_ns=BASE_NS)
    assert "gl\\xffo:all_reduce" in trace.names


@pytest.mark.parametrize("data", [b"", b"{}", b"hello", b'{"traceEvents": 3}', b"\x1f\x8bxx"])
def test_what_is_no_trace_is_refused_with_a_sentence(tmp_path: Path, data: bytes) -> None:
    with pytest.raises(TraceError, match="no trace in Chrome's JSON format"):
        read(tmp_path, data)


def test_a_missing_file_is_refused_with_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="No such file"):
        read_kineto(tmp_path / "none.json")


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=60)
@given(st.lists(st.tuples(st.integers(0, 2**43 * 1000 - 1), st.integers(0, 10**13)), min_size=1))
def test_every_nanosecond_of_a_quarter_is_told_apart(tmp_path: Path, times: list[tuple[int, int]]) -> None:
    rows = ",".join(
        f'{{"ph":"X","pid":1,"tid":1,"ts":{start // 1000}.{start % 1000:03},'
        f'"dur":{length // 1000}.{length % 1000:03}}}'
        for start, length in times
    )
    trace = read(tmp_path, f'{{"traceEvents":[{rows}],"baseTimeNanoseconds":{BASE_NS}}}'.encode())
    assert trace.events.start_ns.tolist() == [BASE_NS + start for start, _ in times]
    assert trace.events.duration_ns.tolist() == [length for _, length in times]


def test_fractions_of_us_since_the_epoch_are_exact(tmp_path: Path) -> None:
    data = b'[{"ph":"X","ts":1711964646000123.457,"dur":1.5},{"ph":"X","ts":1711964646000123.458}]'
    trace = read(tmp_path, data)
    assert trace.events.start_ns.tolist() == [1711964646000123457, 1711964646000123458]
    assert trace.problems == []


def test_begins_and_ends_become_events_that_last(tmp_path: Path) -> None:
    halves = [
        ("B", 1, 0, "outer"),
        ("B", 1, 2, "inner"),
        ("B", 2, 3, "other"),
        ("E", 1, 5, ""),
        ("X", 1, 6, "x"),
    ]
    halves += [("E", 1, 9, ""), ("E", 1, 9, ""), ("E", 2, 4, ""), ("B", 1, 10, "endless")]
    events = [
        {"ph": phase, "pid": 1, "tid": tid, "ts": 1_700_000_000_000_000 + time, "name": name, "dur": 1}
        for phase, tid, time, name in halves
    ]
    trace = read(tmp_path, json.dumps(events).encode())
    assert trace.problems == ["1 begin event without an end was left out"]
    found = zip(trace.events.name.tolist(), trace.events.duration_ns.tolist(), strict=True)
    expected = [("outer", 9000), ("inner", 3000), ("other", 1000), ("x", 1000)]
    assert [(trace.names[name], duration) for name, duration in found] == expected
    assert not trace.events.instant.any()


def test_names_and_what_they_mean() -> None:
    assert step_of("ProfilerStep#17") == 17
    assert step_of("ProfilerStep") is None
    assert is_data_wait("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__")
    assert not is_data_wait("enumerate(Other)#x.__next__")
    assert module_of("module:encoder.layer.0") == "encoder.layer.0"
    assert module_of("nn.Module: Linear_0") == "Linear_0"
    assert module_of("aten::mm") is None


def test_kernels_that_communicate_and_only_these() -> None:
    kernels = (
        *("ncclKernel_AllReduce_RING_LL_Sum_float(x)", "void rcclGenericKernel<1>", "oneccl_allreduce"),
        "void (anonymous namespace)::multimem_all_reduce_kernel<c10::BFloat16, 16>(c10::BFloat16*)",
        "void (anonymous namespace)::two_shot_all_reduce_kernel<c10::BFloat16, 16, 8>(c10::BFloat16**)",
        "void c10d::intra_node_comm::oneShotAllReduceKernel<8u, false>(c10::BFloat16*)",
        "void vllm::cross_device_reduce_2stage<__nv_bfloat16, 8>(vllm::RankData*)",
        "void deep_ep::internode_ll::dispatch<false, 3, 10, 7168>(void*, float*)",
        "void deep_ep::intranode::combine<__nv_bfloat16, 8, 768, 4096>(__nv_bfloat16*)",
        "void tensorrt_llm::kernels::ar_fusion::allreduce_fusion_kernel_oneshot_lamport<1>",
        *("nvshmemi_transfer_rma", "mscclKernel_Sum_half_LL", "userbuffers_fp16_sum_inplace_gpu_rr<8>"),
        *("kuserbuffers_pushsend(int*, int*)", "allToAllV_2d(void*, void*)", "hcom_allReduce__428_0_1"),
        "void flashinfer::trtllm_allreduce_fusion::allreduce_fusion_kernel_oneshot_lamport<1, __half>",
        "void quickreduce::allreduce_prototype_twoshot<AllReduceTwoshot<__half>, __half>",
    )
    assert [name for name in kernels if not is_collective_kernel(name)] == []
    others = (
        *("void accl_like", "volta_sgemm_nn", "Memcpy HtoD", "cclean", "void multi_tensor_apply_kernel<…>"),
        *("void deep_ep::layout::get_dispatch_layout<256>", "void at::native::reduce_kernel<512, 1>"),
        *("void vllm::reshape_and_cache_kernel", "triton_red_fused_all_reduced_sum_0", "aten::reduce"),
    )
    assert [name for name in others if is_collective_kernel(name)] == []


@pytest.mark.skipif(SHARED is None, reason="shared/traces lies beside the checkout on some machines alone")
@pytest.mark.parametrize(
    ("name", "kernels", "rank"),
    [
        ("resnet50_num_workers_0.pt.trace.json.gz", 8772, None),
        ("nccl_2ranks_rank0.json.gz", 2700, 0),
        ("recsys_8ranks_rank3.json.gz", 8568, 3),
        ("mi300_owlv2.json.gz", 4255, None),
        ("mi210_gpu_only.json.gz", 562, None),
        ("cpu_only_300ranks_rank34.json.gz", 0, 34),
    ],
)
def test_the_column_of_real_traces_are_those_of_json(name: str, kernels: int, rank: int | None) -> None:
    path = shared_trace(name)
    trace = read_kineto(path)
    assert trace.problems == []
    assert trace.rank == rank
    assert int((trace.kinds == Kind.KERNEL).sum()) == kernels
    plain = json.loads(gzip.decompress(path.read_bytes()), strict=False)
    slow = [event for event in plain["traceEvents"] if event["ph"] in "Xi"]
    assert [trace.names[name] for name in trace.events.name.tolist()] == [event["name"] for event in slow]
    starts = [round(event["ts"] * 1000) for event in slow]
    error = trace.events.start_ns - (trace.base_ns or 0) - starts
    assert abs(error).max() <= 1  # json's product in float64 rounds once more
    assert trace.events.correlation.tolist() == [
        event.get("args", {}).get("correlation", -1) for event in slow
    ]
