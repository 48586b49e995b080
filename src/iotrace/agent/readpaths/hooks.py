"""Hook the calls of libraries inside which files are read and decoded, by the rows of `table`.

A library is hooked once the program has imported it, never before. Each call leaves a span with its bytes and
file.
"""

from __future__ import annotations

import sys

from iotrace.agent.patching import hide_frame, observe, pass_for, patch
from iotrace.agent.readpaths import finders
from iotrace.agent.readpaths.chunk_accesses import ChunkAccesses
from iotrace.agent.readpaths.row_groups import RowGroupReads
from iotrace.agent.readpaths.table import ROWS, Row, parse
from iotrace.agent.recording.recorder import Recorder
from iotrace.agent.recording.spans import timed
from iotrace.session.guard import ours
from iotrace.session.names import KIND_ITEM, KIND_READ_PATH

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from typing import Any

    from iotrace.agent.recording.spans import Describe

    Arguments = tuple[Any, ...]
    Keywords = dict[str, Any]


# What a call costs that is passed on to the original: that was measured once, as no clock is as fast.
_PASSED_NS = 250
_MOST_TOLD = 1024  # files of which something is recorded once


def hook_library(module: Any, recorder: Recorder, name: str, added: str = "") -> None:
    """Hook the library's module `name`, by its own rows and those of `added`, a line each."""
    for row in ROWS.get(name, ()):
        hook(module, row, recorder)
    for line in added.splitlines():
        of_module, row = parse(line)
        if of_module == name:
            hook(module, row, recorder)
    if name == "numpy":
        from iotrace.agent.readpaths.memory_maps import hook_memory_maps

        hook_memory_maps(recorder, module)


def hook(module: Any, row: Row, recorder: Recorder) -> None:
    """Patch the calls of one row; do nothing about those that this version of the library lacks."""
    first, *others = row.call.split(" ")
    *path, name = first.split(".")
    owner = module
    for step in path:
        owner = getattr(owner, step, None)
        if owner is None:
            return
    prefix = f"{row.library}.{path[-1]}" if isinstance(owner, type) else row.library
    for called in (name, *others):
        if row.made:
            _note(owner, called, row, recorder)
        else:
            _record(owner, called, f"{prefix}.{called}", row, recorder)


def _record(owner: Any, name: str, shown: str, row: Row, recorder: Recorder) -> None:
    """Have ``owner.name`` record a span called `shown`."""
    # Libraries that work on threads of their own: the span then holds the CPU time of the whole process.
    describe = _describe(row, recorder, name)

    def make(original: Any) -> Any:
        if row.each:
            return _each(original, shown, describe, row.threads, recorder)
        kind = KIND_ITEM if row.item else KIND_READ_PATH
        # What reads or inflates bytes: its file, if it has one, is an argument's.
        of_argument = (
            row.file[:1] in ("", "0") if isinstance(row.file, str) else row.file in finders.OF_ARGUMENTS
        )
        part = of_argument and not (row.threads or row.item)
        replacement = timed(
            recorder, original, shown, kind, describe, row.threads, part=part, memory=row.memory
        )
        # Libraries look for the first frame that is not theirs when they warn (pandas'
        # find_stack_level, skip_file_prefixes): ours passes for a frame of theirs.
        pass_for(replacement, original)
        if row.least:
            return _unless_small(original, replacement, row.least, int(isinstance(owner, type)), recorder)
        return replacement if row.skip is None else _unless(original, replacement, row.skip, recorder)

    original = None if isinstance(owner, type) else getattr(owner, name, None)
    patch(owner, name, make)
    # Packages may hold the function under the same name: they were imported before the agent started, by
    # a program that is recorded in part.
    for package in _packages_of(owner):
        if original is not None and getattr(package, name, None) is original:
            patch(package, name, lambda _: getattr(owner, name))


def _describe(row: Row, recorder: Recorder, called: str) -> Describe:
    """Make what finds the bytes and the file of a call, by `row`; it also starts the recorder's writer."""
    size, size_of = row.size, finders.size_of
    find = finders.compiled(row.file) if isinstance(row.file, str) and row.file else row.file
    held = finders.compiled(size) if isinstance(size, str) and size not in ("", "result", "length") else None
    counted = size if callable(size) else None
    plain, length = size == "result", size == "length"
    start, path_of = recorder.start, finders.path_of
    about, told = row.about, set[str]()
    note = ChunkAccesses(recorder, row.library).note if row.chunks else None
    note_groups = RowGroupReads(recorder, called).note if row.groups else None

    def describe(result: Any, args: Arguments, kwargs: Keywords) -> tuple[int, str]:
        start()
        size_bytes = -1
        try:
            if plain:
                size_bytes = size_of(result)
            elif length:
                size_bytes = len(result)
            elif held is not None:
                size_bytes = size_of(held(result, args, kwargs))
            elif counted is not None:
                size_bytes = counted(result, args, kwargs)
        except ours(AttributeError, IndexError, KeyError, TypeError):  # of another kind than usual, as None
            pass
        if not find:
            return size_bytes, ""
        path = path_of(find(result, args, kwargs))
        if about is not None and path not in told and len(told) < _MOST_TOLD:
            told.add(path)
            try:
                recorder.records.append({**about(args), "path": path})
            except ours(Exception) as error:
                recorder.absorb(error, "describing an array")
        if note is not None and path:
            try:
                note(path, args, kwargs)
            except ours(Exception) as error:
                recorder.absorb(error, "counting chunks")
        if note_groups is not None:
            try:
                size_bytes = note_groups(result, path, args, kwargs, size_bytes)
            except ours(Exception) as error:
                recorder.absorb(error, "counting row groups")
        return size_bytes, path

    return describe


def _note(owner: Any, name: str, row: Row, recorder: Recorder) -> None:
    """Note the file of each object that ``owner.name`` makes."""
    file, initialises = row.file, name in ("__init__", "open")
    find = finders.compiled(file) if isinstance(file, str) else file

    def made(_: Any, result: Any, args: Sequence[Any], kwargs: Keywords) -> None:
        path = finders.path_of(find(result, tuple(args), kwargs))
        finders.remember(args[0] if initialises and isinstance(owner, type) else result, path)

    if name == "__init__" and getattr(owner, name, None) is object.__init__:
        # Made by ``__new__`` alone, as classes in Rust are: ``object.__init__`` takes no arguments.
        def noted(*args: Any, **kwargs: Any) -> None:
            try:
                made(None, None, args, kwargs)
            except ours(Exception) as error:
                recorder.absorb(error, f"noting the file of a {owner.__name__}")

        patch(owner, name, lambda _: noted)
    else:
        after = recorder.own_times.sampled(made)
        observe(owner, name, recorder, f"noting the file of {name}", after=after)


def _unless_small(original: Any, recorded: Any, least: int, position: int, recorder: Recorder) -> Any:
    """Return a call that goes to `original` where its argument has less than `least` bytes.

    Each batch of a worker comes by such a call of pickle's: `timed` itself would cost it more.
    """
    passed = recorder.own_times.passed(_PASSED_NS)

    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            small = len(args[position]) < least
        except ours(IndexError, TypeError):
            small = False
        if small:
            passed()
        try:
            return original(*args, **kwargs) if small else recorded(*args, **kwargs)
        except BaseException as error:
            hide_frame(error)
            raise

    pass_for(call, original)
    return call


def _unless(original: Any, recorded: Any, skip: Callable[[Arguments], bool], recorder: Recorder) -> Any:
    """Return a call that goes to `original` where ``skip(args)``."""
    passed = recorder.own_times.passed(_PASSED_NS)

    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            skipped = skip(args)
        except ours(AttributeError, IndexError):
            skipped = False
        if skipped:
            passed()
        try:
            return original(*args, **kwargs) if skipped else recorded(*args, **kwargs)
        except BaseException as error:
            hide_frame(error)
            raise

    pass_for(call, original)
    return call


def _each(original: Any, shown: str, describe: Describe, threads: bool, recorder: Recorder) -> Any:
    """Return a call whose iterator records a span for each item."""

    def iterate(*args: Any, **kwargs: Any) -> Any:
        try:
            iterator = iter(original(*args, **kwargs))
        except BaseException as error:
            hide_frame(error)
            raise

        def of_item(result: Any, _: Arguments, __: Keywords) -> tuple[int, str] | None:
            return describe(result, args, kwargs)

        advance = timed(recorder, iterator.__next__, shown, KIND_READ_PATH, of_item, own_threads=threads)
        return _items(advance)

    return iterate


def _items(advance: Callable[[], Any]) -> Iterator[Any]:
    """Return a generator, as the library's own iterator is one."""
    while True:
        try:
            item = advance()
        except ours(StopIteration):
            return
        except BaseException as error:
            hide_frame(error)
            raise
        yield item


def _packages_of(owner: Any) -> list[Any]:
    """Return the packages that contain a module; none for a class."""
    parts = [] if isinstance(owner, type) else owner.__name__.split(".")[:-1]
    found = [sys.modules.get(".".join(parts[:length])) for length in range(1, len(parts) + 1)]
    return [package for package in found if package is not None]
