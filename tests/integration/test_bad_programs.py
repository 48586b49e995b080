"""Programs that do odd or wrong things with loaders: they behave as without iotrace, and the records hold.

(The well-behaved kinds of loaders, and a map-style dataset that raises, are in test_loaders.py.)
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from iotrace.analysis.loop.deliveries import LoaderRun
from iotrace.analysis.loop.join import loaders_of
from iotrace.analysis.rank import RankAnalysis
from iotrace.sources.session import Session, open_session
from tests.support.runs import Run, after_announcement, environment, run_traced


@dataclass(frozen=True)
class Both:
    """One program, run with and without iotrace."""

    traced: Run
    bare: subprocess.CompletedProcess[str]
    session: Session

    @property
    def delivered(self) -> dict[str, list[int]]:
        """Batches that the program got, by the dataset's class: a number for each loader in order of use."""
        found: dict[str, list[int]] = json.loads(self.bare.stdout.splitlines()[-1])
        return found


def run_both(directory: Path, script: str, *arguments: str) -> Both:
    program = directory / "program.py"
    program.write_text(script)
    line = [sys.executable, str(program), *arguments]
    with subprocess.Popen(
        line, cwd=directory, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment()
    ) as bare:  # beside the traced one: both mostly import torch
        traced = run_traced(directory, line[1:])
        stdout, stderr = bare.communicate(timeout=120)
    done = subprocess.CompletedProcess(line, bare.returncode, stdout, stderr)
    return Both(traced, done, open_session(traced.session))


def assert_alike(both: Both) -> None:
    """Output, tracebacks and exit code are those without iotrace; the report comes after them."""
    assert both.traced.code == both.bare.returncode, both.traced.stderr
    assert both.traced.stdout == both.bare.stdout
    assert _same(after_announcement(both.traced.stderr)).startswith(_same(both.bare.stderr))
    logs = list(both.traced.session.glob("processes/*/agent.log"))
    assert not logs, logs[0].read_text()
    assert both.traced.report()["session"]["exit_code"] == both.bare.returncode


def _same(text: str) -> str:
    """`text` without what differs between two runs: addresses, and which of two calls of torch waited."""
    return re.sub(r"0x[0-9a-f]+|line \d+, in _(?:next_data|get_data|try_get_data)", "", text)


def loaders_by_dataset(session: Session) -> dict[str, list[LoaderRun]]:
    found: dict[str, list[LoaderRun]] = {}
    (rank,) = session.ranks
    for loader in loaders_of(rank):
        found.setdefault(loader.description.dataset, []).append(loader)
    return found


def assert_consistent(session: Session, loader: LoaderRun) -> None:
    """Every delivery met the production of its own batch, and its wait is explained to the nanosecond.

    Python ends the workers of a loader that is still there at its exit, as after an exception, by SIGTERM.
    What such a worker had not written is lost: its wait is unknown, nothing else.
    """
    (rank,) = session.ranks
    cut = {process.pid for process in rank.workers if not process.ended}
    for item in RankAnalysis(session, rank).explained(loader):
        delivery = item.delivery
        assert sum(item.causes.values()) == delivery.wait_ns
        if delivery.pid in cut and delivery.taken_ns is None:
            assert item.causes["unknown"] == delivery.wait_ns
            continue
        assert delivery.taken_ns is not None
        assert delivery.prepared_ns is not None
        assert delivery.taken_ns <= delivery.prepared_ns <= delivery.delivered_ns


COMMON = """
import collections, json, signal, sys, time
import torch
from torch.utils.data import BatchSampler, DataLoader, Dataset, IterableDataset, SequentialSampler

DELIVERED = collections.defaultdict(list)
WEIGHT = torch.ones(1, requires_grad=True)

class Numbers(Dataset):
    count = 12
    def __len__(self):
        return self.count
    def __getitem__(self, index):
        return torch.tensor([float(index)])

def counted(loader, again=False):
    "The loader's batches; with `again` they are counted to the loader of the last call."
    counts = DELIVERED[type(loader.dataset).__name__]
    if not again:
        counts.append(0)
    for batch in loader:
        counts[-1] += 1
        yield batch

def train(batch):
    (batch * WEIGHT).sum().backward()
    print(batch.flatten().tolist())
"""

ODD = (
    COMMON
    + """
Pair = collections.namedtuple("Pair", "first second")

class Countdown:
    def __init__(self, left):
        self.left = left
    def __iter__(self):
        return self
    def __next__(self):
        if not self.left:
            raise StopIteration
        self.left -= 1
        return self.left

class Slots:
    __slots__ = ("value",)
    def __init__(self, value):
        self.value = value
    def __repr__(self):
        return f"Slots({self.value})"

class NoLength(dict):
    def __len__(self):
        raise TypeError("has no length")
    def __repr__(self):
        return "NoLength()"

def nothing(items): return None
def generator_like(items): return Countdown(len(items))
def pair(items): return Pair(*(int(item) for item in items))
def strings(items): return {str(number): repr(item) for number, item in enumerate(items)}
def slots(items): return Slots(len(items))
def no_length(items): return NoLength()

class Made:
    "A collate function that is an object, without __name__."
    def __call__(self, items):
        return items

class OddObjects(Numbers): pass
class Abandoned(Numbers): pass
class Longer(Numbers): pass
class Shorter(Numbers): count = 8
class Trained(Numbers): pass
class Checked(Numbers): count = 4
class Empty(Numbers): count = 0
class Sampled(Numbers): count = 11
class Persistent(Numbers): pass

class Inner(Numbers): count = 4
class Outer(Numbers):
    def __getitem__(self, index):
        return sum(batch.sum() for batch in DataLoader(Inner(), batch_size=2)).reshape(1)

for workers in (0, 2):
    for collate in (nothing, generator_like, pair, strings, slots, no_length, Made()):
        for batch in counted(DataLoader(OddObjects(), 2, num_workers=workers, collate_fn=collate)):
            print(list(batch) if isinstance(batch, Countdown) else batch)

    loader = DataLoader(Abandoned(), 2, num_workers=workers)
    for number, batch in enumerate(counted(loader)):
        train(batch)
        if number == 2:
            break
    for batch in counted(loader, again=True):
        train(batch)

    loaders = (DataLoader(Longer(), 2, num_workers=workers), DataLoader(Shorter(), 2, num_workers=workers))
    for first, second in zip(*map(counted, loaders)):
        train(first)
        train(second)

    training, checking = DataLoader(Trained(), 2, num_workers=workers), DataLoader(Checked(), 2)
    for number, batch in enumerate(counted(training)):
        train(batch)
        with torch.no_grad():
            for batch in counted(checking, again=number > 0):
                print(batch.flatten().tolist())

    for batch in counted(DataLoader(Empty(), 2, num_workers=workers)):
        raise AssertionError("there is none")

    sampler = BatchSampler(SequentialSampler(range(11)), 3, drop_last=False)
    for batch in counted(DataLoader(Sampled(), batch_sampler=sampler, num_workers=workers)):
        train(batch)

for batch in counted(DataLoader(Outer(), 2, num_workers=2)):
    train(batch)

def epochs():
    loader = DataLoader(Persistent(), 2, num_workers=2, persistent_workers=True)
    for epoch, last in enumerate((5, 1, 5, 0, 5)):
        for number, batch in enumerate(counted(loader, again=epoch > 0)):
            train(batch)
            if number == last:
                break

epochs()
print(json.dumps(DELIVERED))
"""
)


@pytest.fixture(scope="module")
def odd(tmp_path_factory: pytest.TempPathFactory) -> Both:
    return run_both(tmp_path_factory.mktemp("odd"), ODD)


def test_odd_programs_print_what_they_print_without_iotrace(odd: Both) -> None:
    assert_alike(odd)
    assert odd.bare.returncode == 0, odd.bare.stderr
    assert odd.traced.report()["session"]["complete"] is True


@pytest.mark.parametrize(
    ("dataset", "batches"),
    [
        ("OddObjects", [6] * 14),
        ("Abandoned", [9, 9]),
        ("Longer", [5, 5]),
        ("Shorter", [4, 4]),
        ("Trained", [6, 6]),
        ("Checked", [12, 12]),
        ("Empty", [0, 0]),
        ("Sampled", [4, 4]),
        ("Outer", [6]),
        ("Persistent", [21]),
    ],
)
def test_each_loaders_batches_are_those_delivered(odd: Both, dataset: str, batches: list[int]) -> None:
    assert odd.delivered[dataset] == batches
    loaders = loaders_by_dataset(odd.session)[dataset]
    # Those that one line makes one after the other, with as many workers, are one loader.
    as_one = {"OddObjects": [6 * 7, 6 * 7], "Checked": [12 + 12]}
    assert [len(loader.deliveries) for loader in loaders] == as_one.get(dataset, batches)
    for loader in loaders:
        assert_consistent(odd.session, loader)


def test_an_abandoned_epoch_of_persistent_workers_keeps_the_epochs_apart(odd: Both) -> None:
    (loader,) = loaders_by_dataset(odd.session)["Persistent"]
    found = [(delivery.epoch, delivery.index) for delivery in loader.deliveries]
    assert found == [
        (epoch, index) for epoch, last in enumerate((5, 1, 5, 0, 5)) for index in range(last + 1)
    ]


def test_a_loader_inside_a_workers_dataset_is_no_loader_of_the_rank(odd: Both) -> None:
    assert "Inner" not in loaders_by_dataset(odd.session)
    assert len(odd.session.ranks) == 1
