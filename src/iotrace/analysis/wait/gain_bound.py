"""What a loader's recorded batches would have cost the consumer, had parts of their making taken no time.

The pipeline is that of a DataLoader in order: a worker makes its batches one after the other, each once its
index was sent, and the consumer sends an index with each batch that it takes. All else takes as long as it
took, and a batch that comes to lie ready is handed over at once. That is no upper bound: what is left gets
quicker, too, once it has the CPUs to itself. The bound is replayed without any wait for a CPU.
"""

from __future__ import annotations

import msgspec
import numpy as np
import numpy.typing as npt

from iotrace.analysis.intervals import Times, distinct
from iotrace.analysis.loop.deliveries import Deliveries
from iotrace.analysis.table import key_of
from iotrace.analysis.wait.data_wait import QUICKER
from iotrace.analysis.wait.production import PARTS
from iotrace.analysis.wait.waits import Waits

FILES = "files"
RESIZED = "files and transform"  # what data that is stored as samples need it spares at most

# So many batches are replayed, at most: each depends on those before.
MOST = 20_000
Floats = npt.NDArray[np.float64]


class Replayed(msgspec.Struct, frozen=True):
    """The waits for a loader's batches, and what a measured step loses of them without some of the making.

    `measured` are the numbers of the batches that the measured `steps` await. Of more than `MOST` the first
    are replayed, and stand for the others. `delays_ns`, of shape (batches,), is what of each batch's making
    was a wait for a CPU; NaN where it is not known.
    """

    waits: Waits
    measured: Times
    steps: int
    delays_ns: Floats
    quicker: float = QUICKER

    def gain_ms(self, gone: str) -> float:
        """Return what a step loses without `gone`, a name in `gains_ms`; all else takes what it took."""
        return self._mean_ms(
            saved_ns(self._deliveries, self.less_ns(gone), gone == "transport", sent_at_once=gone == "queued")
        )

    def most_ms(self, gone: str) -> float | None:
        """Return what it loses at most: see `most_without_ms`."""
        return self.most_without_ms(self.less_ns(gone), sent_at_once=gone == "queued")

    def most_without_ms(self, less_ns: Floats, sent_at_once: bool = False) -> float | None:
        """Return what a step loses at most without `less_ns` of each batch's making; None: not known.

        Then nothing waits for a CPU or for the interpreter any more; what is left is quicker by `quicker`.
        """
        delays_ns, made_ns = self.delays_ns[: len(less_ns)], self._own.made.sum(axis=1)
        if np.isnan(delays_ns[~np.isnan(made_ns)]).any():
            return None
        left_ns = np.maximum(np.nan_to_num(made_ns) - less_ns, 0.0)
        queued_ns = np.minimum(np.nan_to_num(delays_ns), left_ns)
        most_ns = less_ns + queued_ns + self.quicker * (left_ns - queued_ns)
        return self._mean_ms(saved_ns(self._deliveries, most_ns, transport=True, sent_at_once=sent_at_once))

    @property
    def _own(self) -> Waits:
        return self.waits.between(0, min(MOST, len(self.waits)))

    @property
    def _deliveries(self) -> Deliveries:
        return self._own.deliveries

    def less_ns(self, gone: str) -> Floats:
        """Return what of each batch's making is `gone`, in ns."""
        own = self._own
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

    def _mean_ms(self, saved: Floats) -> float:
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
    if not (made & by_worker).any():
        return saved
    sent = np.where(deliveries.known("sent_ns"), deliveries["sent_ns"], deliveries["taken_ns"])
    # An index is sent with the batch that was delivered last, or with that before: then the ask came later.
    number = np.arange(len(deliveries))
    at = np.minimum(np.searchsorted(deliveries["delivered_ns"], sent), number - 1)
    at = at - ((at >= 0) & (deliveries["wait_start_ns"][at] > sent))
    earlier = [0.0]  # how much earlier each batch is delivered, from the second place on
    prepared: dict[int, tuple[int, float]] = {}  # by worker: when its last batch was, and how much earlier
    first: dict[int, tuple[int, float]] = {}  # when the first index of each pass was sent, likewise
    own_pass = key_of(deliveries["iterator"], deliveries["epoch"])
    columns = (
        *(made & by_worker, sent, at, deliveries["pid"], own_pass, deliveries["prepared_ns"]),
        *(less, after, saved, deliveries["wait_start_ns"], deliveries.wait_ns),
    )
    rows = zip(*(column.tolist() for column in columns), strict=True)
    for row, (by_one, sent_ns, sender, pid, of_pass, ready_ns, *costs) in enumerate(rows):
        less_ns, after_ns, gain, asked_ns, wait_ns = costs
        if by_one:
            sent_earlier = earlier[sender + 1] if sender >= 0 else 0.0
            first_sent = first.setdefault(of_pass, (sent_ns, sent_earlier))
            before = prepared.get(pid)
            free = max(sent_ns, before[0]) if before is not None else sent_ns
            start, start_earlier = first_sent if sent_at_once else (sent_ns, sent_earlier)
            now_free = start - start_earlier
            if before is not None:
                now_free = max(now_free, before[0] - before[1])
            made_earlier = free - now_free + less_ns
            prepared[pid] = ready_ns, made_earlier
            gain = _gain(asked_ns - ready_ns, wait_ns, made_earlier + after_ns - earlier[-1])
            saved[row] = gain
        earlier.append(earlier[-1] + gain)
    return saved


def _gain(lay_ready_ns: int, wait_ns: int, ahead: float) -> float:
    """What the wait for a batch loses if it is made `ahead` ns earlier, as seen from when it is asked for."""
    if lay_ready_ns < 0 or ahead > 0:
        return min(ahead, float(wait_ns))
    return min(0.0, lay_ready_ns + wait_ns + ahead)
