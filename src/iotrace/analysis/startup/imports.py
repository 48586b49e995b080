"""The modules that a process imported: when, how long; their packages."""

from __future__ import annotations

import os
import sys

import msgspec
import numpy as np
import numpy.typing as npt

from iotrace.analysis.intervals import length, less_inner, union
from iotrace.analysis.wait.production import outermost
from iotrace.sources.processes import Process
from iotrace.sources.records import Imports

STANDARD = "(standard library)"
IMPORTS = "imports"  # the name of their part of a start
_NEEDED = ("torch", "numpy")  # by any worker
_DTYPE = np.dtype([("start_ns", "<i8"), ("duration_ns", "<i8"), ("cpu_ns", "<i8"), ("tid", "<i8")])


class ImportTable(msgspec.Struct, frozen=True):
    """What a process imported, a row for each search of a module, in the session's time.

    `package` numbers `packages`; `begun_ns` is when it began to note imports. `directories` are those of
    packages that have files, `mounts` the file systems that hold these: their types and where they are.
    """

    rows: npt.NDArray[np.void]
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
    rows = np.concatenate(parts)
    rows["start_ns"] = process.clock.times_to_session_ns(rows["start_ns"].tolist())
    packages, numbers = np.unique([_package(name) for name in modules], return_inverse=True)
    directories = {_package(name): _directory(name, path) for name, path in files.items()}
    begun_ns = process.clock.to_session_ns(records[0].begun_ns)
    return ImportTable(
        rows, numbers.astype(np.int64), packages.tolist(), modules, directories, begun_ns, mounts
    )


def outer_imports(imports: ImportTable, tid: int, end_ns: int) -> npt.NDArray[np.void]:
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


def own_cpu_ns(rows: npt.NDArray[np.void]) -> npt.NDArray[np.int64]:
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
