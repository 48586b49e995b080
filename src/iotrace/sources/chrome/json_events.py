"""The events of a Chrome JSON file, chunk by chunk, whatever its layout and however it ends.

A file is an object with ``traceEvents`` or a bare array. Chunks are cut between two events and decoded by
msgspec; a cut at a wrong place never decodes, so that a decoded chunk was cut rightly. What msgspec refuses
is repaired (control characters, numbers that are none, bytes that are no UTF-8), then read event by event.
What is lost is told in `problems`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, Generic, TypeVar

import msgspec
from isal import isal_zlib

from iotrace.errors import TraceError
from iotrace.sources.chrome.json_repair import escape, repair

Event = TypeVar("Event")

_CHUNK_BYTES = 8 << 20
_PACKED_BYTES = 256 << 10
# A header, a trailer or a damaged stretch beyond this is not kept in memory.
_MOST_KEPT_BYTES = 64 << 20
_CANDIDATES = 3  # cuts tried from a chunk's end: the last is wrong only inside an array of objects
_CUT_WINDOW_BYTES = 256 << 10
_LONGEST_CHARACTER = 4  # bytes of UTF-8

_ARRAY = re.compile(rb'"traceEvents"\s*:\s*\[')
_CUT = re.compile(rb"\}\s*,\s*(?=\{)")
_CUT_TEXT = re.compile(r"\}\s*,\s*(?=\{)")
_SPACE = re.compile(r"[\s,]*")
_LENIENT = json.JSONDecoder(strict=False)

_zlib: Any = isal_zlib  # isal has no annotations
_GZIP = 31


class EventReader(Generic[Event]):
    """Reads the events of one file as structs of `kind`; afterwards `document` holds the rest of it."""

    def __init__(self, path: Path, kind: type[Event]) -> None:
        self.path = path
        self.document: dict[str, Any] = {}
        self.problems: list[str] = []
        self._decoder = msgspec.json.Decoder(list[kind])  # type: ignore[valid-type]
        self._one = msgspec.json.Decoder(kind, strict=False)
        self._lost = 0
        self._repaired = 0

    def chunks(self) -> Iterator[list[Event]]:
        """Lists of events in the order of the file; TraceError where it holds none."""
        pieces = self._pieces()
        header, rest = self._header(pieces)
        ended = False
        for piece in pieces:
            events, rest, ended = self._decode(rest + piece)
            if events:
                yield events
            if ended:
                break
            if len(rest) > _MOST_KEPT_BYTES:
                self._lost += 1
                rest = rest[-_CUT_WINDOW_BYTES:]
        if not ended:
            for take in (self._decode, self._walk):
                events, rest, ended = take(rest)
                if events:
                    yield events
                if ended:
                    break
        if ended:
            for piece in pieces:
                if len(rest) < _MOST_KEPT_BYTES:
                    rest += piece
        elif rest.strip(b", \t\r\n"):
            self.problems.append("ends in the middle of an event: it was cut")
        elif header is not None:
            self.problems.append("has no end: it was cut between two events")
        if header is not None:
            self.document = self._document(header, rest if ended else b"}")
        if self._repaired:
            self.problems.append(
                f"{self._repaired} control characters, bytes that are no UTF-8 or numbers that are none "
                "were replaced"
            )
        if self._lost:
            self.problems.append(f"{self._lost} unreadable events were left out")

    def _pieces(self) -> Iterator[bytes]:
        """The file's bytes, unpacked; a damaged or cut archive yields what came before."""
        try:
            with self.path.open("rb") as file:
                packed = file.read(2) == b"\x1f\x8b"
                file.seek(0)
                if packed:
                    yield from self._unpacked(file)
                    return
                while piece := file.read(_CHUNK_BYTES):
                    yield piece
        except OSError as error:
            raise TraceError(f"{self.path} cannot be read: {error.strerror or error}") from error

    def _unpacked(self, file: BinaryIO) -> Iterator[bytes]:
        # Not GzipFile: its read() that meets the end of a cut archive gives nothing of what it had.
        unpacker = _zlib.decompressobj(_GZIP)
        waiting = b""
        while piece := waiting or file.read(_PACKED_BYTES):
            waiting = b""
            if unpacker.eof:  # another member, or padding
                if not piece.strip(b"\0"):
                    continue
                unpacker = _zlib.decompressobj(_GZIP)
            try:
                yield unpacker.decompress(piece, _CHUNK_BYTES)
            except _zlib.error as error:
                self.problems.append(f"the archive is damaged ({error})")
                return
            waiting = unpacker.unconsumed_tail or unpacker.unused_data
        if not unpacker.eof:
            yield unpacker.flush()
            self.problems.append("the archive was cut")

    def _header(self, pieces: Iterator[bytes]) -> tuple[bytes | None, bytes]:
        """What stands before the array of events (None for a bare array), and what was read behind it."""
        start = b""
        for piece in pieces:
            start += piece
            if start.lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"["):
                return None, start[start.index(b"[") + 1 :]
            found = _ARRAY.search(start)
            if found:
                return start[: found.end()], start[found.end() :]
            if len(start) > _MOST_KEPT_BYTES:
                break
        raise TraceError(
            f"{self.path} is no trace in Chrome's JSON format: it holds no traceEvents",
            "give a file that torch.profiler's export_chrome_trace or tensorboard_trace_handler wrote",
        )

    def _decode(self, data: bytes) -> tuple[list[Event], bytes, bool]:
        """The whole events of `data`, what is left of it, and whether the array ended."""
        window = max(0, len(data) - _CUT_WINDOW_BYTES)
        cuts = [match.span() for match in _CUT.finditer(data, window)][: -_CANDIDATES - 1 : -1]
        for brace, cut in cuts:
            events = self._decoded(memoryview(data)[: brace + 1])
            if events is not None:
                return events, data[cut:], False
        if cuts:
            brace, cut = cuts[0]
            mended, count = repair(data[: brace + 1])
            events = self._decoded(memoryview(mended))
            if events is not None:
                self._repaired += count
                return events, data[cut:], False
        return self._walk(data)

    def _decoded(self, body: memoryview) -> list[Event] | None:
        try:
            return self._decoder.decode(b"".join((b"[", body, b"]")))
        except (msgspec.DecodeError, UnicodeDecodeError):
            return None

    def _walk(self, data: bytes) -> tuple[list[Event], bytes, bool]:
        """`_decode`, event by event, leaving out what cannot be read."""
        # The end may hold half a character: mended when the rest of it is there.
        mended, count = repair(data[:-_LONGEST_CHARACTER])
        self._repaired += count
        text = (mended + data[-_LONGEST_CHARACTER:]).decode(errors="surrogateescape")
        events: list[Event] = []
        place, lost = 0, False
        while True:
            place = _end_of(_SPACE, text, place)
            if place >= len(text):
                return events, b"", False
            if text[place] == "]":
                return events, text[place + 1 :].encode(errors="surrogateescape"), True
            try:
                found, end = _LENIENT.raw_decode(text, place)
            except (ValueError, RecursionError):
                following = _CUT_TEXT.search(text, place)
                if following is None:
                    return events, text[place:].encode(errors="surrogateescape"), False
                place = following.end()
                self._lost += not lost  # one event may hold several places that look like the next one
                lost = True
                continue
            lost = False
            event = self._event(text[place:end], found)
            if event is None:
                self._lost += 1
            else:
                events.append(event)
            place = end

    def _event(self, text: str, found: Any) -> Event | None:
        """The event that is spelled `text`; numbers in strings are numbers here."""
        try:
            return self._one.decode(text)
        except (msgspec.MsgspecError, ValueError):
            pass
        try:
            return self._one.decode(msgspec.json.encode(escape(found)))
        except (msgspec.MsgspecError, ValueError):
            return None

    def _document(self, header: bytes, trailer: bytes) -> dict[str, Any]:
        """The object around the array of events, itself left out."""
        around = (header + b"]" + trailer).decode(errors="surrogateescape")
        try:
            document, _ = _LENIENT.raw_decode(around.strip("\ufeff \t\r\n"))
        except (ValueError, RecursionError):
            self.problems.append(
                "what surrounds its events cannot be read: rank and base time may be unknown"
            )
            return {}
        document = escape(document)
        document.pop("traceEvents", None)
        return dict(document)


def _end_of(pattern: re.Pattern[str], text: str, place: int) -> int:
    match = pattern.match(text, place)
    return match.end() if match else place
