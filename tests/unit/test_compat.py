"""Our arithmetic with the quirks of TensorBoard's plugin and of HTA: the figures that those tools print."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

import pytest

from iotrace.analysis.compat.hta import holistic
from iotrace.analysis.compat.tb import tensorboard
from iotrace.sources.kineto.reader import read_kineto
from iotrace.sources.kineto.trace import KinetoTrace
from tests.support.kineto import kernel, operator, trace_of
from tests.support.traces import SHARED, shared_trace

_ROLES = {
    "Kernel": "kernel",
    "Memcpy": "memcpy",
    "Memset": "memset",
    "Communication": "communication",
    "Runtime": "runtime",
    "DataLoader": "dataloader",
    "CpuOp": "cpu_op",
    "Other": "other",
}

needs_traces = pytest.mark.skipif(
    SHARED is None, reason="shared/traces lies beside the checkout on some machines alone"
)
REFERENCE = json.loads((SHARED / "reference.json").read_bytes()) if SHARED else {}


def test_a_trace_without_host_has_no_steps() -> None:
    assert tensorboard(trace_of(kernel(0, 100))) is None


def test_what_is_shorter_than_a_microsecond_has_no_shares() -> None:
    collective = trace_of(kernel(10, 10, name="ncclDevKernel_AllReduce"))
    found = holistic(collective)
    assert found is not None
    assert (found.span_us, found.idle_pct, found.comm_comp_overlap_pct) == (0, None, None)
    at_once = tensorboard(trace_of(operator("aten::mm", 10, 10), kernel(10, 10)))
    assert at_once is not None
    assert at_once.gpu_utilization == {0: None}


@cache
def trace(name: str) -> KinetoTrace:
    return read_kineto(shared_trace(name))


@needs_traces
@pytest.mark.parametrize("name", [name for name, said in REFERENCE.items() if "tb" in said])
def test_tensorboard_says_the_same(name: str) -> None:
    said = REFERENCE[name]["tb"]
    found = tensorboard(trace(name))
    assert found is not None
    assert [str(step) for step in found.steps] == said["steps"]
    # It prints one decimal.
    assert {label: round(found.mean_us[role], 1) for label, role in _ROLES.items()} == {
        label: said[label] for label in _ROLES
    }
    assert round(found.total_us, 1) == said["Total"]
    assert [round(share, 5) for share in found.gpu_utilization.values()] == [said["gpu_utilization"]]


@needs_traces
@pytest.mark.parametrize("name", [name for name, said in REFERENCE.items() if "hta" in said])
def test_hta_says_the_same(name: str) -> None:
    said = REFERENCE[name]["hta"]
    found = holistic(trace(name))
    assert found is not None
    for label, figure in said.items():
        if label.startswith("stream"):
            stream, _, kind = label.removeprefix("stream").partition("_")
            assert getattr(found, kind)[int(stream)] == figure, label
        else:
            assert getattr(found, label) == figure, label


@pytest.mark.parametrize(
    ("first_us", "begins_with_metadata", "host_wait_us"),
    [(900, False, 630), (1250, False, 810), (1650, False, 870), (1250, True, 630)],
)
def test_hta_takes_the_first_event_for_a_launch_that_precedes_the_trace(
    tmp_path: Path, first_us: int, begins_with_metadata: bool, host_wait_us: int
) -> None:
    """The answers are HolisticTraceAnalysis 0.5.0's."""
    metadata = {"ph": "M", "name": "process_name", "pid": 1, "tid": 0, "ts": 0, "args": {"name": "python"}}
    events = [metadata] * begins_with_metadata
    events.append(operator("aten::zero", first_us, first_us + 5))
    for start in range(1000, 1500, 100):
        events += kernel(start, start + 40)
    for start in range(1700, 2660, 120):
        events += reversed(kernel(start + 20, start + 90, launched=start))
    path = tmp_path / "trace.json"
    path.write_text(json.dumps({"traceEvents": events}))
    found = holistic(read_kineto(path))
    assert found is not None
    assert (found.idle_us, found.span_us, found.compute_us) == (870, 1630, 760)
    assert (found.host_wait_us, found.other_us) == ({7: host_wait_us}, {7: 870 - host_wait_us})
