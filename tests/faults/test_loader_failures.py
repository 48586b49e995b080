"""Loaders that fail."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.harness import Trial
from tests.faults.rows import row
from tests.integration.test_bad_programs import (
    COMMON,
    assert_alike,
    assert_consistent,
    loaders_by_dataset,
    run_both,
)

RAISING = (
    COMMON
    + """
class Raising(Numbers):
    def __getitem__(self, index):
        if index == 5 and sys.argv[1] == "timeout":
            signal.pause()
        return super().__getitem__(index)

class Stream(IterableDataset):
    def __iter__(self):
        if sys.argv[1] == "iter":
            raise OSError("the archive cannot be opened")
        for index in range(12):
            if index == 5:
                raise ValueError("record 5 is broken")
            yield torch.tensor([float(index)])

def no_worker(number):
    raise LookupError(f"worker {number} finds no device")

def collate(items):
    if items[0] == 4:
        raise KeyError("collate")
    return torch.stack(items)

def no_pickle(items):
    return torch.stack(items) if items[0] < 4 else (item for item in items)

workers = int(sys.argv[2])
patient = {"timeout": 100, "persistent_workers": True}
options = {
    "stream": {"dataset": Stream()},
    "iter": {"dataset": Stream()},
    "init": {"dataset": Raising(), "worker_init_fn": no_worker},
    "timeout": {"dataset": Raising(), **patient},
    "collate": {"dataset": Raising(), "collate_fn": collate},
    "no pickle": {"dataset": Raising(), "collate_fn": no_pickle, **patient},
    "consumer": {"dataset": Raising()},
}[sys.argv[1]]
try:
    loader = DataLoader(batch_size=2, num_workers=workers, **options)
    for batch in counted(loader):
        train(batch)
        if loader.timeout and batch[0] == 2:
            loader._iterator._timeout = 1  # the next batch never comes
        if sys.argv[1] == "consumer" and batch[0] == 4:
            raise RuntimeError("the loss is not finite")
finally:
    print(json.dumps(DELIVERED))
"""
)


@row(
    "a dataset, its iterator, collate function or worker_init_fn raises; a loader's timeout; the loop raises",
    kept="output, traceback without a frame of iotrace, exit code, batches until then",
    lost="nothing",
    limit_s=250,
)
@pytest.mark.parametrize(
    ("kind", "workers", "batches", "failure"),
    [
        pytest.param("stream", 0, 2, "ValueError"),
        ("stream", 1, 2, "ValueError"),
        pytest.param("iter", 1, 0, "OSError"),
        ("init", 1, 0, "LookupError"),
        ("timeout", 1, 2, "RuntimeError"),
        pytest.param("collate", 1, 2, "KeyError"),
        pytest.param("no pickle", 1, 2, "RuntimeError"),
        ("consumer", 1, 3, None),
    ],
)
def test_a_program_that_fails_fails_as_without_iotrace(
    tmp_path: Path, kind: str, workers: int, batches: int, failure: str | None
) -> None:
    both = run_both(tmp_path, RAISING, kind, str(workers))
    assert_alike(both)
    assert both.bare.returncode == 1
    ((dataset, counts),) = both.delivered.items()
    assert counts == [batches]
    ((found, (loader,)),) = loaders_by_dataset(both.session).items()
    assert (found, len(loader.deliveries)) == (dataset, batches)
    assert loader.failures == ([failure] if failure else [])
    assert_consistent(both.session, loader)


TRAINING = """
import itertools, os, resource, sys
import torch
from torch.utils.data import DataLoader, Dataset
import torch.utils.data

torch.manual_seed(0)
torch.set_num_threads(1)
weight = torch.ones(8, requires_grad=True)
class Numbers(Dataset):
    def __init__(self, count=24):
        self.count = count
    def __len__(self):
        return self.count
    def __getitem__(self, index):
        meet(index)
        return torch.randn(8, generator=torch.Generator().manual_seed(index))
def train(loader):
    for step, batch in enumerate(loader):
        loss = (batch * weight).square().mean()
        loss.backward()
        with torch.no_grad():
            weight.sub_(weight.grad)
        weight.grad = None
        print(step, loss.item().hex(), flush=True)
"""
FAULTS = {
    "two workers raise the same text": (
        "def meet(index):\n    if index > 3: raise ValueError('a bad file')\n"
        "train(DataLoader(Numbers(), 2, num_workers=2))\n",
        1,
    ),
    "a worker runs out of memory (ulimit -v)": (
        "def meet(index):\n"
        "    if index == 9:\n"
        "        limit = 1 << 20\n"
        "        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))\n"
        "        bytearray(1 << 33)\n"
        "train(DataLoader(Numbers(), 2, num_workers=1))\n",
        1,
    ),
    "DataLoader is replaced by a subclass, its __iter__ by a function": (
        "def meet(index): pass\n"
        "class Mine(DataLoader):\n"
        "    def __iter__(self):\n"
        "        for batch in super().__iter__(): yield batch + 1\n"
        "torch.utils.data.DataLoader = torch.utils.data.dataloader.DataLoader = Mine\n"
        "train(torch.utils.data.DataLoader(Numbers(), 2, num_workers=1))\n"
        "original = DataLoader.__iter__\n"
        "DataLoader.__iter__ = lambda self: itertools.islice(original(self), 3)\n"
        "train(DataLoader(Numbers(), 2))\n",
        0,
    ),
    "zero steps": (
        "def meet(index): pass\n"
        "train(DataLoader(Numbers(0), 2, num_workers=0))\n"
        "print(len(DataLoader(Numbers(0), 2)))\n",
        0,
    ),
}


@row(
    "two workers raise the same text; a worker out of memory (`ulimit -v`); DataLoader replaced; zero steps",
    kept="losses, output, tracebacks, exit code",
    lost="nothing; of a worker that is ended, its last second",
    limit_s=250,
)
@pytest.mark.parametrize("fault", FAULTS)
def test_odd_trainings(trial: Trial, fault: str) -> None:
    program, code = FAULTS[fault]
    torch_lines = [(r"line \d+, in _(?:next_data|get_data|try_get_data)", ""), (r"process \d+", "process")]
    pair = trial.both(TRAINING + program, normal=torch_lines)
    pair.assert_same()
    assert pair.bare.code == code
    if not code:
        pair.assert_nothing_lost()


COMPILED = """
import torch
from torch.utils.data import DataLoader, TensorDataset
torch.manual_seed(0)
torch.set_num_threads(1)
layers = torch.nn.Linear(8, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1)
model = torch.compile(torch.nn.Sequential(*layers), backend="aot_eager")
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for step, (batch,) in enumerate(DataLoader(TensorDataset(torch.randn(24, 8)), 2)):
    loss = model(batch).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(step, loss.item().hex(), flush=True)
from torch._dynamo.utils import counters
print(sorted((name, dict(found)) for name, found in counters.items() if name in ("graph_break", "stats")))
"""


@row(
    "torch.compile, on a torch without CUDA",
    kept="losses, the number of graphs and graph breaks",
    lost="nothing",
    limit_s=250,
)
def test_torch_compile(trial: Trial) -> None:
    pair = trial.both(COMPILED)
    pair.assert_same()
    pair.assert_nothing_lost()
    assert pair.report["ranks"][0]["steps"]["begun"] == 12
