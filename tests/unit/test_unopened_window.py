"""Why torch's profiler recorded nothing: the reason is this loop's, and the remedy one that helps it."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from iotrace.analysis.completeness.not_captured import not_captured
from iotrace.analysis.rank import SessionAnalysis
from iotrace.session import names
from iotrace.session.manifest import Manifest, NotCaptured, Outcome, PosixState
from iotrace.sources.records import (
    Identity,
    IteratorStart,
    TorchProgram,
    TorchProgramTrace,
)
from iotrace.sources.session import open_session
from tests.support.rows import BatchRecord, Line, lines_of

MS = 1_000_000


def loop(batches: int, loaders: int = 1, grad: bool = True, backward: bool = True) -> list[Line]:
    """A loop over `loaders` DataLoaders, one after the other, with `batches` each."""
    found: list[Line] = []
    delivered = 0
    for loader in range(loaders):
        found.append(IteratorStart(loader, loader, "Images", 0, 0, 0, delivered * 10 * MS))
        for index in range(batches):
            delivered += 1
            times = delivered * 10 * MS, (delivered * 10 + 4) * MS
            found.append(BatchRecord(loader, 0, 0, index, 1, *times, grad, delivered if backward else 0))
    return found


def told(path: Path, records: list[Line], steps: str = "5:1:5:1") -> NotCaptured:
    directory = path / names.PROCESSES / "1-0"
    directory.mkdir(parents=True)
    torch = {names.TORCH_STEPS: steps}
    manifest = Manifest(
        names.FORMAT_VERSION, "0", ["python"], "/", "host", 0, 1, PosixState(False), torch=torch
    )
    (path / names.MANIFEST).write_bytes(msgspec.json.encode(manifest))
    (path / names.OUTCOME).write_bytes(msgspec.json.encode(Outcome(0, 0, 0)))
    (directory / names.PROCESS).write_bytes(msgspec.json.encode(Identity(1, 1, 0, "main", (0, 0, 1))))
    (directory / names.RECORDS).write_bytes(lines_of(records))
    (directory / names.SPANS).write_bytes(b"")
    found = not_captured(SessionAnalysis(open_session(path)))
    return next(item for item in found if item.what == "compute of rank 0")


@pytest.mark.parametrize(
    ("records", "steps", "why", "remedy"),
    [
        (loop(100, grad=False, backward=False), "5:1:5:1", "without gradients", ""),
        (loop(100, backward=False), "5:1:5:1", "no backward pass followed", "--torch-steps 0:1:3"),
        (loop(2, backward=False), "5:1:5:1", "no backward pass followed", ""),
        (
            loop(5),
            "5:1:5:1",
            "opens after 6 batches of one loader; 5 was the most",
            "--torch-steps 1:1:3",
        ),
        (loop(4, loaders=25), "5:1:5:1", "one loader; 4 was the most", "--torch-steps 1:1:3"),
        (loop(2), "5:1:5:1", "2 was the most", ""),
        (loop(2), "1:1:3:1", "2 was the most", ""),
        (loop(100), "5:1:5:1", "its window did not open", ""),
    ],
)
def test_the_reason_is_the_loops(
    tmp_path: Path, records: list[Line], steps: str, why: str, remedy: str
) -> None:
    found = told(tmp_path, records, steps)
    assert why in found.why
    assert remedy in found.remedy
    assert bool(remedy) == bool(found.remedy)


def test_an_export_is_asked_for_where_it_would_help(tmp_path: Path) -> None:
    makes, daemon = TorchProgram("torch.profiler", 0), TorchProgram("the daemon of Kineto", 0)
    lost = TorchProgramTrace("", 0, 0)
    assert "export_chrome_trace" in told(tmp_path / "a", [*loop(9), makes]).remedy
    assert told(tmp_path / "b", [*loop(9), makes, lost]).remedy == ""
    assert told(tmp_path / "c", [*loop(9), daemon]).remedy == ""
