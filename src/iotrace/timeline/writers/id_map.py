"""Processes and threads of one input, under numbers that no other input uses."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from msgspec import UNSET

from iotrace.errors import IotraceError

Raw = int | str
# Thread numbers have one width, so that a slice moves to another lane by overwriting its digits.
FIRST_TID, LAST_TID = 1_000_001, 9_999_999
PIDS_EACH = 1000


@dataclass
class ProcessTrack:
    """A process as its input names it; `pid` is its number in the result."""

    pid: int
    raw: Raw
    name: str = ""
    labels: str = ""
    sort_index: int | None = None
    used: bool = False  # by counters and others that are on no thread's track


@dataclass
class ThreadTrack:
    """A track of slices. `stacked` ones hold begin and end events; lanes above 0 hold overlapping slices."""

    index: int
    pid: int
    tid: int
    raw_pid: Raw
    raw_tid: Raw
    stacked: bool = False
    lane: int = 0
    name: str = ""
    sort_index: int | None = None
    used: bool = False


@dataclass
class Thread:
    """A track of the result; lanes of one thread have one name. Those of one `group` are shown together."""

    pid: int
    tid: int
    name: str
    order: int = 0
    lane: int = 0
    group: str = ""


@dataclass
class Process:
    """A process of the result, `order` counting from 1.

    In a tree of tracks it is called `short`, and is shown below its `groups`, the outermost first.
    """

    pid: int
    name: str
    labels: str
    key: tuple[Any, ...]
    order: int = 0
    short: str = ""
    groups: tuple[str, ...] = ()
    threads: list[Thread] = field(default_factory=list)


@dataclass
class Tracks:
    """Numbers given to the input `index` of `inputs`; those in `shared` are several inputs' processes."""

    index: int
    inputs: int
    shared: dict[Raw, int] = field(default_factory=dict)
    processes: dict[Raw, ProcessTrack] = field(default_factory=dict)
    threads: list[ThreadTrack] = field(default_factory=list)
    _by_key: dict[tuple[Raw, Raw, bool], ThreadTrack] = field(default_factory=dict)
    _lanes: dict[tuple[int, int], ThreadTrack] = field(default_factory=dict)
    _own: int = 0

    def process(self, raw: Any) -> ProcessTrack:
        """The process that an input calls `raw`."""
        key = normal(raw, "no pid")
        track = self.processes.get(key)
        if track is None:
            track = self.processes[key] = ProcessTrack(self.shared.get(key) or self._next_pid(), key)
        return track

    def thread(self, raw_pid: Any, raw_tid: Any, stacked: bool = False) -> ThreadTrack:
        """The thread that an input calls `raw_tid` of `raw_pid`; apart for begin and end events."""
        process = self.process(raw_pid)
        key = (process.raw, normal(raw_tid, "no tid"), stacked)
        track = self._by_key.get(key)
        if track is None:
            track = self._by_key[key] = self._new(process.pid, key[0], key[1], stacked)
        return track

    def overflow(self, thread: ThreadTrack, lane: int) -> ThreadTrack:
        """Lane `lane` of a thread whose slices overlap."""
        if lane == 0:
            return thread
        track = self._lanes.get((thread.index, lane))
        if track is None:
            track = self._new(thread.pid, thread.raw_pid, thread.raw_tid, thread.stacked)
            track.lane, track.used = lane, True
            self._lanes[thread.index, lane] = track
        return track

    def stacked_track(self, thread: ThreadTrack) -> ThreadTrack:
        """The begin and end events of a thread; itself where it has none."""
        return self._by_key.get((thread.raw_pid, thread.raw_tid, True), thread)

    def base_track(self, thread: ThreadTrack) -> ThreadTrack:
        """The thread that `thread` is a lane of, or the begin and end events of: it has the name."""
        return self._by_key.get((thread.raw_pid, thread.raw_tid, False), thread)

    def _new(self, pid: int, raw_pid: Raw, raw_tid: Raw, stacked: bool) -> ThreadTrack:
        each = (LAST_TID - FIRST_TID) // self.inputs
        index = len(self.threads)
        if index >= each:
            raise IotraceError(
                f"more than {each} threads in one of {self.inputs} inputs", "merge fewer inputs at a time"
            )
        tid = FIRST_TID + self.index * each + index
        thread = ThreadTrack(index, pid, tid, raw_pid, raw_tid, stacked)
        self.threads.append(thread)
        return thread

    def _next_pid(self) -> int:
        block, offset = divmod(self._own, PIDS_EACH)
        self._own += 1
        return 1 + (block * self.inputs + self.index) * PIDS_EACH + offset


def normal(raw: Any, missing: str) -> Raw:
    """Old Kineto writes one thread as 7 and as "7"."""
    if raw is UNSET or raw is None:
        return missing
    if isinstance(raw, str) and raw.isascii() and raw.isdigit() and len(raw) < 19:
        return int(raw)
    return raw if isinstance(raw, int | str) else str(raw)
