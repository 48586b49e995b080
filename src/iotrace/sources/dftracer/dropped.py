"""What the limit of a session's size has dropped of dftracer's logs: told by the sums that are kept."""

from __future__ import annotations

from collections import Counter
from datetime import datetime, timezone
from typing import Any

import msgspec


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
        """Add what one line tells; one that is damaged tells nothing."""
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
        found = []
        if self._calls:
            until = datetime.fromtimestamp(self._until_us // 1_000_000, timezone.utc)
            found.append(
                f"the session grew beyond --max-size: its oldest {self._calls} POSIX calls, which moved "
                f"{self._bytes / 2**20:.1f} MiB, were dropped, up to {until:%Y-%m-%d %H:%M:%S} UTC"
            )
        if self._refused:
            found.append(f"the session grew beyond --max-size, and no call could be dropped: {self._refused}")
        return found
