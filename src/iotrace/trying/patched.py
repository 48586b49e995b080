"""The patch of a proven trial: what it set, and the copies that it made, named in the program's source."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from iotrace.analysis.results import PARQUET
from iotrace.patching.data import DataChange
from iotrace.patching.patch import Patch, patch_for
from iotrace.trying.copies import is_store
from iotrace.trying.results import Data, Trial

_MOST_LINKS = 20_000


def patch_of_trial(session: Path, trial: Trial, kept_open: Sequence[str], written: Sequence[str]) -> Patch:
    """Return the patch of what was proven; the program then reads the copies where they are.

    A directory that was copied only in part gets links to the rest next to the copies. `written` are the
    absolute paths of what a run writes.

    Raises:
        SessionError: the session cannot be read.
    """
    changes = [*trial.settings, *trial.variables, *trial.in_workers]
    tables = any(each.how == PARQUET for each in trial.data)

    def made(moved: tuple[str, str] | None) -> Patch:
        return patch_for(session, changes, DataChange(moved=moved, tables=tables, kept_open=list(kept_open)))

    if not trial.data:
        return made(None)
    patch = Patch()
    if len(trial.data) == 1:
        patch = made((trial.data[0].path, trial.data[0].new_path))
        if is_made(patch):
            return patch
    folder, place = _folders(trial.data)
    if why_not := _no_stand_in(folder, place, trial.data, written):
        return patch if patch.why_not else Patch(why_not=why_not)
    links: list[str] = []
    try:
        for link in _missing(folder, place, {each.path for each in trial.data}):
            if len(links) == _MOST_LINKS:
                return _without(links, Patch(why_not=f"{folder} holds more than {_MOST_LINKS} other files"))
            os.makedirs(os.path.dirname(link), exist_ok=True)
            os.symlink(os.path.join(folder, os.path.relpath(link, place)), link)
            links.append(link)
    except OSError as error:
        return _without(links, Patch(why_not=f"the copies cannot be completed by links: {error}"))
    patch = made((folder, place))
    return patch if is_made(patch) else _without(links, patch)


def is_made(patch: Patch) -> bool:
    """Whether a diff, or words of the command, carry it out."""
    return patch.diff is not None or patch.command is not None


def _without(links: Sequence[str], patch: Patch) -> Patch:
    for link in links:
        with suppress(OSError):
            os.unlink(link)
    return patch


def _folders(data: Sequence[Data]) -> tuple[str, str]:
    """Return the directory that all the data lies in, and that of the copies."""
    old, new = ([os.path.dirname(os.path.realpath(path)) for path in paths] for paths in _paths(data))
    return os.path.commonpath(old), os.path.commonpath(new)


def _paths(data: Sequence[Data]) -> tuple[list[str], list[str]]:
    return [each.path for each in data], [each.new_path for each in data]


def _no_stand_in(folder: str, place: str, data: Sequence[Data], written: Sequence[str]) -> str:
    """Say why the directory of the copies cannot replace that of the data; "" where it can."""
    for each in data:
        if os.path.relpath(each.path, folder) != os.path.relpath(os.path.realpath(each.new_path), place):
            return "the copies are not laid out as the data is"
    if f"{place}/".startswith(f"{folder}/"):
        return f"the copies are below {folder} themselves"
    copied = {each.path for each in data}
    others = [path for path in written if path not in copied and path.startswith(f"{folder}/")]
    return f"the program writes {others[0]} next to the data" if others else ""


def _missing(folder: str, place: str, copied: set[str]) -> Iterator[str]:
    """Yield the paths below `place` that are to be links: whole stores, else files."""
    for entry in os.scandir(folder):
        target = os.path.join(place, entry.name)
        if os.path.realpath(entry.path) in copied:
            continue
        if entry.is_dir(follow_symlinks=False) and not is_store(entry.path):
            yield from _missing(entry.path, target, copied)
        else:
            yield target
