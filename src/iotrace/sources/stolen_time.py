"""Time in which a virtual machine had no CPU: neither CPU time nor run delay of a thread counts it.

A thread that computes while the hypervisor runs others looks as if it slept. No kernel says how long that
was for one thread. The sidecar records what share of their work time the CPUs lost in each second.

Calls that inflate what is in memory on threads of a library: whoever waits there waits for a CPU.

Their caller sleeps meanwhile, and of threads that come and go with calls (blosc2's) no account is left.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from iotrace.sources.clocks.session_clock import Times
from iotrace.sources.processes import Process
from iotrace.sources.telemetry import Floats, Host

_MOST = 0.99  # of a second; no thread measures anything in the rest


def add_stolen_time(process: Process, host: Host) -> None:
    """Add to the run delay of each span the stolen time that its CPU time makes likely.

    At most the time in which its thread neither ran nor waited for a CPU. An unknown run delay stays unknown.
    """
    share = host.figures.get("stolen_share")
    spans = process.spans
    if share is None or not len(spans):
        return
    shares = np.nan_to_num(share.value)  # a sample that is not known adds nothing
    if not shares.any():
        return
    starts = spans["start_ns"]
    known = spans["run_delay_ns"] >= 0
    off_cpu = np.maximum(spans["duration_ns"] - spans["cpu_ns"] - spans["run_delay_ns"], 0)
    per_cpu_ns = _stolen_per_cpu_ns(
        host.time_ns, share.time_ns, shares, starts, starts + spans["duration_ns"]
    )
    stolen = np.minimum(np.maximum(spans["cpu_ns"], 0) * per_cpu_ns, off_cpu)
    known &= np.abs(stolen) < 2.0**62  # what is more comes of damage, and no integer holds it
    spans["run_delay_ns"] = spans["run_delay_ns"] + np.where(known, stolen, 0).astype(np.int64)


def _stolen_per_cpu_ns(
    records: Times, ends: Times, shares: Floats, starts_ns: Times, ends_ns: Times
) -> Floats:
    """Return how many ns were stolen for each ns of CPU time, the mean from `starts_ns` to `ends_ns`.

    `shares` hold for the time from the record before each of `ends`; outside of all, nothing was stolen.
    """
    begins = records[np.maximum(np.searchsorted(records, ends) - 1, 0)]
    limited = np.minimum(shares, _MOST)
    edges = np.stack([begins, ends], axis=1).ravel()
    grown = np.stack([np.zeros(len(ends)), limited / (1 - limited) * (ends - begins)], axis=1).ravel()
    total = np.cumsum(grown)
    within: Floats = np.interp(ends_ns, edges, total) - np.interp(starts_ns, edges, total)
    per_ns: Floats = within / np.maximum(ends_ns - starts_ns, 1)
    return per_ns


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
