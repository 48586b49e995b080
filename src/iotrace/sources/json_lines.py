"""Files of JSON lines whose writer may have been killed, or whose disk was full."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec


def read_lines(path: Path, kinds: Any, problems: list[str]) -> list[Any]:
    """The records of `path`, each one of the tagged structs `kinds`; what is lost is added to `problems`."""
    try:
        data = path.read_bytes()
    except OSError:
        return []
    whole, newline, rest = data.rpartition(b"\n")
    if rest:
        problems.append(f"{path.name} was cut in its last line")
    decoder: msgspec.json.Decoder[Any] = msgspec.json.Decoder(kinds)
    try:
        return decoder.decode_lines(whole + newline)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return _read_damaged(whole, decoder, path, problems)


def _read_damaged(data: bytes, decoder: Any, path: Path, problems: list[str]) -> list[Any]:
    records, lost = [], 0
    for line in data.split(b"\n"):
        try:
            records.append(decoder.decode(line))
        except (msgspec.DecodeError, UnicodeDecodeError):
            lost += bool(line)
    problems.append(f"{lost} unreadable lines in {path.name}")
    return records
