"""Regions that the program's author named: how often, how long, and what of the data wait they cost."""

from __future__ import annotations

from collections import defaultdict

import msgspec
import numpy as np
import numpy.typing as npt

from iotrace.analysis.intervals import Coverage
from iotrace.analysis.loop.deliveries import Deliveries
from iotrace.analysis.results import RegionResult
from iotrace.analysis.table import NONE
from iotrace.analysis.wait.page_faults import bounds
from iotrace.analysis.wait.production import outermost
from iotrace.analysis.wait.waits import Waits
from iotrace.session.names import KIND_REGION
from iotrace.sources.processes import Process
from iotrace.sources.session import Rank

_SEEN = 0.5  # of the batches


class _Region(msgspec.Struct):
    count: int = 0
    wall_ns: int = 0
    cpu_ns: int = 0
    wait_ns: float = 0.0
    in_production: bool = False


def regions_of(rank: Rank, steps: int, waits: Waits) -> list[RegionResult]:
    """Sum up the regions of a rank's processes, longest first; `waits` are those of the measured `steps`."""
    makers = np.where(waits.deliveries.made, waits.deliveries.maker(rank.main.pid), NONE)
    # Where most batches are made by nobody who is seen, the rest tells nothing of the wait.
    seen = bool(len(makers)) and float(waits.deliveries.made.mean()) >= _SEEN
    found: dict[str, _Region] = defaultdict(_Region)
    for process in rank.processes:
        if (process.spans["kind"] == KIND_REGION).any():
            _add(process, waits[makers == process.pid], found)
    results = [
        RegionResult(
            name=name,
            count=region.count,
            ms_total=region.wall_ns / 1e6,
            cpu_ms_total=region.cpu_ns / 1e6,
            wait_ms=region.wait_ns / steps / 1e6 if region.in_production and steps and seen else None,
        )
        for name, region in found.items()
    ]
    return sorted(results, key=lambda result: -result.ms_total)


def _add(process: Process, waits: Waits, found: dict[str, _Region]) -> None:
    """Add one process's regions; `waits` are those for the batches that it made."""
    regions = process.spans[process.spans["kind"] == KIND_REGION]
    numbers, first = np.unique(regions["name"], return_index=True)
    named: dict[str, list[int]] = defaultdict(list)
    for number in numbers[np.argsort(first)].tolist():
        named[process.texts.get(number, "?")].append(number)
    for name, own in named.items():
        spans = regions[np.isin(regions["name"], own)]
        # A recursive function's inner calls are counted, their time is in the outer one's already.
        outer = spans[outermost(spans, np.ones(len(spans), dtype=np.bool_))]
        region = found[name]
        region.count += len(spans)
        region.wall_ns += int(outer["duration_ns"].sum())
        region.cpu_ns += int(outer["cpu_ns"].sum())
        if len(waits):
            shares = share_of_making(Coverage(*bounds(outer)), waits.deliveries)
            region.in_production |= bool(shares.any())
            region.wait_ns += sum((shares * waits.making_ns).tolist())


def share_of_making(covered: Coverage, made: Deliveries) -> npt.NDArray[np.float64]:
    """Find the share of each batch's production that lies inside any of some stretches."""
    starts, ends = made["taken_ns"], made["prepared_ns"]
    shares: npt.NDArray[np.float64] = np.zeros(len(made))
    np.divide(covered.within(starts, ends), ends - starts, out=shares, where=ends > starts)
    return shares
