"""Every workload under iotrace and strace: what it trained, read and waited for, and its lesson.

One run of each by default, with two forked workers but for the mapped tokens; every start method, no workers
and strace beside all of them with --slow.
"""

from __future__ import annotations

import functools
import json
import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from iotrace.analysis.rank import SessionAnalysis
from iotrace.session import names
from iotrace.session.names import KIND_ITEM, KIND_READ_PATH
from iotrace.sources.processes import read_processes
from iotrace.sources.session import open_session
from tests.support import strace
from tests.support.once import once, once_run
from tests.support.pagecache import drop
from tests.support.runs import Run, in_process
from tests.support.workloads import STEPS, WORKLOADS, Traced, make_data, run_workload

needs_strace = pytest.mark.skipif(not strace.AVAILABLE, reason="strace is not installed (apt install strace)")
FORKED = ("--workers", "2", "--start-method", "fork")
# Without workers there is nothing to start: one run of that kind stands for the three methods.
MATRIX = [(2, "fork"), (2, "spawn"), (2, "forkserver"), (0, "fork")]


@pytest.fixture(scope="module")
def directory(unet_directory: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with every workload's data; all of the suite's workers share it."""

    def make(directory: Path) -> str:
        (directory / "data").mkdir()
        (directory / "data" / "unet3d").symlink_to(unet_directory / "data" / "unet3d")
        make_data(directory)
        return str(directory)

    return Path(once(tmp_path_factory, "workloads", make))


@pytest.fixture(scope="module")
def traced(
    directory: Path, unet_directory: Path, unet_run: Run, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], Traced]:
    """A workload's run with two forked workers; made by the first of the suite's workers that asks for it."""
    unet = WORKLOADS["unet3d_hdf5"]

    @functools.cache
    def run(name: str) -> Traced:
        if name == unet.name:
            return Traced(unet, unet_directory, unet_run, None)
        mapped = name == "gpt_memmap"
        logs = directory / "logs" if mapped and strace.AVAILABLE else None

        def make(_: Path) -> Run:
            if mapped:
                return run_mapped(directory, logs)
            return run_workload(WORKLOADS[name], directory, None, *FORKED).run

        return Traced(WORKLOADS[name], directory, once_run(tmp_path_factory, name, make), logs)

    return run


def run_mapped(directory: Path, logs: Path | None) -> Run:
    """Run the workload of mapped tokens, none of which is in memory, in one process.

    strace counts in the same run that is analysed: page faults, which its reads are, are no calls.
    """
    drop(directory / "data" / "tokens" / "tokens.bin")
    if logs is not None:
        logs.mkdir()
    return run_workload(WORKLOADS["gpt_memmap"], directory, logs, "--workers", "0").run


def check_batches(traced: Traced) -> None:
    """The training loader's batches are those that the program trained, rank by rank."""
    recorded = {
        rank["rank"]: [loader["batches"] for loader in rank["loaders"] if loader["kind"] == "training"]
        for rank in traced.ranks
    }
    assert recorded == {rank: [steps] for rank, steps in traced.trained.items()}
    assert len(recorded) == traced.workload.ranks
    assert min(traced.trained.values()) >= STEPS


def check_causes(traced: Traced) -> None:
    for rank in traced.ranks:
        wait = rank["data_wait"]
        assert wait["raw_ms"] > 0
        assert sum(wait["causes_ms"].values()) == pytest.approx(wait["raw_ms"], abs=1e-6)
        assert sum(file["ms"] for file in wait["files"]) <= wait["raw_ms"] + 1e-6

    session = open_session(traced.run.session)
    for found in SessionAnalysis(session).ranks:
        assert all(wait.delivery.prepared_ns is not None for wait in found.waits)


def check_coverage(traced: Traced) -> None:
    """The kernel's account is there for every process of a rank, and never exceeded."""
    for rank in traced.ranks:
        assert 0 <= rank["io"]["coverage"] <= 1.02
        for row in rank["io"]["processes"]:
            assert row["kernel_bytes"] is not None
            assert row["coverage"] is None or 0 <= row["coverage"] <= 1.02


def check_reads(traced: Traced) -> None:
    assert traced.logs is not None
    expected = strace.reads(traced.logs, traced.data)
    if traced.workload.name == "gpt_memmap":
        check_mapped_reads(traced, expected)
    else:
        found = traced.reads()
        differing = {key for key in found.keys() | expected.keys() if found.get(key) != expected.get(key)}
        assert len(differing) <= may_differ(traced, len(expected)), sorted(differing)


def may_differ(traced: Traced, files: int) -> int:
    """Of how many files dftracer may have counted other reads than there were.

    It forgets a descriptor after closing it. Where threads share a process, as zarr's do, another may have
    been given the same number meanwhile: what that one reads is lost, or taken for the closed file's.
    """
    return files // 20 if traced.workload.name == "weather_zarr" else 0


def check_mapped_reads(traced: Traced, expected: Counter[tuple[str, str]]) -> None:
    """Of the tokens there is no read call to count: the kernel reads them when a page is first touched.

    So what must agree is that there is none, and how often the file was opened. The index is read by
    `numpy.load`, through a duplicate of its descriptor and C's buffered files: what these delivered is the
    whole file, and its head twice.
    """
    assert traced.logs is not None
    tokens, index = str(traced.data / "tokens.bin"), str(traced.data / "tokens.npy")
    assert not [path for _, path in expected if path == tokens]
    assert not [path for _, path in traced.reads() if path == tokens]
    opens = {path: file["opens"] for path, file in traced.files()}
    assert opens[tokens] == strace.opens(traced.logs, traced.data)[tokens]
    assert strace.read_bytes(traced.logs, traced.data)[index] >= os.path.getsize(index)
    spans = [
        int(span["bytes"])
        for process in read_processes(traced.run.session)[0]
        for span in process.spans
        if span["kind"] == KIND_READ_PATH and process.texts[span["name"]] == "numpy.load"
    ]
    assert spans == [np.load(index).nbytes]
    seen = {path: file["read_bytes"] for path, file in traced.files()}
    assert 0 <= seen[index] - os.path.getsize(index) <= 8192
    assert all(rank["io"]["coverage"] < 0.05 for rank in traced.ranks)


@pytest.mark.parametrize("name", WORKLOADS)
def test_batches_recorded_equal_batches_trained(traced: Callable[[str], Traced], name: str) -> None:
    check_batches(traced(name))


@needs_strace
@pytest.mark.parametrize("name", ["weather_zarr", pytest.param("volumes_npz", marks=pytest.mark.slow)])
def test_read_calls_equal_straces(directory: Path, tmp_path: Path, name: str) -> None:
    run = run_workload(WORKLOADS[name], directory, tmp_path, *FORKED)
    check_batches(run)
    check_reads(run)


@needs_strace
def test_mapped_reads_equal_straces(traced: Callable[[str], Traced]) -> None:
    check_reads(traced("gpt_memmap"))


@pytest.mark.parametrize("name", WORKLOADS)
def test_causes_sum_to_the_wait_and_coverage_is_stated(traced: Callable[[str], Traced], name: str) -> None:
    check_causes(traced(name))
    check_coverage(traced(name))


@pytest.mark.slow
@pytest.mark.parametrize(("workers", "start_method"), MATRIX)
@pytest.mark.parametrize("name", WORKLOADS)
def test_the_whole_matrix(
    directory: Path, tmp_path: Path, name: str, workers: int, start_method: str
) -> None:
    options = ["--workers", str(workers), "--start-method", start_method]
    traced = run_workload(WORKLOADS[name], directory, None, *options)
    check_batches(traced)
    check_causes(traced)
    check_coverage(traced)
    if strace.AVAILABLE:
        counted = run_workload(WORKLOADS[name], directory, tmp_path, *options)
        check_batches(counted)
        check_reads(counted)
    for rank in traced.ranks:
        (loader,) = [loader for loader in rank["loaders"] if loader["kind"] == "training"]
        assert (loader["workers"], loader["start_method"]) == (workers, start_method if workers else None)


def costs(traced: Traced, rank: int = 0) -> tuple[str, dict[str, float]]:
    """A rank's largest cause, and what each data file costs it, the costliest first.

    Beside other programs, as the report tells of them, transport and the start of workers are left out: they
    then wait for a core.
    A worker that shares its first tensor may look for a directory for its socket, by writing to /tmp.
    """
    wait = traced.ranks[rank]["data_wait"]
    paths = {(traced.directory / file["path"]).resolve(): file["ms"] for file in wait["files"]}
    files = {
        str(path.relative_to(traced.data)): ms
        for path, ms in paths.items()
        if path.is_relative_to(traced.data)
    }
    others = (traced.ranks[rank]["system"]["host"] or {}).get("others_cpu_fraction")
    beside = others is None or others >= 0.05  # from there on the report's trust names them
    left_out = {"transport", "startup", "queued"} if beside else set()
    made = {cause: ms for cause, ms in wait["causes_ms"].items() if cause not in left_out}
    return max(made, key=made.get), files


@pytest.mark.parametrize(
    ("name", "causes", "culprit"),
    [
        ("unet3d_hdf5", {"decode"}, "case_02.h5"),
        # zarr decodes on threads of its own: where one of them waits for a core, while the caller is
        # blocked, cannot be told from a wait for the disk.
        ("weather_zarr", {"decode", "read"}, "fields.zarr/height"),
        ("images", {"decode"}, "harbour/"),
        ("volumes_npz", {"decode"}, "patient_1.npz"),
    ],
)
def test_the_flaw_of_the_data_is_named(
    traced: Callable[[str], Traced], name: str, causes: set[str], culprit: str
) -> None:
    found, files = costs(traced(name))
    assert found in causes
    assert next(iter(files)).startswith(culprit)


def test_validation_under_lightning_is_a_loader_apart(traced: Callable[[str], Traced]) -> None:
    (rank,) = traced("weather_zarr").ranks
    kinds = [(loader["kind"], loader["primary"], loader["batches"]) for loader in rank["loaders"]]
    assert kinds == [("training", True, STEPS), ("validation", False, 4)]
    (height,) = [group for group in rank["file_groups"] if group["path"].endswith("/height")]
    assert (height["kind"], height["chunks"]["of"]) == ("store", 4)  # of 64 times each, of which two are read
    assert height["chunks"]["amplification"] == pytest.approx(32, abs=8)


def test_the_slow_rank_is_told_from_the_one_that_waits_for_it(traced: Callable[[str], Traced]) -> None:
    run = traced("ddp_slow_rank")
    first, second = (rank["loaders"][0]["production_ms"] for rank in run.ranks)
    assert second > first
    waits = [rank["data_wait"]["raw_ms"] for rank in run.ranks]
    assert waits[1] > waits[0]
    cause, files = costs(run, rank=1)
    assert cause == "decode"
    assert next(iter(files)) == "shard_1.h5"


def test_one_worker_streams_the_tail_alone(traced: Callable[[str], Traced]) -> None:
    run = traced("stream_iterable")
    processes = read_processes(run.run.session)[0]
    made_by = [by for process in processes for by in process.rows(names.BATCH_ROW)["worker"].tolist()]
    by_worker = Counter(made_by)
    assert by_worker[0] >= 2 * by_worker[1] > 0  # worker 0 has the shards with eight times the records
    assert set(made_by[-3:]) == {0}
    # Each worker's records end with the stop of its iterator.
    made = [process.rows(names.PRODUCED_ROW)["outcome"] for process in processes]
    assert sum((own == names.OUTCOMES.index("stop")).sum() for own in made) == 2
    # Filling the buffer with 8 records comes before the first batch of 4.
    (rank,) = run.ranks
    assert rank["loaders"][0]["first_batch_ms"] > rank["data_wait"]["raw_ms"]


def test_cold_tokens_are_read_by_page_faults(traced: Callable[[str], Traced]) -> None:
    run = traced("gpt_memmap")
    items = [
        span
        for process in read_processes(run.run.session)[0]
        for span in process.spans
        if span["kind"] == KIND_ITEM
    ]
    assert sum(int(span["major_faults"]) for span in items) >= 500
    causes = run.ranks[0]["data_wait"]["causes_ms"]
    assert causes["read"] > 0


def test_a_session_beside_itself_differs_in_nothing(unet_run: Run, tmp_path: Path) -> None:
    session, kept = str(unet_run.session), str(tmp_path / "kept.json")
    # One volume is a single chunk: each of its samples decodes the whole of it.
    report = unet_run.report()
    costliest = report["ranks"][0]["stages"][0]
    assert (costliest["stage"], Path(costliest["path"]).name) == ("decode", "case_02.h5")
    crop_bytes = 32**3 * (4 + 1)  # of the image and its label
    assert (costliest["decoded_bytes"], costliest["decoded_bytes_error"]) == (crop_bytes, 0)
    assert {"torch", "h5py", "numpy"} <= report["processes"][0]["versions"].keys()
    assert in_process("check", session, "--save-baseline", kept).returncode == 0
    done = in_process("check", session, "--baseline", kept, "--json")
    found = json.loads(done.stdout)
    assert (done.returncode, found["worse"], found["comparable"]) == (0, [], True)
    assert found["changed"] == found["comparison"]["settings"] == found["comparison"]["environment"] == []
    done = in_process("compare", session, kept, "--json")
    assert json.loads(done.stdout)["change_pct"] == 0
