"""Two hosts train together, and one waits for the other: which rank, which worker, which file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.hosts import FAKETIME, run_on_two, torchrun, unlike_here
from tests.support.runs import in_process, report_of

# Each rank has a file that is read at once and one that takes long to decode. Rank 1 reads the latter,
# or both do by turns of four batches.
TRAINING = """
import os, sys
import h5py
import numpy as np
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset

MOVES = sys.argv[1] == "moves"
rank = int(os.environ["RANK"])

def make(name, samples, compressed):
    with h5py.File(name, "w") as file:
        data = np.random.default_rng(0).integers(0, 9, (samples, 1 << 20), np.uint8)
        how = {"compression": "gzip"} if compressed else {}
        file.create_dataset("x", data=data, chunks=data.shape, **how)

class Samples(Dataset):
    def __len__(self):
        return 24
    def __getitem__(self, index):
        is_slow = (index // 4 % 2 == rank) if MOVES else rank == 1
        with h5py.File(f"{'slow' if is_slow else 'quick'}_{rank}.h5", "r") as file:
            return torch.from_numpy(file["x"][0, :64].astype(np.float32))

make(f"quick_{rank}.h5", 1, False)
make(f"slow_{rank}.h5", 12, True)
dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 64))
for batch in DataLoader(Samples(), batch_size=1, num_workers=1, prefetch_factor=1):
    model(batch).sum().backward()
dist.destroy_process_group()
"""


@pytest.fixture(scope="module")
def hosts() -> None:
    why = unlike_here() or ("" if FAKETIME.exists() else "libfaketime is not installed")
    if why:
        pytest.skip(why)


def _trained(directory: Path, how: str) -> dict[str, Any]:
    (directory / "train.py").write_text(TRAINING)
    words = torchrun("train.py", how, port=29412)
    options = ["--torch-steps", "3:1:16"]
    run_on_two(directory, words, options, OMP_NUM_THREADS="1", GLOO_SOCKET_IFNAME="cable")
    return report_of(directory / "session")


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_the_culprit_on_the_other_host_is_named_with_its_worker_and_its_file(
    tmp_path: Path, hosts: None
) -> None:
    report = _trained(tmp_path, "stays")
    assert [clock["kind"] for clock in report["clocks"] if clock["source"] == "agent"] == [
        "exact",
        "measured",
    ]
    imbalance, late = report["imbalance"], report["imbalance"]["stragglers"][0]
    assert (late["rank"], late["kind"], late["severity"]) == (1, "data", "critical")
    assert (late["worker"], late["cause"], late["file"]) == (0, "decode", "slow_1.h5")
    (worker,) = (one for one in report["processes"] if one["pid"] == late["pid"])
    assert (worker["host"], worker["rank"]) == ("beta", 1)
    assert (imbalance["pattern"], imbalance["withheld"]) == ("stays", None)
    assert (report["verdict"]["class"], report["verdict"]["rank"]) == ("rank-late", 1)
    screen = in_process("report", str(tmp_path / "session")).stdout
    assert "rank 1" in screen
    assert "slow_1.h5" in screen

    # The same run where a datagram took a minute: nobody can say who was last.
    for records in tmp_path.glob("session/telemetry/beta-*/records.jsonl"):
        lines = [json.loads(line) for line in records.read_text().splitlines()]
        for line in lines:
            for exchange in line.get("exchanges", []):
                exchange[3] += 60_000_000_000
        records.write_text("".join(json.dumps(line) + "\n" for line in lines))
    unsure = report_of(tmp_path / "session")
    assert unsure["imbalance"]["stragglers"] == []
    assert unsure["imbalance"]["clock_bound_us"] > 30_000_000
    assert unsure["imbalance"]["withheld"] in unsure["verdict"]["trust"]["reasons"]
    assert unsure["verdict"]["class"] != "rank-late"


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_a_straggler_that_moves_is_no_slow_machine(tmp_path: Path, hosts: None) -> None:
    report = _trained(tmp_path, "moves")
    imbalance = report["imbalance"]
    assert imbalance["pattern"] == "moves"
    by_rank = {one["rank"]: one for one in imbalance["stragglers"]}
    assert {by_rank[rank]["file"] for rank in (0, 1)} == {"slow_0.h5", "slow_1.h5"}
    assert all(one["kind"] == "data" for one in by_rank.values())
