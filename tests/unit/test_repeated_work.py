"""Databases that samples scan, and names of files as SQLite takes them."""

from __future__ import annotations

from pathlib import Path

import pytest

from iotrace.agent.readpaths.finders import rows_size
from iotrace.analysis.storage.read_pattern import FileCalls
from iotrace.analysis.wait.repeated_work import _kind_of, _read_fraction, _Target
from iotrace.sources.paths import Paths

MIB = 1 << 20


@pytest.mark.parametrize(
    ("path", "read", "given", "opens", "kind"),
    [
        ("d/a.db", 100 * 8 * MIB, 100 * 4096, 2, "decoding"),  # each query scans it, for a few rows
        ("d/a.db", 100 * 8 * MIB, 100 * 8 * MIB, 2, "reading"),  # all rows are taken
        ("d/a.db", 100 * 8192, 100 * 4096, 2, ""),  # by a key: two pages
        ("d/a.h5", 100 * 8 * MIB, 0, 2, ""),  # no database: it stays open, as it should
        ("d/a.db", 100 * 8 * MIB, 0, 100, "decoding"),  # opened for each sample, too
    ],
)
def test_a_database_is_scanned_where_a_query_reads_it_for_little(
    path: str, read: int, given: int, opens: int, kind: str
) -> None:
    target = _Target(path, False, 100, 2, read, given, True, 100, 1)
    file = FileCalls(opens=opens, distinct_bytes=8 * MIB, read_bytes=read, write_bytes=0)
    assert _kind_of(target, file, 0) == kind


def test_rows_have_a_size_by_the_first_one() -> None:
    assert rows_size([(b"abcd", "ef", 1), (b"", "", 2)], (), {}) == 28
    assert rows_size([], (), {}) == 0
    assert rows_size([object()], (), {}) == rows_size(None, (), {}) == -1


@pytest.mark.parametrize(
    ("spelled", "shown"),
    [
        ("file:data/x.db?mode=ro", "data/x.db"),
        ("file:data/a%20b.db", "data/a b.db"),
        ("file:///far/x.db?immutable=1", "/far/x.db"),
        ("s3://bucket/x.db", "s3://bucket/x.db"),
        ("file:named so", "file:named so"),
    ],
)
def test_a_uri_of_a_file_names_that_file(tmp_path: Path, spelled: str, shown: str) -> None:
    (tmp_path / "file:named so").touch()
    assert Paths(tmp_path, str(tmp_path), [spelled]).shown(spelled) == shown


@pytest.mark.parametrize(("by_library", "fraction"), [(True, 1.0), (False, 0.4)])
def test_what_a_library_reads_on_its_own_threads_counts_for_its_visits(
    by_library: bool, fraction: float
) -> None:
    """pyarrow reads a file's end on the sample's thread, and its columns on others."""
    own = _Target("t.parquet", False, visits=100, read_bytes=40 * MIB, by_library=by_library)
    file = FileCalls(distinct_bytes=MIB, read_bytes=120 * MIB)
    assert _read_fraction([own], {"t.parquet": file}) == fraction
