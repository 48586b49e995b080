"""Count what accesses ask of arrays that are stored in chunks (HDF5, zarr): how many chunks each touches."""

from __future__ import annotations

import sys
from _operator import index

from iotrace.agent.readpaths import finders
from iotrace.agent.readpaths.sums import Sums
from iotrace.session.guard import ours

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from iotrace.agent.recording.recorder import Recorder

_MOST_ARRAYS = 128  # of a process; of more, nothing is known
_LEAST_BYTES = 64 << 10  # of an array in one piece: to read all of a smaller one costs nothing
_MOST_EXTENTS = 8  # of an array: shapes of what was asked for
_MORE = 1.1  # sums are written anew where so many times as many accesses are known


class _Array:
    """An array, and the sums of the accesses to it."""

    __slots__ = (
        *("about", "asked", "cached", "chunk", "complete", "count", "elements", "extents", "field"),
        *("held", "item_bytes", "kept", "objects", "odd", "opened", "row", "shape", "told", "touched"),
    )

    def __init__(self, shape: tuple[int, ...], chunk: tuple[int, ...], about: dict[str, Any]) -> None:
        self.shape, self.chunk, self.about = shape, chunk, about
        self.count = self.touched = self.odd = self.told = 0
        self.elements = self.asked = self.complete = 0
        self.item_bytes: int = about["item_bytes"]
        self.field = ""
        self.extents: dict[tuple[int, ...], int] = {}
        self.row = touch(0, shape, chunk)  # as most ask for it: one of the first axis
        self.objects = self.kept = self.opened = 0
        self.held: dict[int, None] = {}  # chunks along the first axis, the one that was used last at the end
        self.cached = _cached(chunk, shape, about)

    def open_as(self, opened: int, selection: Any) -> None:
        """Count the objects that it is accessed through, and chunks that one kept open would hold decoded.

        HDF5 keeps those that were used last, until the last object of the dataset is gone.
        """
        if opened != self.opened:
            self.opened = opened
            self.objects += 1
        first = selection[0] if type(selection) is tuple and selection else selection
        if type(first) is slice:
            first = first.start or 0
        try:
            number = index(first) // self.chunk[0]
        except ours(TypeError):
            return
        held = self.held
        if number in held:
            self.kept += 1
            del held[number]
        elif len(held) >= self.cached:
            del held[next(iter(held))]
        held[number] = None

    def add(self, selection: Any, given: Any) -> None:
        """Add an access; `given` is the type of its elements, where that is another one: some fields."""
        self.count += 1
        found = self.row if type(selection) is int else touch(selection, self.shape, self.chunk)
        if found is None:
            self.odd += 1
            return
        touched, extent = found
        self.touched += touched
        elements = 1
        for length in extent:
            elements *= length
        item_bytes = self.item_bytes if given is None else min(self.item_bytes, given.itemsize)
        self.elements += elements
        self.asked += elements * item_bytes
        if extent == self.shape:
            self.complete += 1
            if not self.field and given is not None and given.names:
                self.field = given.names[0]
        extents = self.extents
        if extent in extents or len(extents) < _MOST_EXTENTS:
            extents[extent] = extents.get(extent, 0) + 1


class ChunkAccesses(Sums):
    """The arrays of a process."""

    def __init__(self, recorder: Recorder, library: str) -> None:
        super().__init__(recorder, "telling accesses to chunks", _MORE)
        self._library = library

    def note(self, path: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Add the access ``args[0][args[1]]`` to an array of the file or store `path`.

        One of h5py that names fields makes another one of itself, which has their type.
        """
        selection = args[1] if len(args) > 1 else ()
        for each in selection if type(selection) is tuple else (selection,):
            if isinstance(each, str):
                return
        if self._directory is not self._recorder.directory:
            self._begin()
        array = args[0]
        name = finders.h5py_name(array) if self._library == "h5py" else ""
        key = path, name
        try:
            known = self._known[key]
        except ours(KeyError):
            if len(self._known) >= _MOST_ARRAYS:
                return
            known = self._known[key] = _describe(array, path, name)
        if known is not None and len(args) > 1:
            known.add(selection, kwargs.get("new_dtype"))
            if known.cached:
                known.open_as(array.id.id, selection)

    def record(self, _: Any, known: _Array) -> dict[str, Any]:
        """Tell the sums of an array."""
        extents = [[list(extent), count] for extent, count in list(known.extents.items())]
        sums = {"accesses": known.count, "touched": known.touched, "odd": known.odd}
        sums |= {"elements": known.elements, "asked_bytes": known.asked, "complete": known.complete}
        sums |= {"objects": known.objects, "kept": known.kept}
        return {**known.about, **sums, "field": known.field, "extents": extents}


def _describe(array: Any, path: str, name: Any) -> _Array | None:
    """Describe an array once; one that is not stored in chunks is one, of which parts are read."""
    shape, chunk = array.shape, array.chunks
    in_chunks = bool(chunk)
    if not shape or (not in_chunks and array.nbytes < _LEAST_BYTES):
        return None
    chunk = chunk or shape
    if len(chunk) != len(shape):
        return None
    cache = array.id.get_access_plist().get_chunk_cache()[1] if name and in_chunks else 0
    filtered = not name or array.id.get_create_plist().get_nfilters() > 0
    chunk_bytes = int(array.dtype.itemsize)
    for each in chunk:
        chunk_bytes *= each
    about = {
        "type": "chunked",
        "version": "" if name else sys.modules["zarr"].__version__,
        "path": path,
        "dataset": name.decode(errors="backslashreplace") if name else "",
        "shape": list(shape),
        "chunk": list(chunk),
        "item_bytes": int(array.dtype.itemsize),
        "cache_bytes": int(cache),
        "whole": filtered or chunk_bytes <= cache,
        "filtered": filtered,
    }
    return _Array(tuple(shape), tuple(chunk), about)


def _cached(chunk: tuple[int, ...], shape: tuple[int, ...], about: dict[str, Any]) -> int:
    """Return how many chunks HDF5 keeps decoded, where they lie along the first axis alone; else 0."""
    each = about["item_bytes"]
    for length in chunk:
        each *= length
    return about["cache_bytes"] // each if each and about["filtered"] and chunk[1:] == shape[1:] else 0


def touch(
    selection: Any, shape: tuple[int, ...], chunk: tuple[int, ...]
) -> tuple[int, tuple[int, ...]] | None:
    """Return how many chunks a selection by integers and slices touches, and its shape; None of another."""
    items = selection if type(selection) is tuple else (selection,)
    unnamed = len(shape) - len(items)
    for item in items:
        if item is Ellipsis:
            unnamed += 1
    if unnamed < 0:
        return None
    touched = 1
    extent: list[int] = []
    for item in (*items, Ellipsis):  # what is not named is taken whole
        axis = len(extent)
        if item is Ellipsis:
            for size, each in zip(shape[axis : axis + unnamed], chunk[axis:], strict=False):
                touched *= -(-size // each)
                extent.append(size)
            unnamed = 0
            continue
        size, each = shape[axis], chunk[axis]
        kind = type(item)
        if kind is slice:
            first, stop, step = item.indices(size)
            if step < 1 or stop <= first:
                return None
            count = (stop - first + step - 1) // step
            last = first + (count - 1) * step
            touched *= last // each - first // each + 1 if step <= each else count
            extent.append(count)
        else:
            if kind is bool:
                return None
            if kind is not int:
                try:
                    index(item)
                except ours(TypeError):
                    return None
            extent.append(1)
    return touched, tuple(extent)
