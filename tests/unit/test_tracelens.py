"""Figures of TraceLens: those that its repository keeps of a trace of an MI300X, beside ours.

From AMD-AGI/TraceLens, tests/traces/mi300/google_owlv2-large-patch14-ensemble__1016001_perf_report_csvs:
ops_summary.csv (b37af485), GEMM.csv (061493f6), CONV_fwd.csv (030917b5). The package of that name on PyPI is
another program.
"""

from __future__ import annotations

from functools import cache

import pytest

from iotrace.analysis.results import Accelerator
from iotrace.analysis.traces import analyse_traces
from iotrace.sources.kineto.reader import read_kineto
from tests.support.traces import SHARED, shared_trace

pytestmark = pytest.mark.skipif(SHARED is None, reason="needs the traces that others recorded")

# Time of the kernels that an operator launched itself, in ms, and its calls that launched any.
_OPERATORS = {
    "aten::_softmax": (153.9931279296875, 180),
    "aten::bmm": (96.30396875, 365),
    "aten::addmm": (42.7096875, 1125),
    "aten::copy_": (14.1894033203125, 830),
    "aten::mul": (9.336943359375, 555),
    "aten::native_layer_norm": (5.85273681640625, 385),
    "aten::sigmoid": (3.83720947265625, 185),
    "aten::add": (3.69348486328125, 515),
    "aten::miopen_convolution": (0.5178994140625, 5),
    "aten::gelu": (0.28940380859375, 20),
    "aten::mm": (0.14936767578125, 15),
    "aten::cat": (0.14913623046875, 5),
    "aten::index_select": (0.14355517578125, 15),
    "aten::div": (0.122943359375, 20),
    "aten::linalg_vector_norm": (0.1016123046875, 20),
    "aten::where": (0.0557626953125, 5),
    "aten::fill_": (0.0473359375, 10),
    "aten::masked_fill_": (0.04561572265625, 10),
    "aten::arange": (0.04557421875, 10),
    "aten::argmax": (0.0377626953125, 5),
    "aten::index": (0.03290966796875, 5),
    "aten::sub": (0.02565478515625, 5),
    "aten::exp": (0.02405029296875, 5),
    "aten::lt": (0.02376953125, 5),
    "aten::gt": (0.0235673828125, 5),
    "aten::add_": (0.02292822265625, 5),
    "aten::elu": (0.0219638671875, 5),
    "aten::eq": (0.02184521484375, 5),
}
# Products and the convolution: name, shapes, calls, GFLOP of a call, time in us, what else
# TraceLens counts: the bias of m x n, added.
_PRODUCTS = (
    ("aten::bmm", "16x5185x5185 16x5185x64", 120, 55.0588928, 55056.32958984375, 0),
    ("aten::bmm", "16x5185x64 16x64x5185", 120, 55.0588928, 40460.24951171875, 0),
    ("aten::addmm", "1024 5185x4096 4096x1024", 120, 43.50024192, 12190.58154296875, 5185 * 1024),
    ("aten::addmm", "1024 5185x1024 1024x1024", 480, 10.87904256, 15205.80078125, 5185 * 1024),
    ("aten::addmm", "768 5x768 768x768", 240, 0.00590208, 1649.7890625, 5 * 768),
    ("aten::convolution", "1x3x1008x1008 1024x3x14x14", 5, 6.242697216, 517.8994140625, 0),
)


@cache
def device() -> Accelerator:
    found = analyse_traces([read_kineto(shared_trace("mi300_owlv2.json.gz"))]).ranks[0].accelerator
    assert found is not None
    return found


def test_device_time_by_operator() -> None:
    """To what their float32 tells: seven digits."""
    ours = {one.name: one for one in device().operators if one.device_self_us}
    assert set(ours) == set(_OPERATORS)
    for name, (ms, calls) in _OPERATORS.items():
        assert ours[name].device_self_us == pytest.approx(1000 * ms, rel=1e-5, abs=1e-3 * calls), name
        assert ours[name].calls >= calls  # ours are all, with those that launched nothing


@pytest.mark.parametrize(("name", "shapes", "calls", "gflop", "us", "bias"), _PRODUCTS)
def test_operations(name: str, shapes: str, calls: int, gflop: float, us: float, bias: int) -> None:
    (one,) = (row for row in device().shapes if (row.name, _text(row.shapes)) == (name, shapes))
    assert one.flop_per_call == round(gflop * 1e9) - bias
    assert (one.calls, one.device_total_us) == (calls, pytest.approx(us, rel=1e-5))


def _text(shapes: list[list[int]]) -> str:
    return " ".join("x".join(map(str, shape)) for shape in shapes if shape)
