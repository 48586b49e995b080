"""Regions that the program's author named: how often, how long, and what of the data wait they cost."""

from __future__ import annotations

from collections import defaultdict

import msgspec
import numpy as np
import numpy.typing as npt

from iotrace.analysis.intervals import Coverage
from iotrace.analysis.results import RegionResult
from iotrace.analysis.wait.production import outermost
from iotrace.analysis.wait.waits import Explained, split_wait
from iotrace.session.names import KIND_REGION
from iotrace.sources.processes import Process
from iotrace.sources.session import Rank


class _Region(msgspec.Struct):
    count: int = 0
    wall_ns: int = 0
    cpu_ns: int = 0
    wait_ns: float = 0.0
    in_production: bool = False


def regions_of(rank: Rank, steps: int, waits: list[Explained]) -> list[RegionResult]:
    """Sum up the regions of a rank's processes, longest first; `waits` are those of the measured `steps`."""
    made_by: dict[int, list[Explained]] = defaultdict(list)
    for item in waits:
        if item.delivery.taken_ns and item.delivery.prepared_ns:
            made_by[item.delivery.pid or rank.main.pid].append(item)
    found: dict[str, _Region] = defaultdict(_Region)
    for process in rank.processes:
        _add(process, made_by[process.pid], found)
    results = [
        RegionResult(
            name=name,
            count=region.count,
            ms_total=region.wall_ns / 1e6,
            cpu_ms_total=region.cpu_ns / 1e6,
            wait_ms=region.wait_ns / steps / 1e6 if region.in_production and steps else None,
        )
        for name, region in found.items()
    ]
    return sorted(results, key=lambda result: -result.ms_total)


def _add(process: Process, made: list[Explained], found: dict[str, _Region]) -> None:
    """Add one process's regions; `made` are the waits for batches that it made."""
    regions = process.spans[process.spans["kind"] == KIND_REGION]
    names = np.array([process.texts.get(number, "?") for number in regions["name"].tolist()])
    for name in dict.fromkeys(names.tolist()):
        spans = regions[names == name]
        # A recursive function's inner calls are counted, their time is in the outer one's already.
        outer = spans[outermost(spans, np.ones(len(spans), dtype=np.bool_))]
        region = found[name]
        region.count += len(spans)
        region.wall_ns += int(outer["duration_ns"].sum())
        region.cpu_ns += int(outer["cpu_ns"].sum())
        if made:
            shares = _shares(outer, made)
            region.in_production |= bool(shares.any())
            region.wait_ns += sum(
                share * split_wait(item.delivery)[2]
                for share, item in zip(shares.tolist(), made, strict=True)
            )


def _shares(spans: npt.NDArray[np.void], made: list[Explained]) -> npt.NDArray[np.float64]:
    """Find the share of each batch's production that lies inside any of the spans."""
    starts = np.array([item.delivery.taken_ns for item in made], dtype=np.int64)
    ends = np.array([item.delivery.prepared_ns for item in made], dtype=np.int64)
    covered = Coverage(spans["start_ns"], spans["start_ns"] + spans["duration_ns"]).within(starts, ends)
    shares: npt.NDArray[np.float64] = np.zeros(len(made))
    np.divide(covered, ends - starts, out=shares, where=ends > starts)
    return shares
