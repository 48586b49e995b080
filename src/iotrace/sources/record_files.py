"""The files of an agent or a sidecar, whose writer may have been killed, or whose disk was full."""

from __future__ import annotations

from functools import cache, reduce
from operator import or_
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt

from iotrace.session.reading import UNREADABLE, read_stream

Record = TypeVar("Record", bound=msgspec.Struct)


def read_records(path: Path, kind: type[Record], problems: list[str]) -> list[Record]:
    """The lines of `path`, each a tagged subclass of `kind`; what is lost is added to `problems`."""
    whole, _, rest = read_stream(path, problems).rpartition(b"\n")
    if rest:
        problems.append(f"{path.name} was cut in its last line")
    found, lost = decode_lines(whole, kind)
    if lost:
        problems.append(f"{lost} unreadable lines in {path.name}")
    return found


def decode_lines(lines: bytes, kind: type[Record]) -> tuple[list[Record], int]:
    """Decode whole `lines`, each a tagged subclass of `kind`; count those that cannot be read."""
    decoder = _decoder(kind)
    try:
        found: list[Record] = decoder.decode_lines(lines)
        return found, 0
    except UNREADABLE:
        found, lost = [], 0
    for line in lines.split(b"\n"):
        try:
            found.append(decoder.decode(line))
        except UNREADABLE:
            lost += bool(line)
    return found, lost


@cache
def _decoder(kind: type[msgspec.Struct]) -> Any:
    return msgspec.json.Decoder(reduce(or_, kind.__subclasses__()))


def read_rows(path: Path, dtype: np.dtype[Any], what: str, problems: list[str]) -> npt.NDArray[Any]:
    """The rows of `path`, as far as they are whole; `what` is the name of one in `problems`."""
    data = read_stream(path, problems)
    if len(data) % dtype.itemsize:
        problems.append(f"{path.name} was cut in its last {what}")
    rows: npt.NDArray[Any] = np.frombuffer(data, dtype, count=len(data) // dtype.itemsize).copy()
    return rows
