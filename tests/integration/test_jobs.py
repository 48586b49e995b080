"""Several launchers of one job, several hosts, restarts: one session, every rank told apart."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.perfetto import track_paths
from tests.support.runs import SMALL_LOOP, environment, report_of

TRAIN = """
import os, sys
import torch
from torch.utils.data import DataLoader, Dataset

class Files(Dataset):
    def __len__(self):
        return 12
    def __getitem__(self, index):
        with open("values.bin", "rb", buffering=0) as file:
            for _ in range(8):
                file.read(64)
        return torch.ones(4)

weight = torch.ones(4, requires_grad=True)
batches = 0
for batch in DataLoader(Files(), batch_size=2, num_workers=1):
    (batch * weight).sum().backward()
    batches += 1
os.write(1, f"batches {batches}\\n".encode())
"""

SLURM = {"SLURM_JOB_ID": "4711", "SLURM_STEP_ID": "0", "SLURM_NTASKS": "2"}
IOTRACE = [sys.executable, "-m", "iotrace", "run"]


def _program(directory: Path, text: str) -> list[str]:
    (directory / "values.bin").write_bytes(bytes(4096))
    (directory / "train.py").write_text(text)
    return [sys.executable, "train.py"]


def _start(directory: Path, words: list[str], **variables: str) -> subprocess.Popen[str]:
    env = environment(OMP_NUM_THREADS="1", **variables)
    return subprocess.Popen(
        words, cwd=directory, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def _end(started: list[subprocess.Popen[str]]) -> list[tuple[int, str, str]]:
    ended = []
    for process in started:
        stdout, stderr = process.communicate(timeout=280)
        ended.append((process.returncode, stdout, stderr))
    return ended


@pytest.mark.parametrize("output", [pytest.param(["-o", "session"], marks=pytest.mark.slow), []])
def test_the_tasks_of_one_step_share_a_session(tmp_path: Path, output: list[str]) -> None:
    program = _program(tmp_path, TRAIN)
    line = [*IOTRACE, *output, "--", *program]
    started = [
        _start(tmp_path, line, **SLURM, SLURM_PROCID=str(task), SLURM_LOCALID="0", IOTRACE_HOST=f"node{task}")
        for task in range(2)
    ]
    ended = _end(started)
    assert [(code, stdout) for code, stdout, _ in ended] == [(0, "batches 6\n")] * 2
    # One launcher reports, for both.
    reports = [stderr for _, _, stderr in ended if "iotrace report" in stderr]
    assert len(reports) == 1
    assert [stderr for _, _, stderr in ended if stderr not in reports] == [""]
    session = tmp_path / ("session" if output else "iotrace-slurm-4711.0")
    report = report_of(session)
    assert report["session"]["complete"] is True
    assert [(rank["rank"], rank["world_size"], rank["host"]) for rank in report["ranks"]] == [
        (0, 2, "node0"),
        (1, 2, "node1"),
    ]
    for rank in report["ranks"]:
        (loader,) = rank["loaders"]
        assert loader["batches"] == 6
        (file,) = [file for file in rank["io"]["files"] if file["path"] == "values.bin"]
        assert file["reads"] == 12 * 8
        assert (session / "out" / "timeline.pftrace").exists()
    # Two hosts by name: nobody compared their clocks, and the report says so.
    kinds = {(clock["host"], clock["kind"], clock["bound_ns"] is None) for clock in report["clocks"]}
    first = report["clocks"][0]["host"]
    other = ({"node0", "node1"} - {first}).pop()
    assert kinds == {(first, "exact", False), (other, "assumed", True)}


@pytest.mark.skipif(not shutil.which("mpirun"), reason="no mpirun (apt install openmpi-bin)")
@pytest.mark.parametrize("inside", [pytest.param(False, marks=pytest.mark.slow), True])
def test_open_mpi_starts_launchers_or_is_started_by_one(tmp_path: Path, inside: bool) -> None:
    mpirun = ["mpirun", "--oversubscribe", "-n", "2"]
    traced = [*IOTRACE, "--torch-steps", "off", "--"]
    words = [*mpirun, *traced] if inside else [*traced, *mpirun]
    root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    ((code, stdout, stderr),) = _end([_start(tmp_path, [*words, sys.executable, SMALL_LOOP, "20"], **root)])
    assert (code, stdout) == (0, ""), stderr
    assert stderr.count("iotrace: tracing into") == 1
    assert stderr.count("\nNext ") == 1
    (session,) = tmp_path.glob("iotrace-openmpi-*" if inside else "iotrace-2*")
    assert len(list(session.rglob("timeline.pftrace"))) == 1
    ranks = report_of(session)["ranks"]
    assert [(rank["rank"], rank["world_size"], rank["steps"]["begun"]) for rank in ranks] == [
        (0, 2, 20),
        (1, 2, 20),
    ]


@pytest.mark.slow
def test_accelerate_launches_ranks(tmp_path: Path) -> None:
    _, *program = _program(tmp_path, TRAIN)
    launch = [sys.executable, "-m", "accelerate.commands.launch", "--multi_gpu", "--num_processes", "2"]
    launch += ["--num_machines", "1", "--mixed_precision", "no", "--dynamo_backend", "no"]
    traced = [*IOTRACE, "-o", "session", "--torch-steps", "0:1:2", "--torch-options", "memory", "--"]
    ((code, stdout, stderr),) = _end([_start(tmp_path, [*traced, *launch, *program])])
    assert (code, stdout) == (0, "batches 6\n" * 2), stderr
    ranks = report_of(tmp_path / "session")["ranks"]
    assert [(rank["rank"], rank["world_size"]) for rank in ranks] == [(0, 2), (1, 2)]
    # A profiler of all threads is told of no allocation.
    assert all(rank["memory"]["devices"][0]["allocated_bytes"] > 0 for rank in ranks)
    assert all(rank["memory"]["evolution"] for rank in ranks)


@pytest.mark.skipif(os.getuid() != 0 or not shutil.which("unshare"), reason="needs root and unshare")
def test_equal_pids_on_two_hosts_are_two_processes(tmp_path: Path) -> None:
    program = " ".join(_program(tmp_path, TRAIN))
    namespaces = ["unshare", "--uts", "--pid", "--fork", "--mount-proc", "--kill-child", "sh", "-c"]
    started = [
        _start(
            tmp_path,
            [*namespaces, f"hostname node{task} && {' '.join(IOTRACE)} -o session -- {program}"],
            **SLURM,
            SLURM_PROCID=str(task),
        )
        for task in range(2)
    ]
    assert [(code, stdout) for code, stdout, _ in _end(started)] == [(0, "batches 6\n")] * 2
    report = report_of(tmp_path / "session")
    pids = [(process["host"], process["pid"]) for process in report["processes"]]
    assert len(set(pids)) == len(pids)
    assert len({pid for _, pid in pids}) < len(pids)
    for rank in report["ranks"]:
        (file,) = [file for file in rank["io"]["files"] if file["path"] == "values.bin"]
        assert sum(file["by_worker"].values()) == file["reads"] == 12 * 8
        assert len(rank["io"]["processes"]) == 2
    # One kernel, hence one clock, whatever the hosts are called.
    assert {clock["kind"] for clock in report["clocks"]} == {"exact"}


def test_a_task_that_comes_again_is_another_run(tmp_path: Path) -> None:
    program = _program(tmp_path, "print(1)")
    task = {**SLURM, "SLURM_NTASKS": "1", "SLURM_PROCID": "0"}
    for expected in ("iotrace-slurm-4711.0", "iotrace-slurm-4711.0-2"):
        ((code, stdout, _),) = _end([_start(tmp_path, [*IOTRACE, "--", *program], **task)])
        assert (code, stdout) == (0, "1\n")
        assert (tmp_path / expected / "outcome.json").exists()
    for variables in (task, {**task, "SLURM_STEP_ID": "1"}, {}):
        again = [*IOTRACE, "-o", "iotrace-slurm-4711.0", "--", *program]
        ((code, stdout, stderr),) = _end([_start(tmp_path, again, **variables)])
        assert (code, stdout) == (125, "")
        assert "already holds a session" in stderr


RESTARTED = TRAIN.replace(
    'os.write(1, f"batches',
    """
if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
    sys.exit(3)
os.write(1, f"batches""",
)


def test_an_elastic_restart_is_another_incarnation(tmp_path: Path) -> None:
    _program(tmp_path, RESTARTED)
    torchrun = ["-m", "torch.distributed.run", "--nproc-per-node", "1", "--max-restarts", "1", "train.py"]
    line = [*IOTRACE, "-o", "session", "--", sys.executable, *torchrun]
    ((code, stdout, stderr),) = _end([_start(tmp_path, line)])
    assert (code, stdout) == (0, "batches 6\n"), stderr
    report = report_of(tmp_path / "session")
    assert [(rank["rank"], rank["incarnation"]) for rank in report["ranks"]] == [(0, 0), (0, 1)]
    assert [rank["loaders"][0]["batches"] for rank in report["ranks"]] == [6, 6]
    tracks = track_paths(tmp_path / "session" / "out" / "timeline.pftrace")
    groups = [path.split(" / ")[1] for path in tracks[1:]]
    assert list(dict.fromkeys(groups)) == ["rank 0", "rank 0 (restart 1)", "counters"]
    roles = [process["role"] for process in report["processes"]]
    assert sorted(roles) == ["launcher", "loader worker", "loader worker", "rank", "rank"]
    assert "0, restart 1" in stderr


SPAWNED = """
import os
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.utils.data import DataLoader, TensorDataset

def train(rank):
    store = dist.FileStore("store", 2)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=2)
    weight = torch.ones(4, requires_grad=True)
    for (batch,) in DataLoader(TensorDataset(torch.ones(8, 4)), batch_size=2 + 2 * rank):
        (batch * weight).sum().backward()
    dist.barrier()  # the other one may still be connecting
    dist.destroy_process_group()

if __name__ == "__main__":
    mp.spawn(train, nprocs=2)
"""


def test_ranks_that_the_program_spawned_are_those_of_its_process_group(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SPAWNED)
    line = [*IOTRACE, "-o", "session", "--", sys.executable, "train.py"]
    ((code, stdout, stderr),) = _end([_start(tmp_path, line)])
    assert (code, stdout) == (0, ""), stderr
    report = report_of(tmp_path / "session")
    assert [
        (rank["rank"], rank["world_size"], rank["loaders"][0]["batches"]) for rank in report["ranks"]
    ] == [
        (0, 2, 4),
        (1, 2, 2),
    ]
