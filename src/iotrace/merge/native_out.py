"""Native Perfetto traces."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from iotrace.merge.events import Event
from iotrace.merge.spill import Spill
from iotrace.merge.tracks import Tracks


class NativePart:
    needs_all_rows = True

    def __init__(self, path: Path, place: int) -> None:
        raise NotImplementedError

    def write(self, events: list[Event], extra: dict[int, dict[str, Any]]) -> None:
        raise NotImplementedError

    def finish(self, spill: Spill, tracks: Tracks, delete_unbound: bool) -> tuple[int, int]:
        raise NotImplementedError


def join(parts: list[Path], processes: Any, document: dict[str, Any], out: Any) -> None:
    raise NotImplementedError
