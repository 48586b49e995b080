"""Drop the oldest bursts of calls of the recorder's files on this host: their pages become holes.

Programs have the files mapped, so nothing moves and nothing is cut. A chunk of bursts that is full is not
written to again once its newest burst is old. A hole reads as bursts of 0 calls. What shares a page with
the head of a record stays, a quarter of a chunk; and so do all other records, the sums of calls among them.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Collection
from contextlib import suppress

from iotrace.session import names, recorded
from iotrace.session.recorded import BURST_BYTES, BURSTS_BYTES, BURSTS_EACH, Record, Walk

PAGE = 4096
_OLD_NS = 10_000_000_000  # a burst lasts 1 ms: nothing goes on in a chunk that old
_LEAST_FREED = (BURSTS_EACH * BURST_BYTES - 2 * (PAGE - 1)) // PAGE * PAGE  # by dropping a chunk
_MOST_DROPPED = 20_000  # chunks at a time, some 0.2 s
_MOST_RECORDS = 50_000  # that are passed at a time, some 50 ms
_MOST_UNFILLED = 4096  # chunks: of threads that have ended most of them

Punch = Callable[[int, int, int], None]  # a descriptor, a position, a length


class RefusedError(Exception):
    """No hole can be made in the file at `path`; `why` is the system's error."""

    def __init__(self, path: str, why: OSError) -> None:
        super().__init__(path)
        self.path, self.why = path, why


class _File:
    """A file's chunks of bursts that are there yet: `full` ones with their end, the oldest first."""

    def __init__(self) -> None:
        self._walk = Walk()
        self._unseen: deque[int] = deque()
        self._unfilled: deque[int] = deque(maxlen=_MOST_UNFILLED)
        self.full: deque[tuple[int, int]] = deque()

    def look(self, descriptor: int, count: int, most_records: int) -> None:
        """Find `count` full chunks, if there are so many."""
        head = recorded.read_head(descriptor)
        if head is None:
            return
        found = self._walk.records(descriptor, head.used_bytes, most_records)
        self._unseen.extend(record.at for record in found if record.type == recorded.BURSTS)
        for _ in range(len(self._unfilled)):
            self._look_at(descriptor, self._unfilled.popleft())
        while self._unseen and len(self.full) < count:
            self._look_at(descriptor, self._unseen.popleft())

    def _look_at(self, descriptor: int, at: int) -> None:
        chunk = recorded.record_at(descriptor, at)
        if chunk is None or chunk.type != recorded.BURSTS:
            return
        if chunk.first < recorded.room_of(chunk):
            self._unfilled.append(at)
            return
        end_ns = recorded.burst_end_ns(descriptor, at, recorded.room_of(chunk) - 1)
        if end_ns:  # else it was dropped
            self.full.append((end_ns, at))


class RecordedLimit:
    """Knows which chunks of which files can be dropped."""

    def __init__(self) -> None:
        self._files: dict[str, _File] = {}

    def drop(self, paths: Collection[str], wanted: int, now_ns: int, punch: Punch) -> int:
        """Drop the oldest bursts of the files at `paths`; return how many bytes that freed, `wanted` or less.

        Raises:
            RefusedError: the file system knows no holes.
        """
        own = [path for path in paths if path.endswith(f"-{os.uname().nodename}{names.RECORDED_CALLS}")]
        self._files = {path: self._files.get(path) or _File() for path in own}
        count = min(_MOST_DROPPED, wanted // _LEAST_FREED + 1)
        for path, file in self._files.items():
            with suppress(OSError):
                descriptor = _open(path, os.O_RDONLY)
                try:
                    file.look(descriptor, count, max(1000, _MOST_RECORDS // len(own)))
                finally:
                    os.close(descriptor)
        oldest = sorted(
            (end_ns, path, at)
            for path, file in self._files.items()
            for end_ns, at in file.full
            if end_ns < now_ns - _OLD_NS
        )
        chosen: dict[str, set[int]] = {}
        freed = 0
        for _, path, at in oldest[:_MOST_DROPPED]:
            if freed >= wanted:
                break
            chosen.setdefault(path, set()).add(at)
            freed += _pages_of(at)[1]
        for path, chunks in chosen.items():
            self._punch(path, chunks, punch)
        return freed

    def _punch(self, path: str, chunks: set[int], punch: Punch) -> None:
        file = self._files[path]
        file.full = deque(each for each in file.full if each[1] not in chunks)
        try:
            descriptor = _open(path, os.O_RDWR)
        except OSError:  # it was moved away
            return
        try:
            for at in sorted(chunks):
                if _is_full(recorded.record_at(descriptor, at)):
                    punch(descriptor, *_pages_of(at))
        except OSError as error:
            raise RefusedError(path, error) from error
        finally:
            os.close(descriptor)


def _open(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)


def _is_full(chunk: Record | None) -> bool:
    """Say whether it is a chunk of the size that is known, and full."""
    if chunk is None or chunk.type != recorded.BURSTS:
        return False
    return recorded.room_of(chunk) == BURSTS_EACH <= chunk.first


def _pages_of(at: int) -> tuple[int, int]:
    """The whole pages among the bursts of the chunk at a position: where they begin, and their length."""
    begin = -(-(at + BURSTS_BYTES) // PAGE) * PAGE
    end = (at + BURSTS_BYTES + BURSTS_EACH * BURST_BYTES) // PAGE * PAGE
    return begin, end - begin
