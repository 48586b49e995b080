"""Rows as columns: gathered from pieces of a file; what they are beside arrays of a struct."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from iotrace.session import names
from iotrace.sources.columns import Columns, Gathering
from iotrace.sources.records import Rows
from iotrace.sources.rows import DTYPES, divided, read_columns

DTYPE = np.dtype([("at", "<i8"), ("tid", "<i4"), ("kind", "<i4")])


def rows_of(count: int) -> np.ndarray:
    rows = np.zeros(count, DTYPE)
    rows["at"], rows["tid"] = np.arange(count), 7
    rows["kind"][count * 4 // 5 :] = 1  # the same of each row of many blocks, then another one
    return rows


@pytest.mark.parametrize("piece", [7, 999_983, 1 << 22])
def test_pieces_of_any_length_become_columns(piece: int) -> None:
    rows = rows_of(200_000 if piece > 7 else 2_000)
    data, gathering = rows.tobytes(), Gathering(DTYPE)
    for first in range(0, len(data), piece):
        gathering.add(data[first : first + piece])
    found, was_cut = gathering.columns()
    assert (len(found), found.fields, was_cut) == (len(rows), ["at", "tid", "kind"], False)
    for field in DTYPE.names or ():
        assert found[field].dtype == DTYPE[field]
        assert (found[field] == rows[field]).all()
    assert found["tid"].strides == (0,) or len(rows) == 2_000  # one integer stands for all


def test_a_last_row_that_was_cut_is_left_out_and_told(tmp_path: Path) -> None:
    path, problems = tmp_path / names.SPANS, list[str]()
    path.write_bytes(rows_of(3).tobytes()[:-1])
    assert read_columns(path, DTYPE, "span", problems)["at"].tolist() == [0, 1]
    assert problems == [f"{names.SPANS} was cut in its last span"]
    assert len(read_columns(tmp_path / "none", DTYPE, "span", problems)) == 0


def test_columns_are_read_as_rows_where_one_looks_at_them() -> None:
    columns = Columns.of(rows_of(10))
    assert columns[9] == {"at": 9, "tid": 7, "kind": 1}
    assert [row["at"] for row in columns[columns["kind"] == 1]] == [8, 9]
    assert columns[8:].tolist() == [(8, 7, 1), (9, 7, 1)]
    changed = columns.changed(kind=np.arange(10))
    assert (changed["kind"][3], columns["kind"][3]) == (3, 0)
    with pytest.raises(KeyError):
        columns["none"]


def test_packed_columns_are_read_as_they_were() -> None:
    long = np.arange(10_000) * 3 - 5
    columns = Columns(10_000, {"fits": long, "wide": long << 40, "same": -1})
    columns.pack("fits", "wide", "same")
    for rows in (columns, columns[5:], columns[long % 2 == 0], Columns.joined([columns, columns[:2]])):
        for field in ("fits", "wide", "same"):
            assert rows[field].dtype == np.int64
    assert columns["fits"].tolist() == long.tolist()
    assert (columns[long % 2 == 0]["wide"] == (long << 40)[long % 2 == 0]).all()
    assert columns[long < 0]["fits"].tolist() == [-5, -2]
    columns["fits"] = long << 40
    assert columns["fits"][-1] == long[-1] << 40


def test_columns_that_number_rows_share_their_numbers() -> None:
    one, other = (Columns(9_000, {"number": np.arange(9_000) + first})["number"] for first in (0, 1))
    assert np.shares_memory(one, other)
    assert (one.tolist(), other[[0, -1]].tolist()) == ([*range(9_000)], [1, 9_000])
    jumbled = np.arange(9_000)
    jumbled[[4, 5]] = 5, 4
    assert Columns(9_000, {"number": jumbled})["number"].tolist() == jumbled.tolist()


def test_a_row_with_impossible_numbers_is_left_out_alone() -> None:
    marks = np.array([[names.MARK_ROW, 5], [names.MARK_ROW, -(2**63)], [names.MARK_ROW, 6]], "<i8")
    _, arrays = divided([Rows(names.MARK_ROW, marks.tobytes() + b"cut")], {})
    assert arrays[names.MARK_ROW]["mono_ns"].tolist() == [5, 6]
    assert DTYPES[names.MARK_ROW].itemsize == 16
