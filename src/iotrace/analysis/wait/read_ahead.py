"""Which threads fill a buffer before their first item, to shuffle what they read.

What such a thread reads in the making of an item is used much later, and in the item what it read before. So
nothing but the reading itself is charged to the file.
"""

from __future__ import annotations

from posixpath import dirname, splitext

import numpy as np

from iotrace.analysis.intervals import Times, distinct, grouped, holding
from iotrace.analysis.storage.kernel_account import READS
from iotrace.analysis.wait.page_faults import bounds
from iotrace.analysis.wait.production import outermost_of
from iotrace.session.names import KIND_ITEM
from iotrace.sources.posix_calls import PosixCalls
from iotrace.sources.processes import Process

_TIMES = 8  # what a later item reads: so much is read before the first one
_FEWEST, _MOST = 16, 512  # items that read; items that are looked at
_BY_INDEX = ("__getitem__", "__getitems__")  # such an item reads what it is asked for


def threads_reading_ahead(process: Process, calls: PosixCalls) -> frozenset[int]:
    """Find the threads of a process that do; `calls` are those of the process."""
    spans = outermost_of(process, KIND_ITEM)
    by_index = [number for number, text in process.texts.items() if text.endswith(_BY_INDEX)]
    items = spans[~np.isin(spans["name"], by_index)]
    found = set()
    for tid in distinct(items["tid"]).tolist():
        starts, ends = bounds(items[items["tid"] == tid])
        order = np.argsort(starts, kind="stable")[:_MOST]
        starts, ends = starts[order], ends[order]
        # What the main thread reads before its first item is for anything.
        first_ns = int(starts[0]) if tid == process.pid else int(calls.start_ns.min(initial=starts[0]))
        own = calls.between(first_ns, int(ends[-1]))
        own = own.where(own.named(READS) & (own.tid == tid))
        if _fills_a_buffer(own, int(ends[0]), holding(starts, ends, own.start_ns)):
            found.add(tid)
    return frozenset(found)


def _fills_a_buffer(calls: PosixCalls, first_end_ns: int, item: Times) -> bool:
    """Tell whether as much is read up to the first item's end as for many a later one, of files of a kind."""
    before, kinds = calls.start_ns < first_end_ns, _kinds(calls)
    later = ~before & (item >= 0)
    for kind in distinct(kinds[later]).tolist():
        of_kind = later & (kinds == kind)
        items, _, of = grouped(item[of_kind])
        if len(items) >= _FEWEST and all(
            amount[before & (kinds == kind)].sum() >= _TIMES * np.median(np.bincount(of, amount[of_kind]))
            for amount in (np.maximum(calls.result, 0), calls.calls)
        ):
            return True
    return False


def _kinds(calls: PosixCalls) -> Times:
    """Number the kind of each call's file: those of a directory with one suffix are of a kind."""
    files, _, of = grouped(calls.file)
    numbers: dict[tuple[str, str], int] = {}
    paths = [calls.files[number] for number in files.tolist()]
    kinds = [numbers.setdefault((dirname(path), splitext(path)[1]), len(numbers)) for path in paths]
    return np.array(kinds, np.int64)[of]
