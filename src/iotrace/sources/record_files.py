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

from iotrace.session.reading import UNREADABLE, read_pieces

Line = TypeVar("Line", bound=msgspec.Struct)


def each_record(path: Path, kind: type[Line], problems: list[str]) -> Iterator[Line]:
    """Yield the lines of `path`, each a tagged subclass of `kind`; what is lost is added to `problems`."""
    lost, rest = 0, [b""]
    for piece in read_pieces(path, problems):
        behind = piece.rfind(b"\n") + 1
        if behind:
            found, unreadable = decode_lines(b"".join((*rest, piece[:behind])), kind)
            yield from found
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
    data = bytearray()
    for piece in read_pieces(path, problems):
        data += piece
    if len(data) % dtype.itemsize:
        problems.append(f"{path.name} was cut in its last {what}")
    return np.frombuffer(data, dtype, count=len(data) // dtype.itemsize)
