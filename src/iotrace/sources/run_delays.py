"""Calls that inflate what is in memory on threads of a library: whoever waits there waits for a CPU.

Their caller sleeps meanwhile, and of threads that come and go with calls (blosc2's) no account is left.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from iotrace.sources.processes import Process


class Fields(Protocol):
    """Spans, or columns of some."""

    def __getitem__(self, field: str, /) -> npt.NDArray[Any]: ...


_CALLS = frozenset(
    {"blosc.decompress", "blosc.unpack_array", "blosc2.decompress", "blosc2.decompress2", "blosc2.unpack"}
    | {"blosc2.unpack_array", "blosc2.unpack_tensor", "cv2.imdecode", "cv2.imdecodemulti"}
)


def run_delays(process: Process, spans: Fields) -> npt.NDArray[np.int64]:
    """Return how long each of its spans waited for a CPU, in ns; -1: unknown.

    Of a call in memory that is the time in which no thread of the process was on a CPU: others had none, too.
    """
    delays = spans["run_delay_ns"].astype(np.int64)
    unknown = np.flatnonzero((delays < 0) & (spans["major_faults"] == 0))
    own = spans["name"][unknown]
    names = [number for number in np.unique(own).tolist() if process.texts.get(number) in _CALLS]
    unknown = unknown[np.isin(own, names)]
    off_cpu = (spans[field][unknown].astype(np.int64) for field in ("duration_ns", "cpu_ns"))
    delays[unknown] = np.maximum(np.subtract(*off_cpu), 0)
    return delays
