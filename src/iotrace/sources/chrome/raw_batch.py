"""A batch whose events stay text: `compiled_scan` finds where their keys lie."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import numpy as np
from msgspec import UNSET

from iotrace import compiled
from iotrace.sources.chrome.batch import EventBatch, Identity, column
from iotrace.sources.chrome.compiled_scan import KEYS, Rows, Scan, Scanned, scan_rows
from iotrace.sources.chrome.decoder import decode
from iotrace.sources.chrome.json_text import CONTROLS
from iotrace.sources.chrome.lenient_decoder import event_of, objects, plain

_INDEX = {key: index for index, key in enumerate(KEYS)}
_BINDING = [_INDEX["id2"], _INDEX["bind_id"]]


def _field(name: str) -> Any:
    """A field of a batch's rows, in memory of its own."""
    return column(lambda batch: np.ascontiguousarray(batch.rows[name]))


def _families(batch: TextBatch) -> Any:
    hashes = np.ascontiguousarray(batch.rows["family"])
    found = np.zeros(len(hashes), np.int64)
    rows = np.flatnonzero(hashes)
    while len(rows):  # families are few
        of_one = hashes[rows] == hashes[rows[0]]
        # The same numbers as for events that had to be decoded.
        found[rows[of_one]] = hash((batch.value(rows[0], "cat"), batch.value(rows[0], "name")))
        rows = rows[~of_one]
    return found


def _to_next(batch: TextBatch) -> Any:
    found = batch.phases == ord("f")
    rows = np.flatnonzero(found)
    if len(rows):
        values, stops = (batch.rows[side][rows, _INDEX["bp"]] for side in ("value", "stop"))
        letters = np.frombuffer(batch.text, np.uint8)[values + 1]
        found[rows] = (stops - values != 3) | (letters != ord("e"))
    return found


class TextBatch(msgspec.Struct, dict=True):
    """Rows of `text`."""

    text: bytes
    rows: Rows
    tracks: list[tuple[Identity, Identity]]
    may_bind: bool

    start_ns = _field("start_ns")
    duration_ns = _field("duration_ns")
    phases = _field("phase")
    scopes = _field("scope")
    track = _field("track")
    ids = _field("id")
    has_duration = column(lambda batch: batch.rows["has_duration"].astype(np.bool_))
    families = column(_families)
    to_next = column(_to_next)

    def __len__(self) -> int:
        return len(self.rows)

    def value(self, row: int, key: str) -> Any:
        index = _INDEX[key]
        start, stop = int(self.rows["value"][row, index]), int(self.rows["stop"][row, index])
        if not stop:
            return UNSET
        # Raw control characters pass the scanner, as they do in Perfetto.
        return plain(json.loads(self.text[start:stop].decode(errors="replace"), strict=False))

    def select(self, wanted: Any) -> TextBatch:
        return TextBatch(self.text, self.rows[wanted], self.tracks, self.may_bind)

    def decoded(self, first: int, last: int) -> EventBatch:
        """Some of the events, from row `first` up to `last`, decoded."""
        bounds = zip(
            self.rows["begin"][first:last].tolist(), self.rows["end"][first:last].tolist(), strict=True
        )
        piece = b",".join([self.text[begin:end] for begin, end in bounds]).translate(CONTROLS)
        batch = decode(piece)
        if batch is not None:
            return batch
        found = (event_of(item.value) for item in objects(piece.decode(), 0, final=True) if item.value)
        return EventBatch.of(known[:4] for known in found)


def text_scan() -> Scan[TextBatch] | None:
    """Return the scan that keeps events as text; None where no library was compiled."""
    return _scan if compiled.available() else None


def _scan(text: bytes) -> Scanned[TextBatch]:
    found = scan_rows(text)
    if found.events is None:
        return Scanned(None, found.consumed, found.status)
    rows = found.events.rows
    may_bind = bool(rows["others"].any() and rows["stop"][:, _BINDING].any())
    batch = TextBatch(found.events.text, rows, [], may_bind)
    batch.tracks = [(batch.value(row, "pid"), batch.value(row, "tid")) for row in found.events.firsts]
    return Scanned(batch, found.consumed, found.status)
