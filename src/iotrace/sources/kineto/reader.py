"""Traces of torch.profiler (Kineto) into columns: one file, one `KinetoTrace`.

Reads what torch 1.8 to 2.13 wrote on NVIDIA, AMD and CPU alone, and other writers' Chrome JSON as far as it
goes. Times are integer ns: a float64 of an epoch in us holds no more than 256 ns.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from iotrace.errors import TraceError
from iotrace.sources.byte_stream import blocks, without_collecting
from iotrace.sources.chrome.reader import ChromeReader
from iotrace.sources.kineto.columns import Columns
from iotrace.sources.kineto.trace import Column, KinetoTrace
from iotrace.sources.xplane import XPLANE

# Kineto counts its times from a multiple of three months since the epoch (libkineto's ChromeTraceBaseTime).
_BASE_QUANTUM_NS = 7_889_238 * 10**9
_YEAR_2000_NS = 946_684_800 * 10**9
_FARTHEST_NS = 1 << 62
_LOOK_BYTES = 4096
# What begins the JSON of other recorders, who have other contents for it.
_OTHER_FORMATS = {
    b'"rocprofiler-sdk-tool"': "rocprofv3's JSON, which this version does not read",
    b"chakra": "an execution trace of torch (ExecutionTraceObserver): its operators have no times",
}


@without_collecting()
def read_kineto(path: Path, near_ns: int | None = None) -> KinetoTrace:
    """Read the trace at `path` (``.json`` or ``.json.gz``).

    `near_ns`, any time within six weeks of the recording, restores the base time of a trace whose end was
    cut off together with it.

    Raises:
        TraceError: the file cannot be read, or holds no trace.
    """
    try:
        return _read(path, near_ns)
    except OSError as error:
        raise TraceError(f"{path} cannot be read: {error.strerror or error}") from error


def _read(path: Path, near_ns: int | None) -> KinetoTrace:
    columns = Columns()
    reader = ChromeReader(columns.scan)
    problems: list[str] = []
    for batch in reader.batches(blocks(path, problems)):
        columns.add(batch)
    if not reader.arrays:
        raise TraceError(
            f"{path} is {_other_format(path)}",
            "give a file that torch.profiler's export_chrome_trace or tensorboard_trace_handler wrote, "
            "or the .xplane.pb of JAX or TensorFlow",
        )
    return _trace(path, columns, reader.metadata, problems + reader.problems, near_ns)


def _other_format(path: Path) -> str:
    """Say what a file without traceEvents is, by how it begins."""
    begin = next(iter(blocks(path, [])), b"")[:_LOOK_BYTES]
    other = next((what for key, what in _OTHER_FORMATS.items() if key in begin), "")
    if not other and path.name.endswith(XPLANE):
        return f"called {XPLANE}, and holds no profile of JAX or TensorFlow"
    return other or "no trace in Chrome's JSON format: it holds no traceEvents"


def _trace(
    path: Path, columns: Columns, document: dict[str, Any], problems: list[str], near_ns: int | None
) -> KinetoTrace:
    events, endless = columns.events()
    flows, flow_categories = columns.flows()
    if endless:
        begins = "1 begin event" if endless == 1 else f"{endless} begin events"
        problems.append(f"{begins} without an end {'was' if endless == 1 else 'were'} left out")
    base_ns = _base(document, events.start_ns, near_ns, problems)
    events.start_ns[:] += base_ns or 0
    flows.time_ns[:] += base_ns or 0
    memory = columns.memory()
    memory.time_ns[:] += base_ns or 0
    distributed = document.get("distributedInfo")
    distributed = distributed if isinstance(distributed, dict) else {}
    devices = document.get("deviceProperties")
    return KinetoTrace(
        path=path,
        events=events,
        flows=flows,
        memory=memory,
        details=list(columns.strings.details),
        names=list(columns.strings.names),
        categories=list(columns.strings.categories),
        flow_categories=flow_categories,
        threads=list(columns.strings.threads),
        collectives=columns.collectives,
        base_ns=base_ns,
        rank=_whole_number(distributed.get("rank")),
        world_size=_whole_number(distributed.get("world_size")),
        devices=[one for one in devices if isinstance(one, dict)] if isinstance(devices, list) else [],
        process_names=columns.process_names,
        thread_names=columns.thread_names,
        document=document,
        problems=problems,
    )


def _base(document: dict[str, Any], start_ns: Column, near_ns: int | None, problems: list[str]) -> int | None:
    """What the times are counted from; 0 where they are absolute, None where that is not known."""
    base_ns = _whole_number(document.get("baseTimeNanoseconds"))
    if base_ns is not None:
        return base_ns
    if not len(start_ns) or int(np.median(start_ns)) > _YEAR_2000_NS:
        return 0
    if near_ns is None:
        problems.append("it does not say what its times are counted from: they have no date")
        return None
    first_ns = int(start_ns.min())
    periods = round((near_ns - first_ns) / _BASE_QUANTUM_NS)
    problems.append("its base time was cut off with its end, and inferred from Kineto's counting in quarters")
    return periods * _BASE_QUANTUM_NS


def _whole_number(value: Any) -> int | None:
    try:
        number = int(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return number if abs(number) < _FARTHEST_NS else None
