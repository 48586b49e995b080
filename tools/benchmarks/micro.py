"""What one process, span, batch and POSIX call cost: the smallest of several interleaved rounds.

Noise only adds time, so the smallest round is nearest to the cost itself.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from tools.benchmarks.sidecar import sidecar_cost
from tools.benchmarks.variants import AGENT, BARE, BOTH, POSIX, environment_of, interleaved

_CALLS = """
import json, os, time
open("data.bin", "wb").write(bytes(1 << 16))
outside = os.open(os.__file__, os.O_RDONLY)
descriptor = os.open("data.bin", os.O_RDONLY)
def cost(call, n=2000):
    best = float("inf")
    for _ in range(9):
        start = time.perf_counter_ns()
        for _ in range(n):
            call()
        best = min(best, (time.perf_counter_ns() - start) / n)
    return best / 1000
print(json.dumps({
    "read of 4 KiB": cost(lambda: os.pread(descriptor, 4096, 0)),
    "open and close": cost(lambda: os.close(os.open("data.bin", os.O_RDONLY))),
    "stat": cost(lambda: os.stat("data.bin")),
    "lseek": cost(lambda: os.lseek(descriptor, 0, 0)),
    "read of a file that is not traced": cost(lambda: os.pread(outside, 4096, 0)),
}))
"""

_SPAN = """
import json, time
from iotrace.agent import bootstrap
from iotrace.agent.recording import spans
def nothing():
    pass
recorder = bootstrap._recorder
timed = spans.timed(recorder, nothing, "nothing", 3)
def cost(call, n=20000):
    best = float("inf")
    for _ in range(9):
        start = time.perf_counter_ns()
        for _ in range(n):
            call()
        best = min(best, (time.perf_counter_ns() - start) / n)
        recorder.spans.clear()
    return best / 1000
print(json.dumps({"span": cost(timed) - cost(nothing)}))
"""

# Hooked and not by turns in one process, CPU time of the thread that loads: the medians of both, and what the
# hooks add.
_BATCHES = """
import json, time
from torch.utils.data import DataLoader, Dataset, dataloader as module
from iotrace.agent import bootstrap, handovers, patching
from iotrace.agent.dataloader.consumer import hook_loader
from iotrace.agent.torch_profiler import window
recorder, settings = bootstrap._recorder, bootstrap._settings()
class Numbers(Dataset):
    def __len__(self):
        return 500
    def __getitem__(self, index):
        return index
def loop():
    start = time.thread_time_ns()
    for batch in DataLoader(Numbers(), batch_size=1, collate_fn=list):
        pass
    return (time.thread_time_ns() - start) / 500 / 1000
pairs = []
for _ in range(40):
    patching.undo_all()
    bare = loop()
    hook_loader(module, recorder), handovers.install(recorder), window.install(recorder, settings)
    pairs.append((bare, loop() - bare))
median = [sorted(column)[20] for column in zip(*pairs)]
print(json.dumps({"bare batch": median[0], "batch": median[1]}))
"""

# One at a time, as of items that take long to make: each `put` begins 0.1 ms and more behind the last one.
_ITEMS = """
import ctypes, json, queue, sys, threading, time
from iotrace.agent import bootstrap, patching
recorder = bootstrap._recorder
items = [object() for _ in range(50)]
def cost(channel):
    taken = [[], []]
    def put():
        for item in items:
            until = time.perf_counter_ns() + 120_000
            while time.perf_counter_ns() < until:
                pass
            start = time.perf_counter_ns()
            channel.put(item)
            taken[0].append(time.perf_counter_ns() - start)
    for _ in range(40):
        maker = threading.Thread(target=put)
        maker.start()
        maker.join()
        for _ in items:
            start = time.perf_counter_ns()
            channel.get()
            taken[1].append(time.perf_counter_ns() - start)
        recorder.records.clear(), recorder.spans.clear()
    return [sorted(each)[len(each) // 10] / 1000 for each in taken]
sys.setswitchinterval(1)
hooked = cost(queue.SimpleQueue())
patching.undo_all()
bare = cost(queue.SimpleQueue())
print(json.dumps({"put": hooked[0] - bare[0], "get": hooked[1] - bare[1]}))
"""

_REGIONS = """
import json, time
import iotrace
def cost(n=20000):
    best = float("inf")
    for _ in range(9):
        start = time.perf_counter_ns()
        for _ in range(n):
            with iotrace.region("nothing"):
                pass
        best = min(best, (time.perf_counter_ns() - start) / n)
    return best / 1000
print(json.dumps({"region": cost()}))
"""

# Hooked and not by turns, in one process: two processes differ by more than this costs. Few calls at once, so
# that the smallest were not preempted.
_STEPS = """
import importlib, json, time
import torch
from torch import nn
from iotrace.agent import patching, training
from iotrace.agent.phases import roots
from iotrace.agent.recording.recorder import Recorder
torch.set_num_threads(1)
recorder = Recorder(".")
recorder._stop = object()  # as if the writer ran
root = nn.Identity()
layers = nn.Sequential(*[nn.Identity() for _ in range(62)])
leaf = torch.ones((), requires_grad=True)
optimizer = torch.optim.SGD([nn.Parameter(torch.ones(1))], 0.1)
def hook():
    training.hook_autograd(torch.autograd, recorder)
    training.hook_optimizers(importlib.import_module("torch.optim.optimizer"), recorder)
    roots.hook_roots(nn.modules.module, recorder)
def called():
    root(leaf)
def cost(call, n):
    start = time.perf_counter_ns()
    for _ in range(n):
        call()
    taken = (time.perf_counter_ns() - start) / n / 1000
    recorder.spans.clear(), recorder.records.clear()
    return taken
found = {}
def note(name, call, n, times=40):
    for _ in range(times):
        taken = cost(call, n)
        found[name] = min(taken, found.get(name, taken))
def forward():
    layers(leaf)
def noted(state):
    note(f"root{state}", called, 3)
    note(f"backward{state}", leaf.backward, 3)
    note(f"optimizer{state}", optimizer.step, 3)
    note(f"forward{state}", forward, 3)
leaf.backward(), optimizer.step()
for _ in range(10):
    noted("")
    hook()
    forward()
    note("forward, searched", forward, 3, 30)
    for _ in range(110):
        called(), forward()
    noted(", hooked")
    patching.undo_all()
print(json.dumps(found))
"""


def micro(rounds: int) -> dict[str, Any]:
    """The small figures: ms per process, us per span, batch, region and call; the sidecar's."""
    found: dict[str, Any] = {
        "process_cpu_ms": {
            "python -c pass": _processes("pass", 4 * rounds),
            "import torch, h5py": _processes("import torch, h5py", 2 * rounds),
        },
        "sidecar": sidecar_cost(),
    }
    calls = _best(_CALLS, [BARE, POSIX, BOTH], rounds)
    found["posix_call_us"] = {
        name: {variant: calls[variant][name] for variant in calls} for name in calls[BARE]
    }
    found["span_us"] = _best(_SPAN, [AGENT], rounds)[AGENT]["span"]
    batches = _best(_BATCHES, [AGENT], rounds)[AGENT]
    found["batch_us"], found["bare_batch_us"] = batches["batch"], batches["bare batch"]
    found["step_us"] = _best(_STEPS, [BARE], rounds)[BARE]
    found["item_us"] = _best(_ITEMS, [BOTH], rounds)[BOTH]
    found["region_us"] = _best(_REGIONS, [AGENT], rounds)[AGENT]["region"]
    return found


def _processes(program: str, rounds: int) -> dict[str, float]:
    """CPU time in ms of ``python -c PROGRAM``, start to end, by variant: the smallest."""
    variants = [BARE, AGENT, POSIX, BOTH]
    costs: dict[str, list[float]] = {variant: [] for variant in variants}
    for order in interleaved(variants, rounds):
        for variant in order:
            before = resource.getrusage(resource.RUSAGE_CHILDREN)
            _child(program, variant)
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            used_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
            costs[variant].append(1000 * used_s)
    return {variant: min(values) for variant, values in costs.items()}


def _best(program: str, variants: list[str], rounds: int) -> dict[str, dict[str, float]]:
    """The smallest value of each figure that `program` prints, by variant."""
    best: dict[str, dict[str, float]] = {}
    for order in interleaved(variants, rounds):
        for variant in order:
            told = json.loads(_child(program, variant))
            known = best.setdefault(variant, told)
            best[variant] = {name: min(value, known[name]) for name, value in told.items()}
    return {variant: best[variant] for variant in variants}


def _child(program: str, variant: str) -> str:
    with tempfile.TemporaryDirectory(prefix="iotrace-bench-") as scratch:
        done = subprocess.run(
            [sys.executable, "-c", program],
            cwd=scratch,
            # It runs elsewhere, so that its files' names are relative and its own.
            env={**environment_of(variant, Path(scratch) / "session"), "PWD": scratch, **_no_cache()},
            capture_output=True,
            text=True,
        )
    if done.returncode:
        raise SystemExit(f"tools/bench: {variant}: {done.stderr[-2000:]}")
    return done.stdout


def _no_cache() -> dict[str, str]:
    return {"OMP_NUM_THREADS": "1"} if "OMP_NUM_THREADS" not in os.environ else {}
