"""Files of the recorder of POSIX calls, made by hand: they grow in place, as mapped ones do."""

from __future__ import annotations

import os
import struct
from pathlib import Path

from iotrace.session import recorded
from iotrace.session.recorded import BURST_BYTES, BURSTS_BYTES, BURSTS_EACH, HEAD_BYTES

NODE = "n1"
PREAD = 17  # a kind of call
_CHUNK_BYTES = (BURSTS_BYTES + BURSTS_EACH * BURST_BYTES + 15) // 16 * 16
_ROW_BYTES = 272
_ROOM = 64 << 10


class RecordedFile:
    """The file of one process; `patches` are the writes since they were last taken: (offset, bytes)."""

    def __init__(self, pid: int, start_ns: int, realtime_ns: int, node: str = NODE) -> None:
        self.name = f"{pid}-{start_ns:x}-{node}.io"
        self.patches: list[tuple[int, bytes]] = []
        self._used = HEAD_BYTES
        self._chunks: dict[int, tuple[int, int]] = {}  # by thread: where its newest one is, how many it holds
        numbers = struct.pack("<7Q", HEAD_BYTES, pid, start_ns, realtime_ns, 0, 0, 0)
        head = recorded.MAGIC + numbers + os.fsencode(node)
        self._patch(0, head.ljust(HEAD_BYTES, b"\0"))

    def _patch(self, at: int, data: bytes) -> None:
        self.patches.append((at, data))

    def _add(self, kind: int, body: bytes, size: int = 0) -> int:
        at, size = self._used, (max(size, 8 + len(body)) + 15) // 16 * 16
        self._used += size
        self._patch(at, (struct.pack("<2I", kind, size) + body).ljust(size, b"\0"))
        self._patch(8, struct.pack("<Q", self._used))
        return at

    def name_file(self, number: int, path: str) -> None:
        """Tell the name of a file."""
        text = os.fsencode(path)
        self._add(recorded.NAME, struct.pack("<2I", number, len(text)) + text + b"\0")

    def row(self, file: int) -> int:
        """Add a row, of which nothing but its file is made up; return where it is."""
        return self._add(recorded.ROW, struct.pack("<I", file), _ROW_BYTES)

    def thread(self, tid: int, kind: int = 0, file: int = 0, since_ns: int = 0) -> None:
        """Add a thread, and the call that it is in."""
        self._add(recorded.THREAD, struct.pack("<4IQ", 0, tid, kind, file, since_ns))

    def burst(
        self, tid: int, start_ns: int, length_ns: int, file: int, moved: int = 4096, calls: int = 1
    ) -> int:
        """Add a burst of a thread; return where it is."""
        at, used = self._chunks.get(tid, (0, BURSTS_EACH))
        if used == BURSTS_EACH:
            at, used = self._add(recorded.BURSTS, struct.pack("<2I", 0, tid), _CHUNK_BYTES), 0
        where = at + BURSTS_BYTES + used * BURST_BYTES
        self._chunks[tid] = at, used + 1
        self.change(where, start_ns, length_ns, file, moved, calls)
        self._patch(at + 8, struct.pack("<I", used + 1))
        return where

    def change(self, at: int, start_ns: int, length_ns: int, file: int, moved: int, calls: int) -> None:
        """Let the burst at a position go on."""
        times = struct.pack("<4Q", start_ns, length_ns, moved, 0)
        self._patch(at, times + struct.pack("<3I2H", length_ns, calls, file, PREAD, 0))

    def taken(self) -> list[tuple[int, bytes]]:
        """The writes since the last call."""
        found, self.patches = self.patches, []
        return found

    def write(self, directory: Path) -> Path:
        """Make the writes since they were last taken; return the file."""
        path = directory / self.name
        apply(path, self.taken())
        return path


def apply(path: Path, patches: list[tuple[int, bytes]]) -> None:
    """Write into a file in place; it has room behind what is written, as the recorder's has."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        end = max((at + len(data) for at, data in patches), default=0)
        if end > os.fstat(descriptor).st_size:
            os.truncate(descriptor, (end // _ROOM + 1) * _ROOM)
        for at, data in patches:
            os.pwrite(descriptor, data, at)
    finally:
        os.close(descriptor)
