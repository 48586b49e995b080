"""What each stage of making a sample costs, by file: the least noisy figures that a run gives.

A step's length and a wait depend on everything that runs beside the program. What a thread computed to
decode one file for one sample does so far less: its CPU time, the lower quartile of many.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import msgspec
import numpy as np
import numpy.typing as npt

from iotrace.analysis.intervals import Coverage, Times
from iotrace.analysis.rank import RankAnalysis
from iotrace.analysis.results import StageCost
from iotrace.analysis.wait.page_faults import Spans, holder
from iotrace.analysis.wait.production import blocked_fraction, outermost
from iotrace.session.names import KIND_COLLATE, KIND_ITEM, KIND_MAPPED, KIND_READ_PATH
from iotrace.sources.processes import Process

Costs = npt.NDArray[np.float64]

_MOST_BLOCKS = 40
_LEAST_IN_BLOCK = 4  # a quartile of fewer is their least
_LEAST_OF_FILE = 24  # times that a file has to be needed, to stand on its own
_MOST_FILES = 8  # of a stage; all others are one


class _Part(msgspec.Struct, frozen=True):
    """Times that a stage was needed: when, what it cost (ns), in which file (an index, -1: no one's)."""

    at_ns: Times
    cost_ns: Costs
    file: Times


def stages_of(analysis: RankAnalysis) -> list[StageCost]:
    """Make the costs of all stages of the samples that the loop's loader made, costliest first."""
    if analysis.source is None:
        return []
    files: dict[str, int] = {}
    parts: dict[tuple[str, str], list[_Part]] = defaultdict(list)
    samples = 0
    for process in analysis.rank.processes:
        windows = sorted(
            (delivery.taken_ns, delivery.prepared_ns)
            for delivery in analysis.produced[process.pid]
            if delivery.loader == analysis.source.number
            and delivery.taken_ns is not None
            and delivery.prepared_ns is not None
        )
        if windows:
            samples += _add_process(analysis, process, np.array(windows, dtype=np.int64), files, parts)
    if not samples:
        return []
    names = list(files)
    found = [
        cost for (stage, clock), own in parts.items() for cost in _by_file(stage, clock, own, names, samples)
    ]
    return sorted(found, key=lambda cost: -cost.per_sample * cost.mean_ms)


def _add_process(
    analysis: RankAnalysis,
    process: Process,
    windows: Times,
    files: dict[str, int],
    parts: dict[tuple[str, str], list[_Part]],
) -> int:
    """Add the stages of what `process` made in `windows`; return how many samples it made."""
    spans = process.spans
    starts, ends = windows.T
    row = np.searchsorted(starts, spans["start_ns"], side="right") - 1
    spans = spans[(row >= 0) & (spans["start_ns"] < ends[row])]
    items = spans[outermost(spans, spans["kind"] == KIND_ITEM)]
    kinds = (spans["kind"] == KIND_READ_PATH) | (spans["kind"] == KIND_MAPPED)
    reading = spans[outermost(spans, kinds)]
    collating = spans[outermost(spans, spans["kind"] == KIND_COLLATE)]
    if not len(items):
        return 0
    calls = analysis.session.calls_of(process)
    posix = Coverage(calls.start_ns, calls.end_ns)
    item = holder(items, reading["start_ns"], reading["tid"])
    in_calls = _within(posix, reading)
    reads = in_calls + blocked_fraction(reading, in_calls) * (reading["duration_ns"] - in_calls)
    numbers = {
        number: files.setdefault(analysis.session.paths.shown(path), len(files))
        for number, path in process.span_files.items()
    }
    file = np.array([numbers.get(number, -1) for number in reading["file"].tolist()], dtype=np.int64)
    timed = bool((items["cpu_ns"] >= 0).all() and (reading["cpu_ns"] >= 0).all())
    clock = "cpu" if timed else "wall"
    decoding = _on_cpu_outside(reading, in_calls) if timed else reading["duration_ns"] - reads
    held = item >= 0
    inside = np.bincount(item[held], reading["cpu_ns" if timed else "duration_ns"][held], len(items))
    own = (
        np.maximum(items["cpu_ns"] - inside, 0)
        if timed
        else items["duration_ns"]
        - inside
        - _within(posix, items)
        + np.bincount(item[held], in_calls[held], len(items))
    )
    none = np.full(len(items), -1, dtype=np.int64)
    parts["transform", clock].append(_Part(items["start_ns"], np.maximum(own, 0), none))
    at_ns = reading["start_ns"]
    parts["decode", clock].append(_each_sample(at_ns, decoding, file, item))
    parts["read", "wall"].append(_each_sample(at_ns, reads, file, item))
    if len(collating):
        timed = bool((collating["cpu_ns"] >= 0).all())
        cost = collating["cpu_ns" if timed else "duration_ns"].astype(np.float64)
        none = np.full(len(collating), -1, dtype=np.int64)
        parts["collate", "cpu" if timed else "wall"].append(_Part(collating["start_ns"], cost, none))
    return len(items)


def _within(posix: Coverage, spans: Spans) -> Times:
    return posix.within(spans["start_ns"], spans["start_ns"] + spans["duration_ns"])


def _on_cpu_outside(spans: Spans, in_calls: Times) -> Costs:
    """Compute each span's CPU time outside of POSIX calls: where it was off its CPU, the calls were."""
    off_cpu = spans["duration_ns"] - spans["cpu_ns"]
    on_cpu_in_calls = np.maximum(in_calls - np.maximum(off_cpu, 0), 0)
    return np.asarray(np.maximum(spans["cpu_ns"] - on_cpu_in_calls, 0), dtype=np.float64)


def _each_sample(at_ns: Times, cost_ns: Costs, file: Times, item: Times) -> _Part:
    """Sum up what one sample cost in one file; outside of samples each time stands alone."""
    alone = np.arange(len(item)) + (item.max(initial=0) + 1)
    key = np.where(item >= 0, item, alone) * (file.max(initial=0) + 2) + file + 1
    _, first, of = np.unique(key, return_index=True, return_inverse=True)
    return _Part(at_ns[first], np.bincount(of, cost_ns, len(first)), file[first])


def _by_file(
    stage: str, clock: str, parts: Sequence[_Part], names: list[str], samples: int
) -> list[StageCost]:
    at_ns = np.concatenate([part.at_ns for part in parts])
    order = np.argsort(at_ns, kind="stable")
    cost_ns = np.concatenate([part.cost_ns for part in parts])[order]
    file = np.concatenate([part.file for part in parts])[order]
    counts = np.bincount(file + 1, minlength=len(names) + 1)[1:]
    totals = np.bincount(file + 1, cost_ns, len(names) + 1)[1:]
    named = [
        index for index in np.argsort(-totals, kind="stable").tolist() if counts[index] >= _LEAST_OF_FILE
    ][:_MOST_FILES]
    groups = [(names[index], cost_ns[file == index]) for index in named]
    others = cost_ns[~np.isin(file, named)]
    if len(others) >= _LEAST_IN_BLOCK:
        groups.append((None, others))  # type: ignore[arg-type]
    return [
        StageCost(
            stage=stage,
            path=path,
            clock=clock,
            count=len(costs),
            per_sample=len(costs) / samples,
            mean_ms=float(costs.mean()) / 1e6,
            quartile_ms=_quartile(costs),
            blocks_ms=[_quartile(block) for block in _blocks(costs)],
        )
        for path, costs in groups
        if costs.any()
    ]


def _quartile(costs_ns: Costs) -> float:
    return float(np.percentile(costs_ns, 25)) / 1e6


def _blocks(costs: Costs) -> list[Costs]:
    return np.array_split(costs, max(1, min(_MOST_BLOCKS, len(costs) // _LEAST_IN_BLOCK)))
