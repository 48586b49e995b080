"""How far the POSIX calls of a process are known while it runs."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Protocol

import msgspec

from iotrace.sources.clocks.anchors import Clocks
from iotrace.sources.clocks.session_clock import Clock
from iotrace.sources.posix_calls import PosixCalls
from iotrace.sources.records import Identity


class Known(msgspec.Struct):
    """From when to when the calls of a process are known without a gap, in ns."""

    since_ns: int
    until_ns: int


class NewestCalls(Protocol):
    """The newest calls in a session's files, whoever recorded them."""

    def poll(self, directories: Iterable[Path]) -> None:
        """Read what the files in `directories` grew by; of much the newest."""

    def known_of(self, identity: Identity, clock: Clock) -> Known | None:
        """How far a process's calls are known, in the session's time; None where nothing is."""

    def forget(self, clocks: Clocks, before_ns: int) -> None:
        """Give up the calls that ended before `before_ns` of the session's time."""

    def calls(self, clocks: Clocks) -> PosixCalls:
        """The calls that are still known, in the session's time."""
