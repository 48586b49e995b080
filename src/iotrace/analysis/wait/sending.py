"""Whether workers send what they made only once they have made the next: their code holds the lock.

A worker puts a batch into a queue, and a thread of its own sends it. Code that holds the interpreter's lock
for long, such as `torch.tensor` of a list of arrays, keeps that thread waiting.
"""

from __future__ import annotations

import numpy as np

from iotrace.analysis.intervals import Coverage, Times, union
from iotrace.analysis.loop.deliveries import Deliveries
from iotrace.analysis.table import NONE
from iotrace.session import names
from iotrace.sources.processes import Process

_BESIDE = 2 / 3  # of the waits for batches under way, beside the making of the next; 0 to 5 % without a lock
_AT_END = 0.85  # of that making: batches come from then on
_FEWEST = 4  # waits


def sends_behind_next(deliveries: Deliveries, transport_ns: Times) -> bool:
    """Whether most waits for batches under way last as long as their workers make the next ones.

    `transport_ns` is what of each wait the batch was under way, shape (deliveries,). A way that is long for
    itself ends at any time of that making, or long behind it.
    """
    rows = np.flatnonzero(deliveries.made & (deliveries["inline_tid"] == NONE))
    order = rows[np.lexsort((deliveries["taken_ns"][rows], deliveries["pid"][rows]))]
    made, way_ns = deliveries[order], transport_ns[order[:-1]]
    waited = (made["pid"][1:] == made["pid"][:-1]) & (way_ns > 0)
    if np.count_nonzero(waited) < _FEWEST:
        return False
    taken, prepared = made["taken_ns"][1:][waited], made["prepared_ns"][1:][waited]
    way_ns, end = way_ns[waited], made["delivered_ns"][:-1][waited]
    beside_ns = np.clip(np.minimum(end, prepared) - np.maximum(end - way_ns, taken), 0, None)
    at_end = end - taken >= _AT_END * (prepared - taken)
    whole_ns = int(way_ns.sum())
    return bool(beside_ns.sum() >= _BESIDE * whole_ns and way_ns[at_end].sum() >= _BESIDE * whole_ns)


def locked_ns(deliveries: Deliveries, transport_ns: Times, workers: list[Process]) -> int | None:
    """How long, of waits for batches under way, the thread that sends them waited for the interpreter.

    Other code of the worker ran then. None where no worker has told of that.
    """
    found, ends = None, deliveries["delivered_ns"]
    for process in workers:
        rows = process.rows(names.LOCKED_ROW)
        numbers = [number for number, text in process.texts.items() if text == names.SENDING_AT]
        rows = rows[np.isin(rows["file"], numbers)]
        if not len(rows):
            continue
        own = (deliveries["pid"] == process.pid) & (transport_ns > 0)
        times = (process.clock.times_to_session_ns(rows[field]) for field in ("start_ns", "end_ns"))
        waited = Coverage(*union(*times)).within(ends[own] - transport_ns[own], ends[own])
        found = (found or 0) + int(waited.sum())
    return found
