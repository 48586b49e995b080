"""`native.c`, where it was compiled when iotrace was installed."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from typing import Any, BinaryIO

import numpy as np

from iotrace import compiled
from iotrace.sources.chrome.compiled_scan import Rows
from iotrace.timeline.writers.lanes import STACKED

NAMES, CATEGORIES, LABELS = range(3)  # kinds of interned strings
FIELDS = {CATEGORIES: 1, NAMES: 2, LABELS: 3}  # of InternedData
_OUT_BYTES = 4 << 20
_FRAME_BYTES = 64  # more than a packet needs beside its sequence and its body
_BODY_FACTOR, _BODY_BYTES = 6, 96  # a body, by the text of its event


def _library() -> ctypes.CDLL:
    found = compiled.loaded()
    for name in ("iotrace_bodies", "iotrace_packets"):
        getattr(found, name).restype = ctypes.c_int64
    for name in ("iotrace_interned", "iotrace_thread", "iotrace_string"):
        getattr(found, name).restype = ctypes.c_void_p
    return found


def _pointer(array: Any) -> ctypes.c_void_p:
    return ctypes.c_void_p(array.ctypes.data)


class Interned:
    """Strings that packets name by a number, from 1, by kind; at most `most` of each kind."""

    def __init__(self, most: int) -> None:
        self._library = _library()
        self._handle = ctypes.c_void_p(self._library.iotrace_interned(most))
        if not self._handle:
            raise MemoryError

    def __del__(self) -> None:
        if self._handle:
            self._library.iotrace_interned_free(self._handle)

    def number(self, kind: int, text: bytes) -> int:
        """The string's number; 0 where there are too many."""
        found: int = self._library.iotrace_number(self._handle, kind, text, ctypes.c_int64(len(text)))
        return found

    def strings(self, kind: int) -> Iterator[bytes]:
        """All of a kind, in the order of their numbers."""
        length, number = ctypes.c_int64(), 1
        while at := self._library.iotrace_string(self._handle, kind, number, ctypes.byref(length)):
            yield ctypes.string_at(at, length.value)
            number += 1

    @staticmethod
    def room_for(rows: Rows) -> Any:
        """A buffer that holds the bodies of all rows."""
        length = int((rows["end"] - rows["begin"]).sum())
        return np.empty(_BODY_FACTOR * length + _BODY_BYTES * len(rows), np.uint8)

    def bodies(
        self, text: bytes, rows: Rows, first: int, kinds: Any, ids: Any, sizes: Any, out: Any
    ) -> tuple[int, Any]:
        """The row that it stopped at, and the bodies of the rows from `first` up to it, joined.

        It stops behind the last row, or at one that has to be encoded in Python. `kinds`, `ids` and `sizes`,
        which it fills in, are by row. The bodies stay in `out`, which is `room_for` the rows.
        """
        written = ctypes.c_int64()
        stop = self._library.iotrace_bodies(
            self._handle,
            text,
            _pointer(rows),
            ctypes.c_int64(first),
            ctypes.c_int64(len(rows)),
            _pointer(kinds),
            _pointer(ids),
            _pointer(sizes),
            _pointer(out),
            ctypes.byref(written),
        )
        return stop, memoryview(out.data)[: written.value]


class Packets:
    """Writes a thread's packets, as `packets.Packets`."""

    def __init__(self, sequence: bytes, out: BinaryIO) -> None:
        self._library = _library()
        self._handle = ctypes.c_void_p(self._library.iotrace_thread())
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
        self, rows: Rows, placed: Any, tracks: dict[int, int], bodies: Any, delete_unbound: bool
    ) -> None:
        """The rows' packets, and ends of slices where they are due. `tracks`: of all lanes, `STACKED` too."""
        rows, placed = np.ascontiguousarray(rows), np.ascontiguousarray(placed, np.int32)
        lanes = sorted(tracks.keys() - {STACKED})
        self._tracks = np.zeros(max(lanes, default=-1) + 1, np.int64)
        self._tracks[lanes] = [tracks[lane] for lane in lanes]
        needed = int(rows["size"].max(initial=0)) + len(self._sequence) + _FRAME_BYTES
        if len(self._buffer) < needed:
            self._buffer = np.empty(needed, np.uint8)
        bodies = np.frombuffer(bodies, np.uint8) if len(bodies) else self._buffer
        done, written = 0, ctypes.c_int64()
        while done < len(rows):
            done = self._library.iotrace_packets(
                self._handle,
                _pointer(rows),
                _pointer(placed),
                ctypes.c_int64(done),
                ctypes.c_int64(len(rows)),
                _pointer(self._tracks),
                ctypes.c_int64(tracks.get(STACKED, 0)),
                _pointer(bodies),
                self._sequence,
                ctypes.c_int64(len(self._sequence)),
                int(delete_unbound),
                _pointer(self._buffer),
                ctypes.c_int64(len(self._buffer)),
                ctypes.byref(written),
            )
            if done < 0:
                raise MemoryError
            self._out.write(self._buffer[: written.value].data)

    def close(self) -> None:
        """The ends of all that is open."""
        done, written = 0, ctypes.c_int64()
        while not done:
            done = self._library.iotrace_close(
                self._handle,
                _pointer(self._tracks),
                self._sequence,
                ctypes.c_int64(len(self._sequence)),
                _pointer(self._buffer),
                ctypes.c_int64(len(self._buffer)),
                ctypes.byref(written),
            )
            self._out.write(self._buffer[: written.value].data)
