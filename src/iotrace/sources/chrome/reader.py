"""Chrome trace JSON of any layout, as batches of events: fast where it is sound, tolerant where it is not.

This is the scanner, and it can be replaced as one piece: bytes in, `Batch`es and the document's other keys
out. Where text is kept and `scan.c` was compiled, events stay text, and what it refuses is decoded; else all
are. A piece that ends between two events is decoded at once by msgspec; one that msgspec refuses is read
object by object.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Generator, Iterator
from typing import Any

import msgspec
import numpy as np

from iotrace import compiled
from iotrace.sources.chrome import compiled_scan
from iotrace.sources.chrome.batch import Batch, EventBatch
from iotrace.sources.chrome.decoder import CONTROLS, decode
from iotrace.sources.chrome.event import Event
from iotrace.sources.chrome.lenient_decoder import event_of, objects
from iotrace.sources.chrome.raw_batch import TextBatch

_ESCAPED = {0xDC00 + byte: f"\\\\x{byte:02x}" for byte in range(0x80, 0x100)}
_EVENTS_KEY = re.compile(rb'"traceEvents"\s*:\s*\[')
_NEXT_DOCUMENT = re.compile(rb"\}\s*\{(?=[^{}]*$)")  # the last one before some keys
_LARGEST_HEADER = 64 << 20
_BETWEEN = b" \t\r\n,\0"
_BEFORE = b"\xef\xbb\xbf" + _BETWEEN
_ODD_BYTES = 1 << 16  # how much is decoded where the compiled scanner met an odd event


class Scanner:
    """Reads one document. `metadata` holds the keys beside the events once `batches` has ended.

    `keep_text` says that batches may be text (`TextBatch`).
    """

    def __init__(self, name: str, keep_text: bool = False) -> None:
        self.metadata: dict[str, Any] = {}
        self.problems: list[str] = []
        self.lost_events = 0
        self.mended: Counter[str] = Counter()
        self.bare_array = False
        self._arrays = 0
        self._name = name
        self._compiled = keep_text and compiled.available()
        self._offset = 0  # of the buffer in the content
        self._separator: bytes | None = None
        self._first_loss: int | None = None

    def batches(self, blocks: Iterator[bytes]) -> Iterator[Batch]:
        """The events of the document, in order."""
        buffer = b""
        inside = False
        for block in blocks:
            buffer += block
            while inside or self._enters(buffer):
                buffer = yield from self._take(buffer if inside else self._entered(buffer))
                inside = buffer.lstrip(_BETWEEN)[:1] != b"]"
                if inside:
                    break
                buffer = self._left(buffer)
            if not inside and len(buffer) > _LARGEST_HEADER:
                break
        buffer = b"".join([buffer, *blocks])
        while inside or self._enters(buffer):
            buffer = yield from self._take_all(buffer if inside else self._entered(buffer))
            inside = False
        self._end(buffer)
        self._summarise()

    def _enters(self, buffer: bytes) -> bool:
        """Whether an array of events begins in the buffer. Documents may follow one another in a file."""
        bare = buffer.lstrip(_BEFORE)[:1] == b"["
        return (bare and (self.bare_array or not self._arrays)) or _EVENTS_KEY.search(buffer) is not None

    def _entered(self, buffer: bytes) -> bytes:
        """What follows the ``[`` of the events that begin in the buffer."""
        self._separator = None
        self._arrays += 1
        stripped = buffer.lstrip(_BEFORE)
        if stripped[:1] == b"[":
            self.bare_array = True
            self._offset += len(buffer) - len(stripped) + 1
            return stripped[1:]
        found = _EVENTS_KEY.search(buffer)
        assert found is not None
        before = buffer[: found.start()].lstrip(_BEFORE)
        if self._arrays > 1:
            end = _NEXT_DOCUMENT.search(before)
            if end is not None:
                self._end(before[: end.start() + 1])
            before = b"{" + before[end.end() if end else 0 :].lstrip(_BETWEEN)
        self._keep(before + b'"traceEvents":null}')
        self._offset += found.end()
        return buffer[found.end() :]

    def _left(self, buffer: bytes) -> bytes:
        """What follows the ``]`` that the buffer begins with."""
        left = buffer.lstrip(_BETWEEN)[1:]
        self._offset += len(buffer) - len(left)
        return left

    def _keep(self, document: bytes) -> None:
        try:
            found = json.loads(document.decode(errors="replace"), strict=False)
            self.metadata.update((key, value) for key, value in found.items() if key != "traceEvents")
        except (ValueError, RecursionError, AttributeError):
            self.problems.append(f"{self._name}: the keys beside traceEvents could not all be read")
            base = re.search(rb'"baseTimeNanoseconds"\s*:\s*(\d{1,19})\b', document)
            if base:
                self.metadata["baseTimeNanoseconds"] = int(base[1])

    def _take(self, buffer: bytes) -> Generator[Batch, None, bytes]:
        """The whole events at the buffer's front; returns what is left of it."""
        while self._compiled:
            found = compiled_scan.scan(buffer)
            if len(found.rows):
                yield TextBatch.of(buffer, found)
            self._offset += found.consumed
            buffer = buffer[found.consumed :]
            if found.status in (compiled_scan.MORE, compiled_scan.END):
                return buffer
            if found.status == compiled_scan.ODD:
                size = _ODD_BYTES
                while True:
                    batch, left = self._decoded(buffer[:size])
                    if batch is not None or len(left) < min(size, len(buffer)):
                        break
                    if size >= len(buffer):
                        return buffer  # the odd event goes on in the next block
                    size *= 8
                if batch is not None:
                    yield batch
                buffer = left + buffer[size:]
        batch, buffer = self._decoded(buffer)
        if batch is not None:
            yield batch
        return buffer

    def _decoded(self, piece: bytes) -> tuple[EventBatch | None, bytes]:
        """The whole events at the piece's front, and what is left of it."""
        piece, cut = self._clean(piece)
        piece = piece.lstrip(b" ,")
        if self._separator is None:
            self._separator = _separator_of(piece)
        if self._separator is not None:  # there are two whole events
            end = piece.rfind(self._separator)
            for _ in range(4):
                if end < 0:
                    break
                batch = decode(piece[: end + 1])
                if batch is not None:
                    self._offset += end + 2
                    return batch, piece[end + 2 :] + cut
                if self._separator.startswith(b"},  "):
                    break  # the layout tells events from what is nested in them: the piece itself is odd
                end = piece.rfind(self._separator, 0, end)
        elif not self._compiled:
            return None, piece + cut
        batch, left = self._one_by_one(piece, final=False)
        return (batch if batch.events else None), left + cut

    def _clean(self, piece: bytes) -> tuple[bytes, bytes]:
        """The piece without what msgspec refuses, and a character apart that its end cuts."""
        piece = piece.translate(CONTROLS)
        if piece.isascii():
            return piece, b""
        try:
            piece.decode()
        except UnicodeDecodeError as error:
            cut = b""
            if error.reason == "unexpected end of data" and error.end == len(piece):
                return piece[: error.start], piece[error.start :]
            self.mended["pieces with invalid UTF-8, shown as \\xNN"] += 1
            return piece.decode(errors="surrogateescape").translate(_ESCAPED).encode(), cut
        return piece, b""

    def _one_by_one(self, piece: bytes, final: bool) -> tuple[EventBatch, bytes]:
        text = piece.decode()
        events: list[Event] = []
        starts: list[int] = []
        durations: list[int] = []
        extra: dict[int, dict[str, Any]] = {}
        at = 0
        for found in objects(text, 0, final):
            if found.value is not None:
                try:
                    event, start, duration, unknown, mended = event_of(found.value)
                except (ValueError, msgspec.MsgspecError, RecursionError, TypeError, OverflowError):
                    self._lose(found.start)
                else:
                    self.mended.update(mended)
                    if unknown:
                        extra[len(events)] = unknown
                    events.append(event)
                    starts.append(start)
                    durations.append(duration)
            else:
                self._lose(found.start)
            at = found.end
        left = text[at:].encode(errors="replace")
        self._offset += max(0, len(piece) - len(left))
        batch = EventBatch(events, np.array(starts, np.int64), np.array(durations, np.int64), extra)
        return batch, left

    def _lose(self, at: int) -> None:
        self.lost_events += 1
        if self._first_loss is None:
            self._first_loss = self._offset + at

    def _take_all(self, tail: bytes) -> Generator[Batch, None, bytes]:
        """All events up to the array's end, which nothing follows that is not here; returns what does."""
        piece, cut = self._clean(tail)
        if cut:
            piece += cut.decode(errors="surrogateescape").translate(_ESCAPED).encode()
        batch, left = self._one_by_one(piece, final=True)
        if batch.events:
            yield batch
        if left.lstrip(_BETWEEN)[:1] == b"]":
            return self._left(left)
        # Writers leave a bare array open on purpose: only one that began as an object is cut.
        if not self.bare_array or left.strip(_BETWEEN):
            self.problems.append(f"{self._name}: it breaks off before its end")
        return b""

    def _end(self, left: bytes) -> None:
        """The keys behind the events."""
        rest = left.strip(_BETWEEN)
        if not self._arrays:
            self.problems.append(f"{self._name}: it holds no array of traceEvents")
        elif self.bare_array and rest:
            self.problems.append(f"{self._name}: the last {len(rest)} bytes, behind its array, were left out")
        elif rest.strip(b"}"):
            self._keep(b"{" + rest)

    def _summarise(self) -> None:
        if self.lost_events:
            where = f", the first near byte {self._first_loss}" if self._first_loss is not None else ""
            what = "1 event" if self.lost_events == 1 else f"{self.lost_events} events"
            self.problems.append(f"{self._name}: {what} could not be read{where}")
        self.problems += [f"{self._name}: {what} ({count})" for what, count in self.mended.items()]


def _separator_of(buffer: bytes) -> bytes | None:
    """What stands between the first two events, from the brace that ends one to the next one's."""
    found = list(_first_two(buffer))
    if len(found) < 2:
        return None
    return buffer[found[0] - 1 : found[1] + 1]


def _first_two(buffer: bytes) -> Iterator[int]:
    text = buffer[: 1 << 20].decode("latin-1")
    both = list(_limited(objects(text, 0, final=False), 2))
    if len(both) == 2:
        yield both[0]
        yield both[1]


def _limited(found: Iterator[Any], count: int) -> Iterator[int]:
    for number, item in zip(range(count), found, strict=False):
        yield item.end if number == 0 else item.start
