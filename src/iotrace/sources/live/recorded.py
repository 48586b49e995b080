"""The newest POSIX calls of a session that runs, as our recorder keeps them in mapped files.

Nothing is held back in the program: on the host that looks, a process's calls are known until now, also where
it makes none. Of another host's process they are known as far as its file has come here.
"""

from __future__ import annotations

import os
import time
from array import array
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Protocol

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

from iotrace.session import recorded
from iotrace.session.identity import boot_id
from iotrace.session.reading import open_regular
from iotrace.session.recorded import BURST_BYTES, BURSTS_BYTES, Head, Record, Walk
from iotrace.sources.clocks.anchors import Clocks
from iotrace.sources.clocks.session_clock import Clock, Times
from iotrace.sources.posix_calls import PosixCalls, as_integers
from iotrace.sources.recorder.layout import (
    BLOCKS_OF,
    BURST,
    HEAD,
    OTHERS,
    OTHERS_NAME,
    ROWS,
    THREADS,
    ProcessCalls,
)
from iotrace.sources.recorder.reader import CallTable, recorded_files
from iotrace.sources.records import Identity


class Known(msgspec.Struct):
    """From when to when the calls of a process are known without a gap, in ns."""

    since_ns: int
    until_ns: int


class NewestCalls(Protocol):
    """The newest calls in a session's files, whoever recorded them."""

    def poll(self, directories: Iterable[Path]) -> None:
        """Read what the files in `directories` grew by; of much the newest."""

    def find_known(self, identity: Identity, clock: Clock) -> Known | None:
        """How far a process's calls are known, in the session's time; None where nothing is."""

    def forget(self, clocks: Clocks, before_ns: int) -> None:
        """Give up the calls that ended before `before_ns` of the session's time."""

    def calls(self, clocks: Clocks) -> PosixCalls:
        """The calls that are still known, in the session's time."""


GROWS_NS = 2_000_000  # a burst lasts 1 ms at most: one that is older grows no more
_MANY_CHUNKS = 64  # of threads that have ended, most of them
_MOST_THREADS = 65_536
_Bursts = npt.NDArray[np.void]


class _Chunk(msgspec.Struct):
    """A record of bursts: those before `taken` were read; `held` is what the last look saw after them."""

    at: int
    room: int
    tid: int = 0
    used: int = 0
    taken: int = 0
    held: bytes = b""

    @property
    def unread(self) -> int:
        return self.used - self.taken


class LiveFile:
    """The newest bursts of one process; nothing that happened since `since_ns` is missing.

    `newest_ns` is the end of the newest burst. Both are times of the process's CLOCK_MONOTONIC.
    """

    def __init__(self, path: Path) -> None:
        self.head: Head | None = None
        self.since_ns = self.newest_ns = 0
        self.path = path
        self._walk = Walk()
        self._chunks: dict[int, _Chunk] = {}  # those that may still grow, by position
        self._threads: list[int] = []
        self._name_at = array("q")  # by the file's number: names are read when they are needed
        self._names: dict[int, str] = {}
        self._unnamed: set[int] = set()
        self._bursts = np.empty(0, BURST)
        self._tids = np.empty(0, np.int64)
        self._holes: set[int] = set()  # threads whose newest bursts were dropped

    @property
    def is_behind(self) -> bool:
        """Whether there is more in it than the last look came to see."""
        return self._walk.is_behind

    @property
    def unread_bytes(self) -> int:
        """The size of the bursts that were not read yet."""
        return BURST_BYTES * sum(chunk.unread for chunk in self._chunks.values())

    def __len__(self) -> int:
        return len(self._bursts)

    def look(self, most_records: int) -> int:
        """Learn what the file grew by; return how many records were passed."""
        try:
            with open_regular(self.path, inside=True) as file:
                return self._look(file.fileno(), most_records)
        except OSError:
            return 0

    def _look(self, descriptor: int, most_records: int) -> int:
        head = recorded.read_head(descriptor)
        if head is None:
            return 0
        # What a process that ended has left stays as it is.
        before, self.head = self.head, head
        if head.end_ns and head == before and not self.unread_bytes and not self.is_behind:
            return 0
        passed = 0
        for record in self._walk.records(descriptor, head.used_bytes, most_records):
            self._learn(record)
            passed += 1
        for chunk in self._chunks.values():
            entry = recorded.record_at(descriptor, chunk.at)
            if entry is not None and entry.type == recorded.BURSTS:
                chunk.used, chunk.tid = max(chunk.taken, min(entry.first, chunk.room)), entry.second
        self._find_names(descriptor)
        return passed

    def _learn(self, record: Record) -> None:
        if record.type == recorded.BURSTS:
            self._chunks[record.at] = _Chunk(record.at, recorded.count_room(record))
        elif record.type == recorded.NAME and record.first < recorded.MOST_FILES:
            missing = record.first + 1 - len(self._name_at)
            self._name_at.extend([0] * missing if missing > 0 else [])
            self._name_at[record.first] = record.at
        elif record.type == recorded.THREAD and len(self._threads) < _MOST_THREADS:
            self._threads.append(record.at)

    def read(self, most_bytes: int, now_ns: int) -> None:
        """Read the newest bursts, `most_bytes` of them; those that grow yet are left to the next look.

        `now_ns` is the process's time, as far as it is known.
        """
        try:
            with open_regular(self.path, inside=True) as file:
                self._read(file.fileno(), most_bytes // BURST_BYTES, now_ns)
        except OSError:
            pass

    def _read(self, descriptor: int, most: int, now_ns: int) -> None:
        passed: dict[int, tuple[int, int]] = {}  # by thread: the last burst that is passed over
        wanted: list[_Chunk] = []
        for chunk in sorted(self._chunks.values(), key=lambda each: -each.at):
            if not chunk.unread:
                continue
            count = min(most, chunk.unread)
            most -= count
            if count < chunk.unread:
                chunk.taken, chunk.held = chunk.used - count, b""
                passed.setdefault(chunk.tid, (chunk.at, chunk.taken - 1))
            if count:
                wanted.append(chunk)
        for at, index in passed.values():
            end_ns = recorded.burst_end_ns(descriptor, at, index)
            self.since_ns = max(self.since_ns, end_ns or self.newest_ns)
        unread = [(chunk, self._read_unread(descriptor, chunk)) for chunk in reversed(wanted)]
        for _, bursts in unread:
            self.newest_ns = max(self.newest_ns, int(end_times(bursts[_are_whole(bursts)]).max(initial=0)))
        taken = [self._take(chunk, bursts, max(now_ns, self.newest_ns)) for chunk, bursts in unread]
        tids = [np.full(len(bursts), chunk.tid) for (chunk, _), bursts in zip(unread, taken, strict=True)]
        self._bursts = np.concatenate([self._bursts, *taken])
        self._tids = np.concatenate([self._tids, *tids])
        self._unnamed |= {number for bursts in taken for number in np.unique(bursts["file"]).tolist()}
        self._unnamed -= self._names.keys()
        self._close(descriptor)
        self._find_names(descriptor)

    def _read_unread(self, descriptor: int, chunk: _Chunk) -> _Bursts:
        begin = chunk.at + BURSTS_BYTES + chunk.taken * BURST_BYTES
        data = os.pread(descriptor, chunk.unread * BURST_BYTES, begin)
        return np.frombuffer(data[: len(data) // BURST_BYTES * BURST_BYTES], BURST)

    def _take(self, chunk: _Chunk, bursts: _Bursts, now_ns: int) -> _Bursts:
        """Take the first of the bursts unread: those that are old, or were the same at the last look."""
        ready = as_integers(bursts["start_ns"]) < now_ns - GROWS_NS
        before = np.frombuffer(chunk.held, BURST)
        same = min(len(before), len(bursts))
        ready[:same] |= before[:same] == bursts[:same]
        count = len(bursts) if ready.all() else int(np.argmin(ready))
        chunk.taken += count
        chunk.held = bursts[count:].tobytes()
        bursts = bursts[:count]
        whole = _are_whole(bursts)
        kept = bursts[whole]
        if not whole.all():  # they were dropped, for the session's size
            self._holes.add(chunk.tid)
            behind = bursts[np.flatnonzero(~whole)[-1] + 1 :]
        else:
            behind = kept
        if chunk.tid in self._holes and len(behind):
            self.since_ns = max(self.since_ns, int(as_integers(behind["start_ns"][:1])[0]))
            self._holes.discard(chunk.tid)
        return kept

    def _close(self, descriptor: int) -> None:
        """Forget the chunks that do not grow any more: a thread writes to its newest one alone."""
        newest = {chunk.tid: at for at, chunk in self._chunks.items() if chunk.tid}
        ended = {at for at, chunk in self._chunks.items() if newest.get(chunk.tid, at) != at}
        if len(newest) > _MANY_CHUNKS:
            records = (recorded.record_at(descriptor, at) for at in self._threads)
            tids = [os.pread(descriptor, 4, record.at + 12) for record in records if record is not None]
            living = {int.from_bytes(each, "little") for each in tids}
            ended |= {at for tid, at in newest.items() if tid not in living}
        for at, chunk in list(self._chunks.items()):
            if chunk.taken == chunk.room or (at in ended and not chunk.unread):
                del self._chunks[at]

    def _find_names(self, descriptor: int) -> None:
        for number in list(self._unnamed):
            at = self._name_at[number] if number < len(self._name_at) else 0
            name = recorded.name_at(descriptor, at) if at else OTHERS_NAME if number == OTHERS else ""
            if name:
                self._names[number] = name
                self._unnamed.discard(number)

    def forget(self, before_ns: int) -> None:
        """Give up the bursts that ended before a time, and the names of files that no other one has."""
        kept = end_times(self._bursts) >= before_ns
        if kept.all():
            return
        self._bursts, self._tids = self._bursts[kept], self._tids[kept]
        used = set(np.unique(self._bursts["file"]).tolist())
        self._names = {number: name for number, name in self._names.items() if number in used}
        self._unnamed &= used

    def ends_ns(self) -> Times:
        """When each of its bursts ended."""
        return end_times(self._bursts)

    def calls(self) -> ProcessCalls | None:
        """What is still known, as of a file that is read whole; None where that is nothing."""
        if self.head is None or not len(self._bursts):
            return None
        *numbers, node = self.head
        head = np.zeros(1, HEAD)
        head[0] = (recorded.MAGIC, *numbers, str(node).encode(), 0)
        nothing = (np.empty(0, kind) for kind in (ROWS, THREADS, BLOCKS_OF))
        rows, threads, blocks = nothing
        return ProcessCalls(head[0], self._names, rows, self._bursts, self._tids, threads, blocks, False, [])


def _are_whole(bursts: _Bursts) -> npt.NDArray[np.bool_]:
    """Mark the bursts that are neither dropped nor damaged."""
    in_time = (bursts["start_ns"] < recorded.LATEST_NS) & (bursts["in_call_ns"] < recorded.LONGEST_NS)
    return (bursts["calls"] > 0) & in_time


def end_times(bursts: _Bursts) -> Times:
    """When bursts ended: those of one call that lasted more than 4 s do not say how long they were."""
    longest = np.maximum(as_integers(bursts["length_ns"]), as_integers(bursts["in_call_ns"]))
    return as_integers(bursts["start_ns"]) + longest


MOST_BYTES = 2 << 20  # of bursts, at one look
_LEAST_BYTES = 16 << 10
_MOST_RECORDS = 400_000  # whose beginnings are read at one look, some 0.3 s
_MOST_CALLS = 600_000


class LiveRecorded:
    """The calls in the files of `directories`, by the newest of each file."""

    def __init__(self) -> None:
        self._files: dict[str, LiveFile] = {}  # by name: in the end some are moved into the session
        self._of_process: dict[tuple[str, int], list[LiveFile]] = {}
        self._looked_ns = 0
        self._node, self._boot = os.uname().nodename, boot_id()

    def poll(self, directories: Iterable[Path]) -> None:
        """Read what the files grew by, `MOST_BYTES` of calls at most; of more the newest of each file."""
        self._looked_ns = time.monotonic_ns()
        for path in recorded_files(directories):
            self._files.setdefault(path.name, LiveFile(path)).path = path
        most = _MOST_RECORDS
        for file in self._files.values():
            most -= file.look(max(most, 0))
        grown = {file: size for file in self._files.values() if (size := file.unread_bytes)}
        share = min(1.0, MOST_BYTES / max(1, sum(grown.values())))
        for file, size in grown.items():
            file.read(size if share == 1 else max(_LEAST_BYTES, int(size * share)), self._now_ns(file))
        self._of_process = defaultdict(list)
        for file in self._files.values():
            if file.head is not None:
                self._of_process[file.head.node, file.head.pid].append(file)

    def _now_ns(self, file: LiveFile) -> int:
        """A process's time now; 0 where its clock is not the one here."""
        return self._looked_ns if file.head is not None and file.head.node == self._node else 0

    def find_known(self, identity: Identity, clock: Clock) -> Known | None:
        """How far a process's calls are known, in the session's time; None where nothing is."""
        files = self._of_process.get((identity.node, identity.pid))
        if not files:
            return None
        until_ns = max(file.newest_ns for file in files)
        if self._boot and identity.boot_id == self._boot and not any(file.is_behind for file in files):
            until_ns = max(until_ns, self._looked_ns - GROWS_NS)
        since_ns = max(file.since_ns for file in files)
        return Known(clock.to_session_ns(since_ns) if since_ns else 0, clock.to_session_ns(until_ns))

    def forget(self, clocks: Clocks, before_ns: int) -> None:
        """Give up the calls that ended before a time of the session, and the oldest of too many."""
        offsets_ns = {file: _offset_ns(file, clocks) for file in self._files.values()}
        if sum(map(len, offsets_ns)) > _MOST_CALLS:
            ends_ns = np.concatenate([file.ends_ns() + offset_ns for file, offset_ns in offsets_ns.items()])
            newest_ns = int(np.partition(ends_ns, -_MOST_CALLS)[-_MOST_CALLS])
            if newest_ns > before_ns:
                before_ns = newest_ns
                for file, offset_ns in offsets_ns.items():
                    file.since_ns = max(file.since_ns, before_ns - offset_ns)
        for file, offset_ns in offsets_ns.items():
            file.forget(before_ns - offset_ns)

    def calls(self, clocks: Clocks) -> PosixCalls:
        """The calls that are still known, in the session's time."""
        table = CallTable(clocks)
        for file in self._files.values():
            calls = file.calls()
            if calls is not None:
                table.take(calls)
        return replace(table.calls(), sums=None)  # they are those of the whole run


def _offset_ns(file: LiveFile, clocks: Clocks) -> int:
    """What leads from a process's CLOCK_MONOTONIC to the session's time."""
    if file.head is None:
        return 0
    clock = clocks.of(file.head.node, file.head.pid)
    return file.head.start_realtime_ns - file.head.start_ns if clock is None else clock.offset_ns
