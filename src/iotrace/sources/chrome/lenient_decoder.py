"""One object after another out of JSON that the fast decoder refused: slow, and hard to stop."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import msgspec
import numpy as np
from msgspec import UNSET, Raw

from iotrace.sources.chrome.batch import KEYS, OPAQUE, Event, carried, encode_number, rests_ps, us_to_ns
from iotrace.sources.chrome.json_text import show

# Where an event may begin again after a damaged one.
_START = re.compile(r'\{\s*"(?:ph|name|cat|pid|tid|ts|id)"\s*:')
_MOST_STRANGERS = 100
_SPACE = re.compile(r"[\s,\0]*")
_TO_THE_END = re.compile(r"\s*\Z")
_INTEGER_LIMIT = 1 << 64


def _number(text: str) -> Any:
    """An integer; one that no 64 bits hold as a decimal, whatever its length."""
    if len(text) < 19:
        return int(text)
    number = Decimal(text)
    return int(number) if -(1 << 63) <= number < _INTEGER_LIMIT else number


def _fraction(text: str) -> Any:
    """A decimal; a double where the decimal would be written without point and exponent, as an integer."""
    number = Decimal(text)
    is_whole = isinstance(exponent := number.as_tuple().exponent, int) and exponent >= 0
    double = float(number) if is_whole else math.inf
    return double if math.isfinite(double) else number


_decoder = json.JSONDecoder(
    strict=False, parse_float=_fraction, parse_int=_number, parse_constant=lambda name: name
)


class Parsed(msgspec.Struct):
    """What `objects` found in a text: an object, a piece that was lost, or how the text goes on."""

    value: dict[str, Any] | None  # None: lost
    start: int
    end: int


def objects(text: str, at: int, final: bool) -> Iterator[Parsed]:
    """The objects of an array from `at` on; stops before ``]``, and before an object that is cut off.

    With `final`, nothing follows the text: what is cut off is then lost, too. What cannot be read up to the
    next object is one loss. The time is linear in the text, unless objects are nested in damaged ones.
    """
    lost_from: int | None = None
    strangers = 0  # values that are no events
    while True:
        space = _SPACE.match(text, at)
        at = space.end() if space else at
        if at >= len(text) or text[at] == "]":
            break
        try:
            value, end = _decode(text, at)
        except _UNREADABLE as error:
            if not final and len(text) - at < LONGEST_EVENT and _cut_off(text, at, error):
                break
            following = _START.search(text, at + 1)
            end = following.start() if following else len(text)
            if not final and following is None and len(text) - at < LONGEST_EVENT:
                break
            lost_from = at if lost_from is None else lost_from
            at = end
            continue
        if isinstance(value, dict) and "ph" in value:
            if lost_from is not None:
                yield Parsed(None, lost_from, at)
                lost_from = None
            yield Parsed(value, at, end)
        elif lost_from is None:
            yield Parsed(None, at, end)
            strangers += 1
            if strangers > _MOST_STRANGERS:  # no array of events: each one costs as much as an event
                following = _START.search(text, end)
                end = following.start() if following else len(text)
        at = end
    if lost_from is not None:
        yield Parsed(None, lost_from, at)


def _decode(text: str, at: int) -> tuple[Any, int]:
    """Decode the value at `at`; return it and its end. The position of an error counts from `at`.

    An error counts the lines before it, so the decoder gets a piece; a larger one where that is too short.
    """
    size = _FIRST_PIECE
    while True:
        rest = len(text) - at
        try:
            value, end = _decoder.raw_decode(text[at : at + size])
        except json.JSONDecodeError as error:
            if size >= rest or not (_unterminated(error) or size - error.pos < _LONGEST_WORD):
                raise
        else:
            if end < size or size >= rest:
                return value, at + end
        size *= 8


_FIRST_PIECE = 1 << 12
LONGEST_EVENT = 8 << 20
_LONGEST_WORD = 16  # -Infinity, or a surrogate pair's escape
_UNREADABLE = (ValueError, RecursionError, ArithmeticError)


def _unterminated(error: json.JSONDecodeError) -> bool:
    return error.msg.startswith("Unterminated string")


def _cut_off(text: str, at: int, error: Exception) -> bool:
    if not isinstance(error, json.JSONDecodeError):
        return False
    rest = len(text) - at - error.pos
    if _unterminated(error):
        return rest < LONGEST_EVENT
    return rest < 8 or _TO_THE_END.match(text, at + error.pos) is not None


def make_event(value: dict[str, Any]) -> tuple[Event, int, int, dict[str, Any], list[str]]:
    """The event, its start and duration in ns, the keys that `Event` lacks, and what had to be mended.

    ValueError where it has no time that can be read.
    """
    mended: list[str] = []
    phase = value["ph"]
    phase = phase if isinstance(phase, str) else _text(phase)
    untimed = phase == "M" and value.get("ts") is None
    start = 0 if untimed else us_to_ns(_unquoted(value.get("ts"), mended))
    duration = 0
    if value.get("dur") is not None:
        try:
            duration_us = _unquoted(value["dur"], mended)
            duration = us_to_ns(duration_us)
            if not untimed:
                rests = rests_ps(np.array([float(value["ts"]), float(duration_us)]))
                duration += int(carried(np.int64(start + duration), rests[0], rests[1]))
        except ValueError:
            mended.append("durations that are no numbers, shown as 0")
    event = Event(
        ph=phase,
        pid=_identity(value.get("pid")),
        tid=_identity(value.get("tid")),
        name=UNSET if "name" not in value else _text(value["name"]),
        cat=UNSET if "cat" not in value else _text(value["cat"]),
        id=_identity(value.get("id")),
        bp=_text(value["bp"]) if "bp" in value else UNSET,
        s=_text(value["s"]) if "s" in value else UNSET,
    )
    if "dur" in value:
        event.dur = 0
    for key in OPAQUE & value.keys():
        setattr(event, key, Raw(encode_number(plain(value[key]))))
    extra = {show(str(key)): plain(item) for key, item in value.items() if key not in KEYS}
    return event, start, duration, extra, mended


def _unquoted(value: Any, mended: list[str]) -> Any:
    if isinstance(value, str):
        us_to_ns(value.strip())
        mended.append("numbers that were strings")
        return value.strip()
    if isinstance(value, bool) or value is None:
        raise ValueError("no time")
    return value


def _identity(value: Any) -> Any:
    if value is None:
        return UNSET
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    return _text(value)


def _text(value: Any) -> str:
    return show(value) if isinstance(value, str) else encode_number(plain(value)).decode()


def plain(value: Any, depth: int = 0) -> Any:
    """The value as Perfetto's JSON parser can take it: a number that no double holds becomes a string."""
    if depth > 100:
        return "(nested too deeply)"
    if isinstance(value, str):
        return show(value)
    if isinstance(value, dict):
        return {show(str(key)): plain(item, depth + 1) for key, item in value.items()}
    if isinstance(value, list):
        return [plain(item, depth + 1) for item in value]
    if isinstance(value, Decimal):
        try:
            double = float(value)
        except (ArithmeticError, ValueError):
            double = math.inf
        return value if math.isfinite(double) and (double or not value) else str(value)
    return value
