"""What the agent holds does not grow with the steps: memory, descriptors, threads; none stays behind.

``IOTRACE_FLAT_STEPS=10000000`` makes the loop as long as a long run's.
"""

from __future__ import annotations

import json
import os
from itertools import pairwise
from pathlib import Path

from iotrace.launch.telemetry.tree import Tree
from tests.support.runs import run_bare

PROGRAM = """
import gc, json, os, queue, sys, threading
import torch
from torch.utils.data import DataLoader, Dataset
import iotrace
from iotrace.agent import bootstrap
class Numbers(Dataset):
    def __len__(self):
        return 250
    def __getitem__(self, index):
        return torch.ones(1)
weight = torch.nn.Linear(1, 1)
optimizer = torch.optim.SGD(weight.parameters(), 0.1)
handed = queue.Queue()
def loop(passes):
    for _ in range(passes):
        for batch in DataLoader(Numbers()):
            weight(batch).sum().backward()
            optimizer.step()
            with iotrace.region("between"):
                handed.put(1)
                handed.get()
def held():
    gc.collect()
    paths = [f"/proc/self/fd/{each}" for each in os.listdir("/proc/self/fd")]
    files = [os.readlink(path) for path in paths if os.path.exists(path)]  # not that of the list itself
    return {"files": sorted(files), "threads": len(os.listdir("/proc/self/task"))}
def blocks():
    recorder = bootstrap._recorder
    recorder.pause()
    recorder.loop_stacks.drain(recorder, 1)  # samples by time, not by steps: written by the hundred
    recorder.flush()
    gc.collect()
    return sys.getallocatedblocks()
loop(2)
before = held()
with iotrace.profile(output="session", report=False):
    loop(4)
    gc.disable()  # Python keeps the name of each collection's phase in its cache of 4,096 looked-up names
    sizes = [blocks()]
    for _ in range(4):
        bootstrap._recorder.start()
        loop(int(sys.argv[1]) // 1000)
        sizes.append(blocks())
    inside = held()
del _
print(json.dumps({"before": before, "inside": inside, "after": held(), "blocks": sizes}))
"""


def test_nothing_of_the_agent_grows_or_stays(tmp_path: Path) -> None:
    steps = int(os.environ.get("IOTRACE_FLAT_STEPS", 8000))
    done = run_bare(tmp_path, PROGRAM, str(steps))
    assert done.code == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    print(found)
    assert found["after"] == found["before"]
    assert len(found["inside"]["files"]) <= len(found["before"]["files"]) + 3  # records, spans, stacks
    # Less than one object in twenty steps of the default number. What leaks does so in each stretch of steps;
    # what is allocated once (a larger table, another string) falls into some of them.
    grown = [later - sooner for sooner, later in pairwise(found["blocks"][1:])]
    assert min(grown) < 100


def test_the_samplers_tree_holds_the_same_after_many_turns(tmp_path: Path) -> None:
    def held() -> int:
        return len(os.listdir("/proc/self/fd"))

    tree = Tree(str(tmp_path), 0)
    tree.scan()
    tree.sample()
    before = held(), len(tree.members)
    for _ in range(50):
        tree.scan()
        tree.sample()
        tree.scheduling()
    assert (held(), len(tree.members)) == before
