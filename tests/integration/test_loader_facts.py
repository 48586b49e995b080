"""What advice rests on, as a real program's session has it."""

from __future__ import annotations

from pathlib import Path

import pytest

from iotrace.analysis.rank import SessionAnalysis
from iotrace.analysis.report import analyse
from iotrace.analysis.rules.facts.loader_facts import loader_facts
from iotrace.session import names
from iotrace.sources.session import open_session
from tests.support.runs import run_script

PROGRAM = """
import numpy as np
import torch, time
from torch.utils.data import DataLoader, Dataset

class Images(Dataset):
    def __len__(self):
        return 24
    def __getitem__(self, index):
        time.sleep(0.02)
        return torch.from_numpy(np.load(f"{index % 4}.npy"))

def stacked(samples):
    return {"images": torch.stack(samples), "names": ["a", "b"]}

for number in range(4):
    np.save(f"{number}.npy", np.ones(1 << 16, dtype=np.float32))
weight = torch.ones(1, requires_grad=True)
for epoch in range(2):
    loader = DataLoader(Images(), batch_size=2, num_workers=2, prefetch_factor=3, collate_fn=stacked)
    for batch in loader:
        (batch["images"].sum() * weight).backward()
"""


def test_facts_of_a_loader(tmp_path: Path) -> None:
    run = run_script(tmp_path, PROGRAM)
    assert run.code == 0, run.stderr
    analysis = SessionAnalysis(open_session(run.session))
    (facts,) = loader_facts(analysis.ranks[0], analyse(analysis).ranks[0])
    about = facts.about
    assert (about.dataset, about.workers, about.prefetch_factor) == ("Images", 2, 3)
    assert (about.persistent_workers, about.in_order, about.iterable) == (False, True, False)
    assert (facts.epochs, facts.objects, facts.of_several, facts.handed_over) == (2, 2, False, False)
    assert (facts.batch_bytes, facts.samples, facts.collate) == (2 * 4 * (1 << 16), 2.0, "stacked")
    assert facts.asleep is not None
    assert facts.asleep > 0.2
    assert not facts.accelerated
    assert facts.item.startswith("Images.__getitem__ (")
    assert facts.item.endswith(":9)")
    assert facts.made_ms is not None
    assert facts.restart_ms > 0
    assert 0 < facts.gains_ms["transform"] <= facts.wait_ms
    arrays = {file.path: file.delivered_bytes for file in facts.files if file.path.endswith(".npy")}
    assert set(arrays) <= {f"{number}.npy" for number in range(4)}
    assert set(arrays.values()) <= {12 * 4 * (1 << 16), None}
    assert sum(facts.causes_ms.values()) > 0


SOURCES = """
import gc, queue, threading
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

class Fed(IterableDataset):
    def __init__(self, source):
        self.source = source
    def __iter__(self):
        while (sample := self.source.get()) is not None:
            yield sample

class Collecting(Dataset):
    def __len__(self):
        return 4
    def __getitem__(self, index):
        gc.collect()
        return torch.ones(1)

def feed(source):
    for _ in range(4):
        source.put(torch.ones(1))
    source.put(None)

if __name__ == "__main__":
    source = queue.Queue()
    threading.Thread(target=feed, args=(source,)).start()
    weight = torch.ones(1, requires_grad=True)
    rows = DataLoader(TensorDataset(torch.ones(4, 1)), batch_size=2)
    for loader in (DataLoader(Fed(source), batch_size=2), rows, DataLoader(Collecting(), num_workers=1)):
        for batch in loader:
            (torch.as_tensor(batch[0]) * weight).sum().backward()
"""


def test_who_feeds_a_dataset_and_whose_code_makes_its_samples(tmp_path: Path) -> None:
    run = run_script(tmp_path, SOURCES)
    assert run.code == 0, run.stderr
    rank = SessionAnalysis(open_session(run.session)).ranks[0]
    fed, rows, collecting = (loader.description for loader in rank.loaders)
    assert (fed.fed_by, fed.item_library) == ("the queue source", None)
    assert (rows.fed_by, rows.item_library) == (None, "torch")
    assert (collecting.fed_by, collecting.tokenizer) == (None, None)
    (worker,) = rank.rank.workers
    assert len(worker.rows(names.PAUSE_ROW))


SAMPLING = """
import sys, time
import torch
from torch.utils.data import BatchSampler, DataLoader, SequentialSampler, TensorDataset

class Buckets(BatchSampler):
    def __iter__(self):
        for batch in super().__iter__():
            time.sleep(0.02)
            yield batch

if __name__ == "__main__":
    rows = TensorDataset(torch.ones(24, 1))
    sampler = Buckets(SequentialSampler(rows), 2, False)
    weight = torch.ones(1, requires_grad=True)
    for (batch,) in DataLoader(rows, batch_sampler=sampler, num_workers=int(sys.argv[1])):
        (batch * weight).sum().backward()
"""


@pytest.mark.parametrize(("workers", "chosen_in_waits"), [(0, 12), (2, 8)])
def test_what_a_sampler_takes_in_the_loop_is_sampling(
    tmp_path: Path, workers: int, chosen_in_waits: int
) -> None:
    """Workers are sent two batches each before the loop asks for the first one."""
    run = run_script(tmp_path, SAMPLING, str(workers))
    assert run.code == 0, run.stderr
    (loader,) = (rank := SessionAnalysis(open_session(run.session)).ranks[0]).loaders
    assert loader.description.sampler == "Buckets"
    waits = rank.explained(loader)
    assert int(waits.of_cause("sampling").sum()) >= chosen_in_waits * 20_000_000
    assert (waits.causes.sum(axis=1) == waits.deliveries.wait_ns).all()
