"""Which file each item of a dataset read, and when: what follows is told as "after reading" that file.

An item reads a file in a read call, in a read path whose file is known, or by an access to a memory map.
"""

from __future__ import annotations

import msgspec
import numpy as np
import numpy.typing as npt

from iotrace.analysis.intervals import Times, distinct
from iotrace.analysis.storage.kernel_account import READS
from iotrace.analysis.wait.file_costs import FileNames
from iotrace.analysis.wait.page_faults import Fields, Spans, bounds, holder
from iotrace.session.names import KIND_MAPPED, KIND_READ_PATH
from iotrace.sources.posix_calls import PosixCalls


class ItemReads(msgspec.Struct, frozen=True):
    """The reads of each item of one process, in time order.

    `only[i]` is the file that item i read if that was just one; `first_end_ns[i]` is when its first read
    ended. `latest` has, for read paths without a file, the file that the item read last before. Files are
    their numbers, -1 where there is none.
    """

    only: Times
    first_end_ns: Times
    latest: Times


def read_calls(calls: PosixCalls) -> npt.NDArray[np.bool_]:
    """Mark the calls that read; opening a file or asking for its size is no read."""
    return calls.named(READS)


def item_reads(
    items: Fields,
    spans: Spans,
    read_paths: Fields,
    calls: PosixCalls,
    span_files: dict[int, str],
    call_files: dict[int, str],
    names: FileNames,
) -> ItemReads:
    """Find what `items`, disjoint on each thread, read; `read_paths` are the outermost ones of `spans`.

    `span_files` and `call_files` name the files of spans and calls, by their numbers there; `names` number
    them in the result.
    """
    span_number = names.of(spans["file"], span_files)
    known = np.isin(spans["kind"], (KIND_READ_PATH, KIND_MAPPED)) & (span_number >= 0)
    reading = read_calls(calls)
    of_calls = {file: call_files[file] for file in distinct(calls.file[reading]).tolist()}
    stores = {names.paths[file] for file in distinct(span_number).tolist() if file >= 0}
    call_number = names.of(calls.file[reading], _within_stores(of_calls, stores))
    starts = np.concatenate((spans["start_ns"][known], calls.start_ns[reading]))
    ends = np.concatenate((bounds(spans)[1][known], calls.end_ns[reading]))
    tids = _threads_of_items(items, np.concatenate((spans["tid"][known], calls.tid[reading])))
    file = np.concatenate((span_number[known], call_number))
    item = holder(items, starts, tids)
    held = np.flatnonzero(item >= 0)
    least = np.full(len(items), np.iinfo(np.int64).max, dtype=np.int64)
    most = np.full(len(items), -1, dtype=np.int64)
    first_end = np.full(len(items), np.iinfo(np.int64).max, dtype=np.int64)
    np.minimum.at(least, item[held], file[held])
    np.maximum.at(most, item[held], file[held])
    np.minimum.at(first_end, item[held], ends[held])
    order = held[np.lexsort((starts[held], item[held]))]
    latest = _latest(items, read_paths, span_files, item[order], starts[order], file[order])
    return ItemReads(np.where(least == most, most, -1), first_end, latest)


def _within_stores(files: dict[int, str], read_paths: set[str]) -> dict[int, str]:
    """Name the store of each file that lies in a directory which a read path reads, as a zarr array's."""
    named = dict(files)
    for file, path in files.items():
        end = path.rfind("/")
        while end > 0:
            if path[:end] in read_paths:
                named[file] = path[:end]
                break
            end = path.rfind("/", 0, end)
    return named


def _threads_of_items(items: Fields, tids: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Count reads of a library's own threads as the item's, where one thread alone makes items."""
    makers = distinct(items["tid"])
    return np.full(len(tids), makers[0]) if len(makers) == 1 else tids


def _latest(
    items: Fields, read_paths: Fields, span_files: dict[int, str], item: Times, starts: Times, file: Times
) -> Times:
    """Find the file of the last read that began before each read path without a file ended, in its item."""
    found = np.full(len(read_paths), -1, dtype=np.int64)
    nameless = np.flatnonzero(~np.isin(read_paths["file"], list(span_files)))
    held_by = holder(items, read_paths["start_ns"][nameless], read_paths["tid"][nameless])
    nameless, held_by = nameless[held_by >= 0], held_by[held_by >= 0]
    ends = read_paths["start_ns"][nameless] + read_paths["duration_ns"][nameless]
    # All reads and ends in one order; of equal times the ends come first.
    is_read = np.arange(len(nameless) + len(item)) >= len(nameless)
    order = np.lexsort((is_read, np.concatenate((ends, starts)), np.concatenate((held_by, item))))
    reads_before = np.empty(len(order), dtype=np.int64)
    reads_before[order] = np.cumsum(is_read[order])
    last = reads_before[: len(nameless)] - 1
    known = last >= np.searchsorted(item, held_by)
    found[nameless[known]] = file[last[known]]
    return found
