"""Speed, trainer's time and model: arithmetic on made-up columns, hooks on classes of the same shape."""

from __future__ import annotations

import re
import sys
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from iotrace.agent import lightning, patching, training
from iotrace.agent.phases.model_table import ModelTable
from iotrace.agent.recording.recorder import Recorder
from iotrace.agent.torch_profiler import cuda_snapshot, foreign_profilers, window
from iotrace.analysis.program import trainer
from iotrace.session import names
from iotrace.sources import records
from iotrace.sources.processes import SPAN_DTYPE


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("run_training_batch", ("loop", "", "run_training_batch")),
        ("[Strategy]DDPStrategy.training_step", ("strategy", "DDPStrategy", "training_step")),
        (
            "[_TrainingEpochLoop].train_dataloader_next",
            ("loop", "TrainingEpochLoop", "train_dataloader_next"),
        ),
        (
            "[Callback]ModelCheckpoint{'monitor': 'a.b', 'mode': 'min'}.on_train_end",
            ("callback", "ModelCheckpoint", "on_train_end"),
        ),
        ("[LightningDataModule]Data.prepare_data", ("data module", "Data", "prepare_data")),
        ("no.brackets", ("loop", "", "no.brackets")),
        ("", ("loop", "", "")),
    ],
)
def test_a_range_says_what_it_is_of(name: str, parts: tuple[str, str, str]) -> None:
    assert trainer.parts_of(name) == parts


def test_a_range_is_charged_what_no_range_inside_it_took() -> None:
    # Start, duration, thread: a range with two inside, one of which has a third; another thread's beside.
    rows = [(0, 100, 1), (10, 20, 1), (40, 50, 1), (50, 30, 1), (5, 80, 2), (100, 7, 1)]
    spans = np.zeros(len(rows), SPAN_DTYPE)
    spans["start_ns"], spans["duration_ns"], spans["tid"] = np.array(rows).T
    assert trainer._self_ns(spans).tolist() == [30, 20, 20, 30, 80, 7]


def _row(name: str, kind: str, **known: Any) -> records.ModuleRow:
    held = {"parameters": 0, "trainable": 0, "size_bytes": 0}
    return records.ModuleRow(name, kind, **{**held, **known})


def test_a_layer_counts_what_lies_in_it() -> None:
    record = records.Model(
        root="Net",
        modules=[
            _row("", "Net"),
            _row("a", "Sequential"),
            _row("a.0", "Linear", calls=2, returned=[[4, 3, 10]], parameters=60, weight=50, trainable=0),
            _row(
                "ab", "Conv2d", calls=1, given=[[2, 3, 8, 8]], returned=[[2, 5, 6, 6]], parameters=9, weight=9
            ),
            _row("c", "ConvTranspose1d", calls=1, given=[[2, 3, 4]], returned=[[2, 5, 9]], weight=7),
            _row("d", "LazyLinear", parameters=None),
        ],
    )
    (found,) = trainer.models_of(SimpleNamespace(of_type=lambda _: [record]))  # type: ignore[arg-type]
    by_name = {layer.name: layer for layer in found.layers}
    assert by_name["a"].parameters == 60  # not that of `ab`
    assert by_name["a"].multiply_adds == 2 * 50 * 4 * 3
    assert by_name["ab"].multiply_adds == 9 * 2 * 6 * 6
    assert by_name["c"].multiply_adds == 7 * 2 * 4
    assert by_name["a.0"].depth == 2
    assert found.parameters is None  # a lazy layer's are not known
    assert found.multiply_adds == 1200 + 648 + 56


class _Base:
    """As Lightning's base class of profilers, with a profiler of the program's that keeps its own account."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    @contextmanager
    def profile(self, action_name: str) -> Any:
        self.seen.append(f"begin {action_name}")
        try:
            yield action_name
        finally:
            self.seen.append(f"end {action_name}")


@pytest.fixture
def recorder(tmp_path: Path) -> Any:
    (tmp_path / names.PROCESSES).mkdir()
    made = Recorder(str(tmp_path))
    made.open({"pid": 1})
    yield made
    patching.undo_all()


def test_ranges_are_recorded_and_the_programs_profiler_stays(recorder: Recorder) -> None:
    class Theirs(_Base):
        pass

    original = _Base.profile
    lightning.hook_profiler(SimpleNamespace(Profiler=_Base), recorder)
    theirs = Theirs()
    with theirs.profile("[Strategy]S.training_step") as entered, theirs.profile("inner"):
        assert entered == "[Strategy]S.training_step"
    with pytest.raises(ValueError, match=re.escape("the program's own")), theirs.profile("raises"):
        raise ValueError("the program's own")
    assert theirs.seen[:2] == ["begin [Strategy]S.training_step", "begin inner"]
    assert theirs.seen[-1] == "end raises"
    kinds = {span[7] for span in recorder.spans}
    assert (len(recorder.spans), kinds) == (3, {names.KIND_TRAINER})
    patching.undo_all()
    assert _Base.profile is original
    with theirs.profile("after"):
        pass
    assert len(recorder.spans) == 3


def test_no_thread_of_ours_runs_when_the_programs_profiler_begins(recorder: Recorder) -> None:
    """A profiler with stacks follows the threads that it finds."""
    recorder.start()
    writers: list[bool] = []
    holder = SimpleNamespace(_enable_profiler=lambda: writers.append(recorder._stop is not None))
    foreign_profilers._before(holder, "_enable_profiler", recorder, "torch's profiler")
    assert recorder._stop is not None
    holder._enable_profiler()
    assert writers == [False]
    assert recorder._stop is not None  # another thread, which it does not follow
    recorder.close()


def test_a_snapshot_that_the_program_wrote_is_noted(recorder: Recorder, tmp_path: Path) -> None:
    def _dump_snapshot(filename: str = "dump_snapshot.pickle") -> None:
        Path(filename).write_bytes(b"12345")

    module = SimpleNamespace(_dump_snapshot=_dump_snapshot)
    foreign_profilers.hook_snapshots(module, recorder)
    module._dump_snapshot(str(tmp_path / "s.pickle"))
    (noted,) = [row for row in recorder.records if isinstance(row, dict) and row["type"] == "memory_snapshot"]
    assert (noted["path"], noted["bytes"]) == (str(tmp_path / "s.pickle"), 5)


class Cuda:
    """torch.cuda, as far as a recording of memory asks."""

    def __init__(self, directory: Path, recorder: Recorder) -> None:
        self.used = False
        self.calls: list[str] = []
        self.memory = SimpleNamespace(_record_memory_history=self._record, _dump_snapshot=self._dump)
        foreign_profilers.hook_snapshots(self.memory, recorder)

    def is_initialized(self) -> bool:
        return self.used

    def _record(self, enabled: str | None = "all", **_: Any) -> None:
        self.calls.append(f"record {enabled}")

    def _dump(self, filename: str) -> None:
        self.calls.append("dump")
        Path(filename).write_bytes(b"12345")


@pytest.fixture
def snapshot(recorder: Recorder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A recording of two steps after one, and the device that it records."""
    cuda = Cuda(tmp_path, recorder)
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda))
    monkeypatch.setattr(training, "backward_count", 0)
    made = cuda_snapshot.CudaSnapshot(recorder, "1:2")
    holder = window.Window(recorder, window.WindowSchedule({}))
    holder.snapshot = made
    monkeypatch.setattr(window, "current", holder)

    def step() -> None:
        holder.delivered(SimpleNamespace(loader=None), True)
        training.backward_count += 1

    return SimpleNamespace(cuda=cuda, step=step, recording=made)


def events(recorder: Recorder, kind: str) -> list[dict[str, Any]]:
    return [row for row in recorder.records if isinstance(row, dict) and row["type"] == kind]


def test_a_snapshot_records_the_steps_that_were_asked_for(snapshot: Any, recorder: Recorder) -> None:
    snapshot.step()
    snapshot.step()  # no device was used so far: nothing begins one
    snapshot.cuda.used = True
    for _ in range(5):
        snapshot.step()
    assert snapshot.cuda.calls == ["record all", "dump", "record None"]
    assert [(each["event"], each["steps"], each["why"]) for each in events(recorder, "cuda_snapshot")] == [
        ("started", 0, ""),
        ("written", 2, ""),
    ]
    (written,) = events(recorder, "memory_snapshot")
    assert written["path"] == f"{recorder.directory}/cuda-snapshot.pickle".replace("//", "/")
    assert Path(written["path"]).stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("begun", [False, True])
def test_a_snapshot_gives_way_to_the_programs(snapshot: Any, recorder: Recorder, begun: bool) -> None:
    snapshot.cuda.used = begun
    snapshot.step()
    snapshot.step()
    snapshot.cuda.memory._record_memory_history()
    snapshot.cuda.used = True
    for _ in range(5):
        snapshot.step()
    ours = ["record all", "dump", "record None"] if begun else []
    assert snapshot.cuda.calls == [*ours, "record all"]
    assert "program" in [each["event"] for each in events(recorder, "cuda_snapshot")]


def test_a_snapshot_that_fails_leaves_the_program_alone(snapshot: Any, recorder: Recorder) -> None:
    def fails(**_: Any) -> None:
        raise RuntimeError("of another allocator")

    snapshot.cuda.used = True
    snapshot.cuda.memory._record_memory_history = fails
    for _ in range(5):
        snapshot.step()
    (told,) = events(recorder, "cuda_snapshot")
    assert (told["event"], told["why"]) == ("error", "of another allocator")


class _Tensor:
    """As torch's, as far as a table of layers asks."""

    requires_grad = True

    def __init__(self, *shape: int) -> None:
        self.shape = shape

    def numel(self) -> int:
        return int(np.prod(self.shape))

    def element_size(self) -> int:
        return 4


class _Module:
    def __init__(self, *inside: _Module, **parameters: _Tensor) -> None:
        self._parameters, self._buffers = parameters, {"running": _Tensor(2), "none": None}
        self.inside = inside

    def named_modules(self, prefix: str = "") -> Any:
        yield prefix, self
        for number, module in enumerate(self.inside):
            yield from module.named_modules(f"{prefix}.{number}".strip("."))


def test_a_table_holds_no_module_and_counts_a_shared_parameter_once(recorder: Recorder) -> None:
    shared = _Tensor(3, 4)
    first, second = _Module(weight=shared), _Module(weight=shared, bias=_Tensor(3))
    root = _Module(first, second)
    torch: Any = SimpleNamespace(Tensor=_Tensor, nn=SimpleNamespace(Module=_Module))
    table = ModelTable(recorder, torch)
    for _ in range(2):
        table.note(first, [{"x": _Tensor(8, 4)}], {}, (_Tensor(8, 3), [_Tensor(1)]))
    table.record(root)
    (record,) = [row for row in recorder.records if isinstance(row, dict) and row["type"] == "model"]
    top, one, two = record["modules"]
    assert top == ["", "_Module", 0, None, None, 0, 0, 8, None]
    assert one == ["0", "_Module", 2, [[8, 4]], [[8, 3], [1]], 12, 12, 12 * 4 + 8, 12]
    assert two == ["1", "_Module", 0, None, None, 3, 3, 3 * 4 + 8, 12]
