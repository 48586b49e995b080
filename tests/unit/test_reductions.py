"""The reductions of DistributedDataParallel: its own clock is read, and left as it was."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from time import monotonic_ns
from typing import Any

import pytest

from iotrace.agent import patching, training
from iotrace.agent.phases import reductions
from iotrace.agent.recording.recorder import Recorder
from iotrace.session.names import KIND_REDUCTION, SPAN_FIELDS

torch = pytest.importorskip("torch")
distributed = pytest.importorskip("torch.nn.parallel.distributed")


@pytest.fixture
def recorder(tmp_path: Path) -> Iterator[Recorder]:
    store = torch.distributed.FileStore(str(tmp_path / "store"), 1)
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    made = Recorder(str(tmp_path))
    made.directory = str(tmp_path)
    made._stop = object()  # as if the writer ran
    training.hook_autograd(torch.autograd, made)
    reductions.hook_ddp(distributed, made)
    reductions.hook_calls(torch.distributed.distributed_c10d, made)
    yield made
    patching.undo_all()
    torch.distributed.destroy_process_group()
    assert not list(tmp_path.glob("*.log"))


def reduced(recorder: Recorder) -> list[dict[str, Any]]:
    rows = [dict(zip(SPAN_FIELDS, span, strict=True)) for span in recorder.spans]
    return [row for row in rows if row["kind"] == KIND_REDUCTION]


def train(model: Any, steps: int) -> None:
    for _ in range(steps):
        model(torch.ones(2, 4)).sum().backward()


def test_each_reduction_is_a_span_of_its_backward_pass(recorder: Recorder, monkeypatch: Any) -> None:
    monkeypatch.setattr(reductions, "_MOST_COST", 0)  # the steps of this test are short
    begun = monotonic_ns()
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1))
    train(model, 14)
    with model.no_sync():
        train(model, 3)
    train(model, 1)
    rows = reduced(recorder)
    # Nothing is known of the first, of the last yet, and of those without a reduction.
    assert len(rows) == 13
    ends = [row["start_ns"] + row["duration_ns"] for row in rows]
    assert begun < rows[0]["start_ns"]
    assert ends == sorted(ends)
    assert ends[-1] < monotonic_ns()
    assert {row["tid"] for row in rows} == {threading.get_native_id()}


def test_short_steps_are_not_asked_for_long(recorder: Recorder, monkeypatch: Any) -> None:
    monkeypatch.setattr(reductions, "_MOST_COST", 10**9)
    train(torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1)), 30)
    assert len(reduced(recorder)) < 10
    assert reductions._asked is None


def test_collectives_that_a_program_waits_for_are_spans(recorder: Recorder, monkeypatch: Any) -> None:
    monkeypatch.setattr(type(recorder), "running", True)
    module = torch.distributed.distributed_c10d
    module.all_reduce(torch.ones(2))
    module.barrier()
    module.all_reduce(torch.ones(2), async_op=True).wait()
    texts = {number: text for text, number in recorder._texts.items()}
    assert [texts[row["name"]] for row in reduced(recorder)] == ["all_reduce", "barrier", "wait"]


def test_a_module_that_the_program_times_itself_is_left_to_it(recorder: Recorder, monkeypatch: Any) -> None:
    monkeypatch.setattr(reductions, "_MOST_COST", 0)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1))
    model._set_ddp_runtime_logging_sample_rate(1000)
    train(model, 14)
    rates: list[int] = []
    asked = reductions._asked
    assert asked is not None
    monkeypatch.setattr(
        type(model.reducer), "_set_ddp_runtime_logging_sample_rate", lambda _, rate: rates.append(rate)
    )
    patching.undo_all()
    assert rates == []
    assert reduced(recorder) == []
