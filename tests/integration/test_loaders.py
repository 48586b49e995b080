"""Batches recorded equal batches trained: for every kind of loader that programs use."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from iotrace.analysis.rank import RankAnalysis
from iotrace.sources.session import open_session
from tests.support.runs import Run, environment, run_script

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
    trained = []
    for number, options in enumerate(json.loads(sys.argv[1])):
        kind, epochs = options.pop("dataset"), options.pop("epochs", 1)
        line = "DataLoader(globals()[kind](), batch_size=2, **options)"
        loader = eval(compile(line, f"line of its own {number}", "eval"))
        trained.append([train(loader, weight) for _ in range(epochs)])
    print(json.dumps(trained))

if __name__ == "__main__":
    main()
"""

CASES: list[dict[str, Any]] = [
    {"dataset": "Map", "num_workers": 0, "epochs": 2},
    {"dataset": "Map", "num_workers": 2, "epochs": 2},
    {"dataset": "Map", "num_workers": 2, "epochs": 3, "persistent_workers": True},
    {"dataset": "Map", "num_workers": 2, "in_order": False, "prefetch_factor": 3},
    {"dataset": "Map", "num_workers": 1, "multiprocessing_context": "spawn"},
    {"dataset": "Map", "num_workers": 1, "multiprocessing_context": "forkserver"},
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


@pytest.fixture(scope="module")
def all_kinds(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """One program that trains with each kind of loader in turn."""
    return run_script(tmp_path_factory.mktemp("loaders"), PROGRAM, json.dumps(CASES))


@pytest.mark.parametrize(
    "case", range(len(CASES)), ids=["-".join(map(str, options.values())) for options in CASES]
)
def test_batches_recorded_equal_batches_trained(all_kinds: Run, case: int) -> None:
    loaders = checked(all_kinds)["loaders"]
    assert len(loaders) == len(CASES)
    loader, options, trained = loaders[case], CASES[case], json.loads(all_kinds.stdout)[case]
    assert sorted(value for batch in trained[0] for value in batch) == list(range(12))
    assert loader["batches"] == sum(len(epoch) for epoch in trained)
    assert loader["epochs"] == options.get("epochs", 1)
    assert (loader["kind"], loader["workers"]) == ("training", options["num_workers"])
    workers = options["num_workers"] > 0
    assert loader["start_method"] == (options.get("multiprocessing_context", "fork") if workers else None)


def test_every_batch_meets_its_production(all_kinds: Run) -> None:
    session = open_session(all_kinds.session)
    analysis = RankAnalysis(session, session.ranks[0])
    for loader in analysis.loaders:
        for item in analysis.explained(loader):
            assert item.delivery.taken_ns is not None
            assert item.delivery.prepared_ns is not None
            assert item.delivery.taken_ns <= item.delivery.prepared_ns <= item.delivery.delivered_ns
            assert sum(item.causes.values()) == item.delivery.wait_ns


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
    # Steps are the training loader's: two epochs of six, the first one left out, the last one without an end.
    assert rank["steps"]["begun"] == 12
    assert rank["steps"]["count"] + rank["steps"]["excluded"]["profiled"] == 10


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
        [sys.executable, str(program), workers],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        env=environment(),
    )
    assert run.code == bare.returncode == 1
    # Which line of torch re-raises depends on the order in which the workers finished.
    line = re.compile(r"line \d+, in _next_data")
    assert line.sub("", run.stderr) == line.sub("", bare.stderr)
    assert "ValueError: sample 7 is broken" in bare.stderr
    report = run.report()
    (loader,) = report["ranks"][0]["loaders"]
    assert loader["batches"] == 3
    assert loader["failures"] == ["ValueError"]
    cause, *consequences = report["session"]["failures"]
    assert (cause["type"], cause["message"], cause["batch"]) == ("ValueError", "sample 7 is broken", 3)
    assert (cause["role"], cause["worker"]) == (("loader worker", 1) if workers == "2" else ("rank", None))
    assert [each["role"] for each in consequences] == (["rank"] if workers == "2" else [])
    where = f" in worker 1 (pid {cause['process']})" if workers == "2" else ""
    assert report["verdict"]["text"] == f"FAILED exit code 1 after 2 steps: ValueError{where}"
    at = next(n for n, line in enumerate(program.read_text().split("\n"), 1) if "is broken" in line)
    at_line = f"{program.name}:{at} in __getitem__"
    assert cause["sample"] == 7
    assert report["verdict"]["why"] == f'{at_line}: "sample 7 is broken", batch 3, sample 7'
