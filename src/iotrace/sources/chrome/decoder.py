"""Sound pieces of trace JSON, decoded at once by msgspec."""

from __future__ import annotations

import re
from typing import Any

import msgspec
import numpy as np

from iotrace.sources.chrome.batch import EventBatch
from iotrace.sources.chrome.event import FARTHEST_NS, Event, Times, carried, fits_doubles, rests_ps, us_to_ns

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


def decode(piece: bytes) -> EventBatch | None:
    """The events of whole, sound objects; None where the tolerant way has to be taken."""
    if _has_large_exponent(piece):
        return None
    document = b"[" + piece + b"]"
    try:
        events = _decoder.decode(document)
        # Only metadata may lack a time.
        missing = 0 if all(event.ph == "M" for event in events if event.ts is msgspec.UNSET) else None
        starts = _nanoseconds([event.ts for event in events], missing)
        if starts is None:  # us since 1970 with decimals: no double holds them
            events = _exact_decoder.decode(document)
            starts = _nanoseconds_of_text([event.ts for event in events], missing)
        durations = _nanoseconds([event.dur for event in events], 0)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, ValueError, OverflowError):
        return None
    if starts is None or durations is None:
        return None
    if (np.abs(starts) >= FARTHEST_NS).any() or (np.abs(durations) >= FARTHEST_NS).any():
        return None
    durations += _carried(events, starts + durations)
    return EventBatch(events, starts, durations, may_bind=b'"id2"' in piece or b'"bind_id"' in piece)


def _carried(events: list[Any], ends: Times) -> Any:
    """See `event.carried`."""
    starts = [event.ts if isinstance(event.ts, float) else _double(event.ts) for event in events]
    starts_ps = rests_ps(np.array(starts, np.float64))
    if not starts_ps.any():
        return 0
    durations = [event.dur if isinstance(event.dur, float) else 0 for event in events]
    has_duration = np.array([event.dur is not msgspec.UNSET for event in events], np.bool_)
    return np.where(has_duration, carried(ends, starts_ps, rests_ps(np.array(durations, np.float64))), 0)


def _double(time: Any) -> float:
    """A time that stayed text; 0 for integers, of which rounding takes nothing."""
    return float(bytes(time)) if isinstance(time, msgspec.Raw) else 0.0


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
    found = np.flatnonzero((letters[:-1] == 0x65) | (letters[:-1] == 0x45))
    after = letters[found + 1]
    digits = (after - 0x30 < 10) | (after == 0x2B)  # unsigned: what is below the digits wraps around
    return any(
        _EXPONENT.match(piece, at) and _NUMBER_BEFORE.search(piece, max(0, at - 64), at)
        for at in found[digits].tolist()
    )
