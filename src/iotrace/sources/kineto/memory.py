"""What torch.profiler recorded of memory (``profile_memory=True``): given and freed, an instant each."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import msgspec

from iotrace.errors import TraceError
from iotrace.sources.byte_stream import blocks

MEMORY = "[memory]"
_EVENT = re.compile(rb'"name":\s*"\[memory\]"[^{}]*"args":\s*(\{[^{}]*\})')
_LONGEST = 4096  # of such an event
_Int = Annotated[int, msgspec.Meta(ge=-(2**62), le=2**62)]


class Allocation(msgspec.Struct, frozen=True):
    """Memory that was given (`size` above 0) or freed; what its device's allocator then held, -1 unknown."""

    size: _Int = msgspec.field(name="Bytes")
    device_type: _Int = msgspec.field(name="Device Type", default=0)
    device: _Int = msgspec.field(name="Device Id", default=-1)
    allocated: _Int = msgspec.field(name="Total Allocated", default=-1)
    reserved: _Int = msgspec.field(name="Total Reserved", default=-1)


def read_allocations(path: Path) -> list[Allocation | None]:
    """Read the events of memory in the order of the file; None for one that cannot be read.

    Raises:
        TraceError: the file cannot be read.
    """
    try:
        return list(_allocations(path))
    except OSError as error:
        raise TraceError(f"{path} cannot be read: {error.strerror or error}") from error


def _allocations(path: Path) -> Iterator[Allocation | None]:
    decode = msgspec.json.Decoder(Allocation).decode
    rest = b""
    for block in blocks(path, []):
        text = rest + bytes(block)
        at = 0
        for match in _EVENT.finditer(text):
            at = match.end()
            try:
                yield decode(match[1])
            except (msgspec.DecodeError, msgspec.ValidationError, UnicodeDecodeError):
                yield None
        rest = text[max(at, len(text) - _LONGEST) :]
