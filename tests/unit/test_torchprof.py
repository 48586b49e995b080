"""The settings of torch's profiler, and the steps that a window takes out of the figures."""

from __future__ import annotations

import gzip
import sys
from pathlib import Path
from threading import get_ident
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from iotrace.agent import training
from iotrace.agent.torch_profiler import profiler, window
from iotrace.agent.torch_profiler.profiler import _compress
from iotrace.agent.torch_profiler.window import WindowSchedule
from iotrace.analysis.loop.deliveries import Delivery
from iotrace.analysis.loop.measured import measured, untrained, with_warm_up
from iotrace.analysis.loop.step_table import Step, StepTable
from iotrace.errors import LaunchError
from iotrace.launch import traced_run
from iotrace.session.identity import nodes
from iotrace.session.names import decode_settings, encode_settings
from iotrace.sources.records import TorchWindow
from tests.support.tables import steps_of


def test_settings_reach_the_agent_whole() -> None:
    found = traced_run.settings("3:2:4", "shapes,stacks", "cpu")
    schedule = WindowSchedule(decode_settings(encode_settings(found)))
    assert (schedule.on, schedule.wait, schedule.warmup, schedule.active, schedule.repeat) == (
        True,
        3,
        2,
        4,
        1,
    )
    assert (schedule.options, schedule.activities) == ({"shapes", "stacks"}, "cpu")
    assert not WindowSchedule(traced_run.settings("off", "", "all")).on
    assert not WindowSchedule({}).on


@pytest.mark.parametrize(
    ("variables", "count"),
    [
        ({}, 1),
        ({"WORLD_SIZE": "8", "LOCAL_WORLD_SIZE": "8"}, 1),
        ({"WORLD_SIZE": "8", "LOCAL_WORLD_SIZE": "4"}, 2),
        ({"PMI_SIZE": "24", "PMI_LOCAL_SIZE": "12"}, 2),
        ({"OMPI_COMM_WORLD_SIZE": "9", "OMPI_COMM_WORLD_LOCAL_SIZE": "4"}, 3),
        ({"SLURM_NNODES": "4"}, 4),
        ({"WORLD_SIZE": "8"}, 1),  # nothing tells where they are
        ({"WORLD_SIZE": "8", "LOCAL_WORLD_SIZE": "0"}, 1),
    ],
)
def test_nodes_of_a_job(variables: dict[str, str], count: int) -> None:
    assert nodes(variables) == count


@pytest.mark.parametrize(
    ("activities", "device", "initialized", "nodes", "spares"),
    [
        ("auto", "xpu", True, "2", True),
        ("auto", "xpu", True, "1", False),
        ("auto", "xpu", False, "2", False),  # nobody communicates
        ("auto", "cuda", True, "2", False),
        ("all", "xpu", True, "2", False),
        ("cpu", "xpu", True, "2", False),
    ],
)
def test_intels_devices_are_spared_where_ranks_on_several_nodes_communicate(
    monkeypatch: pytest.MonkeyPatch,
    activities: str,
    device: str,
    initialized: bool,
    nodes: str,
    spares: bool,
) -> None:
    """PTI is known to hang there; of what the profiler is made here is torch's own."""
    used: dict[str, Any] = {}
    of_ranks = SimpleNamespace(is_available=lambda: True, is_initialized=lambda: initialized)
    torch = SimpleNamespace(
        distributed=of_ranks,
        autograd=SimpleNamespace(profiler=SimpleNamespace(profile=lambda **given: used.update(given))),
        _C=SimpleNamespace(_profiler=SimpleNamespace(_ExperimentalConfig=lambda **_: SimpleNamespace())),
    )
    monkeypatch.setitem(sys.modules, "torch", torch)
    monkeypatch.setattr(profiler, "_device", lambda _: device)
    monkeypatch.setenv("PALS_NNODES", nodes)
    made = profiler.TorchProfiler(set(), activities)
    assert made.spares_device is spares
    assert used["use_device"] == (None if spares or activities == "cpu" else device)


@pytest.mark.parametrize(
    ("steps", "options", "activities", "named"),
    [
        ("", "", "all", "WAIT:WARMUP:ACTIVE"),
        ("1:2", "", "all", "WAIT:WARMUP:ACTIVE"),
        ("1:2:x", "", "all", "WAIT:WARMUP:ACTIVE"),
        ("1:2:-3", "", "all", "WAIT:WARMUP:ACTIVE"),
        ("1:2:0", "", "all", "ACTIVE has to be 1"),
        ("1:2:3:0", "", "all", "REPEAT has to be 1"),
        ("1:2:3", "shape", "all", "'shape'"),
        ("1:2:3", "", "gpu", "'gpu'"),
    ],
)
def test_a_mistake_gets_a_sentence(steps: str, options: str, activities: str, named: str) -> None:
    with pytest.raises(LaunchError, match=named) as caught:
        traced_run.settings(steps, options, activities)
    assert caught.value.exit_code == 125
    assert caught.value.remedy


def _steps(count: int) -> StepTable:
    made = [Delivery(0, index, 0, 0, index, 0, 10 * index) for index in range(count)]
    return steps_of(Step(each, each.delivered_ns, each.delivered_ns + 10) for each in made)


def test_profiled_steps_are_left_out_and_counted() -> None:
    steps = _steps(10)
    kept, excluded = measured(steps, 0, [(31, 60)])
    assert [step.delivery.index for step in kept] == [1, 2, 6, 7, 8, 9]
    assert (excluded.first, excluded.profiled) == (1, 3)
    # A window whose end is not known lasts to the end of the run.
    kept, excluded = measured(steps, 0, [(31, None)])
    assert [step.delivery.index for step in kept] == [1, 2]
    assert excluded.profiled == 7


def test_steps_that_the_program_profiled_are_left_out_unless_these_are_all() -> None:
    steps = _steps(10)
    kept, excluded = measured(steps, 0, [(21, 25)], [(41, 60), (65, 66)])
    assert [step.delivery.index for step in kept] == [1, 3, 7, 8, 9]
    assert (excluded.first, excluded.profiled) == (1, 4)
    kept, excluded = measured(steps, 0, [(21, 25)], [(0, 200)])
    assert [step.delivery.index for step in kept] == [1, 3, 4, 5, 6, 7, 8, 9]
    assert excluded.profiled == 1


def test_a_trace_of_the_program_begins_with_its_own_warm_up() -> None:
    # The first profiler was never exported; nothing is known of the last one's preparation.
    found = with_warm_up([(50, 60), (90, 99), (100, 110)], [10, 40, 55, 80])
    assert found == [(40, 60), (80, 99), (100, 110)]
    assert with_warm_up([(50, 60)], []) == [(50, 60)]


def test_a_trace_that_was_cut_is_refused(tmp_path: Path) -> None:
    source, target = tmp_path / "plain", tmp_path / "packed"
    source.write_text('{"traceEvents": [{}]}\n')
    assert _compress(str(source), str(target)) == target.stat().st_size
    assert gzip.decompress(target.read_bytes()) == source.read_bytes()
    source.write_text('{"traceEvents": [{')
    with pytest.raises(OSError, match="whole"):
        _compress(str(source), str(target))


class _Opened(window.Window):
    """A window that profiles nothing."""

    def _prepare(self) -> None: ...
    def _start(self) -> None: ...
    def _mark_step(self) -> None: ...


def test_a_window_that_warmed_up_opens_on_a_loader_that_trains(monkeypatch: pytest.MonkeyPatch) -> None:
    """The loaders are made anew for each pass; validation asks for its batch before it disables gradients."""
    monkeypatch.setattr(window, "_kineto_thread", get_ident())
    monkeypatch.setattr(training, "threads", {get_ident(): 0})
    monkeypatch.setattr(training, "backward_count", 0)
    recorder: Any = SimpleNamespace(records=[])
    found = traced_run.settings("4:2:2:1", "", "all")
    one = _Opened(recorder, WindowSchedule(decode_settings(encode_settings(found))))

    def passed(number: int, batches: int, trains: bool) -> list[tuple[str, int | None]]:
        loader = SimpleNamespace(number=number, delivered=0, trains=False, backward_count=-1)
        iterator = type("Iterator", (), {})()
        iterator.loader, iterator.number, iterator.generation = loader, number, 0
        phases = []
        for _ in range(batches):
            one.delivered(iterator, True)
            training.backward_count += trains
            phases.append((one.phase, None if one._loader is None else one._loader.number))
        return phases

    waiting, warm = (window.WAITING, None), (window.WARMUP, 0)
    assert passed(0, 5, True) == [waiting] * 4 + [warm]
    assert passed(1, 5, False) == [warm] * 5
    ready = (window.WARMUP, 2)
    assert passed(2, 4, True) == [warm, ready, ready, (window.ACTIVE, 2)]


@pytest.mark.parametrize("items", [1, 16])
def test_a_window_counts_steps_that_train_not_the_items_of_one(
    monkeypatch: pytest.MonkeyPatch, items: int
) -> None:
    """The loop takes a pool's samples one by one, and trains on several: the window still holds its steps."""
    monkeypatch.setattr(window, "_kineto_thread", get_ident())
    monkeypatch.setattr(training, "threads", {get_ident(): 0})
    monkeypatch.setattr(training, "backward_count", 0)
    finished: list[int] = []
    recorder: Any = SimpleNamespace(records=[])
    one = _Opened(
        recorder, WindowSchedule(decode_settings(encode_settings(traced_run.settings("4:2:3:1", "", "all"))))
    )
    monkeypatch.setattr(one, "_finish", lambda _: finished.append(training.backward_count))
    loader = SimpleNamespace(number=0, delivered=0, trains=False, backward_count=-1)
    iterator = type("Iterator", (), {})()
    iterator.loader, iterator.number, iterator.generation = loader, 0, 0
    phases = []
    for _ in range(10):
        for _ in range(items):
            one.delivered(iterator, True)
        phases.append(one.phase)
        training.backward_count += 1
    assert phases[:7] == [window.WAITING] * 4 + [window.WARMUP] * 2 + [window.ACTIVE]
    assert finished[0] == 9  # three steps later
    for _ in range(2000):  # it trains no more, and goes on taking items
        one.delivered(iterator, True)
    assert len(finished) > 1


@pytest.mark.parametrize(
    ("trained_at", "named"), [([5, 45], set()), ([5, 35], {"torch-0.json.gz"}), ([], set())]
)
def test_a_trace_in_which_nothing_trained_is_told_apart(trained_at: list[int], named: set[str]) -> None:
    """Where nothing trains at all, as in inference, the trace is of the loop's steps."""
    rounds = np.array([(at,) for at in trained_at], dtype=[("mono_ns", np.int64)])
    events = [("active", 40, ""), ("end", 50, ""), ("exported", 51, "torch-0.json.gz")]
    records = [TorchWindow(0, event, at, 1, path) for event, at, path in events]
    process: Any = SimpleNamespace(rows=lambda _: rounds, of_type=lambda _: records)
    assert untrained(process) == named
