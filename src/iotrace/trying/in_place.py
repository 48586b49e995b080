"""Put proven copies in the place of their originals, which are kept beside the trial."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

from msgspec.structs import replace

from iotrace.analysis.results import PARQUET
from iotrace.errors import IotraceError
from iotrace.patching.git import check_clean
from iotrace.sweeps.ending import undisturbed
from iotrace.trying.results import Data

_KEPT = "originals"


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
