"""Databases that samples scan, and names of files as SQLite takes them."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from iotrace.agent.readpaths.finders import about_rasterio, rows_size
from iotrace.analysis.results import DECODING
from iotrace.analysis.rules.facts.examples import facts_of
from iotrace.analysis.rules.model import Finding, find_all, rule_of
from iotrace.analysis.rules.repeated import _FILE
from iotrace.analysis.storage.read_pattern import FileCalls
from iotrace.analysis.wait.rasters import of_rasters
from iotrace.analysis.wait.repeated_work import _kind_of, _read_fraction, _Target
from iotrace.analysis.wait.visits import _of_file_before, _opened_again
from iotrace.sources.paths import Paths
from iotrace.sources.records import RasterInfo

MIB = 1 << 20
_IO407 = rule_of("IO407")


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
    target = _Target(path, False, 100, 100.0, 2, read, given, True, 100, 1)
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


@pytest.mark.parametrize(
    ("visits", "samples", "opens", "read", "kind", "fraction"),
    [
        (640, 640, 641, 320 * MIB, "reading", 0.5),  # each looks for its own lines from the file's start
        (80, 1280, 1281, 640 * MIB, "reading", 0.5),  # so does each of a batch that Subset makes at once
        (80, 1280, 80, 80 * MIB, "reading", 1.0),  # an index once for each batch
        (80, 1280, 1281, 40 * MIB, "", 1 / 32),  # each of a batch reads its own part
        (640, 640, 641, 64 * MIB, "", 0.1),
    ],
)
def test_a_sample_of_a_batch_that_is_made_at_once_stands_for_itself(
    visits: int, samples: int, opens: int, read: int, kind: str, fraction: float
) -> None:
    target = _Target("ner.conll", visits=visits, samples=samples, asked=False, processes=2, read_bytes=read)
    file = FileCalls(opens=opens, distinct_bytes=MIB, extent_bytes=MIB, read_bytes=read)
    assert _kind_of(target, file, 0) == kind
    assert _read_fraction([target], {"ner.conll": file}) == pytest.approx(fraction, rel=0.01)


def test_a_share_is_of_the_file_not_of_what_all_samples_read_of_it() -> None:
    """A query passes over half of the table's pages; it leaves out the rows' long values between them."""
    target = _Target("t.sqlite", False, 100, 100.0, 2, 100 * MIB // 2, 100, by_library=True)
    file = FileCalls(opens=2, distinct_bytes=MIB, extent_bytes=5 * MIB, read_bytes=100 * MIB // 2)
    assert _kind_of(target, file, 0) == "decoding"
    assert _read_fraction([target], {"t.sqlite": file}) == pytest.approx(0.1)


def test_of_a_batch_each_sample_that_opens_the_file_again_begins_anew() -> None:
    opens, reading = (np.array([each == "1" for each in row]) for row in ("110010000100", "001001000010"))
    item = np.array([0] * 9 + [1] * 3)
    target = np.array([2] * 7 + [4] * 2 + [2] * 3)
    again = _opened_again(opens, reading, item, target)
    # The second call only looks whether it is there; that of the next item begins its visit anyhow.
    assert np.flatnonzero(again).tolist() == [4]


def test_what_a_library_does_in_memory_is_of_the_file_before_in_the_same_sample() -> None:
    """Frames are converted, bytes inflated: a video's visit does not end with its first frame."""
    item, target = np.array([0, 0, 0, 0, 0, 1, 1]), np.array([-2, 2, -2, 4, -2, -2, 2])
    assert _of_file_before(target, item).tolist() == [-2, 2, 2, 4, 4, -2, 2]
    assert not len(_of_file_before(target[:0], item[:0]))


def test_a_map_that_each_sample_makes_anew_is_opened_again_and_not_decoded() -> None:
    """LMDB reads the head of its file, and takes the rest from a map."""
    target = _Target("l.lmdb/data.mdb", False, 100, 100.0, 1, 100 * 4096, 0, True, 100, 1)
    file = FileCalls(opens=100, distinct_bytes=8192, read_bytes=100 * 4096)
    assert _kind_of(target, file, 0) == "decoding"
    assert _kind_of(target, replace(file, maps=100), 0) == "opening"


def _raster(path: str, block: list[int], **known: Any) -> RasterInfo:
    about = {"shape": [2048, 2048], "bands": 4, "item_bytes": 2, "driver": "GTiff", "compression": "deflate"}
    return RasterInfo(path=path, block=block, **{**about, **known})


@pytest.mark.parametrize(
    ("block", "known", "given", "remedy"),
    [
        ([2048, 2048], {}, 128 << 10, "store a.tif in tiles: gdal_translate -co TILED=YES"),
        ([16, 2048], {}, 128 << 10, "store a.tif in tiles: gdal_translate -co TILED=YES"),  # strips
        # Tiles; all of it is taken; another format, whose blocks are not TIFF's.
        ([256, 256], {}, 128 << 10, "decode a.tif once and keep it: 32.0 MiB in each process"),
        ([2048, 2048], {}, 32 << 20, "decode a.tif once and keep it: 32.0 MiB in each process"),
        ([1, 2048], {"driver": "PNG"}, 128 << 10, "decode a.tif once and keep it: 32.0 MiB in each process"),
    ],
)
def test_windows_of_a_raster_in_one_block_are_to_be_tiles(
    block: list[int], known: dict[str, Any], given: int, remedy: str
) -> None:
    rasters = of_rasters([("d/a.tif", given)], {"d/a.tif": _raster("d/a.tif", block, **known)})
    work = {**_DECODED, "read_fraction": 1.0, "gain_ms": 50.0, **rasters}
    (finding,) = _IO407.find(facts_of(_IO407, {"repeated": [work]}))
    assert finding.remedy == remedy
    if "tiles" in remedy:
        assert "-co TILED=YES -co COMPRESS=DEFLATE FROM TO" in finding.how
        assert "or decode it once and keep it: 32.0 MiB in each process" in finding.how
        assert finding.text.endswith("32.0 MiB decoded for 128.0 KiB")
        assert 45.0 < finding.gain_ms < 50.0  # a window lies across tiles
    else:
        assert finding.gain_ms == 50.0
        assert "where a sample uses a part, store it in tiles and read that" in finding.how


_DECODED = {
    "kind": "decoding",
    "paths": ["d/a.tif"],
    "files": 1,
    "samples_fraction": 1.0,
    "ms_per_sample": 14.0,
    "of_ms_per_sample": 16.0,
    "wait_ms": 50.0,
}


@pytest.mark.parametrize(
    ("known", "room"),
    [
        ({"kept_bytes": 17 * MIB, "stored_bytes": 17 * MIB}, ": 17.0 MiB as stored, decoded more"),
        ({"kept_bytes": 32 * MIB, "stored_bytes": 17 * MIB}, ": 32.0 MiB or more in each process"),
        ({"kept_bytes": 17 * MIB}, ": 17.0 MiB or more in each process"),
        ({}, ""),
    ],
)
def test_what_keeping_files_takes_is_their_size_once_decoded_as_far_as_that_is_known(
    known: dict[str, Any], room: str
) -> None:
    (finding,) = _IO407.find(facts_of(_IO407, {"repeated": [{**_DECODED, **known}]}))
    assert finding.remedy == f"decode a.tif once and keep it{room}"


def test_of_files_whose_headers_are_not_all_known_nothing_is_told() -> None:
    known = _raster("d/a.tif", [2048, 2048])
    assert of_rasters([("d/a.tif", 9.0), ("d/b.tif", 9.0)], {"d/a.tif": known}) == {}
    assert of_rasters([("d/b.h5", 9.0)], {}) == {}
    other = _raster("d/b.tif", [16, 2048])
    found = of_rasters([("d/a.tif", 9.0), ("d/b.tif", 9.0)], {"d/a.tif": known, "d/b.tif": other})
    assert "block" not in found
    assert found["decoded_bytes"] == 64 * MIB


def test_a_raster_of_rasterio_is_described_by_its_header() -> None:
    raster = SimpleNamespace(
        block_shapes=[(2048, 2048)] * 4,
        height=2048,
        width=2048,
        count=4,
        dtypes=("uint16",) * 4,
        compression=SimpleNamespace(name="deflate"),
        driver="GTiff",
    )
    about = about_rasterio((raster,))
    assert about.pop("type") == "raster"
    assert RasterInfo(path="d/a.tif", **about) == _raster("d/a.tif", [2048, 2048])


@pytest.mark.parametrize(
    ("read", "said"),
    [
        # What libav reads ahead, to seek, too, is not decoded: no figure says how much is.
        (0.37, "decoding one of 2 files in d/ (it reads 37 % of that)"),
        (0.95, "decoding the whole of one of 2 files in d/ again"),
        (None, "decoding the whole of one of 2 files in d/ again"),
    ],
)
def test_how_much_of_a_video_is_read_is_not_said_to_be_decoded(read: float | None, said: str) -> None:
    work = {**_FILE, "kind": DECODING, "paths": ["d/a.mp4", "d/b.mp4", "d/c.mp4"], "files": 2}
    known = {"repeated": [{**work, "read_fraction": read}], "causes_ms": {"decode": 58.0}}
    found = next(iter(find_all("rank", facts_of(rule_of("IO407"), known))))
    assert found.text.endswith(said)
    assert found.remedy == "store frames as images; near keyframes gain less"
    assert "(ffmpeg -i IN -g 8 OUT)" in (found.how or "")


@pytest.mark.parametrize(
    ("name", "per_sample", "said"),
    [
        ("av.InputContainer.decode", 91.0, "again, about 91 frames"),
        ("cv2.VideoCapture.read", 8.0, "again, about 8 frames"),
        ("av.InputContainer.decode", 1.0, "again"),
        ("av.InputContainer.demux", 91.0, "again"),  # packets, of sound too
    ],
)
def test_how_many_frames_of_a_video_a_sample_decodes_is_said(name: str, per_sample: float, said: str) -> None:
    calls = [{"name": name, "depth": 1, "per_sample": per_sample, "ms_each": 0.5}]
    work = {**_FILE, "kind": DECODING, "paths": ["d/a.mp4"], "read_fraction": 1.0}
    facts = facts_of(_IO407, {"repeated": [work], "sample_calls": calls, "causes_ms": {"decode": 58.0}})
    (found,) = _IO407.find(facts)
    assert found.text.endswith(said)


@pytest.mark.parametrize(
    ("changes", "calls", "path", "remedy"),
    [
        ({}, "soundfile.SoundFile.read", "d/a.wav", "read only what is used: sf.read(path, start=, stop=)"),
        # A sample as large as the file: all of it may be used.
        ({"batch_bytes_mean": 4e6}, "soundfile.SoundFile.read", "d/a.wav", "decode a.wav once"),
        ({}, "soundfile.SoundFile.read", "d/a.mp3", "decode a.mp3 once"),  # no place to seek to
        ({}, "pandas.read_csv", "d/a.csv", "decode a.csv once"),
    ],
)
def test_a_part_is_read_where_the_library_can_and_a_part_is_used(
    changes: dict[str, Any], calls: str, path: str, remedy: str
) -> None:
    loader = {"primary": True, "workers": 2, "persistent_workers": True, "batch_size": 4, "dataset": "Clips"}
    work = {**_FILE, "kind": DECODING, "paths": [path], "kept_bytes": 1 << 20, "site": "load (t.py:8)"}
    called = [
        {"name": "Clips.__getitem__", "depth": 0, "per_sample": 1.0, "ms_each": 16.0},
        {"name": calls, "depth": 1, "per_sample": 1.0, "ms_each": 13.0},
    ]
    known = {"repeated": [work], "sample_calls": called, "causes_ms": {"decode": 58.0}}

    def found(**more: Any) -> Finding:
        loaders = [{**loader, "batch_bytes_mean": 4e3, **changes, **more}]
        facts = facts_of(rule_of("IO407"), {**known, "loaders": loaders})
        return next(each for each in find_all("rank", facts) if each.rule == "IO407")

    kept = found()
    assert kept.remedy.startswith(remedy)
    assert kept.text.endswith("again, most of it in load (t.py:8)")
    assert "persistent_workers" not in (kept.how or "")
    # What workers keep ends with them.
    assert "persistent_workers=True" in (found(persistent_workers=False).how or "")
