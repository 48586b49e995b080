"""Evaluations and checkpoints of a real loop: each is found, whatever writes the file, and none twice."""

from __future__ import annotations

from pathlib import Path

from tests.support.runs import run_script

PROGRAM = """
import os, time, torch
from torch.utils.data import DataLoader, Dataset

class Zeros(Dataset):
    def __init__(self, size):
        self.size = size
    def __len__(self):
        return self.size
    def __getitem__(self, index):
        return torch.zeros(4)

class Slow:
    "A file object of a storage that writes when it is closed."
    def __init__(self, path):
        self.file = open(path, "wb")
    def write(self, data):
        return self.file.write(data)
    def flush(self):
        self.file.flush()
    def close(self):
        time.sleep(0.05)
        self.file.close()

model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), 1e-3)
checks = DataLoader(Zeros(4))
for number, batch in enumerate(DataLoader(Zeros(80), batch_size=2), 1):
    model(batch).mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    if number % 10 == 0:
        with torch.no_grad():
            for check in checks:
                time.sleep(0.02)
                model(check)
    if number % 8 == 0:
        file = Slow(f"state-{number}.pt")
        torch.save(model.state_dict(), file)
        file.close()
"""


def test_evaluations_and_checkpoints_are_counted(tmp_path: Path) -> None:
    run = run_script(tmp_path, PROGRAM)
    assert run.code == 0, run.stderr
    (rank,) = run.report()["ranks"]
    found = {each["kind"]: each for each in rank["loop_events"]}
    # The last of each lies behind the last batch, and counts.
    assert (found["evaluation"]["count"], found["checkpoint"]["count"]) == (4, 5)
    assert (found["evaluation"]["every_steps"], found["checkpoint"]["every_steps"]) == (10.0, 8.0)
    assert found["evaluation"]["seconds"] >= 4 * 4 * 0.02
    assert found["checkpoint"]["seconds"] >= 5 * 0.05  # the closing, in which no call writes
    assert found["checkpoint"]["file"].endswith("state-*.pt")
    # What recurs makes no step slow by itself.
    assert not {"validation", "checkpoint"} & {*rank["loop_slow_steps"]["parts_ms"]}
