"""`lanes.c`, where it was compiled when iotrace was installed."""

from __future__ import annotations

import ctypes

import numpy as np
import numpy.typing as npt

from iotrace import compiled
from iotrace.timeline.writers.spill import Rows


class Lanes(ctypes.Structure):
    """The open slices of one thread's lanes: `Lanes` of lanes.c, with its room for lanes and levels."""

    _fields_ = [
        ("_count", ctypes.c_int64),
        ("_depth", ctypes.c_int64 * 64),
        ("_starts", ctypes.c_int64 * 512 * 64),
        ("_ends", ctypes.c_int64 * 512 * 64),
        ("_begun", ctypes.c_int64),
        ("_begins", ctypes.c_int64 * 512),
    ]

    def place(self, rows: Rows) -> npt.NDArray[np.int32]:
        """The lane of each row as in `lanes`; of fewer rows where there is no room for more."""
        rows = np.ascontiguousarray(rows)
        placed = np.empty(len(rows), np.int32)
        place = compiled.loaded().iotrace_place
        place.restype = ctypes.c_int64
        count = place(
            ctypes.byref(self),
            ctypes.c_void_p(rows.ctypes.data),
            ctypes.c_int64(len(rows)),
            ctypes.c_void_p(placed.ctypes.data),
        )
        return placed[:count]

    def open(self) -> tuple[list[list[int]], list[list[int]], list[int]]:
        """Starts and ends of the open slices by lane, the outermost first; starts of begin events."""
        lanes = range(self._count)
        return (
            [self._starts[lane][: self._depth[lane]] for lane in lanes],
            [self._ends[lane][: self._depth[lane]] for lane in lanes],
            self._begins[: self._begun],
        )
