"""What samples do again and again with files, in real programs; and what only looks like it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.runs import run_script

PROGRAM = """
import csv, fcntl, io, os, sqlite3, sys, tarfile, time
from pathlib import Path

import h5py
import numpy as np
from torch.utils.data import DataLoader, Dataset

CASE, ENTRIES = sys.argv[1], 300

class Samples(Dataset):
    file = None

    def __init__(self):
        self.names = sorted(os.listdir("images"))

    def __len__(self):
        return 60

    def __getitem__(self, index):
        if CASE == "listed":  # true: both directories, for each sample
            paths = [next(Path(part).glob(f"{index:03}.*")) for part in ("images", "masks")]
        elif CASE == "indexed":  # true: all rows are read for each sample
            with open("index.csv") as file:
                paths = [[*csv.reader(file)][index][0]]
        elif CASE == "opened":  # true: the keys are listed and read for each sample
            with h5py.File("keys.h5") as file:
                return file["data"][[*file["data"]][index]][()]
        elif CASE == "packed":  # true: all of the archive is inflated for one member
            with tarfile.open("packed.tar.gz") as archive:
                return np.frombuffer(archive.extractfile(f"{index:03}").read(), "u1").copy()
        elif CASE == "scanned":  # true: all rows are read for one; the file stays open, by another name
            if self.file is None:
                self.file = sqlite3.connect("file:rows.db?mode=ro", uri=True)
                self.file.execute("pragma cache_size=8")
            rows = self.file.execute("select v from t where name = ?", (f"n{index}",)).fetchall()
            return np.frombuffer(rows[0][0], "u1").copy()
        elif CASE == "asked":  # true: no file of that name is there
            paths = [f"images/{index:03}.npy"]
            for suffix in (".png", ".jpg", ".tif"):
                os.path.exists(f"images/{index:03}{suffix}")
        elif CASE == "locked":  # only alike: it asks once, and then waits for its turn
            with open("lock", "w") as file:
                fcntl.flock(file, fcntl.LOCK_EX)
                time.sleep(0.005)
            paths = [f"images/{self.names[index]}"]
        elif CASE == "kept":  # only alike: once in each worker
            if self.file is None:
                self.file = h5py.File("keys.h5")
                self.keys = [*self.file["data"]]
            return self.file["data"][self.keys[index]][()]
        else:  # only alike: the list of `__init__`, each sample its own file
            paths = [f"images/{self.names[index]}"]
        return np.stack([np.load(path) for path in paths])

if CASE == "make":
    for part in ("images", "masks"):
        os.mkdir(part)
        for number in range(ENTRIES):
            np.save(f"{part}/{number:03}.npy", np.zeros(64, "u1"))
    with open("index.csv", "w") as file:
        file.writelines(f"images/{number:03}.npy,{number}\\n" for number in range(ENTRIES))
    with h5py.File("keys.h5", "w") as file:
        for number in range(ENTRIES):
            file[f"data/{number:03}"] = np.zeros(4096, "u1")  # so a sample reads little of it
    with sqlite3.connect("rows.db") as base:
        base.execute("create table t (id integer primary key, name text, v blob)")
        rows = ((number, f"n{number}", bytes(3000)) for number in range(ENTRIES))
        base.executemany("insert into t values (?, ?, ?)", rows)
    with tarfile.open("packed.tar.gz", "w:gz", compresslevel=1) as archive:
        for number in range(60):
            member = tarfile.TarInfo(f"{number:03}")
            member.size = 1 << 14
            archive.addfile(member, io.BytesIO(np.random.default_rng(number).bytes(member.size)))
else:
    for batch in DataLoader(Samples(), batch_size=4, num_workers=2):
        pass
"""
IMAGES, MASKS = "images", "masks"


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("repeated")
    assert run_script(directory, PROGRAM, "make").code == 0
    return directory


def repeated(data: Path, case: str) -> dict[str, dict[str, Any]]:
    run = run_script(data, PROGRAM, case)
    assert run.code == 0, run.stderr
    (rank,) = run.report()["ranks"]
    return {each["kind"]: each for each in rank["repeated"]}


@pytest.mark.parametrize(
    ("case", "kind", "paths", "entries"),
    [
        ("listed", "listing", [IMAGES, MASKS], 300),
        ("indexed", "reading", ["index.csv"], None),
        ("opened", "opening", ["keys.h5"], None),
        ("packed", "decoding", ["packed.tar.gz"], None),
        ("scanned", "decoding", ["rows.db"], None),
        ("asked", "asking", [IMAGES], None),
    ],
)
def test_work_that_each_sample_repeats(
    data: Path, case: str, kind: str, paths: list[str], entries: int | None
) -> None:
    found = repeated(data, case)
    assert next(iter(found)) == kind  # a worker asks for directories when it opens a database
    assert len(found) == 1 or case == "scanned"
    work = found[kind]
    assert (sorted(work["paths"]), work["entries"], work["samples_fraction"]) == (paths, entries, 1.0)
    assert work["files"] == len(paths)
    assert 0 < work["ms_per_sample"] <= work["of_ms_per_sample"]


@pytest.mark.parametrize("case", ["kept", "own", "locked"])
def test_work_that_is_done_once_is_none(data: Path, case: str) -> None:
    assert not repeated(data, case)
