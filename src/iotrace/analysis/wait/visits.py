"""Which files each sample visits, in which order, and for how long.

From a sample's call on a file until its next one on another file it works with that: entries are matched,
rows are parsed. Behind the last call of a sample nothing counts: that may be the sample's own work. Of files
that are only asked for no pause between two calls counts either: nothing of them is there to work with.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

import msgspec
import numpy as np
import numpy.typing as npt

from iotrace.analysis.intervals import Times, distinct, holding
from iotrace.analysis.rank import RankAnalysis
from iotrace.analysis.storage.io import OPENS
from iotrace.analysis.storage.read_pattern import FileCalls
from iotrace.analysis.wait.file_costs import FileNames, read_calls
from iotrace.analysis.wait.page_faults import bounds, holder
from iotrace.analysis.wait.production import READING, outermost_of
from iotrace.analysis.wait.stages import samples_of
from iotrace.session.names import KIND_ITEM, METADATA_CALLS
from iotrace.sources.processes import Process

_LISTS, _RESULTS = (METADATA_CALLS.index(name) for name in ("opendir", "readdir"))
_PAUSE_NS = 1_000_000  # between two calls that ask: what is longer is no making of the next path
_OPENED_IN = {"metadata"}  # a burst of several kinds: whoever opens a file asks for its size, too
_BESIDE = ("journal", "wal", "shm")
NEVER = np.iinfo(np.int64).max
Costs = npt.NDArray[np.float64]
Listings = Mapping[str, tuple[int, int]]  # by directory: how often it was listed, the results that this gave


class Visits(msgspec.Struct, frozen=True):
    """Stretches of one process's samples in which each is busy with one file; a row for each in all columns.

    A `target` is twice the file's number; one more where other files in that directory were only asked for.
    `reading_ns` is when a library began to read the file, `NEVER`: it did not. `given_bytes` is what it gave,
    as far as its calls tell. `samples` is how many each of the items makes: `__getitems__` makes a batch.
    """

    process: Process
    items: int
    items_ns: int
    samples: Costs
    starts_ns: Times
    ends_ns: Times
    reading_ns: Times
    read_bytes: Times
    given_bytes: Times
    item: Times
    target: Times

    @property
    def opened_ns(self) -> Times:
        """When each file was opened: a library read it then. Where none did, the visit's start."""
        return np.where(self.reading_ns == NEVER, self.starts_ns, self.reading_ns)


def listings_of(analysis: RankAnalysis) -> Listings:
    """How often each directory was listed by the rank's processes."""
    shown, found = analysis.session.paths.shown, dict[str, tuple[int, int]]()
    files, sums = analysis.session.calls.files, analysis.session.sums_of(analysis.rank.processes)
    if sums is None:
        for process in analysis.rank.processes:
            own = analysis.session.calls_of(process)
            for file in own.file[own.named({"opendir"})].tolist():
                path = shown(own.files[file])
                found[path] = found.get(path, (0, 0))[0] + 1, 0
        return found
    rows = np.flatnonzero((sums.group == 0) & (sums.kinds[:, _LISTS] > 0))
    for file, times, results in zip(
        sums.file[rows].tolist(),
        sums.kinds[rows, _LISTS].tolist(),
        sums.kinds[rows, _RESULTS].tolist(),
        strict=True,
    ):
        before = found.get(shown(files[file]), (0, 0))
        found[shown(files[file])] = before[0] + times, before[1] + results
    return found


def visits_of(
    analysis: RankAnalysis,
    process: Process,
    calls: Mapping[str, FileCalls],
    names: FileNames,
    listings: Listings,
) -> Visits:
    """Follow each sample of a process from file to file."""
    items = outermost_of(process, KIND_ITEM)
    made = analysis.produced_by(process.pid)
    made = made[made["loader"] == (-1 if analysis.source is None else analysis.source.number)]
    made = made[np.lexsort((made["prepared_ns"], made["taken_ns"]))]
    items = items[holding(made["taken_ns"], made["prepared_ns"], items["start_ns"]) >= 0]
    threads = distinct(made["maker_tid"][made.known("maker_tid")])
    if len(threads):  # the loop's own thread takes meanwhile what these make
        items = items[np.isin(items["tid"], threads)]
    own, spans, shown = (
        analysis.session.calls_of(process),
        outermost_of(process, *READING),
        analysis.session.paths.shown,
    )
    target_of = {
        number: _target(shown(own.files[number]), calls, names, listings)
        for number in distinct(own.file).tolist()
    }
    of_calls = np.array([target_of[number] for number in own.file.tolist()], np.int64)
    of_spans = 2 * names.of(
        spans["file"], {number: shown(path) for number, path in process.span_files.items()}
    )
    is_call = np.arange(len(own) + len(spans)) < len(own)
    starts, ends = (
        np.concatenate(pair) for pair in zip((own.start_ns, own.end_ns), bounds(spans), strict=True)
    )
    target, tids = np.concatenate((of_calls, of_spans)), np.concatenate((own.tid, spans["tid"]))
    sizes = np.where(read_calls(own) & (own.result > 0), own.result, 0)
    item = holder(items, starts, tids)
    order = np.lexsort((starts, item))
    order = order[item[order] >= 0]
    item, target, starts, ends = (each[order] for each in (item, target, starts, ends))
    has_file = target >= 0
    target = _of_file_before(target, item)
    given = np.append(np.zeros(len(own), np.int64), spans["bytes"].clip(0))[order] * has_file
    sizes = np.append(sizes, np.zeros(len(spans), np.int64))[order]
    new_item = np.append(True, item[1:] != item[:-1])[: len(item)]
    paused = (target & 1 == 1) & (target >= 0) & (starts - np.append(0, ends[:-1])[: len(ends)] > _PAUSE_NS)
    samples = samples_of(made, items)
    opens = np.append(own.named(OPENS | _OPENED_IN), np.zeros(len(spans), np.bool_))[order]
    again = _opened_again(opens & (samples[item] > 1), ~is_call[order] & has_file, item, target)
    first = np.flatnonzero(
        new_item | paused | again | np.append(True, target[1:] != target[:-1])[: len(item)]
    )
    last_of_item = np.append(new_item[first][1:], True)[: len(first)]
    asked = (target[first] & 1).astype(np.bool_) & (target[first] >= 0)
    in_calls = np.maximum.reduceat(ends, first) if len(first) else ends
    until = np.where(last_of_item | asked, in_calls, np.append(starts[first][1:], 0)[: len(first)])
    reading = (
        np.minimum.reduceat(np.where(is_call[order] | ~has_file, NEVER, starts), first)
        if len(first)
        else starts
    )
    return Visits(
        process=process,
        items=len(items),
        items_ns=int(items["duration_ns"].sum()),
        samples=samples,
        starts_ns=starts[first],
        ends_ns=until,
        reading_ns=reading,
        read_bytes=np.add.reduceat(sizes, first) if len(first) else sizes,
        given_bytes=np.add.reduceat(given, first) if len(first) else given,
        item=item[first],
        target=target[first],
    )


def _of_file_before(target: Times, item: Times) -> Times:
    """Have a library's calls without a file, as they work on what is in memory, belong to the file before.

    That is the one which the item has turned to last: its frames are converted, its bytes inflated.
    """
    if not len(target):
        return target
    last = np.maximum.accumulate(np.where(target >= 0, np.arange(len(target)), 0))
    return np.where(item[last] == item, target[last], target)


def _opened_again(
    opens: npt.NDArray[np.bool_], reading: npt.NDArray[np.bool_], item: Times, target: Times
) -> npt.NDArray[np.bool_]:
    """Mark where an item opens the file anew that it opened and read before: of a batch another sample."""
    found = np.zeros(len(opens), np.bool_)
    rows = np.flatnonzero(opens)
    if len(rows) > 1:
        read = np.cumsum(reading)[rows]
        alike = (item[rows][1:] == item[rows][:-1]) & (target[rows][1:] == target[rows][:-1])
        found[rows[1:][alike & (read[1:] > read[:-1])]] = True
    return found


def _target(path: str, calls: Mapping[str, FileCalls], names: FileNames, listings: Listings) -> int:
    """Number a file; what was never opened, mapped or listed by its directory, as asked there.

    What SQLite asks for beside a database belongs to that.
    """
    base, _, end = path.rpartition("-")
    if end in _BESIDE and base in calls:
        path = base
    file = calls.get(path)
    if path in listings or file is None or file.opens or file.reads or file.writes or file.maps:
        return 2 * (names.number(path) or 0)
    return 2 * names.number(os.path.dirname(path) or ".") + 1
