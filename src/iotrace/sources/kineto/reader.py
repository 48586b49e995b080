"""Traces of torch.profiler (Kineto) into columns: one file, one `KinetoTrace`.

Reads what torch 1.8 to 2.13 wrote on NVIDIA, AMD and CPU alone, and other writers' Chrome JSON as far as it
goes. Times are integer ns: a float64 of an epoch in us holds no more than 256 ns.
"""

from __future__ import annotations

import gc
from pathlib import Path

from iotrace.sources.chrome.json_events import EventReader
from iotrace.sources.kineto.columns import Columns
from iotrace.sources.kineto.events import ExactLine, Line
from iotrace.sources.kineto.trace import Events, Flows, KinetoTrace

__all__ = ["Events", "Flows", "KinetoTrace", "read_kineto"]


def read_kineto(path: Path, near_ns: int | None = None) -> KinetoTrace:
    """Read the trace at `path` (``.json`` or ``.json.gz``); TraceError where it holds none.

    `near_ns`, any time within six weeks of the recording, restores the base time of a trace whose end was
    cut off together with it.
    """
    collecting = gc.isenabled()
    gc.disable()  # nothing here is cyclic, and collecting halves the speed
    try:
        found = Columns()
        reader = EventReader(path, Line)
        for lines in reader.chunks():
            if not found.add(lines):
                break
        else:
            return found.trace(reader, near_ns)
        found = Columns(exact=True)
        exact = EventReader(path, ExactLine)
        for exact_lines in exact.chunks():
            found.add(exact_lines)
        return found.trace(exact, near_ns)
    finally:
        if collecting:
            gc.enable()
