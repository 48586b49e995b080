"""What the agent answers otherwise in a trial: open archives, tables of Parquet, workers' threads."""

from __future__ import annotations

import io
import os
import sys
import tarfile
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from iotrace.agent import patching, worker_override
from iotrace.agent.trial_calls import hook_archives, hook_tables


class _Recorder:
    def __init__(self) -> None:
        self.records: list[dict[str, Any]] = []
        self.errors: list[Exception] = []

    def absorb(self, error: Exception, _: str) -> None:
        self.errors.append(error)


@pytest.fixture(autouse=True)
def _undone() -> Any:
    yield
    patching.undo_all()


def _archive(path: Path) -> None:
    with tarfile.open(path, "w") as archive:
        for name in ("a", "b"):
            about = tarfile.TarInfo(name)
            about.size = 1
            archive.addfile(about, io.BytesIO(name.encode()))


def test_an_archive_stays_open_and_is_given_again(tmp_path: Path) -> None:
    _archive(tmp_path / "x.tar")
    _archive(tmp_path / "y.tar")
    module = ModuleType("tarfile_of_test")
    module.open = tarfile.open  # type: ignore[attr-defined]
    recorder: Any = _Recorder()
    hook_archives(module, recorder, ["x.tar"])
    opened = []
    for _ in range(2):
        with module.open(tmp_path / "x.tar") as archive:  # type: ignore[attr-defined]
            assert archive.getnames() == ["a", "b"]
            assert archive.extractfile("b").read() == b"b"
            opened.append(archive)
    assert opened[0] is opened[1]
    assert not opened[0].closed
    with module.open(tmp_path / "y.tar") as other:  # type: ignore[attr-defined]
        pass
    assert other.closed
    with module.open(tmp_path / "x.tar", "a") as writing:  # type: ignore[attr-defined]
        assert writing is not opened[0]
    with pytest.raises(FileNotFoundError):
        module.open(tmp_path / "none" / "x.tar")  # type: ignore[attr-defined]
    assert recorder.records == [{"type": "kept_open", "path": str(tmp_path / "x.tar")}]


def test_a_table_whose_copy_is_parquet_is_read_as_such(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    pytest.importorskip("pyarrow")
    module = ModuleType("readers_of_test")
    module.read_csv = pandas.read_csv  # type: ignore[attr-defined]
    hook_tables(module)
    frame = pandas.DataFrame({"a": [1, 2]})
    frame.to_csv(tmp_path / "plain.csv", index=False)
    frame.to_parquet(tmp_path / "copy.csv")
    for name in ("plain.csv", "copy.csv"):
        assert module.read_csv(tmp_path / name).equals(frame)  # type: ignore[attr-defined]
    with pytest.raises(ValueError, match="without sep"):
        module.read_csv(tmp_path / "copy.csv", sep=";")  # type: ignore[attr-defined]
    with pytest.raises(FileNotFoundError):
        module.read_csv(tmp_path / "none.csv")  # type: ignore[attr-defined]


def test_a_worker_sets_threads_behind_the_programs_own_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls: list[Any] = []
    cv2 = ModuleType("cv2")
    cv2.setNumThreads = lambda count: calls.append(count)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "cv2", cv2)
    monkeypatch.setenv("OPENCV_FOR_THREADS_NUM", "8")
    module = ModuleType("worker_of_test")

    def _worker_loop(dataset: Any, init_fn: Any, worker_id: int) -> None:
        init_fn(worker_id)

    module._worker_loop = _worker_loop  # type: ignore[attr-defined]
    recorder: Any = _Recorder()
    cpus = ",".join(map(str, sorted(os.sched_getaffinity(0))))
    asked = worker_override.AtStart({"worker_threads": "cv2=1,unknown=2", "cpus": cpus})
    worker_override.hook_workers(module, recorder, asked)
    module._worker_loop([], lambda number: calls.append(f"own {number}"), 3)  # type: ignore[attr-defined]
    assert calls == ["own 3", 1]
    assert os.environ["OPENCV_FOR_THREADS_NUM"] == "1"
    assert not recorder.errors
    assert not worker_override.AtStart({})


def test_a_pipe_is_left_to_the_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module: Any = ModuleType("tables")
    module.read_csv = lambda path: path
    hook_tables(module)
    os.mkfifo(tmp_path / "pipe")
    monkeypatch.setattr("builtins.open", pytest.fail)
    assert module.read_csv(tmp_path / "pipe") == tmp_path / "pipe"
