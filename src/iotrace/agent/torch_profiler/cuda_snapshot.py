"""Record the history of a device's memory for some training steps (``--cuda-snapshot``), for memory_viz.

torch's functions for it are private. The recording gives way to the program's own; a device that the
program does not use is left alone.
"""

from __future__ import annotations

import atexit
import sys
from posix import chmod, stat
from time import monotonic_ns
from typing import Any

from iotrace.agent import training
from iotrace.agent.recording.recorder import Recorder
from iotrace.session import names
from iotrace.session.guard import ours

_MOST_ENTRIES = 100_000  # allocations and frees that torch keeps, the last ones: each with its stack

WAITING, ACTIVE, OVER = "waiting", "active", "over"


class CudaSnapshot:
    """Starts behind `warmup` training steps, and writes what happened in the `steps` that follow."""

    def __init__(self, recorder: Recorder, setting: str) -> None:
        self._recorder = recorder
        self._warmup, self._steps = map(int, setting.split(":"))
        self._count = 0  # training steps so far: deliveries that a backward pass preceded
        self._backward = 0
        self._begun = 0
        self._own = False
        self.phase = WAITING

    def delivered(self, grad: bool) -> None:
        """Begin or end at a batch for training, between two steps."""
        backward = training.backward_count
        if self.phase is OVER or not grad:
            return
        if backward != self._backward:
            self._backward = backward
            self._count += 1
        try:
            if self.phase is WAITING and self._count >= self._warmup and _uses_device():
                self._start()
            elif self.phase is ACTIVE and self._count - self._begun >= self._steps:
                self.end("")
        except ours(Exception) as error:
            self._fail(error)

    def end(self, why: str = "exit") -> None:
        """Write what was recorded, and record no more."""
        if self.phase is not ACTIVE:
            self.phase = OVER
            return
        self.phase = OVER
        try:
            start_ns = monotonic_ns()
            path = f"{self._recorder.directory}/{names.CUDA_SNAPSHOT_FILE}"
            stat(self._recorder.directory)  # else the session is gone
            memory = sys.modules["torch"].cuda.memory
            self._own = True
            try:
                memory._dump_snapshot(path)
                chmod(path, names.FILE_MODE)
            finally:
                memory._record_memory_history(enabled=None)
                self._own = False
            self._note("written", start_ns, why)
        except ours(Exception) as error:
            self._fail(error)

    def give_way(self) -> None:
        """End before the program's own recording begins; our own calls are none of it."""
        if not self._own and self.phase is not OVER:
            self._note("program", monotonic_ns(), "")
            self.end("program")

    def _start(self) -> None:
        start_ns = monotonic_ns()
        self._own = True
        try:
            record = sys.modules["torch"].cuda.memory._record_memory_history
            record(max_entries=_MOST_ENTRIES, stacks="python")
        finally:
            self._own = False
        self.phase, self._begun = ACTIVE, self._count
        self._note("started", start_ns, "")
        atexit.register(self.end)
        self._recorder.before_close.append(self.end)

    def _fail(self, error: Exception) -> None:
        self.phase = OVER
        self._recorder.absorb(error, "recording a snapshot of device memory")
        self._note("error", monotonic_ns(), str(error) or repr(error))

    def _note(self, event: str, start_ns: int, why: str) -> None:
        self._recorder.records.append(
            {
                "type": "cuda_snapshot",
                "event": event,
                "steps": self._count - self._begun,
                "mono_ns": start_ns,
                "duration_ns": monotonic_ns() - start_ns,
                "why": why,
            }
        )


def _uses_device() -> bool:
    """Say whether the program has used a device: asking for one would begin it."""
    cuda: Any = getattr(sys.modules.get("torch"), "cuda", None)
    return cuda is not None and bool(cuda.is_initialized())
