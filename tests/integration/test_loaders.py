"""Batches recorded equal batches trained: for every kind of loader that programs use."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.runs import Run, run_script

PROGRAM = """
import json, sys, warnings
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, get_worker_info

class Map(Dataset):
    def __len__(self):
        return 12
    def __getitem__(self, index):
        return torch.ones(3) * index

class Many(Map):
    def __getitems__(self, indices):
        return [self[index] for index in indices]

class Stream(IterableDataset):
    def __iter__(self):
        info = get_worker_info()
        first, every = (info.id, info.num_workers) if info else (0, 1)
        for index in range(first, 12, every):
            yield torch.ones(3) * index

def train(loader, weight):
    seen = []
    for batch in loader:
        (batch * weight).sum().backward()
        seen.append(sorted(batch[:, 0].tolist()))
    return seen

def main():
    weight = torch.ones(3, requires_grad=True)
    options = json.loads(sys.argv[1])
    kind, epochs = options.pop("dataset"), options.pop("epochs", 1)
    loader = DataLoader(globals()[kind](), batch_size=2, **options)
    print(json.dumps([train(loader, weight) for _ in range(epochs)]))

if __name__ == "__main__":
    main()
"""

CASES: list[dict[str, Any]] = [
    {"dataset": "Map", "num_workers": 0, "epochs": 2},
    {"dataset": "Map", "num_workers": 2, "epochs": 2},
    {"dataset": "Map", "num_workers": 2, "epochs": 3, "persistent_workers": True},
    {"dataset": "Map", "num_workers": 2, "in_order": False, "prefetch_factor": 3},
    {"dataset": "Map", "num_workers": 2, "multiprocessing_context": "spawn"},
    {"dataset": "Map", "num_workers": 2, "multiprocessing_context": "forkserver"},
    {"dataset": "Many", "num_workers": 2},
    {"dataset": "Stream", "num_workers": 0},
    {"dataset": "Stream", "num_workers": 2, "epochs": 2},
    {"dataset": "Stream", "num_workers": 2, "epochs": 2, "persistent_workers": True},
]


def checked(run: Run) -> dict[str, Any]:
    assert run.code == 0, run.stderr
    logs = list(run.session.glob("processes/*/agent.log"))
    assert not logs, logs[0].read_text()
    return run.report()["ranks"][0]


@pytest.mark.parametrize("options", CASES, ids=lambda case: "-".join(str(value) for value in case.values()))
def test_batches_recorded_equal_batches_trained(tmp_path: Path, options: dict[str, Any]) -> None:
    run = run_script(tmp_path, PROGRAM, json.dumps(options))
    rank = checked(run)
    trained = json.loads(run.stdout)
    assert sorted(value for batch in trained[0] for value in batch) == list(range(12))
    (loader,) = rank["loaders"]
    assert loader["batches"] == sum(len(epoch) for epoch in trained)
    assert loader["epochs"] == options.get("epochs", 1)
    assert (loader["kind"], loader["workers"]) == ("training", options["num_workers"])
    assert rank["steps"]["samples_per_second"] is not None
    assert rank["data_wait"]["causes_ms"]["unknown"] <= max(0.5, 0.5 * rank["data_wait"]["raw_ms"])
    if options["num_workers"]:
        assert loader["start_method"] == options.get("multiprocessing_context", "fork")
        # Every delivered batch met its production in a worker.
        assert all(batch["delay_ms"] is not None for batch in rank["data_wait"]["worst_batches"])


SEVERAL = (
    PROGRAM.split("def main")[0]
    + """
weight = torch.ones(3, requires_grad=True)
training, checking = DataLoader(Map(), batch_size=2), DataLoader(Map(), batch_size=1, num_workers=1)
trained = checked = 0
for epoch in range(2):
    trained += len(train(training, weight))
    with torch.no_grad():
        for batch in checking:
            checked += 1
other = iter(DataLoader(Map(), batch_size=3))
next(other)
print(trained, checked)
"""
)


def test_training_evaluation_and_an_abandoned_loader_are_told_apart(tmp_path: Path) -> None:
    run = run_script(tmp_path, SEVERAL)
    rank = checked(run)
    assert run.stdout == "12 24\n"
    found = [(loader["kind"], loader["primary"], loader["batches"]) for loader in rank["loaders"]]
    assert found == [("training", True, 12), ("evaluation", False, 24), ("other", False, 1)]
    # Steps are the training loader's: two epochs of six, the first step left out.
    assert rank["steps"]["count"] + rank["steps"]["excluded"]["profiled"] == 11


RAISING = (
    PROGRAM.split("def main")[0]
    + """
class Broken(Map):
    def __getitem__(self, index):
        if index == 7:
            raise ValueError("sample 7 is broken")
        return super().__getitem__(index)
train(DataLoader(Broken(), batch_size=2, num_workers=int(sys.argv[1])), torch.ones(3, requires_grad=True))
"""
)


@pytest.mark.parametrize("workers", ["0", "2"])
def test_a_dataset_that_raises_prints_what_it_prints_without_iotrace(tmp_path: Path, workers: str) -> None:
    run = run_script(tmp_path, RAISING, workers)
    program = next(tmp_path.glob("program_*.py"))
    bare = subprocess.run(
        [sys.executable, str(program), workers], cwd=tmp_path, capture_output=True, text=True
    )
    assert run.code == bare.returncode == 1
    # Which line of torch re-raises depends on the order in which the workers finished.
    line = re.compile(r"line \d+, in _next_data")
    assert line.sub("", run.stderr).startswith(line.sub("", bare.stderr))
    assert "ValueError: sample 7 is broken" in bare.stderr
    (loader,) = run.report()["ranks"][0]["loaders"]
    assert loader["batches"] == 3
    assert loader["failures"] == ["ValueError"]
