"""What a loader's recorded batches would have cost the consumer, had parts of their making taken no time.

The pipeline is that of a DataLoader in order: a worker makes its batches one after the other, each once its
index was sent, and the consumer sends an index with each batch that it takes. All else takes as long as it
took, and a batch that comes to lie ready is handed over at once. That is no upper bound: what is left gets
quicker, too, once others compute less. The bound is replayed with as much less as the change spares of that.
"""

from __future__ import annotations

import msgspec
import numpy as np
import numpy.typing as npt

from iotrace.analysis.intervals import Times, distinct, grouped
from iotrace.analysis.loop.deliveries import Deliveries
from iotrace.analysis.table import key_of
from iotrace.analysis.wait.data_wait import QUICKER
from iotrace.analysis.wait.production import PARTS
from iotrace.analysis.wait.waits import Waits

FILES = "files"
RESIZED = "files and transform"  # what data that is stored as samples need it spares at most

# So many batches are replayed, at most: each depends on those before.
MOST = 20_000
_NEVER = -(2**62)  # ns: when a worker was free that made nothing before
Floats = npt.NDArray[np.float64]


class Replayed(msgspec.Struct, frozen=True):
    """The waits for a loader's batches, and what a measured step loses of them without some of the making.

    `waits` are those for the first `MOST` batches at most, which stand for the others. `measured` are the
    numbers of the batches that the measured `steps` await. `delays_ns`, of shape (batches,), is what of each
    batch's making was a wait for a CPU; NaN where it is not known. `makers` make batches on its host.
    """

    waits: Waits
    measured: Times
    steps: int
    delays_ns: Floats
    quicker: float = QUICKER
    makers: int = 1

    def gain_ms(self, gone: str) -> float:
        """Return what a step loses without `gone`, a name in `gains_ms`; all else takes what it took."""
        return self._mean_ms(self.less_ns(gone), gone == "transport", gone == "queued")

    def most_ms(self, gone: str) -> float | None:
        """Return what it loses at most: see `most_without_ms`."""
        return self.most_without_ms(self.less_ns(gone), sent_at_once=gone == "queued")

    def most_without_ms(self, less_ns: Floats, sent_at_once: bool = False) -> float | None:
        """Return what a step loses at most without `less_ns` of each batch's making; None: not known.

        What is left queues no longer for what other makers spare, and shares caches with less. It queued for
        each of them as long as it runs itself, and a quarter more: the kernel gives all their turn. Where
        nothing is spared of the making, but of its way, any of its queueing may go.
        """
        delays_ns, made_ns = self.delays_ns, self.waits.made.sum(axis=1)
        if np.isnan(delays_ns[~np.isnan(made_ns)]).any():
            return None
        share = self.spared(less_ns)
        made_ns, delays_ns = np.nan_to_num(made_ns), np.nan_to_num(delays_ns)
        left_ns = np.maximum(made_ns - less_ns, 0.0)
        # Of what is left as much as may be queued, and as much as may have run: nobody tells which part did.
        gone_ns = np.minimum(delays_ns, left_ns)
        ran_ns = left_ns - gone_ns
        if share is not None:
            ran_ns = np.minimum(np.maximum(made_ns - delays_ns, 0.0), left_ns)
            gone_ns = np.minimum(gone_ns, (1 + self.quicker) * share * (self.makers - 1) * ran_ns)
        by = self.quicker * (1.0 if share is None else share)
        most_ns = less_ns + gone_ns + by * np.minimum(ran_ns, left_ns - gone_ns)
        return self._mean_ms(most_ns, transport=True, sent_at_once=sent_at_once)

    def spared(self, less_ns: Floats) -> float | None:
        """Return what share of the making that is; None: nothing of it, or no making is known."""
        made_ns = float(np.nansum(self.waits.made))
        spared_ns = float(np.nan_to_num(less_ns).sum())
        return min(1.0, spared_ns / made_ns) if made_ns > 0 and spared_ns > 0 else None

    def less_ns(self, gone: str) -> Floats:
        """Return what of each batch's making is `gone`, in ns."""
        own = self.waits
        of_files, _, path = gone.partition(":")
        if path:
            costs = own.made_files
            of_path = costs.file == costs.names.number(path)
            spent_ns = costs.read_and_decoded_ns[of_path]
            less = np.bincount(costs.owner[of_path], spent_ns, len(own)).astype(np.float64)
        else:
            parts = {FILES: ("read", "decode"), RESIZED: ("read", "decode", "transform")}
            names = parts.get(of_files, (gone,) if gone in PARTS else ())
            less = own.made[:, [PARTS.index(name) for name in names]].sum(axis=1)
        return np.asarray(np.where(np.isnan(less), 0.0, less))

    def _mean_ms(self, less_ns: Floats, transport: bool, sent_at_once: bool) -> float:
        saved = saved_ns(self.waits.deliveries, less_ns, transport, sent_at_once)
        return _mean_ms(saved, self.measured, self.steps)


def replayed_gain_ms(
    deliveries: Deliveries,
    measured: Times,
    steps: int,
    less: Floats,
    transport: bool = False,
) -> float:
    """Return what a step loses without `less` ns of the making of each batch; `transport`: and its way."""
    own = deliveries[:MOST]
    return _mean_ms(saved_ns(own, less[:MOST], transport), measured, steps)


def _mean_ms(saved: Floats, measured: Times, steps: int) -> float:
    replayed = measured[measured < len(saved)]
    if not len(replayed):
        return 0.0
    return float(sum(saved[distinct(replayed)].tolist())) / steps / 1e6 * (len(measured) / len(replayed))


def saved_ns(
    deliveries: Deliveries,
    making_ns: npt.NDArray[np.float64] | None = None,
    transport: bool = False,
    sent_at_once: bool = False,
) -> npt.NDArray[np.float64]:
    """How much shorter each wait would have been without `making_ns` of each batch's production.

    `deliveries` are a loader's, in order. `transport`: handing batches over takes no time. `sent_at_once`:
    all indices of an epoch are sent with its first, as with an endless prefetch.
    """
    less = np.zeros(len(deliveries)) if making_ns is None else making_ns
    made, by_worker = deliveries.made, deliveries.known("pid")
    after = deliveries["delivered_ns"] - deliveries["prepared_ns"] if transport else np.zeros(len(deliveries))
    after = np.where(made, after, 0).astype(np.float64)
    # What made the batch is not known: all of it might go. What the consumer makes itself is shorter by that.
    saved = np.where(made, np.minimum(less + after, deliveries.wait_ns), deliveries.wait_ns).astype(
        np.float64
    )
    by_one = np.flatnonzero(made & by_worker)
    if not len(by_one):
        return saved
    sent = np.where(deliveries.known("sent_ns"), deliveries["sent_ns"], deliveries["taken_ns"])
    # An index is sent with the batch that was delivered last, or with that before: then the ask came later.
    at = np.minimum(np.searchsorted(deliveries["delivered_ns"], sent), np.arange(len(deliveries)) - 1)
    at = at - ((at >= 0) & (deliveries["wait_start_ns"][at] > sent))
    before = _before(deliveries["pid"], by_one)
    done = np.where(before >= 0, deliveries["prepared_ns"][before], _NEVER)  # that batch: its worker is free
    free = np.maximum(sent, done)
    if sent_at_once:
        _, first, of = grouped(key_of(deliveries["iterator"], deliveries["epoch"])[by_one])
        sent[by_one], at[by_one] = sent[by_one[first[of]]], at[by_one[first[of]]]
    columns = (
        *(made & by_worker, sent, at + 1, done, before + 1, free),
        *(less, after, saved, deliveries["wait_start_ns"] - deliveries["prepared_ns"]),
        deliveries.wait_ns.astype(np.float64),
    )
    # How much earlier each batch is prepared, and delivered, from the second place on; what each wait loses.
    prepared, delivered, gains, earlier = [0.0], [0.0], [], 0.0
    rows = zip(*(column.tolist() for column in columns), strict=True)
    for one, sent_ns, sender, done_ns, last, free_ns, less_ns, after_ns, gain, ready_ns, long_ns in rows:
        made_earlier = 0.0
        if one:
            now_sent, now_done = sent_ns - delivered[sender], done_ns - prepared[last]
            made_earlier = free_ns - (now_sent if now_sent >= now_done else now_done) + less_ns
            ahead = made_earlier + after_ns - earlier  # as seen from when the batch is asked for
            if ready_ns < 0 or ahead > 0:
                gain = ahead if ahead <= long_ns else long_ns
            else:
                behind = ready_ns + long_ns + ahead
                gain = behind if behind < 0 else 0.0
        earlier += gain
        prepared.append(made_earlier)
        delivered.append(earlier)
        gains.append(gain)
    return np.array(gains)


def _before(pids: Times, rows: Times) -> Times:
    """Return, of each of these rows, the one before it of the same process; -1: none, and of all others."""
    found = np.full(len(pids), -1, np.int64)
    order = rows[np.argsort(pids[rows], kind="stable")]
    same = pids[order[1:]] == pids[order[:-1]]
    found[order[1:][same]] = order[:-1][same]
    return found
