"""Write this process's part of the session: one directory, append-only streams, nothing shared.

Records and spans are appended to lists (no lock, no I/O in the program's path) and written twice a
second, so that SIGKILL loses less than one second. docs/session-format.md describes the files.
"""

from __future__ import annotations

import sys
from _functools import partial  # type: ignore[import-not-found]  # `functools` is five files to read
from itertools import count
from posix import getpid, mkdir, stat, uname
from time import monotonic_ns, process_time_ns, time

from iotrace.agent import unpatched
from iotrace.agent.patching import OwnTimes
from iotrace.agent.recording.encode import encode, lines_of, packed_spans
from iotrace.session import names
from iotrace.session.append_file import Stream, append_line
from iotrace.session.guard import ours, while_held
from iotrace.session.identity import clock_anchor, io_account

TYPE_CHECKING = False  # `typing` costs half of the agent's start-up
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from iotrace.agent.recording.failures import Failures
    from iotrace.agent.recording.import_times import Imports
    from iotrace.agent.recording.loop_stacks import LoopStacks
    from iotrace.agent.recording.startup_stacks import StartupStacks

    Record = dict[str, Any] | tuple[int, ...]  # a tuple: a row, its kind and names.ROW_FIELDS
    Span = tuple[int, int, int, int, int, int, int, int, int, int, int, int, int]  # names.SPAN_FIELDS

FLUSH_SECONDS = 0.5
# A worker may be ended at any moment after its batch (SIGTERM as its program leaves): its records are
# written sooner than the background writer would.
_EAGER_FLUSH_NS = 100_000_000
_MOST_ABSORBED = 100


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

    A signal handler of the program may raise within any function here, or call it once more: each leaves the
    recorder so that nothing is lost or written twice.
    """

    ours = staticmethod(ours)  # for modules that are imported where nothing is recorded, too

    def __init__(self, session: str) -> None:
        self._session = session
        self.spans: list[Any] = []  # `Span`, or what `packed_spans` makes one of
        self.records: list[Record] = _Records(self)
        # Appends a row, and wakes no writer: who calls it looks at `asleep`.
        self.append_row: Callable[[Record], None] = super(_Records, self.records).append
        self.own_times = OwnTimes()
        self._texts: dict[str, int] = {}
        self._next_text = count().__next__
        self._lock: Any = unpatched.RLock()
        self._stop: Any = None
        self._stopped: Any = None
        self.closed = False  # the process is ending: what is drained now is the last
        self._ended = False
        self._flushed_ns = 0
        self.directory = ""
        # Called first by `close`: what has to end while the process is still whole, and may record its end.
        self.before_close: list[Callable[[], None]] = []
        self.imports: Imports | None = None  # what knows of imports, where they are noted
        # Whose thread the writer samples: until the first step, and from then on.
        self.startup: StartupStacks | None = None
        self.loop_stacks: LoopStacks | None = None
        # Called before the writer writes, on its thread: what makes records of what it has collected.
        self.before_flush: list[Callable[[], None]] = []
        self.over = False  # the session has ended, this process has not: it records no more
        self.asleep = False  # the writer was ended for a fork, and starts again with the next record
        self.unsettled = False  # `over` or `asleep`: one check for what records often
        self.begun = False  # the writer was started in this process
        self._writing = False  # the writer works, it does not wait
        self._writer_id = self._absorbed = 0
        self._loop_begun = False
        self._failures: Failures | None = None
        # The exception that is recorded already, by its id; one of before the session is not its own.
        self._noted = id(getattr(sys, "last_value", None))
        self._leaves = False  # the main thread will note its failure

    def open(self, identity: dict[str, Any]) -> None:
        """Make this process's directory and write `identity` into it; OSError where that fails."""
        # Two slashes: dftracer compares paths as the program spelled them, and no prefix of ours
        # starts so, hence the agent's own files are never traced.
        root = "//" + self._session.lstrip("/")
        # Processes of several hosts may share the session: pids and clocks alone do not tell them apart.
        name = f"{getpid()}-{monotonic_ns():x}-{uname().nodename}"
        self.directory = f"{root}/{names.PROCESSES}/{name}"
        mkdir(self.directory, names.DIRECTORY_MODE)
        self._records_stream = Stream(f"{self.directory}/{names.RECORDS}")
        self._spans_stream = Stream(f"{self.directory}/{names.SPANS}")
        document = {"format": names.FORMAT_VERSION, **identity, "clock": clock_anchor()}
        append_line(f"{self.directory}/{names.PROCESS}", encode(document))

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
        if self._stop is not None or self.closed or self.over:
            return
        import binascii  # noqa: F401  # for rows: here, not in the writer's thread, which a fork may meet

        stop, stopped = unpatched.allocate_lock(), unpatched.allocate_lock()
        stop.acquire()
        stopped.acquire()
        # No call from here on until the thread runs, so that no signal handler leaves it half begun.
        self._stop, self._stopped, self.begun = stop, stopped, True
        self.asleep, self.unsettled = False, self.over
        # Not threading.Thread: programs count, list and join those.
        try:
            unpatched.start_new_thread(self._run, (stop, stopped))
        except ours(RuntimeError) as error:  # the limit of threads: `close` will write
            self._stop = None
            self.log(f"no writer: {error!r}")
        self.tick()
        self._note_as_it_leaves()

    @property
    def failures(self) -> Failures:
        """What records exceptions, which most processes never have."""
        if self._failures is None:
            from iotrace.agent.recording.failures import Failures

            self._failures = Failures(self)
        return self._failures

    def _note_failure(self) -> None:
        """Record the exception that nothing in this process caught, if there is one."""
        error = getattr(sys, "last_value", None)  # also where the program has an excepthook of its own
        if error is not None and id(error) != self._noted:
            self._noted = id(error)
            self.failures.note(error)

    def _note_as_it_leaves(self) -> None:
        """Have the main thread note its failure as it leaves, before it waits for the program's threads."""
        register, pid = getattr(sys.modules.get("threading"), "_register_atexit", None), getpid()
        if register is None or self._leaves:
            return
        self._leaves = True

        def leaving() -> None:
            if getpid() == pid and not (self.closed or self.over):  # a forked child has it, too
                self._note_failure()

        try:
            register(leaving)
        except ours(RuntimeError):  # it is leaving
            pass

    @property
    def running(self) -> bool:
        """Whether there has been something to write."""
        return self._stop is not None or self.asleep

    def wake(self) -> None:
        """Start the writer again that was ended for a fork, if it was."""
        if self.asleep:
            self.start()

    def _run(self, stop: Any, stopped: Any) -> None:
        self._writer_id = unpatched.get_native_id()
        try:
            beats = 0
            while not self._stopped_within(stop, FLUSH_SECONDS):
                self._writing = True
                beats += 1
                if self.session_over():
                    self._stop = None  # else `close` would wait for this thread
                    self.finish()
                    return
                if beats % 2 == 0:
                    self.tick()
                for drain in self.before_flush:
                    drain()
                self.flush()
                self._writing = False
        except ours(Exception) as error:
            self.log(f"writer stopped: {error!r}")
        finally:
            self._writing = False
            stopped.release()

    def _stopped_within(self, stop: Any, seconds: float) -> bool:
        sampled = self.startup or self.loop_stacks
        if sampled is None:
            return bool(stop.acquire(True, seconds))
        return sampled.sampler.stopped_within(self, stop, seconds)

    def pause(self) -> None:
        """Stop the background writer, so that a fork copies no thread of ours."""
        stop, self._stop = self._stop, None
        if stop is not None:
            stop.release()
            self._stopped.acquire(True, 1.0)
            unpatched.join(self._writer_id)

    def tick(self) -> None:
        """Record the clocks and the kernel's own account of this process."""
        record: dict[str, Any] = {"type": "tick", "clock": clock_anchor(), "cpu_ns": process_time_ns()}
        self.records.append({**record, "writer": self._writer_id, **io_account()})
        imports = None if self.imports is None else self.imports.record()
        self.records.extend([*([] if imports is None else [imports]), *self.own_times.rows()])

    def flush_soon(self) -> None:
        """Write what has been collected, unless that was done less than 0.1 s ago."""
        if monotonic_ns() - self._flushed_ns > _EAGER_FLUSH_NS:
            self.flush()

    def flush(self) -> None:
        """Write what has been collected."""
        if not self._lock._is_owned():  # else a signal handler of the program calls this within our own flush
            while_held(self._lock, self._write)

    def _write(self) -> None:
        self._flushed_ns = monotonic_ns()
        # Spans are copied before records and written after them: no span is without its texts.
        spans, records = self.spans[:], self.records[:]
        try:
            lines = [encode(record) for record in records if type(record) is dict]
            rows = [record for record in records if type(record) is tuple]
            if rows:
                lines += lines_of(rows, self.log)
            packed = packed_spans(spans)
        except ours(Exception):  # one that cannot be written shall not stop those behind it
            del self.spans[: len(spans)], self.records[: len(records)]
            raise
        if records:
            written = partial(self.records.__delitem__, slice(len(records)))
            self._records_stream.write("\n".join([*lines, ""]).encode(), written)
        if spans:
            self._spans_stream.write(packed, partial(self.spans.__delitem__, slice(len(spans))))
        if self._records_stream.broken or self._spans_stream.broken:
            try:
                mkdir(f"{self.directory}/{names.BROKEN}", names.DIRECTORY_MODE)
            except ours(OSError):  # noted already, or the session is gone
                pass

    def close(self) -> None:
        """Write the rest and the record ``end``: without that, readers report a loss."""
        if self._ended:
            self.flush()  # a signal handler of the program may have interrupted the last one
            return
        while self.before_close:
            self.before_close.pop(0)()
        self.closed = True
        self.pause()
        for drain in self.before_flush:
            drain()
        if unpatched.get_native_id() != self._writer_id:
            self._note_failure()
        if self.startup is not None and self._loop_begun:  # it never trained
            self.records.append(self.startup.record())
        if self.loop_stacks is not None:
            self.loop_stacks.drain(self, 1)
        self.startup = self.loop_stacks = None
        if self.records or self.spans or self._flushed_ns or (self.imports is not None and self.imports.long):
            self.tick()
        self.flush()
        broken = self._records_stream.broken or self._spans_stream.broken
        end = {"type": "end", "mono_ns": monotonic_ns(), "broken": broken}
        list.append(self.records, end)  # which wakes no writer
        self._ended = True
        self.flush()

    def close_at_exit(self) -> None:
        """Close, also where a signal handler of the program raises meanwhile."""
        try:
            self.close()
        except BaseException:
            self.close()
            raise

    def session_over(self) -> bool:
        """Return whether the session has ended before its processes, as that of `iotrace.profile` does."""
        # Not by os.path: that keeps any OSError, a signal handler's TimeoutError, too.
        try:
            stat(f"{self._session}/{names.CLOSED}")
        except ours(OSError):
            return False
        return True

    def finish(self) -> None:
        """Close, and record no more in this process; hold none of its files."""
        self.over = self.unsettled = True
        self.close()
        self.spans.clear()
        self.records.clear()
        while_held(self._lock, self._forget_files)

    def _forget_files(self) -> None:
        self._records_stream.forget()
        self._spans_stream.forget()

    def before_fork(self) -> None:
        """Stop the writer, which the next record starts again: no fork copies a thread of ours.

        A writer that waits may stay beside a thread of the program's: it holds nothing that the child needs,
        and Python warns of that thread in any case. Each call that waits for its end would wait for the
        interpreter's lock, too: for 5 ms and more where the program's threads compute.
        """
        # Not started again behind the fork: Python 3.13 counts threads there, and would warn of the writer.
        known = getattr(sys.modules.get("threading"), "_active", ())  # of the program
        if len(known) <= 1 or self._writing:
            self.rest()

    def rest(self) -> None:
        """Stop the writer until the next record."""
        if self._stop is None:
            return
        try:
            self.pause()
            self.flush()
        finally:
            self.asleep = self.unsettled = True

    def reopen(self) -> None:
        """Record again after `close`: the exec that it was closed for has failed."""
        self.closed = self._ended = False
        self.start()

    def after_fork_in_child(self, identity: dict[str, Any]) -> None:
        """Become the child's recorder; what the parent had not written yet stays the parent's."""
        self._lock = unpatched.RLock()
        self._stop = self.startup = self.loop_stacks = None
        self.closed = self._ended = self.begun = self._writing = False
        self.asleep, self.unsettled = False, self.over
        self._forget_files()
        # Nothing is written to the parent's, also where `open` fails below.
        self._records_stream.broken = self._spans_stream.broken = "the parent's"
        self.spans.clear()
        self.records.clear()
        self.before_close.clear()
        self.own_times.clear()
        if self.imports is not None:
            self.imports.clear()
        self.before_flush.clear()
        # The child's spans use the parent's numbers, which its own records repeat.
        texts = list(self._texts.items())
        self.open(identity)
        self.records.extend({"type": "text", "id": number, "text": value} for value, number in texts)

    def absorb(self, error: Exception, what: str) -> None:
        """Keep `error`, which our own code raised, from the program: log it with `what` has failed.

        Every guard of the agent ends here, in its ``except`` block. Behind the last record nothing is lost by
        it: Python takes modules down, ours too, while the program's last objects still call into them.
        """
        self._absorbed += 1
        # What fails at each call shall not fill the disk.
        if self._absorbed <= _MOST_ABSORBED and not self._ended:
            self.log(f"{what} failed: {error!r}")

    def log(self, message: str) -> None:
        """Append a line to this process's log; raise nothing."""
        try:
            append_line(f"{self.directory}/{names.LOG}", f"{time():.3f} {message}")
        except ours(OSError):
            pass
