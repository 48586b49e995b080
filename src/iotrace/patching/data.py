"""Have the program read a copy of its data, as CSV tables in Parquet, or keep an archive open."""

from __future__ import annotations

import ast
import os
import re
import shlex
from collections.abc import Sequence

import msgspec

from iotrace.patching import bindings
from iotrace.patching.changes import Changes
from iotrace.patching.kinds import UnknownError
from iotrace.patching.paths import InFile, Part, Paths, Word
from iotrace.patching.source import Source, at_line

_OPENER = "open_archive"
_OPEN_ARCHIVE = f'''OPENED_ARCHIVES = {{}}


def {_OPENER}(name):
    """Open an archive once in each process and thread: ``with`` does not close it."""
    import contextlib
    import os
    import threading

    key = os.getpid(), threading.get_ident(), os.path.abspath(name)
    if key not in OPENED_ARCHIVES:
        OPENED_ARCHIVES[key] = tarfile.open(name)
    return contextlib.nullcontext(OPENED_ARCHIVES[key])
'''
_PLAIN = re.compile(r"[\w.+/-]+")


class DataChange(msgspec.Struct, frozen=True, kw_only=True):
    """What a patch changes besides settings of the loader: nothing by default.

    `moved`: a path and the one to read in its place. `tables`: CSV is Parquet there. `kept_open`: archives.
    """

    moved: tuple[str, str] | None = None
    tables: bool = False
    kept_open: list[str] = []

    @property
    def is_any(self) -> bool:
        """Whether it changes anything."""
        return self.moved is not None or self.tables or bool(self.kept_open)


def change_data(changes: Changes, asked: DataChange) -> None:
    """Note what a change of data asks of the source.

    Raises:
        UnknownError: a place is not known for certain.
    """
    if asked.moved is not None:
        _move(changes, *asked.moved)
    if asked.tables:
        _read_parquet(changes)
    for archive in asked.kept_open:
        _keep_open(changes, archive)


def _move(changes: Changes, path: str, new_path: str) -> None:
    place = Paths(changes.program).place(path)
    cwd, new_path = str(changes.program.cwd), os.path.realpath(new_path)
    if isinstance(place, Word):
        changes.words[path] = f"{place.given}{shlex.quote(_below(new_path, cwd))}"
    elif isinstance(place, InFile):
        own = place.file.text[place.scalar.start : place.scalar.end]
        new = new_path if os.path.isabs(place.scalar.value) else _below(new_path, cwd)
        quote = own[0] if own[0] in "\"'" else "" if _PLAIN.fullmatch(new) else "'"
        changes.set_scalar(place.file, place.scalar, f"{quote}{new}{quote}")
    else:
        changes.refuse(place.source)
        changes.note(place.source, place.node, "", _literal(place, new_path, cwd))


def _literal(part: Part, new_path: str, cwd: str) -> str:
    """Write a path as the expression that it takes the place of, in the same quotes."""
    is_text = isinstance(part.node, ast.Constant)
    if part.before:
        new = _below(new_path, os.path.join(cwd, part.before))
    else:
        absolute = is_text and os.path.isabs(ast.literal_eval(part.node))
        new = new_path if absolute else _below(new_path, cwd)
    quote = part.source.text[part.source.span(part.node)[0]] if is_text else '"'
    is_plain = quote in "\"'" and not set(new) & {"\\", quote} and new.isprintable()
    return f"{quote}{new}{quote}" if is_plain else repr(new)


def _below(path: str, folder: str) -> str:
    """Return a path as seen from a folder that it is below, else the whole path."""
    seen = os.path.relpath(path, os.path.realpath(folder))
    return path if seen.startswith("..") else seen


def _read_parquet(changes: Changes) -> None:
    source, call = _only_call(changes, "read_csv")
    module = call.func.value if isinstance(call.func, ast.Attribute) else None
    if not isinstance(module, ast.Name) or not _is_module(source, module, "pandas"):
        raise UnknownError(f"read_csv at {at_line(source, call)} is not called as pandas.read_csv")
    changes.note(source, call.func, "", f"{module.id}.read_parquet")


def _keep_open(changes: Changes, archive: str) -> None:
    source, call = _only_call(changes, "tarfile.open")
    module = call.func.value if isinstance(call.func, ast.Attribute) else None
    if not isinstance(module, ast.Name) or not _is_module(source, module, "tarfile"):
        raise UnknownError(f"tarfile.open at {at_line(source, call)} is not that of the library")
    if not isinstance(source.parents.get(call), ast.withitem):
        raise UnknownError(f"{at_line(source, call)} opens the archive without with")
    if not Paths(changes.program).gives(source, call.args[0], archive):
        raise UnknownError(f"which archive {at_line(source, call)} opens is not written there")
    changes.add_function(source, call, _OPENER, _OPEN_ARCHIVE)
    changes.note(source, call.func, "", _OPENER)


def _only_call(changes: Changes, name: str) -> tuple[Source, ast.Call]:
    """Return the one call of a function in the program, with a path as its one argument."""
    calls: Sequence[tuple[Source, ast.Call]] = [
        (source, call)
        for source in changes.program.files()
        for call in source.nodes(ast.Call)
        if ast.unparse(call.func).endswith(name) and not _writes(call)
    ]
    if len(calls) != 1:
        raise UnknownError(f"{name} is called in {len(calls) or 'no'} places of the program")
    ((source, call),) = calls
    if len(call.args) != 1 or call.keywords or isinstance(call.args[0], ast.Starred):
        raise UnknownError(f"{name} at {at_line(source, call)} has more than a path as its arguments")
    changes.refuse(source)
    return source, call


def _writes(call: ast.Call) -> bool:
    """Whether a call opens an archive to write it."""
    modes = [*call.args[1:2], *(each.value for each in call.keywords if each.arg == "mode")]
    return any(isinstance(each, ast.Constant) and str(each.value)[:1] in ("w", "a", "x") for each in modes)


def _is_module(source: Source, node: ast.Name, module: str) -> bool:
    _, bound = bindings.of_name(source, node, node.id)
    return len(bound) == 1 and bound[0].imported == (module, 0, "")
