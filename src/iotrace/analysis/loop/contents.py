"""What the batches of a loader consist of: many tensors, and samples that are filled up to one length."""

from __future__ import annotations

import numpy as np

from iotrace.analysis.intervals import holding
from iotrace.analysis.loop.deliveries import Deliveries
from iotrace.session import names
from iotrace.sources.processes import Process


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
