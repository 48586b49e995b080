"""Name what the main thread computed before the loop, by the stacks that were sampled meanwhile."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence

import msgspec
import numpy as np

from iotrace.analysis.intervals import Times
from iotrace.sources.processes import Process
from iotrace.sources.records import IteratorStart, Model, StartupStacks

_Function = tuple[str, str]  # the file and the name of its code
COMPILE, GROUP, WEIGHTS, MODEL, DATASET, CUDA = (
    "compile",
    "process group",
    "weights",
    "model",
    "dataset",
    "CUDA's start",
)
_BY_FILE = {
    "/torch/_dynamo/": COMPILE,
    "/torch/_inductor/": COMPILE,
    "/torch/distributed/distributed_c10d.py": GROUP,
    "/torch/serialization.py": WEIGHTS,
    "/safetensors/torch.py": WEIGHTS,
    "/torch/cuda/__init__.py": CUDA,
    "/torch/nn/init.py": MODEL,
    "/torch/nn/modules/": MODEL,  # of these constructors alone
    "/transformers/modeling_utils.py": MODEL,
    "-packages/datasets/": DATASET,
}
_MODULES = "/torch/nn/modules/"
_CONSTRUCTORS = ("__init__", "reset_parameters", "_reset_parameters")
_CALLED = "_call_impl"  # a module is called, and builds nothing
_PACKAGE = re.compile(r"/(?:site|dist)-packages/([^/.]+)")
_LIBRARIES = ("/site-packages/", "/dist-packages/", "/lib/python", "/iotrace/agent/", "<frozen ")


class Sampled(msgspec.Struct, frozen=True):
    """What the thread was in from each start to each end, without gaps or overlaps; '' is not known."""

    starts: Times
    ends: Times
    names: list[str]

    def at(self, times: Times) -> list[str]:
        """Return the name at each of these times."""
        found = np.searchsorted(self.ends, times, side="right")
        inside = (found < len(self.ends)) & (times >= self.starts[:1].max(initial=np.iinfo(np.int64).min))
        known = [*self.names, ""]
        return [known[at] if ok else "" for at, ok in zip(found.tolist(), inside.tolist(), strict=True)]


def sampled_of(process: Process) -> Sampled | None:
    """Read what was sampled in `process`; None where nothing was."""
    record = next(iter(process.of_type(StartupStacks)), None)
    if record is None or not record.numbers or len(record.numbers) != len(record.ends_ns):
        return None
    datasets = {each.dataset for each in process.of_type(IteratorStart)}
    models = {each.root for each in process.of_type(Model)}
    functions = record.functions
    named = [
        name_of([functions[at] for at in stack if 0 <= at < len(functions)], datasets, models)
        for stack in record.stacks
    ]
    names = [named[number] if 0 <= number < len(named) else "" for number in record.numbers]
    ends = np.array(process.clock.times_to_session_ns([record.began_ns, *record.ends_ns]), np.int64)
    ends = np.maximum.accumulate(ends)
    return Sampled(ends[:-1], ends[1:], names)


def name_of(stack: Sequence[_Function], datasets: set[str], models: set[str]) -> str:
    """Name what a stack, innermost function first, does: a part of the start, else the program's function."""
    building = not any(name.rpartition(".")[2] == _CALLED for _, name in stack)
    for file, name in stack:
        of, _, function = name.rpartition(".")
        part = next((part for text, part in _BY_FILE.items() if text in file), None)
        if part == MODEL and (not building or (_MODULES in file and function not in _CONSTRUCTORS)):
            part = None
        if part is None and function == "__init__" and of in datasets:
            part = DATASET
        if part is None and function == "__init__" and of in models and building:
            part = MODEL
        if part == DATASET:
            return f"{DATASET} {of}" if of in datasets else DATASET
        if part is not None:
            return part
    own = next(((file, name) for file, name in stack if not any(part in file for part in _LIBRARIES)), None)
    if own is None or (
        own[1] == "<module>" and not own[0].endswith(".py")
    ):  # the script of an installed command
        own = _of_command(stack) or own
    if own is None:
        return ""
    file, name = own
    script = os.path.basename(file)
    return script if name == "<module>" else f"{name} ({script})"


def _of_command(stack: Sequence[_Function]) -> _Function | None:
    """Return the innermost function of the installed package that the outermost function is of."""
    packages = [_PACKAGE.search(file) for file, _ in stack]
    outermost = next((found[1] for found in reversed(packages) if found is not None), None)
    inside = (at for at, found in enumerate(packages) if found is not None and found[1] == outermost)
    return next((stack[at] for at in inside), None)
