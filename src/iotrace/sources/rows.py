"""What comes with every batch or step: agents write rows of integers, which are read as columns.

The files of an agent or a sidecar, whose writer may have been killed, or whose disk was full.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Container, Iterable, Iterator, Sequence
from functools import cache, reduce
from operator import or_
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt

from iotrace.session import names
from iotrace.session.reading import UNREADABLE, read_pieces
from iotrace.sources.columns import Columns, Gathering
from iotrace.sources.records import Idle, Int, Record, Rows, Text, Tick

DTYPES = tuple(  # after the kind, which is the first integer of each row
    np.dtype({"names": fields, "formats": ["<i8"] * len(fields), "offsets": range(8, 8 * len(fields) + 8, 8)})
    for fields in names.ROW_FIELDS
)
# By kind, the field that orders rows: when a row was made, mostly.
TIME_FIELDS = (
    "delivered_ns",
    "prepared_ns",
    "mono_ns",
    "end_ns",
    None,
    "start_ns",
    "mono_ns",
    "end_ns",
    "prepared_ns",
    "taken_ns",
    "end_ns",
    "end_ns",
    None,
    "mono_ns",
    "start_ns",
    "sent_ns",
    "came_ns",
    None,  # a sum, which says nothing of what the process has done since
)
_MOST = 2**62  # as of all numbers in records: what a damaged line holds shall not overflow
_WORDS = {"outcome": names.OUTCOMES, "what": names.ROUNDS, "call": names.CALLS, "pause": names.PAUSES}
_TAGS = (
    "batch",
    "produced",
    "round",
    "blocked",
    "exposed",
    "phase",
    "mark",
    "pause",
    "made",
    "handed",
    "locked",
    "turn",
)  # of older sessions


def _line_type(tag: str, fields: Sequence[str]) -> type[Record]:
    """Define the line that older sessions hold for each row, with the fields' names."""
    texts = (*_WORDS, "phase")
    types = [(field, str | None if field in texts else Int | bool | None, None) for field in fields]
    made: Any = msgspec.defstruct(tag, types, bases=(Record,), tag=tag)
    line: type[Record] = made
    return line


_LINES = {_line_type(tag, names.ROW_FIELDS[kind]): kind for kind, tag in enumerate(_TAGS)}


def divided(
    read: Iterable[Record], texts: dict[int, str], now_ns: int = 0
) -> tuple[list[Record], dict[int, Columns]]:
    """Divide what was read into rows, by kind, and other records, in the order of their making.

    `texts` gets the texts among them. A record that does not say when it was made follows those before it;
    the first ones were made at `now_ns`.
    """
    gathered: dict[int, Gathering] = {}
    lines: dict[int, list[Record]] = defaultdict(list)
    timed: list[tuple[int, Record]] = []
    for record in read:
        kind = _LINES.get(type(record))
        if isinstance(record, Rows):
            rows = _decode_rows(record)
            if len(rows):
                gathered.setdefault(record.kind, Gathering(DTYPES[record.kind])).add(rows)
                now_ns = max(now_ns, newest_ns(record.kind, rows))
        elif kind is not None:
            lines[kind].append(record)
            now_ns = max(now_ns, line_ns(record))
        else:
            timed.append((_made_ns(record) or now_ns, record))
            now_ns = max(now_ns, timed[-1][0])
            if isinstance(record, Idle):
                record.mono_ns = timed[-1][0]
            elif isinstance(record, Text):
                texts[record.id] = record.text
    timed.sort(key=lambda each: each[0])
    for kind, own in lines.items():
        gathered.setdefault(kind, Gathering(DTYPES[kind])).add(_of_lines(kind, own, texts))
    arrays = {kind: joined(kind, [own.columns(_WORDS)[0]]) for kind, own in gathered.items()}
    return [record for _, record in timed], arrays


def _made_ns(record: Record) -> int:
    return record.clock[0] if isinstance(record, Tick) else getattr(record, "mono_ns", 0)


def line_ns(record: Record) -> int:
    """When a row that is a line of its own was made; 0 of all other records."""
    field = TIME_FIELDS[_LINES[type(record)]] if type(record) in _LINES else None
    return getattr(record, field) or 0 if field is not None else 0


def _of_lines(kind: int, lines: Sequence[Record], texts: dict[int, str]) -> npt.NDArray[np.void]:
    """Make rows of lines; `texts` gets their phases, under numbers that no agent gives."""
    rows = np.full(len(lines), -1, DTYPES[kind])
    for field in names.ROW_FIELDS[kind]:
        values: list[Any] = [getattr(line, field) for line in lines]
        numbers = {word: number for number, word in enumerate(_WORDS.get(field, ()))}
        if field == "phase":
            numbers = {text: number for number, text in texts.items() if number < 0}
            for text in dict.fromkeys(values):
                if text is not None:
                    texts[numbers.setdefault(text, -2 - len(numbers))] = text
        if field == "phase" or field in _WORDS:
            values = [numbers.get(value) for value in values]
        rows[field] = [-1 if value is None else value for value in values]
    return rows


def _decode_rows(rows: Rows) -> npt.NDArray[np.void]:
    """The rows of one record; none where it is damaged."""
    if not 0 <= rows.kind < len(DTYPES):
        return np.empty(0, DTYPES[0])
    dtype = DTYPES[rows.kind]
    integers = np.frombuffer(rows.rows, "<i8", len(rows.rows) // dtype.itemsize * (dtype.itemsize // 8))
    if not len(integers) or (integers.max() <= _MOST and integers.min() >= -_MOST):
        return integers.view(dtype)
    possible = (
        ((integers <= _MOST) & (integers >= -_MOST)).reshape(-1, dtype.itemsize // 8)[:, 1:].all(axis=1)
    )
    return integers.view(dtype)[possible]


def joined(kind: int, parts: Sequence[Columns]) -> Columns:
    """The rows of one kind, in the order in which they were made."""
    rows, field = Columns.joined(parts), TIME_FIELDS[kind]
    if field is not None and (rows[field][1:] < rows[field][:-1]).any():
        rows = rows[np.argsort(rows[field], kind="stable")]
    return rows.whole()


def newest_ns(kind: int, rows: Columns | npt.NDArray[np.void]) -> int:
    """When the last row was made; 0 where there is none, or its kind does not say."""
    field = TIME_FIELDS[kind]
    return int(rows[field][-1]) if field is not None and len(rows) else 0


Line = TypeVar("Line", bound=msgspec.Struct)


def each_record(path: Path, kind: type[Line], problems: list[str]) -> Iterator[Line]:
    """Yield the lines of `path`, each a tagged subclass of `kind`; what is lost is added to `problems`."""
    lost, rest = 0, [b""]
    for piece in read_pieces(path, problems):
        behind = piece.rfind(b"\n") + 1
        if behind:
            records, unreadable = decode_lines(b"".join((*rest, piece[:behind])), kind)
            yield from records
            lost, rest = lost + unreadable, []
        rest.append(piece[behind:])
    if any(rest):
        problems.append(f"{path.name} was cut in its last line")
    if lost:
        problems.append(f"{lost} unreadable lines in {path.name}")


def decode_lines(lines: bytes, kind: type[Line]) -> tuple[list[Line], int]:
    """Decode whole `lines`, each a tagged subclass of `kind`; count those that cannot be read."""
    decoder = _decoder(kind)
    try:
        records: list[Line] = decoder.decode_lines(lines)
        return records, 0
    except UNREADABLE:
        records, lost = [], 0
    for line in lines.split(b"\n"):
        try:
            records.append(decoder.decode(line))
        except UNREADABLE:
            lost += bool(line)
    return records, lost


@cache
def _decoder(kind: type[msgspec.Struct]) -> Any:
    return msgspec.json.Decoder(reduce(or_, kind.__subclasses__()))


def read_rows(path: Path, dtype: np.dtype[Any], what: str, problems: list[str]) -> npt.NDArray[Any]:
    """The rows of `path`, as far as they are whole; `what` is the name of one in `problems`."""
    data = bytearray()
    for piece in read_pieces(path, problems):
        data += piece
    if len(data) % dtype.itemsize:
        problems.append(f"{path.name} was cut in its last {what}")
    return np.frombuffer(data, dtype, count=len(data) // dtype.itemsize)


def read_columns(
    path: Path, dtype: np.dtype[Any], what: str, problems: list[str], numbers: Container[str] = ()
) -> Columns:
    """As `read_rows`, each field a column of its own; those of `numbers` only number things."""
    rows = Gathering(dtype)
    for piece in read_pieces(path, problems):
        rows.add(piece)
    columns, was_cut = rows.columns(numbers)
    if was_cut:
        problems.append(f"{path.name} was cut in its last {what}")
    return columns
