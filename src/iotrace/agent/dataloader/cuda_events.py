"""Time what lies between two instants of the program on the device: waits for batches, phases of a step.

An event is recorded on the current stream at each of the two. While a loader is asked nothing is enqueued, so
the time between them on the device is idle time due to this wait; work that was still running hides the rest.
In a phase it is the time of what the phase has launched. The pairs are read later, when the device has passed
them; nothing ever waits for the device.
"""

from __future__ import annotations

import os
import sys
from collections import deque
from typing import Any

from iotrace.agent.recording.recorder import Recorder
from iotrace.session.guard import ours

# A device that is further behind than this has its oldest pairs left unknown.
_MOST_PENDING = 64
_READ_AT_ONCE = 4
Row = tuple[int, ...]


class CudaEvents:
    """The pairs of events of this process; the first error of the device ends them for good."""

    def __init__(self, recorder: Recorder, most_pending: int = _MOST_PENDING) -> None:
        self._recorder = recorder
        self._most_pending = most_pending
        self._pid = os.getpid()
        self._failed = False
        self._pending: deque[tuple[Any, Any, Row]] = deque()
        self._free: list[Any] = []

    def begin(self) -> Any:
        """Record the first instant; return None where no device is in use."""
        cuda: Any = sys.modules.get("torch.cuda")
        # torch's own variable says no without a call: this is all that is paid where no device is used.
        if cuda is None or not getattr(cuda, "_initialized", True):
            return None
        # A forked child must not touch its parent's events, not even to free them: they are kept.
        if self._failed or self._pid != os.getpid():
            return None
        try:  # `_guarded`, without the call
            return self._record(cuda) if cuda.is_initialized() else None
        except ours(Exception) as error:
            self._fail(error)
            return None

    def end(self, start: Any) -> tuple[Any, Any] | None:
        """Record the second instant; return both events, None where that failed."""
        event = self._guarded(self._record, sys.modules["torch.cuda"])
        return None if event is None else (start, event)

    def keep(self, pair: tuple[Any, Any], row: Row) -> None:
        """Complete `row` by the time in ns between `pair`, when the device has passed it.

        Those that it has passed are recorded now.
        """
        self._pending.append((*pair, row))
        if len(self._pending) > self._most_pending:
            self._free.extend(self._pending.popleft()[:2])
        self._guarded(self.read, _READ_AT_ONCE)

    def read(self, most: int) -> None:
        """Record the pairs that the device has passed, in their order, at most `most` of them."""
        while self._pending and most and self._pending[0][1].query():
            most -= 1
            start, event, row = self._pending.popleft()
            taken_ns = round(start.elapsed_time(event) * 1e6)  # torch gives ms
            self._recorder.records.append((*row, taken_ns))
            self._free += (start, event)

    def close(self) -> None:
        """Read what can be read without waiting; the rest stays unknown."""
        if not self._failed and self._pid == os.getpid() and self._pending:
            self._guarded(self._read_rest, sys.modules["torch.cuda"])

    def _read_rest(self, cuda: Any) -> None:
        if not cuda.is_current_stream_capturing():
            self.read(self._most_pending)

    def _record(self, cuda: Any) -> Any:
        if cuda.is_current_stream_capturing():  # the event would become a part of the graph
            return None
        event = self._free.pop() if self._free else cuda.Event(enable_timing=True)
        event.record()
        return event

    def _guarded(self, act: Any, argument: Any) -> Any:
        try:
            return act(argument)
        except ours(Exception) as error:
            self._fail(error)
            return None

    def _fail(self, error: Exception) -> None:
        self._failed = True
        self._recorder.absorb(error, "timing on the device")
