"""The files of an agent or a sidecar, whose writer may have been killed, or whose disk was full."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache, reduce
from operator import or_
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt

from iotrace.session.reading import UNREADABLE, read_stream

Line = TypeVar("Line", bound=msgspec.Struct)
_BLOCK_BYTES = 4 << 20


def each_record(path: Path, kind: type[Line], problems: list[str]) -> Iterator[Line]:
    """Yield the lines of `path`, each a tagged subclass of `kind`; what is lost is added to `problems`."""
    data = read_stream(path, problems)
    behind = data.rfind(b"\n")
    if len(data) > behind + 1:
        problems.append(f"{path.name} was cut in its last line")
    first = lost = 0
    while first < behind:
        until = data.find(b"\n", min(first + _BLOCK_BYTES, behind))
        found, unreadable = decode_lines(data[first:until], kind)
        yield from found
        first, lost = until + 1, lost + unreadable
    if lost:
        problems.append(f"{lost} unreadable lines in {path.name}")


def decode_lines(lines: bytes, kind: type[Line]) -> tuple[list[Line], int]:
    """Decode whole `lines`, each a tagged subclass of `kind`; count those that cannot be read."""
    decoder = _decoder(kind)
    try:
        found: list[Line] = decoder.decode_lines(lines)
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
