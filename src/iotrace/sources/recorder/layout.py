"""The recorder's files as numpy sees them: `capture/format.h`, in the order of its fields."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from iotrace.session.names import CALLS_EACH
from iotrace.session.reading import open_regular

MAGIC = b"IOTPOSX1"
HEAD = np.dtype(
    [
        ("magic", "S8"),
        ("used_bytes", "<u8"),
        ("pid", "<u8"),
        ("start_ns", "<u8"),
        ("start_realtime_ns", "<u8"),
        ("lost_calls", "<u8"),
        ("lost_bursts", "<u8"),
        ("end_ns", "<u8"),
        ("node", "S64"),
        ("refused_children", "<u8"),
    ]
)
HEAD_BYTES = 256
NAME, ROW, BURSTS, THREAD, BLOCKS = range(1, 6)
BINS = 24
ROWS = np.dtype(
    [
        *[(name, "<u4") for name in ("type", "size", "file")],
        *[(name, "<u2") for name in ("group", "slot")],
        *[(name, "<u8") for name in ("bytes", "in_call_ns", "longest_ns", "first_ns", "last_ns", "last_end")],
        ("calls", "<u4", (CALLS_EACH,)),
        *[(name, "<u4") for name in ("failed", "filled", "small", "sequential", "after_another")],
        *[(name, "<u4") for name in ("points", "again", "border")],
        ("histogram", "<u4", (BINS,)),
        ("burst", "<u8"),
        *[(name, "<u4") for name in ("scattered", "unused")],
    ]
)
BURST = np.dtype(
    [
        *[(name, "<u8") for name in ("start_ns", "in_call_ns", "bytes", "offset")],
        *[(name, "<u4") for name in ("length_ns", "calls", "file")],
        *[(name, "<u2") for name in ("kind", "flags")],
    ]
)
FAILED, NO_OFFSET, SCATTERED = 1, 2, 4
POINTS_EACH, POINT_BYTES = 4096, 4096
THREADS = np.dtype(
    [*[(name, "<u4") for name in ("type", "size", "slot", "tid", "kind", "file")], ("since_ns", "<u8")]
)
BLOCKS_OF = np.dtype(
    [
        *[(name, "<u4") for name in ("type", "size", "file", "unused")],
        ("first", "<u8"),
        ("bits", "u1", (POINTS_EACH // 8,)),
    ]
)
_NAME_BYTES, _BURSTS_BYTES = 16, 16
OTHERS, FIRST_FILE = 2, 3  # numbers of files: the first means all files beyond the most that are known
OTHERS_NAME = "(other files)"
_MOST_FILES = 1 << 20  # the recorder names a quarter of these
_LATEST_NS, _LONGEST_NS = 1 << 61, 1 << 52  # 73 years, 52 days: beyond them a number is damaged
_LARGEST_PID = (1 << 31) - 1
_Table = npt.NDArray[np.void]


class ProcessCalls(msgspec.Struct):
    """One file, as far as it is whole: its head, names by number, rows, bursts with the threads that made
    them.

    `blocks` say which multiples of 4096 of files were read. `problems` tell what could not be read.
    """

    head: Any
    names: dict[int, str]
    rows: _Table
    bursts: _Table
    tids: npt.NDArray[np.int64]
    threads: _Table
    blocks: _Table
    dropped: bool
    problems: list[str]

    @property
    def node(self) -> str:
        """The host's own name."""
        return bytes(self.head["node"]).decode(errors="replace")


def read_file(path: Path) -> ProcessCalls | str:
    """Read the file of one process, which may still write to it; or say why it cannot be read."""
    try:
        with open_regular(path, inside=True) as file:
            head = file.read(HEAD_BYTES)
            if len(head) < HEAD_BYTES or not head.startswith(MAGIC):
                return "it is no file of the recorder of POSIX calls"
            if int(np.frombuffer(head, HEAD, 1)[0]["pid"]) > _LARGEST_PID:
                return "its head is damaged"
            used_bytes = int(np.frombuffer(head, HEAD, 1)[0]["used_bytes"])
            rest_bytes = os.fstat(file.fileno()).st_size - HEAD_BYTES
            rest = file.read(max(0, min(used_bytes - HEAD_BYTES, rest_bytes)))
    except (OSError, MemoryError) as error:
        return f"it cannot be read: {getattr(error, 'strerror', None) or 'memory is full'}"
    return _parse(np.frombuffer(head + rest, np.uint8))


def _parse(data: npt.NDArray[np.uint8]) -> ProcessCalls:
    head = data[: HEAD.itemsize].view(HEAD)[0]
    used = min(len(data), int(head["used_bytes"]))
    words = data[: len(data) // 4 * 4].view("<u4")
    names: dict[int, str] = {OTHERS: OTHERS_NAME}
    positions: dict[int, list[int]] = {kind: [] for kind in (ROW, BURSTS, THREAD, BLOCKS)}
    problems: list[str] = []
    at = HEAD_BYTES
    while at + 16 <= used:
        kind, size = int(words[at // 4]), int(words[at // 4 + 1])
        if not size:
            break  # the process is about to write it, or died there
        if size % 16 or at + size > used:
            problems.append(f"from byte {at} on it is damaged: what follows was left out")
            positions[BURSTS] += [at] if kind == BURSTS else []  # those that are there
            break
        if kind == NAME and words[at // 4 + 2] < _MOST_FILES:
            number, length = int(words[at // 4 + 2]), int(words[at // 4 + 3])
            text = data[at + _NAME_BYTES : at + _NAME_BYTES + min(length, size - _NAME_BYTES)]
            names[number] = text.tobytes().decode(errors="backslashreplace")
        elif kind in positions:
            positions[kind].append(at)
        at += size
    bursts, tids, dropped = _bursts(data, words, positions[BURSTS])
    return ProcessCalls(
        head,
        names,
        _records(data, positions[ROW], ROWS),
        bursts,
        tids,
        _records(data, positions[THREAD], THREADS),
        _records(data, positions[BLOCKS], BLOCKS_OF),
        dropped,
        problems,
    )


def _records(data: npt.NDArray[np.uint8], positions: list[int], kind: np.dtype[Any]) -> _Table:
    whole = [at for at in positions if at + kind.itemsize <= len(data)]
    if not whole:
        return np.empty(0, kind)
    records = np.stack([data[at : at + kind.itemsize] for at in whole])
    return records.view(kind).reshape(-1)


def _bursts(
    data: npt.NDArray[np.uint8], words: npt.NDArray[np.uint32], positions: list[int]
) -> tuple[_Table, npt.NDArray[np.int64], bool]:
    """All bursts, and for each the thread that made it; whether some were dropped for the session's size."""
    parts, tids, dropped = [], [], False
    for at in positions:
        used, tid = int(words[at // 4 + 2]), int(words[at // 4 + 3])
        begin = at + _BURSTS_BYTES
        room = (min(len(data), at + int(words[at // 4 + 1])) - begin) // BURST.itemsize
        part = data[begin : begin + min(used, room) * BURST.itemsize].view(BURST)
        kept = part[part["calls"] > 0]
        dropped |= len(kept) < len(part)
        kept = kept[(kept["start_ns"] < _LATEST_NS) & (kept["in_call_ns"] < _LONGEST_NS)]
        parts.append(kept)
        tids.append(np.full(len(kept), tid, np.int64))
    if not parts:
        return np.empty(0, BURST), np.empty(0, np.int64), dropped
    return np.concatenate(parts), np.concatenate(tids), dropped
