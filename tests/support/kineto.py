"""Made-up traces of torch.profiler: events in us, written and read as a real one is."""

from __future__ import annotations

import json
import tempfile
from itertools import count
from pathlib import Path
from typing import Any

from iotrace.analysis.device.activity import Activity
from iotrace.sources.kineto.reader import read_kineto
from iotrace.sources.kineto.trace import KinetoTrace

MAIN, AUTOGRAD, PID = 10, 11, 10
_correlations = count(1)

Event = dict[str, Any]


def event(category: str, name: str, start: float, end: float, tid: Any = MAIN, **args: Any) -> Event:
    """A complete event on the host."""
    named = {key.replace("_", " "): value for key, value in args.items()}
    return {
        "ph": "X",
        "cat": category,
        "name": name,
        "pid": PID,
        "tid": tid,
        "ts": start,
        "dur": round(end - start, 3),
        "args": named,
    }


def operator(name: str, start: float, end: float, tid: int = MAIN, **args: Any) -> Event:
    return event("cpu_op", name, start, end, tid, **args)


def annotation(name: str, start: float, end: float, tid: int = MAIN) -> Event:
    return event("user_annotation", name, start, end, tid)


def step(number: int, start: float, end: float) -> Event:
    return annotation(f"ProfilerStep#{number}", start, end)


def data_wait(start: float, end: float) -> Event:
    return annotation("enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__", start, end)


def kernel(
    start: float,
    end: float,
    launched: float | None = None,
    name: str = "gemm",
    stream: int = 7,
    tid: int = MAIN,
    category: str = "kernel",
    **args: Any,
) -> list[Event]:
    """A device event, and where it was launched the runtime call (of 1 us at most) that did it."""
    number = next(_correlations)
    found = event(category, name, start, end, stream, device=0, stream=stream, correlation=number, **args)
    found["pid"] = 0
    if launched is None:
        return [found]
    call = event("cuda_runtime", "cudaLaunchKernel", launched, launched + 0.5, tid, correlation=number)
    return [found, call]


def trace_of(*events: Event | list[Event], base_ns: int = 0, **around: Any) -> KinetoTrace:
    """The trace of these events."""
    flat = [one for item in events for one in (item if isinstance(item, list) else [item])]
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "trace.json"
        path.write_text(json.dumps({"traceEvents": flat, "baseTimeNanoseconds": base_ns, **around}))
        return read_kineto(path)


def activity_of(*events: Event | list[Event], **around: Any) -> Activity:
    return Activity(trace_of(*events, **around))
