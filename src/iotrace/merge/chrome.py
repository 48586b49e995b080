"""Chrome trace JSON of any layout, as batches of events: fast where it is sound, tolerant where it is not.

This is the scanner, and it can be replaced as one piece: bytes in, `Batch`es and the document's other keys
out. A piece of the file that ends between two events is decoded at once by msgspec; a piece that msgspec
refuses is read object by object.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from typing import Any

import msgspec
import numpy as np

from iotrace.merge.events import Batch, Event, Times, fits_doubles, us_to_ns
from iotrace.merge.tolerant import event_of, objects

# Raw control characters are no JSON, and real traces hold them: Perfetto takes them, msgspec does not.
_CONTROLS = bytes([0x20] * 32) + bytes(range(32, 256))
_ESCAPED = {0xDC00 + byte: f"\\\\x{byte:02x}" for byte in range(0x80, 0x100)}
_EVENTS_KEY = re.compile(rb'"traceEvents"\s*:\s*\[')
_LARGEST_HEADER = 64 << 20
_EXPONENT = re.compile(rb"[eE]\+?\d{3,}\s*[,}\]]")
_NUMBER_BEFORE = re.compile(rb"[:,\[ ]-?[\d.]+$")

_FARTHEST_US = 2.0**52


# An event whose time stays text.
_ExactEvent = msgspec.defstruct(
    "_ExactEvent",
    [
        (item.name, msgspec.Raw | msgspec.UnsetType if item.name == "ts" else item.type, item.default)
        for item in msgspec.structs.fields(Event)
    ],
    forbid_unknown_fields=True,
    gc=False,
    kw_only=True,
)
_decoder = msgspec.json.Decoder(list[Event])
_exact_decoder: Any = msgspec.json.Decoder(list[_ExactEvent])  # type: ignore[valid-type]


class Scanner:
    """Reads one document. `metadata` holds the keys beside the events once `batches` has ended."""

    def __init__(self, name: str) -> None:
        self.metadata: dict[str, Any] = {}
        self.problems: list[str] = []
        self.lost_events = 0
        self.mended: Counter[str] = Counter()
        self.bare_array = False
        self._name = name
        self._offset = 0  # of the buffer in the content
        self._partial = b""
        self._separator: bytes | None = None
        self._first_loss: int | None = None

    def batches(self, blocks: Iterator[bytes]) -> Iterator[Batch]:
        """The events of the document, in order."""
        buffer = b""
        inside = False
        for block in blocks:
            buffer += self._clean(block)
            if not inside:
                buffer, inside = self._enter(buffer, final=False)
                if not inside:
                    if len(buffer) > _LARGEST_HEADER:
                        break
                    continue
            batch, buffer = self._take(buffer.lstrip(b" ,"))
            if batch is not None:
                yield batch
            if self._ended(buffer):
                break
        if not inside:
            buffer, inside = self._enter(buffer, final=True)
        if not inside:
            self.problems.append(f"{self._name}: it holds no array of traceEvents")
            return
        tail = b"".join([buffer, *(self._clean(block) for block in blocks)])
        if self._partial:
            tail += self._partial.decode(errors="surrogateescape").translate(_ESCAPED).encode()
        yield from self._finish(tail)
        self._summarise()

    def _clean(self, block: bytes) -> bytes:
        """The block without what msgspec refuses; a character that its end cuts waits for the next one."""
        block = (self._partial + block).translate(_CONTROLS)
        self._partial = b""
        if block.isascii():
            return block
        try:
            block.decode()
        except UnicodeDecodeError as error:
            if error.reason == "unexpected end of data" and error.end == len(block):
                self._partial = block[error.start :]
                return block[: error.start]
            self.mended["pieces with invalid UTF-8, shown as \\xNN"] += 1
            return block.decode(errors="surrogateescape").translate(_ESCAPED).encode()
        return block

    def _enter(self, buffer: bytes, final: bool) -> tuple[bytes, bool]:
        """What follows the events' ``[``, and whether it was found."""
        stripped = buffer.lstrip(b"\xef\xbb\xbf \0")
        if stripped[:1] == b"[":
            self.bare_array = True
            self._offset += len(buffer) - len(stripped) + 1
            return stripped[1:], True
        found = _EVENTS_KEY.search(buffer)
        if found is None:
            return buffer, False
        self._keep(buffer[: found.start()] + b'"traceEvents":null}')
        self._offset += found.end()
        return buffer[found.end() :], True

    def _keep(self, document: bytes) -> None:
        try:
            found = json.loads(document.decode(errors="replace"), strict=False)
            self.metadata.update((key, value) for key, value in found.items() if key != "traceEvents")
        except (ValueError, RecursionError, AttributeError):
            self.problems.append(f"{self._name}: the keys beside traceEvents could not all be read")
            base = re.search(rb'"baseTimeNanoseconds"\s*:\s*(\d{1,19})\b', document)
            if base:
                self.metadata["baseTimeNanoseconds"] = int(base[1])

    def _take(self, buffer: bytes) -> tuple[Batch | None, bytes]:
        """The whole events at the buffer's front, and what is left of it."""
        if self._separator is None:
            self._separator = _separator_of(buffer)
        if self._separator is None:  # fewer than two whole events
            return None, buffer
        end = buffer.rfind(self._separator)
        for _ in range(4):
            if end < 0:
                break
            batch = _decode(buffer[: end + 1])
            if batch is not None:
                self._offset += end + 2
                return batch, buffer[end + 2 :]
            if self._separator.startswith(b"},  "):
                break  # the layout tells events from what is nested in them: the piece itself is odd
            end = buffer.rfind(self._separator, 0, end)
        batch, left = self._one_by_one(buffer, final=False)
        return (batch if batch.events else None), left

    def _one_by_one(self, buffer: bytes, final: bool) -> tuple[Batch, bytes]:
        text = buffer.decode(errors="surrogateescape").translate(_ESCAPED)
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
        self._offset += max(0, len(buffer) - len(left))
        batch = Batch(events, np.array(starts, np.int64), np.array(durations, np.int64), extra)
        return batch, left

    def _lose(self, at: int) -> None:
        self.lost_events += 1
        if self._first_loss is None:
            self._first_loss = self._offset + at

    @staticmethod
    def _ended(buffer: bytes) -> bool:
        return buffer.lstrip(b" ,\0")[:1] == b"]"

    def _finish(self, buffer: bytes) -> Iterator[Batch]:
        batch, left = self._one_by_one(buffer, final=True)
        if batch.events:
            yield batch
        left = left.lstrip(b" ,\0")
        if left[:1] != b"]":
            # Writers leave a bare array open on purpose: only one that began as an object is cut.
            if not self.bare_array or left:
                self.problems.append(f"{self._name}: it breaks off before its end")
            return
        rest = left[1:].strip(b" ,\0")
        if not self.bare_array and rest.strip(b"}"):
            self._keep(b"{" + rest)

    def _summarise(self) -> None:
        if self.lost_events:
            where = f", the first near byte {self._first_loss}" if self._first_loss is not None else ""
            self.problems.append(f"{self._name}: {self.lost_events} events could not be read{where}")
        self.problems += [f"{self._name}: {what}: {count}" for what, count in self.mended.items()]


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


def _decode(piece: bytes) -> Batch | None:
    """The events of whole, sound objects; None where the tolerant way has to be taken."""
    if _has_large_exponent(piece):
        return None
    document = b"[" + piece + b"]"
    try:
        events = _decoder.decode(document)
        missing = 0 if _only_metadata_lacks_time(events) else None
        starts = _nanoseconds([event.ts for event in events], missing)
        if starts is None:  # us since 1970 with decimals: no double holds them
            events = _exact_decoder.decode(document)
            starts = _nanoseconds_of_text([event.ts for event in events], missing)
        durations = _nanoseconds([event.dur for event in events], 0)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, ValueError, OverflowError):
        return None
    if starts is None or durations is None:
        return None
    return Batch(events, starts, durations, may_bind=b'"id2"' in piece or b'"bind_id"' in piece)


def _only_metadata_lacks_time(events: list[Event]) -> bool:
    return all(event.ph == "M" for event in events if event.ts is msgspec.UNSET)


def _filled(values: list[Any], missing: int | None) -> list[Any]:
    if msgspec.UNSET not in values:
        return values
    if missing is None:
        raise ValueError("an event without a time")
    return [missing if value is msgspec.UNSET else value for value in values]


def _nanoseconds(values: list[Any], missing: int | None) -> Times | None:
    """Times in us as ns; None where doubles lost digits."""
    values = _filled(values, missing)
    doubles = np.array(values, dtype=np.float64)
    if fits_doubles(doubles):
        return np.rint(doubles * 1000).astype(np.int64)
    if np.abs(doubles).max() < _FARTHEST_US and set(map(type, values)) == {int}:
        return np.array(values, dtype=np.int64) * 1000
    return None


def _nanoseconds_of_text(values: list[Any], missing: int | None) -> Times:
    """Times in us, as their digits, in ns."""
    digits = [bytes(value) if isinstance(value, msgspec.Raw) else b"0" for value in _filled(values, missing)]
    found = []
    for text in digits:
        whole, _, decimals = text.partition(b".")
        if len(decimals) <= 3 and text.replace(b".", b"").isdigit():
            found.append(int(whole) * 1000 + int(decimals.ljust(3, b"0")))
        else:
            found.append(us_to_ns(text.decode()))
    return np.array(found, dtype=np.int64)


def _has_large_exponent(piece: bytes) -> bool:
    """Whether a number may be too large for a double, which Perfetto refuses together with its file."""
    letters = np.frombuffer(piece, np.uint8)
    places = np.flatnonzero((letters[:-1] == 0x65) | (letters[:-1] == 0x45))
    after = letters[places + 1]
    digits = (after - 0x30 < 10) | (after == 0x2B)  # unsigned: what is below the digits wraps around
    return any(
        _EXPONENT.match(piece, place) and _NUMBER_BEFORE.search(piece, max(0, place - 64), place)
        for place in places[digits].tolist()
    )
