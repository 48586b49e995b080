"""A job on two hosts hangs: each sidecar sees its own rank alone, the report says which of them differs."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.hosts import NETWORK, run_on_two, unlike_here
from tests.support.runs import in_process, report_of

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

# Rank 1 does not enter the all-reduce of its 40th step.
TRAINING = """
import datetime, os, sys, threading, time
import torch, torch.distributed as dist
from torch.utils.data import DataLoader, Dataset

MODE = sys.argv[1]
threading.Timer(150, os._exit, (0,)).start()
dist.init_process_group("gloo", timeout=datetime.timedelta(minutes=10))
rank, other = dist.get_rank(), dist.new_group([0, 1])

class Samples(Dataset):
    def __len__(self):
        return 400
    def __getitem__(self, index):
        time.sleep(0.005)
        return torch.ones(4)

model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))
for number, batch in enumerate(DataLoader(Samples(), batch_size=4)):
    if number == 40 and rank == 1:
        if MODE == "barrier":
            dist.barrier(other)
        while True:
            time.sleep(1)
    model(batch).sum().backward()
"""


@pytest.mark.parametrize(
    ("mode", "kind", "told"),
    [
        (
            "barrier",
            "hung",
            "ranks are not in one collective: rank 0 (alpha) is in backward, rank 1 (beta) is in barrier",
        ),
        ("sleeps", "waiting", "rank 1 (beta): not seen to wait; look there"),
    ],
)
def test_the_rank_that_differs_is_named_with_its_host(
    tmp_path: Path, mode: str, kind: str, told: str
) -> None:
    why = unlike_here()
    if why:
        pytest.skip(why)
    (tmp_path / "train.py").write_text(TRAINING)
    job = ["--nnodes=2", "--nproc-per-node=1", f"--master-addr={NETWORK}.1", "--master-port=29413"]
    words = ["-m", "torch.distributed.run", *job, "train.py", mode]
    run_on_two(
        tmp_path,
        words,
        ["--quiet", "--torch-steps", "off"],
        clocks=({}, {}),
        OMP_NUM_THREADS="1",
        GLOO_SOCKET_IFNAME="cable",
    )
    (hang,) = report_of(tmp_path / "session")["session"]["hangs"]
    assert (hang["kind"], hang["text"][-1]) == (kind, told)
    assert "Hang" in in_process("report", str(tmp_path / "session")).stdout
