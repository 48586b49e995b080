"""What the sidecar sampled on the rank's host, as short series: CPU, memory, rates, devices.

The loop's steps as columns; where there are many, bins that keep the longest step of each.

Some steps around the longest wait, batch by batch: made, ready, awaited, computed on.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

from iotrace.analysis.host.others import shares_by_second
from iotrace.analysis.host.system import devices_of, total_memory
from iotrace.analysis.loop.cuts import first_at
from iotrace.analysis.loop.deliveries import Deliveries
from iotrace.analysis.loop.step_table import StepTable
from iotrace.analysis.rank import RankAnalysis
from iotrace.analysis.results.top import BatchWindow, SampledSeries, StepColumns
from iotrace.analysis.wait.production import PARTS
from iotrace.analysis.wait.waits import CAUSES, Explained
from iotrace.sources.clocks.session_clock import Times
from iotrace.sources.telemetry import Floats, Host, SampledDevice, Series, Telemetry

_BINS = 180
_FEWEST = 3  # samples, for a line
_MOST_DEVICES = 4
_RATES = (  # the last: a peak below it is not worth a line
    ("disk_read_bytes", "disk read", "B/s", 1.0, 1e5),
    ("net_received_bytes", "network received", "B/s", 1.0, 1e5),
    ("io_pressure_us", "I/O pressure", "%", 1e-4, 1.0),
    ("memory_pressure_us", "memory pressure", "%", 1e-4, 1.0),
)
_DEVICE = (("memory_bytes", "memory", "B"), ("power_w", "power", "W"))


def sampled_series(analysis: RankAnalysis) -> list[SampledSeries]:
    """Make the series of the rank's host, processes and devices; none without telemetry.

    Rates that were next to 0 throughout are left out.
    """
    telemetry = analysis.telemetry
    if telemetry is None:
        return []
    start_ns = telemetry.first_ns
    found = [*_cpu(analysis, telemetry), *_memory(analysis, telemetry), *_rates(telemetry.host)]
    for device in devices_of(telemetry, analysis.rank)[:_MOST_DEVICES]:
        found += _device(device)
    return [
        series_of(name, unit, series, start_ns, most)
        for name, unit, series, most in found
        if len(series.value) >= _FEWEST
    ]


_Named = tuple[str, str, Series, float | None]


def series_of(name: str, unit: str, series: Series, start_ns: int, most: float | None) -> SampledSeries:
    """Make means of up to `_BINS` bins of samples; the peak is that of all samples."""
    size = -(-len(series.value) // _BINS)
    starts = np.arange(0, len(series.value), size)
    sizes = np.diff(np.append(starts, len(series.value)))
    means = np.add.reduceat(series.value, starts) / sizes
    return SampledSeries(
        name=name,
        unit=unit,
        time_s=[(int(series.time_ns[start]) - start_ns) / 1e9 for start in starts],
        value=[float(value) for value in means],
        peak=float(series.value.max()),
        most=most,
    )


def _cpu(analysis: RankAnalysis, telemetry: Telemetry) -> Iterator[_Named]:
    """Percent of the CPUs that the job may use: the job's own, others', what the host was denied."""
    host = telemetry.host
    shares = shares_by_second(analysis.session, analysis.rank.main, telemetry)
    if shares is None:
        return
    others, stolen = shares
    busy = host.busy.mean(axis=1)
    if np.isnan(others).all():
        yield _known("CPU, all programs", host.time_ns, busy)
    else:
        # An account in ticks of 10 ms may put one into the wrong second.
        own = np.clip(busy - others - np.nan_to_num(stolen), 0.0, 1.0)
        yield _known("CPU, this job", host.time_ns, own)
        yield _known("CPU, other programs", host.time_ns, np.clip(others, 0.0, 1.0))
    if np.nan_to_num(stolen).any():
        yield _known("CPU, other machines (stolen)", host.time_ns, stolen)


def _known(name: str, time_ns: Times, share: Floats) -> _Named:
    known = ~np.isnan(share)
    return name, "%", Series(time_ns[known], 100 * share[known]), 100.0


def _memory(analysis: RankAnalysis, telemetry: Telemetry) -> Iterator[_Named]:
    sampled = [telemetry.process_of(process) for process in analysis.rank.processes]
    memory = total_memory([item for item in sampled if item is not None and len(item.samples)])
    if memory is not None:
        yield "memory of this rank", "B", memory, None


def _rates(host: Host) -> Iterator[_Named]:
    for figure, name, unit, factor, least in _RATES:
        counter = host.figures.get(figure)
        if counter is None or len(counter.value) < _FEWEST:
            continue
        elapsed_ns = np.diff(counter.time_ns)
        apart = elapsed_ns > 0
        rates = np.diff(counter.value)[apart] / (elapsed_ns[apart] / 1e9) * factor
        if len(rates) and rates.max() >= least:
            yield name, unit, Series(counter.time_ns[1:][apart], rates), 100.0 if unit == "%" else None


def _device(device: SampledDevice) -> Iterator[_Named]:
    about = device.about
    name = f"GPU {about.index}" + ("" if about.instance is None else f".{about.instance}")
    util = device.series.get("util_samples", device.series.get("util_pct"))
    if util is not None:
        yield f"{name} busy", "%", util, 100.0
    for figure, shown, unit in _DEVICE:
        if figure in device.series:
            most = about.memory_total_bytes if figure == "memory_bytes" else None
            yield f"{name} {shown}", unit, device.series[figure], None if most is None else float(most)


MOST_STEPS = 1000  # of more, each entry is a bin
_STEP_BINS = 500


def step_columns(analysis: RankAnalysis, wait_known: bool) -> StepColumns | None:
    """Make the columns of all closed steps, measured or not; None where there are none."""
    steps = analysis.loop.steps
    if not len(steps):
        return None
    causes = np.zeros((len(steps), len(CAUSES)), np.int64)
    if wait_known:
        np.add.at(causes, steps.awaited_by, analysis.waits_for(steps.awaited).causes)
    found = binned(
        steps.duration_ns / 1e6,
        steps.wait_ns / 1e6 if wait_known else None,
        {cause: own / 1e6 for cause, own in zip(CAUSES, causes.T, strict=True) if own.any()},
        np.isin(steps["start_ns"], analysis.kept["start_ns"]),
    )
    numbers = step_numbers(steps)
    return replace(found, numbers=[numbers[position] for position in found.longest])


def step_numbers(steps: StepTable) -> list[int]:
    """What the timeline calls the steps."""
    return [
        position if step.delivery is None else step.delivery.number for position, step in enumerate(steps)
    ]


def binned(
    step_ms: Floats,
    wait_ms: Floats | None,
    causes_ms: dict[str, Floats],
    measured: npt.NDArray[np.bool_],
) -> StepColumns:
    """Keep up to `MOST_STEPS` steps as they are; of more make bins of one size, the last maybe smaller."""
    count = len(step_ms)
    size = 1 if count <= MOST_STEPS else -(-count // _STEP_BINS)
    starts = np.arange(0, count, size)
    sizes = np.diff(np.append(starts, count))

    def means(values: Floats) -> list[float]:
        sums: Floats = np.add.reduceat(values, starts)
        return [float(value) for value in sums / sizes]

    longest = [int(start + step_ms[start : start + size].argmax()) for start in starts]
    whole = np.logical_and.reduceat(measured, starts)
    return StepColumns(
        steps=count,
        bin=size,
        first=[int(start) for start in starts],
        measured=[bool(value) for value in whole],
        step_ms=means(step_ms),
        wait_ms=None if wait_ms is None else means(wait_ms),
        causes_ms={cause: means(values) for cause, values in causes_ms.items()},
        longest=longest,
        longest_ms=[float(step_ms[number]) for number in longest],
        longest_wait_ms=None if wait_ms is None else [float(wait_ms[number]) for number in longest],
    )


STEPS = 20


def batch_window(analysis: RankAnalysis) -> BatchWindow | None:
    """Choose the steps around the measured step that waits longest; None where none is measured."""
    steps, kept = analysis.loop.steps, analysis.kept
    if not len(kept) or analysis.source is None:
        return None
    most = int(np.argmax(kept.wait_ns))
    worst_ns, worst_end_ns = int(kept["start_ns"][most]), int(kept["end_ns"][most])
    chosen = steps_around(len(steps), int(np.searchsorted(steps["start_ns"], worst_ns)))
    around = steps[chosen.start : chosen.stop]
    start_ns, end_ns = int(around["start_ns"][0]), int(around["end_ns"][-1])
    asks_ns = np.sort(steps.awaited["wait_start_ns"])
    batches = analysis.with_inner(around.awaited)
    own = list(analysis.waits_for(batches[batches["loader"] == analysis.source.number]))
    # Steps around it that are not measured may wait longer: the tables are not about them.
    of_worst = [wait for wait in own if worst_ns < wait.delivery.delivered_ns <= worst_end_ns]
    longest = max(of_worst or own, key=lambda wait: wait.delivery.wait_ns, default=None)

    def ms(time_ns: int | None) -> float | None:
        return None if time_ns is None else (time_ns - start_ns) / 1e6

    def since(time_ns: int) -> float:
        return (time_ns - start_ns) / 1e6

    ready_at, ready = ready_queue(analysis.source.deliveries, start_ns, end_ns)
    return BatchWindow(
        first_step=chosen.start,
        steps=len(chosen),
        length_ms=(end_ns - start_ns) / 1e6,
        step_starts_ms=[since(time_ns) for time_ns in around["start_ns"].tolist()],
        batch=[wait.delivery.index for wait in own],
        epoch=[wait.delivery.epoch for wait in own],
        worker=[wait.delivery.worker for wait in own],
        taken_ms=[ms(wait.delivery.taken_ns) for wait in own],
        prepared_ms=[ms(wait.delivery.prepared_ns) for wait in own],
        asked_ms=[since(wait.delivery.wait_start_ns) for wait in own],
        delivered_ms=[since(wait.delivery.delivered_ns) for wait in own],
        computed_ms=[ms(_next_ask(asks_ns, wait.delivery.delivered_ns, end_ns)) for wait in own],
        cause=[wait.cause for wait in own],
        made_of=[_made_of(wait) for wait in own],
        file=[max(wait.files, key=lambda path: sum(wait.files[path]), default=None) for wait in own],
        worst=None if longest is None else own.index(longest),
        ready_at_ms=[since(time_ns) for time_ns in ready_at],
        ready=ready,
    )


def steps_around(count: int, worst: int) -> range:
    """Choose up to `STEPS` consecutive steps with `worst` in their middle, as far as there are so many."""
    first = max(0, min(worst - STEPS // 2, count - STEPS))
    return range(first, min(first + STEPS, count))


def _next_ask(asks_ns: Times, delivered_ns: int, end_ns: int) -> int | None:
    """When the loop asked for a batch again, if by `end_ns`: till then it computed, or did something else."""
    following = first_at(asks_ns, delivered_ns)
    return following if following is not None and following <= end_ns else None


def _made_of(wait: Explained) -> str | None:
    if wait.made is None:
        return None
    parts, _ = wait.made
    return max(zip(parts, PARTS, strict=True))[1]


def ready_queue(deliveries: Deliveries, start_ns: int, end_ns: int) -> tuple[list[int], list[int]]:
    """Count the batches that are prepared and not yet delivered, from each change within the window on.

    Empty where the preparation of a batch is unknown.
    """
    near = deliveries[deliveries["delivered_ns"] >= start_ns]
    if not near.known("prepared_ns").all():
        return [], []
    at = np.concatenate((np.maximum(near["prepared_ns"], start_ns), near["delivered_ns"]))
    by = np.repeat([1, -1], len(near))
    at, by = at[at < end_ns], by[at < end_ns]
    # A batch is prepared before it is delivered: at one instant it counts first.
    order = np.lexsort((-by, at))
    return [start_ns, *at[order].tolist()], [0, *np.cumsum(by[order]).tolist()]
