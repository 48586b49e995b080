"""Run torch's profiler for a window of steps of the training loader, in each process that trains.

A window waits, warms up, records and ends, always at a delivery of the training loader or at the end of its
epoch. It gives way to whatever else profiles or forks. Each change is a record ``torch_window``: readers
leave the steps that it touched out of every figure that profiling would spoil.
"""

from __future__ import annotations

import atexit
import os
from errno import EDQUOT, ENOSPC
from posix import stat
from time import monotonic_ns
from typing import Any
from weakref import ref

from iotrace.agent import training
from iotrace.agent.recording.recorder import Recorder
from iotrace.agent.torch_profiler.cuda_snapshot import CudaSnapshot
from iotrace.agent.torch_profiler.profiler import TorchProfiler
from iotrace.agent.unpatched import RLock, get_ident
from iotrace.session import names
from iotrace.session.guard import ours, while_held

WAITING, WARMUP, ACTIVE, OVER = "waiting", "warmup", "active", "over"
_MOST_ITEMS = 1024  # of a step: a loop that takes more has gone over to something else than training


class WindowSchedule:
    """What the launcher's settings ask for: steps to wait, to warm up and to record, and how often."""

    def __init__(self, settings: dict[str, str]) -> None:
        steps = settings.get(names.TORCH_STEPS, names.OFF)
        self.on = steps != names.OFF
        numbers = steps.split(":") if self.on else ["0"] * 4
        self.wait, self.warmup, self.active, self.repeat = (int(number) for number in numbers)
        self.options = {option for option in settings.get(names.TORCH_OPTIONS, "").split(",") if option}
        self.activities = settings.get(names.TORCH_ACTIVITIES, "auto")


class Window:
    """Run the windows of this process, one after another; at most one profiler exists at any time."""

    def __init__(self, recorder: Recorder, schedule: WindowSchedule) -> None:
        self._recorder = recorder
        self._schedule = schedule
        # A thread that starts a profiler of its own ends ours, while the training thread steps it.
        self._lock: Any = RLock()
        self.forks = 0  # that are in progress: meanwhile no window opens
        self.phase = WAITING if schedule.on else OVER
        self._number = 0
        self._cycle_step = 0  # the loader's step at which this cycle began to wait
        self._phase_step = 0  # ... and this phase
        self._loader: Any = None
        self._iterator: tuple[int, int] = (-1, -1)
        self._pass: ref[Any] | None = None
        self._step = 0
        self._items = 0  # delivered since the step began
        self._profiler: TorchProfiler | None = None
        self._registered = False
        self.snapshot: CudaSnapshot | None = None
        self._running: TorchProfiler | None = None  # another thread could not stop it

    def delivered(self, iterator: Any, grad: bool) -> None:
        """Begin a step of the loader, which has delivered a batch."""
        if self.snapshot is not None:
            self.snapshot.delivered(grad)
        if self.phase is OVER:
            return
        loader = iterator.loader
        # A loader is known to train once a backward pass of its thread has followed a batch of its own.
        # Kineto complains of a profiler that another thread starts.
        count, before = training.backward_count, loader.backward_count
        loader.backward_count = count if grad else -1
        if loader.trains and grad and before == count and self._items < _MOST_ITEMS:
            self._items += 1  # of a step that takes several: a pool's samples, or batches
            return
        self._items = 0
        if not loader.trains and grad and 0 <= before < count:
            loader.trains = get_ident() in training.threads
            loader.delivered = 1 if loader.trains and loader.delivered else loader.delivered
        step, loader.delivered = loader.delivered, loader.delivered + 1
        if self.phase is WAITING and not loader.trains and self._schedule.wait:
            return  # `_is_due` says no
        with self._lock:
            self._guarded(self._advance, iterator, loader, grad, step)

    def _guarded(self, act: Any, *args: Any) -> None:
        try:
            act(*args)
        except ours(Exception) as error:
            self._fail(error)
        except BaseException as error:
            # A signal handler of the program has raised it in the midst of this.
            self._fail(RuntimeError(f"interrupted by {type(error).__name__}"))
            raise

    def _advance(self, iterator: Any, loader: Any, grad: bool, step: int) -> None:
        if self._loader is not None and loader is not self._loader:
            is_left = self._pass is None or self._pass() is None  # the program dropped the window's iterator
            if self.phase is ACTIVE and (is_left or not grad):
                self._finish("evaluation" if not grad else "epoch")
            if self.phase is not WARMUP or not is_left or not grad or not self._may_train(loader):
                return
            self._loader, self._phase_step = loader, step  # its next epoch is another loader's
        self._step = step
        identity = (iterator.number, iterator.generation)
        if self.phase is ACTIVE:
            if identity != self._iterator:  # the epoch was left by `break`
                self._finish("epoch")
            elif step - self._phase_step >= self._schedule.active:
                self._finish("")
        self._iterator, self._pass = identity, ref(iterator)
        if self.phase is WAITING and self._is_due(loader, grad, step):
            if get_ident() != _kineto_thread:
                self.phase = OVER
                self._record("error", monotonic_ns(), why=_OTHER_THREAD)
                return
            self._loader = loader
            self._phase_step = step
            self.phase = WARMUP
            if self._schedule.warmup:
                self._timed(WARMUP, self._prepare)
        if self.phase is WARMUP and step - self._phase_step >= self._schedule.warmup:
            self._phase_step = step
            self._timed(ACTIVE, self._start)
            self.phase = ACTIVE
        if self.phase is ACTIVE and self._profiler is not None:
            self._profiler.mark_step(step)

    def _is_due(self, loader: Any, grad: bool, step: int) -> bool:
        if not grad or self.forks or step - self._cycle_step < self._schedule.wait:
            return False
        return self._may_train(loader) and not training.in_worker()

    def _may_train(self, loader: Any) -> bool:
        """Without a step to wait for, only grad mode is known, which validations may leave on."""
        return loader.trains or self._schedule.wait == 0

    def epoch_ended(self, iterator: Any) -> None:
        """End the window where the loader has no further batch: what follows belongs to no step."""
        if self.phase is not ACTIVE or iterator.loader is not self._loader:
            return
        with self._lock:
            if self.phase is ACTIVE:
                self._guarded(self._finish, "epoch")

    def end(self, why: str) -> None:
        """End the window now, on whatever thread; no other will follow."""
        with self._lock:
            self._guarded(self._interrupt, why)
            self.phase = OVER

    def end_at_exit(self) -> None:
        """End the window, as `end` does, unless another thread is at work in it for long."""
        while_held(self._lock, self._end_at_exit)

    def _end_at_exit(self) -> None:
        self.end("exit")
        if self._running is not None:  # one that runs when the process ends crashes it
            running, self._running = self._running, None
            self._guarded(running.stop)

    def before_fork(self) -> None:
        """Stop, as a child must not inherit a running profiler; none starts until `forks` is as before."""
        with self._lock:
            self.forks += 1
            self._guarded(self._interrupt, "fork")

    def after_fork_in_child(self) -> None:
        """Profile no more in a child of a process that has: Kineto's threads are missing there."""
        self._lock, self.forks = RLock(), 0
        self.snapshot = None
        self._registered = False
        if self._profiler is not None or self._number or self._loader is not None:
            self.phase = OVER
        self._profiler = self._loader = None

    def _interrupt(self, why: str) -> None:
        if self.phase is ACTIVE:
            self._finish(why)
        elif self.phase is WARMUP and self._profiler is not None:
            self._timed("end", self._profiler.stop, why=why)
            self._profiler = None

    def _prepare(self) -> TorchProfiler:
        if not self._registered:
            self._registered = True
            # A profiler that runs when the process ends crashes it. Registered late, called early.
            atexit.register(self.end_at_exit)
            self._recorder.before_close.append(self.end_at_exit)
        if not guarded:
            raise RuntimeError("the program's profilers are not patched, hence ours is not safe")
        try:
            stat(self._recorder.directory)
        except ours(FileNotFoundError):
            raise OSError("the session is gone") from None
        self._profiler = TorchProfiler(self._schedule.options, self._schedule.activities)
        if self._profiler.spares_device:
            self._record(names.SPARED, monotonic_ns())
        self._profiler.prepare()
        return self._profiler

    def _start(self) -> None:
        profiler = self._profiler or self._prepare()  # no warm-up, or a fork ended it
        profiler.start()

    def _finish(self, why: str) -> None:
        """Stop, write the trace, and wait for the next cycle, if one is left."""
        profiler = self._profiler
        assert profiler is not None
        name = names.TORCH_TRACE.format(self._number)
        path = f"{self._recorder.directory}/{name}"

        def stop() -> None:
            profiler.stop()
            self._profiler, self.phase = None, WAITING

        self._timed("end", stop, why=why)
        self._timed("exported", lambda: profiler.save(path), path=name, why=why)
        self._number += 1
        self._cycle_step = self._step
        self._loader = None
        if self._number >= self._schedule.repeat:
            self.phase = OVER

    def _timed(self, event: str, act: Any, **fields: Any) -> None:
        """Call `act` and record it with the time that it took from the program."""
        start_ns = monotonic_ns()
        result = act()
        if isinstance(result, int):
            fields["bytes"] = result
        self._record(event, start_ns, **fields)

    def _record(self, event: str, start_ns: int, **fields: Any) -> None:
        self._recorder.records.append(
            {
                "type": "torch_window",
                "window": self._number,
                "event": event,
                "loader": self._loader.number if self._loader is not None else None,
                "step": self._step,
                "mono_ns": start_ns,
                "duration_ns": monotonic_ns() - start_ns,
                **fields,
            }
        )

    def _fail(self, error: Exception) -> None:
        """Profile no more in this process; the program goes on."""
        self.phase = OVER
        profiler, self._profiler = self._profiler, None
        if isinstance(error, OSError) and error.errno in _FULL:  # nobody's mistake
            self._record("error", monotonic_ns(), why=error.strerror, full=True)
        else:
            self._recorder.absorb(error, "the window of the torch profiler")
            self._record("error", monotonic_ns(), why=str(error) or repr(error))
        try:
            if profiler is not None:
                profiler.stop()
        except ours(Exception) as another:
            self._recorder.absorb(another, "stopping the torch profiler")
            self._running = profiler


current: Window | None = None
# The thread that imported torch. Kineto complains on standard error of a first profiler on another one.
_kineto_thread = 0
_FULL = (ENOSPC, EDQUOT)
_OTHER_THREAD = "the batches come to another thread than the one that imported torch: Kineto would complain"
# Whether the starts of the program's profilers are patched; set by `foreign_profilers`.
guarded = False
# What the program profiles with; the window stays shut in a process that profiles itself.
_program_profiler = ""


def install(recorder: Recorder, settings: dict[str, str]) -> None:
    """Make this process's window, if the settings ask for one."""
    global current, _kineto_thread
    _kineto_thread = get_ident()
    schedule = WindowSchedule(settings)
    snapshot = settings.get(names.CUDA_SNAPSHOT)
    if current is not None or not (schedule.on or snapshot):
        return
    if schedule.on and "KINETO_USE_DAEMON" in os.environ:  # a profiler outside may start at any moment
        give_way(recorder, "the daemon of Kineto (KINETO_USE_DAEMON)")
        return
    current = Window(recorder, schedule)
    if snapshot:
        current.snapshot = CudaSnapshot(recorder, snapshot)
    if _program_profiler:
        current.phase = OVER


def after_fork_in_child() -> None:
    """Have the window, if there is one, be a child's."""
    if current is not None:
        current.after_fork_in_child()


def delivered(iterator: Any, grad: bool) -> None:
    """Advance the window, if there is one, by a delivery."""
    if current is not None:
        current.delivered(iterator, grad)


def epoch_ended(iterator: Any) -> None:
    """End the window, if there is one, with its loader's epoch."""
    if current is not None:
        current.epoch_ended(iterator)


def give_way(recorder: Recorder, what: str, starts: bool = False) -> None:
    """End our window for good, as the program is about to profile itself with `what`.

    The first such event is recorded, and each one that `starts` a profiler: readers need to know from when on
    the steps are slowed.
    """
    global _program_profiler
    if starts or not _program_profiler:
        _program_profiler = what
        recorder.records.append({"type": "torch_program", "what": what, "mono_ns": monotonic_ns()})
    if current is not None and current.phase is not OVER:
        current.end("program")
