"""What reports make of the recorder's bursts and sums."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from iotrace.analysis.host.overhead import sum_inside
from iotrace.analysis.storage.io import METADATA, READING, WRITING, recorded_files
from iotrace.analysis.storage.read_pattern import FileCalls, pattern_of
from iotrace.session.names import CALLS_EACH, METADATA_CALLS, READING_CALLS, WRITING_CALLS
from iotrace.sources.posix_calls import COLUMNS, FileSums, PosixCalls
from iotrace.sources.recorder.layout import BINS, POINT_BYTES, POINTS_EACH
from iotrace.sources.recorder.reader import NAMES, _side_by_side

KINDS = {METADATA: METADATA_CALLS, READING: READING_CALLS, WRITING: WRITING_CALLS}


def calls_of(*rows: dict[str, int], sums: FileSums | None = None, files: int = 2) -> PosixCalls:
    """Rows with 0 where nothing is said; one call each."""
    columns: Any = {name: np.array([row.get(name, 0) for row in rows], np.int64) for name in COLUMNS}
    columns["calls"] = np.array([row.get("calls", 1) for row in rows], np.int64)
    paths = [f"/d/{number}" for number in range(files)]
    return PosixCalls(
        **columns, names=NAMES, files=paths, nodes=["n"], pids=frozenset(), problems=[], sums=sums
    )


def sums_of(*rows: dict[str, Any], blocks: list[tuple[int, int, int, list[int]]] | None = None) -> FileSums:
    """Rows with calls by name; blocks of (file, first, pid, points)."""
    kinds = np.zeros((len(rows), CALLS_EACH), np.int64)
    for number, row in enumerate(rows):
        for name, count in row.get("calls", {}).items():
            kinds[number, KINDS[row["group"]].index(name)] = count
    simple = [
        name for name in FileSums.__struct_fields__ if name not in ("kinds", "histogram", "blocks", "bits")
    ]
    bits = np.zeros((len(blocks or []), POINTS_EACH // 8), np.uint8)
    for number, (_, _, _, points) in enumerate(blocks or []):
        for point in points:
            bits[number, point // 8] |= 1 << point % 8
    owned = [(file, first, 0, pid) for file, first, pid, _ in blocks or []]
    return FileSums(
        **{name: np.array([row.get(name, 0) for row in rows], np.int64) for name in simple},
        kinds=kinds,
        histogram=np.zeros((len(rows), BINS), np.int64),
        blocks=np.array(owned, np.int64).reshape(-1, 4),
        bits=bits,
    )


def read(start_ns: int, offset: int, size: int, **more: int) -> dict[str, int]:
    name = NAMES.index("pread64")
    return {
        "start_ns": start_ns,
        "end_ns": start_ns + 10,
        "name": name,
        "offset": offset,
        "result": size,
        **more,
    }


def summed(sums: FileSums, *rows: dict[str, int]) -> dict[str, FileCalls]:
    calls = calls_of(*rows, sums=sums)
    return recorded_files(sums, calls, calls.files)


def test_bursts_of_a_thread_that_interleave_stand_one_behind_the_other() -> None:
    # Two files read by turns: each burst lasted from its start to beyond the other's.
    rows = [(0, 500, 1), (10, 410, 1), (2000, 2100, 1), (5, 25, 2)]
    table = np.zeros((len(rows), len(COLUMNS)), np.int64)
    for number, (start, end, tid) in enumerate(rows):
        table[number, [COLUMNS.index(name) for name in ("start_ns", "end_ns", "tid")]] = start, end, tid
    placed = _side_by_side(table)
    times = placed[:, [COLUMNS.index(name) for name in ("tid", "start_ns", "end_ns")]].tolist()
    assert times == [[1, 0, 500], [1, 500, 900], [1, 2000, 2100], [2, 5, 25]]


def test_sums_by_file_hold_calls_bytes_and_times_of_all_threads() -> None:
    found = summed(
        sums_of(
            {
                "group": READING,
                "pid": 7,
                "calls": {"pread64": 4, "read": 1},
                "failed": 1,
                "bytes": 300,
                "in_call_ns": 9,
            },
            {
                "group": READING,
                "pid": 8,
                "calls": {"fread": 2},
                "bytes": 50,
                "in_call_ns": 1,
                "small": 2,
                "filled": 2,
            },
            {
                "group": METADATA,
                "pid": 7,
                "calls": {"open": 2, "fopen": 1, "stat": 5, "mmap": 1},
                "in_call_ns": 4,
            },
            {"group": WRITING, "pid": 7, "file": 1, "calls": {"write": 3}, "bytes": 12, "in_call_ns": 6},
        )
    )
    first, second = found["/d/0"], found["/d/1"]
    assert (first.reads, first.read_bytes, first.read_ns) == (6, 350, 10)
    assert (first.opens, first.maps, first.metadata, first.metadata_ns) == (3, 1, 9, 4)
    assert dict(first.by_worker) == {7: 4, 8: 2}
    assert (second.writes, second.write_bytes, second.write_ns) == (3, 12, 6)


def test_what_a_program_only_looked_at_is_no_file_of_the_report() -> None:
    found = summed(
        sums_of(
            {"group": METADATA, "calls": {"stat": 5, "access": 1}},
            {"group": METADATA, "file": 1, "calls": {"rename": 1}},
        )
    )
    assert [found[path].is_used for path in ("/d/0", "/d/1")] == [False, True]


def test_where_all_ranges_are_known_reads_of_the_same_bytes_count_exactly() -> None:
    sums = sums_of({"group": READING, "calls": {"pread64": 3}, "bytes": 250, "points": 1})
    found = summed(sums, read(0, 0, 100), read(20, 100, 100), read(40, 50, 50))["/d/0"]
    assert (found.ranged_bytes, found.distinct_bytes) == (250, 200)
    assert found.reread_fraction == pytest.approx(0.2)


def test_where_reads_were_joined_a_sample_of_their_bytes_tells() -> None:
    """Two processes that read the same half of a file, and other bytes, whose ranges are not known."""
    sums = sums_of(
        {"group": READING, "pid": 1, "calls": {"pread64": 9}, "bytes": 80 * POINT_BYTES, "points": 80},
        {"group": READING, "pid": 2, "calls": {"pread64": 9}, "bytes": 80 * POINT_BYTES, "points": 80},
        blocks=[(0, 0, 1, [*range(80)]), (0, 0, 2, [*range(40, 120)])],
    )
    found = summed(sums, read(0, -1, 80 * POINT_BYTES, calls=9))["/d/0"]
    assert found.reread_fraction == pytest.approx(0.25)
    of_one = sums.where(sums.pid == 1)
    assert summed(of_one)["/d/0"].reread_fraction == pytest.approx(0.0)


def test_a_bursts_calls_count_as_alike_in_the_latencies() -> None:
    sums = sums_of({"group": READING, "calls": {"pread64": 11}, "bytes": 1100})
    rows = [read(0, 0, 1000, calls=10), read(5000, 1000, 100)]
    rows[0]["end_ns"], rows[1]["end_ns"] = 20_000, 5000 + 90_000
    pattern = pattern_of([summed(sums, *rows)["/d/0"]], None)
    assert pattern is not None
    assert pattern.quantiles_of_bursts
    assert (pattern.p50_ms, pattern.p99_ms) == (0.002, 0.09)


def test_values_inside_windows_are_summed() -> None:
    times, values = np.array([5, 15, 25]), np.array([1, 10, 100])
    assert sum_inside(times, values, np.array([0, 20]), np.array([10, 26])) == 101


def test_made_counts_the_calls_of_all_rows() -> None:
    assert calls_of({"calls": 3}, {"calls": 1}).made == 4
