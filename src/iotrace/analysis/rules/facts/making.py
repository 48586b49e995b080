"""How a loader's batches are made: who made them, what its first samples cost, what stopped its makers."""

from __future__ import annotations

from collections import Counter

import msgspec
import numpy as np
import numpy.typing as npt

from iotrace.analysis.intervals import Times, holding
from iotrace.analysis.loop.deliveries import Deliveries, LoaderRun
from iotrace.analysis.rank import RankAnalysis
from iotrace.analysis.wait.pools import samples_made
from iotrace.analysis.wait.production import PARTS, outermost_of
from iotrace.analysis.wait.waits import CAUSES, Waits
from iotrace.session import names
from iotrace.session.names import KIND_COLLATE, KIND_ITEM
from iotrace.sources.processes import Process

_FULL_NS = 10_000_000  # a collection that looks at many objects: fewer of them make it shorter
_OF_PARTS = [CAUSES.index(part) for part in PARTS]


class Making(msgspec.Struct, frozen=True, kw_only=True):
    """Figures in ms are of wait, means per measured step; None is unknown.

    `sharing`: so many workers, each with as much as the busiest, would have made all batches; `makers` made
    any. `first_item_ms` is the median of the first samples of later passes, of each worker, `item_ms` that of
    all samples; `fill_ms` is the wait for what the first ones took longer. `collecting_ms` is the wait in
    which their makers collected garbage: in `collections` of 10 ms or more, `collection_ms` each.
    `collate_asleep` and `collate_on_cpu` are shares of the collate function's time.
    """

    sharing: float | None = None
    makers: int | None = None
    first_item_ms: float | None = None
    item_ms: float | None = None
    fill_ms: float = 0.0
    collecting_ms: float = 0.0
    collections: int = 0
    collection_ms: float | None = None
    collate_asleep: float | None = None
    collate_on_cpu: float | None = None


def making_of(analysis: RankAnalysis, run: LoaderRun, waits: Waits) -> Making:
    """Look at the making of the batches that `waits`, those of a loader in the measured steps, are for."""
    steps = len(analysis.kept)
    makers, sharing = _shared(run)
    asleep, on_cpu = samples_made(analysis, run, KIND_COLLATE)[:2]
    over_ns, first_ms, item_ms = _firsts(analysis, run, waits)
    collecting_ns, lengths = _collecting(analysis, waits.deliveries)
    return Making(
        sharing=sharing,
        makers=makers,
        first_item_ms=first_ms,
        item_ms=item_ms,
        fill_ms=_wait_for(waits, over_ns) / steps / 1e6,
        collecting_ms=_wait_for(waits, collecting_ns) / steps / 1e6,
        collections=len(lengths),
        collection_ms=float(lengths.mean()) / 1e6 if len(lengths) else None,
        collate_asleep=asleep,
        collate_on_cpu=on_cpu,
    )


def _shared(run: LoaderRun) -> tuple[int | None, float | None]:
    """How many workers made batches, and how many as busy as the busiest that is."""
    worker = run.deliveries["worker"][run.deliveries.known("worker")]
    counts = Counter(worker.tolist())
    return (len(counts), len(worker) / max(counts.values())) if counts else (None, None)


def _wait_for(waits: Waits, parts_ns: npt.NDArray[np.float64]) -> float:
    """The wait for a part of each batch's making, as large a share of the wait as of the making; in ns."""
    own = waits.deliveries
    made_ns = np.where(own.made, own["prepared_ns"] - own["taken_ns"], 0)
    waited_ns = waits.causes[:, _OF_PARTS].sum(axis=1)
    share = np.divide(parts_ns, made_ns, out=np.zeros(len(own)), where=made_ns > 0)
    return float((waited_ns * np.clip(share, 0.0, 1.0)).sum())


def _firsts(
    analysis: RankAnalysis, run: LoaderRun, waits: Waits
) -> tuple[npt.NDArray[np.float64], float | None, float | None]:
    """What the first sample of each later pass took longer than the median one, by batch of `waits`, in ns.

    With the medians of these first samples and of all, in ms; None where there is none.
    """
    own, main_pid = waits.deliveries, analysis.rank.main.pid
    makers, first_epoch = own.maker(main_pid), min((epoch for _, epoch in run.passes), default=0)
    over_ns, firsts, usual = np.zeros(len(own)), [], []
    for process in analysis.rank.processes:
        mine = np.flatnonzero(own.made & (makers == process.pid))
        mine = mine[np.argsort(own["taken_ns"][mine], kind="stable")]
        items = outermost_of(process, KIND_ITEM)
        if not len(mine) or not len(items):
            continue
        of = holding(own["taken_ns"][mine], own["prepared_ns"][mine], items["start_ns"])
        lengths, of = items["duration_ns"][of >= 0], mine[of[of >= 0]]
        if not len(of):
            continue
        median_ns = float(np.median(lengths))
        usual.append(median_ns)
        passes = np.stack((own["iterator"][of], own["epoch"][of]), axis=1)
        opens = np.append(True, (passes[1:] != passes[:-1]).any(axis=1)) & (own["epoch"][of] > first_epoch)
        firsts.extend(lengths[opens].tolist())
        over_ns[of[opens]] = np.maximum(lengths[opens] - median_ns, 0)
    first_ms, item_ms = (float(np.median(each)) / 1e6 if each else None for each in (firsts, usual))
    return over_ns, first_ms, item_ms


def _collecting(analysis: RankAnalysis, own: Deliveries) -> tuple[npt.NDArray[np.float64], Times]:
    """How long garbage was collected in the making of each batch; the lengths of these collections, in ns."""
    inside_ns, lengths = np.zeros(len(own)), []
    makers, made = own.maker(analysis.rank.main.pid), own.made
    for process in analysis.rank.processes:
        mine = np.flatnonzero(made & (makers == process.pid))
        starts, ends = _collections(process)
        if not len(mine) or not len(starts):
            continue
        mine = mine[np.argsort(own["taken_ns"][mine], kind="stable")]
        of = holding(own["taken_ns"][mine], own["prepared_ns"][mine], starts)
        starts, ends, of = starts[of >= 0], ends[of >= 0], of[of >= 0]
        np.add.at(inside_ns, mine[of], ends - starts)
        lengths.append(ends - starts)
    return inside_ns, np.concatenate(lengths) if lengths else np.zeros(0, np.int64)


def _collections(process: Process) -> tuple[Times, Times]:
    """When the long collections of a process began and ended."""
    rows = process.rows(names.PAUSE_ROW)
    rows = rows[rows["pause"] == names.PAUSES.index("collection")]
    rows = rows[rows["end_ns"] - rows["start_ns"] >= _FULL_NS]
    starts, ends = (process.clock.times_to_session_ns(rows[field]) for field in ("start_ns", "end_ns"))
    order = np.argsort(starts, kind="stable")
    return starts[order], ends[order]
