"""Profiles of JAX and TensorFlow: what is read of real ones against Google's protobuf, and made-up devices.

`data/xplane` holds what jax 0.10.2 and tensorflow 2.21.0 wrote of four steps on CPUs.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from iotrace.analysis.traces import analyse_traces
from iotrace.errors import TraceError
from iotrace.merge.input_files import expand
from iotrace.merge.run import merge
from iotrace.sources.byte_stream import blocks
from iotrace.sources.kineto.reader import read_kineto
from tests.support import perfetto
from tests.support.xplane import Maker, XSpace

DATA = Path(__file__).parent.parent / "data" / "xplane"
REAL = sorted(DATA.glob("*.xplane.pb"))
STARTED_NS = 1_795_675_088_437_800_332


def _document(path: Path) -> tuple[dict[str, Any], list[str]]:
    problems: list[str] = []
    return json.loads(b"".join(blocks(path, problems))), problems


def _ns(us: str | float) -> int:
    return round(float(us) * 1000)


@pytest.mark.parametrize("path", REAL, ids=lambda path: path.name)
def test_every_event_is_read_as_protobuf_reads_it(path: Path) -> None:
    """Names, starts and ends of all events of the host, by line."""
    space = XSpace.FromString(path.read_bytes())
    expected: Counter[tuple[str, int, int]] = Counter()
    for plane in space.planes:
        names = {entry.key: entry.value.display_name or entry.value.name for entry in plane.event_metadata}
        for line in plane.lines:
            for event in line.events:
                start = line.timestamp_ns + event.offset_ps // 1000
                end = line.timestamp_ns + (event.offset_ps + event.duration_ps) // 1000
                expected[names[event.metadata_id], start, end] += 1
    document, problems = _document(path)
    found: Counter[tuple[str, int, int]] = Counter()
    for event in document["traceEvents"]:
        if event["ph"] == "M":
            continue
        name, start = event["name"], _ns(event["ts"])
        if name.startswith("ProfilerStep#"):
            name = event["args"]["name"]
        found[name, start, start + _ns(event.get("dur", 0))] += 1
    frames = {key for key in expected if key[0].startswith("$")}
    assert not problems
    assert found.total() == expected.total() > 200
    assert {key: count for key, count in expected.items() if key not in frames}.items() <= found.items()
    assert Counter((s, e) for _, s, e in found) == Counter((s, e) for _, s, e in expected)


def test_jax_gives_steps_frames_and_operations() -> None:
    """A step is a StepTraceAnnotation, ``$file:line function`` a frame of Python; its date is known."""
    document, _ = _document(DATA / "jax_cpu.xplane.pb")
    names = {event["name"]: event.get("cat") for event in document["traceEvents"]}
    steps = [event for event in document["traceEvents"] if event["name"].startswith("ProfilerStep#")]
    assert [event["args"] for event in steps] == [{"name": "train", "step_num": n} for n in range(4)]
    assert names["load_batch"] == "user_annotation"
    assert any(cat == "python_function" and ".py(" in name for name, cat in names.items())
    operators = [event for event in document["traceEvents"] if event.get("cat") == "cpu_op"]
    assert operators
    assert all("hlo_op" in event["args"] for event in operators)
    trace = read_kineto(DATA / "jax_cpu.xplane.pb")
    assert trace.base_ns is not None
    assert trace.base_ns > 1_795_000_000 * 10**9


def test_the_report_of_jax_on_a_cpu_says_that_no_accelerator_was_seen() -> None:
    report = analyse_traces([read_kineto(DATA / "jax_cpu.xplane.pb")])
    assert "no wait for a DataLoader was recorded, and nothing of an accelerator" in report.verdict.text
    assert report.ranks[0].steps.count == 4
    assert report.ranks[0].accelerator is None


def test_the_report_of_tensorflow_counts_waits_for_tf_data() -> None:
    """The waits are what ``IteratorGetNextOp::DoCompute`` took in the steps."""
    path = DATA / "tensorflow_cpu.xplane.pb"
    document, _ = _document(path)
    waits = [event["dur"] for event in document["traceEvents"] if "IteratorGetNextOp" in event["name"]]
    (rank,) = analyse_traces([read_kineto(path)]).ranks
    assert rank.steps.count == 4
    assert rank.data_wait.raw_ms == pytest.approx(sum(waits) / 4 / 1000)
    assert rank.data_wait.exposed_source == "cpu"


def _of_gpu(path: Path) -> Path:
    """Three steps of one launch, one kernel of 300 us, and a copy of 4 MiB, as XLA's collector writes."""
    made = Maker(STARTED_NS)
    host = made.plane("/host:CPU", process_id=4711)
    thread = host.lines.add(id=8_550_860_987_168_317_483, name="python")
    calls = made.plane("/host:CUPTI")
    called = calls.lines.add(id=8_550_860_987_168_317_483, name="Host Threads/1")
    about = {"gpu_device_name": "NVIDIA A100-SXM4-80GB", "core_count": 108, "memory_size": 85 << 30}
    device = made.plane("/device:GPU:0", **about)
    stream = device.lines.add(id=13, name="Stream #13(MemcpyH2D,Compute)")
    derived = device.lines.add(id=1 << 40, name="XLA Modules")
    for number in range(3):
        at = number * 1_000_000
        made.event(host, thread, "train", at, 900_000, step_num=number, _r=1)
        made.event(calls, called, "cuLaunchKernel", at + 100_000, 5_000, correlation_id=10 + number)
        copy = "kind_src:pageable kind_dst:device size:4194304 dest:0 async:1"
        made.event(device, stream, "MemcpyH2D", at + 20_000, 80_000, memcpy_details=copy, correlation_id=20)
        kernel = "regs:32 static_shared:0 dynamic_shared:0 grid:8,1,1 block:256,1,1 occ_pct:50"
        details = {"kernel_details": kernel, "correlation_id": 10 + number, "hlo_op": "fusion.1"}
        made.event(device, stream, "loop_fusion", at + 200_000, 300_000, **details)
        made.event(device, derived, "jit_step", at + 20_000, 480_000)
    path.write_bytes(made.written())
    return path


def test_a_stream_of_a_gpu_gives_kernels_and_copies(tmp_path: Path) -> None:
    path = _of_gpu(tmp_path / "a.xplane.pb")
    trace = read_kineto(path)
    report = analyse_traces([trace])
    found = report.ranks[0].accelerator
    assert found is not None
    assert [gpu.name for gpu in report.ranks[0].system.gpus] == ["NVIDIA A100-SXM4-80GB"]
    assert (found.compute_us, found.memory_us, found.busy_us) == (900.0, 240.0, 1140.0)
    copies = {(one.direction, one.pinned, one.calls) for one in found.memory_operations}
    assert copies == {("HtoD", False, 3)}
    assert trace.base_ns == STARTED_NS
    assert report.ranks[0].host == "node1"


def test_a_launch_is_joined_to_its_kernel_and_lies_in_its_thread(tmp_path: Path) -> None:
    document, _ = _document(_of_gpu(tmp_path / "a.xplane.pb"))
    events = document["traceEvents"]
    launch = next(event for event in events if event["name"] == "cuLaunchKernel")
    kernel = next(event for event in events if event["name"] == "loop_fusion")
    step = next(event for event in events if event["name"].startswith("ProfilerStep#"))
    assert launch["args"]["correlation"] == kernel["args"]["correlation"] == 10
    assert (launch["pid"], launch["tid"]) == (step["pid"], step["tid"])
    assert kernel["args"] == {
        "device": 0,
        "stream": 13,
        "correlation": 10,
        "hlo_op": "fusion.1",
        "grid": [8, 1, 1],
        "block": [256, 1, 1],
    }


def test_operations_of_a_tpu_are_its_work_and_rows_that_repeat_them_are_not(tmp_path: Path) -> None:
    made = Maker(STARTED_NS)
    device = made.plane("/device:TPU:0")
    for name in ("Steps", "XLA Modules", "XLA Ops", "Async XLA Ops"):
        line = device.lines.add(id=len(device.lines) + 1, name=name)
        made.event(device, line, "fusion.7", 1_000, 4_000)
    path = tmp_path / "t.xplane.pb"
    path.write_bytes(made.written())
    (rank,) = analyse_traces([read_kineto(path)]).ranks
    assert rank.accelerator is not None
    assert rank.accelerator.busy_us == 4.0
    assert sum(kernel.calls for kernel in rank.accelerator.kernels) == 1


def test_perfetto_reads_a_merge_of_a_profile_and_a_trace_of_torch(tmp_path: Path) -> None:
    """Both on one clock, since 1970, without an error of the importer; every slice is there."""
    torch = tmp_path / "a.pt.trace.json"
    base_ns = 1_795_000_000_000_000_000
    event = {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 9000, "tid": 9000, "dur": 50.0}
    real = DATA / "jax_cpu.xplane.pb"
    started_ns = read_kineto(real).base_ns
    assert started_ns is not None
    event["ts"] = (started_ns - base_ns) / 1000
    torch.write_text(json.dumps({"baseTimeNanoseconds": base_ns, "schemaVersion": 1, "traceEvents": [event]}))
    out = tmp_path / "m.pftrace"
    merge([str(torch), str(real)], out)
    document, _ = _document(real)
    slices = sum(event["ph"] == "X" for event in document["traceEvents"])
    (errors, counts, steps, first) = perfetto.query(
        out,
        perfetto.ERRORS,
        "select count() from slice where dur >= 0",
        "select count() from slice where name glob 'ProfilerStep#*'",
        """select (select min(ts) from slice where name = 'ProfilerStep#0')
           - (select ts from slice where name = 'aten::mm')""",
    )
    assert errors == []
    assert steps == [[4]]
    assert counts[0][0] >= slices + 1
    assert 0 < first[0][0] < 10**9


def test_a_directory_of_jax_gives_its_profile_once(tmp_path: Path) -> None:
    """JAX writes the same recording again beside it, as Chrome JSON."""
    (tmp_path / "vm.xplane.pb").write_bytes(REAL[0].read_bytes())
    (tmp_path / "vm.trace.json.gz").write_bytes(b"")
    assert [path.name for path, _ in expand([str(tmp_path)], [])] == ["vm.xplane.pb"]


def test_a_file_that_is_only_called_so_gets_a_sentence(tmp_path: Path) -> None:
    path = tmp_path / "a.xplane.pb"
    path.write_bytes(b"\x00\x01nothing")
    with pytest.raises(TraceError, match="holds no profile of JAX or TensorFlow"):
        read_kineto(path)


def test_json_that_begins_with_a_line_break_is_json(tmp_path: Path) -> None:
    """A line break is the tag of a plane, too."""
    path = tmp_path / "a.json"
    path.write_text('\n{"traceEvents": [{"ph": "X", "name": "a", "pid": 1, "tid": 1, "ts": 1, "dur": 2}]}')
    assert len(read_kineto(path).events) == 1


@pytest.mark.parametrize("share", [0.001, 0.3, 0.999])
def test_a_cut_file_says_so(share: float, tmp_path: Path) -> None:
    data = REAL[0].read_bytes()
    path = tmp_path / "a.xplane.pb"
    path.write_bytes(data[: max(40, int(len(data) * share))])
    document, problems = _document(path)
    assert isinstance(document["traceEvents"], list)
    assert [problem.partition(" near byte ")[0] for problem in problems] == ["it is damaged or cut"]


def test_damage_never_raises(tmp_path: Path) -> None:
    """Bytes changed at random: JSON all the same, and never more events than there were bytes for."""
    data = REAL[-1].read_bytes()
    chance = random.Random(7)
    path = tmp_path / "a.xplane.pb"
    for _ in range(60):
        damaged = bytearray(data)
        for _ in range(chance.choice((1, 8, 200))):
            damaged[chance.randrange(16, len(damaged))] = chance.randrange(256)
        path.write_bytes(damaged)
        document, _ = _document(path)
        assert len(document["traceEvents"]) < len(data)


def test_a_profile_without_anything_says_what_was_not_recorded(tmp_path: Path) -> None:
    """As a real trace of torch that a thread recorded in which nothing ran."""
    path = tmp_path / "a.xplane.pb"
    path.write_bytes(Maker(STARTED_NS).written())
    report = analyse_traces([read_kineto(path)])
    assert "it holds no step, no operator and no kernel that iotrace knows" in report.verdict.text
    assert report.verdict.fixes == []
