"""Time in which a virtual machine had no CPU: neither CPU time nor run delay of a thread counts it.

A thread that computes while the hypervisor runs others looks as if it slept. No kernel says how long that
was for one thread. The sidecar records what share of their work time the CPUs lost in each second.
"""

from __future__ import annotations

import numpy as np

from iotrace.sources.clocks.session_clock import Times
from iotrace.sources.processes import Process
from iotrace.sources.telemetry import Floats, Host

_MOST = 0.99  # of a second; no thread measures anything in the rest


def add_stolen_time(process: Process, host: Host) -> None:
    """Add to the run delay of each span the stolen time that its CPU time leads one to expect.

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
