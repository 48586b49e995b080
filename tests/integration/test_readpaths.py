"""Read paths of real libraries: each read has a span with its file and bytes, and its file is charged."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import pytest

from iotrace.analysis.rank import RankAnalysis
from iotrace.session.names import KIND_READ_PATH
from iotrace.sources.session import open_session
from tests.support.runs import run_script

PROGRAM = """
import sys
import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

ONES = np.ones((64, 64), np.float32)
{functions}

class Files(Dataset):
    def __init__(self, path, read):
        self.path, self.read = path, read
    def __len__(self):
        return 8
    def __getitem__(self, index):
        return torch.as_tensor(np.array(self.read(self.path), np.float32).reshape(64, 64))

def main():
    weight = torch.ones(64, requires_grad=True)
    for path, write, read in {calls}:
        write(path)
        total = 0.0
        for batch in DataLoader(Files(path, read), batch_size=2, num_workers=int(sys.argv[1])):
            (batch @ weight).sum().backward()
            total += batch.sum().item()
        assert total == 8 * 64 * 64, path

if __name__ == "__main__":
    main()
"""

FUNCTIONS = """
{imports}
def write_{number}(PATH):
    {write}
def read_{number}(PATH):
    {read}
"""

FLOATS = 64 * 64 * 4
WITH_VALIDITY = FLOATS + FLOATS // 32  # a bit for each value
PARQUET = "import pyarrow as pa, pyarrow.parquet as pq\nTABLE = pa.table({'x': np.ones(4096, np.float32)})"
IPC = PARQUET + "\nimport pyarrow.feather as feather"
PANDAS = "import pandas as pd\nFRAME = pd.DataFrame({'x': np.ones(4096, np.float32)})"
TAR = """import tarfile, io
def add(archive):
    member = tarfile.TarInfo("x.bin")
    member.size = ONES.nbytes
    archive.addfile(member, io.BytesIO(ONES.tobytes()))"""
TO_PARQUET = "pq.write_table(TABLE, PATH)"
TO_TAR = "with tarfile.open(PATH, 'w') as archive: add(archive)"
TO_TIFF = "tifffile.imwrite(PATH, ONES, compression='zlib')"
TABLE = "['x'].to_numpy()"


@dataclass(frozen=True)
class Case:
    """How a program writes and reads a file, and what span each read is to leave."""

    imports: str
    write: str
    read: str
    name: str
    suffix: str
    size_bytes: int = FLOATS
    at_least: bool = False
    """Whether the library may make more than one such call for one read."""
    needs: str = ""
    file: str = ""
    """The name of the file that is read, where it is not the case's own."""
    nameless: bool = False
    """Whether the call knows no file: what its item has read last is charged."""
    some: bool = False
    """Whether calls of other sizes are made, too."""


CASES = {
    "npy": Case("", "np.save(PATH, ONES)", "return np.load(file=PATH)", "numpy.load", ".npy"),
    "npz": Case(
        "",
        "np.savez_compressed(PATH, x=ONES)",
        "with np.load(PATH) as archive: return archive['x']",
        "numpy.NpzFile.__getitem__",
        ".npz",
    ),
    "fromfile": Case("", "ONES.tofile(PATH)", "return np.fromfile(PATH, 'f4')", "numpy.fromfile", ".bin"),
    "zarr": Case(
        "import zarr",
        "zarr.create_array(PATH, shape=(64, 64), chunks=(16, 64), dtype='f4')[:] = 1",
        "return zarr.open(PATH, mode='r')[:]",
        "zarr.Array.__getitem__",
        ".zarr",
    ),
    "torch": Case(
        "",
        "torch.save(torch.ones(64, 64), PATH)",
        "return torch.load(f=PATH)",
        "torch.load",
        ".pt",
        -1,
    ),
    "png": Case(
        "from PIL import Image",
        "Image.fromarray(np.ones((64, 64), np.uint8)).save(PATH)",
        "with Image.open(PATH) as image: return np.asarray(image)",
        "PIL.ImageFile.load",
        ".png",
        4096,  # PIL asks for the pixels more than once; the first time decodes them
    ),
    "png-of-an-open-file": Case(
        "from PIL import Image",
        "Image.fromarray(np.ones((64, 64), np.uint8)).save(PATH)",
        "with open(PATH, 'rb') as file: return np.asarray(Image.open(file))",
        "PIL.ImageFile.load",
        ".png",
        4096,
    ),
    "h5": Case(
        "import h5py",
        "with h5py.File(PATH, 'w') as file: file['x'] = ONES",
        "out = np.empty((64, 64), 'f4'); h5py.File(PATH)['x'].read_direct(out); return out",
        "h5py.Dataset.read_direct",
        ".h5",
    ),
    "parquet": Case(
        PARQUET,
        TO_PARQUET,
        f"return pq.read_table(source=PATH){TABLE}",
        "pyarrow.parquet.read_table",
        ".parquet",
        WITH_VALIDITY,
    ),
    "parquet-file": Case(
        PARQUET,
        TO_PARQUET,
        f"return pq.ParquetFile(PATH).read(){TABLE}",
        "pyarrow.parquet.ParquetFile.read",
        ".parquet",
        WITH_VALIDITY,
    ),
    "row-group": Case(
        PARQUET,
        TO_PARQUET,
        f"return pq.ParquetFile(open(PATH, 'rb')).read_row_group(0){TABLE}",
        "pyarrow.parquet.ParquetFile.read_row_group",
        ".parquet",
        WITH_VALIDITY,
    ),
    "row-groups": Case(
        PARQUET,
        TO_PARQUET,
        f"return pq.ParquetFile(PATH).read_row_groups([0]){TABLE}",
        "pyarrow.parquet.ParquetFile.read_row_groups",
        ".parquet",
        WITH_VALIDITY,
    ),
    "feather": Case(
        IPC,
        "feather.write_feather(TABLE, PATH)",
        f"return feather.read_table(PATH){TABLE}",
        "pyarrow.feather.read_table",
        ".feather",
    ),
    "ipc": Case(
        IPC,
        "feather.write_feather(TABLE, PATH, compression='uncompressed')",
        f"return pa.ipc.open_file(open(PATH, 'rb')).read_all(){TABLE}",
        "pyarrow.ipc.RecordBatchFileReader.read_all",
        ".arrow",
    ),
    "arrow-csv": Case(
        "import pyarrow.csv as csv",
        "np.savetxt(PATH, ONES.ravel(), header='x', comments='')",
        f"return csv.read_csv(PATH){TABLE}",
        "pyarrow.csv.read_csv",
        ".csv",
        2 * FLOATS,
    ),
    "csv": Case(
        PANDAS,
        "FRAME.to_csv(PATH, index=False)",
        "return pd.read_csv(filepath_or_buffer=PATH)",
        "pandas.read_csv",
        ".csv",
        2 * FLOATS,
    ),
    "pickle": Case(
        PANDAS,
        "FRAME.to_pickle(PATH)",
        "return pd.read_pickle(PATH)",
        "pandas.read_pickle",
        ".pkl",
    ),
    "json": Case(
        PANDAS,
        "FRAME.to_json(PATH)",
        "return pd.read_json(PATH, dtype='f4')",
        "pandas.read_json",
        ".json",
    ),
    "pandas-parquet": Case(
        PANDAS,
        "FRAME.to_parquet(PATH)",
        "return pd.read_parquet(PATH)",
        "pandas.read_parquet",
        ".parquet",
    ),
    "pandas-feather": Case(
        PANDAS,
        "FRAME.to_feather(PATH)",
        "return pd.read_feather(PATH)",
        "pandas.read_feather",
        ".feather",
    ),
    "hdf": Case(
        PANDAS,
        "FRAME.to_hdf(PATH, key='x')",
        "return pd.read_hdf(PATH)",
        "pandas.read_hdf",
        ".h5",
        needs="tables",
    ),
    "excel": Case(
        PANDAS,
        "FRAME.to_excel(PATH, index=False)",
        "return pd.read_excel(PATH)",
        "pandas.read_excel",
        ".xlsx",
        2 * FLOATS,
        needs="openpyxl",
    ),
    "tiff": Case("import tifffile", TO_TIFF, "return tifffile.imread(PATH)", "tifffile.imread", ".tif"),
    "tiff-file": Case(
        "import tifffile",
        TO_TIFF,
        "with tifffile.TiffFile(PATH) as tiff: return tiff.asarray()",
        "tifffile.TiffFile.asarray",
        ".tif",
    ),
    "tiff-page": Case(
        "import tifffile",
        TO_TIFF,
        "with tifffile.TiffFile(PATH) as tiff: return tiff.pages[0].asarray()",
        "tifffile.TiffPage.asarray",
        ".tif",
    ),
    "tar-next": Case(
        TAR,
        TO_TAR,
        "with tarfile.open(PATH, 'r|') as archive: return np.frombuffer("
        "archive.extractfile(archive.next()).read(), 'f4')",
        "tarfile.TarFile.next",
        ".tar",
        -1,
        at_least=True,  # opening an archive looks for its first member, too
    ),
}


@dataclass(frozen=True)
class Seen:
    """What a run of all cases recorded, by case."""

    spans: dict[str, list[tuple[str, int]]]
    """Name and bytes of each read-path span on the case's file."""
    charged: dict[str, tuple[float, float]]
    """Read and decode time, ns, of the waits that were charged to the case's file."""


WORKERS = [pytest.param(0, id="no-worker"), pytest.param(1, id="worker", marks=pytest.mark.slow)]


@pytest.fixture(scope="module", params=WORKERS)
def seen(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[int, Seen]:
    """All cases in one program, without and with a worker."""
    return request.param, in_one_program(CASES, tmp_path_factory.mktemp("reads"), request.param)


def in_one_program(cases: dict[str, Case], directory: Path, workers: int) -> Seen:
    """Run all cases whose libraries are there in one program."""
    there = {kind: case for kind, case in cases.items() if all(map(find_spec, case.needs.split()))}
    functions = "import os\n" + "".join(
        FUNCTIONS.format(number=number, imports=case.imports, write=case.write, read=case.read)
        for number, case in enumerate(there.values())
    )
    calls = ", ".join(
        f"({kind + case.suffix!r}, write_{number}, read_{number})"
        for number, (kind, case) in enumerate(there.items())
    )
    run = run_script(directory, PROGRAM.format(functions=functions, calls=f"[{calls}]"), str(workers))
    assert run.code == 0, run.stderr
    assert not list(run.session.glob("processes/*/agent.log"))
    return seen_in(run.session)


def seen_in(directory: Path) -> Seen:
    """Find the spans of read paths in a session, and what its files were charged."""
    session = open_session(directory)
    spans = defaultdict(list)
    for process in session.processes:
        for span in process.spans[process.spans["kind"] == KIND_READ_PATH]:
            file = Path(process.texts.get(int(span["file"]), "")).name
            spans[file].append((process.texts[int(span["name"])], int(span["bytes"])))
    charged: dict[str, tuple[float, float]] = {}
    (rank,) = session.ranks
    analysis = RankAnalysis(session, rank)
    for loader in analysis.loaders:
        for item in analysis.explained(loader):
            for path, (read, decode, _) in item.files.items():
                for name in {path.split("/")[0], Path(path).name}:
                    before = charged.get(name, (0.0, 0.0))
                    charged[name] = (before[0] + read, before[1] + decode)
    return Seen(dict(spans), charged)


@pytest.mark.parametrize("kind", CASES)
def test_every_read_has_a_span_with_its_file(seen: tuple[int, Seen], kind: str) -> None:
    workers, found = seen
    case = CASES[kind]
    if case.needs:
        pytest.importorskip(case.needs)
    file = kind + case.suffix
    sizes = [size_bytes for name, size_bytes in found.spans.get(file, []) if name == case.name]
    assert len(sizes) >= 8 if case.at_least else len(sizes) == 8
    assert set(sizes) == {case.size_bytes}
    if workers == 0:  # a worker is far ahead of this loop: nothing of its reading is waited for
        assert sum(found.charged[file]) > 0
