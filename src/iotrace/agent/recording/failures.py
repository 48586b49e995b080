"""Record exceptions: one that ended this process or a thread, one that a worker hands to its loop.

No hook is set: Python itself keeps what it has printed in `sys.last_value`. Test runners and shells keep what
they caught there, too: what left the outermost frame is Python's.
"""

from __future__ import annotations

import sys
from time import monotonic_ns

from iotrace.session.guard import ours

TYPE_CHECKING = False  # `typing` costs half of the agent's start-up
if TYPE_CHECKING:
    from typing import Any

# A message may hold any amount of data: its text is cut to so many lines, and each of them.
_FIRST_LINES, _LAST_LINES = 20, 60
_LONGEST_LINE = 300
_LONGEST_TEXT = 1 << 16
_MOST_THREADS = 20  # whose exceptions are recorded


class Failures:
    """Record what nothing caught: by the thread that it ended, as no other may ask for its frames."""

    def __init__(self, recorder: Any) -> None:
        self._recorder = recorder
        # The exception that ended the last fetch that failed, by its id, and the sample that it came out of.
        self.of_fetch: tuple[int, int | None] = (0, None)
        self._threads = 0

    def note(self, error: BaseException) -> None:
        """Record the exception that Python has printed because nothing caught it."""
        traceback = error.__traceback__
        if traceback is not None and traceback.tb_frame.f_back is not None:
            return  # a test runner or a shell caught it on its way, and keeps it there for a debugger
        try:
            by, sample = self.of_fetch
            of_it = sample if by == id(error) else None
            self._recorder.records.append({**_of_process(error), "sample": of_it})
        except ours(Exception) as problem:
            self._recorder.absorb(problem, "recording a failure")

    def note_thread(self, name: str) -> None:
        """Record the exception that ends this thread, which is being handled."""
        error = sys.exc_info()[1]
        if error is not None and not isinstance(error, SystemExit) and self._threads < _MOST_THREADS:
            self._threads += 1
            self._recorder.records.append({**_of_process(error), "thread": name})


def of_batch(wrapper: Any, generation: int, index: int, taken_ns: int) -> dict[str, Any]:
    """Describe the exception in torch's `wrapper` that a worker puts into its queue in place of a batch."""
    found = _describe(wrapper.exc_type, wrapper.exc_msg)
    return {**found, "generation": generation, "index": index, "taken_ns": taken_ns}


def _of_process(error: BaseException) -> dict[str, Any]:
    """Describe the exception that nothing in this process caught."""
    text = f"{type(error).__name__}\n"
    # Python leaves by SIGINT if the last code that it compiled was interrupted: an import of `traceback`
    # compiles more, and the exit code would be another one.
    if "traceback" in sys.modules or not isinstance(error, KeyboardInterrupt):
        from traceback import format_exception

        text = "".join(format_exception(type(error), error, error.__traceback__))
    pid = getattr(error, "error_pid", None)  # of torch.multiprocessing.spawn: the process that failed
    return {**_describe(type(error), text), "of_pid": pid if type(pid) is int else None}


def _describe(kind: type, text: str) -> dict[str, Any]:
    module = "" if kind.__module__ in ("builtins", "__main__") else f"{kind.__module__}."
    return {
        "type": "failure",
        "mono_ns": monotonic_ns(),
        "error": f"{module}{kind.__qualname__}",
        "text": _bounded(text),
    }


def _bounded(text: str) -> str:
    if len(text) > 2 * _LONGEST_TEXT:
        text = f"{text[:_LONGEST_TEXT]}\n...\n{text[-_LONGEST_TEXT:]}"
    lines = [line[:_LONGEST_LINE] for line in text.split("\n")]
    if len(lines) > _FIRST_LINES + _LAST_LINES:
        lines[_FIRST_LINES:-_LAST_LINES] = ["..."]
    return "\n".join(lines)
