"""Hold a session below a size: the oldest POSIX calls of this host are dropped, their sums are kept.

dftracer appends to its logs from within the program, so a log is neither moved nor cut: its beginning becomes
a hole, which takes no space and changes no position. What is dropped is read once more before. The names of
files, which the rest of all logs needs, and the sums of the calls go to a file beside it. Our recorder keeps
names and sums apart: of its files `recorded_limit` drops bursts alone.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from functools import cache
from typing import Any

from iotrace.launch.telemetry.recorded_limit import RecordedLimit, RefusedError
from iotrace.session import names
from iotrace.session.recorded import directories_of

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
            map(_size_of, {f"{each}/{names.PROCESSES}" for each in [self._session, *launches]})
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
                self._drop_of(path, self._dropped.get(path, 0), size)
            self._dropped[path] = size
        del self._marks[: number + 1]

    def _drop_of(self, path: str, start: int, end: int) -> None:
        if end <= start or self.refused:
            return
        descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            kept, sums = _summed(_lines(descriptor, start, end))
            held = _append(names.kept_log(path), kept + _line_of(sums))
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
            _append(names.kept_log(path), _line_of({"refused": self.refused}))


def _line_of(told: dict[str, object]) -> bytes:
    line = {"name": names.DROPPED, "cat": "iotrace", "ph": 4, "args": told}
    return json.dumps(line, separators=(",", ":")).encode() + b"\n"


def _sizes(launches: Iterable[str], suffix: str) -> dict[str, os.stat_result]:
    """The launches' files of POSIX calls; what the program compresses or writes elsewhere stays its own."""
    found = {}
    for directory in (each for launch in launches for each in directories_of(launch)[0]):
        with suppress(FileNotFoundError), os.scandir(directory) as entries:
            for entry in entries:
                # dftracer deletes the logs of processes without events.
                with suppress(FileNotFoundError):
                    if entry.name.endswith(suffix) and entry.is_file(follow_symlinks=False):
                        found[entry.path] = entry.stat()
    return found


def _size_of(directory: str) -> int:
    """Return the bytes on disk of the files one level below `directory`."""
    found = 0
    with suppress(OSError), os.scandir(directory) as processes:
        for process in processes:
            with suppress(OSError), os.scandir(process.path) as files:
                found += sum(512 * each.stat(follow_symlinks=False).st_blocks for each in files)
    return found


def _lines(descriptor: int, start: int, end: int) -> Iterator[bytes]:
    """Yield pieces of whole lines that begin in ``[start, end)``; of the line before, the end is left out."""
    rest, position = b"", start
    skips = start > 0
    while position < end:
        piece = os.pread(descriptor, min(_PIECE, end - position), position)
        if not piece:
            return
        position += len(piece)
        if position >= end:  # the last line ends behind the hole
            piece += os.pread(descriptor, 2 * _BLOCK, position).partition(b"\n")[0] + b"\n"
        if skips:
            piece, skips = piece.partition(b"\n")[2], False
        whole, newline, rest = (rest + piece).rpartition(b"\n")
        yield whole + newline


def _summed(pieces: Iterable[bytes]) -> tuple[bytes, dict[str, object]]:
    """Return the lines that are no calls, and the sums of those that are: all of one process."""
    kept: list[bytes] = []
    calls = moved = 0
    pid, until_us = b"0", 0
    for piece in pieces:
        text = b"\n" + piece
        own = _OWN_EVENTS.findall(text)
        kept += _NO_EVENTS.findall(text) + own
        calls += text.count(b'\n{"id":') - len(own)
        moved += sum(int(result) for each in _MOVED for result in each.findall(text))
        if found := _PID_AND_TIME.findall(text[-_BLOCK:]):
            pid, until_us = found[-1][0], int(found[-1][1])
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
