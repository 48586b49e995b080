"""What each rank's loop did second by second, from its own records alone: cheap enough for every second."""

from __future__ import annotations

import time
from typing import TypeVar

import msgspec
import numpy as np
import numpy.typing as npt

from iotrace.analysis.intervals import Times
from iotrace.analysis.window import Window
from iotrace.session import names
from iotrace.sources.live.process import LiveProcess
from iotrace.sources.live.session import LiveSession
from iotrace.sources.records import IteratorStart

SECONDS = 60
_SECOND_NS = 1_000_000_000
_Number = TypeVar("_Number", int, float)


class RankPulse(msgspec.Struct, frozen=True):
    """The last `SECONDS` of a rank, up to the second before its newest batch; None: not known.

    `batches` came in each second from its loop's loader, and `waits` is the share of the second in which the
    loop waited for one. `age_s` is how long ago the newest batch came, where its host's clock is this one's.
    """

    rank: int
    host: str | None
    batches: list[int | None]
    waits: list[float | None]
    age_s: float | None

    @property
    def newest(self) -> int | None:
        """The place of the newest second that is known."""
        return next((at for at in reversed(range(SECONDS)) if self.batches[at] is not None), None)


class Pulse(msgspec.Struct, frozen=True):
    """All ranks at one moment, on one axis of time; its end is now, or a little before."""

    ranks: list[RankPulse]


class Pulses:
    """Follows the ranks of the last look at a session; what it reads is not read again by the next look."""

    def __init__(self, live: LiveSession, boot_id: str) -> None:
        self._live, self._boot = live, boot_id
        self._rows: dict[tuple[str, int], _Rows] = {}

    def pulse(self, windows: list[Window], now_ns: int) -> Pulse:
        """Read what the records of each rank's training process grew by; `now_ns` is the session's time."""
        found = []
        for window in windows:
            primary = window.loop.primary
            live = self._live.grown(window.rank.main.identity)
            if live is None or primary is None:
                continue
            rows = self._rows.setdefault(window.key, _Rows())
            rows.take(live, primary.number)
            found.append((window, rows))
        self._rows = {window.key: rows for window, rows in found}
        clocks = [window.rank.main.clock for window, _ in found]
        ends = [
            clock.to_session_ns(rows.newest_ns) // _SECOND_NS
            for clock, (_, rows) in zip(clocks, found, strict=True)
            if rows.newest_ns
        ]
        end = max([now_ns // _SECOND_NS - 1, *ends])
        ranks = []
        for clock, (window, rows) in zip(clocks, found, strict=True):
            offset_ns = clock.to_session_ns(0)
            batches, waits = rows.by_second((end - SECONDS) * _SECOND_NS - offset_ns)
            main = window.rank.main
            here = bool(self._boot) and main.identity.boot_id == self._boot
            age_s = (time.monotonic_ns() - rows.newest_ns) / 1e9 if here and rows.newest_ns else None
            ranks.append(RankPulse(window.rank.number, main.host, batches, waits, age_s))
        return Pulse(ranks)


class _Rows:
    """When the newest batches of a loader were asked for and came, of its process's CLOCK_MONOTONIC."""

    def __init__(self) -> None:
        self._asked: Times = np.empty(0, np.int64)
        self._came: Times = np.empty(0, np.int64)
        self._seen_ns = 0
        self._since_ns = 0  # all that came since then is known

    @property
    def newest_ns(self) -> int:
        return int(self._came[-1]) if len(self._came) else 0

    def take(self, live: LiveProcess, loader: int) -> None:
        rows = live.arrays.get(names.BATCH_ROW)
        if rows is None or not len(rows):
            return
        came = rows["delivered_ns"]
        if not self._seen_ns or int(came[0]) > self._seen_ns:  # the first look, or some were passed over
            self._since_ns = 0 if live.whole else int(came[0])
            self._asked, self._came = self._asked[:0], self._came[:0]
        rows = rows[np.searchsorted(came, self._seen_ns, side="right") :]
        if not len(rows):
            return
        self._seen_ns = int(rows["delivered_ns"][-1])
        own = {
            each.iterator
            for each in live.records
            if isinstance(each, IteratorStart) and each.loader == loader
        }
        rows = rows[np.isin(rows["iterator"], list(own))]
        asked, came = (np.append(*pair) for pair in (
            (self._asked, rows["wait_start_ns"]), (self._came, rows["delivered_ns"])
        ))  # fmt: skip
        kept = came > self._seen_ns - 2 * SECONDS * _SECOND_NS
        self._asked, self._came = asked[kept], came[kept]
        if not kept.all():
            self._since_ns = max(self._since_ns, int(came[~kept][-1]))

    def by_second(self, begin_ns: int) -> tuple[list[int | None], list[float | None]]:
        """Count the batches of `SECONDS` seconds from `begin_ns` on, and what share of each was waited."""
        edges = begin_ns + _SECOND_NS * np.arange(SECONDS + 1)
        counts = np.diff(np.searchsorted(self._came, edges))
        waits = np.diff(_waited(self._asked, self._came, edges)) / _SECOND_NS
        known = (edges[:-1] >= self._since_ns) & (edges[1:] <= self.newest_ns)
        if len(self._came):
            known &= edges[:-1] >= self._asked[0]
        return _known(counts.tolist(), known), _known(np.round(waits, 4).tolist(), known)


def _known(values: list[_Number], known: npt.NDArray[np.bool_]) -> list[_Number | None]:
    return [value if is_known else None for value, is_known in zip(values, known.tolist(), strict=True)]


def _waited(asked: Times, came: Times, at: Times) -> npt.NDArray[np.float64]:
    """How long was waited in all up to each time; waits that lie in each other count once."""
    if not len(came):
        return np.zeros(len(at))
    begun = np.maximum(asked, np.append(asked[:1], np.maximum.accumulate(came)[:-1]))
    begun = np.minimum(begun, came)
    total = np.cumsum(came - begun)
    times = np.stack((begun, came), axis=1).reshape(-1)
    sums = np.stack((total - (came - begun), total), axis=1).reshape(-1)
    waited: npt.NDArray[np.float64] = np.interp(at, times, sums)
    return waited
