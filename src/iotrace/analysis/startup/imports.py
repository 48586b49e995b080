"""The modules that a process imported: when, how long; their packages.

Name what the main thread computed before the loop, by the stacks that were sampled meanwhile.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Sequence

import msgspec
import numpy as np
import numpy.typing as npt

from iotrace.analysis.intervals import Times, length, less_inner, union
from iotrace.analysis.wait.production import outermost
from iotrace.sources.columns import Columns
from iotrace.sources.processes import Process
from iotrace.sources.records import Imports, IteratorStart, Model, StartupStacks

STANDARD = "(standard library)"
IMPORTS = "imports"  # the name of their part of a start
_NEEDED = ("torch", "numpy")  # by any worker
_DTYPE = np.dtype([("start_ns", "<i8"), ("duration_ns", "<i8"), ("cpu_ns", "<i8"), ("tid", "<i8")])


class ImportTable(msgspec.Struct, frozen=True):
    """What a process imported, a row for each search of a module, in the session's time.

    `package` numbers `packages`; `begun_ns` is when it began to note imports. `directories` are those of
    packages that have files, `mounts` the file systems that hold these: their types and where they are.
    """

    rows: Columns
    package: npt.NDArray[np.int64]
    packages: list[str]
    modules: list[str]
    directories: dict[str, str]
    begun_ns: int
    mounts: dict[str, str] = {}


def imports_of(process: Process) -> ImportTable | None:
    """Read the imports of `process`; None where none were recorded."""
    records = process.of_type(Imports)
    parts: list[npt.NDArray[np.void]] = []
    modules: list[str] = []
    files: dict[str, str] = {}
    mounts: dict[str, str] = {}
    for record in records:
        names = record.names.split("\n")
        if len(names) * _DTYPE.itemsize != len(record.rows):  # a damaged line
            continue
        parts.append(np.frombuffer(record.rows, _DTYPE))
        modules += names
        mounts.update({_package(name): mount.replace("\\040", " ") for name, mount in record.mounts.items()})
        files.update({name: path for name, path in record.paths.items() if name not in files})
    if not parts:
        return None
    rows = Columns.of(np.concatenate(parts))
    rows["start_ns"] = process.clock.times_to_session_ns(rows["start_ns"].tolist())
    packages, numbers = np.unique([_package(name) for name in modules], return_inverse=True)
    directories = {_package(name): _directory(name, path) for name, path in files.items()}
    begun_ns = process.clock.to_session_ns(records[0].begun_ns)
    return ImportTable(
        rows, numbers.astype(np.int64), packages.tolist(), modules, directories, begun_ns, mounts
    )


def outer_imports(imports: ImportTable, tid: int, end_ns: int) -> Columns:
    """Return the rows of a thread that lie in no other one, of those that began before `end_ns`."""
    rows = imports.rows
    return rows[outermost(rows, (rows["tid"] == tid) & (rows["start_ns"] < end_ns))]


def imported_ns(process: Process, start_ns: int, end_ns: int, *, needed: bool = False) -> int:
    """Return how long the main thread imported between two instants, ns; or only what each worker needs.

    What that imports counts with it. 0 where no imports were recorded.
    """
    imports = imports_of(process)
    if imports is None:
        return 0
    own = imports.rows["tid"] == process.pid
    if needed:
        numbers = [number for number, name in enumerate(imports.packages) if name in _NEEDED]
        own &= np.isin(imports.package, numbers)
    starts = imports.rows["start_ns"][own]
    ends = starts + imports.rows["duration_ns"][own]
    return length(union(starts.clip(start_ns, end_ns), ends.clip(start_ns, end_ns)))


def imports_by_package(process: Process, start_ns: int, end_ns: int) -> dict[str, int]:
    """Return how long each package was imported by the main thread between two instants, ns.

    What a package imports counts as its own.
    """
    imports, found = imports_of(process), dict[str, int]()
    if imports is None:
        return found
    rows, own = imports.rows, imports.rows["tid"] == process.pid
    chosen = outermost(rows, own & (rows["start_ns"] < end_ns))
    starts = rows["start_ns"][chosen]
    ends = (starts + rows["duration_ns"][chosen]).clip(start_ns, end_ns)
    spent = ends - starts.clip(start_ns, end_ns)
    for number, ns in zip(imports.package[chosen].tolist(), spent.tolist(), strict=True):
        if (name := imports.packages[number]) != STANDARD:
            found[name] = found.get(name, 0) + ns
    return found


def own_cpu_ns(rows: Columns) -> npt.NDArray[np.int64]:
    """Return the CPU time of each import of one thread, without the imports in it."""
    return less_inner(rows["start_ns"], rows["start_ns"] + rows["duration_ns"], rows["cpu_ns"])


def _package(module: str) -> str:
    """Return the package of `module`; those of Python itself count as one."""
    name = module.partition(".")[0]
    return STANDARD if name in sys.stdlib_module_names else name


def _directory(package: str, path: str) -> str:
    """Return the directory that holds `package`, one of whose modules is in the file `path`."""
    before, found, _ = path.rpartition(f"/{package}/")
    return before if found else os.path.dirname(path)


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
_LIBRARIES = (
    "/site-packages/",
    "/dist-packages/",
    "/lib/python",
    "/iotrace/agent/",
    "/iotrace/session/",
    "<frozen ",
)


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
