"""From a point's session to its figures: a session written by hand."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from iotrace.session import names
from iotrace.session.manifest import Manifest, Outcome, PosixState
from iotrace.sources.records import (
    BatchRecord,
    End,
    Identity,
    IteratorEnd,
    IteratorStart,
    Record,
    TorchWindow,
)
from iotrace.sweeps.measure import measure
from iotrace.sweeps.results import SweepRun

MS = 1_000_000
STEPS, STEP_MS, PROFILED_MS, WAIT_MS = 20, 10, 90, 4


def records() -> list[Record]:
    """A training loop of equal steps, but for two that a window of torch.profiler made longer."""
    found: list[Record] = [IteratorStart(0, 0, "Images", 0, 0, 0, 0)]
    now_ms = 100
    for number in range(STEPS):
        now_ms += WAIT_MS
        batch = BatchRecord(0, 0, 0, number, 1, (now_ms - WAIT_MS) * MS, now_ms * MS, True, number)
        found.append(batch)
        length_ms = (PROFILED_MS if number in (7, 8) else STEP_MS) - WAIT_MS
        if number == 7:
            found.append(TorchWindow(0, "active", (now_ms + 1) * MS, MS))
        now_ms += length_ms
        if number == 8:
            found.append(TorchWindow(0, "exported", (now_ms - 2) * MS, MS))
    found.append(IteratorEnd(0, 0, "exhausted", now_ms * MS, now_ms * MS, STEPS))
    return [*found, End()]


def write_session(path: Path) -> None:
    directory = path / names.PROCESSES / "1-0"
    directory.mkdir(parents=True)
    manifest = Manifest(names.FORMAT_VERSION, "0", ["python"], "/", "host", 0, 1, PosixState(False))
    (path / names.MANIFEST).write_bytes(msgspec.json.encode(manifest))
    (path / names.OUTCOME).write_bytes(msgspec.json.encode(Outcome(0, 0, 0)))
    identity = Identity(1, 1, 0, "main", (0, 0, 1))
    (directory / names.PROCESS).write_bytes(msgspec.json.encode(identity))
    lines = b"\n".join(map(msgspec.json.encode, records()))
    (directory / names.RECORDS).write_bytes(lines + b"\n")
    (directory / names.SPANS).write_bytes(b"")


def test_all_figures_of_a_point_are_of_the_measured_steps(tmp_path: Path) -> None:
    write_session(tmp_path / "session")
    run = measure(SweepRun(params={}, kind="point", repeat=0, session=str(tmp_path / "session"), status="ok"))
    assert (run.status, run.steps) == ("ok", STEPS - 1 - 1 - 2)  # the last one has no known end
    assert run.step_ms == pytest.approx(sum(run.block_ms) / len(run.block_ms), rel=0.1)
    assert max(run.block_ms) <= STEP_MS
    assert run.compute_ms is not None
    assert run.raw_wait_fraction is not None
    assert run.compute_ms == pytest.approx(run.step_ms * (1 - run.raw_wait_fraction))
