"""Read paths of libraries that few have installed, and of the standard library, as `test_readpaths` does.

``tools/test --programs`` installs all of them.
"""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from tests.integration.test_readpaths import (
    FLOATS,
    PARQUET,
    TABLE,
    Case,
    Seen,
    in_one_program,
    seen_in,
)
from tests.support.runs import PROJECT, environment, run_script, run_traced

NETCDF = """import netCDF4
def write_netcdf(path, format='NETCDF4'):
    with netCDF4.Dataset(path, 'w', format=format) as file:
        file.createDimension('x', 64)
        file.createVariable('v', 'f4', ('x', 'x'), zlib=format == 'NETCDF4')[:] = ONES
"""
VIDEO = """import cv2
def write_video(path):
    writer = cv2.VideoWriter(path, cv2.VideoWriter_fourcc(*'MJPG'), 10, (64, 64))
    for _ in range(3):
        writer.write(np.ones((64, 64, 3), np.uint8))
    writer.release()
"""
DICOM = """import pydicom, pydicom.uid
from pydicom.dataset import FileDataset, FileMetaDataset
def write_dicom(path):
    meta = FileMetaDataset()
    meta.TransferSyntaxUID = pydicom.uid.ExplicitVRLittleEndian
    meta.MediaStorageSOPClassUID = pydicom.uid.SecondaryCaptureImageStorage
    meta.MediaStorageSOPInstanceUID = '1.2.3'
    scan = FileDataset(path, {}, file_meta=meta, preamble=b'\\0' * 128)
    scan.Rows = scan.Columns = 64
    scan.SamplesPerPixel, scan.PhotometricInterpretation = 1, 'MONOCHROME2'
    scan.BitsAllocated, scan.BitsStored, scan.HighBit, scan.PixelRepresentation = 8, 8, 7, 0
    scan.PixelData = bytes([1]) * 4096
    scan.save_as(path, enforce_file_format=True)
"""
SERVER = """import fsspec, threading, functools
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass
server = ThreadingHTTPServer(('127.0.0.1', 0), Quiet)
threading.Thread(target=server.serve_forever, daemon=True).start()
URL = f'http://127.0.0.1:{server.server_port}/'
"""
NOISE = "\nNOISE = np.random.default_rng(0).bytes(16384)"


def floats(data: str) -> str:
    """Return the array of what the expression `data` gives."""
    return f"return np.frombuffer({data}, 'f4')"


INFLATED = "assert {}(open(PATH, 'rb').read()) == NOISE; return ONES"
JPEG = "\nfrom PIL import Image"
TO_JPEG = "Image.fromarray(np.ones((64, 64, 3), np.uint8)).save(PATH, quality=100)"


def inflated(library: str, name: str, pack: str, unpack: str, needs: str = "") -> Case:
    """A case that decompresses bytes which the item has read: its span has no file."""
    write = f"open(PATH, 'wb').write({pack}(NOISE))"
    case = Case(f"import {library}{NOISE}", write, INFLATED.format(unpack), name, ".packed", 16384)
    return nameless(case, needs)


def nameless(case: Case, needs: str) -> Case:
    """The case whose call knows no file."""
    return replace(case, needs=needs, nameless=True, at_least=True, some=True)  # libraries call it, too


CASES = {
    "netcdf": Case(
        NETCDF,
        "write_netcdf(PATH)",
        "with netCDF4.Dataset(PATH) as file: return file['v'][:].data",
        "netCDF4.Variable.__getitem__",
        ".nc",
        needs="netCDF4",
    ),
    **{
        f"xarray-{engine}": Case(
            f"import xarray\n{NETCDF}",
            f"write_netcdf(PATH, {kind!r})",
            f"with xarray.open_dataset(PATH, engine={engine!r}) as file: return file['v'].values",
            f"xarray.{wrapper}._getitem",
            ".nc",
            needs=f"xarray {needs}",
        )
        for engine, kind, wrapper, needs in (
            ("netcdf4", "NETCDF4", "NetCDF4ArrayWrapper", "netCDF4"),
            ("h5netcdf", "NETCDF4", "H5NetCDFArrayWrapper", "h5netcdf"),
            ("scipy", "NETCDF3_CLASSIC", "ScipyArrayWrapper", "scipy"),
        )
    },
    "nifti": Case(
        "import nibabel",
        "nibabel.save(nibabel.Nifti1Image(ONES, np.eye(4)), PATH)",
        "return np.asarray(nibabel.load(PATH).dataobj)",
        "nibabel.ArrayProxy._get_scaled",
        ".nii.gz",
        needs="nibabel",
    ),
    "dicom": Case(
        DICOM,
        "write_dicom(PATH)",
        "return pydicom.dcmread(PATH).pixel_array",
        "pydicom.Dataset.convert_pixel_data",
        ".dcm",
        4096,
        needs="pydicom",
    ),
    "cv2": Case(
        "import cv2",
        "cv2.imwrite(PATH, np.ones((64, 64), np.uint8))",
        "return cv2.imread(PATH, 0)",
        "cv2.imread",
        ".png",
        4096,
        needs="cv2",
    ),
    "cv2-bytes": nameless(
        Case(
            "import cv2",
            "cv2.imwrite(PATH, np.ones((64, 64), np.uint8))",
            "return cv2.imdecode(np.fromfile(PATH, np.uint8), 0)",
            "cv2.imdecode",
            ".png",
            4096,
        ),
        "cv2",
    ),
    "cv2-video": Case(
        VIDEO,
        "write_video(PATH)",
        "ok, frame = cv2.VideoCapture(PATH).read(); assert ok; return ONES",
        "cv2.VideoCapture.read",
        ".avi",
        3 * 4096,
        needs="cv2",
    ),
    "av": Case(
        f"import av\n{VIDEO}",
        "write_video(PATH)",
        "with av.open(PATH) as file: assert len(list(file.decode(video=0))) == 3; return ONES",
        "av.InputContainer.decode",
        ".avi",
        -1,
        at_least=True,
        needs="av",
    ),
    "av-frames": nameless(
        Case(
            f"import av\n{VIDEO}",
            "write_video(PATH)",
            "with av.open(PATH) as file: assert [each.to_ndarray(format='rgb24').shape for each in "
            "file.decode(video=0)] == [(64, 64, 3)] * 3; return ONES",
            "av.VideoFrame.to_ndarray",
            ".avi",
            -1,
        ),
        "av",
    ),
    "decord": Case(
        f"import decord\n{VIDEO}",
        "write_video(PATH)",
        "assert decord.VideoReader(PATH)[1].shape == (64, 64, 3); return ONES",
        "decord.VideoReader.__getitem__",
        ".avi",
        -1,
        needs="decord",
    ),
    "rasterio": Case(
        "import rasterio, warnings; warnings.simplefilter('ignore')",
        "with rasterio.open(PATH, 'w', driver='GTiff', width=64, height=64, count=1, dtype='float32',"
        " compress='deflate') as file: file.write(ONES, 1)",
        "with rasterio.open(PATH) as file: return file.read(1)",
        "rasterio.DatasetReader.read",
        ".tif",
        needs="rasterio",
    ),
    "sound": Case(
        "import soundfile",
        "soundfile.write(PATH, ONES.ravel(), 8000, subtype='FLOAT')",
        "return soundfile.read(PATH, dtype='float32')[0]",
        "soundfile.SoundFile.read",
        ".wav",
        needs="soundfile",
    ),
    "lmdb": Case(
        "import lmdb",
        "with lmdb.open(PATH, subdir=False) as base, base.begin(write=True) as to: "
        "to.put(b'x', ONES.tobytes())",
        "with lmdb.open(PATH, subdir=False, readonly=True, lock=False) as base, base.begin() as reader: "
        + floats("reader.get(b'x')"),
        "lmdb.Transaction.get",
        ".mdb",
        needs="lmdb",
    ),
    "safetensors": Case(
        "import safetensors.numpy",
        "safetensors.numpy.save_file({'x': ONES}, PATH)",
        "with safetensors.safe_open(PATH, 'np') as file: return file.get_tensor('x')",
        "safetensors.safe_open.get_tensor",
        ".safetensors",
        needs="safetensors",
    ),
    "safetensors-all": Case(
        "import safetensors.numpy",
        "safetensors.numpy.save_file({'x': ONES}, PATH)",
        "return safetensors.numpy.load_file(PATH)['x']",
        "safetensors.numpy.load_file",
        ".safetensors",
        -1,
        needs="safetensors",
    ),
    "polars": Case(
        f"import polars\n{PARQUET}",
        "pq.write_table(TABLE, PATH)",
        f"return polars.read_parquet(PATH){TABLE}",
        "polars.read_parquet",
        ".parquet",
        needs="polars",
    ),
    "duckdb": nameless(
        Case(
            f"import duckdb\n{PARQUET}",
            "pq.write_table(TABLE, PATH)",
            "return duckdb.sql(f\"select x from '{PATH}'\").fetchnumpy()['x']",
            "duckdb.DuckDBPyRelation.fetchnumpy",
            ".parquet",
            -1,
        ),
        "duckdb",
    ),
    "sqlite": Case(
        "import sqlite3",
        "with sqlite3.connect(PATH) as base: base.execute('create table t (v blob)'); "
        "base.execute('insert into t values (?)', (ONES.tobytes(),))",
        floats("sqlite3.connect(PATH).execute('select v from t').fetchall()[0][0]"),
        "sqlite3.Cursor.fetchall",
        ".db",
    ),
    "dataset": Case(
        f"import pyarrow.dataset\n{PARQUET}",
        "pq.write_table(TABLE, PATH)",
        f"return pyarrow.dataset.dataset(PATH).to_table(){TABLE}",
        "pyarrow.dataset.Dataset.to_table",
        ".parquet",
        FLOATS + FLOATS // 32,
    ),
    "hf": Case(
        "import datasets\ndatasets.disable_progress_bars()",
        "datasets.Dataset.from_dict({'x': ONES}).save_to_disk(PATH)",
        "return datasets.load_from_disk(PATH).with_format('numpy')[:]['x']",
        "datasets.Dataset._getitem",
        ".hf",
        -1,
        needs="datasets",
        file="data-00000-of-00001.arrow",
    ),
    "pickle": Case(
        "import pickle",
        "pickle.dump(ONES, open(PATH, 'wb'))",
        "return pickle.load(open(PATH, 'rb'))",
        "pickle.load",
        ".pkl",
        -1,
    ),
    "json": Case(
        "import json",
        "json.dump(ONES.tolist(), open(PATH, 'w'))",
        "return json.load(open(PATH))",
        "json.load",
        ".json",
        -1,
    ),
    "json-bytes": nameless(
        Case(
            "import json",
            "json.dump(ONES.tolist(), open(PATH, 'w'))",
            "return json.loads(open(PATH, 'rb').read())",
            "json.loads",
            ".json",
            5 * 4096 + 2 * 64,
        ),
        "",
    ),
    "gzip": Case(
        "import gzip",
        "gzip.open(PATH, 'wb').write(ONES.tobytes())",
        floats("gzip.open(PATH).read()"),
        "gzip._GzipReader.read",
        ".gz",
        at_least=True,
        some=True,
    ),
    "lzma": Case(
        "import lzma",
        "lzma.open(PATH, 'wb').write(ONES.tobytes())",
        floats("lzma.open(PATH).read()"),
        "bz2 or lzma.DecompressReader.read",
        ".xz",
        at_least=True,
        some=True,
    ),
    **{
        f"{each}-bytes": inflated(each, f"{each}.decompress", f"{each}.compress", f"{each}.decompress")
        for each in ("zlib", "bz2", "lzma")
    },
    "zip": Case(
        f"import zipfile{NOISE}",
        "with zipfile.ZipFile(PATH, 'w', zipfile.ZIP_DEFLATED) as packed: packed.writestr('a', NOISE)",
        "assert zipfile.ZipFile(PATH).read('a') == NOISE; return ONES",
        "zipfile.ZipFile.read",
        ".zip",
        16384,
    ),
    "zstd": inflated(
        "zstandard",
        "zstandard.ZstdDecompressor.decompress",
        "zstandard.compress",
        "zstandard.ZstdDecompressor().decompress",
        "zstandard",
    ),
    "lz4": inflated("lz4.frame", "lz4.frame.decompress", "lz4.frame.compress", "lz4.frame.decompress", "lz4"),
    "lz4-block": inflated(
        "lz4.block", "lz4.block.decompress", "lz4.block.compress", "lz4.block.decompress", "lz4"
    ),
    "blosc": inflated("blosc", "blosc.decompress", "blosc.compress", "blosc.decompress", "blosc"),
    "blosc2": inflated("blosc2", "blosc2.decompress", "blosc2.compress", "blosc2.decompress", "blosc2"),
    "simplejpeg": nameless(
        Case(
            f"import simplejpeg{JPEG}",
            TO_JPEG,
            "assert simplejpeg.decode_jpeg(open(PATH, 'rb').read()).shape == (64, 64, 3); return ONES",
            "simplejpeg.decode_jpeg",
            ".jpg",
            3 * 4096,
        ),
        "simplejpeg",
    ),
    "fsspec": Case(
        SERVER,
        "ONES.tofile(PATH)",
        floats("fsspec.filesystem('http').cat_file(URL + PATH)"),
        "fsspec.sync",
        ".bin",
        needs="fsspec.asyn",
    ),
    "obstore": Case(
        "import obstore, obstore.store",
        "ONES.tofile(PATH)",
        "store = obstore.store.LocalStore(os.getcwd()); "
        + floats("store.get_range(PATH, start=0, length=16384)"),
        "obstore.get_range",
        ".bin",
        needs="obstore",
    ),
}


WORKERS = [pytest.param(0, id="no-worker"), pytest.param(1, id="worker", marks=pytest.mark.slow)]


@pytest.fixture(scope="module", params=WORKERS)
def seen(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[int, Seen]:
    """All cases whose library is there in one program, without and with a worker."""
    return request.param, in_one_program(CASES, tmp_path_factory.mktemp("reads"), request.param)


@pytest.mark.parametrize("kind", CASES)
def test_every_read_has_a_span_with_its_file(seen: tuple[int, Seen], kind: str) -> None:
    workers, found = seen
    case = CASES[kind]
    for library in case.needs.split():
        pytest.importorskip(library)
    file = case.file or kind + case.suffix
    spans = found.spans.get("" if case.nameless else file, [])
    sizes = [size_bytes for name, size_bytes in spans if name == case.name]
    assert len(sizes) >= 8 if case.at_least else len(sizes) == 8, spans
    assert case.size_bytes in sizes if case.some else set(sizes) == {case.size_bytes}
    if workers == 0:  # a worker is far ahead of this loop: nothing of its reading is waited for
        assert sum(found.charged[file]) > 0


ADDED = """
import numpy as np
from torch.utils.data import DataLoader
from mylib.reader import Reader
import mylib.reader

class Scans:
    def __len__(self):
        return 8
    def __getitem__(self, index):
        scan = Reader('scan.raw').read()
        return np.frombuffer(b''.join(mylib.reader.chunks(scan)), 'u1')

assert 'mylib' not in globals() or mylib.reader.TOUCHED == 0
for batch in DataLoader(Scans(), batch_size=2):
    pass
"""
MYLIB = """
TOUCHED = 0
class Reader:
    def __init__(self, path):
        self.path = path
    def read(self):
        with open(self.path, 'rb') as file:
            return file.read()
def chunks(scan):
    for start in range(0, len(scan), 4096):
        yield scan[start:start + 4096]
"""
POINTS = """[iotrace.readpaths]
read; file 0.path = mylib.reader:Reader.read
chunks; each; size result; threads = mylib.reader:chunks
wrong; fil 0.path = mylib.reader:Reader.read
"""


def test_a_package_adds_read_paths_by_entry_points(tmp_path: Path) -> None:
    (tmp_path / "mylib").mkdir()
    (tmp_path / "mylib" / "__init__.py").write_text("")
    (tmp_path / "mylib" / "reader.py").write_text(MYLIB)
    installed = tmp_path / "mylib-1.0.dist-info"
    installed.mkdir()
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: mylib\nVersion: 1.0\n")
    (installed / "entry_points.txt").write_text(POINTS)
    (tmp_path / "scan.raw").write_bytes(bytes(16384))
    run = run_script(tmp_path, ADDED, PYTHONPATH=str(tmp_path))
    assert run.code == 0, run.stderr
    found = seen_in(run.session)
    assert found.spans["scan.raw"] == [("mylib.Reader.read", 16384)] * 8
    assert Counter(found.spans[""]) == {("mylib.chunks", 4096): 32, ("mylib.chunks", -1): 8}
    assert sum(found.charged["scan.raw"]) > 0
    (refused,) = [item for item in run.report()["not_captured"] if "mylib" in item["what"]]
    assert "'fil 0.path'" in refused["why"]


def test_readers_return_and_raise_what_they_do_without_us(tmp_path: Path) -> None:
    """Also their tracebacks have as many lines, and classes and pickles are the same."""
    program = PROJECT / "tests" / "support" / "told_by_readers.py"
    bare, traced = tmp_path / "bare", tmp_path / "traced"
    bare.mkdir()
    traced.mkdir()
    told = subprocess.run(
        [sys.executable, str(program)],
        cwd=bare,
        capture_output=True,
        text=True,
        timeout=100,
        check=True,
        env=environment(),
    )
    run = run_traced(traced, [str(program)], ["-q", "--torch-steps", "off"])
    assert run.code == 0, run.stderr
    assert run.stdout == told.stdout
    assert not list(run.session.glob("processes/*/agent.log"))
