"""Whose fault a wait is, on real programs: one in which it is true, others in which it only looks so."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.runs import run_script

PROGRAM = """
import os, sys, time, zlib
import torch
from torch.utils.data import DataLoader, Dataset

BOUND, SLEEP_S = int(sys.argv[1]), float(sys.argv[2])
PACKED = zlib.compress(bytes(range(256)) * 16384)

class Samples(Dataset):
    def __len__(self):
        return 160
    def __getitem__(self, index):
        if SLEEP_S:
            time.sleep(SLEEP_S)
        else:
            for _ in range(3):
                zlib.decompress(PACKED)
        return torch.zeros(4)

def bind(number):
    if BOUND:
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})

weight = torch.nn.Parameter(torch.zeros(4))
for batch in DataLoader(Samples(), batch_size=4, num_workers=4, worker_init_fn=bind):
    (weight * batch).sum().backward()
"""


@pytest.mark.parametrize(
    ("bound", "sleep_s"),
    [
        (1, 0.0),
        pytest.param(0, 0.0, marks=pytest.mark.slow),
        pytest.param(1, 0.02, marks=pytest.mark.slow),  # slow storage: workers on one CPU sleep
        pytest.param(0, 0.02, marks=pytest.mark.slow),
    ],
)
def test_workers_that_share_one_cpu(tmp_path: Path, bound: int, sleep_s: float) -> None:
    report = run_script(tmp_path, PROGRAM, str(bound), str(sleep_s)).report()
    (rank,) = report["ranks"]
    workers = [process for process in rank["system"]["processes"] if process["role"] != "main"]
    masks = {tuple(process["cpus"]) for process in workers}
    usable = rank["system"]["cpus_usable"]
    if len(usable) == 1:
        pytest.skip("one CPU: nothing can be bound")
    assert masks == ({(min(usable),)} if bound else {tuple(usable)})
    verdict = report["verdict"]
    culprits = [culprit["id"] for culprit in rank["culprits"]]
    if bound and not sleep_s:
        assert "cpu-binding" in culprits
        # Beside other programs that take all other CPUs the binding is not what to mend first.
        assert verdict["culprit"] == culprits[0]
        if culprits[0] == "cpu-binding":
            assert verdict["why"].startswith(f"4 workers share CPU {min(usable)}: ")
            assert verdict["fixes"][0]["id"] == "cpu-binding"
        assert "too-few-workers" not in [fix["id"] for fix in verdict["fixes"]]
        spent = rank["data_wait"]["without_cpu_ms"]
        assert all(spent[cause] <= rank["data_wait"]["causes_ms"][cause] for cause in spent)
    elif not bound:
        assert "cpu-binding" not in culprits
