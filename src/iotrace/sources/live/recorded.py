"""The newest POSIX calls of a session that runs, as our recorder keeps them in mapped files.

Nothing is held back in the program: on the host that looks, a process's calls are known until now, also where
it makes none. Of another host's process they are known as far as its file has come here.
"""

from __future__ import annotations

import os
import time
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

import numpy as np
from msgspec.structs import replace

from iotrace.session.identity import boot_id
from iotrace.sources.clocks.anchors import Clocks
from iotrace.sources.clocks.session_clock import Clock
from iotrace.sources.live.known import Known
from iotrace.sources.live.recorded_file import GROWS_NS, LiveFile
from iotrace.sources.posix_calls import PosixCalls
from iotrace.sources.recorder.reader import CallTable, recorded_files
from iotrace.sources.records import Identity

MOST_BYTES = 2 << 20  # of bursts, at one look
_LEAST_BYTES = 16 << 10
_MOST_RECORDS = 400_000  # whose beginnings are read at one look, some 0.3 s
_MOST_CALLS = 600_000


class LiveRecorded:
    """The calls in the files of `directories`, by the newest of each file."""

    def __init__(self) -> None:
        self._files: dict[str, LiveFile] = {}  # by name: in the end some are moved into the session
        self._of_process: dict[tuple[str, int], list[LiveFile]] = {}
        self._looked_ns = 0
        self._node, self._boot = os.uname().nodename, boot_id()

    def poll(self, directories: Iterable[Path]) -> None:
        """Read what the files grew by, `MOST_BYTES` of calls at most; of more the newest of each file."""
        self._looked_ns = time.monotonic_ns()
        for path in recorded_files(directories):
            self._files.setdefault(path.name, LiveFile(path)).path = path
        most = _MOST_RECORDS
        for file in self._files.values():
            most -= file.look(max(most, 0))
        grown = {file: size for file in self._files.values() if (size := file.unread_bytes)}
        share = min(1.0, MOST_BYTES / max(1, sum(grown.values())))
        for file, size in grown.items():
            file.read(size if share == 1 else max(_LEAST_BYTES, int(size * share)), self._now_ns(file))
        self._of_process = defaultdict(list)
        for file in self._files.values():
            if file.head is not None:
                self._of_process[file.head.node, file.head.pid].append(file)

    def _now_ns(self, file: LiveFile) -> int:
        """A process's time now; 0 where its clock is not the one here."""
        return self._looked_ns if file.head is not None and file.head.node == self._node else 0

    def known_of(self, identity: Identity, clock: Clock) -> Known | None:
        """How far a process's calls are known, in the session's time; None where nothing is."""
        files = self._of_process.get((identity.node, identity.pid))
        if not files:
            return None
        until_ns = max(file.newest_ns for file in files)
        if self._boot and identity.boot_id == self._boot and not any(file.is_behind for file in files):
            until_ns = max(until_ns, self._looked_ns - GROWS_NS)
        since_ns = max(file.since_ns for file in files)
        return Known(clock.to_session_ns(since_ns) if since_ns else 0, clock.to_session_ns(until_ns))

    def forget(self, clocks: Clocks, before_ns: int) -> None:
        """Give up the calls that ended before a time of the session, and the oldest of too many."""
        offsets_ns = {file: _offset_ns(file, clocks) for file in self._files.values()}
        if sum(map(len, offsets_ns)) > _MOST_CALLS:
            ends_ns = np.concatenate([file.ends_ns() + offset_ns for file, offset_ns in offsets_ns.items()])
            newest_ns = int(np.partition(ends_ns, -_MOST_CALLS)[-_MOST_CALLS])
            if newest_ns > before_ns:
                before_ns = newest_ns
                for file, offset_ns in offsets_ns.items():
                    file.since_ns = max(file.since_ns, before_ns - offset_ns)
        for file, offset_ns in offsets_ns.items():
            file.forget(before_ns - offset_ns)

    def calls(self, clocks: Clocks) -> PosixCalls:
        """The calls that are still known, in the session's time."""
        table = CallTable(clocks)
        for file in self._files.values():
            found = file.calls()
            if found is not None:
                table.take(found)
        return replace(table.calls(), sums=None)  # they are those of the whole run


def _offset_ns(file: LiveFile, clocks: Clocks) -> int:
    """What leads from a process's CLOCK_MONOTONIC to the session's time."""
    if file.head is None:
        return 0
    clock = clocks.of(file.head.node, file.head.pid)
    return file.head.start_realtime_ns - file.head.start_ns if clock is None else clock.offset_ns
