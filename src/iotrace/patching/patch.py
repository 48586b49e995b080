"""A unified diff of the user's own source, for settings of the training loader and for paths of its data.

A diff is made where the call that makes the loader, and the place where each value comes from, are known
for certain, and hold what the recorded run had. Else a sentence says why there is none.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import msgspec

from iotrace.analysis.rank import SessionAnalysis
from iotrace.analysis.results import Fix
from iotrace.patching.changes import Changes
from iotrace.patching.data import DataChange, change_data
from iotrace.patching.edits import unified
from iotrace.patching.kinds import UnknownError
from iotrace.patching.loader import MadeLoader, made_loader
from iotrace.patching.maker import ARGUMENTS, Maker
from iotrace.patching.program import Program
from iotrace.session.manifest import Manifest, read_manifest
from iotrace.sources.session import open_session

THREADS_OF = "threads of "  # a library, in each worker
_ONE_THREAD = {  # its import, and the call
    "torch": ("import torch", "torch.set_num_threads(1)"),
    "cv2": ("import cv2", "cv2.setNumThreads(0)"),
    "blosc": ("from numcodecs import blosc", "blosc.set_nthreads(1)"),
    "blosc2": ("import blosc2", "blosc2.set_nthreads(1)"),
    "openblas": ("import threadpoolctl", "threadpoolctl.threadpool_limits(1)"),
    "numexpr": ("import numexpr", "numexpr.set_num_threads(1)"),
    "pyarrow": ("import pyarrow", "pyarrow.set_cpu_count(1)"),
    "zarr": ("import zarr", 'zarr.config.set({"async.concurrency": 1})'),
}
_SHORT = {"workers": "num_workers", "prefetch": "prefetch_factor"}  # as sweep and tune call them


class Change(Protocol):
    """A setting of a trial: DataLoader's name of it, and its new value."""

    @property
    def parameter(self) -> str: ...

    @property
    def after(self) -> object: ...


class Setting(msgspec.Struct, frozen=True):
    """A change by itself."""

    parameter: str
    after: object


class Patch(msgspec.Struct, frozen=True, kw_only=True):
    """A diff of the program's files, to be applied in `root`, or why there is none.

    `lines` are the places that it changes: path and line, as they are before. `command` are the words by
    which the command sets the rest, or all of it: nothing in the files has to change for these.
    """

    diff: str | None = None
    why_not: str | None = None
    lines: list[tuple[str, int]] = []
    command: str | None = None
    root: str | None = None


_NO_DATA = DataChange()


def patch_for(
    session: str | os.PathLike[str], changes: Sequence[Change], data: DataChange = _NO_DATA
) -> Patch:
    """Return the patch that makes `changes` of the training loader of a session's program, and of its `data`.

    Raises:
        SessionError: the session cannot be read.
    """
    read = open_session(Path(session))
    return _patch(read.manifest, made_loader(SessionAnalysis(read)), changes, data)


def patch_of_fix(session: Path, fix: Fix, made: MadeLoader | None) -> Patch:
    """Return the patch that carries out a fix of a session's report; `made` is where its loader is made.

    Raises:
        SessionError: the session cannot be read.
    """
    if fix.change is None:
        return Patch(why_not="the program has to be edited for it, and where is not known for certain")
    if fix.change.stored:
        return Patch(why_not="it is in the data: iotrace try makes a copy, and --patch a diff that names it")
    if fix.change.cpus:
        return Patch(why_not="where the program binds its processes is not recorded")
    asked = {**fix.change.variables, **fix.change.settings}
    asked |= {f"{THREADS_OF}{library}": count for library, count in fix.change.threads.items()}
    manifest = read_manifest(session)
    kept_open = [os.path.join(manifest.cwd, path) for path in fix.change.kept_open]
    settings = [Setting(name, value) for name, value in asked.items()]
    return _patch(manifest, made, settings, DataChange(kept_open=kept_open))


def _patch(manifest: Manifest, made: MadeLoader | None, changes: Sequence[Change], data: DataChange) -> Patch:
    return make_patch(made, Program(manifest.argv, manifest.cwd), changes, manifest.started_ns, data)


def make_patch(
    made: MadeLoader | None,
    program: Program,
    changes: Sequence[Change],
    began_ns: int,
    data: DataChange = _NO_DATA,
) -> Patch:
    """Return the patch for a loader of a program; files that were written after `began_ns` have none."""
    threads = [each.parameter.removeprefix(THREADS_OF) for each in changes if _is_threads(each)]
    changes = [each for each in changes if not _is_threads(each)]
    wanted = {_SHORT.get(each.parameter, each.parameter): _as_python(each.after) for each in changes}
    if not wanted and not threads and not data.is_any:
        return Patch(why_not="the change is not one of the program's settings")
    if beyond := [name for name in wanted if name not in ARGUMENTS]:
        return Patch(why_not=f"{', '.join(beyond)} is set for the command, not in its source")
    sites = [] if made is None or made.site is None else [made.site, *made.others]
    if not sites and (wanted or threads):
        return Patch(why_not="the training loop takes its batches from no DataLoader whose line is recorded")
    noted = Changes(program, began_ns)
    try:
        for site in sites:
            assert made is not None
            maker = Maker(noted, made.settings)
            if wanted:
                maker.change(site, made.builder, wanted)
            if threads:
                maker.start_workers(site, made.builder, _one_thread(threads, program))
            program.source(site.rpartition(":")[0])
        change_data(noted, data)
        files = noted.files()
    except (UnknownError, OSError) as error:
        return Patch(why_not=str(error))
    except RecursionError:
        return Patch(why_not="the program is nested too deeply")
    if not files:
        why = (
            "the source says so already"
            if noted.command is None
            else f"no file has to change: give the command {noted.command}"
        )
        return Patch(why_not=why, command=noted.command)
    root = find_root(files[0].path, program.cwd)
    return Patch(
        diff="".join(unified(_relative(file.path, root), file.before, file.after) for file in files),
        lines=list(dict.fromkeys((str(file.path), line) for file in files for line in file.lines)),
        command=noted.command,
        root=str(root),
    )


def _is_threads(change: Change) -> bool:
    return change.parameter.startswith(THREADS_OF)


def _one_thread(libraries: Sequence[str], program: Program) -> list[str]:
    """Return the lines that make a worker give each library one thread."""
    if "openblas" in libraries and not program.has_installed("threadpoolctl"):
        raise UnknownError("threadpoolctl, which sets it, is not installed: OPENBLAS_NUM_THREADS=1")
    if unknown := [each for each in libraries if each not in _ONE_THREAD]:
        raise UnknownError(f"how {unknown[0]} is set is not known")
    imports = [_ONE_THREAD[each][0] for each in libraries]
    return [*imports, "", *(_ONE_THREAD[each][1] for each in libraries)]


def _as_python(value: object) -> str:
    """Write a value as an argument; a text that is no number and no constant of Python is quoted."""
    if not isinstance(value, str):
        return repr(value)
    return value if value in ("True", "False", "None") or value.lstrip("-").isdigit() else repr(value)


def find_root(path: Path, cwd: Path) -> Path:
    """Return the root of the git tree that a file is in; else the program's directory, or the file's."""
    real = path.resolve()
    for folder in real.parents:
        if (folder / ".git").exists():
            return folder
    return cwd.resolve() if real.is_relative_to(cwd.resolve()) else real.parent


def _relative(path: Path, root: Path) -> str:
    return os.path.relpath(path.resolve(), root)
