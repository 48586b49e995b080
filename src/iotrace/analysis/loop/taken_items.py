"""What a thread took from a queue or a pool: which class, what says that no more comes, how many make it."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from iotrace.analysis.intervals import Times, grouped
from iotrace.analysis.loop.deliveries import Deliveries
from iotrace.analysis.loop.hops import Hops
from iotrace.analysis.table import NONE

_FEWEST = 3  # items
_MOST_ENDS = 0.25  # of what is taken: one an epoch from each maker, and epochs are longer
# Classes that hold no data.
_NO_DATA = ("NoneType", "object", "ellipsis", "type", "StopIteration", "StopAsyncIteration", "EOFError")


def kinds_of(taken: Deliveries, hops: Hops) -> Times:
    """Find the class of each item that was taken from a queue; -1 where that is not known."""
    row = hops.rows_of(taken)
    return np.where(row >= 0, hops.kind[row], -1) if len(hops.kind) else row


def ends_of(taken: Deliveries, hops: Hops, trained_ns: Times) -> npt.NDArray[np.bool_]:
    """Mark what says that no more items come; `trained_ns`: when the loop trains, sorted.

    That is what holds no data, as None or an `object()`; and what is last in each of its queues, of a class
    that few are of, and not trained with: one that makes items puts it there when it is done.
    """
    kinds = kinds_of(taken, hops)
    ends = np.isin(kinds, [number for number, kind in enumerate(hops.kinds) if kind in _NO_DATA])
    if ends.all() or len(kinds) <= _FEWEST:
        return ends if not ends.all() else np.zeros(len(kinds), np.bool_)
    row = hops.rows_of(taken)
    _, _, queue = grouped(np.where(row >= 0, hops.queue[row], -1) if len(hops.queue) else row)
    rounds = np.searchsorted(trained_ns, np.append(taken["delivered_ns"], np.iinfo(np.int64).max))
    trained = np.diff(rounds) > 0
    for kind in np.unique(kinds[(kinds >= 0) & ~ends]).tolist():
        own = kinds == kind
        if own.mean() <= _MOST_ENDS and not trained[own].any() and _is_last(queue, own):
            ends |= own
    return ends


def _is_last(queue: Times, own: npt.NDArray[np.bool_]) -> bool:
    """Whether these rows come behind all others of their queues, and each queue has others."""
    last_other = np.full(int(queue.max(initial=0)) + 1, -1)
    np.maximum.at(last_other, queue[~own], np.flatnonzero(~own))
    before = last_other[queue[own]]
    return bool(((before >= 0) & (np.flatnonzero(own) > before)).all())


def most_at_once(makers: Times, taken_ns: Times, prepared_ns: Times) -> int:
    """Count the makers that there are at once at most: each from its first item to its last."""
    known = np.where(taken_ns == NONE, prepared_ns, taken_ns)
    _, _, of = grouped(makers)
    count = int(of.max(initial=-1)) + 1
    starts, ends = np.full(count, np.iinfo(np.int64).max), np.full(count, np.iinfo(np.int64).min)
    np.minimum.at(starts, of, known)
    np.maximum.at(ends, of, prepared_ns)
    changes = np.repeat([-1, 1], count)  # one that ends as another begins is no second one
    order = np.lexsort((changes, np.concatenate((ends, starts))))
    return max(int(np.cumsum(changes[order]).max(initial=0)), min(count, 1))
