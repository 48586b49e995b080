"""Chunks of stores: how many were read, how much of what they hold was used, of which dates."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np

from iotrace.analysis.results import Chunks, FileGroup, FileIo, Io
from iotrace.analysis.storage.chunks import with_chunks
from iotrace.session.names import KIND_READ_PATH
from iotrace.sources.processes import SPAN_DTYPE
from iotrace.sources.records import ArrayInfo, Gridded
from tests.support.results import unknown

STORE = "data/tiny.zarr"


def _row(path: str, reads: int = 1, opens: int = 1) -> FileIo:
    return unknown(FileIo, path=path, reads=reads, opens=opens, group=f"{STORE}/data")


def _process(sizes: list[int], records: list[Any]) -> Any:
    spans = np.zeros(len(sizes), SPAN_DTYPE)
    spans["kind"], spans["file"], spans["bytes"] = KIND_READ_PATH, 7, sizes
    return SimpleNamespace(
        spans=spans,
        span_files={7: f"{STORE}/data"},
        of_type=lambda kind: [record for record in records if isinstance(record, kind)],
    )


def _found(rows: list[FileIo], *processes: Any) -> Chunks | None:
    group = unknown(FileGroup, path=f"{STORE}/data", kind="store")
    paths: Any = SimpleNamespace(shown=lambda path: path)
    rank: Any = SimpleNamespace(processes=processes)
    (found,) = with_chunks([group], unknown(Io, files=rows), rank, paths)
    return found.chunks


ARRAY = ArrayInfo(path=f"{STORE}/data", chunks=420, chunk_bytes=1000)
DATES = Gridded(
    path=STORE, dates=420, first="2020-01-01T00:00:00", last="2020-04-14T18:00:00", variables=["t"]
)


def test_chunks_are_counted_once_and_decoded_each_time() -> None:
    rows = [
        _row(f"{STORE}/data/0.0.0"),
        _row(f"{STORE}/data/4.0.0", reads=4, opens=2),
        _row(f"{STORE}/data/5.0.0", reads=0),  # not there: nothing is decoded
        _row(f"{STORE}/data/.zarray"),
        _row(f"{STORE}/dates/0"),  # of an array that nobody asked for
    ]
    found = _found(rows, _process([500, 1000], [ARRAY, DATES]), _process([500], [ARRAY]))
    assert found is not None
    assert (found.read, found.of, found.times_read) == (2, 420, 3)
    assert (found.decoded_bytes, found.used_bytes, found.amplification) == (3000, 2000, 1.5)
    assert (found.first_date, found.last_date) == ("2020-01-01T00:00:00", "2020-01-02T00:00:00")
    assert found.variables == ["t"]


def test_what_is_not_known_is_not_said() -> None:
    sharded = ArrayInfo(path=f"{STORE}/data", chunks=420, chunk_bytes=1000, sharded=True)
    found = _found([_row(f"{STORE}/data/c/3/0")], _process([-1], [sharded]))
    assert found is not None
    assert (found.read, found.of, found.decoded_bytes, found.used_bytes, found.amplification) == (
        1,
        None,
        None,
        None,
        None,
    )
    assert found.first_date is None
    assert _found([_row(f"{STORE}/data/0.0.0")], _process([1], [])) is None
