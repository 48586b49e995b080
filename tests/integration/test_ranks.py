"""Two ranks under torchrun: each is told apart, with its own steps, workers and timeline."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.runs import Run, environment, run_traced

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


COMMON = """
import os, threading, time

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset

class Ones(Dataset):
    def __init__(self, count=120, seconds=0.0):
        self.count, self.seconds = count, seconds
    def __len__(self):
        return self.count
    def __getitem__(self, index):
        time.sleep(self.seconds)
        return torch.ones(4)

def trained(model, optimizer, batch):
    model(batch).mean().backward()
    optimizer.step()
    optimizer.zero_grad()
"""

EVALUATES_ALONE = """
dist.init_process_group("gloo")
plain = torch.nn.Linear(4, 1)
model = torch.nn.parallel.DistributedDataParallel(plain)
optimizer = torch.optim.SGD(model.parameters(), 1e-3)
for number, batch in enumerate(DataLoader(Ones(), batch_size=4), 1):
    trained(model, optimizer, batch)
    time.sleep(0.01)
    if number % 5 == 0 and dist.get_rank() == 0:
        plain.eval()
        with torch.no_grad():
            for batch in DataLoader(Ones(12, 0.03), batch_size=4):
                plain(batch)
        plain.train()
dist.destroy_process_group()
"""

IS_FED = """
dist.init_process_group("gloo")
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), 1e-3)
if dist.get_rank() == 0:
    for batch in DataLoader(Ones(seconds=0.02), batch_size=4):
        dist.send(batch, 1)
        trained(model, optimizer, batch)
else:
    for _ in range(30):
        batch = torch.empty(4, 4)
        dist.recv(batch, 0)
        trained(model, optimizer, batch)
dist.destroy_process_group()
"""

BY_TURNS = """
turn = [threading.Semaphore(1), threading.Semaphore(0)]

def train(number):
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    batches = iter(DataLoader(Ones(), batch_size=4))
    for _ in range(30):
        turn[number].acquire()
        trained(model, optimizer, next(batches))
        turn[1 - number].release()

threads = [threading.Thread(target=train, args=(number,)) for number in range(2)]
for each in threads:
    each.start()
for each in threads:
    each.join()
"""


def reported(directory: Path, program: str, ranks: int) -> Any:
    (directory / "program.py").write_text(COMMON + program)
    torchrun = ["-m", "torch.distributed.run", "--nproc-per-node", str(ranks)] if ranks > 1 else []
    run = run_traced(directory, [*torchrun, "program.py"], OMP_NUM_THREADS="1")
    assert run.code == 0, run.stderr
    return run.report()


def test_a_rank_that_evaluates_alone_is_why_the_others_wait(tmp_path: Path) -> None:
    report = reported(tmp_path, EVALUATES_ALONE, 2)
    found = report["lockstep"]
    assert (found["late_rank"], found["kind"]) == (0, "evaluation")
    assert (report["verdict"]["class"], report["verdict"]["rank"]) == ("rank-late", 0)
    assert [fix["code"] for fix in report["verdict"]["fixes"]] == ["IO802"]
    assert "IO802" in [each["code"] for each in report["culprits"]]


@pytest.mark.slow
def test_a_rank_that_is_sent_its_batches_is_shown(tmp_path: Path) -> None:
    report = reported(tmp_path, IS_FED, 2)
    assert [(rank["rank"], len(rank["loaders"])) for rank in report["ranks"]] == [(0, 1), (1, 0)]
    assert (report["lockstep"]["late_rank"], report["lockstep"]["kind"]) == (0, "data")
    assert "IO808" in [each["code"] for each in report["culprits"]]


def test_two_models_trained_by_turns_hand_each_other_no_batches(tmp_path: Path) -> None:
    """Each thread waits at a semaphore for its turn; the other one has trained on the batch that it took."""
    (rank,) = reported(tmp_path, BY_TURNS, 1)["ranks"]
    assert rank["steps"]["unknown_why"] is None
    assert len(rank["data_wait"]["by_loader"]) == 1
