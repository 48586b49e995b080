"""Causes by construction: what is put into read, decode, transform, collate and transport comes out there.

The program stamps its own stages; each cause agrees with what the program itself says of the same waits.
A stage that computes also says for how long it was held up without a run delay (a virtual machine without a
CPU): nobody can tell that from sleep. Decoding that was held up may look like reading for that long at most.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.runs import run_script

# A module in h5py's place: its reads block without a POSIX call, as a remote store's would; then it
# decompresses. (A sleep of 0 s would block, too.)
H5PY = """
import time, zlib

PACKED = zlib.compress(bytes(range(256)) * 4096)

class h5f:
    @staticmethod
    def get_name(identifier):
        return b"data/slow.h5"

class Dataset:
    id = None
    def __getitem__(self, index):
        with STAGE(index, "read"):
            time.sleep(READ_S)
        with STAGE(index, "decode"):
            for _ in range(DECODED):
                zlib.decompress(PACKED)
        return index
"""

PROGRAM = """
import os, sys, time
from contextlib import contextmanager
import torch
from torch.utils.data import DataLoader, Dataset, default_collate
sys.path.insert(0, {modules!r})
import h5py

READ, DECODED, TRANSFORM, COLLATE, TRANSPORT, WORKERS = map(float, sys.argv[1:])

def waited_for_a_core():
    try:
        with open("/proc/thread-self/schedstat") as file:
            return int(file.read().split()[1])
    except OSError:
        return 0

def tell(*words):
    os.write(1, (" ".join(map(str, words)) + "\\n").encode())

@contextmanager
def stage(index, name):
    begin, before = time.monotonic_ns(), waited_for_a_core()
    cpu_ns = time.thread_time_ns()
    yield
    cpu_ns, delay_ns, end = time.thread_time_ns() - cpu_ns, waited_for_a_core() - before, time.monotonic_ns()
    tell("stage", index, name, begin, end, delay_ns, max(0, end - begin - cpu_ns - delay_ns))

h5py.STAGE, h5py.READ_S, h5py.DECODED = stage, READ, int(DECODED)

class Slow(Dataset):
    def __len__(self):
        return 16
    def __getitem__(self, index):
        h5py.Dataset()[index]
        with stage(index, "transform"):
            time.sleep(TRANSFORM)
        return torch.full((4,), float(index))

class Heavy:
    def __init__(self, data):
        self.data = data
    def __reduce__(self):
        time.sleep(TRANSPORT)
        return Heavy, (self.data,)

def collate(items):
    with stage(int(items[0][0]), "collate"):
        time.sleep(COLLATE)
        return Heavy(default_collate(items))

weight = torch.ones(4, requires_grad=True)
batches = iter(DataLoader(Slow(), batch_size=1, num_workers=int(WORKERS), collate_fn=collate))
while True:
    begin = time.monotonic_ns()
    batch = next(batches, None)
    if batch is None:
        break
    tell("wait", int(batch.data[0][0]), begin, time.monotonic_ns())
    (batch.data * weight).sum().backward()
    time.sleep(0.005)
"""

STAGES = ("read", "decode", "transform", "collate")


def own_causes(output: str) -> tuple[dict[str, float], float]:
    """Each cause's part of the waits for the third batch and all later ones, by the program's stamps.

    Also the part in which decoding was held up, and no account says why.
    """
    stages: dict[int, dict[str, tuple[int, ...]]] = {}
    waits: dict[int, tuple[int, int]] = {}
    for line in output.splitlines():
        kind, index, *rest = line.split()
        if kind == "wait":
            waits[int(index)] = (int(rest[0]), int(rest[1]))
        else:
            stages.setdefault(int(index), {})[rest[0]] = tuple(map(int, rest[1:]))
    assert list(waits) == sorted(stages) == list(range(16))
    causes = dict.fromkeys((*STAGES, "transport"), 0.0)
    held_up = 0.0
    for index in range(2, 16):
        begin, end = waits[index]
        made_begin = stages[index]["read"][0]
        made_end = stages[index]["collate"][1]
        waited_ns = max(0, min(end, made_end) - max(begin, made_begin))
        parts = {name: stages[index][name][1] - stages[index][name][0] for name in STAGES}
        delayed_ns = min(parts["read"], stages[index]["read"][2])
        parts["read"] -= delayed_ns  # it waited for a core, not for the disk
        parts["decode"] += delayed_ns
        for name, part in parts.items():
            causes[name] += waited_ns * part / (made_end - made_begin)
        held_up += waited_ns * stages[index]["decode"][3] / (made_end - made_begin)
        causes["transport"] += end - max(begin, made_end)
    whole = sum(waits[index][1] - waits[index][0] for index in range(2, 16))
    return {name: cause / whole for name, cause in causes.items()}, held_up / whole


@pytest.mark.parametrize(
    ("workers", "sleeps"),
    [
        (0, {"read": 0.02, "transform": 0.03, "decode": 10}),
        pytest.param(1, {"read": 0.06, "transform": 0.04}, marks=pytest.mark.slow),
        (1, {"read": 0.01, "decode": 40, "transform": 0.01, "collate": 0.03}),
        (2, {"read": 0.01, "transform": 0.02, "transport": 0.1}),
    ],
)
def test_each_cause_agrees_with_the_programs_own_stamps(
    tmp_path: Path, workers: int, sleeps: dict[str, float]
) -> None:
    (tmp_path / "h5py.py").write_text(H5PY)
    asked = [sleeps.get(name, 0) for name in (*STAGES, "transport")]
    run = run_script(tmp_path, PROGRAM.format(modules=str(tmp_path)), *map(str, [*asked, workers]))
    assert run.code == 0, run.stderr
    rank: dict[str, Any] = run.report()["ranks"][0]
    (loader,) = rank["loaders"]
    assert loader["batches"] == 16
    wait = rank["data_wait"]
    assert sum(wait["causes_ms"].values()) == pytest.approx(wait["raw_ms"], abs=1e-6)
    found = {name: cause / wait["raw_ms"] for name, cause in wait["causes_ms"].items()}
    own, held_up = own_causes(run.stdout)
    others = ("transform", "collate", "transport")
    assert {name: found[name] for name in others} == pytest.approx(
        {name: own[name] for name in others}, abs=0.06
    )
    assert found["read"] + found["decode"] == pytest.approx(own["read"] + own["decode"], abs=0.06)
    assert found["read"] == pytest.approx(own["read"], abs=0.06 + held_up)
    second, first = sorted(own.values())[-2:]
    if first - second > 2 * (0.06 + held_up):
        assert max(found, key=found.__getitem__) == max(own, key=own.__getitem__)
    charged_ms = wait["causes_ms"]["read"] + wait["causes_ms"]["decode"]
    slow_ms = sum(file["ms"] for file in wait["files"] if file["path"] == "data/slow.h5")
    assert slow_ms == pytest.approx(charged_ms, abs=0.06 * wait["raw_ms"])
    if workers == 0:
        assert (found["startup"], found["queued"]) == (0, 0)
        assert (loader["delay_ms"], loader["queue_depth_mean"]) == (None, None)
