"""From a point's session to its figures: a session written by hand."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from iotrace.session import names
from iotrace.session.manifest import Manifest, Outcome, PosixState
from iotrace.sources.records import (
    End,
    Identity,
    IteratorEnd,
    IteratorStart,
    Replayed,
    TorchWindow,
)
from iotrace.sweeps.execute import measure
from iotrace.sweeps.results import SweepRun
from tests.support.rows import BatchRecord, Line, lines_of

MS = 1_000_000
STEPS, STEP_MS, PROFILED_MS, WAIT_MS = 20, 10, 90, 4


def records() -> list[Line]:
    """A training loop of equal steps, but for two that a window of torch.profiler made longer."""
    found: list[Line] = [IteratorStart(0, 0, "Images", 0, 0, 0, 0)]
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


def write_session(path: Path, written: list[Line] | None = None) -> None:
    directory = path / names.PROCESSES / "1-0"
    directory.mkdir(parents=True)
    manifest = Manifest(names.FORMAT_VERSION, "0", ["python"], "/", "host", 0, 1, PosixState(False))
    (path / names.MANIFEST).write_bytes(msgspec.json.encode(manifest))
    (path / names.OUTCOME).write_bytes(msgspec.json.encode(Outcome(0, 0, 0)))
    identity = Identity(1, 1, 0, "main", (0, 0, 1))
    (directory / names.PROCESS).write_bytes(msgspec.json.encode(identity))
    (directory / names.RECORDS).write_bytes(lines_of(records() if written is None else written))
    (directory / names.SPANS).write_bytes(b"")


def test_all_figures_of_a_point_are_of_the_measured_steps(tmp_path: Path) -> None:
    write_session(tmp_path / "session")
    run = measure(SweepRun(params={}, kind="point", repeat=0, session=str(tmp_path / "session"), status="ok"))
    assert (run.status, run.steps) == ("ok", STEPS - 1 - 1 - 2)  # the last one has no known end
    assert run.step_ms == pytest.approx(STEP_MS)
    assert run.step_ci95_ms == pytest.approx([STEP_MS, STEP_MS])
    assert run.compute_ms is not None
    assert run.raw_wait_fraction is not None
    assert run.compute_ms == pytest.approx(run.step_ms * (1 - run.raw_wait_fraction))


def inference(records: list[Line], wrapped: bool = False) -> list[Line]:
    """The same loop without a backward pass, and without gradients; of a source that is no DataLoader."""
    found: list[Line] = []
    for record in records:
        if isinstance(record, BatchRecord):
            record = replace(record, grad=False, backward_count=0)
        elif isinstance(record, IteratorEnd):
            record = replace(record, backward_count=0)
        elif isinstance(record, IteratorStart):
            record = replace(record, wrapped=wrapped)
        found.append(record)
    return found


@pytest.mark.parametrize(
    ("kind", "params", "more", "by_agent", "status"),
    [
        ("point", {"workers": "0"}, [], True, "ok"),
        ("point", {"workers": "2"}, [], True, "not applied"),
        ("point", {}, [], True, "ok"),
        ("ceiling", {"workers": "2"}, [], True, "not applied"),
        ("ceiling", {"workers": "2"}, [Replayed()], True, "ok"),
    ],
)
def test_a_loop_that_trains_nothing_is_measured(
    tmp_path: Path, kind: str, params: dict[str, str], more: list[Line], by_agent: bool, status: str
) -> None:
    write_session(tmp_path, [*more, *inference(records())])
    asked = SweepRun(params=params, kind=kind, repeat=0, session=str(tmp_path), status="ok")
    run = measure(asked, by_agent)
    assert (run.status, run.inference, run.loaders) == (status, True, 1)
    assert run.steps
    assert bool(run.reason) == (status != "ok")


@pytest.mark.parametrize(("by_agent", "status"), [(True, "not applied"), (False, "ok")])
def test_workers_of_a_source_that_is_no_dataloader_are_the_commands_own(
    tmp_path: Path, by_agent: bool, status: str
) -> None:
    write_session(tmp_path, inference(records(), wrapped=True))
    asked = SweepRun(params={"workers": "2"}, kind="point", repeat=0, session=str(tmp_path), status="ok")
    run = measure(asked, by_agent)
    assert (run.status, run.workers) == (status, None)
    assert run.step_ms


def test_a_program_without_a_loop_has_no_steps(tmp_path: Path) -> None:
    write_session(tmp_path, [End()])
    run = measure(SweepRun(params={}, kind="point", repeat=0, session=str(tmp_path), status="ok"))
    assert (run.status, run.loaders) == ("no steps", 0)
    assert "no loader that iotrace knows" in run.reason
