"""What an agent has recorded: rows as structs with names, and as records.jsonl holds them."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np

from iotrace.session import names
from iotrace.sources.clocks.session_clock import Clock
from iotrace.sources.processes import SPAN_DTYPE, Process
from iotrace.sources.record_files import decode_lines
from iotrace.sources.records import Identity, Record
from iotrace.sources.rows import divided


class BatchRecord(msgspec.Struct, tag="batch"):
    iterator: int
    epoch: int
    generation: int
    index: int
    tid: int
    wait_start_ns: int
    delivered_ns: int
    grad: bool
    backward_count: int
    worker: int | None = None
    pid: int | None = None
    sent_ns: int | None = None
    fetch_end_ns: int | None = None
    samples: int | None = None
    phase: str | None = None
    ahead: int = 0


class Produced(msgspec.Struct, tag="produced"):
    generation: int
    index: int
    outcome: str
    taken_ns: int
    prepared_ns: int
    samples: int | None = None
    bytes: int | None = None


class Round(msgspec.Struct, tag="round"):
    what: str
    number: int
    tid: int
    mono_ns: int
    cpu_ns: int
    run_delay_ns: int


class Blocked(msgspec.Struct, tag="blocked"):
    tid: int
    start_ns: int
    end_ns: int
    by: int | None = None
    queue: int | None = None
    call: str = ""


class StepMark(msgspec.Struct, tag="mark"):
    mono_ns: int


class Exposed(msgspec.Struct, tag="exposed"):
    iterator: int
    epoch: int
    index: int
    exposed_ns: int


class PhaseOnDevice(msgspec.Struct, tag="phase"):
    tid: int
    start_ns: int
    device_ns: int


Line = Record | BatchRecord | Produced | Round | Blocked | StepMark | Exposed | PhaseOnDevice


_TYPES = ("batch", "produced", "round", "blocked", "exposed", "phase", "mark")
_NAMED = {"outcome": names.OUTCOMES, "what": names.ROUNDS, "call": names.CALLS}
_FIRST_TEXT = 1 << 20  # above the numbers that tests give to texts


def lines_of(records: Iterable[Line]) -> bytes:
    """The records as records.jsonl holds them: a line for each row."""
    phases: dict[str, int] = {}
    lines = []
    for record in records:
        told = msgspec.to_builtins(record)
        phase = told.get("phase") if told["type"] in _TYPES else None
        if phase is not None and phase not in phases:
            phases[phase] = _FIRST_TEXT + len(phases)
            lines.append({"type": "text", "id": phases[phase], "text": phase})
        lines.append(in_rows(told, phases))
    return b"".join(msgspec.json.encode(line) + b"\n" for line in lines)


def in_rows(told: dict[str, Any], phases: Mapping[str, int] | None = None) -> dict[str, Any]:
    """What comes with every batch or step as a line with one row, anything else as it is.

    `phases` are the numbers of the texts that name phases.
    """
    if told["type"] not in _TYPES:
        return told
    kind = _TYPES.index(told["type"])
    row = [kind]
    for field in names.ROW_FIELDS[kind]:
        value = told.get(field)
        if value is not None and field == "phase":
            value = (phases or {})[value]
        elif field in _NAMED:
            value = _NAMED[field].index(value) if value in _NAMED[field] else None
        row.append(-1 if value is None else int(value))
    return {"type": "rows", "kind": kind, "rows": struct.pack(f"<{len(row)}q", *row)}


def process_of(
    identity: Identity, records: Sequence[Line], spans: Any = None, texts: dict[int, str] | None = None
) -> Process:
    """A process that recorded this, on the session's clock."""
    texts = {} if texts is None else texts
    found, lost = decode_lines(lines_of(records).rstrip(b"\n"), Record)
    assert lost == 0
    others, arrays = divided(found, texts)
    own = np.zeros(0, dtype=SPAN_DTYPE) if spans is None else spans
    return Process(identity, Clock([[0, 0, 1]]), others, own, texts, arrays=arrays)


def told(records: list[Any]) -> list[dict[str, Any]]:
    """The records of a recorder, in order."""
    return [_row(record) if isinstance(record, tuple) else record for record in records]


def _row(row: tuple[int, ...]) -> dict[str, Any]:
    known = dict(zip(names.ROW_FIELDS[row[0]], row[1:], strict=True))
    return {"type": _TYPES[row[0]], **{k: _NAMED[k][v] if k in _NAMED else v for k, v in known.items()}}
