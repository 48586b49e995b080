"""What saves a checkpoint is timed, and the program meets nothing of it."""

from __future__ import annotations

import io
import traceback
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from iotrace.agent import bootstrap, checkpoints, patching
from iotrace.agent.recording.recorder import Recorder
from iotrace.analysis.wait.checkpoints import Saves, _given_name, in_one_step
from iotrace.session.names import KIND_CHECKPOINT, SPAN_FIELDS

NAME = "torch.serialization"


class Saving:
    """Stands in for torch.serialization."""

    def __init__(self) -> None:
        self.saved: list[Any] = []
        self.save = self._save

    def _save(self, thing: Any, f: Any) -> str:
        self.saved.append(f)
        if thing is None:
            raise ValueError("nothing to save")
        return "done"


@pytest.fixture
def recorder(tmp_path: Path) -> Iterator[Recorder]:
    made = Recorder(str(tmp_path))
    made.directory = str(tmp_path)
    made._stop = object()  # as if the writer ran
    yield made
    patching.undo_all()
    assert not list(tmp_path.glob("*.log"))


def spans(recorder: Recorder) -> list[tuple[str, str]]:
    """The checkpoints recorded: their names and files."""
    texts = {number: text for text, number in recorder._texts.items()}
    rows = [dict(zip(SPAN_FIELDS, span, strict=True)) for span in recorder.spans]
    assert all(row["kind"] == KIND_CHECKPOINT and row["duration_ns"] >= 0 for row in rows)
    return [(texts[row["name"]], texts.get(row["file"], "")) for row in rows]


def test_a_save_has_its_file(recorder: Recorder, tmp_path: Path) -> None:
    module = SimpleNamespace(save=Saving().save)
    checkpoints.hook_saves(module, recorder, NAME)
    path = tmp_path / "a.pt"
    with path.open("wb") as file:
        for where in ("/x/a.pt", path, file, io.BytesIO()):
            assert module.save(1, where) == "done"
    assert module.save(thing=1, f="/x/b.pt") == "done"
    named = ["/x/a.pt", str(path), str(path), "", "/x/b.pt"]
    assert spans(recorder) == [("torch.save", each) for each in named]


def test_one_that_raises_is_timed_and_raises_as_before(recorder: Recorder) -> None:
    saving = Saving()
    module = SimpleNamespace(save=saving.save)
    checkpoints.hook_saves(module, recorder, NAME)
    with pytest.raises(ValueError, match="nothing to save") as caught:
        module.save(None, "a.pt")
    assert [each.name for each in traceback.extract_tb(caught.tb)][1:] == ["_save"]
    assert saving.saved == ["a.pt"]
    assert spans(recorder) == [("torch.save", "a.pt")]


def test_nothing_is_recorded_before_the_program_loads_or_trains(recorder: Recorder) -> None:
    recorder._stop = None
    module = SimpleNamespace(save=Saving().save)
    checkpoints.hook_saves(module, recorder, NAME)
    module.save(1, "a.pt")
    assert recorder.spans == []


def test_a_log_that_stays_open_is_no_checkpoint() -> None:
    steps_ns = np.array([100, 200, 300])
    opened, closed = np.array([10, 110, 150, 10, 310]), np.array([900, 190, 260, 90, 800])
    assert in_one_step(opened, closed, steps_ns).tolist() == [False, True, False, True, True]


@pytest.mark.parametrize(
    ("at_ns", "path", "shown"),
    [
        (150, "/tmp/tmpab12", "ck/last.ckpt"),  # written to a passing file, and moved
        (150, "ck/last.ckpt", "ck/last.ckpt"),
        (350, "ck/step-3/__0_0.distcp", "ck/step-3/__0_0.distcp"),  # in the directory that was given
        (350, "other.bin", "ck/step-3"),
        (250, "/tmp/tmpab12", "/tmp/tmpab12"),  # between the two calls
        (50, "a.pt", "a.pt"),
    ],
)
def test_a_save_goes_by_the_path_that_the_program_gave(at_ns: int, path: str, shown: str) -> None:
    named = [(100, 200, "ck/last.ckpt"), (300, 400, "ck/step-3")]
    assert _given_name(at_ns, path, named) == shown
    assert _given_name(at_ns, path, []) == path


def test_what_is_saved_behind_the_loop_is_not_counted_in_it() -> None:
    none = np.empty(0, np.int64)
    files = [(10, "a.ckpt"), (20, "last.ckpt"), (30, "b.ckpt"), (40, "last.ckpt"), (90, "end.ckpt")]
    saves = Saves(none, none, files, [(at_ns, 7) for at_ns, _ in files])
    assert saves.within(10, 50) == (["a.ckpt", "last.ckpt", "b.ckpt"], 28)


def test_every_module_that_saves_is_hooked() -> None:
    assert set(bootstrap.SAVING_MODULES) == set(checkpoints.SAVES)
