"""Chrome trace JSON of any layout, as batches of events: fast where it is sound, tolerant where it is not.

The only reader of such files: bytes in, batches of events and the document's other keys out. A compiled scan
takes the sound events of a piece; which one, and what it makes of them, is the caller's choice (`TextBatch`
of a merge, the columns of a report). What it refuses, and everything where no library was compiled, is
decoded: a piece that ends between two events at once by msgspec, one that msgspec refuses object by object.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Generator, Iterator
from itertools import islice
from typing import Any, Generic

import msgspec

from iotrace.sources.chrome import json_text
from iotrace.sources.chrome.batch import Event, EventBatch
from iotrace.sources.chrome.lenient_decoder import LONGEST_EVENT, make_event, objects, plain
from iotrace.sources.chrome.scan import END, MORE, ODD, Events, Scan, decode

_EVENTS_KEY = re.compile(rb'"traceEvents"\s*:\s*\[')
_NEXT_DOCUMENT = re.compile(rb"\}\s*\{(?=[^{}]*$)")  # the last one before some keys
_LARGEST_HEADER = 64 << 20
_KEYS_LOST = "the keys next to traceEvents could not all be read"
_BETWEEN = b" \t\r\n,\0"
_BEFORE = b"\xef\xbb\xbf" + _BETWEEN
_ODD_BYTES = 1 << 16  # how much is decoded where the compiled scan met an odd event


def _finite(number: str) -> float | str:
    return value if math.isfinite(value := float(number)) else number


_document = json.JSONDecoder(strict=False, parse_float=_finite, parse_constant=str)


class ChromeReader(Generic[Events]):
    """Reads one file.

    Once `batches` has ended, `metadata` holds the keys around the events and `problems` says what was lost or
    mended, a sentence each.
    """

    def __init__(self, scan: Scan[Events] | None = None) -> None:
        """`scan` makes batches of sound text; without it all events are decoded."""
        self.metadata: dict[str, Any] = {}
        self.problems: list[str] = []
        self.lost_events = 0
        self.arrays = 0  # of events; 0 where the file is no trace
        self._mended: Counter[str] = Counter()
        self._is_bare = False  # the events are an array without an object around it
        self._scan = scan
        self._offset = 0  # of the buffer in the content
        self._separator: bytes | None = None
        self._first_loss: int | None = None

    def batches(self, blocks: Iterator[bytes]) -> Iterator[Events | EventBatch]:
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
        while inside or self._enters(buffer):
            buffer = yield from self._take_all(buffer if inside else self._entered(buffer))
            inside = False
        self._end(buffer)
        self._summarise()

    def _enters(self, buffer: bytes) -> bool:
        """Whether an array of events begins in the buffer. Documents may follow one another in a file."""
        bare = buffer.lstrip(_BEFORE)[:1] == b"["
        return (bare and (self._is_bare or not self.arrays)) or _EVENTS_KEY.search(buffer) is not None

    def _entered(self, buffer: bytes) -> bytes:
        """What follows the ``[`` of the events that begin in the buffer."""
        self._separator = None
        self.arrays += 1
        stripped = buffer.lstrip(_BEFORE)
        if stripped[:1] == b"[":
            self._is_bare = True
            self._offset += len(buffer) - len(stripped) + 1
            return stripped[1:]
        match = _EVENTS_KEY.search(buffer)
        assert match is not None
        before = buffer[: match.start()].lstrip(_BEFORE)
        if self.arrays > 1:
            end = _NEXT_DOCUMENT.search(before)
            if end is not None:
                self._end(before[: end.start() + 1])
            before = b"{" + before[end.end() if end else 0 :].lstrip(_BETWEEN)
        self._keep(before + b'"traceEvents":null}')
        self._offset += match.end()
        return buffer[match.end() :]

    def _left(self, buffer: bytes) -> bytes:
        """What follows the ``]`` that the buffer begins with."""
        left = buffer.lstrip(_BETWEEN)[1:]
        self._offset += len(buffer) - len(left)
        return left

    def _keep(self, document: bytes) -> None:
        try:
            text = json_text.quote_words(json_text.decode(document))
            decoded, end = _document.raw_decode(text)
            self.metadata.update(
                (key, plain(value)) for key, value in decoded.items() if key != "traceEvents"
            )
            if text[end:].strip():
                self.problems.append(_KEYS_LOST)
        except (ValueError, RecursionError, AttributeError):
            self.problems.append(_KEYS_LOST)
            base = re.search(rb'"baseTimeNanoseconds"\s*:\s*(\d{1,19})\b', document)
            if base:
                self.metadata["baseTimeNanoseconds"] = int(base[1])

    def _take(self, buffer: bytes) -> Generator[Events | EventBatch, None, bytes]:
        """Yield the whole events at the buffer's front; return what is left of it."""
        while self._scan is not None:
            scanned = self._scan(buffer)
            if scanned.events is not None:
                yield scanned.events
            self._offset += scanned.consumed
            buffer = buffer[scanned.consumed :]
            if scanned.status == MORE and len(buffer) > LONGEST_EVENT:
                break
            if scanned.status in (MORE, END):
                return buffer
            if scanned.status == ODD:
                batch, left = self._take_odd(buffer)
                if batch is not None:
                    yield batch
                if left is None:
                    return buffer  # the odd event goes on in the next block
                buffer = left
        batch, buffer = self._decoded(buffer)
        if batch is not None:
            yield batch
        return buffer

    def _take_odd(self, buffer: bytes) -> tuple[EventBatch | None, bytes | None]:
        """Decode as much as the odd event at the front needs; what is left is None if the event is cut."""
        size = _ODD_BYTES
        while True:
            mended, offset = self._mended.copy(), self._offset
            batch, left = self._decoded(buffer[:size])
            if batch is not None or self._offset > offset:
                return batch, left + buffer[size:]
            self._mended, self._offset = mended, offset
            if size >= len(buffer):
                return None, None
            size *= 8

    def _decoded(self, piece: bytes) -> tuple[EventBatch | None, bytes]:
        """The whole events at the piece's front, and what is left of it."""
        piece, cut = self._clean(piece)
        stripped = piece.lstrip(b" ,")
        self._offset += len(piece) - len(stripped)
        piece = stripped
        if self._separator is None:
            self._separator = _find_separator(piece)
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
                    break  # the layout separates events from what is nested in them: the piece itself is odd
                end = piece.rfind(self._separator, 0, end)
        elif self._scan is None:
            return None, piece + cut
        batch, left = self._one_by_one(piece, final=False)
        return (batch if batch.events else None), left + cut

    def _clean(self, piece: bytes) -> tuple[bytes, bytes]:
        """Return the piece without what msgspec refuses, and a character apart that its end cuts."""
        piece = piece.translate(json_text.CONTROLS)
        if piece.isascii():
            return piece, b""
        try:
            piece.decode()
        except UnicodeDecodeError as error:
            if error.reason == "unexpected end of data" and error.end == len(piece):
                return piece[: error.start], piece[error.start :]
            return self._shown(piece), b""
        return piece, b""

    def _shown(self, piece: bytes) -> bytes:
        self._mended["bytes that are no UTF-8, shown as \\xNN"] += json_text.count_invalid(piece)
        return json_text.decode(piece).encode()

    def _one_by_one(self, piece: bytes, final: bool) -> tuple[EventBatch, bytes]:
        text = json_text.quote_words(piece.decode())
        events: list[tuple[Event, int, int, dict[str, Any]]] = []
        at = 0
        for item in objects(text, 0, final):
            if item.value is not None:
                try:
                    event, start, duration, unknown, mended = make_event(item.value)
                except (ValueError, msgspec.MsgspecError, RecursionError, TypeError, OverflowError):
                    self._lose(item.start)
                else:
                    self._mended.update(mended)
                    events.append((event, start, duration, unknown))
            else:
                self._lose(item.start)
            at = item.end
        left = text[at:].encode(errors="replace")
        self._offset += max(0, len(piece) - len(left))
        return EventBatch.of(events), left

    def _lose(self, at: int) -> None:
        self.lost_events += 1
        if self._first_loss is None:
            self._first_loss = self._offset + at

    def _take_all(self, tail: bytes) -> Generator[EventBatch, None, bytes]:
        """All events up to the array's end, which nothing follows that is not here; returns what does."""
        piece, cut = self._clean(tail)
        if cut:
            piece += self._shown(cut)
        batch, left = self._one_by_one(piece, final=True)
        if batch.events:
            yield batch
        if left.lstrip(_BETWEEN)[:1] == b"]":
            return self._left(left)
        # Writers leave a bare array open on purpose: only one that began as an object is cut.
        if not self._is_bare or left.strip(_BETWEEN):
            self.problems.append("it breaks off before its end")
        return b""

    def _end(self, left: bytes) -> None:
        """The keys after the events."""
        rest = left.strip(_BETWEEN)
        if not self.arrays:
            self.problems.append("it holds no array of traceEvents")
        elif self._is_bare and rest:
            self.problems.append(f"the last {len(rest)} bytes, behind its array, were left out")
        elif rest.strip(b"}"):
            self._keep(b"{" + rest)

    def _summarise(self) -> None:
        if self.lost_events:
            where = f", the first near byte {self._first_loss}" if self._first_loss is not None else ""
            what = "1 event" if self.lost_events == 1 else f"{self.lost_events} events"
            self.problems.append(f"{what} could not be read{where}")
        self.problems += [f"{what} ({count})" for what, count in self._mended.items()]


def _find_separator(buffer: bytes) -> bytes | None:
    """What separates the first two events, from the brace that ends one to the brace that begins the next."""
    items = list(islice(objects(buffer[: 1 << 20].decode("latin-1"), 0, final=False), 2))
    return buffer[items[0].end - 1 : items[1].start + 1] if len(items) == 2 else None
