"""The functions of `native.c`: names and bodies of events, and the packets of a thread."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from typing import Any, BinaryIO

import numpy as np

from iotrace import compiled
from iotrace.sources.chrome.scan import Rows
from iotrace.timeline.writers.lanes import STACKED

NAMES, CATEGORIES, LABELS = range(3)  # kinds of interned strings
FIELDS = {CATEGORIES: 1, NAMES: 2, LABELS: 3}  # of InternedData
_OUT_BYTES = 4 << 20
_FRAME_BYTES = 64  # more than a packet needs in addition to its sequence and its body
_BODY_FACTOR, _BODY_BYTES = 6, 96  # a body, by the text of its event

_ARRAY: Any = np.ctypeslib.ndpointer(flags="C_CONTIGUOUS")
_HANDLE, _BYTES, _INT, _LONG = ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int, ctypes.c_int64
_LENGTH = ctypes.POINTER(_LONG)
_SEQUENCE, _OUT = (_BYTES, _LONG), (_ARRAY, _LONG, _LENGTH)
_SIGNATURES: dict[str, tuple[Any, list[Any]]] = {  # what each function returns, and takes
    "interned": (_HANDLE, [_INT]),
    "interned_free": (None, [_HANDLE]),
    "number": (_INT, [_HANDLE, _INT, _BYTES, _LONG]),
    "string": (_HANDLE, [_HANDLE, _INT, _INT, _LENGTH]),
    "bodies": (_LONG, [_HANDLE, _BYTES, _ARRAY, _LONG, _LONG, *[_ARRAY] * 4, _LENGTH]),
    "thread": (_HANDLE, []),
    "thread_free": (None, [_HANDLE]),
    "packets": (
        _LONG,
        [_HANDLE, *[_ARRAY] * 2, *[_LONG] * 2, _ARRAY, _LONG, _ARRAY, *_SEQUENCE, _INT, *_OUT],
    ),
    "close": (_INT, [_HANDLE, _ARRAY, *_SEQUENCE, *_OUT]),
}


def _library() -> ctypes.CDLL:
    library = compiled.loaded()
    for name, (result, arguments) in _SIGNATURES.items():
        function = getattr(library, f"iotrace_{name}")
        function.restype, function.argtypes = result, arguments
    return library


class Interned:
    """Strings that packets name by a number, from 1, by kind; at most `most` of each kind."""

    def __init__(self, most: int) -> None:
        self._library = _library()
        self._handle = self._library.iotrace_interned(most)
        if not self._handle:
            raise MemoryError

    def __del__(self) -> None:
        if self._handle:
            self._library.iotrace_interned_free(self._handle)

    def number(self, kind: int, text: bytes) -> int:
        """Return the string's number; 0 where there are too many."""
        number: int = self._library.iotrace_number(self._handle, kind, text, len(text))
        return number

    def strings(self, kind: int) -> Iterator[bytes]:
        """Yield all of a kind, in the order of their numbers."""
        length, number = _LONG(), 1
        while at := self._library.iotrace_string(self._handle, kind, number, length):
            yield ctypes.string_at(at, length.value)
            number += 1

    @staticmethod
    def room_for(rows: Rows) -> Any:
        """Make a buffer that holds the bodies of all rows."""
        length = int((rows["end"] - rows["begin"]).sum())
        return np.empty(_BODY_FACTOR * length + _BODY_BYTES * len(rows), np.uint8)

    def bodies(
        self, text: bytes, rows: Rows, first: int, kinds: Any, ids: Any, sizes: Any, out: Any
    ) -> tuple[int, Any]:
        """Return the row that it stopped at, and the bodies of the rows from `first` up to it, joined.

        It stops after the last row, or at one that has to be encoded in Python. `kinds`, `ids` and `sizes`,
        which it fills in, are by row. The bodies stay in `out`, which is `room_for` the rows.
        """
        written = _LONG()
        stop = self._library.iotrace_bodies(
            self._handle, text, rows, first, len(rows), kinds, ids, sizes, out, written
        )
        return stop, memoryview(out.data)[: written.value]


class Packets:
    """Writes a thread's packets to `out`. `sequence` are the fields that say where their names are from."""

    def __init__(self, sequence: bytes, out: BinaryIO) -> None:
        self._library = _library()
        self._handle = self._library.iotrace_thread()
        if not self._handle:
            raise MemoryError
        self._sequence = sequence
        self._out = out
        self._buffer = np.empty(_OUT_BYTES, np.uint8)
        self._tracks: Any = np.empty(0, np.int64)

    def __del__(self) -> None:
        if self._handle:
            self._library.iotrace_thread_free(self._handle)

    def write(
        self, rows: Rows, lanes: Any, tracks: dict[int, int], bodies: Any, delete_unbound: bool
    ) -> None:
        """Write the rows' packets, and ends of slices where due. `tracks`: of all lanes, `STACKED` too."""
        rows, lanes = np.ascontiguousarray(rows), np.ascontiguousarray(lanes, np.int32)
        numbers = sorted(tracks.keys() - {STACKED})
        self._tracks = np.zeros(max(numbers, default=-1) + 1, np.int64)
        self._tracks[numbers] = [tracks[number] for number in numbers]
        sequence, stacked = self._sequence, tracks.get(STACKED, 0)
        needed = int(rows["size"].max(initial=0)) + len(sequence) + _FRAME_BYTES
        if len(self._buffer) < needed:
            self._buffer = np.empty(needed, np.uint8)
        out, handle = self._buffer, self._handle
        bodies = np.frombuffer(bodies, np.uint8) if len(bodies) else out
        done, size, written = 0, len(sequence), _LONG()
        while done < len(rows):
            done = self._library.iotrace_packets(
                *(handle, rows, lanes, done, len(rows), self._tracks, stacked, bodies),
                *(sequence, size, delete_unbound, out, len(out), written),
            )
            if done < 0:
                raise MemoryError
            self._out.write(out[: written.value].data)

    def close(self) -> None:
        """Write the ends of all that is open."""
        done, out, written = 0, self._buffer, _LONG()
        while not done:
            done = self._library.iotrace_close(
                self._handle, self._tracks, self._sequence, len(self._sequence), out, len(out), written
            )
            self._out.write(out[: written.value].data)
