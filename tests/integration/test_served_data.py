"""A program is given copies of its data by the recorder, and nothing else changes for it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from iotrace.trying.copied import given, write_table
from iotrace.trying.results import Data
from tests.integration.test_recorder_harmless import ODD_CALLS
from tests.support.recorder_build import RECORDER_GAP, compile_program, recorded, recorder

pytestmark = pytest.mark.skipif(bool(RECORDER_GAP), reason=RECORDER_GAP)

_OLD, _NEW = b"original" * 100, b"the copy" * 200


class _Served:
    """A folder with data and copies of it elsewhere, and the table by which programs get these."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.table = folder / "served"
        (folder / "data").mkdir()
        (folder / "copies").mkdir()
        self.data: list[Data] = []

    def add(self, name: str, old: bytes = _OLD, new: bytes = _NEW) -> Path:
        path, copy = self.folder / "data" / name, self.folder / "copies" / name
        for place, content in ((path, old), (copy, new)):
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(content)
        self.take(path, copy)
        return path

    def take(self, path: Path, copy: Path) -> None:
        self.data.append(Data(path=str(path), new_path=str(copy), how="chunks", bytes=0, new_bytes=0))
        write_table(self.table, self.data)

    def environment(self, session: Path | None = None, **more: str) -> dict[str, str]:
        if session is not None:
            return recorded(session, IOTRACE_SERVED=str(self.table), **more)
        return {**os.environ, "LD_PRELOAD": str(recorder()), "IOTRACE_SERVED": str(self.table), **more}

    def run(self, code: str, *words: str, session: Path | None = None, **more: str) -> str:
        done = subprocess.run(
            [sys.executable, "-c", code, *words],
            env=self.environment(session, **more),
            capture_output=True,
            text=True,
            timeout=120,
            cwd=self.folder,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def opens(self) -> list[int]:
        return [*given(self.table, self.data)[0].values()]

    def written(self) -> list[str]:
        return given(self.table, self.data)[1]


@pytest.fixture
def served(tmp_path: Path) -> _Served:
    return _Served(tmp_path)


_READ = "print(len(open(__import__('sys').argv[1], 'rb').read()))"


@pytest.mark.parametrize("is_recorded", [False, True], ids=["bare", "recorded"])
def test_a_file_is_the_copy_by_every_spelling(served: _Served, is_recorded: bool, tmp_path: Path) -> None:
    session = tmp_path / "session"
    session.mkdir()
    path = served.add("a.bin")
    (served.folder / "link").symlink_to(path)
    (served.folder / "folder").symlink_to(path.parent)
    os.link(path, served.folder / "hard")
    code = """
import os, sys
names = [sys.argv[1], "data/a.bin", "./data//a.bin", "data/../data/a.bin", "link", "folder/a.bin", "hard"]
sizes = [len(open(name, "rb").read()) for name in names] + [os.stat(name).st_size for name in names]
sizes.append(os.stat("link", follow_symlinks=False).st_size != os.stat("link").st_size)
os.chdir("data")
sizes.append(len(open("a.bin", "rb").read()))
folder = os.open(".", os.O_RDONLY)
sizes.append(os.stat("a.bin", dir_fd=folder).st_size)
sizes.append(os.fstat(os.open("a.bin", os.O_RDONLY, dir_fd=folder)).st_size)
sizes.append(os.lstat("a.bin").st_size)
print(sorted(set(sizes)))
"""
    assert served.run(code, str(path), session=session if is_recorded else None) == f"[True, {len(_NEW)}]"
    assert served.opens() == [9]
    assert path.read_bytes() == _OLD
    assert list(session.iterdir()) if is_recorded else True


def test_all_processes_are_given_it(served: _Served) -> None:
    path = served.add("a.bin")
    code = """
import multiprocessing, subprocess, sys, threading
def read(path):
    return len(open(path, "rb").read())
if __name__ == "__main__":
    found = [read(sys.argv[1])]
    with multiprocessing.get_context("fork").Pool(2) as pool:
        found += pool.map(read, [sys.argv[1]] * 4)
    threads = [threading.Thread(target=lambda: found.append(read(sys.argv[1]))) for _ in range(4)]
    [each.start() for each in threads]; [each.join() for each in threads]
    found.append(len(subprocess.run(["cat", sys.argv[1]], capture_output=True).stdout))
    found.append(len(subprocess.run(["sh", "-c", "cat < " + sys.argv[1]], capture_output=True).stdout))
    print(found)
    print(len(subprocess.run(["cat", sys.argv[1]], capture_output=True, env={}).stdout))
"""
    found, without = served.run(code, str(path)).split("\n")
    assert found == str([len(_NEW)] * 11)
    assert without == str(len(_OLD))  # a child whose environment is empty
    assert served.opens() == [11]


def test_what_is_written_to_is_the_original_from_then_on(served: _Served) -> None:
    path = served.add("a.bin")
    code = """
import sys
sizes = [len(open(sys.argv[1], "rb").read())]
open(sys.argv[1], "ab").write(b"more")
sizes.append(len(open(sys.argv[1], "rb").read()))
print(sizes)
"""
    assert served.run(code, str(path)) == f"[{len(_NEW)}, {len(_OLD) + 4}]"
    assert path.read_bytes() == _OLD + b"more"
    assert served.written() == [str(path)]
    assert (served.folder / "copies/a.bin").read_bytes() == _NEW


def test_a_file_that_is_another_by_now_is_left_alone(served: _Served) -> None:
    changed, replaced, removed = (served.add(name) for name in ("a.bin", "b.bin", "c.bin"))
    changed.write_bytes(b"changed")
    os.utime(changed, ns=(1, 1))
    replaced.unlink()
    replaced.write_bytes(b"another one")
    removed.unlink()
    code = "import os, sys\nprint([os.path.getsize(p) if os.path.exists(p) else None for p in sys.argv[1:]])"
    assert served.run(code, *map(str, (changed, replaced, removed))) == "[7, 11, None]"


def test_a_store_is_the_copy_with_its_own_entries(served: _Served) -> None:
    store, copy = served.folder / "data/store.zarr", served.folder / "copies/store.zarr"
    for root, names in ((store, ["0.0", "var/1"]), (copy, ["c/0/0", "c/0/1"])):
        for name in names:
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_bytes(name.encode())
    (served.folder / "data/store.zarr.txt").write_bytes(b"not in it")
    (served.folder / "alias").symlink_to(served.folder / "data")
    served.take(store, copy)
    code = """
import os
print(sorted(os.listdir("data/store.zarr")), sorted(n for _, _, f in os.walk("alias/store.zarr/") for n in f))
print(open("data/store.zarr/c/0/1").read(), os.path.exists("data/store.zarr/0.0"))
print(open("data/store.zarr.txt").read(), os.path.exists("data/store.zarr/../store.zarr.txt"))
print(os.stat("data/store.zarr").st_ino == os.stat("copies/store.zarr").st_ino)
"""
    assert served.run(code).split("\n") == [
        "['c'] ['0', '1']",
        "c/0/1 False",
        "not in it True",
        "True",
    ]
    assert served.opens()[0] >= 3
    writes = (
        "import os\nopen('data/store.zarr/9', 'w').write('x')\nprint(sorted(os.listdir('data/store.zarr')))"
    )
    assert served.run(writes) == "['0.0', '9', 'var']"
    assert served.written() == [str(store)]


@pytest.mark.parametrize("is_recorded", [False, True], ids=["bare", "recorded"])
def test_odd_calls_end_as_they_do_without(served: _Served, tmp_path: Path, is_recorded: bool) -> None:
    session = tmp_path / "session"
    session.mkdir()
    served.add("a.bin")
    (served.folder / "data/store").mkdir()
    served.take(served.folder / "data/store", served.folder / "copies")
    program, source = compile_program(tmp_path, ODD_CALLS), tmp_path / "source"
    source.write_text("0123456789" * 10)
    seen = [
        subprocess.run([program, source], env=environment, capture_output=True, timeout=50, cwd=tmp_path)
        for environment in (dict(os.environ), served.environment(session if is_recorded else None))
    ]
    assert (seen[1].returncode, seen[1].stdout.decode()) == (seen[0].returncode, seen[0].stdout.decode())


def test_paths_that_become_too_long_are_left_alone(served: _Served) -> None:
    store, copy = served.folder / "data/store", served.folder / "copies" / ("x" * 200)
    store.mkdir()
    copy.mkdir()
    served.take(store, copy)
    code = """
import os
for length in (10, 3900, 4080, 4200):
    try:
        os.stat("data/store/" + "a/" * (length // 2))
    except OSError as error:
        print(error.errno)
"""
    assert served.run(code).split("\n") == ["2", "2", "2", "36"]


@pytest.mark.parametrize("damage", ["empty", "cut", "magic", "count", "offset", "folder", "gone"])
def test_a_table_that_is_none_changes_nothing(served: _Served, damage: str) -> None:
    path = served.add("a.bin")
    whole = served.table.read_bytes()
    damaged = {
        "empty": b"",
        "cut": whole[:100],
        "magic": b"X" + whole[1:],
        "count": whole[:8] + b"\xff" * 16 + whole[24:],
        "offset": whole[:104] + b"\xff" * 8 + whole[112:],
    }
    served.table.unlink()
    if damage in damaged:
        served.table.write_bytes(damaged[damage])
    elif damage == "folder":
        served.table.mkdir()
    assert served.run(_READ, str(path)) == str(len(_OLD))


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to make a program of another user")
def test_a_setuid_program_is_not_given_it(served: _Served, tmp_path: Path) -> None:
    path, program = served.add("a.bin"), tmp_path / "program"
    shutil.copy(shutil.which("cat") or "/bin/cat", program)
    os.chown(program, 65534, 65534)
    program.chmod(0o4755)
    for folder in (tmp_path, *tmp_path.parents):
        if folder.owner() == "root" and folder != Path("/tmp"):
            folder.chmod(folder.stat().st_mode | 0o755)
    done = subprocess.run([program, path], env=served.environment(), capture_output=True, timeout=50)
    assert done.stdout == _OLD


def test_a_program_that_confines_itself_goes_on(served: _Served) -> None:
    """After it asked for no new privileges a filter may follow: no system call of ours is made any more."""
    path = served.add("a.bin")
    code = """
import ctypes, sys
print(len(open(sys.argv[1], "rb").read()))
ctypes.CDLL(None).prctl(38, 1, 0, 0, 0)
print(len(open(sys.argv[1], "rb").read()))
"""
    assert served.run(code, str(path)).split("\n") == [str(len(_NEW)), str(len(_OLD))]


_FORMATS = {
    "h5py": (
        "import h5py\nwith h5py.File(p, 'w') as f: f['x'] = v",
        "import h5py\nprint(h5py.File(p)['x'][()].max())",
        "x.h5",
    ),
    "zarr": (
        "import zarr\nzarr.save(p, v)",
        "import zarr, numpy\nprint(int(numpy.asarray(zarr.open_array(p, mode='r')[:]).max()))",
        "x.zarr",
    ),
    "zarr 2 format": (
        "import zarr\na = zarr.create_array(p, shape=v.shape, dtype=v.dtype, zarr_format=2)\na[:] = v",
        "import zarr, numpy\nprint(int(numpy.asarray(zarr.open_array(p, mode='r')[:]).max()))",
        "x.zarr",
    ),
    "PIL": (
        "from PIL import Image\nImage.fromarray(v.astype('uint8')).save(p)",
        "from PIL import Image\nprint(Image.open(p).getpixel((0, 0)))",
        "x.png",
    ),
    "numpy": ("import numpy\nnumpy.save(p, v)", "import numpy\nprint(numpy.load(p).max())", "x.npy"),
    "numpy map": (
        "import numpy\nnumpy.save(p, v)",
        "import numpy\nprint(numpy.load(p, mmap_mode='r').max())",
        "x.npy",
    ),
    "npz": ("import numpy\nnumpy.savez(p, a=v)", "import numpy\nprint(numpy.load(p)['a'].max())", "x.npz"),
    "pandas": (
        "import pandas\npandas.DataFrame(v).to_csv(p)",
        "import pandas\nprint(pandas.read_csv(p)['0'].max())",
        "x.csv",
    ),
    "pyarrow": (
        "import pyarrow as a, pyarrow.parquet as q\nq.write_table(a.table({'x': v[0]}), p)",
        "import pyarrow.parquet as q\nprint(q.read_table(p)['x'][0].as_py())",
        "x.parquet",
    ),
    "tar": (
        "import tarfile\nwith tarfile.open(p, 'w:gz') as t: t.addfile(tarfile.TarInfo(str(v.max())))",
        "import tarfile\nprint(tarfile.open(p).getnames()[0])",
        "x.tar",
    ),
}


@pytest.mark.parametrize("library", _FORMATS)
def test_libraries_read_the_copy(served: _Served, library: str) -> None:
    make, show, name = _FORMATS[library]
    for folder, value in (("data", 3), ("copies", 7)):
        head = f"import sys, numpy\np, v = sys.argv[1], numpy.full((4, 4), {value})\n"
        words = [sys.executable, "-c", head + make, str(served.folder / folder / name)]
        subprocess.run(words, check=True, timeout=120)
    path = served.folder / "data" / name
    served.take(path, served.folder / "copies" / name)
    reads = f"import sys\np = sys.argv[1]\n{show}"
    assert served.run(reads, str(path)).split(".")[0] == "7"
    assert served.opens()[0] >= 1
    assert subprocess.run(
        [sys.executable, "-c", reads, str(path)], capture_output=True, text=True, timeout=120
    ).stdout.startswith("3")
