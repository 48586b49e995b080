"""How a loader's batches are made: who made them, what its first samples cost, what stopped its makers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Set
from functools import partial
from math import prod
from operator import attrgetter
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from iotrace.analysis.intervals import Times, holding
from iotrace.analysis.loop.deliveries import Deliveries, LoaderRun
from iotrace.analysis.rank import RankAnalysis
from iotrace.analysis.results import ChunkedArray, RankReport
from iotrace.analysis.rules.facts.long_samples import LongSamples, items_by_maker, long_samples, wait_for
from iotrace.analysis.wait.arrow_rows import arrow_rows
from iotrace.analysis.wait.cpus import samples_made
from iotrace.analysis.wait.locks import locks_of
from iotrace.analysis.wait.turns import take_turns
from iotrace.analysis.wait.waits import Waits
from iotrace.session import names
from iotrace.session.names import KIND_COLLATE, KIND_READ_PATH
from iotrace.sources.processes import Process
from iotrace.sources.records import Collector

_FEWEST_FIRSTS = 3  # samples: of fewer one may be long by itself
_FEWEST_LOOKS = 2  # at a process's collector
_FEWEST_PASSES, _MOST_IN_FIRST = 2, 0.8  # of what choosing samples takes
_DECODERS = ("PIL.ImageFile.load", "cv2.imread", "cv2.imdecode", "simplejpeg.decode_jpeg")


class LockWait(msgspec.Struct, frozen=True, kw_only=True):
    """A lock that makers, or the loop, waited for: `ms` of wait a step, `each_ms` of an item's `item_ms`.

    `sharing`: so many threads of a process waited for it. `file` is whose lock it is, or where it is taken.
    """

    ms: float
    each_ms: float = 0.0
    item_ms: float = 0.0
    sharing: int = 0
    file: str = ""


class EveryFile(msgspec.Struct, frozen=True, kw_only=True):
    """All files that a rank reads for its samples: the share that another rank reads, too; how often it opens
    one in a pass, and how many for a sample."""

    also_read: float
    opens_per_pass: float
    opens_per_sample: float


class Making(msgspec.Struct, frozen=True, kw_only=True):
    """Figures in ms are of wait, means per measured step; None is unknown.

    `sharing`: so many workers, each with as much as the busiest, would have made all batches; `makers` made
    any. `first_item_ms` is the median of the first samples of later passes, of each worker, `first_least_ms`
    the shortest of three or more, `item_ms` the median of all samples; `fill_ms` is the wait for what the
    first ones took longer. `collecting_ms` is the wait in which their makers collected garbage: in
    `collections`, `collection_ms` each, of which full ones took `full_share` at most. `frozen` is what
    `gc.freeze()` had taken out of them, `objects` what a full one looks at, where that was looked at.
    `collate_asleep` and `collate_on_cpu` are shares of the collate function's time. Of the files that cost
    most, `also_read` is the share that another rank reads, too; `opens_per_sample` and `opens_per_pass`, of a
    file, say how often this one opened them. Of an array in chunks (`array`, its file) these are accesses to
    it, and how often it was read in full. `ranks`: so many there are. `turns`: whether the workers make
    samples one after the other, as behind a lock, and not at the same time. `locks` are those that
    makers waited for, by name. `long`: few samples that take much longer than the others. `draw_ms`: choosing
    samples takes so long before the first batch of each of several passes, and little before the others.
    `frames` of an image are decoded each time that one is opened; `image_bytes` are those of a
    sample's images once they are decoded. With a share of the batches, `with_state`, a worker of
    StatefulDataLoader sends its state, whose making takes `state_ms`.
    Of taking rows from Hugging Face's datasets, `as_lists` is the share that makes Python's objects of them,
    `as_copied` the share that only copies.
    """

    sharing: float | None = None
    makers: int | None = None
    first_item_ms: float | None = None
    first_least_ms: float | None = None
    item_ms: float | None = None
    fill_ms: float = 0.0
    collecting_ms: float = 0.0
    collections: int = 0
    collection_ms: float | None = None
    full_share: float | None = None
    frozen: int | None = None
    objects: int | None = None
    collate_asleep: float | None = None
    collate_on_cpu: float | None = None
    also_read: float | None = None
    opens_per_sample: float | None = None
    opens_per_pass: float | None = None
    array: str = ""
    every_file: EveryFile | None = None
    ranks: int = 1
    turns: bool | None = None
    locks: dict[str, LockWait] = msgspec.field(default_factory=dict)
    long: LongSamples | None = None
    draw_ms: float | None = None
    frames: float | None = None
    image_bytes: float | None = None
    with_state: float = 0.0
    state_ms: float = 0.0
    as_lists: float = 0.0
    as_copied: float = 0.0


def making_of(analysis: RankAnalysis, run: LoaderRun, waits: Waits, report: RankReport) -> Making:
    """Look at the making of the batches that `waits`, those of a loader in the measured steps, are for."""
    steps = len(analysis.kept)
    makers, sharing = _shared(run)
    asleep, on_cpu = samples_made(analysis, run, KIND_COLLATE)[:2]
    over_ns, first_ms, least_ms, item_ms = _firsts(analysis, run, waits)
    collecting_ns, lengths, full_ns = _collecting(analysis, waits.deliveries)
    looks = _looks(analysis, waits.deliveries)
    as_lists, as_copied = arrow_rows(analysis)
    return Making(
        sharing=sharing,
        makers=makers,
        first_item_ms=first_ms,
        first_least_ms=least_ms,
        item_ms=item_ms,
        fill_ms=wait_for(waits, over_ns) / steps / 1e6,
        collecting_ms=wait_for(waits, collecting_ns) / steps / 1e6,
        collections=len(lengths),
        collection_ms=float(lengths.mean()) / 1e6 if len(lengths) else None,
        full_share=full_ns / float(lengths.sum()) if full_ns is not None and len(lengths) else None,
        frozen=min((look.frozen for look in looks if look.frozen is not None), default=None),
        objects=max((look.objects for look in looks if look.objects is not None), default=None),
        collate_asleep=asleep,
        collate_on_cpu=on_cpu,
        turns=take_turns(analysis, run),
        locks=_locks_of(analysis, waits, report),
        long=long_samples(analysis, run, waits),
        draw_ms=_draw_ms(waits),
        frames=_frames(report),
        image_bytes=_image_bytes(analysis, run),
        as_lists=as_lists,
        as_copied=as_copied,
        **_state(run, report),
        **_read_by_others(analysis, run, report),
    )


def _state(run: LoaderRun, report: RankReport) -> dict[str, Any]:
    """How often workers sent their state beside a batch, and what making it takes."""
    own = next((each for each in report.regions if each.name == names.WORKER_STATE), None)
    if own is None or not own.count or not len(run.deliveries):
        return {}
    return {"with_state": own.count / len(run.deliveries), "state_ms": own.ms_total / own.count}


def _frames(report: RankReport) -> float | None:
    """Count how often images are decoded for each that is opened; None: not known, or none is."""
    calls = Counter[str]()
    for each in report.sample_calls:
        calls[each.name] += each.count
    opened = calls["PIL.Image.open"]
    return calls["PIL.ImageFile.load"] / opened if opened else None


def _image_bytes(analysis: RankAnalysis, run: LoaderRun) -> float | None:
    """Return how many bytes a sample's images have once they are decoded; None: a call does not tell."""
    samples = run.deliveries["samples"][run.deliveries.known("samples")]
    whole = 0
    for process in analysis.rank.processes:
        own = [number for number, text in process.texts.items() if text in _DECODERS]
        spans = process.spans[process.spans["kind"] == KIND_READ_PATH]
        sizes = spans["bytes"][np.isin(spans["name"], own)]
        if (sizes < 0).any():
            return None
        whole += int(sizes.sum())
    return whole / int(samples.sum()) if whole and len(samples) and samples.sum() else None


def _locks_of(analysis: RankAnalysis, waits: Waits, report: RankReport) -> dict[str, LockWait]:
    """Find the locks that the makers of the loop's items, in all stages, and the loop itself waited for."""
    found, own, steps = {}, waits.deliveries, len(analysis.kept)
    made_ns, main = np.where(own.made, own["prepared_ns"] - own["taken_ns"], 0), analysis.rank.main.pid
    for lock, locked in locks_of(analysis).items():
        # Of an item that the loop itself makes, the ask is the making.
        asked_ns = np.where(own.known("inline_tid"), 0, locked.of_asks(own, main))
        making_ns = locked.of(own, main)
        stages = [stage for stage in report.pipeline if stage.locks_ms.get(lock)]
        if not stages and not asked_ns.any() and not making_ns.any():
            continue
        ms = wait_for(waits, making_ns.astype(np.float64)) / steps / 1e6
        wait_ms = int(own.wait_ns.sum()) / steps / 1e6
        of: dict[str, Any] = {"each_ms": 0.0, "item_ms": 0.0}
        if stages:
            shares = [min(1.0, stage.locks_ms[lock] / stage.item_ms) * stage.wait_ms for stage in stages]
            most = stages[shares.index(max(shares))]
            ms = max(ms, sum(shares))
            if analysis.chains is not None:
                own_ns = analysis.chains.within_locks(own, partial(locked.of, main_pid=main))
                ms = max(ms, own_ns / steps / 1e6)
            of = {"each_ms": most.locks_ms[lock], "item_ms": most.item_ms}
        elif making_ns.any():
            each = (int(ns.sum()) / len(own) / 1e6 for ns in (making_ns, made_ns))
            of = dict(zip(("each_ms", "item_ms"), each, strict=True))
        asked_ms = int(asked_ns.sum()) / steps / 1e6  # in which the loop did not wait for a maker
        ms = asked_ms + ms * (1 - asked_ms / wait_ms if wait_ms else 0.0)
        files = locked.where(own, main)
        if analysis.chains is not None and stages:
            files += locked.where(analysis.chains.hops.deliveries, main)
        # In functions that a library calls, or in asks: of all threads.
        file = max(files or locked.files, key=(files or locked.files).__getitem__, default="")
        # A library's own threads may be more than work at once.
        sharing = min(locked.sharing, sum(each.makers for each in stages) or locked.sharing)
        found[lock] = LockWait(ms=min(ms, wait_ms), sharing=sharing, file=file, **of)
    return found


def _read_by_others(analysis: RankAnalysis, run: LoaderRun, report: RankReport) -> dict[str, Any]:
    """Compare the files that cost this rank most with those of another one, the next."""
    others = [each for each in analysis.session.ranks if each.number != analysis.rank.number]
    costly = {file.path for file in report.data_wait.files if file.ms > 0}
    opens = {file.path: file.opens for file in report.io.files if file.path in costly} if report.io else {}
    samples = run.deliveries["samples"][run.deliveries.known("samples")]
    made = int(samples.sum()) if len(samples) else len(run.deliveries)
    if not others or not costly or not made or not run.epochs:
        return {}
    other = min(others, key=lambda each: (each.number < analysis.rank.number, each.number))
    paths = analysis.session.paths
    theirs = {paths.shown(file) for each in other.processes for file in each.files_of(KIND_READ_PATH)}
    found = {"also_read": len(theirs & costly) / len(costly), "ranks": len(others) + 1}
    array = _most_read(report, costly)
    if array is not None:
        whole_bytes = array.chunk_bytes * prod(array.shape) / prod(array.chunk)
        return {
            **found,
            "opens_per_sample": array.accesses / made,
            "opens_per_pass": array.used_bytes / whole_bytes / run.epochs,
            "array": array.path,
        }
    if not opens:
        return {}
    opened = sum(opens.values())
    own = {paths.shown(file) for each in analysis.rank.processes for file in each.files_of(KIND_READ_PATH)}
    every = sum(file.opens for file in report.io.files if file.path in own) if report.io else 0
    return {
        **found,
        "also_read": len(theirs & opens.keys()) / len(opens),
        "opens_per_sample": opened / made,
        "opens_per_pass": opened / len(opens) / run.epochs,
        "every_file": EveryFile(
            also_read=len(theirs & own) / len(own),
            opens_per_pass=every / len(own) / run.epochs,
            opens_per_sample=every / made,
        )
        if own
        else None,
    }


def _most_read(report: RankReport, paths: Set[str]) -> ChunkedArray | None:
    """Choose the array in chunks, of those in `paths`, that was accessed most often."""
    known = (group.amplification for group in report.file_groups if group.amplification is not None)
    arrays = [array for each in known for array in each.arrays if array.path in paths]
    own = (each for each in arrays if 0 not in (*each.shape, *each.chunk))
    return max(own, key=attrgetter("accesses"), default=None)


def _shared(run: LoaderRun) -> tuple[int | None, float | None]:
    """How many workers made batches, and how many as busy as the busiest that is."""
    worker = run.deliveries["worker"][run.deliveries.known("worker")]
    counts = Counter(worker.tolist())
    return (len(counts), len(worker) / max(counts.values())) if counts else (None, None)


def _firsts(
    analysis: RankAnalysis, run: LoaderRun, waits: Waits
) -> tuple[npt.NDArray[np.float64], float | None, float | None, float | None]:
    """What the first sample of each later pass took longer than the median one, by batch of `waits`, in ns.

    With the median of these first samples, the least of them and the median of all, in ms; None where there
    is none, or there are too few.
    """
    own, first_epoch = waits.deliveries, min((epoch for _, epoch in run.passes), default=0)
    over_ns, firsts, usual = np.zeros(len(own)), [], []
    for _, mine, items in items_by_maker(analysis.rank, own):
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
    return over_ns, first_ms, min(firsts) / 1e6 if len(firsts) >= _FEWEST_FIRSTS else None, item_ms


def _draw_ms(waits: Waits) -> float | None:
    """What choosing samples takes before a pass's first batch, a mean; None: most of it lies elsewhere."""
    sampling_ns, first = waits.of_cause("sampling"), waits.deliveries["index"] == 0
    of_first_ns = int(sampling_ns[first].sum())
    if first.sum() < _FEWEST_PASSES or first.all() or of_first_ns < _MOST_IN_FIRST * int(sampling_ns.sum()):
        return None
    return of_first_ns / int(first.sum()) / 1e6 if of_first_ns else None


def _collecting(
    analysis: RankAnalysis, own: Deliveries
) -> tuple[npt.NDArray[np.float64], Times, float | None]:
    """How long garbage was collected in the making of each batch; how long each time; in full ones; in ns.

    Also those in the call of a library that reads or decodes: what sets the collector ends them, too. Which
    ones were full is not recorded, but how many: no more than the longest ones took. None: that is not known.
    """
    inside_ns, lengths, full_ns = np.zeros(len(own)), [np.zeros(0, np.int64)], 0.0
    makers, made = own.maker(analysis.rank.main.pid), own.made
    unknown = False
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
        looks = [look.collections for look in process.of_type(Collector) if look.collections]
        unknown |= len(looks) < _FEWEST_LOOKS
        full = looks[-1][-1] - looks[0][-1] + 1 if looks else 0  # one may have come since the last look
        full_ns += float(np.sort(ends - starts)[-full:].sum()) if full else 0.0
    return inside_ns, np.concatenate(lengths), None if unknown else full_ns


def _looks(analysis: RankAnalysis, own: Deliveries) -> list[Collector]:
    """The last look at the collector's objects of each process that made batches."""
    makers = {*own.maker(analysis.rank.main.pid).tolist()}
    of_each = (each.of_type(Collector) for each in analysis.rank.processes if each.pid in makers)
    counted = ([look for look in looks if look.frozen is not None][-1:] for looks in of_each)
    return [look for last in counted for look in last]


def _collections(process: Process) -> tuple[Times, Times]:
    """When the collections of a process began and ended, but for very short ones, which have no row."""
    rows = process.rows(names.PAUSE_ROW)
    rows = rows[rows["pause"] == names.PAUSES.index("collection")]
    starts, ends = (process.clock.times_to_session_ns(rows[field]) for field in ("start_ns", "end_ns"))
    order = np.argsort(starts, kind="stable")
    return starts[order], ends[order]
