"""The critical path against two judges that know nothing of it.

A simulated device, where what is on the path shows by making it longer; and a slow walk by the definition,
on what SQL reads of real traces from Perfetto's own importer.
"""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from iotrace.analysis.device.activity import Activity
from iotrace.analysis.device.critical_path import critical_path_of
from iotrace.analysis.device.stream_waits import Queues
from iotrace.sources.kineto.reader import read_kineto
from tests.support.kineto import activity_of
from tests.support.path_oracle import Oracle
from tests.support.simulated_device import CLEAR_US, Item, on_the_path, program, run
from tests.support.traces import SHARED

_H100 = Path(__file__).parents[1] / "data" / "h100"
_SMALL = ("nccl_2ranks_rank0.json.gz", "mi210_gpu_only.json.gz")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """``--traces DIR``: every trace in DIR; else those at hand that are small."""
    if "source" not in metafunc.fixturenames:
        return
    given = metafunc.config.getoption("--traces")
    if given is not None:
        traces = sorted(path for path in Path(given).iterdir() if path.name.endswith(".json.gz"))
    else:
        traces = sorted(_H100.glob("*.json.gz"))
        traces += [] if SHARED is None else [SHARED / name for name in _SMALL]
    metafunc.parametrize("source", traces, ids=[path.name for path in traces])


def parts_of(items: list[Item]) -> dict[str, float]:
    found = critical_path_of([Queues(activity_of(*run(items).events))])
    assert found is not None
    assert sum(found.by_kind_us.values()) == pytest.approx(found.span_us)
    own = [one for one in found.parts if one.kind in ("operator", "runtime", "kernel")]
    return {one.name: one.us for one in own if not one.name.startswith("cuda")}


def clear_programs(count: int) -> list[list[Item]]:
    """Programs in which what came last was clearly later than all else: else two paths are as long."""
    chosen = random.Random(18)
    found = []
    while len(found) < count:
        items = program(chosen)
        if run(items).margin_us > CLEAR_US:
            found.append(items)
    return found


def test_what_is_on_the_path_makes_a_step_longer_and_nothing_else_does() -> None:
    several = 0
    for items in clear_programs(60):
        expected = on_the_path(items)
        assert parts_of(items) == pytest.approx(expected, abs=0.01)
        several += len({item.stream for at, item in enumerate(items) if f"kernel{at}" in expected}) > 1
    assert several > 5  # went from stream to stream


@pytest.mark.parametrize("told", [True, False])
def test_a_walk_by_the_definition_says_the_same_of_simulated_devices(tmp_path: Path, told: bool) -> None:
    chosen = random.Random(19)
    waits = 0
    for _ in range(3):
        events = run(program(chosen, 250), told).events
        path = tmp_path / "trace.json"
        path.write_text(json.dumps({"traceEvents": events, "baseTimeNanoseconds": 0}))
        waits += same(path)
    assert waits > 10


@pytest.mark.timeout(600)
def test_a_walk_by_the_definition_says_the_same_of_real_traces(tmp_path: Path, source: Path) -> None:
    trace = tmp_path / source.name
    trace.write_bytes(source.read_bytes())
    same(trace)


def same(trace: Path) -> int:
    """Compare the kinds and the waits between streams; returns how many of these there are."""
    oracle = Oracle(trace)
    found = critical_path_of([Queues(Activity(read_kineto(trace)))])
    if found is None:
        assert not oracle.work
        return 0
    told, inferred = found.stream_waits_measured, found.stream_waits_inferred
    assert (told, told + inferred) == (len(oracle.told), sum(one.other is not None for one in oracle.work))
    kinds = {kind: us for kind, us in found.by_kind_us.items() if us}
    assert kinds == pytest.approx(oracle.by_kind(), abs=1 + 1e-4 * found.span_us)
    return told + inferred
