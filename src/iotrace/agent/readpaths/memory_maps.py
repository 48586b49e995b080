"""Hook memory maps: ``numpy.memmap``, also as ``numpy.load(mmap_mode=)`` returns it.

No system call reads the pages of a map: they come by page faults when they are touched, which is often
after ``__getitem__`` has returned a view. Hence the spans hold the file of each access and its bytes.
All accesses are summed up by file, too.
"""

from __future__ import annotations

from resource import getpagesize
from sys import modules
from time import monotonic_ns
from typing import Any

from iotrace.agent.patching import hide_frame, patch
from iotrace.agent.readpaths.finders import path_of
from iotrace.agent.readpaths.sums import Sums
from iotrace.agent.recording.recorder import Recorder
from iotrace.agent.recording.spans import timed
from iotrace.agent.recording.thread_clocks import thread_id
from iotrace.session.guard import ours
from iotrace.session.names import KIND_MAPPED

# Smaller results are not recorded: a loop over elements would make a span of each.
SMALLEST_BYTES = 4096

_NAME = "numpy.memmap.__getitem__"
_PAGE = getpagesize()
_ELEMENT = 16  # bytes of the largest: smaller results are summed up over all files
_MOST_FILES = 256  # of a process; of more, nothing is summed up
_LINE = 64  # bytes that memory gives at once
_MORE = 1.1  # sums are written anew where so many times as many accesses are known


class _Map:
    """The accesses to a mapped file, the bytes that they gave, and the pages of those of one piece.

    `apart` bytes were of accesses to small pieces, the last one of `piece` bytes each `gap` bytes.
    """

    __slots__ = ("apart", "by_rows", "bytes", "count", "gap", "odd", "pages", "piece", "told")

    def __init__(self, by_rows: bool) -> None:
        self.by_rows = by_rows
        self.count = self.bytes = self.pages = self.odd = self.told = self.apart = self.piece = self.gap = 0


class MapAccesses(Sums):
    """How often each mapped file was accessed in a process, for how many bytes, on how many pages at most."""

    def __init__(self, recorder: Recorder) -> None:
        super().__init__(recorder, "telling accesses to memory maps", _MORE)
        self._mmap: Any = None
        self.elements = 0  # single ones, of all files: to look up their file would cost more than the access
        self._told_elements = 0

    def add(self, mapped: Any, index: Any, size: int, view: Any = None) -> None:
        """Add an access that gave `size` bytes; `view` is what it gave, unless it is a copy."""
        if self._directory is not self._recorder.directory:
            self.elements = 0 if self._directory else self.elements
            self._told_elements = 0
            self._mmap = modules["mmap"].mmap  # who maps has imported it
            self._recorder.start()
            self._begin()
        try:
            sums = self._known[mapped.filename]
        except ours(KeyError):
            if len(self._known) >= _MOST_FILES:
                return
            sums = self._known[mapped.filename] = _Map(bool(mapped.flags.c_contiguous))
        sums.count += 1
        sums.bytes += size
        kind = type(index)
        # One piece of the file: of a map that is no view of another, whose rows lie one behind the other.
        if (
            (kind is int or (kind is slice and (index.step is None or index.step == 1)))
            and sums.by_rows
            and type(mapped.base) is self._mmap
        ):
            sums.pages += (size + 2 * _PAGE - 2) // _PAGE
        else:
            sums.odd += 1
            if view is not None and not view.flags.c_contiguous:
                piece, gap = _pieces(view)
                if piece < _LINE <= gap:
                    sums.apart, sums.piece, sums.gap = sums.apart + size, piece, gap

    def _tell(self) -> None:
        more = 1.0 if self._recorder.closed else _MORE
        if self.elements > self._told_elements * more:
            self._told_elements = self.elements
            named = [sums for file, sums in list(self._known.items()) if path_of(file)]
            for sums in named[:1]:  # the record of any of them tells it
                sums.told = 0
        super()._tell()

    def record(self, file: Any, sums: _Map) -> dict[str, Any]:
        """Tell the accesses to a file."""
        return {
            "type": "mapped",
            "path": path_of(file),
            "accesses": sums.count,
            "bytes": sums.bytes,
            "pages": sums.pages,
            "odd": sums.odd,
            "page_bytes": _PAGE,
            "elements": self.elements,
            "apart": sums.apart,
            "piece": sums.piece,
            "gap": sums.gap,
        }


def _pieces(view: Any) -> tuple[int, int]:
    """Return the bytes of a view's elements that lie side by side, and from one such piece to the next."""
    piece = view.itemsize
    for stride, length in sorted(
        (abs(each), size) for each, size in zip(view.strides, view.shape, strict=True)
    ):
        if length > 1 and stride > piece:
            return piece, stride
        piece *= length
    return piece, 0


def hook_memory_maps(recorder: Recorder, numpy: Any) -> None:
    """Patch ``numpy.memmap.__getitem__``."""
    basic = frozenset({int, slice, type(None), type(Ellipsis)})
    accesses = MapAccesses(recorder)

    def describe(result: Any, args: tuple[Any, ...], _: dict[str, Any]) -> tuple[int, str] | None:
        if not hasattr(result, "nbytes"):
            return None
        accesses.add(args[0], args[1], result.nbytes)
        if result.nbytes < SMALLEST_BYTES:
            return None
        recorder.start()
        return result.nbytes, path_of(args[0].filename)

    def note_view(mapped: Any, result: Any, start_ns: int) -> None:
        # A view is made without touching its pages: no fault, no switch, hence no `getrusage`.
        end_ns = monotonic_ns()
        recorder.start()
        path = path_of(mapped.filename)
        file = recorder.text(path) if path else -1
        duration_ns = end_ns - start_ns
        what = (result.nbytes, thread_id(), recorder.text(_NAME), file, KIND_MAPPED)
        recorder.spans.append((start_ns, duration_ns, duration_ns, *what, 0, 0, 0, 0, 0))

    def make(original: Any) -> Any:
        copy = timed(recorder, original, _NAME, KIND_MAPPED, describe)

        def __getitem__(self: Any, index: Any) -> Any:  # noqa: N807
            kind = type(index)
            try:
                if kind not in basic and not (kind is tuple and basic.issuperset(map(type, index))):
                    return copy(self, index)  # by a list or an array: reads every page that it names
                start_ns = monotonic_ns()
                result = original(self, index)
            except BaseException as error:
                hide_frame(error)
                raise
            try:
                size = result.nbytes
                if size > _ELEMENT:
                    accesses.add(self, index, size, result)
                else:
                    accesses.elements += 1
                if size >= SMALLEST_BYTES:
                    note_view(self, result, start_ns)
            except ours(Exception) as error:
                recorder.absorb(error, "recording a memory map")
            return result

        return __getitem__

    patch(numpy.memmap, "__getitem__", make)
