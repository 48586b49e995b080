"""What each stage of making a sample costs, by file: the least noisy figures that a run gives.

A step's length and a wait depend on everything that runs beside the program. What a thread computed to
decode one file for one sample does so far less: its CPU time, the lower quartile of many.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from posixpath import dirname
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

from iotrace.analysis.host.others import quiet_seconds
from iotrace.analysis.intervals import Coverage, Times, distinct, grouped, holding
from iotrace.analysis.loop.deliveries import Deliveries
from iotrace.analysis.rank import RankAnalysis
from iotrace.analysis.resampling import FEWEST
from iotrace.analysis.results import StageCost
from iotrace.analysis.wait.called_files import with_called
from iotrace.analysis.wait.file_costs import FileNames
from iotrace.analysis.wait.page_faults import bounds, holder
from iotrace.analysis.wait.production import READING, blocked_fraction, of_kinds, outermost
from iotrace.session.names import KIND_COLLATE, KIND_ITEM
from iotrace.sources.columns import Columns, held
from iotrace.sources.processes import Process
from iotrace.sources.stolen_time import run_delays

Costs = npt.NDArray[np.float64]

_MOST_BLOCKS = 40
_LEAST_IN_BLOCK = 4  # a quartile of fewer is their least
_LEAST_OF_FILE = 8  # times that a file has to be needed, to stand on its own; else its directory does
_MOST_FILES = 16  # of a stage; all others are one


class _Part(msgspec.Struct, frozen=True):
    """Times that a stage was needed: when, what it cost (ns), in which file (an index; -1: in none).

    `decoded_bytes` is what the calls returned then; NaN: unknown. Both are of one sample: `samples` is how
    many were made then. `sample` numbers the sample of each in its process; None: each is of another one.
    """

    stage: str
    clock: str
    at_ns: Times
    cost_ns: Costs
    file: Times
    samples: Costs
    decoded_bytes: Costs | None = None
    sample: Times | None = None


def stages_of(analysis: RankAnalysis) -> list[StageCost]:
    """Make the costs of all stages of the samples of the loaders that the steps wait for, costliest first."""
    telemetry, quiet = analysis.telemetry, None
    if telemetry is not None:
        quiet = quiet_seconds(analysis.session, analysis.rank.main, telemetry)
    loaders = _loaders(analysis)
    found = [
        replace(cost, loader=dataset if len(loaders) > 1 else None)
        for number, dataset in loaders.items()
        for cost in _of_loader(analysis, number, quiet)
    ]
    return sorted(found, key=lambda cost: -cost.per_sample * cost.mean_ms)


def _loaders(analysis: RankAnalysis) -> dict[int, str]:
    """Name the loaders that make the batches that the steps wait for: numbers, and their datasets.

    Of several that one dataset feeds, or where none is known, it is the loop's loader alone.
    """
    source, primary = analysis.source, analysis.primary
    if source is None or primary is None:
        return {}
    numbers = distinct(analysis.kept.awaited["loader"]).tolist()
    runs = [source if number == primary.number else analysis.by_number[number] for number in numbers]
    found = {run.number: run.description.named for run in runs}
    is_clear = source.number in found and len({*found.values()}) == len(found)
    return found if is_clear else {source.number: source.description.named}


def _of_loader(analysis: RankAnalysis, number: int, quiet: Coverage | None) -> list[StageCost]:
    files = FileNames()
    parts: dict[tuple[str, str], list[_Part]] = defaultdict(list)
    samples = 0.0
    for process in analysis.rank.processes:
        spans, made = process.spans, _productions(analysis, process, number)
        inside = _held_by(made, spans["start_ns"]) >= 0
        items, reading, collating = (
            spans[outermost(spans, inside & of_kinds(spans, *kinds))]
            for kinds in ((KIND_ITEM,), READING, (KIND_COLLATE,))
        )
        if not len(items):
            continue
        of_item = samples_of(made, items)
        samples += float(of_item.sum())
        calls = analysis.session.calls_of(process)
        process = with_called(process, calls, analysis.session.paths)
        posix = Coverage(calls.start_ns, calls.end_ns)
        shown = {file: analysis.session.paths.shown(path) for file, path in process.span_files.items()}
        of_samples = _of_samples(process, reading, items, of_item, posix, files, shown)
        for part in [*of_samples, *_of_batches(collating)]:
            parts[part.stage, part.clock].append(part)
    return [cost for key in [*parts] for cost in _by_file(parts.pop(key), files.paths, samples, quiet)]


def _productions(analysis: RankAnalysis, process: Process, number: int) -> Deliveries:
    """Return the batches of a loader that `process` made, in the order of their making."""
    made = analysis.produced_by(process.pid)
    own: Deliveries = made[made["loader"] == number]
    in_order: npt.NDArray[np.int64] = np.lexsort((own["prepared_ns"], own["taken_ns"]))
    return own[in_order]


def _held_by(made: Deliveries, at_ns: Times) -> Times:
    """Return which of the batches `made` was being made at each time; -1: none."""
    return holding(made["taken_ns"], made["prepared_ns"], at_ns)


def samples_of(made: Deliveries, items: Columns) -> Costs:
    """Count the samples of each item: one, or all of a batch that is made as one, by ``__getitems__``."""
    batch = _held_by(made, items["start_ns"])
    is_whole = np.bincount(batch, minlength=len(made))[batch] == 1
    return held(np.where(is_whole, np.maximum(made["samples"][batch], 1), 1).astype(np.float64))


def _of_samples(
    process: Process,
    reading: Columns,
    items: Columns,
    samples: Costs,
    posix: Coverage,
    files: FileNames,
    shown: dict[int, str],
) -> Iterator[_Part]:
    """Yield what a sample of each of `items` took to read and decode each file, and the rest of it."""
    item = held(holder(items, reading["start_ns"], reading["tid"]))
    file, in_calls = files.of(reading["file"], shown), held(posix.within(*bounds(reading)))
    first, of, sample, made = _by_sample(item, file, samples)
    at_ns, file = reading["start_ns"][first], file[first]

    def summed(values: npt.NDArray[Any]) -> Costs:
        return np.bincount(of, values, len(first)).astype(np.float64, copy=False)

    blocked = blocked_fraction(reading, in_calls, run_delays(process, reading), process.called)
    read_ns = in_calls + blocked * (reading["duration_ns"] - in_calls)
    yield _Part("read", "wall", at_ns, summed(read_ns) / made, file, made, sample=sample)
    in_item = item >= 0
    if (items["cpu_ns"] >= 0).all() and (reading["cpu_ns"] >= 0).all():
        clock, decode_ns = "cpu", _on_cpu_outside(reading, in_calls)
        rest_ns = items["cpu_ns"] - np.bincount(item[in_item], reading["cpu_ns"][in_item], len(items))
    else:
        clock, decode_ns = "wall", reading["duration_ns"] - read_ns
        outside = reading["duration_ns"] - in_calls
        rest_ns = items["duration_ns"] - posix.within(*bounds(items))
        rest_ns = rest_ns - np.bincount(item[in_item], outside[in_item], len(items))
    del blocked, read_ns, in_item
    # A call that opens a file returns nothing that has a size, beside those that read it.
    known, sizes = summed(reading["bytes"] >= 0) > 0, summed(np.maximum(reading["bytes"], 0))
    decoded_bytes = held(np.where(known, sizes / made, np.nan))
    del known, sizes
    yield _Part("decode", clock, at_ns, summed(decode_ns) / made, file, made, decoded_bytes, sample)
    yield _alone("transform", clock, items, np.maximum(rest_ns, 0.0), samples)


def _by_sample(item: Times, file: Times, samples: Costs) -> tuple[Times, Times, Times, Costs]:
    """Group reads by the sample, of `samples` in each item, and the file: what one sample cost in one file.

    Returns the first read of each group, the group of each read, and of each group its sample and how many
    samples it is of. Outside of samples each read stands alone.
    """
    alone = np.arange(len(item)) + (item.max(initial=0) + 1)
    _, first, of = grouped(np.where(item >= 0, item, alone) * (file.max(initial=0) + 2) + file + 1)
    made = held(np.append(samples, 1.0)[item[first]])  # -1, outside of samples: the last
    # Of a batch that is made as one nobody knows which sample a file is of.
    sample = np.where((item[first] >= 0) & (made == 1), item[first], alone[first])
    return first, of, held(sample), made


def _of_batches(collating: Columns) -> Iterator[_Part]:
    if len(collating):
        timed = bool((collating["cpu_ns"] >= 0).all())
        cost_ns = collating["cpu_ns" if timed else "duration_ns"].astype(np.float64)
        one = np.broadcast_to(1.0, len(collating))
        yield _alone("collate", "cpu" if timed else "wall", collating, cost_ns, one)


def _on_cpu_outside(spans: Columns, in_calls: Times) -> Costs:
    """Compute each span's CPU time outside of POSIX calls: where it was off its CPU, the calls were."""
    off_cpu = spans["duration_ns"] - spans["cpu_ns"]
    on_cpu_in_calls = np.maximum(in_calls - np.maximum(off_cpu, 0), 0)
    return np.asarray(np.maximum(spans["cpu_ns"] - on_cpu_in_calls, 0), dtype=np.float64)


def _alone(stage: str, clock: str, spans: Columns, cost_ns: Costs, samples: Costs) -> _Part:
    no_file = np.broadcast_to(-1, len(spans))
    return _Part(stage, clock, spans["start_ns"], cost_ns / samples, no_file, samples)


def _by_file(
    parts: list[_Part], names: list[str], samples: float, quiet: Coverage | None
) -> Iterator[StageCost]:
    """Sum up one stage: the costliest files, or directories, on their own, all others as one.

    `parts` is emptied: columns of all samples are large.
    """
    stage, clock = parts[0].stage, parts[0].clock
    at_ns = _joined([part.at_ns for part in parts])
    in_order = not (at_ns[1:] < at_ns[:-1]).any()
    order = slice(None) if in_order else np.argsort(at_ns, kind="stable")
    at_ns = at_ns[order]
    cost_ns = _joined([part.cost_ns for part in parts])[order]
    file = _joined([part.file for part in parts])[order]
    made = _joined([part.samples for part in parts])[order]
    sizes = [part.decoded_bytes for part in parts if part.decoded_bytes is not None]
    decoded_bytes = _joined(sizes)[order] if len(sizes) == len(parts) else None
    sample = _samples_apart(parts)
    sample = None if sample is None else sample[order]
    del sizes
    parts.clear()
    seen, first, _ = grouped(file)
    if len(file) < _LEAST_OF_FILE * len(seen):
        names = [f"{dirname(name)}/" for name in names]
    unit_of: dict[str | None, int] = {}  # files of one name are one
    units = np.empty(len(names) + 1, dtype=np.int64)
    for index in seen[np.argsort(first)].tolist():
        units[index] = unit_of.setdefault(names[index] if index >= 0 else None, len(unit_of))
    unit = units[file]
    del file
    counts, costs = np.bincount(unit), np.bincount(unit, cost_ns)
    own = [name for name, number in unit_of.items() if name is not None and counts[number] >= _LEAST_OF_FILE]
    own = sorted(own, key=lambda name: -float(costs[unit_of[name]]))[:_MOST_FILES]
    is_own = np.isin(unit, [unit_of[name] for name in own])
    # What a sample needs of all other files, or of a directory, is one cost.
    if sample is not None and (sample[1:] <= sample[:-1]).any():
        unit = np.where(is_own, unit, len(unit_of))
        _, first, of = grouped(sample * (len(unit_of) + 1) + unit)
        if len(first) < len(unit):
            rows = np.argsort(first)  # in the order of time, as they were
            place = np.empty_like(rows)
            place[rows] = np.arange(len(rows))
            first, of = first[rows], place[of]
            cost_ns = np.bincount(of, cost_ns, len(first))
            decoded_bytes = None if decoded_bytes is None else np.bincount(of, decoded_bytes, len(first))
            at_ns, made, unit, is_own = at_ns[first], made[first], unit[first], is_own[first]
    others = np.flatnonzero(~is_own)
    is_quiet = np.zeros(len(at_ns)) if quiet is None else quiet.within(at_ns, at_ns + 1)
    for path, rows in [*((name, np.flatnonzero(unit == unit_of[name])) for name in own), (None, others)]:
        still = rows[is_quiet[rows] != 0]
        costs_ns = cost_ns[still if len(still) >= _LEAST_OF_FILE else rows]
        if not costs_ns.any():
            continue
        mean_bytes, error_bytes = (None, None) if decoded_bytes is None else _mean_of(decoded_bytes[rows])
        yield StageCost(
            stage=stage,
            path=path,
            clock=clock,
            quiet=None if quiet is None else len(still) >= _LEAST_OF_FILE,
            count=len(costs_ns),
            per_sample=float(made[rows].sum()) / samples,
            mean_ms=float(costs_ns.mean()) / 1e6,
            quartile_ms=float(np.percentile(costs_ns, 25)) / 1e6,
            blocks_ms=_quartiles_ms(costs_ns),
            decoded_bytes=mean_bytes,
            decoded_bytes_error=error_bytes,
        )


def _samples_apart(parts: Sequence[_Part]) -> Times | None:
    """Number the samples of all parts, each part's own; None where each cost is of another sample."""
    found, behind = [], 0
    for part in parts:
        if part.sample is None:
            return None
        found.append(part.sample + behind)
        behind += int(part.sample.max(initial=-1)) + 1
    return _joined(found)


def _joined(columns: list[npt.NDArray[Any]]) -> npt.NDArray[Any]:
    """Put columns one behind the other; one alone is not copied."""
    return columns[0] if len(columns) == 1 else np.concatenate(columns)


def _mean_of(sizes: Costs) -> tuple[float, float] | tuple[None, None]:
    """Return the mean and its standard error; None where one is unknown, or there are too few."""
    if len(sizes) < _LEAST_OF_FILE or np.isnan(sizes).any():
        return None, None
    return float(sizes.mean()), float(sizes.std(ddof=1)) / math.sqrt(len(sizes))


def _quartiles_ms(costs_ns: Costs) -> list[float]:
    """Cut costs into blocks, of several each where there are enough, and return the quartile of each.

    Some first blocks hold one cost more than the others: blocks of one length are computed at once.
    """
    count = min(_MOST_BLOCKS, max(len(costs_ns) // _LEAST_IN_BLOCK, FEWEST), len(costs_ns))
    length, longer = divmod(len(costs_ns), count)
    parts = costs_ns[: longer * (length + 1)], costs_ns[longer * (length + 1) :]
    blocks = [
        part.reshape(rows, -1) for part, rows in zip(parts, (longer, count - longer), strict=True) if rows
    ]
    return [ns / 1e6 for block in blocks for ns in np.percentile(block, 25, axis=1).tolist()]
