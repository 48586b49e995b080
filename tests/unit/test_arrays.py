"""Arrays that HDF5 and zarr store in chunks: what is recorded of accesses, and what is made of it."""

from __future__ import annotations

import shlex
import subprocess
import sys
from math import prod
from types import SimpleNamespace
from typing import Any

import h5py
import numpy as np
import pytest
from msgspec.structs import replace

from iotrace.agent.readpaths.chunk_accesses import ChunkAccesses
from iotrace.analysis.results import ChunkedArray
from iotrace.analysis.rules.chunks import a_part_of, read_whole_again, spares_decoding
from iotrace.analysis.rules.facts.examples import facts_of
from iotrace.analysis.rules.model import rule_of
from iotrace.analysis.storage.arrays import arrays_of
from iotrace.analysis.storage.read_pattern import FileCalls
from iotrace.analysis.wait.gain_bound import FILES
from iotrace.sources.records import Chunked

RECORD = np.dtype([("dbz", "f4"), ("vel", "f4"), ("t", "i8")])


def _recorded(path: Any, *selections: Any) -> list[dict[str, Any]]:
    """The records of accesses to each dataset of a file."""
    recorder: Any = SimpleNamespace(directory="d", before_flush=[], records=[], closed=True)
    recorder.absorb = lambda error, what: pytest.fail(f"{what}: {error}")
    accesses = ChunkAccesses(recorder, "h5py")
    with h5py.File(path, "r") as file:
        for name in file:
            for selection, *new in selections:
                kwargs = {"new_dtype": new[0]} if new else {}
                accesses.note(str(path), (file[name], selection), kwargs)
    recorder.before_flush[0]()
    return list(recorder.records)


def test_a_dataset_in_one_piece_is_a_chunk_of_which_parts_are_read(tmp_path: Any) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["x"] = np.zeros((100, 1024), "i2")
        file["few"] = np.zeros(10)
        file["one"] = 1.0
    (found,) = _recorded(tmp_path / "a.h5", (slice(2),), (slice(None),))
    assert (found["dataset"], found["chunk"]) == ("/x", [100, 1024])
    assert (found["whole"], found["filtered"], found["complete"], found["field"]) == (False, False, 1, "")
    assert (found["elements"], found["asked_bytes"]) == (102 * 1024, 2 * 102 * 1024)


def test_an_access_to_fields_gives_these_and_reads_all(tmp_path: Any) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["rays"] = np.zeros(8192, RECORD)
    field = np.dtype([("dbz", "f4")])
    # h5py itself answers a name by an access of the field's type.
    (found,) = _recorded(tmp_path / "a.h5", ("dbz",), ((), field), (slice(8),))
    assert (found["accesses"], found["complete"], found["field"]) == (2, 1, "dbz")
    assert (found["elements"], found["asked_bytes"]) == (8200, 8192 * 4 + 8 * 16)


@pytest.mark.parametrize(
    ("rows", "objects", "kept"),
    [
        ([0, 1, 2, 40, 41, 0], 6, 4),  # of two chunks, which the cache holds
        ([0, 400, 800, 0, 400, 800], 6, 0),  # more chunks in turn than it holds
    ],
)
def test_what_the_cache_of_one_object_would_have_held(
    tmp_path: Any, rows: list[int], objects: int, kept: int
) -> None:
    """A file gives another object each time that it is asked for a dataset."""
    with h5py.File(tmp_path / "a.h5", "w", rdcc_nbytes=1 << 20) as file:
        file.create_dataset("x", data=np.zeros((1000, 4096), "f4"), chunks=(32, 4096), compression="gzip")
    recorder: Any = SimpleNamespace(directory="d", before_flush=[], records=[], closed=True)
    recorder.absorb = lambda error, what: pytest.fail(f"{what}: {error}")
    accesses = ChunkAccesses(recorder, "h5py")
    with h5py.File(tmp_path / "a.h5", "r", rdcc_nbytes=2 * 32 * 4096 * 4) as file:
        for row in rows:
            accesses.note("a.h5", (file["x"], row), {})
        one = file["x"]
        for row in rows:
            accesses.note("b.h5", (one, (slice(row, row + 2), slice(None))), {})
    recorder.before_flush[0]()
    anew, same = recorder.records
    assert (anew["objects"], anew["kept"]) == (objects, kept)
    assert (same["objects"], same["kept"]) == (1, kept)


@pytest.mark.parametrize(
    ("objects", "kept", "read_bytes", "lost"),
    [
        (160, 150, 160 * 10_000, 150),  # each access decodes a chunk again
        (160, 150, 20 * 10_000, 10),
        (160, 0, 160 * 10_000, 0),  # the cache would hold none of them
        (2, 150, 160 * 10_000, None),  # an object in each of two workers
    ],
)
def test_chunks_that_are_decoded_again_as_objects_are_made_anew(
    objects: int, kept: int, read_bytes: int, lost: int | None
) -> None:
    read = FileCalls(reads=400, filled=0, small=400, read_bytes=read_bytes, distinct_bytes=94 * 10_000)
    known = {"shape": [3000, 1024], "chunk": [32, 1024], "touched": 160}
    assert _array(_chunked(**known, objects=objects, kept=kept), read).lost == lost


def _chunked(**known: Any) -> Chunked:
    about: dict[str, Any] = {
        "path": "a.h5",
        "dataset": "/x",
        "shape": [3000, 1024],
        "chunk": [3000, 16],
        "item_bytes": 2,
        "cache_bytes": 1 << 20,
        "accesses": 160,
        "touched": 160 * 64,
        "odd": 0,
        "extents": [([1, 1024], 160)],
        "elements": 160 * 1024,
        "asked_bytes": 160 * 2048,
    }
    return Chunked(**{**about, **known})


def _array(record: Chunked, calls: FileCalls | None = None) -> ChunkedArray:
    process = SimpleNamespace(pid=7, of_type=lambda kind: [record] if isinstance(record, kind) else [])
    rank: Any = SimpleNamespace(processes=[process])
    paths: Any = SimpleNamespace(shown=lambda path: path)
    arrays, _ = arrays_of(rank, paths, {"a.h5": calls} if calls else {}, {7: 2})
    return arrays[record.path][0]


def test_bytes_from_the_file_bound_what_is_decoded_where_chunks_are_small() -> None:
    read = FileCalls(reads=10_240, filled=10_240, small=10_240, read_bytes=10_240 * 63_000)
    found = _array(_chunked(), read)
    assert found.decoded_at_least_bytes == 10_240 * (63_000 - 4096)
    assert found.suggested_chunk == [2, 1024]  # of 4 KiB
    # The same calls, had the cache kept the chunks: those of metadata.
    kept = FileCalls(reads=200, filled=200, small=200, read_bytes=200 * 2048)
    assert _array(_chunked(), kept).suggested_chunk is None


@pytest.mark.parametrize(("complete", "is_again"), [(160, True), (8, True), (7, False)])
def test_an_array_is_read_whole_again_from_four_times_a_pass_on(complete: int, is_again: bool) -> None:
    extents = [([3000, 1024], complete)]
    found = _array(_chunked(complete=complete, accesses=complete + 1, extents=extents))
    assert found.complete_once == 2
    assert bool(read_whole_again([found])) == is_again


def test_the_part_is_named_as_a_program_would_write_it() -> None:
    found = _array(_chunked(complete=160, extents=[([3000, 1024], 160)]))
    assert a_part_of([found])[0] == (
        "read only the part of x that a sample uses, as by x[i:j]: each access reads all 5.9 MiB"
    )
    fields = _array(_chunked(complete=160, field="dbz", filtered=False))
    assert a_part_of([fields])[0].endswith("x[i:j]['dbz']: x['dbz'] reads all 5.9 MiB")
    one = _array(_chunked(complete=160, chunk=[3000, 1024]))
    assert a_part_of([one])[0] == "read x once and keep it: each access decodes all 5.9 MiB"


def _store(path: Any) -> list[ChunkedArray]:
    """Two arrays of a store, read a row at a time, in chunks of many."""
    records = [
        _chunked(
            path=f"{path}/{name}",
            dataset="",
            shape=[64, 1024],
            chunk=[64, 1024],
            item_bytes=4,
            cache_bytes=0,
            touched=160,
            elements=160 * rows * 1024,
            asked_bytes=160 * rows * 4096,
            extents=[([rows, 1024], 160)],
            version="3.1.6",
        )
        for name, rows in (("sst", 1), ("ice", 2))
    ]
    process = SimpleNamespace(pid=7, of_type=lambda kind: records if kind is Chunked else [])
    rank: Any = SimpleNamespace(processes=[process])
    paths: Any = SimpleNamespace(shown=lambda path: path)
    arrays, _ = arrays_of(rank, paths, {}, {7: 2})
    return [array for each in arrays.values() for array in each]


def test_the_command_of_a_store_copies_all_of_it_with_attributes(tmp_path: Any) -> None:
    zarr = pytest.importorskip("zarr", "3.1")
    group = zarr.open_group(tmp_path / "sea.zarr", mode="w")
    for name in ("sst", "ice", "beside"):
        array = group.create_array(name, shape=(64, 1024), chunks=(64, 1024), dtype="f4")
        array[:], array.attrs["mean"] = np.random.default_rng(0).normal(size=(64, 1024)), 4.0
    first, other = _store(tmp_path / "sea.zarr")
    assert first.command == other.command
    subprocess.run([sys.executable, *shlex.split(first.command)[1:]], check=True)
    copy = zarr.open_group(tmp_path / "sea.rechunked.zarr", mode="r")
    assert {name: copy[name].chunks for name in copy} == {
        "sst": (1, 1024),
        "ice": (2, 1024),
        "beside": (64, 1024),
    }
    assert {copy[name].attrs["mean"] for name in copy} == {4.0}
    assert (copy["ice"][:] == group["ice"][:]).all()


def test_what_lies_in_an_object_store_is_not_copied_as_a_directory() -> None:
    first, other = _store("s3://sea/a.zarr")
    assert "shutil" not in first.command
    assert first.command != other.command


def _decoding(arrays: list[ChunkedArray], of_all_ms: float, **known: Any) -> Any:
    """What of a store is slow to decode: 20 ms of each of these arrays, of so much in all."""
    files = [{"path": each.path, "decode_ms": 20.0, "arrays": [each]} for each in arrays]
    files.append({"path": f"{arrays[0].path}.beside", "decode_ms": of_all_ms - 40.0})
    group = {"path": "sea.zarr", "decode_ms": of_all_ms, "members": 3}
    facts: dict[str, Any] = {"causes_ms": {"decode": of_all_ms}, "wait_ms": of_all_ms, "files": files}
    facts |= {"groups": [group], **known}
    facts["gains_ms"] = {FILES: of_all_ms, f"{FILES}:{arrays[0].path}": 20.0}
    rule = rule_of("IO102")
    (found,) = rule.find(facts_of(rule, facts))
    return found


def test_the_gain_of_other_chunks_is_of_what_they_are_told_for() -> None:
    arrays = _store("sea.zarr")
    found = _decoding(arrays, 42.0)
    assert found.change.paths == ["sea.zarr/sst", "sea.zarr/ice"]
    assert (found.gain_ms, found.cost_ms) == (42.0, 42.0)
    found = _decoding(arrays, 60.0)
    assert (found.change.paths, found.gain_ms, found.cost_ms) == (["sea.zarr/sst"], 20.0, 20.0)
    assert found.remedy == "re-chunk sea.zarr/sst to what a sample reads"


@pytest.mark.parametrize(
    ("made_ms", "shape", "short", "gain_ms"),
    [
        # The 256 KiB of an access take 0.5 ms: all of 0.3 ms, half of 1 ms, little of 8 ms.
        (0.3, [64, 1024], "re-chunk sea.zarr to what a sample reads", 42.0),
        (1.0, [64, 1024], "re-chunk sea.zarr to what a sample reads", 21.2),
        (8.0, [64, 1024], "hold sea.zarr in memory (512.0 KiB)", 42.0),
        (8.0, [640_000, 1024], "try to read several samples of sea.zarr at once", 42.0),
        # To read all of it once takes as many chunks as the samples do.
        (8.0, [64 * 400, 1024], "try to read several samples of sea.zarr at once", 42.0),
    ],
)
def test_what_zarr_does_for_each_access_no_chunks_spare(
    made_ms: float, shape: list[int], short: str, gain_ms: float
) -> None:
    arrays = [replace(each, shape=shape, array_bytes=4 * shape[0] * shape[1]) for each in _store("sea.zarr")]
    found = _decoding(arrays, 42.0, made_ms=made_ms, batches=320)
    assert found.remedy.startswith(short)
    assert found.gain_ms == pytest.approx(gain_ms, abs=1.0)


@pytest.mark.parametrize(
    ("path", "known"), [("s3://sea.zarr", {}), ("sea.zarr", {"threaded": 0.9, "threaded_cpu": 0.1})]
)
def test_what_waits_for_a_server_is_not_zarrs_own_work(path: str, known: dict[str, Any]) -> None:
    arrays = [replace(each, array_bytes=1 << 20) for each in _store(path)]
    found = _decoding(arrays, 42.0, made_ms=8.0, batches=320, **known)
    assert found.remedy.startswith("re-chunk")
    assert found.gain_ms == 42.0


def _access(access: list[int] | None, chunk: list[int], **known: Any) -> ChunkedArray:
    """One array of 160 fields of float32 in a store; accesses lie across chunks as they are aligned."""
    shape = [160, 8, 90, 180]
    each = prod(-(-length // own) for length, own in zip(access or shape, chunk, strict=True))
    extents = [] if access is None else [(access, 300)]
    record = _chunked(
        **{
            "path": "d/a.zarr", "dataset": "", "shape": shape, "chunk": chunk, "item_bytes": 4,
            "accesses": 300, "touched": 300 * each, "odd": 300 if access is None else 0,
            "extents": extents, "cache_bytes": 0, "version": "3.1.0", **known,
        }
    )  # fmt: skip
    return _array(record)


@pytest.mark.parametrize(
    ("access", "chunk", "known", "suggested"),
    [
        ([2, 8, 90, 180], [1, 1, 30, 30], {}, [1, 8, 90, 180]),  # pairs of fields that slide by one
        ([2, 8, 90, 180], [1, 8, 90, 180], {}, None),  # mended
        ([2, 8, 90, 180], [1, 1, 90, 180], {}, None),  # few chunks: what takes the time are their bytes
        ([1, 8, 90, 180], [1, 1, 15, 15], {"dataset": "/x", "path": "d/a.h5"}, [1, 8, 90, 180]),
        # HDF5 is quick at these.
        ([1, 8, 90, 180], [1, 1, 30, 30], {"dataset": "/x", "path": "d/a.h5"}, None),
        ([8, 1, 30, 30], [1, 1, 30, 30], {"dataset": "/x", "path": "d/a.h5"}, None),  # eight, which fit
        (None, [1, 1, 30, 30], {}, None),  # by lists: what they take is not known
    ],
)
def test_many_small_chunks_become_what_accesses_take(
    access: list[int] | None, chunk: list[int], known: dict[str, Any], suggested: list[int] | None
) -> None:
    array = _access(access, chunk, **known)
    assert array.suggested_chunk == suggested
    assert suggested is None or str(suggested[-1]) in array.command
    # As many bytes are decoded as before: no waste is told.
    assert not spares_decoding(array)
