"""Files are summed up by what a user thinks in; what is no data is left out."""

from __future__ import annotations

from typing import Any

import pytest

from iotrace.analysis.results import DataWait, FileCost, FileGroup, FileIo, Io
from iotrace.analysis.storage.file_groups import Used, file_groups
from tests.support.results import unknown


def cost(path: str, decode_ms: float, read_ms: float = 0.0) -> FileCost:
    ms = decode_ms + read_ms
    return FileCost(path=path, ms=ms, read_ms=read_ms, decode_ms=decode_ms, transform_ms=0.0)


def row(path: str, reads: int = 1, **known: Any) -> FileIo:
    """A file that was read once, for a MiB in a ms."""
    sizes = {"read_bytes": reads << 20, "read_ms_total": float(reads), "write_bytes": 0, "writes": 0}
    about = {"opens": 1, "maps": 0, "metadata_ms_total": 0.0, "by_worker": {}, **sizes, **known}
    return unknown(FileIo, path=path, reads=reads, kind="file", **about)


def grouped(
    costs: list[FileCost], rows: list[FileIo], in_batches: list[str] | None = None, **known: Any
) -> tuple[dict[str, FileGroup], dict[str, str | None]]:
    """The groups by their path, and the group of each file; batches are made of the files with costs."""
    wait = unknown(DataWait, raw_ms=100.0 if costs else None, files=costs)
    read = frozenset(in_batches if in_batches is not None else [each.path for each in costs])
    used = Used(**{"cwd": "/home/me/run", "in_batches": read, "by_libraries": frozenset(), **known})
    groups, io = file_groups(wait, unknown(Io, files=rows), used)
    assert io is not None
    paths = [group.path for group in groups]
    assert len(paths) == len(set(paths))
    assert [file.path for file in io.files] == [each.path for each in rows]
    return dict(zip(paths, groups, strict=True)), {file.path: file.group for file in io.files}


def images(directory: str, number: int) -> list[str]:
    return [f"{directory}/{index:03}.jpg" for index in range(number)]


def test_many_images_of_a_directory_are_one_line() -> None:
    harbour, road = images("data/harbour", 41), images("data/road", 5)
    costs = [cost(path, 2.0) for path in harbour] + [cost(path, 0.1) for path in road]
    groups, of_file = grouped(costs, [row(path) for path in harbour + road])
    assert list(groups) == ["data/harbour/", "data/road/"]
    first = groups["data/harbour/"]
    assert (first.kind, first.members, first.reads, first.read_bytes) == ("directory", 41, 41, 41 << 20)
    assert first.ms == pytest.approx(82.0)
    assert {of_file[path] for path in harbour} == {"data/harbour/"}


def test_directories_of_which_none_costs_most_are_one() -> None:
    paths = [path for name in ("cat", "dog", "owl") for path in images(f"data/train/{name}", 4)]
    groups, _ = grouped([cost(path, 1.0) for path in paths], [row(path) for path in paths])
    (group,) = groups.values()
    assert (group.path, group.members) == ("data/train/", 12)
    # One file in each directory.
    scans = [f"/data/patient_{index}/scan.nii.gz" for index in range(9)]
    groups, _ = grouped([cost(path, 1.0) for path in scans], [row(path) for path in scans])
    assert {path: group.members for path, group in groups.items()} == {"/data/": 9}


def test_a_file_that_costs_most_of_its_directory_stands_alone() -> None:
    paths = [f"data/case_{index}.h5" for index in range(4)]
    costs = [cost(paths[2], 54.4, 1.4), cost(paths[3], 0.2)]
    groups, of_file = grouped(costs, [row(path) for path in paths])
    assert list(groups) == ["data/case_2.h5", "data/"]
    slow = groups["data/case_2.h5"]
    assert (slow.kind, slow.members, slow.decode_ms, slow.read_ms) == ("file", None, 54.4, 1.4)
    assert groups["data/"].members == 3
    assert of_file[paths[0]] == "data/"


def test_without_a_wait_bytes_say_what_stands_alone() -> None:
    rows = [row("train.npy", reads=4000), row("labels.npy"), row("vocab.txt"), row("config.json")]
    groups, _ = grouped([], rows)
    assert list(groups) == ["train.npy", "./"]
    assert groups["train.npy"].ms is None


def test_two_files_are_named() -> None:
    groups, _ = grouped([cost("a.h5", 5.0), cost("b.h5", 5.0)], [])
    assert set(groups) == {"a.h5", "b.h5"}


ARRAY = "data/fields.zarr/height"
CHUNKS = [f"{ARRAY}/c/{index}/0/0" for index in range(4)]
SURFACE = [f"data/fields.zarr/surface/c/{index}/0" for index in range(4)]


@pytest.mark.parametrize("version", [3, 2])
def test_a_chunks_file_belongs_to_its_array_and_store(version: int) -> None:
    part = {3: "zarr.json", 2: ".zarray"}[version]
    about = [f"{ARRAY}/{part}", "data/fields.zarr/surface/zarr.json", "data/fields.zarr/zarr.json"]
    rows = [row(path) for path in CHUNKS + SURFACE + about]
    named = frozenset({ARRAY, "data/fields.zarr/surface"})
    costs = [cost(ARRAY, 80.0), *(cost(path, 0.0, 0.5) for path in CHUNKS)]
    costs += [cost("data/fields.zarr/surface", 5.0)]
    groups, of_file = grouped(costs, rows, by_libraries=named)
    assert list(groups) == [ARRAY, "data/fields.zarr"]
    assert [(group.kind, group.members) for group in groups.values()] == [("store", 5), ("store", 6)]
    assert (groups[ARRAY].decode_ms, groups[ARRAY].read_ms) == (80.0, 2.0)
    assert of_file[CHUNKS[0]] == ARRAY
    assert of_file[SURFACE[0]] == "data/fields.zarr"
    # Two arrays alike are one store, whose directory need not be named as one.
    renamed = {path: path.replace(".zarr/", "/") for path in [*CHUNKS, *SURFACE, *about, *named]}
    costs = [cost(renamed[path], 5.0) for path in (*CHUNKS, *SURFACE)]
    rows = [row(renamed[path]) for path in CHUNKS + SURFACE + about]
    groups, _ = grouped(costs, rows, by_libraries=frozenset(renamed[path] for path in named))
    assert {path: (group.kind, group.members) for path, group in groups.items()} == {
        "data/fields": ("store", 11)
    }


def test_a_directory_that_a_library_reads_as_one_is_a_dataset() -> None:
    parts = [f"data/taxi/year={year}/part.parquet" for year in range(2019, 2024)]
    costs = [cost("data/taxi", 30.0), *(cost(path, 0.0, 1.0) for path in parts)]
    groups, _ = grouped(costs, [row(path) for path in parts], by_libraries=frozenset({"data/taxi"}))
    (group,) = groups.values()
    assert (group.path, group.kind, group.members, group.ms) == ("data/taxi", "dataset", 5, 35.0)
    lmdb = ["data/train_lmdb/data.mdb", "data/train_lmdb/lock.mdb"]
    groups, _ = grouped([cost(lmdb[0], 1.0)], [row(path) for path in lmdb])
    assert {path: group.kind for path, group in groups.items()} == {"data/train_lmdb": "dataset"}


def test_archives_and_objects_of_a_remote_store() -> None:
    groups, _ = grouped([cost("shard.tar", 9.0), cost("a.tar.gz", 5.0)], [])
    assert {group.kind for group in groups.values()} == {"archive"}
    objects = [f"s3://bucket/train/{index}.jpg" for index in range(5)]
    groups, _ = grouped([cost(path, 1.0) for path in objects], [])
    assert {path: group.members for path, group in groups.items()} == {"s3://bucket/train/": 5}


@pytest.mark.parametrize(
    "path",
    [
        "/tmp/_ijp14sz",  # where a library tries out whether it may write
        "/scratch/me/tmp/tmpab12_xyz",
        "/tmp/torch_compile/cache.bin",
        "/dev/shm/torch_4711_1",
        "/tmp/pymp-abc/listener",
        "/home/me/.cache/matplotlib/fontlist.json",
        "/home/me/venv/lib/python3.11/site-packages/lib/table.dat",
        "/home/me/python/share/zoneinfo.bin",
        "/etc/hosts",
    ],
)
def test_temporary_files_and_those_of_libraries_stay_out(path: str) -> None:
    written = path.startswith(("/tmp", "/scratch", "/dev"))
    rows = [row(path, reads=0 if written else 1, writes=int(written)), row("a.bin")]
    groups, of_file = grouped([cost("a.bin", 1.0)], rows, prefixes=frozenset({"/home/me/python"}))
    assert list(groups) == ["a.bin"]
    assert of_file[path] is None


@pytest.mark.parametrize("path", ["/tmp/data/train.npy", "/tmp/tmpab12_xyz", "/dev/shm/data/train.npy"])
def test_what_batches_are_made_of_stays_wherever_it_lies(path: str) -> None:
    rows = [row(path, writes=3)]
    assert list(grouped([cost(path, 1.0)], rows)[0]) == [path]
    others = list(grouped([cost("a.bin", 1.0)], rows, in_batches=["a.bin"])[0])
    assert others == ["a.bin", *([path] if path.startswith("/tmp/data/") else [])]
    # A dataset in /tmp that is only read stays, though no batch of a loader is made of it.
    assert list(grouped([], [row("/tmp/data/train.npy")])[0]) == ["/tmp/data/train.npy"]


def test_what_is_only_written_is_summed_up_apart() -> None:
    checkpoints = [row(f"out/epoch_{index}.pt", reads=0, writes=9) for index in range(4)]
    groups, _ = grouped([], checkpoints)
    assert {path: group.members for path, group in groups.items()} == {"out/": 4}
    mixed = [*checkpoints, *(row(f"out/part_{index}.npy") for index in range(3))]
    groups, _ = grouped([], mixed)
    assert groups["out/"].members == 3
    assert len(groups) == 5


def test_what_the_program_wrote_and_then_reads_is_its_data_below_tmp_too() -> None:
    rows = [
        row("/tmp/job/corpus.jsonl", writes=3, write_bytes=9),
        row("/tmp/tmpab_cd12e/a.c", writes=1, write_bytes=9),
        row("/tmp/job/log.txt", 0, writes=1, write_bytes=9),
    ]
    groups, _ = grouped([], rows)
    assert list(groups) == ["/tmp/job/corpus.jsonl"]
