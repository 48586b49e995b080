"""Read the files of the recorder of POSIX calls in the plainest way: `capture/format.h` describes them."""

from __future__ import annotations

import struct
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

HEAD_BYTES = 256
NAME, ROW, BURSTS, THREAD, BLOCKS = range(1, 6)
PER_GROUP, BINS = 16, 24
_QUICK = ["open", "close", "lseek", "stat", "access", "mmap", "opendir", "readdir"]
GROUPS = (
    [*_QUICK, "fopen", "fclose", "fseek", "fsync", "rename", "unlink", "truncate"],
    ["read", "pread", "readv", "preadv", "fread", "fgets", "getline", "sendfile", "copy_from"],
    ["write", "pwrite", "writev", "pwritev", "fwrite", "fputs", "copy_to"],
)
METADATA, READING, WRITING = range(3)
_HEAD = struct.Struct("<8s7Q64sQ")
_ROW = struct.Struct(f"<3I2H6Q{PER_GROUP}I8I{BINS}IQ2I")
_BURST = struct.Struct("<4Q3I2H")


@dataclass
class Row:
    """What one thread did with one file."""

    file: str
    group: int
    slot: int
    bytes: int
    calls: dict[str, int]
    failed: int
    sequential: int
    points: int
    again: int
    timed: int
    """Calls in the histogram."""


@dataclass
class Process:
    """One file of the recorder."""

    pid: int
    lost_calls: int
    lost_bursts: int
    end_ns: int
    refused_children: int = 0
    names: dict[int, str] = field(default_factory=dict)
    rows: list[Row] = field(default_factory=list)
    burst_calls: int = 0
    threads: int = 0

    def calls(self, below: str = "") -> Counter[str]:
        """Calls by kind, of files whose names begin so."""
        found: Counter[str] = Counter()
        for row in self.rows:
            if row.file.startswith(below):
                found.update(row.calls)
        return found

    def moved(self, group: int, below: str = "") -> int:
        """Bytes read or written."""
        return sum(row.bytes for row in self.rows if row.group == group and row.file.startswith(below))


def read_process(path: Path) -> Process:
    """Read one file, and check that it is sound."""
    data = path.read_bytes()
    magic, used, pid, _start, _real, lost_calls, lost_bursts, end_ns, _node, refused = _HEAD.unpack_from(data)
    assert magic == b"IOTPOSX1"
    assert used <= len(data), "less is reserved than is used"
    process = Process(pid, lost_calls, lost_bursts, end_ns, refused)
    rows = []
    at = HEAD_BYTES
    while at < used:
        kind, size, third, fourth = struct.unpack_from("<4I", data, at)
        assert kind in (0, NAME, ROW, BURSTS, THREAD, BLOCKS), (kind, at)
        assert size >= 16, at
        assert (size % 16, at + size <= used) == (0, True), (size, at)
        if kind == NAME:
            assert fourth <= size - 16
            process.names[third] = data[at + 16 : at + 16 + fourth].decode(errors="surrogateescape")
        elif kind == ROW:
            rows.append(_ROW.unpack_from(data, at))
        elif kind == BURSTS:
            assert third <= (size - 16) // _BURST.size
            for index in range(third):
                calls = _BURST.unpack_from(data, at + 16 + index * _BURST.size)[5]
                assert calls > 0, "a burst of no calls"
                process.burst_calls += calls
        elif kind == THREAD:
            process.threads += 1
        at += size
    for row in rows:
        process.rows.append(_row(process.names, row))
    return process


def _row(names: dict[int, str], row: tuple[int, ...]) -> Row:
    _type, _size, file, group, slot, moved = row[:6]
    calls = row[11 : 11 + PER_GROUP]
    failed, _filled, _small, sequential, _after, points, again, _border = row[11 + PER_GROUP : 19 + PER_GROUP]
    counts = {name: count for name, count in zip(GROUPS[group], calls, strict=False) if count}
    timed = sum(row[19 + PER_GROUP : 19 + PER_GROUP + BINS])
    name = names.get(file, f"({file})")
    return Row(name, group, slot, moved, counts, failed, sequential, points, again, timed)


def read_all(folder: Path) -> list[Process]:
    """All files of a session."""
    return [read_process(path) for path in sorted(folder.glob("*.io"))]


def all_calls(processes: list[Process], below: str = "") -> Counter[str]:
    """Calls of all processes, by kind."""
    found: Counter[str] = Counter()
    for process in processes:
        found.update(process.calls(below))
    return found


def all_moved(processes: list[Process], group: int, below: str = "") -> int:
    """Bytes that all processes read or wrote."""
    return sum(process.moved(group, below) for process in processes)
