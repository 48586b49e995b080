"""What a batch costs between its worker and the consumer: its way, and to receive it."""

from __future__ import annotations

import msgspec
import numpy as np

from iotrace.analysis.gain.pipeline import Floats
from iotrace.analysis.intervals import Times
from iotrace.analysis.loop.deliveries import Deliveries
from iotrace.analysis.rank import RankAnalysis
from iotrace.analysis.table import key_of, match
from iotrace.session import names

_FEWEST_READY = 4  # batches that lay ready: from so many the consumer's own part of receiving is known
_MOST_HELD_NS = 3 * 5_000_000  # sending takes the interpreter's lock a few times; each takes 5 ms at most


class Transport(msgspec.Struct, frozen=True):
    """How long each batch was under way and what it took to receive it, in ns; whether a thread pins them.

    For `held_ns` of its way a batch may have waited for the interpreter's lock, while its worker computed
    the next ones.
    """

    latency_ns: Floats
    service_ns: Floats
    held_ns: Floats
    pinned: bool = False

    @classmethod
    def of(cls, analysis: RankAnalysis, own: Deliveries, cpu_ns: Floats) -> Transport:
        """Divide the time from a batch's making to its receipt.

        Of a batch that lay ready, all is receiving: what the consumer needs in any case. The rest of what an
        awaited batch takes is its way. Where none lay ready, the way is what the lock may have held.
        """
        rows = analysis.rank.main.rows(names.BATCH_ROW)
        at = match(key_of(own["iterator"], own["epoch"], own["index"]),
                   key_of(rows["iterator"], rows["epoch"], rows["index"]))  # fmt: skip
        real = analysis.rank.main.clock.times_to_session_ns
        found = np.where(at >= 0, rows["received_ns"][at], -1)
        pinned_ns = np.where(at >= 0, rows["pinned_ns"][at], -1)
        pinned = bool((pinned_ns > 0).any())
        received = np.where(found > 0, real(found), own["delivered_ns"])
        if pinned:
            received = np.where(pinned_ns > 0, real(pinned_ns), received)
        order = np.argsort(received, kind="stable")
        before = np.empty(len(own), np.int64)
        before[order] = np.concatenate([[0], received[order][:-1]])
        prepared = np.where(own.made, own["prepared_ns"], received)
        starts = np.maximum(prepared, before)
        if not pinned:  # the consumer receives while it asks, and only then
            ask = np.maximum(np.searchsorted(own["wait_start_ns"], received, side="right") - 1, 0)
            starts = np.maximum(starts, own["wait_start_ns"][ask])
        tail = np.maximum(received - starts, 0).astype(np.float64)
        ready = prepared < starts
        held = np.minimum(_held(own, starts, received, cpu_ns), np.minimum(tail, cpu_ns))
        service = float(np.median(tail[ready])) if ready.sum() >= _FEWEST_READY else None
        if service is None:
            return cls(held, tail - held, held, pinned)
        latency = np.maximum(tail - service, 0.0)
        latency, held = (
            np.where(ready, float(np.median(each[~ready])) if (~ready).any() else 0.0, each)
            for each in (latency, np.minimum(held, latency))
        )
        return cls(latency, np.where(ready, tail, np.minimum(tail, service)), held, pinned)


def _held(own: Deliveries, starts: Times, received: Times, cpu_ns: Floats) -> Floats:
    """How long each batch's worker computed others, which may keep its sending thread from running, ns."""
    found = np.zeros(len(own))
    for pid in np.unique(own["pid"][own.made]).tolist():
        rows = np.flatnonzero(own.made & (own["pid"] == pid))
        rows = rows[np.argsort(own["taken_ns"][rows], kind="stable")]
        at = np.column_stack((own["taken_ns"][rows], own["prepared_ns"][rows])).ravel()
        computed = np.repeat(np.cumsum(cpu_ns[rows]), 2)
        computed[0::2] -= cpu_ns[rows]
        until, since = (np.interp(times[rows], at, computed) for times in (received, starts))
        found[rows] = np.clip(until - since, 0, _MOST_HELD_NS)
    return found
