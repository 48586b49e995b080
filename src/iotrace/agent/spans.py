"""Timed calls: wall time, thread CPU time and page faults, for under 2 us.

One ``getrusage(RUSAGE_THREAD)`` gives CPU time, faults and context switches in a single system call;
`time.thread_time_ns` would be a second one.
"""

from __future__ import annotations

from _thread import _local, get_native_id
from collections.abc import Callable
from resource import getrusage
from time import monotonic_ns
from typing import Any

from iotrace.agent.patching import hide_frame
from iotrace.agent.recorder import Recorder

RUSAGE_THREAD = 1

_thread_ids = _local()


def thread_id() -> int:
    """The kernel's id of this thread, cached (a forked child asks again, see `forget_threads`)."""
    try:
        return _thread_ids.value  # type: ignore[no-any-return]
    except AttributeError:
        _thread_ids.value = value = get_native_id()
        return value


def forget_threads() -> None:
    """In a forked child: its only thread has a new id."""
    global _thread_ids
    _thread_ids = _local()


def timed(
    recorder: Recorder,
    call: Callable[..., Any],
    name: str,
    kind: int,
    describe: Callable[[Any, tuple[Any, ...]], tuple[int, str]] | None = None,
) -> Callable[..., Any]:
    """`call`, recording a span for each call that it makes, also one that raises.

    ``describe(result, args)`` gives the bytes (-1: unknown) and the file (empty: unknown) of a call; it
    runs after the span's end. What it raises is not recorded, nor passed on.
    """
    append = recorder.spans.append
    text = recorder.text
    name_id = text(name)

    def timed_call(*args: Any, **kwargs: Any) -> Any:
        before = getrusage(RUSAGE_THREAD)
        start_ns = monotonic_ns()
        returned = False
        try:
            result = call(*args, **kwargs)
            returned = True
            return result
        except BaseException as error:
            hide_frame(error)
            raise
        finally:
            end_ns = monotonic_ns()
            after = getrusage(RUSAGE_THREAD)
            size_bytes, file_id = -1, -1
            if describe is not None and returned:
                try:
                    size_bytes, path = describe(result, args)
                    file_id = text(path) if path else -1
                except Exception:
                    pass
            append(
                (
                    start_ns,
                    end_ns - start_ns,
                    int((after[0] + after[1] - before[0] - before[1]) * 1e9),
                    size_bytes,
                    thread_id(),
                    name_id,
                    file_id,
                    kind,
                    after[6] - before[6],
                    after[7] - before[7],
                    after[14] - before[14],
                    after[15] - before[15],
                )
            )

    return timed_call
