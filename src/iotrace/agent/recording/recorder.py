"""Write this process's part of the session: one directory, append-only streams, nothing shared.

Records and spans are appended to lists (no lock, no I/O in the program's path) and written twice a
second, so that SIGKILL loses less than one second. docs/session-format.md describes the files.
"""

from __future__ import annotations

import _thread
import os
import sys
import time
from _struct import Struct  # `struct` is one file more to read in each process
from itertools import count

from iotrace.agent.recording.encode import encode
from iotrace.session import names
from iotrace.session.append_file import Stream
from iotrace.session.clock_anchor import clock_anchor

TYPE_CHECKING = False  # `typing` costs half of the agent's start-up
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    Record = dict[str, Any] | tuple[int, ...]  # a tuple: a row, its kind and names.ROW_FIELDS
    Span = tuple[int, int, int, int, int, int, int, int, int, int, int, int, int]  # names.SPAN_FIELDS

FLUSH_SECONDS = 0.5
# The end of the writer's thread is polled for before a fork, 20 us apart, so many times at most.
_POLLS_FOR_END = 500
# A worker may be ended at any moment after its batch (SIGTERM as its program leaves): its records are
# written sooner than the background writer would.
_EAGER_FLUSH_NS = 100_000_000
_MOST_ABSORBED = 100
_pack = Struct(names.SPAN_FORMAT).pack


class _Records(list):  # type: ignore[type-arg]
    """The records, rare beside spans; one that is appended after a fork starts the writer again."""

    __slots__ = ("recorder",)

    def __init__(self, recorder: Recorder) -> None:
        super().__init__()
        self.recorder = recorder

    def append(self, record: Record) -> None:
        super().append(record)
        if self.recorder.asleep:
            self.recorder.wake()


class Recorder:
    """Collect what one process records. `spans` and `records` are appended to from any thread.

    The two lists are never replaced, so that hooks may keep a bound ``append``.
    """

    def __init__(self, session: str) -> None:
        self._session = session
        self.spans: list[Span] = []
        self.records: list[Record] = _Records(self)
        self._texts: dict[str, int] = {}
        self._next_text = count().__next__
        self._lock = _thread.allocate_lock()
        self._stop: Any = None
        self._stopped: Any = None
        self._closed = False
        self._flushed_ns = 0
        self.directory = ""
        # Called first by `close`: what has to end while the process is still whole, and may record its end.
        self.before_close: list[Callable[[], None]] = []
        self.over = False  # the session has ended, this process has not: it records no more
        self.asleep = False  # the writer was ended for a fork, and starts again with the next record
        self.unsettled = False  # `over` or `asleep`: one check for what records often
        self.begun = False  # the writer was started in this process
        self._writer_id = 0
        self._absorbed = 0
        self._loop_begun = False
        self._failure = id(getattr(sys, "last_value", None))  # one of before the session is not its own

    def open(self, identity: dict[str, Any]) -> None:
        """Make this process's directory and write `identity` into it; OSError where that fails."""
        # Two slashes: dftracer compares paths as the program spelled them, and no prefix of ours
        # starts so, hence the agent's own files are never traced.
        root = "//" + self._session.lstrip("/")
        # Processes of several hosts may share the session: pids and clocks alone do not tell them apart.
        name = f"{os.getpid()}-{time.monotonic_ns():x}-{os.uname().nodename}"
        self.directory = f"{root}/{names.PROCESSES}/{name}"
        os.mkdir(self.directory, names.DIRECTORY_MODE)
        self._records_stream = Stream(f"{self.directory}/{names.RECORDS}")
        self._spans_stream = Stream(f"{self.directory}/{names.SPANS}")
        document = {"format": names.FORMAT_VERSION, **identity, "clock": clock_anchor()}
        _append(f"{self.directory}/{names.PROCESS}", encode(document))

    def text(self, value: str) -> int:
        """Return the number that stands for `value` in this process's spans.

        Two threads that meet a new value at once give it two numbers; both are recorded.
        """
        number = self._texts.get(value)
        if number is None:
            number = self._texts[value] = self._next_text()
            self.records.append({"type": "text", "id": number, "text": value})
        return number

    def start_loop(self) -> None:
        """Note, as the process first iterates a loader, what it has read until then; start the writer."""
        if self._stop is not None and not self._loop_begun:  # reads at import had started it
            self.tick()
        self._loop_begun = True
        self.start()

    def start(self) -> None:
        """Start the background writer, unless it runs; called when there is something to write."""
        if self._stop is not None or self._closed or self.over:
            return
        self.asleep, self.unsettled = False, self.over
        _import_rows()  # here, not in the writer's thread, which a fork may meet
        self.tick()
        self.begun = True
        self._stop = _thread.allocate_lock()
        self._stop.acquire()
        self._stopped = _thread.allocate_lock()
        self._stopped.acquire()
        # Not threading.Thread: programs count, list and join those.
        try:
            _thread.start_new_thread(self._run, (self._stop, self._stopped))
        except RuntimeError as error:  # the limit of threads: `close` will write
            self._stop = None
            self.log(f"no writer: {error!r}")

    @property
    def running(self) -> bool:
        """Whether there has been something to write."""
        return self._stop is not None or self.asleep

    def wake(self) -> None:
        """Start the writer again that was ended for a fork, if it was."""
        if self.asleep:
            self.asleep, self.unsettled = False, self.over
            self.start()

    def _run(self, stop: Any, stopped: Any) -> None:
        self._writer_id = _thread.get_native_id()
        try:
            beats = 0
            while not stop.acquire(True, FLUSH_SECONDS):
                beats += 1
                if self.session_over():
                    self._stop = None  # else `close` would wait for this thread
                    self.finish()
                    return
                if beats % 2 == 0:
                    self.note_failure()
                    self.tick()
                self.flush()
        except BaseException as error:
            self.log(f"writer stopped: {error!r}")
        finally:
            stopped.release()

    def pause(self) -> bool:
        """Stop the background writer, so that a fork copies no thread of ours; return whether one ran."""
        stop, self._stop = self._stop, None
        if stop is None:
            return False
        stop.release()
        self._stopped.acquire(True, 1.0)
        self._await_thread()
        return True

    def _await_thread(self) -> None:
        """Wait until the kernel has removed the writer's thread, which outlasts its last line a little.

        Python 3.12 counts the process's threads at a fork, and warns of more than one.
        """
        try:
            for _ in range(_POLLS_FOR_END):
                os.stat(f"//proc/self/task/{self._writer_id}")
                time.sleep(0.000_02)
        except OSError:
            pass

    def tick(self) -> None:
        """Record the clocks and the kernel's own account of this process."""
        record: dict[str, Any] = {"type": "tick", "clock": clock_anchor(), "cpu_ns": time.process_time_ns()}
        try:
            # Opened anew each second: a number that is kept may become a file of the program's.
            descriptor = os.open("/proc/self/io", os.O_RDONLY | os.O_CLOEXEC)
            try:
                for line in os.read(descriptor, 512).decode().splitlines():
                    key, _, value = line.partition(": ")
                    record[key] = int(value)
            finally:
                os.close(descriptor)
        except (OSError, ValueError):
            pass
        self.records.append(record)

    def note_failure(self) -> None:
        """Record the exception that Python has printed because nothing caught it, if there is one."""
        error = getattr(sys, "last_value", None)  # also where the program has an excepthook of its own
        if error is None or id(error) == self._failure:
            return
        self._failure = id(error)
        try:
            from iotrace.agent.recording import failures

            self.records.append(failures.of_process(error))
        except Exception as problem:
            self.absorb(problem, "recording a failure")

    def flush_soon(self) -> None:
        """Write what has been collected, unless that was done less than 0.1 s ago."""
        if time.monotonic_ns() - self._flushed_ns > _EAGER_FLUSH_NS:
            self.flush()

    def flush(self) -> None:
        """Write what has been collected."""
        with self._lock:
            self._flushed_ns = time.monotonic_ns()
            # Spans are taken before records and written after them: no span is without its texts.
            spans = self.spans[:]
            del self.spans[: len(spans)]
            records = self.records[:]
            del self.records[: len(records)]
            if records:
                lines = [encode(record) for record in records if type(record) is dict]
                rows = [record for record in records if type(record) is tuple]
                if rows:
                    lines += _import_rows()(rows, self.log)
                self._records_stream.write("\n".join([*lines, ""]).encode())
            if spans:
                self._spans_stream.write(b"".join([_pack(*span) for span in spans]))
            if self._records_stream.broken or self._spans_stream.broken:
                self._note_broken()

    def _note_broken(self) -> None:
        try:
            os.mkdir(f"{self.directory}/{names.BROKEN}", names.DIRECTORY_MODE)
        except OSError:  # noted already, or the session is gone
            pass

    def close(self) -> None:
        """Write the rest and the record ``end``: without that, readers report a loss."""
        if self._closed:
            return
        for action in self.before_close:
            action()
        self._closed = True
        self.pause()
        self.note_failure()
        if self.records or self.spans or self._flushed_ns:
            self.tick()
        self.flush()
        broken = self._records_stream.broken or self._spans_stream.broken
        self.records.append({"type": "end", "mono_ns": time.monotonic_ns(), "broken": broken})
        self.flush()

    def session_over(self) -> bool:
        """Return whether the session has ended before its processes, as that of `iotrace.profile` does."""
        return os.path.isdir(f"{self._session}/{names.CLOSED}")

    def finish(self) -> None:
        """Close, and record no more in this process."""
        self.over = self.unsettled = True
        self.close()
        self.spans.clear()
        self.records.clear()

    def before_fork(self) -> None:
        """Stop the writer and hold the lock until after the fork."""
        # Paused before the lock is taken, which the writer may be waiting for; set under the lock, as
        # two threads may fork at once.
        was_running = self.pause()
        if was_running:
            try:
                self.flush()
            except Exception as error:
                self.absorb(error, "writing before a fork")
        self._lock.acquire()
        self._was_running = was_running

    def after_fork_in_parent(self) -> None:
        """Release the lock; the next record starts the writer again."""
        # Not started at once: Python 3.13 counts threads behind this hook, and would warn of the writer.
        if self._was_running:
            self.asleep = self.unsettled = True
        self._lock.release()

    def reopen(self) -> None:
        """Record again after `close`: the exec that it was closed for has failed."""
        self._closed = False
        self.start()

    def after_fork_in_child(self, identity: dict[str, Any]) -> None:
        """Become the child's recorder; what the parent had not written yet stays the parent's."""
        self._lock = _thread.allocate_lock()
        self._stop = None
        self._closed = self.begun = False
        self.asleep, self.unsettled = False, self.over
        for stream in (self._records_stream, self._spans_stream):
            stream.forget()
            stream.broken = "the parent's"  # nothing is written to it, also where `open` fails below
        self.spans.clear()
        self.records.clear()
        self.before_close.clear()
        # The child's spans use the parent's numbers, which its own records repeat.
        texts = list(self._texts.items())
        self.open(identity)
        self.records.extend({"type": "text", "id": number, "text": value} for value, number in texts)

    def absorb(self, error: Exception, what: str) -> None:
        """Keep `error`, which our own code raised, from the program: log it with `what` has failed.

        Every guard of the agent ends here, in its ``except`` block.
        """
        self._absorbed += 1
        if self._absorbed <= _MOST_ABSORBED:  # what fails at each call shall not fill the disk
            self.log(f"{what} failed: {error!r}")

    def log(self, message: str) -> None:
        """Append a line to this process's log; raise nothing."""
        try:
            _append(f"{self.directory}/{names.LOG}", f"{time.time():.3f} {message}")
        except OSError:
            pass


def _import_rows() -> Any:
    from iotrace.agent.recording.rows import lines_of  # no process needs it that neither reads nor trains

    return lines_of


def _append(path: str, line: str) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, names.FILE_MODE)
    try:
        os.write(descriptor, f"{line}\n".encode(errors="replace"))
    finally:
        os.close(descriptor)
