"""Traces that are odd: each a way in which real ones fall short, by name, as the files of a report."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.support.kineto import Event, data_wait, event, kernel, operator, step

_DAY_US = 86_400e6
Part = Event | list[Event]


def write(path: Path, *parts: Part, base_ns: int = 1_700_000_000_000_000_000, **around: Any) -> Path:
    """Write a trace; `.gz` compresses it."""
    events = [one for part in parts for one in (part if isinstance(part, list) else [part])]
    text = json.dumps({"traceEvents": events, "baseTimeNanoseconds": base_ns, **around}).encode()
    path.write_bytes(gzip.compress(text) if path.suffix == ".gz" else text)
    return path


def training(steps: int = 3) -> list[Part]:
    """A loop with a device: waits for data, operators, kernels, a copy, a collective."""
    found: list[Part] = []
    for number in range(steps):
        at = 1000.0 * number
        found += [
            step(number, at, at + 990),
            data_wait(at + 10, at + 100),
            operator("aten::mm", at + 110, at + 160),
            kernel(at + 130, at + 400, at + 120),
            kernel(at + 200, at + 500, at + 140, "ncclDevKernel_AllReduce_Sum_f32", stream=20),
            kernel(at + 520, at + 540, at + 510, "Memcpy HtoD (Pageable -> Device)", category="gpu_memcpy"),
            event("cuda_runtime", "cudaDeviceSynchronize", at + 550, at + 600),
        ]
    return found


def _rank(number: int, size: int) -> dict[str, Any]:
    return {"distributedInfo": {"backend": "nccl", "rank": number, "world_size": size}}


def no_steps(at: Path) -> list[Path]:
    return [write(at / "t.json", *(one for one in training() if "Profiler" not in str(one)))]


def no_kernels(at: Path) -> list[Path]:
    return [write(at / "t.json", step(1, 0, 900), data_wait(0, 400), operator("aten::mm", 500, 800))]


def one_event(at: Path) -> list[Path]:
    return [write(at / "t.json", operator("aten::mm", 0, 10))]


def one_kernel(at: Path) -> list[Path]:
    return [write(at / "t.json", kernel(0, 10))]


def one_kernel_of_no_length(at: Path) -> list[Path]:
    return [write(at / "t.json", kernel(5, 5, 1), step(0, 0, 0))]


def two_jobs(at: Path) -> list[Path]:
    first = write(at / "a.json", *training(), **_rank(3, 8))
    later = 1_700_000_000_000_000_000 + int(9 * _DAY_US * 1000)
    return [first, write(at / "b.json", *training(), base_ns=later, **_rank(1, 2))]


def a_rank_missing(at: Path) -> list[Path]:
    return [write(at / f"{rank}.json", *training(), **_rank(rank, 4)) for rank in (0, 1, 3)]


def a_rank_twice(at: Path) -> list[Path]:
    return [write(at / f"{number}.json", *training(), **_rank(1, 2)) for number in (0, 1)]


def an_unknown_version(at: Path) -> list[Path]:
    odd = event("new_device_events", "what is this", 10, 20)
    return [write(at / "t.json", *training(), odd, schemaVersion=99, newKey={"a": [1, {"b": None}]})]


def mtia(at: Path) -> list[Path]:
    found = [event("mtia_ccp_events", "fba", 100 * n, 100 * n + 50) for n in range(5)]
    launch = event("mtia_runtime", "mtiaLaunch", 5, 9)
    return [write(at / "t.json", step(1, 0, 600), operator("aten::mm", 0, 20), launch, *found)]


def a_graph(at: Path) -> list[Path]:
    events: list[Part] = [step(1, 0, 900), event("cuda_runtime", "cudaGraphLaunch", 10, 30, correlation=7)]
    for number in range(4):
        own = event("kernel", f"k{number}", 50 + 200 * number, 120 + 200 * number, 7)
        own["args"] |= {"correlation": 7, "device": 0, "stream": 7}
        events.append(own)
    return [write(at / "t.json", *events)]


def launched_before(at: Path) -> list[Path]:
    return [write(at / "t.json", step(1, 0, 900), kernel(10, 200), kernel(300, 400), kernel(450, 460, 440))]


def cut_short(at: Path) -> list[Path]:
    path = write(at / "t.json.gz", *training(200))
    path.write_bytes(path.read_bytes()[: int(path.stat().st_size * 0.6)])
    return [path]


def odd_numbers(at: Path) -> list[Path]:
    """NaN, negative lengths, texts for numbers, fields that are missing: as damaged exporters write them."""
    path = write(at / "t.json", *training(), kernel(700, 710, 690, grid=[0, 0, 0], blocks_per_SM=0))
    events = json.loads(path.read_text())["traceEvents"]
    odd = [
        {**operator("aten::add", 10, 20), "dur": float("nan")},
        {**operator("aten::sub", 10, 20), "dur": -5},
        {**kernel(10, 20, 5)[0], "ts": "12.5"},
        {**kernel(10, 20, 5)[0], "args": {"est. achieved occupancy %": float("inf"), "stream": None}},
        {"ph": "X", "cat": "kernel", "name": "no time"},
        {"ph": "X", "cat": "gpu_memcpy", "ts": 800, "dur": 5, "args": {"bytes": -1}},
    ]
    path.write_text(json.dumps({"traceEvents": [*events, *odd]}))
    return [path]


def nothing_inside(at: Path) -> list[Path]:
    return [write(at / "t.json")]


ODD: tuple[Callable[[Path], list[Path]], ...] = (
    *(no_steps, no_kernels, one_event, one_kernel, one_kernel_of_no_length, two_jobs, a_rank_missing),
    *(a_rank_twice, an_unknown_version, mtia, a_graph, launched_before, cut_short, odd_numbers),
    nothing_inside,
)
