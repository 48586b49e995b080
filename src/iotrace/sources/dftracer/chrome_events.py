"""dftracer's logs, 1.x and 2.x, as batches of Chrome events; hashes resolved from a pool over all inputs."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec
import numpy as np
from msgspec import UNSET, Raw

from iotrace.sources.chrome.batch import EventBatch
from iotrace.sources.chrome.event import Event
from iotrace.sources.chrome.lenient_decoder import event_of, objects

# 2.x writes numbers for the phases; 3 is a sum over calls, with a start and a duration.
_PHASES = {1: "X", 2: "C", 3: "X", 4: "M"}
_HASHES = re.compile(rb'^.*"name"\s*:\s*"(?:FH|HH|SH|PH)".*$', re.MULTILINE)
_ESCAPED = {0xDC00 + byte: f"\\\\x{byte:02x}" for byte in range(0x80, 0x100)}
_CONTROLS = bytes(0x20 if byte < 32 and byte != 10 else byte for byte in range(256))
# What an argument that holds a hash is called when it is spelled out.
_SPELLED = {"fhash": "file", "hhash": "host"}


class _Line(msgspec.Struct, forbid_unknown_fields=True, gc=False, kw_only=True):
    name: str
    cat: str | msgspec.UnsetType = UNSET
    ph: int | str
    pid: int | str
    tid: int | str
    ts: int | msgspec.UnsetType = UNSET
    dur: int | msgspec.UnsetType = UNSET
    id: int | str | msgspec.UnsetType = UNSET
    type: int | msgspec.UnsetType = UNSET
    args: dict[str, Any] | msgspec.UnsetType = UNSET


_decoder = msgspec.json.Decoder(_Line)
_encode = msgspec.json.Encoder().encode
_FARTHEST_US = 2**52


def pool_of(block: bytes) -> dict[str, str]:
    """The hashes that a piece of a log spells out: file names, hosts, strings."""
    found = {}
    for match in _HASHES.finditer(block):
        for parsed in objects(match[0].decode(errors="surrogateescape").translate(_ESCAPED), 0, final=True):
            args = (parsed.value or {}).get("args")
            if isinstance(args, dict) and isinstance(args.get("value"), str) and "name" in args:
                found[args["value"]] = str(args["name"])
    return found


class LogReader:
    """Reads one log. `clean_end` tells whether dftracer closed it itself."""

    def __init__(self, name: str, pool: Mapping[str, str]) -> None:
        self.problems: list[str] = []
        self.lost_events = 0
        self._name = name
        self._pool = pool
        self._line = 0
        self._first_loss: int | None = None

    def batches(self, blocks: Iterator[bytes]) -> Iterator[EventBatch]:
        """The events of the log, in order."""
        rest = b""
        for block in blocks:
            whole, newline, rest = (rest + block.translate(_CONTROLS)).rpartition(b"\n")
            yield self._read(whole + newline)
        if rest.strip(b" \0]"):
            yield self._read(rest)
        if self.lost_events:
            self.problems.append(
                f"{self._name}: {self.lost_events} lines could not be read, the first is line "
                f"{self._first_loss}"
            )

    def _read(self, piece: bytes) -> EventBatch:
        try:
            lines = _decoder.decode_lines(piece)
            if all(line.ts is UNSET or 0 <= line.ts < _FARTHEST_US for line in lines):
                self._line += piece.count(b"\n")
                return self._batch(lines)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            pass
        return self._one_by_one(piece)

    def _batch(self, lines: list[_Line]) -> EventBatch:
        events = []
        for line in lines:
            event = Event(
                ph=line.ph if isinstance(line.ph, str) else _PHASES.get(line.ph, str(line.ph)),
                name=line.name,
                cat=line.cat,
                pid=line.pid,
                tid=line.tid,
            )
            if line.dur is not UNSET:
                event.dur = 0
            # What Chrome has no key for is an argument.
            own: dict[str, Any] = {}
            if line.id is not UNSET:
                own["id"] = line.id
            if line.type is not UNSET:
                own["type"] = line.type
            args = {} if line.args is UNSET else line.args
            event.args = Raw(_encode(self._spelled({**own, **args})))
            events.append(event)
        starts = np.array([0 if line.ts is UNSET else line.ts for line in lines], np.int64) * 1000
        durations = [0 if line.dur is UNSET else min(line.dur, _FARTHEST_US) for line in lines]
        return EventBatch(events, starts, np.array(durations, np.int64) * 1000, may_bind=False)

    def _spelled(self, args: dict[str, Any]) -> dict[str, Any]:
        pool = self._pool
        known = {
            _SPELLED.get(key, key.removesuffix("_hash").removesuffix("hash") or key): pool[value]
            for key, value in args.items()
            if key.endswith("hash") and isinstance(value, str) and value in pool
        }
        return {**known, **args} if known else args

    def _one_by_one(self, piece: bytes) -> EventBatch:
        events: list[Event] = []
        starts: list[int] = []
        durations: list[int] = []
        extra: dict[int, dict[str, Any]] = {}
        for line in piece.split(b"\n"):
            self._line += 1
            text = line.decode(errors="surrogateescape").translate(_ESCAPED).strip(" ,\0")
            if text in ("", "[", "]"):
                continue
            found = next(objects(text.removeprefix("["), 0, final=True), None)
            value = found.value if found else None
            if value is None:
                self._lose()
                continue
            if isinstance(value["ph"], int):
                value["ph"] = _PHASES.get(value["ph"], str(value["ph"]))
            if isinstance(value.get("args", {}), dict):
                keys: dict[str, Any] = {key: value.pop(key) for key in ("id", "type") if key in value}
                value["args"] = self._spelled({**keys, **value.get("args", {})})
            try:
                event, start, duration, unknown, _ = event_of(value)
            except (ValueError, msgspec.MsgspecError, RecursionError, TypeError, OverflowError):
                self._lose()
                continue
            if unknown:
                extra[len(events)] = unknown
            events.append(event)
            starts.append(start)
            durations.append(duration)
        return EventBatch(events, np.array(starts, np.int64), np.array(durations, np.int64), extra)

    def _lose(self) -> None:
        self.lost_events += 1
        if self._first_loss is None:
            self._first_loss = self._line
