"""The modules that a process imported: when, how long; their packages; whether a start is slow for them.

Thresholds: docs/definitions.md, culprits.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator

import msgspec
import numpy as np
import numpy.typing as npt

from iotrace.analysis.intervals import less_inner
from iotrace.analysis.results import Culprit, Evidence, Startup
from iotrace.analysis.wait.production import outermost
from iotrace.sources.processes import Process
from iotrace.sources.records import Imports

STANDARD = "(standard library)"
IMPORTS = "imports"  # the name of their part of a start
SLOW_IMPORTS = "imports"
_SECONDS = 1.0
_FRACTION = 0.5  # of the time to the end of the first step; likewise of imports, waiting
_MOSTLY = 0.75
_REMEDY = "keep the environment on a local disk, or in one file (a container's image, squashfs)"
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


def slow_imports(startup: Startup | None) -> Iterator[Culprit]:
    """Name imports that are most of the time to the first step's end; where they wait, say what helps."""
    whole = None if startup is None else startup.first_step_seconds
    if startup is None or whole is None:
        return
    seconds = sum(part.seconds for part in startup.parts if part.name == IMPORTS)
    if seconds < _SECONDS or seconds < _FRACTION * whole:
        return
    waiting = startup.imports_waiting_seconds
    text = f"imports are {seconds:.1f} of the {whole:.1f} s to the end of the first step"
    evidence: Evidence = {"imports_seconds": seconds, "first_step_seconds": whole}
    remedy = ""
    if waiting is not None:
        evidence["imports_waiting_seconds"] = waiting
        if waiting >= _FRACTION * seconds:
            mount = _waited_for(startup)
            of = f" of {mount}" if mount is not None else ""
            text, remedy = f"{text}, {waiting:.1f} of it waiting, as for files{of}", _REMEDY
    yield Culprit(id=SLOW_IMPORTS, text=text, evidence=evidence, wait_ms=0.0, leads=False, remedy=remedy)


def _waited_for(startup: Startup) -> str | None:
    """Name the file system on which most of the imports' time off a CPU was spent; None: no one has most."""
    slept = {each.mount: each.seconds - each.cpu_seconds for each in startup.mounts}
    mount = max(slept, key=lambda name: slept[name], default=None)
    return mount if mount is not None and slept[mount] >= _MOSTLY * sum(slept.values()) else None
