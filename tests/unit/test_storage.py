"""Reads by mount and file, bytes from the device by process: arithmetic on made-up calls and accounts."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from iotrace.analysis.results import (
    Amplification,
    ChunkedArray,
    FileGroup,
    FileIo,
    Io,
    MappedReads,
    RowGroups,
    WholeReads,
)
from iotrace.analysis.rules.advice import resolve
from iotrace.analysis.rules.model import Finding, rule_of
from iotrace.analysis.storage import by_mount
from iotrace.analysis.storage.amplification import (
    MapFetched,
    _own_map,
    fetched_by_faults,
    fetched_by_own_maps,
    mapped_files,
)
from iotrace.analysis.storage.chunks import row_groups
from iotrace.analysis.storage.read_pattern import (
    FileCalls,
    extents_by_place,
    pattern_of,
    ranges_by_place,
)
from iotrace.analysis.storage.whole_reads import _cost_most, _File, _of_members
from iotrace.launch.telemetry.procfs import mounts_with_files
from iotrace.session.names import KIND_ITEM
from iotrace.sources.columns import Columns
from iotrace.sources.processes import SPAN_DTYPE
from iotrace.sources.records import IteratorStart, Mapped, RowGroupsRead, Tick, Worker
from iotrace.sources.session import Session
from tests.support.results import unknown
from tests.support.rules import blamed_by

MS = 1_000_000


def _calls(*lengths_ms: int, apart_ms: int = 100, **known: Any) -> FileCalls:
    starts = np.arange(len(lengths_ms), dtype=np.int64) * apart_ms * MS
    ends = starts + np.array(lengths_ms, dtype=np.int64) * MS
    made = np.ones_like(starts)
    return FileCalls(reads=len(lengths_ms), starts_ns=starts, ends_ns=ends, made=made, **known)


def test_latencies_are_those_of_calls_and_bandwidth_that_of_the_time_in_which_one_ran() -> None:
    slow = _calls(*range(1, 21), read_bytes=2100, filled=20, small=5, after_another=10, sequential=4)
    found = pattern_of([slow], 40)
    assert found is not None
    assert (found.p50_ms, found.p95_ms, found.p99_ms) == (10.0, 19.0, 20.0)
    assert found.bytes_per_s == found.reader_bytes_per_s == pytest.approx(2100 / 0.210)
    assert (found.small_fraction, found.random_fraction) == pytest.approx((0.25, 0.6))
    assert found.reread_fraction is None  # no read at a known place
    # Two readers at once: the mount gave both their bytes in the time of one.
    both = pattern_of([slow, slow], 40)
    assert both is not None
    assert both.bytes_per_s == pytest.approx(2 * 2100 / 0.210)
    assert both.reader_bytes_per_s == pytest.approx(2100 / 0.210)


def test_what_calls_do_not_tell_is_unknown() -> None:
    assert pattern_of([FileCalls(metadata=3)], 1) is None
    found = pattern_of([_calls(1, unsized_reads=1, metadata=6)], None)
    assert found is not None
    assert (found.bytes_per_s, found.small_fraction, found.metadata_calls_per_sample) == (None, None, None)
    assert found.metadata_calls == 6


def test_repeated_ranges_count_once_for_each_file() -> None:
    of_each = ranges_by_place(np.array([1, 1, 3]), np.array([0, 50, 0]), np.array([100, 100, 7]))
    assert of_each == {1: (200, 150), 3: (7, 7)}
    assert extents_by_place(np.array([1, 1, 3]), np.array([150, 100, 7])) == {1: 150, 3: 7}
    assert extents_by_place(np.array([], np.int64), np.array([], np.int64)) == {}
    assert ranges_by_place(np.array([1, 1]), np.array([0, 2**61]), np.array([100, 7])) == {1: (107, 107)}
    file = _calls(1, 1, ranged_bytes=200, distinct_bytes=150)
    found = pattern_of([file, file], 2)
    assert found is not None
    assert found.reread_fraction == pytest.approx(0.25)


def test_mounts_hold_the_files_below_them() -> None:
    text = "/dev/a / ext4 rw 0 0\nproc /proc proc rw 0 0\nsrv:/x /my\\040data nfs4 rw 0 0\n"
    mounts = mounts_with_files(text)
    assert mounts == [("/", "ext4"), ("/my data", "nfs4")]
    sampler = SimpleNamespace(mounts=mounts, node="n")
    plain = SimpleNamespace(bytes_per_s=9.0, cold=None)
    session: Any = SimpleNamespace(
        telemetry_of=lambda _: SimpleNamespace(sampler=sampler),
        manifest=SimpleNamespace(cwd="/home"),
        processes=[],
        plain_reads=lambda node, point: plain if (node, point) == ("n", "/") else None,
    )
    calls = {
        "a.bin": _calls(1, read_bytes=5),
        "/my data/b": _calls(2, read_bytes=7),
        "/my data/c": _calls(2, read_bytes=1, maps=1),
    }
    files = [unknown(FileIo, path=path, group=path) for path in calls] + [unknown(FileIo, path="a.py")]
    rank: Any = SimpleNamespace(main=SimpleNamespace(identity=SimpleNamespace(node="n")), processes=[])
    groups, io = by_mount.with_storage(
        [unknown(FileGroup, path="a.bin")],
        unknown(Io, files=files),
        {**calls, "a.py": FileCalls()},
        session,
        rank,
        4,
    )
    assert io.mounts is not None
    found = {mount.point: (mount.files, mount.read_bytes, mount.pattern.reads) for mount in io.mounts}
    assert found == {"/": (1, 5, 1), "/my data": (2, None, 2)}  # what page faults read is not known
    assert {mount.point: mount.plain_bytes_per_s for mount in io.mounts} == {"/": 9.0, "/my data": None}
    assert groups[0].pattern is not None
    assert groups[0].pattern.p99_ms == 1.0
    assert io.device_reads is None


def _process(
    pid: int, parent: int, accounts: list[tuple[int, int]], worker: int | None = None, node: str = "a"
) -> Any:
    ticks = [Tick(clock=(at, 0, 0), cpu_ns=0, read_bytes=amount) for at, amount in accounts]
    clock = SimpleNamespace(times_to_session_ns=lambda times: np.array(times, dtype=np.int64))
    identity = SimpleNamespace(node=node, ppid=parent)
    role = "main" if worker is None else f"worker {worker}"
    return SimpleNamespace(
        pid=pid, worker=worker, role=role, identity=identity, ended=True, clock=clock, of_type=lambda _: ticks
    )


@pytest.mark.parametrize("hosts", ["a", "ab", "ba"])
def test_bytes_of_a_worker_are_not_its_parents_too(hosts: str) -> None:
    """Nor are those of another host's processes, which have the same numbers."""
    worker = _process(2, 1, [(100, 10), (500, 1000)], worker=0)
    main = _process(1, 0, [(0, 3), (400, 5), (600, 1006), (1000, 1007)])
    others = [
        _process(2, 1, [(100, 7), (500, 700)], worker=0, node="b"),
        _process(1, 0, [(0, 0), (1000, 5000)], node="b"),
    ]
    processes = [each for host in hosts for each in ([main, worker] if host == "a" else others)]
    launches: Any = [SimpleNamespace(manifest=SimpleNamespace(cwd="/"))]
    nothing: Any = None
    session = Session(Path(), launches, processes, nothing, nothing)
    rank: Any = SimpleNamespace(main=main, processes=[main, worker])
    _, io = by_mount.with_storage([], unknown(Io, files=[]), {}, session, rank, None)
    assert io.mounts is None
    assert io.device_reads is not None
    own, theirs = io.device_reads
    assert (own.role, own.total_bytes, theirs.role, theirs.total_bytes) == ("main", 7, "worker 0", 1000)
    assert own.read_bytes == [3, 0, 0, 2, 0, 1, 0, 0, 0, 1]
    assert theirs.read_bytes == [10, 0, 0, 0, 990, 0, 0, 0, 0, 0]
    assert len(own.at_seconds) == 11


@pytest.mark.parametrize(
    ("cost_ms", "suggested", "leads"),
    [(60.0, True, [True]), (30.0, True, [False]), (20.0, True, []), (60.0, False, [])],
)
def test_chunks_are_blamed_where_their_file_has_the_wait(
    cost_ms: float, suggested: bool, leads: list[bool]
) -> None:
    predicted = 10 if suggested else None
    array = unknown(
        ChunkedArray,
        path="a.h5",
        decoded_at_least_bytes=640,
        decoded_at_most_bytes=640,
        used_bytes=10,
        predicted_bytes=predicted,
    )
    group = unknown(
        FileGroup, path="a.h5", amplification=unknown(Amplification, arrays=[array], row_groups=[])
    )
    report: Any = SimpleNamespace(
        file_groups=[group, unknown(FileGroup, path="b")],
        data_wait=SimpleNamespace(files=[SimpleNamespace(path="a.h5", ms=cost_ms)], raw_ms=100.0),
        steps=SimpleNamespace(mean_ms=110.0),
        primary=None,
    )
    found = blamed_by("IO403", report)
    assert [each.leads for each in found] == leads
    for each in found:
        assert each.text.endswith("reads: 64 bytes are decoded for each byte used")
        assert (each.wait_ms, each.remedy) == (cost_ms, "")


def _read(counts: dict[int, int], group_rows: int = 100, groups: int = 10, **known: Any) -> RowGroupsRead:
    """Row groups of rows of 1000 bytes that were read so often."""
    read = [(number, count, group_rows, 1000 * group_rows) for number, count in counts.items()]
    about = {"path": "a.parquet", "call": "read_row_group", "columns": None, "of_columns": 3, **known}
    return RowGroupsRead(rows=group_rows * groups, groups=groups, read=read, compression="ZSTD", **about)


def _found(
    passes: int | None,
    *processes: list[RowGroupsRead],
    worker: int | None = None,
    by_worker: int | None = None,
) -> RowGroups:
    rank: Any = SimpleNamespace(
        processes=[SimpleNamespace(of_type=lambda _, own=own: own, worker=worker) for own in processes]
    )
    paths: Any = SimpleNamespace(shown=lambda path: path)
    return row_groups(rank, paths, passes, by_worker)["a.parquet"]


def test_row_groups_are_counted_over_processes_and_passes() -> None:
    early = _read({0: 1})  # a later record of the same call replaces it
    found = _found(2, [early, _read({0: 30, 1: 50})], [_read({0: 70, 1: 50})])
    assert (found.reads, found.groups_read, found.groups) == (200, 2, 10)
    assert (found.decoded_bytes, found.distinct_bytes) == (20_000_000, 200_000)
    assert found.decoded_per_pass == 50
    # Samples of two rows may lie across two groups of five: 4 KiB are five rows.
    assert (found.suggested_rows, found.predicted_bytes) == (5, 200 * 2 * 5 * 1000)
    assert "ParquetWriter(" in found.command
    assert "a.regrouped.parquet" in found.command
    assert 'compression="zstd"' in found.command


def test_of_a_file_whose_rows_a_filter_chose_no_part_is_told_for_the_whole() -> None:
    index = _read({0: 1}, call="read", columns=["id"])
    assert _found(1, [index]).reads == 1
    with pytest.raises(KeyError):
        _found(1, [index], [_read({}, call="to_table(filter)")])


@pytest.mark.parametrize(
    ("passes", "counts", "columns"),
    [
        (3, {0: 3, 1: 3}, None),  # once an epoch
        (None, {0: 100}, None),  # no loader that iotrace knows
        (1, {0: 2, 1: 2}, None),  # half of a group for each sample, across two: nothing is spared
    ],
)
def test_row_groups_that_fit_get_no_advice(passes: int | None, counts: dict[int, int], columns: Any) -> None:
    found = _found(passes, [_read(counts, columns=columns)])
    assert (found.suggested_rows, found.predicted_bytes, found.command) == (None, None, "")


def test_columns_that_are_read_apart_are_no_repetition() -> None:
    found = _found(1, [_read({0: 1}, columns=["x"]), _read({0: 1}, columns=["y"])])
    assert (found.reads, found.decoded_per_pass, found.columns_read, found.columns) == (2, 1, 2, 3)


def test_a_file_that_is_decoded_whole_for_each_sample_is_to_be_kept() -> None:
    own = _read(dict.fromkeys(range(10), 50), call="to_table")
    found = _found(2, [own], [own])
    assert (found.whole_reads, found.readers, found.decoded_per_pass) == (100, 2, 50)
    assert (found.keep, found.predicted_bytes) == (True, 2 * 1_000_000)
    assert (found.suggested_rows, found.command) == (None, "")


@pytest.mark.parametrize(
    ("records", "times"),
    [
        ([_read(dict.fromkeys(range(10), 1), call="to_table")], 4),  # each worker keeps it
        (
            [_read({0: 1, 1: 1}, groups=2, call="read", columns=[name]) for name in "abcd"],
            4,
        ),  # and each column
        # Also by row groups: neither remedy tells what it spares.
        ([_read({0: 50}, call="read"), _read({0: 50})], 400),
        ([_read(dict.fromkeys(range(10), 3), call="to_table")], 12),  # once in each pass that a worker sees
    ],
)
def test_files_that_are_read_whole_once_in_each_process_are_none(
    records: list[RowGroupsRead], times: int
) -> None:
    persistent = times == 12
    found = _found(1, *[records] * 4, worker=0, by_worker=1)
    assert found.decoded_per_pass == times
    if not persistent:
        assert not found.keep
        assert found.suggested_rows is None
    else:
        assert found.keep
        assert not _found(3, *[records] * 4, worker=0, by_worker=3).keep


def test_row_groups_are_blamed_where_their_files_have_the_wait() -> None:
    row = unknown(
        RowGroups, path="a.parquet", decoded_bytes=640, distinct_bytes=5, passes=2, predicted_bytes=10
    )
    other = replace(row, path="b.parquet")
    amplification = unknown(Amplification, arrays=[], row_groups=[row, other])
    group = unknown(FileGroup, path="data/", amplification=amplification)
    report: Any = SimpleNamespace(
        file_groups=[group],
        data_wait=SimpleNamespace(
            files=[SimpleNamespace(path=path, ms=30.0) for path in ("a.parquet", "b.parquet")], raw_ms=100.0
        ),
        steps=SimpleNamespace(mean_ms=110.0),
        primary=SimpleNamespace(epochs=2, epochs_ended=2),
    )
    (found,) = blamed_by("IO403", report)
    assert (found.id, found.wait_ms, found.leads) == ("read-amplification", 60.0, True)
    assert found.text.endswith("each is decoded 64 times an epoch")
    amplification = unknown(Amplification, arrays=[], row_groups=[row, replace(other, keep=True)])
    report.file_groups = [unknown(FileGroup, path="data/", amplification=amplification)]
    report.data_wait.files[1].ms = 50.0
    (found,) = blamed_by("IO403", report)
    assert (found.wait_ms, found.text) == (50.0, "it is read and decoded whole 64 times an epoch")


def test_files_that_are_read_whole_again_are_blamed_where_they_have_the_wait() -> None:
    whole = WholeReads(files=1, times=320, times_per_pass=160.0, readers=2, given_bytes=None, fits=False)
    report: Any = SimpleNamespace(
        file_groups=[unknown(FileGroup, path="a.csv", ms=60.0, whole_reads=whole)],
        data_wait=SimpleNamespace(files=[], raw_ms=100.0),
        steps=SimpleNamespace(mean_ms=110.0),
        primary=SimpleNamespace(epochs=2, epochs_ended=2),
    )
    (found,) = blamed_by("IO403", report)
    assert (found.wait_ms, found.leads) == (60.0, True)
    assert found.text == "it is read and decoded whole 160 times an epoch"
    assert found.evidence == {"whole_reads": 320.0, "predicted_reads": 2.0}
    report.primary = SimpleNamespace(epochs=1, epochs_ended=0)
    assert blamed_by("IO403", report)[0].text == "it is read and decoded whole 160 times in the run"
    report.primary = None
    report.file_groups = [
        unknown(FileGroup, path="d/", ms=60.0, whole_reads=replace(whole, files=4, times_per_pass=40.0))
    ]
    assert (
        blamed_by("IO403", report)[0].text == "each of its files is read and decoded whole 40 times an epoch"
    )
    report.file_groups[0] = replace(report.file_groups[0], ms=2.0)
    assert blamed_by("IO403", report) == []


@pytest.mark.parametrize(
    ("costs", "is_most"),
    [
        ({"d/a.npy": 0.4, "d/a.mp4": 150.0}, False),  # labels beside the videos that cost the wait
        ({"d/a.npy": 40.0, "d/a.json": 3.0}, True),
        ({}, True),  # nothing is known, or costs anything
    ],
)
def test_files_that_are_read_whole_are_told_where_they_are_what_the_directory_costs(
    costs: dict[str, float], is_most: bool
) -> None:
    group = unknown(FileGroup, path="d/", ms=sum(costs.values()) or None)
    assert _cost_most([_File("d/a.npy")], group, costs) == is_most


def _maker(
    accounts: list[tuple[int, int]], *told: Mapped, faults: int = 0, role: str = "forked", parent: int = 0
) -> Any:
    """A process that accessed maps, with its (read_bytes, rchar)."""
    ticks = [
        Tick(clock=(at, 0, 0), cpu_ns=0, read_bytes=read, rchar=rchar)
        for at, (read, rchar) in enumerate(accounts)
    ]
    spans = np.zeros(1, SPAN_DTYPE)
    spans["kind"], spans["major_faults"] = KIND_ITEM, faults
    records: dict[Any, list[Any]] = {Tick: ticks, Mapped: [*told], Worker: [], IteratorStart: []}
    identity = SimpleNamespace(ppid=parent, role=role)
    pid = 2 if parent else 1
    return SimpleNamespace(pid=pid, spans=spans, identity=identity, of_type=lambda kind: records[kind])


def _mapped(path: str = "a.bin", accesses: int = 10, **known: int) -> Mapped:
    sums = {"bytes": 100 * accesses, "pages": accesses, "odd": 0, "page_bytes": 4096, **known}
    return Mapped(path=path, accesses=accesses, **sums)


def _told(*processes: Any) -> MapFetched:
    rank: Any = SimpleNamespace(processes=processes)
    paths: Any = SimpleNamespace(shown=lambda path: path)
    return fetched_by_faults(["a.bin"], mapped_files(rank, paths), rank)


def test_what_came_by_page_faults_is_what_no_call_can_have_read() -> None:
    early = _mapped(accesses=2)  # a later record replaces it
    found = _told(_maker([(0, 0), (3_000_000, 1000)], early, _mapped(), faults=3))
    assert (found.used_bytes, found.fetched_bytes, found.reads.major_faults) == (1000, 2_999_000, 3)
    assert (found.reads.touched_bytes, found.reads.predicted_bytes) == (40960, 40960)
    # A training process counts from its loop on.
    main = _maker([(2_900_000, 0), (3_000_000, 1000)], _mapped(), role="main")
    assert _told(main).fetched_bytes == 99_000
    assert _told(main).reads.predicted_bytes is None  # 2.4 times what was touched


@pytest.mark.parametrize(
    ("processes", "why"),
    [
        ([_maker([], _mapped())], "tells no bytes"),
        ([_maker([(0, 0), (4096, 0)], _mapped(), faults=2)], "counts no bytes"),
        ([_maker([(0, 0), (9_000_000, 5_000_000)], _mapped())], "read calls"),
        ([_maker([(0, 0), (9_000_000, 0)], _mapped(), _mapped("b.bin"))], "several files"),
        ([_maker([(0, 0), (9_000_000, 0)], _mapped()), _maker([], parent=1)], "children"),
    ],
)
def test_what_the_kernel_does_not_tell_of_a_map_is_unknown(processes: list[Any], why: str) -> None:
    found = _told(*processes)
    assert (found.fetched_bytes, found.reads.predicted_bytes) == (None, None)
    assert why in found.why


def test_pages_of_accesses_that_are_no_piece_of_the_file_are_unknown() -> None:
    for known in ({"odd": 1}, {"elements": 5}):
        found = _told(_maker([(0, 0), (9_000_000, 0)], _mapped(**known)))
        assert found.fetched_bytes == 9_000_000
        assert found.used_bytes == 1000 + 16 * known.get("elements", 0)
        assert (found.reads.touched_bytes, found.reads.predicted_bytes) == (None, None)


def test_elements_of_all_maps_are_those_of_the_latest_record_of_any() -> None:
    for own, other in ((3, 7), (7, 3)):
        maps = _mapped(elements=own), _mapped("b.bin", elements=other)
        assert _told(_maker([(0, 0), (9_000_000, 0)], *maps)).used_bytes == 1000 + 16 * 7


def test_pages_that_were_read_around_are_blamed_where_the_map_has_the_wait() -> None:
    reads = unknown(MappedReads, predicted_bytes=40960)
    amplification = unknown(
        Amplification,
        arrays=[],
        row_groups=[],
        mapped=reads,
        fetched_per_used=261.1,
        fetched_bytes=5,
        used_bytes=1,
    )
    group = unknown(FileGroup, path="a.bin", ms=60.0, amplification=amplification)
    report: Any = SimpleNamespace(
        file_groups=[group],
        data_wait=SimpleNamespace(files=[], raw_ms=100.0),
        steps=SimpleNamespace(mean_ms=110.0),
        primary=SimpleNamespace(epochs=2, epochs_ended=2),
    )
    (found,) = blamed_by("IO403", report)
    assert (found.id, found.wait_ms, found.leads) == ("read-amplification", 60.0, True)
    assert "261 bytes are fetched" in found.text


def test_of_a_map_of_the_programs_own_only_what_was_fetched_is_told() -> None:
    maker = _maker([(0, 0), (3_000_000, 1000)], faults=3)
    rank: Any = SimpleNamespace(processes=[maker])
    fetched, why = fetched_by_own_maps("a.bin", ["a.bin"], rank)
    assert (fetched, why.endswith("leaves no trace")) == (2_999_000, True)
    fetched, why = fetched_by_own_maps("a.bin", ["a.bin", "b.bin"], rank)
    assert (fetched, "several files were mapped" in why) == (None, True)
    maker = _maker([(0, 0), (3_000_000, 2_000_000)], faults=3)
    rank.processes = [maker]  # whose calls may have had most of it
    assert fetched_by_own_maps("a.bin", ["a.bin"], rank)[0] is None


@pytest.mark.parametrize(
    ("calls", "found"),
    [
        ({"d/a": FileCalls(maps=1), "d/b": FileCalls(reads=1, read_bytes=5)}, "d/a"),
        ({"d/a": FileCalls(maps=1), "d/b": FileCalls(maps=1)}, None),
        ({"d/a": FileCalls(maps=1, reads=1)}, None),  # by calls, too
        ({"d/a": FileCalls(maps=1), "d/b": FileCalls(reads=1, unsized_reads=1)}, None),
        ({"d/a": FileCalls(reads=1)}, None),
    ],
)
def test_the_only_map_of_a_group(calls: dict[str, FileCalls], found: str | None) -> None:
    assert _own_map([*calls, "d/unseen"], calls) == found


@pytest.mark.parametrize(
    ("leads", "gain_ms", "first"),
    [(True, 20.0, "decode-bound"), (True, 5.0, "too-few-workers"), (False, 20.0, "too-few-workers")],
)
def test_what_spares_needless_work_comes_before_more_workers(leads: bool, gain_ms: float, first: str) -> None:
    waste = Finding(rule="IO403", text="", is_main_cause=leads, spares_work=True)
    more = Finding(rule="IO204", text="", remedy="more workers", gain_ms=10.0)
    keep = Finding(rule="IO102", text="", remedy="keep it", gain_ms=gain_ms, spares_work=True)
    assert rule_of(resolve([waste, more, keep])[0].rule).id == first


@pytest.mark.parametrize(
    ("sizes", "held"),
    [
        ([12, 12, 12, 12], 12),  # one array, read again and again from an archive that stays open
        ([8, 4, 8, 4], 12),  # two arrays, by each opening
        ([8, -1], None),  # a call does not tell
    ],
)
def test_what_is_held_of_an_archive_is_no_repeated_read(sizes: list[int], held: int | None) -> None:
    spans = Columns(
        len(sizes),
        {"name": np.ones(len(sizes), np.int64), "file": np.full(len(sizes), 7), "bytes": np.array(sizes)},
    )
    found = _of_members(spans, {1: "numpy.NpzFile.__getitem__", 7: "d/a.npz"})
    assert found == ({} if held is None else {7: held})
