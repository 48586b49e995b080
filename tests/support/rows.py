"""What an agent has recorded: rows as dictionaries, and as the lines that older agents wrote."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
import numpy as np

from iotrace.session import names
from iotrace.sources.clocks.session_clock import Clock
from iotrace.sources.columns import Columns
from iotrace.sources.processes import SPAN_DTYPE, Process
from iotrace.sources.records import Identity, Record
from iotrace.sources.rows import decode_lines, divided


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


def lines_of(records: Iterable[Line]) -> bytes:
    """The records as records.jsonl holds them."""
    return b"".join(msgspec.json.encode(record) + b"\n" for record in records)


def process_of(
    identity: Identity, records: Sequence[Line], spans: Any = None, texts: dict[int, str] | None = None
) -> Process:
    """A process that recorded this, on the session's clock."""
    texts = {} if texts is None else texts
    found, lost = decode_lines(lines_of(records).rstrip(b"\n"), Record)
    assert lost == 0
    others, arrays = divided(found, texts)
    own = Columns.of(np.zeros(0, SPAN_DTYPE) if spans is None else spans)
    return Process(identity, Clock([[0, 0, 1]]), others, own, texts, arrays=arrays)


_TYPES = ("batch", "produced", "round", "blocked", "exposed", "phase", "mark")
_NAMED = {"outcome": names.OUTCOMES, "what": names.ROUNDS, "call": names.CALLS}


def told(records: list[Any]) -> list[dict[str, Any]]:
    """The records of a recorder, in order."""
    return [_row(record) if isinstance(record, tuple) else record for record in records]


def _row(row: tuple[int, ...]) -> dict[str, Any]:
    known = dict(zip(names.ROW_FIELDS[row[0]], row[1:], strict=True))
    return {"type": _TYPES[row[0]], **{k: _NAMED[k][v] if k in _NAMED else v for k, v in known.items()}}
