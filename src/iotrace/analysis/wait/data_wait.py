"""A rank's data wait: how long, why, for which files, which batches, and whether workers are too few."""

from __future__ import annotations

from collections import defaultdict

from iotrace.analysis.device.compute import exposure_of
from iotrace.analysis.loop.deliveries import LoaderRun, Step
from iotrace.analysis.loop.loaders import delay_ms, production_ms
from iotrace.analysis.rank import RankAnalysis
from iotrace.analysis.results import DataWait, FileCost, WorstBatch
from iotrace.analysis.thresholds import MODERATELY_PERCENT, verdict
from iotrace.analysis.wait.exposed import exposed_wait
from iotrace.analysis.wait.waits import CAUSES, Explained, behind_ready_ns

_WORST_BATCHES = 5
# Of the wait: with less of it for batches that were not made yet, workers are not what is missing.
_UNMADE = 0.25


def data_wait(analysis: RankAnalysis, core_is_free: bool | None) -> DataWait:
    """Sum up the data wait of the measured steps; all None or empty without any."""
    primary, kept = analysis.primary, analysis.kept
    total_ns = sum(step.duration_ns for step in kept)
    if primary is None or not total_ns:
        return DataWait(
            raw_ms=None,
            exposed_ms=None,
            exposed_source=None,
            exposed_steps=None,
            raw_wait_fraction=None,
            stall_fraction=None,
            verdict=None,
            causes_ms={},
            too_few_workers=None,
            behind_ready_ms=None,
            files=[],
            worst_batches=[],
        )
    waits = analysis.measured_waits
    raw_ms = sum(step.wait_ns for step in kept) / len(kept) / 1e6
    fraction = sum(step.wait_ns for step in kept) / total_ns
    exposed = exposed_wait(
        kept, bool(analysis.session.accelerators), exposure_of(analysis.compute, analysis.loop.steps)
    )
    return DataWait(
        raw_ms=raw_ms,
        exposed_ms=exposed.ms,
        exposed_source=exposed.source,
        exposed_steps=exposed.steps,
        raw_wait_fraction=fraction,
        stall_fraction=exposed.fraction,
        verdict=verdict(fraction),
        causes_ms={cause: sum(item.causes[cause] for item in waits) / len(kept) / 1e6 for cause in CAUSES},
        too_few_workers=_too_few_workers(primary, kept, waits, fraction, core_is_free),
        behind_ready_ms=behind_ready_ns(primary.deliveries, waits) / len(kept) / 1e6,
        files=_file_costs(waits, len(kept)),
        worst_batches=_worst(waits),
    )


def _too_few_workers(
    primary: LoaderRun, kept: list[Step], waits: list[Explained], fraction: float, core_is_free: bool | None
) -> bool | None:
    """More production than the workers manage within the compute time, waited for, and a core to spare."""
    if primary.description.wrapped:
        return None  # who makes its batches, and with how many hands, is not known
    if 100 * fraction < MODERATELY_PERCENT:
        return False
    if unmade_fraction(waits) < _UNMADE or core_is_free is False:
        return False
    made_in_ms = production_ms(primary.deliveries)
    if made_in_ms is None or core_is_free is None:
        return None
    compute_ms = sum(step.duration_ns - step.wait_ns for step in kept) / len(kept) / 1e6
    workers = primary.description.workers
    return workers == 0 or made_in_ms / workers > compute_ms


def unmade_fraction(waits: list[Explained]) -> float:
    """The share of the waits for batches not made yet, by workers that were up: more of them shorten it."""
    total_ns = sum(item.delivery.wait_ns for item in waits)
    other_ns = sum(item.causes["startup"] + item.causes["transport"] for item in waits)
    return 1 - other_ns / total_ns if total_ns else 0.0


def _file_costs(waits: list[Explained], steps: int) -> list[FileCost]:
    totals: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
    for item in waits:
        for path, (read, decode) in item.files.items():
            totals[path][0] += read
            totals[path][1] += decode
    costs = [
        FileCost(
            path=path,
            ms=(read + decode) / steps / 1e6,
            read_ms=read / steps / 1e6,
            decode_ms=decode / steps / 1e6,
        )
        for path, (read, decode) in totals.items()
        if read + decode > 0
    ]
    return sorted(costs, key=lambda cost: -cost.ms)


def _worst(waits: list[Explained]) -> list[WorstBatch]:
    worst = sorted(waits, key=lambda item: -item.delivery.wait_ns)[:_WORST_BATCHES]
    return [
        WorstBatch(
            batch=item.delivery.index,
            epoch=item.delivery.epoch,
            wait_ms=item.delivery.wait_ns / 1e6,
            delay_ms=delay_ms(item.delivery),
            worker=item.delivery.worker,
            pid=item.delivery.pid,
            cause=item.cause,
            files=[path for path, _ in sorted(item.files.items(), key=lambda pair: -sum(pair[1]))[:3]],
        )
        for item in worst
    ]
