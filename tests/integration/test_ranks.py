"""Two ranks under torchrun: each is told apart, with its own steps, workers and timeline."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.support.runs import Run, environment

PROGRAM = """
import os

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset

class Ones(Dataset):
    def __len__(self):
        return 40
    def __getitem__(self, index):
        return torch.ones(4)

dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1))
batches = 0
for batch in DataLoader(Ones(), batch_size=4, num_workers=1):
    model(batch).sum().backward()
    batches += 1
# One write: two ranks share the pipe, and print() writes its newline apart from its text.
os.write(1, f"rank {dist.get_rank()} batches {batches}\\n".encode())
dist.destroy_process_group()
"""


def test_two_ranks_of_torchrun(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    session = tmp_path / "session"
    torchrun = ["-m", "torch.distributed.run", "--nproc-per-node", "2", "program.py"]
    done = subprocess.run(
        [sys.executable, "-m", "iotrace", "run", "-o", str(session), "--", sys.executable, *torchrun],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        env=environment(OMP_NUM_THREADS="1"),
    )
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == ["rank 0 batches 10", "rank 1 batches 10"]
    report = Run(done.returncode, done.stdout, done.stderr, session).report()
    assert [(rank["rank"], rank["world_size"]) for rank in report["ranks"]] == [(0, 2), (1, 2)]
    for rank in report["ranks"]:
        (loader,) = rank["loaders"]
        assert (loader["kind"], loader["batches"], loader["workers"]) == ("training", 10, 1)
        assert (session / "out" / "timeline.pftrace").exists()
