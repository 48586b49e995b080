"""What comes with batches and steps: written as rows, and by older agents as lines; read as columns."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from iotrace.agent.recording.recorder import Recorder
from iotrace.session import names
from iotrace.sources.processes import Process, read_processes
from iotrace.sources.records import End, Identity, IteratorEnd, Rows
from iotrace.sources.rows import divided
from tests.support.rows import BatchRecord, Blocked, Line, Produced, Round, process_of

BATCH = (names.BATCH_ROW, 0, 1, 2, 3, 4, 100, 200, True, 7, -1, 0, 1, 4711, 90, 150, -1, -1, -1, -1)


@pytest.fixture
def recorder(tmp_path: Path) -> Recorder:
    (tmp_path / names.PROCESSES).mkdir()
    found = Recorder(str(tmp_path))
    found.open({"pid": 1, "ppid": 0, "role": "main"})
    return found


def read(session: Path) -> Process:
    ((process,), _) = read_processes(session)
    assert process.problems == []
    return process


def test_rows_are_read_as_columns_beside_records_in_the_order_of_their_making(
    recorder: Recorder, tmp_path: Path
) -> None:
    phase = recorder.text("train")
    end = {"type": "iterator_end", "iterator": 0, "epoch": 1, "outcome": "exhausted", "tid": 4}
    recorder.records.append((*BATCH[:10], phase, *BATCH[11:]))
    recorder.records.append((names.ROUND_ROW, 1, 0, 4, 250, 20, -1))
    recorder.flush()
    recorder.records.append({**end, "wait_start_ns": 300, "mono_ns": 400, "backward_count": 8})
    recorder.records.append((names.PRODUCED_ROW, 0, 0, 1, 1, -1, -1, 60, -1, 5))
    recorder.records.append((names.BLOCKED_ROW, 4, 210, 220, -1, 99, 1))
    recorder.close()
    found = read(tmp_path)
    assert found.texts == {phase: "train"}
    assert {kind: rows.tolist() for kind, rows in found.arrays.items()} == {
        names.BATCH_ROW: [(*BATCH[1:10], phase, *BATCH[11:])],
        names.ROUND_ROW: [(1, 0, 4, 250, 20, -1)],
        names.PRODUCED_ROW: [(0, 0, 1, 1, -1, -1, 60, -1, 5)],
        names.BLOCKED_ROW: [(4, 210, 220, -1, 99, 1)],
    }
    ended = found.of_type(IteratorEnd)
    assert ended == [IteratorEnd(0, 1, "exhausted", 300, 400, 8, 4)]
    assert isinstance(found.records[-1], End)


def test_lines_of_older_sessions_are_read_as_the_same_columns() -> None:
    """A phase has a number of its own there, below -1."""
    lines: list[Line] = [
        Produced(0, 0, "stop", 1, 60, None, 5),
        BatchRecord(0, 1, 2, 3, 4, 300, 400, True, 8, phase="train"),
        BatchRecord(0, 1, 2, 2, 4, 100, 200, True, 7, 1, 4711, 90, None, None, "validate"),
        Round("optimizer", 0, 4, 250, 20, -1),
        Blocked(4, 210, 220, None, 99, "get"),
    ]
    found = process_of(Identity(1, 1, 0, "main", (0, 0, 1)), lines)
    assert found.records == []
    assert found.texts == {-2: "train", -3: "validate"}
    batches = found.rows(names.BATCH_ROW)
    assert batches["index"].tolist() == [2, 3]
    assert batches["phase"].tolist() == [-3, -2]
    assert (batches["worker"].tolist(), batches["sent_ns"].tolist()) == ([1, -1], [90, -1])
    assert found.rows(names.PRODUCED_ROW).tolist() == [(0, 0, 1, 1, -1, -1, 60, -1, 5)]
    assert found.rows(names.ROUND_ROW).tolist() == [(1, 0, 4, 250, 20, -1)]
    assert found.rows(names.BLOCKED_ROW).tolist() == [(4, 210, 220, -1, 99, 1)]
    assert len(found.rows(names.MARK_ROW)) == 0


def test_a_row_of_what_is_no_integer_loses_itself_alone(recorder: Recorder, tmp_path: Path) -> None:
    for index in ("first", 1, 1 << 64, 3):
        recorder.records.append((*BATCH[:4], index, *BATCH[5:]))
    recorder.close()
    assert read(tmp_path).rows(names.BATCH_ROW)["index"].tolist() == [1, 3]
    (log,) = tmp_path.glob("processes/*/agent.log")
    assert log.read_text().count("no row") == 2


def test_many_rows_are_lines_of_bounded_length(recorder: Recorder, tmp_path: Path) -> None:
    recorder.records.extend([BATCH] * 10_000)
    recorder.close()
    (path,) = tmp_path.glob("processes/*/records.jsonl")
    assert max(map(len, path.read_bytes().splitlines())) < 1 << 20
    assert len(read(tmp_path).rows(names.BATCH_ROW)) == 10_000


@pytest.mark.parametrize(("kind", "data"), [(99, b"12345678"), (-1, b""), (0, b"cut"), (6, b"\xff" * 15)])
def test_damaged_rows_are_few_or_none(kind: int, data: bytes) -> None:
    line = msgspec.json.encode({"type": "rows", "kind": kind, "rows": data})
    _, arrays = divided([msgspec.json.decode(line, type=Rows)], {})
    assert not any(map(len, arrays.values()))
