"""Hook memory maps: ``numpy.memmap``, also as ``numpy.load(mmap_mode=)`` returns it.

No system call reads the pages of a map: they come by page faults when they are touched, which is often
after ``__getitem__`` has returned a view. Hence the spans hold the file of each access and its bytes.
"""

from __future__ import annotations

from time import monotonic_ns
from typing import Any

from iotrace.agent.patching import hide_frame, patch
from iotrace.agent.readpaths.finders import path_of
from iotrace.agent.recording.recorder import Recorder
from iotrace.agent.recording.spans import thread_id, timed
from iotrace.session.guard import ours
from iotrace.session.names import KIND_MAPPED

# Smaller results are not recorded: a loop over elements would make a span of each.
SMALLEST_BYTES = 4096

_NAME = "numpy.memmap.__getitem__"


def hook_memory_maps(recorder: Recorder, numpy: Any) -> None:
    """Patch ``numpy.memmap.__getitem__``."""
    basic = frozenset({int, slice, type(None), type(Ellipsis)})

    def describe(result: Any, args: tuple[Any, ...], _: dict[str, Any]) -> tuple[int, str] | None:
        if getattr(result, "nbytes", 0) < SMALLEST_BYTES:
            return None
        recorder.start()
        return result.nbytes, path_of(args[0].filename)

    def note_view(mapped: Any, result: Any, start_ns: int) -> None:
        # A view is made without touching its pages: no fault, no switch, hence no `getrusage`.
        end_ns = monotonic_ns()
        recorder.start()
        path = path_of(mapped.filename)
        file = recorder.text(path) if path else -1
        duration_ns = end_ns - start_ns
        what = (result.nbytes, thread_id(), recorder.text(_NAME), file, KIND_MAPPED)
        recorder.spans.append((start_ns, duration_ns, duration_ns, *what, 0, 0, 0, 0, 0))

    def make(original: Any) -> Any:
        copy = timed(recorder, original, _NAME, KIND_MAPPED, describe)

        def __getitem__(self: Any, index: Any) -> Any:  # noqa: N807
            kind = type(index)
            try:
                if kind not in basic and not (kind is tuple and basic.issuperset(map(type, index))):
                    return copy(self, index)  # by a list or an array: reads every page that it names
                start_ns = monotonic_ns()
                result = original(self, index)
            except BaseException as error:
                hide_frame(error)
                raise
            try:
                if result.nbytes >= SMALLEST_BYTES:
                    note_view(self, result, start_ns)
            except ours(Exception) as error:
                recorder.absorb(error, "recording a memory map")
            return result

        return __getitem__

    patch(numpy.memmap, "__getitem__", make)
