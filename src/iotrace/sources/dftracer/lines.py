"""The one reader of dftracer's logs, 1.x and 2.x: from bytes to lines with times in ns.

A log is one JSON object a line. 1.x begins with ``[``, writes phases as letters and may put numbers in
quotes; 2.x writes phases as numbers. What stops a program may cut a log anywhere: every line that can be
read is read, the others are counted.

dftracer's logs as batches of Chrome events, hashes resolved from a pool over all inputs.

What the limit of a session's size has dropped of dftracer's logs: the sums that are kept say it.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from msgspec import UNSET, Raw, UnsetType

from iotrace.session import names
from iotrace.sources.byte_stream import blocks
from iotrace.sources.chrome import json_text
from iotrace.sources.chrome.batch import KEYS, Event, EventBatch, Times, encode_number
from iotrace.sources.chrome.lenient_decoder import make_event, objects, plain


class _Sums(msgspec.Struct):
    """One line of a log's kept part, as `launch/telemetry/size_limit.py` writes it."""

    events: dict[str, int] = {}  # by pid, those of dftracer's own left out
    calls: int = 0
    bytes: int = 0
    until_us: int = 0
    refused: str = ""


class Dropped:
    """Sums over all logs; `events` of the log that is read, by pid."""

    def __init__(self) -> None:
        self.events: Counter[int] = Counter()
        self._calls = self._bytes = self._until_us = 0
        self._refused = ""

    def take(self, told: dict[str, Any]) -> None:
        """Add what one line says; a damaged line says nothing."""
        try:
            sums = msgspec.convert(told, _Sums)
            self.events.update({int(pid): count for pid, count in sums.events.items()})
        except (ValueError, msgspec.ValidationError):
            return
        self._calls += sums.calls
        self._bytes += sums.bytes
        self._until_us = max(self._until_us, min(sums.until_us, 2**52))
        self._refused = self._refused or sums.refused

    def problems(self) -> list[str]:
        """Say how much was dropped, up to when; why nothing could be."""
        problems = []
        if self._calls:
            until = datetime.fromtimestamp(self._until_us // 1_000_000, timezone.utc)
            problems.append(
                f"the session grew beyond --max-size: its oldest {self._calls} POSIX calls, which moved "
                f"{self._bytes / 2**20:.1f} MiB, were dropped, up to {until:%Y-%m-%d %H:%M:%S} UTC"
            )
        if self._refused:
            problems.append(
                f"the session grew beyond --max-size, and no call could be dropped: {self._refused}"
            )
        return problems


# The phases of 2.x; 3 is a sum over calls, with a start and a duration.
PHASES = {1: "X", 2: "C", 3: "X", 4: "M"}
_POOLED = frozenset(("FH", "HH", "SH", "PH"))
_HASHES = re.compile(rb'"name"\s*:\s*"(?:FH|HH|SH|PH)"')
_CONTROLS = bytes(0x20 if byte < 32 and byte != 10 else byte for byte in range(256))
_BETWEEN = " ,\0"
_FARTHEST_US = 2**52
_LONGEST_LINE = 8 << 20


class Line(msgspec.Struct, forbid_unknown_fields=True, gc=False, kw_only=True):
    """One event as the log has it. `ts` and `dur` in us; a `LineBatch` has them in ns."""

    ph: int | str
    name: str | UnsetType = UNSET
    cat: str | UnsetType = UNSET
    pid: int | str | UnsetType = UNSET
    tid: int | str | UnsetType = UNSET
    ts: int = 0
    dur: int | UnsetType = UNSET
    id: int | str | UnsetType = UNSET
    type: int | UnsetType = UNSET
    args: dict[str, Any] | UnsetType = UNSET


_OWN_KEYS = frozenset(Line.__struct_fields__)
_decoder = msgspec.json.Decoder(Line)
_UNREADABLE = (ValueError, msgspec.MsgspecError, RecursionError, TypeError, OverflowError)
_Row = tuple[Line, int, int, dict[str, Any]]  # with start and duration in ns, and the keys that `Line` lacks


class LineBatch(msgspec.Struct):
    """Consecutive lines; one start and one duration in ns for each (0 where the line has none).

    `extra` holds, by index, the keys that `Line` does not have.
    """

    lines: list[Line]
    start_ns: Times
    duration_ns: Times
    extra: dict[int, dict[str, Any]] = {}


def given_up(log: Path) -> list[str]:
    """Say whether the log could not be written whole; `launch/posix_guard.c` makes a directory then."""
    if not log.with_name(f"{log.name}.broken").exists():
        return []
    return [f"{log.name}: the disk was full, or the limit of file sizes reached: what follows is not in it"]


def read_log(log: Path, problems: list[str]) -> Iterator[bytes]:
    """Yield the bytes of a log; where its beginning was dropped, what was kept of that, then whole lines."""
    kept = Path(names.kept_log(str(log)))
    if not kept.exists():
        yield from blocks(log, problems)
        return
    yield from blocks(kept, problems)
    begins = True
    for block in blocks(log, problems):
        if begins and block[:1] == b"\0" and not (block := block.lstrip(b"\0").partition(b"\n")[2]):
            continue
        begins = False
        yield block


class LineReader:
    """Reads one log; its problems do not name the file."""

    def __init__(self) -> None:
        self.problems: list[str] = []
        self.lost_events = 0
        self._line = 0
        self._first_loss: int | None = None

    def read(self, blocks: Iterable[bytes]) -> Iterator[LineBatch]:
        """Yield the lines of the log in order; afterwards `problems` says what was lost."""
        rest, long = b"", False  # of a line that is given up
        for block in blocks:
            whole, newline, rest = (rest + block.translate(_CONTROLS)).rpartition(b"\n")
            if long and newline:
                long, whole = False, whole.partition(b"\n")[2]
            yield self._batch(whole + newline)
            if len(rest) > _LONGEST_LINE and not long:
                self._line += 1
                self._lose()
                long = True
            rest = b"" if long else rest
        if rest.strip(b" \0]"):
            yield self._batch(rest)
        if self.lost_events:
            lines = "1 line" if self.lost_events == 1 else f"{self.lost_events} lines"
            self.problems.append(f"{lines} could not be read, the first is line {self._first_loss}")

    def _batch(self, piece: bytes) -> LineBatch:
        try:
            lines = _decoder.decode_lines(piece)
            starts = np.array([line.ts for line in lines], np.int64)
            durations = np.array([0 if line.dur is UNSET else line.dur for line in lines], np.int64)
        except _UNREADABLE:
            return self._one_by_one(piece)
        if ((starts < 0) | (starts >= _FARTHEST_US) | (np.abs(durations) >= _FARTHEST_US)).any():
            return self._one_by_one(piece)
        self._line += piece.count(b"\n")
        return LineBatch(lines, starts * 1000, durations * 1000)

    def _one_by_one(self, piece: bytes) -> LineBatch:
        rows: list[_Row] = []
        for raw in piece.removesuffix(b"\n").split(b"\n"):
            self._line += 1
            line = json_text.decode(raw).strip(_BETWEEN)
            text = line.lstrip("[]" + _BETWEEN)
            if not text:
                if line not in ("", "[", "]", "[]"):
                    self._lose()
                continue
            try:
                rows.append(_sound(text))
                continue
            except _UNREADABLE:
                pass
            end = 0
            for item in objects(text, 0, final=True):  # a torn line may hold the next one
                end = item.end
                try:
                    if item.value is None:
                        raise ValueError("damaged")
                    rows.append(_mended(item.value))
                except _UNREADABLE:
                    self._lose()
            if text[end:].strip("]" + _BETWEEN):  # after what seemed the end of all
                self._lose()
        lines, starts, durations, extra = list(zip(*rows, strict=True)) or [(), (), (), ()]
        unknown = {row: keys for row, keys in enumerate(extra) if keys}
        return LineBatch(list(lines), np.array(starts, np.int64), np.array(durations, np.int64), unknown)

    def _lose(self) -> None:
        self.lost_events += 1
        self._first_loss = self._first_loss or self._line


def _sound(text: str) -> _Row:
    """The line, where all its values have the types and the size that dftracer writes; else ValueError."""
    line = _decoder.decode(text)
    duration = 0 if line.dur is UNSET else line.dur
    if not 0 <= line.ts < _FARTHEST_US or abs(duration) >= _FARTHEST_US:
        raise ValueError("no time")
    return line, line.ts * 1000, duration * 1000, {}


def _mended(value: dict[str, Any]) -> _Row:
    """A line whose values have odd types; ValueError where it has no time that can be read."""
    phase = value["ph"]
    event, start_ns, duration_ns, unknown, _ = make_event(
        {**value, "ph": PHASES.get(phase, str(phase)) if isinstance(phase, int) else phase}
    )
    args = value.get("args", UNSET)
    line = Line(
        ph=event.ph,
        name=event.name,
        cat=event.cat,
        pid=event.pid,
        tid=event.tid,
        dur=UNSET if event.dur is UNSET else 0,
        id=event.id,
        args=args if args is UNSET else plain(args if isinstance(args, dict) else {"args": args}),
    )
    unknown.pop("type", None)
    if isinstance(value.get("type"), int):
        line.type = value["type"]
    unknown |= {key: plain(value[key]) for key in (KEYS - _OWN_KEYS) & value.keys()}
    return line, start_ns, duration_ns, unknown


def collect_hashes(lines: Iterable[Line]) -> dict[str, str]:
    """Collect the names of files, hosts and strings that `lines` introduce, by their hashes."""
    names = {}
    for line in lines:
        if line.name in _POOLED and line.args is not UNSET:
            value, name = line.args.get("value"), line.args.get("name")
            if isinstance(value, str) and name is not None:
                names[value] = str(name)
    return names


def scan_hashes(block: bytes) -> dict[str, str]:
    """The hashes that a piece of a log, of whole lines, introduces; the other lines are not decoded."""
    wanted = [line for line in block.split(b"\n") if _HASHES.search(line)]
    batches = LineReader().read([b"\n".join(wanted)])
    return {key: name for batch in batches for key, name in collect_hashes(batch.lines).items()}


def phase_letter(line: Line) -> str:
    """The phase as Chrome's format has it: a letter."""
    return line.ph if isinstance(line.ph, str) else PHASES.get(line.ph, str(line.ph))


def spelled_out(args: Mapping[str, Any], pool: Mapping[str, str]) -> dict[str, Any]:
    """`args` with the names of their hashes in front: ``fhash`` as ``file``, ``hhash`` as ``host``."""
    known = {
        _SPELLED.get(key, key.removesuffix("_hash").removesuffix("hash") or key): pool[value]
        for key, value in args.items()
        if key.endswith("hash") and isinstance(value, str) and value in pool
    }
    return {**known, **args}


_SPELLED = {"fhash": "file", "hhash": "host"}


class DftracerReader(LineReader):
    """Reads one log; `pool` holds the names of the hashes."""

    def __init__(self, pool: Mapping[str, str]) -> None:
        super().__init__()
        self._pool = pool

    def batches(self, blocks: Iterable[bytes]) -> Iterator[EventBatch]:
        """Yield the events of the log, in order."""
        for batch in self.read(blocks):
            events = [self._event(line) for line in batch.lines]
            may_bind = bool(batch.extra)
            yield EventBatch(events, batch.start_ns, batch.duration_ns, batch.extra, may_bind)

    def _event(self, line: Line) -> Event:
        event = Event(ph=phase_letter(line), name=line.name, cat=line.cat, pid=line.pid, tid=line.tid)
        if line.dur is not UNSET:
            event.dur = 0
        # Chrome's format has no key for a type, and another meaning for an id: both become arguments.
        args: dict[str, Any] = {}
        if line.id is not UNSET:
            args["id"] = line.id
        if line.type is not UNSET:
            args["type"] = line.type
        if line.args is not UNSET:
            args |= line.args
        event.args = Raw(encode_number(spelled_out(args, self._pool)))
        return event
