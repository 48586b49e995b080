"""Walk the records of a recorder's file (`capture/format.h`), also while it grows; standard library alone."""

from __future__ import annotations

import os
import stat
import struct
from collections.abc import Iterator
from typing import NamedTuple

from iotrace.session.names import (
    CALLS_EACH,
    LOCAL_DIRECTORY,
    METADATA_CALLS,
    POSIX,
    READING_CALLS,
    RECORDED_IN,
    WRITING_CALLS,
)

MAGIC = b"IOTPOSX1"
HEAD_BYTES, RECORD_BYTES = 256, 16  # what begins the file, and each record
NAME, ROW, BURSTS, THREAD, BLOCKS = range(1, 6)
NAME_BYTES = BURSTS_BYTES = 16  # of these records, what lies before the text and the bursts
BURSTS_EACH = 340
MOST_FILES = 1 << 18  # numbers of files are below
_HEAD = struct.Struct("<8s7Q64sQ")
_RECORD = struct.Struct("<4I")
_THREAD = struct.Struct("<6IQ")
_BURST = struct.Struct("<4Q3I2H")
BURST_BYTES = _BURST.size
_PIECE = 8 << 10  # small records are read by the dozen, and of a chunk of bursts not all
_MOST_UNFINISHED = 1024
_LONGEST_NAME = 2 * 4096
_LARGEST_PID = (1 << 31) - 1
LATEST_NS, LONGEST_NS = 1 << 61, 1 << 52  # 73 years, 52 days: beyond them a number is damaged
# What a thread may be seen in by the kernel while it is in a call of libc's: by the recorder's names.
_READS, _WRITES = {"read", "pread64", "readv", "preadv2"}, {"write", "pwrite64", "writev", "pwritev2"}
_STATS = {"stat", "lstat", "fstat", "newfstatat", "statx"}
SYSTEM_CALLS: dict[str, set[str]] = {
    "open": {"open", "openat"},
    "fopen": {"open", "openat"},
    "opendir": {"open", "openat", *_STATS},
    "stat": _STATS,
    "fclose": _WRITES,
    "fseek": _READS | _WRITES,
    "truncate": {"truncate", "ftruncate"},
    "fsync": {"fsync", "fdatasync"},
    "readdir": {"getdents64"},
    "access": {"access", "faccessat", "faccessat2"},
    "rename": {"rename", "renameat", "renameat2"},
    "unlink": {"unlink", "unlinkat"},
    **{call: {call} for call in ("close", "lseek", "mmap")},
    **{call: {call} | _READS for call in READING_CALLS},
    **{call: {call} | _WRITES for call in WRITING_CALLS},
}


class Head(NamedTuple):
    """The beginning of a file; `end_ns` is 0 where the process did not end by exit()."""

    used_bytes: int
    pid: int
    start_ns: int
    start_realtime_ns: int
    lost_calls: int
    lost_bursts: int
    end_ns: int
    node: str


class Record(NamedTuple):
    """Where a record is, what it is, and its first two fields.

    Of a name its file's number and its length, of bursts how many there are and the thread, of a thread its
    slot and number.
    """

    at: int
    type: int
    bytes: int
    first: int
    second: int


class OpenCall(NamedTuple):
    """The call that a thread is in; `file` is 0 where it is not known yet."""

    tid: int
    kind: int
    file: int
    since_ns: int


def read_head(descriptor: int) -> Head | None:
    """Read a file's beginning; None where it is no recorder's, or not whole yet."""
    data = os.pread(descriptor, HEAD_BYTES, 0)
    if len(data) < HEAD_BYTES or not data.startswith(MAGIC):
        return None
    _, *numbers, node, _ = _HEAD.unpack_from(data)
    head = Head._make((*numbers, node.rstrip(b"\0").decode(errors="replace")))
    is_damaged = head.pid > _LARGEST_PID or max(numbers) > LATEST_NS
    return None if is_damaged else head


def record_at(descriptor: int, at: int) -> Record | None:
    """Read the beginning of a record; None beyond the file's end."""
    data = os.pread(descriptor, RECORD_BYTES, at)
    return Record(at, *_RECORD.unpack(data)) if len(data) == RECORD_BYTES else None


def name_at(descriptor: int, at: int) -> str:
    """The text of the name record at a position; empty where it is damaged."""
    record = record_at(descriptor, at)
    if record is None or record.type != NAME:
        return ""
    length = min(record.second, record.bytes - NAME_BYTES, _LONGEST_NAME)
    return os.pread(descriptor, max(0, length), at + NAME_BYTES).decode(errors="backslashreplace")


def open_call_at(descriptor: int, at: int) -> OpenCall | None:
    """The call that the thread of the thread record at a position is in; None where it is in none."""
    data = os.pread(descriptor, _THREAD.size, at)
    if len(data) < _THREAD.size:
        return None
    _, _, _, tid, kind, file, since_ns = _THREAD.unpack(data)
    return OpenCall(tid, kind, file, since_ns) if 0 < since_ns < LATEST_NS else None


def burst_end_ns(descriptor: int, chunk: int, index: int) -> int:
    """When a burst of the chunk at a position ended; 0 where that was dropped, or cannot be read."""
    data = os.pread(descriptor, BURST_BYTES, chunk + BURSTS_BYTES + index * BURST_BYTES)
    if len(data) < BURST_BYTES:
        return 0
    start_ns, in_call_ns, _, _, length_ns, calls, *_ = _BURST.unpack(data)
    is_whole = calls and start_ns < LATEST_NS and in_call_ns < LONGEST_NS
    return start_ns + max(in_call_ns, length_ns) if is_whole else 0


def name_of_kind(kind: int) -> str:
    """The name of a call, by the recorder's number of its kind."""
    group, number = divmod(kind, CALLS_EACH)
    calls = (METADATA_CALLS, READING_CALLS, WRITING_CALLS)[group : group + 1]
    return calls[0][number] if calls and number < len(calls[0]) else "a call"


def count_room(chunk: Record) -> int:
    """How many bursts a chunk holds when it is full."""
    return min(BURSTS_EACH, (chunk.bytes - BURSTS_BYTES) // BURST_BYTES)


def list_directories(launch: str) -> tuple[list[str], bool]:
    """Where the recorder's files of a launch are; whether there are others, which cannot be seen from here.

    While the command runs they may be on a disk of its host. Only a directory that nobody else may write to
    is taken for that one: a session may come from anywhere.
    """
    own = f"{launch}/{POSIX}"
    try:
        descriptor = os.open(
            f"{own}/{RECORDED_IN}", os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        )
    except OSError:
        return [own], False
    try:
        local = os.fsdecode(os.read(descriptor, _LONGEST_NAME))
        status = os.lstat(local)
    except (OSError, ValueError):
        return [own], True
    finally:
        os.close(descriptor)
    is_ours = stat.S_ISDIR(status.st_mode) and not status.st_mode & 0o077 and status.st_uid == os.geteuid()
    is_ours = is_ours and os.path.basename(local).startswith(LOCAL_DIRECTORY)
    return ([own, local], False) if is_ours else ([own], True)


class Walk:
    """A walk over a file's records, which goes on where it stopped.

    `is_behind`: the last walk ended before the file's end, as it had made its `most` steps.
    """

    def __init__(self) -> None:
        self.is_behind = False
        self._at = HEAD_BYTES
        self._unfinished: list[int] = []  # what was being written when the walk came by

    def records(self, descriptor: int, used_bytes: int, most: int = 1 << 62) -> Iterator[Record]:
        """Yield the records since the last walk; a damaged one ends all walks."""
        for at in self._left():
            record = record_at(descriptor, at)
            if record is not None and _is_finished(record):
                yield record
            else:
                self._unfinished.append(at)
        piece, start = b"", 0
        self.is_behind = False
        while self._at + RECORD_BYTES <= used_bytes:
            if most <= 0:
                self.is_behind = True
                return
            most -= 1
            if not start <= self._at <= start + len(piece) - RECORD_BYTES:
                start, piece = self._at, os.pread(descriptor, _PIECE, self._at)
                if len(piece) < RECORD_BYTES:
                    return
            record = Record(self._at, *_RECORD.unpack_from(piece, self._at - start))
            size = record.bytes
            if size < RECORD_BYTES or size % 16 or record.at + size > used_bytes:
                return  # 0: the process is about to write it, or died there
            self._at += size
            if _is_finished(record):
                yield record
            elif len(self._unfinished) < _MOST_UNFINISHED:
                self._unfinished.append(record.at)

    def _left(self) -> list[int]:
        unfinished, self._unfinished = self._unfinished, []
        return unfinished


def _is_finished(record: Record) -> bool:
    return record.type != 0 and (record.type != NAME or record.first != 0)
