"""What a loader's recorded batches would have cost the consumer, had parts of their making taken no time.

The pipeline is that of a DataLoader in order: a worker makes its batches one after the other, each once its
index was sent, and the consumer sends an index with each batch that it takes. All else takes as long as it
took, and a batch that comes to lie ready is handed over at once: what is saved is an upper bound.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

from iotrace.analysis.loop.deliveries import Delivery, PassKey
from iotrace.analysis.wait.production import PARTS
from iotrace.analysis.wait.waits import Explained

FILES = "files"
_READ_AND_DECODE = 2  # how many of a production's parts are spent on files: the first ones


def gain_ms(explained: list[Explained], measured: set[int], steps: int, gone: str) -> float:
    """Bound, by a replay of all batches, what a measured step loses without `gone`: a name in `gains_ms`."""
    made = [item.made or ([0.0] * len(PARTS), {}) for item in explained]
    of_files, _, path = gone.partition(":")
    if path:
        less = [sum(by_file.get(path, ())[:_READ_AND_DECODE]) for _, by_file in made]
    elif of_files == FILES:
        less = [sum(parts[:_READ_AND_DECODE]) for parts, _ in made]
    else:
        less = [parts[PARTS.index(gone)] if gone in PARTS else 0.0 for parts, _ in made]
    deliveries = [item.delivery for item in explained]
    saved = saved_ns(deliveries, less, transport=gone == "transport", sent_at_once=gone == "queued")
    return sum(saved[number] for number in measured) / steps / 1e6


def saved_ns(
    deliveries: Sequence[Delivery],
    making_ns: Sequence[float] = (),
    transport: bool = False,
    sent_at_once: bool = False,
) -> list[float]:
    """How much shorter each wait would have been without `making_ns` of each batch's production.

    `deliveries` are a loader's, in order. `transport`: handing batches over takes no time. `sent_at_once`:
    all indices of an epoch are sent with its first, as with an endless prefetch.
    """
    ends = [delivery.delivered_ns for delivery in deliveries]
    earlier: list[float] = []  # how much earlier each batch is delivered
    prepared: dict[int, tuple[int, float]] = {}  # by worker: when its last batch was, and how much earlier
    first: dict[PassKey, tuple[int, float]] = {}  # when the first index of each pass was sent, likewise
    saved = []
    for number, delivery in enumerate(deliveries):
        asked = earlier[-1] if earlier else 0.0
        less = making_ns[number] if making_ns else 0.0
        wait_ns = delivery.wait_ns
        if delivery.prepared_ns is None or delivery.taken_ns is None:
            gain = float(wait_ns)  # what made it is not known: all of it might go
        elif delivery.pid is None:
            gain = min(less + _after(delivery, transport), wait_ns)
        else:
            sent = delivery.taken_ns if delivery.sent_ns is None else delivery.sent_ns
            at = min(bisect_left(ends, sent), number - 1)
            if at >= 0 and deliveries[at].wait_start_ns > sent:
                at -= 1  # sent before that batch was asked for
            sent_earlier = earlier[at] if at >= 0 else 0.0
            first_sent = first.setdefault(delivery.of_pass, (sent, sent_earlier))
            before = prepared.get(delivery.pid)
            free = max(sent, before[0]) if before is not None else sent
            start, start_earlier = first_sent if sent_at_once else (sent, sent_earlier)
            now_free = start - start_earlier
            if before is not None:
                now_free = max(now_free, before[0] - before[1])
            made_earlier = free - now_free + less
            prepared[delivery.pid] = delivery.prepared_ns, made_earlier
            gain = _gain(delivery, made_earlier + _after(delivery, transport) - asked)
        saved.append(gain)
        earlier.append(asked + gain)
    return saved


def _after(delivery: Delivery, transport: bool) -> float:
    """How long a batch was on its way at most, where that is to take no time."""
    if not transport or delivery.prepared_ns is None:
        return 0.0
    return delivery.delivered_ns - delivery.prepared_ns


def _gain(delivery: Delivery, ahead: float) -> float:
    """What the wait for a batch loses if it is made `ahead` ns earlier, as seen from when it is asked for."""
    assert delivery.prepared_ns is not None
    lay_ready = delivery.wait_start_ns - delivery.prepared_ns
    if lay_ready < 0 or ahead > 0:
        return min(ahead, float(delivery.wait_ns))
    return min(0.0, lay_ready + delivery.wait_ns + ahead)
