"""Copies of data stored as a fix says: where they go, how they are made, how they replace originals."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from iotrace.analysis.results import (
    CHUNKS,
    LIGHTER,
    PARQUET,
    ROW_GROUPS,
    UNPACKED,
    Change,
    ChunkedArray,
    Report,
)
from iotrace.errors import IotraceError
from iotrace.patching.git import check_clean
from iotrace.session import names
from iotrace.sweeps.ending import end, undisturbed
from iotrace.trying.results import Data
from iotrace.units import size

_KEPT = "originals"
_HDF5 = frozenset({".h5", ".hdf5", ".he5", ".nc", ".nc4"})
_IMAGES = frozenset({".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff"})
_ZARR = (".zarray", ".zgroup", "zarr.json")
_SCRIPT = Path(__file__).with_name("rewrite.py")
FOLDER = "data"
NPZ, IMAGE = "npz", "image"


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """A file or store to copy; `arrays` by name with their chunks (None: as they are), `rows` of a group."""

    format: str
    how: str
    source: str
    target: str = ""
    arrays: dict[str, list[int] | None] = {}
    rows: int | None = None


def list_jobs(change: Change, report: Report, absolute: Callable[[str], str]) -> list[Job]:
    """Return what is to be copied; IotraceError where the data is gone or of a format that has no copy."""
    jobs: dict[str, Job] = {}
    for path in change.paths:
        whole = os.path.realpath(absolute(path))
        if not os.path.exists(whole):
            raise IotraceError(
                f"{path} is not there any more", "record the program again: iotrace run -- CMD"
            )
        for job in _jobs(change.stored, path, whole, report, absolute):
            jobs.setdefault(job.source, job)
    if not jobs:
        raise IotraceError(f"{', '.join(change.paths)} holds nothing that could be stored otherwise")
    return list(jobs.values())


def _jobs(how: str, path: str, whole: str, report: Report, absolute: Callable[[str], str]) -> list[Job]:
    suffix = os.path.splitext(whole)[1].lower()
    if how in (CHUNKS, LIGHTER) and suffix in _HDF5:
        arrays = {each.dataset: each.suggested_chunk for each in _arrays(report) if each.path == path}
        wanted: dict[str, list[int] | None] = {
            name: chunk for name, chunk in arrays.items() if name and chunk and how == CHUNKS
        }
        return [Job(format="hdf5", how=how, source=whole, arrays=wanted)]
    if how in (CHUNKS, LIGHTER) and os.path.isdir(whole):
        return [_of_store(how, whole, report, absolute)]
    if how == ROW_GROUPS:
        groups = [each for group in _amplified(report) for each in group.row_groups if each.path == path]
        rows = next((each.suggested_rows for each in groups), None)
        return [Job(format="parquet", how=how, source=whole, rows=rows)] if rows else []
    if how == PARQUET:
        files = _files_below(whole) if os.path.isdir(whole) else [whole]
        return [Job(format="csv", how=how, source=file) for file in files if file.endswith(".csv")]
    if how == UNPACKED:
        files = _files_below(whole) if os.path.isdir(whole) else [whole]
        return [job for file in files if (job := _unpacked(file)) is not None]
    return []


def _unpacked(path: str) -> Job | None:
    suffix = os.path.splitext(path)[1].lower()
    kind = NPZ if suffix == ".npz" else IMAGE if suffix in _IMAGES else None
    return None if kind is None else Job(format=kind, how=UNPACKED, source=path)


def _files_below(folder: str) -> list[str]:
    return sorted(os.path.join(root, name) for root, _, files in os.walk(folder) for name in files)


def _amplified(report: Report) -> list[Any]:
    groups = [group for rank in report.ranks for group in rank.file_groups]
    return [group.amplification for group in groups if group.amplification is not None]


def _arrays(report: Report) -> list[ChunkedArray]:
    return [array for each in _amplified(report) for array in each.arrays]


def _of_store(how: str, whole: str, report: Report, absolute: Callable[[str], str]) -> Job:
    """A store as a whole, with all arrays in it that are to be stored otherwise."""
    root = whole
    while is_store(os.path.dirname(root)):
        root = os.path.dirname(root)
    arrays: dict[str, list[int] | None] = {}
    for array in _arrays(report):
        place = os.path.realpath(absolute(array.path))
        inside = place == root or place.startswith(f"{root}/")
        if inside and ((how == CHUNKS and array.suggested_chunk) or (how == LIGHTER and place == whole)):
            arrays[os.path.relpath(place, root)] = array.suggested_chunk if how == CHUNKS else None
    return Job(format="zarr", how=how, source=root, arrays=arrays or {os.path.relpath(whole, root): None})


def is_store(folder: str) -> bool:
    """Whether a directory is one of zarr's arrays or groups."""
    return any(os.path.exists(os.path.join(folder, name)) for name in _ZARR)


def place_for(jobs: Sequence[Job], trial: Path) -> Path:
    """Where copies go: into the trial's directory, or on the data's own file system where that is another.

    There it lies above the data's directory: programs list that one. OSError where nothing can be written.
    """
    device = os.stat(jobs[0].source).st_dev
    if os.stat(trial).st_dev == device:
        return trial / FOLDER
    above = Path(os.path.dirname(os.path.commonpath([os.path.dirname(job.source) for job in jobs])))
    if not os.access(above, os.W_OK) or os.stat(above).st_dev != device:
        above = Path(os.path.dirname(jobs[0].source))
    return above / f".{trial.name}"


def with_targets(jobs: Sequence[Job], place: Path) -> list[Job]:
    """Give each job its target: it lies in `place` as its source does in the directory of all of them."""
    folder = os.path.commonpath([os.path.dirname(job.source) for job in jobs])
    return [
        msgspec.structs.replace(job, target=str(place / os.path.relpath(job.source, folder))) for job in jobs
    ]


def write_copies(jobs: Sequence[Job], python: str, progress: Callable[[float], None]) -> list[Data]:
    """Write all copies by the program's own Python, each checked to hold equal values.

    An image or archive of several that cannot be copied stays as it is. Whatever ends it, a copy is whole or
    is not there.

    Raises:
        IotraceError: there is no room, or the data cannot be stored so.
    """
    # From no directory of ours or of the program's: the modules of neither may hide a library's.
    process = subprocess.Popen(
        [python, "-c", _SCRIPT.read_text()],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        cwd="/",
        start_new_session=True,  # Ctrl-C reaches us alone, and we end it
        env={name: value for name, value in os.environ.items() if name != names.SETTINGS_VARIABLE},
    )
    assert process.stdin is not None
    assert process.stdout is not None
    done, refused, error = set(), [], ""
    try:
        with suppress(BrokenPipeError):
            process.stdin.write(json.dumps([msgspec.to_builtins(job) for job in jobs]))
            process.stdin.close()
        for line in process.stdout:
            said = _said(line)
            error = error if said else line.strip() or error
            if "needed" in said:
                room = f"it needs {size(said['needed'])}, {size(said['free'])} are free"
                what = f"there is no room for the copy: {room}"
                raise IotraceError(what, "it is on the file system of the data: free some space there")
            if "refused" in said:
                refused.append(str(said["refused"]))
            elif said.get("done"):
                done.add(said["job"])
            if said:
                progress((said.get("job", 0) + said.get("progress", 1.0)) / len(jobs))
        process.wait()
    except BaseException:
        with undisturbed():
            end(process)
            remove([job.target for job in jobs])
        raise
    whole = [job for number, job in enumerate(jobs) if number in done]
    if process.returncode or not whole:
        why = refused[0] if refused else error
        remove([job.target for job in jobs])
        raise IotraceError(f"{jobs[0].source} cannot be copied so: {why}")
    return [
        Data(
            path=job.source,
            new_path=job.target,
            how=job.how,
            bytes=_bytes(job.source),
            new_bytes=_bytes(job.target),
        )
        for job in whole
    ]


def _said(line: str) -> dict[str, Any]:
    try:
        answer = json.loads(line)
    except ValueError:
        return {}
    return answer if isinstance(answer, dict) else {}


def _bytes(path: str) -> int:
    if not os.path.isdir(path):
        return os.path.getsize(path)
    return sum(os.path.getsize(file) for file in _files_below(path))


def remove(paths: Sequence[str | Path]) -> None:
    """Delete copies, or what there is of them."""
    for path in map(str, paths):
        head, extension = os.path.splitext(path)
        for each in (path, f"{head}.partial{extension}"):
            if os.path.isdir(each) and not os.path.islink(each):
                shutil.rmtree(each, ignore_errors=True)
            else:
                with suppress(OSError):
                    os.unlink(each)


def put_in_place(data: Sequence[Data]) -> list[Data]:
    """Give each copy its original's name, and return where the originals are now.

    All are put there, or none.

    Raises:
        IotraceError: an original was changed since, the git tree that tracks one is not clean, or the system
            refuses.
    """
    if any(each.how == PARQUET for each in data):
        raise IotraceError("the copy is of another format: the program has to read it by another call")
    for each in data:
        if not os.path.isdir(each.path) and os.stat(each.path).st_mtime_ns != _changed_ns(each.new_path):
            raise IotraceError(f"{each.path} was changed since it was copied: it stays as it is")
        check_clean(Path(each.path))
    done: list[Data] = []
    with undisturbed():
        try:
            for each in data:
                kept = _kept_at(each.new_path)
                _swap(each.path, each.new_path, kept)
                done.append(replace(each, original=kept))
        except OSError as error:
            for each in reversed(done):
                _swap_back(each)
            raise IotraceError(f"the copy is not put in place: {error}") from error
    return done


def _changed_ns(path: str) -> int:
    return os.stat(path).st_mtime_ns


def _kept_at(copy: str) -> str:
    """Beside the copies' directory, so that no program that lists its data meets it."""
    folder, name = os.path.split(copy)
    return os.path.join(folder, _KEPT, name)


def _swap(path: str, copy: str, kept: str) -> None:
    os.makedirs(os.path.dirname(kept), 0o700, exist_ok=True)
    status = os.stat(path)
    os.chmod(copy, status.st_mode & 0o7777)
    with suppress(PermissionError):
        os.chown(copy, status.st_uid, status.st_gid)
    if os.path.isdir(path):
        os.rename(path, kept)
        undo = partial(os.rename, kept, path)
    else:
        os.link(path, kept)  # at every moment one of both has the name
        undo = partial(os.unlink, kept)
    try:
        os.replace(copy, path)
    except OSError:
        undo()
        raise


def _swap_back(each: Data) -> None:
    os.rename(each.path, each.new_path)
    os.rename(each.original or "", each.path)
