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

_MOST_ARRAYS = 64  # of a process; of more, nothing is known
_MOST_EXTENTS = 8  # of an array: shapes of what was asked for
_MORE = 1.1  # sums are written anew where so many times as many accesses are known


class _Array:
    """An array, and the sums of the accesses to it."""

    __slots__ = ("about", "chunk", "count", "extents", "odd", "row", "shape", "told", "touched")

    def __init__(self, shape: tuple[int, ...], chunk: tuple[int, ...], about: dict[str, Any]) -> None:
        self.shape, self.chunk, self.about = shape, chunk, about
        self.count = self.touched = self.odd = self.told = 0
        self.extents: dict[tuple[int, ...], int] = {}
        self.row = touch(0, shape, chunk)  # as most ask for it: one of the first axis

    def add(self, selection: Any) -> None:
        self.count += 1
        found = self.row if type(selection) is int else touch(selection, self.shape, self.chunk)
        if found is None:
            self.odd += 1
            return
        touched, extent = found
        self.touched += touched
        extents = self.extents
        if extent in extents or len(extents) < _MOST_EXTENTS:
            extents[extent] = extents.get(extent, 0) + 1


class ChunkAccesses(Sums):
    """The arrays of a process."""

    def __init__(self, recorder: Recorder, library: str) -> None:
        super().__init__(recorder, "telling accesses to chunks", _MORE)
        self._library = library

    def note(self, path: str, args: tuple[Any, ...]) -> None:
        """Add the access ``args[0][args[1]]`` to an array of the file or store `path`."""
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
            known.add(args[1])

    def record(self, _: Any, known: _Array) -> dict[str, Any]:
        """Tell the sums of an array."""
        extents = [[list(extent), count] for extent, count in list(known.extents.items())]
        sums = {"accesses": known.count, "touched": known.touched, "odd": known.odd}
        return {**known.about, **sums, "extents": extents}


def _describe(array: Any, path: str, name: Any) -> _Array | None:
    """Describe an array once; None of one that is not stored in chunks."""
    shape, chunk = array.shape, array.chunks
    if not chunk or len(chunk) != len(shape):
        return None
    cache = array.id.get_access_plist().get_chunk_cache()[1] if name else 0
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
        "whole": not name or array.id.get_create_plist().get_nfilters() > 0 or chunk_bytes <= cache,
    }
    return _Array(tuple(shape), tuple(chunk), about)


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
