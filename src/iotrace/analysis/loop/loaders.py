"""The figures of each loader: its batches' waits, delays, production and queue, and what they consist of."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from iotrace.analysis.intervals import holding
from iotrace.analysis.loop.deliveries import Deliveries, Delivery, LoaderRun
from iotrace.analysis.results import LoaderResult
from iotrace.session import names
from iotrace.sources.paths import Paths
from iotrace.sources.processes import Process
from iotrace.sources.records import IteratorStart, StepCall, TrainerRun

if TYPE_CHECKING:  # a report of bare traces has no ranks
    from iotrace.analysis.rank import RankAnalysis

_SETTINGS = (
    *("workers", "batch_size", "prefetch_factor", "persistent_workers"),
    *("pin_memory", "in_order", "start_method"),
)


def loader_result(analysis: RankAnalysis, loader: LoaderRun) -> LoaderResult:
    """Compute all figures of a loader, means per batch.

    Those of the primary one are of the loader that it wraps, where it wraps one.
    """
    primary, main = loader is analysis.primary, analysis.rank.main
    source = analysis.source if primary and analysis.source is not None else loader
    trained_ns = [main.clock.to_session_ns(run.end_ns) for run in main.of_type(TrainerRun)]
    deliveries = loader.deliveries
    # The first batch of the run waits for the workers' start: a figure of its own, in no mean.
    later = deliveries[1:]
    delays = delays_ms(source.deliveries[1:])
    # Of a library's own threads and processes it is not known when they made which batch.
    about = source.description
    known = not about.library
    padded = padding_of(source.deliveries, analysis.rank.processes, main.pid)
    ready = ready_batches(source)
    sizes = source.deliveries["size_bytes"][source.deliveries.known("size_bytes")]
    return LoaderResult(
        id=loader.number,
        kind=_kind(analysis, loader),
        primary=primary,
        dataset=loader.description.dataset,
        item=item_of(about, analysis.session.paths),
        collate=collate_of(about, analysis.session.paths),
        wrapped=loader.description.wrapped,
        within=analysis.within.get(loader.number),
        library=loader.description.library or None,
        pool=loader.description.pool or None,
        **{setting: getattr(about, setting) for setting in _SETTINGS},
        batches=len(deliveries),
        phases=loader.phases,
        raw_ms=int(later.wait_ns.sum()) / len(later) / 1e6 if len(later) else None,
        delay_ms=sum(delays.tolist()) / len(delays) if len(delays) else None,
        production_ms=production_ms(source.deliveries) if known else None,
        made_fraction=float(source.deliveries.made.mean()) if known and len(source.deliveries) else None,
        queue_depth_mean=ready.all,
        ready_in_turn_mean=ready.in_turn,
        tensors=tensors_of(source.deliveries),
        batch_bytes_mean=float(sizes.mean()) if len(sizes) else None,
        padded_fraction=padded[0],
        padded_squares_fraction=padded[1],
        epochs=loader.epochs,
        epochs_ended=loader.epochs_ended,
        after_training=bool(trained_ns and deliveries and deliveries[0].wait_start_ns >= max(trained_ns)),
        first_batch_ms=deliveries[0].wait_ns / 1e6 if len(deliveries) else None,
        failures=loader.failures,
    )


def _kind(analysis: RankAnalysis, loader: LoaderRun) -> str:
    """Say what a loader's batches are for: those of a loop that calls what trains are for training."""
    trains = any(each.kind == "trains" for each in analysis.rank.main.of_type(StepCall))
    return "training" if loader.kind == "other" and loader is analysis.primary and trains else loader.kind


def item_of(about: IteratorStart, paths: Paths) -> str | None:
    """Name what makes an item of a loader's dataset, with its line where that is the program's."""
    return _with_line(about.item, about.item_site, paths)


def collate_of(about: IteratorStart, paths: Paths) -> str | None:
    """Name the program's function that puts a loader's samples together, with its line."""
    return _with_line(about.collate, about.collate_site, paths)


def _with_line(function: str | None, site: str | None, paths: Paths) -> str | None:
    if function is None or site is None:
        return function
    file, _, line = site.rpartition(":")
    return f"{function} ({paths.shown(file)}:{line})"


class Ready(NamedTuple):
    """How many batches lay ready when the consumer asked, on average; None: unknown.

    `in_turn`: so many it could take one after the other. The one whose turn it is may still be in the making.
    """

    all: float | None = None
    in_turn: float | None = None


def ready_batches(loader: LoaderRun) -> Ready:
    """Count the batches of workers that lay ready when the loop came for one, on average but the first."""
    about = loader.description
    known = about.workers and not about.library
    return queue_depth(loader.deliveries[1:], about.limit) if known else Ready()


def queue_depth(deliveries: Deliveries, limit: int = 0) -> Ready:
    """Count the batches that lay ready when the consumer asked, on average.

    One that another process made is on its way until its bytes have arrived, where that was seen. A queue
    holds no more than its `limit`: what is made beyond it waits for room.
    """
    own = deliveries[deliveries.known("prepared_ns")]
    ready = np.where(own.known("arrived_ns"), own["arrived_ns"], own["prepared_ns"])
    asked = deliveries["wait_start_ns"]
    if not len(asked) or len(ready) < len(asked):
        return Ready()
    turn = np.arange(len(asked))
    every = np.searchsorted(np.sort(ready), asked, side="right") - turn
    # What is asked for before a batch is ready finds no batch behind that one, either.
    blocked_until = np.maximum.accumulate(np.searchsorted(asked, ready))
    in_turn = np.maximum(0, np.searchsorted(blocked_until, turn, side="right") - turn)
    if limit:
        every, in_turn = np.minimum(every, limit), np.minimum(in_turn, limit)
    return Ready(float(every.mean()), float(in_turn.mean()))


def delays_ms(deliveries: Deliveries) -> npt.NDArray[np.float64]:
    """Compute how long batches lay ready, of those that a worker made."""
    own = deliveries[deliveries.known("worker", "prepared_ns")]
    return np.asarray((own["delivered_ns"] - own["prepared_ns"]) / 1e6)


def delay_ms(delivery: Delivery) -> float | None:
    """Compute how long the batch lay ready; None where the consumer made it itself."""
    if delivery.worker is None or delivery.prepared_ns is None:
        return None
    return (delivery.delivered_ns - delivery.prepared_ns) / 1e6


def production_ms(deliveries: Deliveries) -> float | None:
    """Compute how long a batch took to make, on average over those of which that is known."""
    made = deliveries[deliveries.made]
    return int((made["prepared_ns"] - made["taken_ns"]).sum()) / len(made) / 1e6 if len(made) else None


def tensors_of(deliveries: Deliveries) -> float | None:
    """Return how many tensors a batch of a worker has, on average; None: most have few, or it is unknown."""
    known = deliveries.known("tensors")
    if not len(deliveries) or known.mean() < 0.5:
        return None
    return float(deliveries["tensors"][known].mean())


def padding_of(
    deliveries: Deliveries, processes: list[Process], main_pid: int
) -> tuple[float | None, float | None]:
    """Return what of the batches is padding, and the same of the squares of lengths; None: not known.

    What is computed for each position grows with the first, what is for each pair of them with the second.
    """
    makers, sums = deliveries.maker(main_pid), np.zeros(4)
    for process in processes:
        mine = np.flatnonzero(deliveries.made & (makers == process.pid))
        padded = process.rows(names.PADDED_ROW)
        if not len(mine) or not len(padded):
            continue
        mine = mine[np.argsort(deliveries["taken_ns"][mine], kind="stable")]
        at_ns = process.clock.times_to_session_ns(padded["mono_ns"])
        inside = holding(deliveries["taken_ns"][mine], deliveries["prepared_ns"][mine], at_ns) >= 0
        own = {
            field: padded[field][inside].astype(np.float64)
            for field in ("samples", "width", "length", "squares")
        }
        whole = own["samples"] * own["width"]
        sums += (whole.sum(), own["length"].sum(), (whole * own["width"]).sum(), own["squares"].sum())
    if not sums[0] or not sums[2]:
        return None, None
    return 1 - float(sums[1] / sums[0]), 1 - float(sums[3] / sums[2])
