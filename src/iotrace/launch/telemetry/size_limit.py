"""Hold a session below a size: the oldest POSIX calls of this host are dropped, their sums are kept.

dftracer appends to its logs from within the program, so a log is neither moved nor cut: its beginning becomes
a hole, which takes no space and changes no position. What is dropped is read once more before. The names of
files, which the rest of all logs needs, and the sums of the calls go to a file next to it. Our recorder keeps
names and sums apart: of its files `recorded_limit` drops bursts alone.

Drop the oldest bursts of calls of the recorder's files on this host: their pages become holes.

Programs have the files mapped, so nothing moves and nothing is cut. A chunk of bursts that is full is not
written to again once its newest burst is old. A hole reads as bursts of 0 calls. What shares a page with
the head of a record stays, a quarter of a chunk; and so do all other records, the sums of calls among them.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import suppress
from functools import cache
from typing import Any

from iotrace.session import names, recorded
from iotrace.session.recorded import BURST_BYTES, BURSTS_BYTES, BURSTS_EACH, Record, Walk, list_directories

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
        records = self._walk.records(descriptor, head.used_bytes, most_records)
        self._unseen.extend(record.at for record in records if record.type == recorded.BURSTS)
        for _ in range(len(self._unfilled)):
            self._look_at(descriptor, self._unfilled.popleft())
        while self._unseen and len(self.full) < count:
            self._look_at(descriptor, self._unseen.popleft())

    def _look_at(self, descriptor: int, at: int) -> None:
        chunk = recorded.record_at(descriptor, at)
        if chunk is None or chunk.type != recorded.BURSTS:
            return
        if chunk.first < recorded.count_room(chunk):
            self._unfilled.append(at)
            return
        end_ns = recorded.burst_end_ns(descriptor, at, recorded.count_room(chunk) - 1)
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
            freed += _whole_pages(at)[1]
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
                    punch(descriptor, *_whole_pages(at))
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
    return recorded.count_room(chunk) == BURSTS_EACH <= chunk.first


def _whole_pages(at: int) -> tuple[int, int]:
    """The whole pages among the bursts of the chunk at a position: where they begin, and their length."""
    begin = -(-(at + BURSTS_BYTES) // PAGE) * PAGE
    end = (at + BURSTS_BYTES + BURSTS_EACH * BURST_BYTES) // PAGE * PAGE
    return begin, end - begin


_CHECK_NS = 5_000_000_000
_LEFT = 0.8  # of the limit, so that not every check has something to drop
_MOST_MARKS = 64  # moments at which the logs' sizes are known
_BLOCK = 4096
_PIECE = 8 << 20
_KEEP_SIZE_AND_PUNCH = 0x01 | 0x02  # FALLOC_FL_KEEP_SIZE, FALLOC_FL_PUNCH_HOLE
# Each begins with plain text, which is searched for at 400 MB/s and more. dftracer's own events are kept.
_NO_EVENTS = re.compile(rb'\n(\{"name"[^\n]*)')
_OWN_EVENTS = re.compile(rb'\n(\{"id":\d+,"name":"[a-z]+","cat":"dftracer"[^\n]*)')
_MOVED = [re.compile(rb'%b\w*","cat"[^}]*"ret":(\d+)' % name) for name in (b"read", b"write")]
_PID_AND_TIME = re.compile(rb'"pid":(\d+),"tid":\d+,"ts":(\d+)')


class SizeLimit:
    """Knows how large the logs of the launches were at some moments, and what was dropped of each."""

    def __init__(self, session: str, most_bytes: int) -> None:
        self._session = session
        self._most_bytes = most_bytes
        self._marks: list[dict[str, int]] = []  # sizes by log, the oldest first
        self._dropped: dict[str, int] = {}
        self._recorded = RecordedLimit()
        self._next_ns = 0
        self.refused = ""  # why nothing can be dropped

    def check(self, launches: Collection[str]) -> None:
        """Drop what is too much of the calls of `launches`; every 5 s at most, else do nothing."""
        now_ns = time.monotonic_ns()
        if now_ns < self._next_ns or self.refused:
            return
        self._next_ns = now_ns + _CHECK_NS
        logs, recorded = _sizes(launches, ".pfw"), _sizes(launches, names.RECORDED_CALLS)
        if logs:
            # Sizes without what is still in dftracer's buffers, and to whole blocks.
            self._marks.append({path: stat.st_size // _BLOCK * _BLOCK for path, stat in logs.items()})
        if len(self._marks) > _MOST_MARKS:
            del self._marks[::2]
        held = 512 * sum(stat.st_blocks for stat in (*logs.values(), *recorded.values()))
        total = held + sum(
            map(_measure_size, {f"{each}/{names.PROCESSES}" for each in [self._session, *launches]})
        )
        if total > self._most_bytes:
            wanted = total - round(_LEFT * self._most_bytes)
            wanted -= self._drop_recorded(recorded, wanted, now_ns)
            if self._marks and wanted > 0:
                self._drop(wanted)

    def _drop_recorded(self, paths: Collection[str], wanted: int, now_ns: int) -> int:
        try:
            return self._recorded.drop(paths, wanted, now_ns, _punch)
        except RefusedError as error:
            self._refuse(error.path, error.why)
            return wanted

    def _drop(self, wanted: int) -> None:
        """Drop up to the first moment before which `wanted` bytes were written, else up to the last one."""
        for number, mark in enumerate(self._marks):  # noqa: B007
            if sum(size - self._dropped.get(path, 0) for path, size in mark.items()) >= wanted:
                break
        for path, size in mark.items():
            with suppress(FileNotFoundError):  # likewise
                self._drop_from(path, self._dropped.get(path, 0), size)
            self._dropped[path] = size
        del self._marks[: number + 1]

    def _drop_from(self, path: str, start: int, end: int) -> None:
        if end <= start or self.refused:
            return
        descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            kept, sums = _summed(_lines(descriptor, start, end))
            held = _append(names.kept_log(path), kept + _encode_line(sums))
            try:
                _punch(descriptor, start, end - start)
            except OSError as error:  # a file system that knows no holes
                os.truncate(names.kept_log(path), held)
                self._refuse(path, error)
        except OSError as error:  # a full disk
            self._refuse(path, error)
        finally:
            os.close(descriptor)

    def _refuse(self, path: str, error: OSError) -> None:
        self.refused = os.strerror(error.errno or 0)
        with suppress(OSError):
            _append(names.kept_log(path), _encode_line({"refused": self.refused}))


def _encode_line(told: dict[str, object]) -> bytes:
    line = {"name": names.DROPPED, "cat": "iotrace", "ph": 4, "args": told}
    return json.dumps(line, separators=(",", ":")).encode() + b"\n"


def _sizes(launches: Iterable[str], suffix: str) -> dict[str, os.stat_result]:
    """The launches' files of POSIX calls; what the program compresses or writes elsewhere stays its own."""
    sizes = {}
    for directory in (each for launch in launches for each in list_directories(launch)[0]):
        with suppress(FileNotFoundError), os.scandir(directory) as entries:
            for entry in entries:
                # dftracer deletes the logs of processes without events.
                with suppress(FileNotFoundError):
                    if entry.name.endswith(suffix) and entry.is_file(follow_symlinks=False):
                        sizes[entry.path] = entry.stat()
    return sizes


def _measure_size(directory: str) -> int:
    """Return the bytes on disk of the files one level below `directory`."""
    size = 0
    with suppress(OSError), os.scandir(directory) as processes:
        for process in processes:
            with suppress(OSError), os.scandir(process.path) as files:
                size += sum(512 * each.stat(follow_symlinks=False).st_blocks for each in files)
    return size


def _lines(descriptor: int, start: int, end: int) -> Iterator[bytes]:
    """Yield pieces of whole lines that begin in ``[start, end)``; of the line before, the end is left out."""
    rest, position = b"", start
    skips = start > 0
    while position < end:
        piece = os.pread(descriptor, min(_PIECE, end - position), position)
        if not piece:
            return
        position += len(piece)
        if position >= end:  # the last line ends after the hole
            piece += os.pread(descriptor, 2 * _BLOCK, position).partition(b"\n")[0] + b"\n"
        if skips:
            piece, skips = piece.partition(b"\n")[2], False
        whole, newline, rest = (rest + piece).rpartition(b"\n")
        yield whole + newline


def _summed(pieces: Iterable[bytes]) -> tuple[bytes, dict[str, object]]:
    """Return the lines that are no calls, and the sums of the calls: all of one process."""
    kept: list[bytes] = []
    calls = moved = 0
    pid, until_us = b"0", 0
    for piece in pieces:
        text = b"\n" + piece
        own = _OWN_EVENTS.findall(text)
        kept += _NO_EVENTS.findall(text) + own
        calls += text.count(b'\n{"id":') - len(own)
        moved += sum(int(result) for each in _MOVED for result in each.findall(text))
        if stamps := _PID_AND_TIME.findall(text[-_BLOCK:]):
            pid, until_us = stamps[-1][0], int(stamps[-1][1])
    kept.append(b"")
    sums = {"events": {pid.decode(): calls}, "calls": calls, "bytes": moved, "until_us": until_us}
    return b"\n".join(kept), sums


def _append(path: str, data: bytes) -> int:
    """Append `data`, and return how long the file was."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, names.FILE_MODE)
    try:
        held = os.fstat(descriptor).st_size
        while data:
            data = data[os.write(descriptor, data) :]
        return held
    finally:
        os.close(descriptor)


def _punch(descriptor: int, start: int, length: int) -> None:
    import ctypes  # few sessions need it

    arguments = (ctypes.c_int(descriptor), ctypes.c_int(_KEEP_SIZE_AND_PUNCH))
    if _libc().fallocate64(*arguments, ctypes.c_int64(start), ctypes.c_int64(length)):
        raise OSError(ctypes.get_errno(), "fallocate")


@cache
def _libc() -> Any:
    import ctypes

    return ctypes.CDLL(None, use_errno=True)
