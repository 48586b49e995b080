"""Libraries that read through others, in pieces or past the POSIX tracer; what programs see of it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from iotrace.session.names import KIND_READ_PATH
from iotrace.sources.processes import read_processes
from tests.support.perfetto import ERRORS, query
from tests.support.runs import Run, run_script

TICK_NS = 10**9 // os.sysconf("SC_CLK_TCK")  # how far the kernel's account of a running thread may lag

LOADED = """
import torch
from torch.utils.data import DataLoader, Dataset

class Files(Dataset):
    def __len__(self):
        return 4
    def __getitem__(self, index):
        return torch.as_tensor(read())

weight = torch.ones(1, requires_grad=True)
for batch in DataLoader(Files(), batch_size=1):
    (batch.float().sum() * weight).sum().backward()
"""


def spans_of(run: Run) -> list[tuple[str, str, int]]:
    """Name, file's name and bytes of each read-path span, in the order of their ends."""
    assert run.code == 0, run.stderr
    assert not list(run.session.glob("processes/*/agent.log"))
    return [
        (process.texts[span["name"]], Path(process.texts.get(span["file"], "")).name, int(span["bytes"]))
        for process in read_processes(run.session)[0]
        for span in process.spans
        if span["kind"] == KIND_READ_PATH
    ]


@pytest.mark.parametrize("workers", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_webdataset_reads_are_charged_to_the_shard(tmp_path: Path, workers: int) -> None:
    program = f"""
import torch
import webdataset
from torch.utils.data import DataLoader

def main():
    with webdataset.TarWriter("shard.tar") as shard:
        for number in range(8):
            shard.write({{"__key__": f"{{number:03}}", "bin": bytes(5000)}})
    data = webdataset.WebDataset("shard.tar", shardshuffle=False, empty_check=False)
    data = data.map(lambda sample: torch.tensor(len(sample["bin"])))
    weight = torch.ones(1, requires_grad=True)
    total = 0
    for batch in DataLoader(data, batch_size=2, num_workers={workers}):
        (batch.float().sum() * weight).sum().backward()
        total += int(batch.sum())
    print(total)

if __name__ == "__main__":
    main()
"""
    run = run_script(tmp_path, program)
    assert run.stdout == "40000\n", run.stderr
    found = spans_of(run)
    reads = [(file, size) for name, file, size in found if name == "tarfile._FileInFile.read"]
    assert [row for row in reads if row[1]] == [("shard.tar", 5000)] * 8
    headers = [file for name, file, _ in found if name == "tarfile.TarFile.next"]
    assert set(headers) == {"shard.tar"}
    assert len(headers) > 8  # one a member, and those that find the end
    if workers == 0:
        assert run.report()["ranks"][0]["data_wait"]["files"][0]["path"] == "shard.tar"


def test_batches_of_a_parquet_file_are_spans_each(tmp_path: Path) -> None:
    program = """
import types
import pyarrow as pa, pyarrow.parquet as pq
pq.write_table(pa.table({"x": list(range(1000))}), "data.parquet")
batches = pq.ParquetFile("data.parquet").iter_batches(batch_size=400)
assert isinstance(batches, types.GeneratorType)
print([batch.num_rows for batch in batches])
try:
    pq.ParquetFile("data.parquet").iter_batches(batch_size=0)
except ValueError as error:
    print(error)
"""
    run = run_script(tmp_path, program)
    assert run.stdout == "[400, 400, 200]\nbatch_size must be greater than zero\n"
    found = [row for row in spans_of(run) if row[0].endswith("iter_batches")]
    assert [file for _, file, _ in found] == ["data.parquet"] * 3 + [""]  # no batch: the end
    assert all(size >= 1600 for _, _, size in found[:3])


def test_chunks_of_a_csv_file_are_spans_each(tmp_path: Path) -> None:
    program = """
import pandas as pd
pd.DataFrame({"x": range(1000)}).to_csv("data.csv", index=False)
print([len(chunk) for chunk in pd.read_csv("data.csv", chunksize=400)])
"""
    run = run_script(tmp_path, program)
    assert run.stdout == "[400, 400, 200]\n"
    found = [row for row in spans_of(run) if row[0] == "pandas.TextFileReader.read"]
    assert [row[1:] for row in found[:3]] == [
        ("data.csv", 3200),
        ("data.csv", 3200),
        ("data.csv", 1600),
    ]


def test_a_read_path_inside_another_is_charged_once(tmp_path: Path) -> None:
    program = """
import pandas as pd
pd.DataFrame({"x": range(200000)}).to_parquet("data.parquet")
def read():
    return pd.read_parquet("data.parquet")["x"].to_numpy()
"""
    run = run_script(tmp_path, program + LOADED)
    names = {name for name, file, _ in spans_of(run) if file == "data.parquet"}
    assert {
        "pandas.read_parquet",
        "pyarrow.parquet.read_table",
        "pyarrow.parquet.ParquetDataset.read",
    } <= names
    wait = run.report()["ranks"][0]["data_wait"]
    (file,) = wait["files"]
    causes = wait["causes_ms"]
    assert file["ms"] <= causes["read"] + causes["decode"] + 1e-6
    assert causes["read"] + causes["decode"] <= wait["raw_ms"]


def test_decoding_on_threads_of_the_library_is_not_reading(tmp_path: Path) -> None:
    program = """
import time
import numpy as np, pyarrow as pa, pyarrow.parquet as pq
rng = np.random.default_rng(0)
table = pa.table({f"x{i}": rng.random(100_000) for i in range(6)})
pq.write_table(table, "data.parquet", compression="gzip", compression_level=1, use_dictionary=False)
def read():
    clocks = time.perf_counter_ns, time.process_time_ns
    began = [clock() for clock in clocks]
    found = pq.read_table("data.parquet", use_threads=True)
    print(*(clock() - at for clock, at in zip(clocks, began)))
    return found["x0"].to_numpy()
"""
    run = run_script(tmp_path, program + LOADED)
    assert run.code == 0, run.stderr
    spans = [
        span
        for process in read_processes(run.session)[0]
        for span in process.spans
        if process.texts[span["name"]] == "pyarrow.parquet.read_table"
    ]
    cpus = os.cpu_count() or 1
    for span, line in zip(spans, run.stdout.splitlines(), strict=True):
        elapsed_ns, used_ns = map(int, line.split())
        # The caller sleeps all the time: its own CPU time would be next to nothing.
        assert int(span["cpu_ns"]) <= used_ns + TICK_NS
        # The program reads its clocks outside of the span; threads that run are brought up to date by ticks.
        beside_ns = cpus * (elapsed_ns - int(span["duration_ns"]) + TICK_NS)
        assert int(span["cpu_ns"]) >= min(used_ns - beside_ns, int(span["duration_ns"]))
    assert run.report()["ranks"][0]["data_wait"]["causes_ms"]["decode"] > 0


def test_what_the_loop_reads_beside_its_loader_is_told(tmp_path: Path) -> None:
    program = """
import numpy as np, torch
from PIL import Image
from torch.utils.data import DataLoader
Image.fromarray(np.random.default_rng(0).integers(0, 255, (256, 256, 3), np.uint8)).save("photo.png")
weight = torch.ones(1, requires_grad=True)
with open("log.txt", "w") as log:
    for indices in DataLoader(range(24), batch_size=2):
        photos = [torch.from_numpy(np.array(Image.open("photo.png"))) for _ in indices]
        (photos[0].float().sum() * weight).sum().backward()
        print(len(photos), file=log, flush=True)
"""
    run = run_script(tmp_path, program)
    assert run.code == 0, run.stderr
    report = run.report()
    (rank,) = report["ranks"]
    assert rank["steps"]["unknown_why"] is None
    (file,) = rank["loop_reads"]["files"]
    assert file["path"] == "photo.png"
    reads_ms = rank["loop_reads"]["read_ms"] + rank["loop_reads"]["decode_ms"]
    assert file["ms"] <= reads_ms + 1e-6
    assert reads_ms <= rank["steps"]["mean_ms"] - rank["data_wait"]["raw_ms"] + 1e-6
    assert report["verdict"]["why"].startswith("the training thread itself reads for")


def test_a_reader_that_the_tracer_does_not_see_reads_in_its_blocked_time(tmp_path: Path) -> None:
    program = """
import io, time
import numpy as np

class Remote(io.BytesIO):
    def read(self, size=-1):
        if size > 1000:
            time.sleep(0.02)
        return super().read(size)

written = io.BytesIO()
np.save(written, np.ones(1000))
def read():
    return np.load(Remote(written.getvalue()))
"""
    run = run_script(tmp_path, program + LOADED)
    assert run.code == 0, run.stderr
    causes = run.report()["ranks"][0]["data_wait"]["causes_ms"]
    assert causes["read"] > 20 * 2 / 3  # two of three measured steps await a batch
    assert causes["decode"] < causes["read"]


def test_warnings_of_a_library_name_the_line_of_the_program(tmp_path: Path) -> None:
    program = """
import pandas as pd
pd.DataFrame({"x": [1, 2]}).to_csv("data.csv", index=False)
pd.read_csv("data.csv", sep="::")
"""
    run = run_script(tmp_path, program)
    line = next(line for line in run.stderr.splitlines() if "ParserWarning" in line)
    assert line.split(":")[0].endswith(".py")
    assert line.split(":")[1] == "4"
    assert "iotrace" not in line


ZARR_2 = os.environ.get("IOTRACE_TEST_ZARR2", "")


@pytest.mark.skipif(
    not ZARR_2, reason="IOTRACE_TEST_ZARR2 names no directory with zarr 2 (pip install --target)"
)
@pytest.mark.parametrize("compressor", ["None", "zarr.Blosc()"])
def test_zarr_2_reads_have_spans(tmp_path: Path, compressor: str) -> None:
    program = f"""
import sys
sys.path.insert(0, {ZARR_2!r})
import numpy as np, zarr
assert zarr.__version__.startswith("2."), zarr.__version__
array = zarr.open("data.zarr", mode="w", shape=(64, 64), chunks=(16, 64), dtype="f4", compressor={compressor})
array[:] = 1
def read():
    return zarr.open("data.zarr", mode="r")[:]
"""
    run = run_script(tmp_path, program + LOADED)
    reads = [row for row in spans_of(run) if row[0] == "zarr.Array.__getitem__"]
    assert reads == [("zarr.Array.__getitem__", "data.zarr", 64 * 64 * 4)] * 4


def test_arrows_lead_from_a_zarr_access_to_its_chunks(tmp_path: Path) -> None:
    program = """
import numpy as np, zarr
written = zarr.create_array("data.zarr", shape=(64, 512), chunks=(16, 512), dtype="f8", compressors=None)
written[:] = np.random.rand(64, 512)
array = zarr.open("data.zarr", mode="r")
def read():
    return array[8:40]
"""
    run = run_script(tmp_path, program + LOADED)
    assert run.code == 0, run.stderr
    arrows, turned, errors = query(
        run.timeline(),
        """select source.id, extract_arg(target.arg_set_id, 'debug.file'), target.name
           from flow join slice source on flow.slice_out = source.id
           join slice target on flow.slice_in = target.id
           where source.name = 'data.zarr · zarr.Array.__getitem__' and target.category = 'POSIX'""",
        """select target.name from flow join slice source on flow.slice_out = source.id
           join slice target on flow.slice_in = target.id where target.ts < source.ts""",
        ERRORS,
    )
    assert turned == errors == []
    accesses = {access for access, _, _ in arrows}
    assert len(accesses) == 4
    for access in accesses:
        files = sorted(file for source, file, _ in arrows if source == access)
        assert files == [f"data.zarr/c/{row}/0" for row in range(3)]
