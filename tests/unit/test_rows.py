"""Records of batches and steps: written as rows, read as the records that they stand for."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from iotrace.agent.recording.recorder import Recorder
from iotrace.session import names
from iotrace.sources.processes import read_processes
from iotrace.sources.records import BatchRecord, Blocked, End, IteratorEnd, Produced, Record, Round, Rows
from iotrace.sources.rows import KINDS, columns_of, made_ns

BATCH = (names.BATCH_ROW, 0, 1, 2, 3, 4, 100, 200, True, 7, -1, 0, 1, 4711, 90, 150, -1, -1, -1, -1)


@pytest.fixture
def recorder(tmp_path: Path) -> Recorder:
    (tmp_path / names.PROCESSES).mkdir()
    found = Recorder(str(tmp_path))
    found.open({"pid": 1, "ppid": 0, "role": "main"})
    return found


def read(session: Path) -> list[Record]:
    ((process,), _) = read_processes(session)
    assert process.problems == []
    rows = [record for kind in KINDS for record in process.of_type(kind)]
    return sorted([*process.records, *rows], key=lambda record: made_ns(record, 0))


def test_rows_are_read_as_records_in_the_order_of_their_making(recorder: Recorder, tmp_path: Path) -> None:
    phase = recorder.text("train")
    end = {"type": "iterator_end", "iterator": 0, "epoch": 1, "outcome": "exhausted", "tid": 4}
    recorder.records.append((*BATCH[:10], phase, *BATCH[11:]))
    recorder.records.append((names.ROUND_ROW, 1, 0, 4, 250, 20, -1))
    recorder.flush()
    recorder.records.append({**end, "wait_start_ns": 300, "mono_ns": 400, "backward_count": 8})
    recorder.records.append((names.PRODUCED_ROW, 0, 0, 1, 1, -1, -1, 60, -1, 5))
    recorder.records.append((names.BLOCKED_ROW, 4, 210, 220, -1, 99, 1))
    recorder.close()
    found = [each for each in read(tmp_path) if isinstance(each, _KINDS)]
    assert found[:5] == [
        Produced(0, 0, "stop", 1, 60, None, 5),
        BatchRecord(0, 1, 2, 3, 4, 100, 200, True, 7, 1, 4711, 90, None, None, "train", 0),
        Blocked(4, 210, 220, None, 99, "get"),
        Round("optimizer", 0, 4, 250, 20, -1),
        IteratorEnd(0, 1, "exhausted", 300, 400, 8, 4),
    ]
    assert isinstance(read(tmp_path)[-1], End)


_KINDS = (Produced, BatchRecord, Blocked, Round, IteratorEnd)


def test_a_row_of_what_is_no_integer_loses_itself_alone(recorder: Recorder, tmp_path: Path) -> None:
    for index in ("first", 1, 1 << 64, 3):
        recorder.records.append((*BATCH[:4], index, *BATCH[5:]))
    recorder.close()
    batches = [each for each in read(tmp_path) if isinstance(each, BatchRecord)]
    assert [batch.index for batch in batches] == [1, 3]
    (log,) = tmp_path.glob("processes/*/agent.log")
    assert log.read_text().count("no row") == 2


def test_many_rows_are_lines_of_bounded_length(recorder: Recorder, tmp_path: Path) -> None:
    recorder.records.extend([BATCH] * 10_000)
    recorder.close()
    (path,) = tmp_path.glob("processes/*/records.jsonl")
    assert max(map(len, path.read_bytes().splitlines())) < 1 << 20
    assert sum(isinstance(each, BatchRecord) for each in read(tmp_path)) == 10_000


@pytest.mark.parametrize(("kind", "data"), [(99, b"12345678"), (-1, b""), (0, b"cut"), (6, b"\xff" * 15)])
def test_damaged_rows_are_few_or_none(kind: int, data: bytes) -> None:
    line = msgspec.json.encode({"type": "rows", "kind": kind, "rows": data})
    assert len(columns_of(msgspec.json.decode(line, type=Rows))) == 0
