"""Few samples of a loader that take much longer than the others: which they are, and the wait for them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import msgspec
import numpy as np
import numpy.typing as npt

from iotrace.analysis.intervals import Times, distinct, holding
from iotrace.analysis.loop.deliveries import Deliveries, LoaderRun
from iotrace.analysis.rank import RankAnalysis
from iotrace.analysis.table import NONE
from iotrace.analysis.wait.production import PARTS, READING, outermost_of
from iotrace.analysis.wait.waits import CAUSES, Waits
from iotrace.session import names
from iotrace.session.names import KIND_ITEM
from iotrace.sources.columns import Columns
from iotrace.sources.processes import Process
from iotrace.sources.session import Rank

_FEWEST_SAMPLES, _FEWEST_LONG, _FEW_LONG = 20, 3, 0.2
_LONG_TIMES = 5.0  # the median sample
_MOST_OF_TIME = 0.5  # of all samples
_NEARLY = 0.9  # of their time: of so many the indices are known
_OF_PARTS = [CAUSES.index(part) for part in PARTS]


class LongSamples(msgspec.Struct, frozen=True, kw_only=True):
    """`count` of `of` samples take `long_ms` each, the others `usual_ms`: medians.

    They lie in a share of the batches, `of_batches`, and take that `share` of the time of all samples.
    `wait_ms` is the wait for what they take longer, a mean per measured step. `which` are their indices, each
    with the file that a library read for it (empty: none), costliest first; of an unknown one none is told.
    """

    count: int
    of: int
    long_ms: float
    usual_ms: float
    share: float
    of_batches: float
    wait_ms: float
    which: list[tuple[int, str]] = []


def long_samples(analysis: RankAnalysis, run: LoaderRun, waits: Waits) -> LongSamples | None:
    """Find the few samples that take much longer than the others, and most of the time of all.

    The first sample of each maker is none of them: it gets ready.
    """
    own, steps = waits.deliveries, len(analysis.kept)
    lengths, batches, timed = [], [], []
    for process, mine, items in items_by_maker(analysis.rank, own):
        in_order = np.argsort(items["start_ns"], kind="stable")[1:]
        starts, durations = (items[field][in_order] for field in ("start_ns", "duration_ns"))
        of = holding(own["taken_ns"][mine], own["prepared_ns"][mine], starts)
        lengths.append(durations[of >= 0])
        timed.append((process, starts[of >= 0]))
        batches.append(mine[of[of >= 0]])
        if run.description.pool:  # an item that a thread makes quickly is not timed
            quick = mine[~np.isin(np.arange(len(mine)), of)]
            lengths.append(own["prepared_ns"][quick] - own["taken_ns"][quick])
            timed.append((process, np.full(len(quick), NONE)))
            batches.append(quick)
    every = np.concatenate(lengths) if lengths else np.zeros(0, np.int64)
    if len(every) < _FEWEST_SAMPLES or not every.sum():
        return None
    is_long = every >= _LONG_TIMES * np.median(every)
    if is_long.any():  # of these the longest, which hold nearly all of the time: others met a busy CPU
        longest = np.sort(every[is_long])[::-1]
        most = np.searchsorted(np.cumsum(longest), _NEARLY * longest.sum())
        is_long = every >= longest[min(int(most), len(longest) - 1)]
    count, share = int(is_long.sum()), float(every[is_long].sum() / every.sum())
    if count < _FEWEST_LONG or count > _FEW_LONG * len(every) or share < _MOST_OF_TIME:
        return None
    usual_ns, over_ns, of = float(np.median(every[~is_long])), np.zeros(len(own)), np.concatenate(batches)
    np.add.at(over_ns, of[is_long], every[is_long] - usual_ns)
    costs: Counter[tuple[int, str]] = Counter()
    ends = np.cumsum([len(starts) for _, starts in timed])
    for (process, starts), end in zip(timed, ends.tolist(), strict=True):
        which_long = is_long[end - len(starts) : end]
        begun, took = starts[which_long], every[end - len(starts) : end][which_long]
        read = _files(analysis, process, begun, took)
        for number, file, ns in zip(_indices(process, begun).tolist(), read, took.tolist(), strict=True):
            costs[number, file] += ns
    which = [each for each, _ in costs.most_common() if each[0] >= 0]
    if sum(costs[each] for each in which) < _NEARLY * sum(costs.values()):
        which = []
    return LongSamples(
        which=which,
        count=count,
        of=len(every),
        long_ms=float(np.median(every[is_long])) / 1e6,
        usual_ms=usual_ns / 1e6,
        share=share,
        of_batches=len(np.unique(of[is_long])) / len(np.unique(of)),
        wait_ms=wait_for(waits, over_ns) / steps / 1e6,
    )


def items_by_maker(rank: Rank, own: Deliveries) -> Iterator[tuple[Process, Times, Columns]]:
    """Yield each process that made batches of items: the rows of these in their order, and its items."""
    makers = own.maker(rank.main.pid)
    for process in rank.processes:
        mine = np.flatnonzero(own.made & (makers == process.pid))
        mine = mine[np.argsort(own["taken_ns"][mine], kind="stable")]
        items = _items_of(process, own[mine])
        if len(mine) and len(items):
            yield process, mine, items


def _items_of(process: Process, made: Deliveries) -> Columns:
    """Take the items of a process that the threads made which made these batches."""
    items = outermost_of(process, KIND_ITEM)
    of_thread = np.where(made.known("maker_tid"), made["maker_tid"], made["inline_tid"])
    if not len(made) or (of_thread == NONE).any():
        return items
    return items[np.isin(items["tid"], distinct(of_thread))]


def _indices(process: Process, starts: Times) -> Times:
    """The indices of samples that begin at `starts`; -1 of those that were not recorded."""
    rows = process.rows(names.LONG_ROW)
    began = process.clock.times_to_session_ns(rows["start_ns"])
    if not len(began):
        return np.full(len(starts), -1, np.int64)
    order = np.argsort(began, kind="stable")
    at = order[np.minimum(np.searchsorted(began[order], starts), len(began) - 1)]
    return np.where(began[at] == starts, rows["sample"][at], -1)


def _files(analysis: RankAnalysis, process: Process, starts: Times, durations: Times) -> list[str]:
    """The file that a library reads first in each sample; empty where it reads none."""
    found = [""] * len(starts)
    reads = outermost_of(process, *READING)
    reads = reads[reads["file"] >= 0]
    in_order = np.argsort(starts, kind="stable")
    begun = starts[in_order]
    of = holding(begun, begun + durations[in_order], reads["start_ns"])
    rows, first = np.unique(of, return_index=True)
    for row, at in zip(rows.tolist(), first.tolist(), strict=True):
        if row >= 0:
            path = process.span_files.get(int(reads["file"][at]), "")
            found[in_order[row]] = analysis.session.paths.shown(path) if path else ""
    return found


def wait_for(waits: Waits, parts_ns: npt.NDArray[np.float64]) -> float:
    """The wait for a part of each batch's making, as large a share of the wait as of the making; in ns."""
    own = waits.deliveries
    made_ns = np.where(own.made, own["prepared_ns"] - own["taken_ns"], 0)
    waited_ns = waits.causes[:, _OF_PARTS].sum(axis=1)
    share = np.divide(parts_ns, made_ns, out=np.zeros(len(own)), where=made_ns > 0)
    return float((waited_ns * np.clip(share, 0.0, 1.0)).sum())
