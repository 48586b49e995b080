"""When torch's profiler runs: a window of steps of the training loader, in each process that trains.

A window waits, warms up, records and ends, always at a delivery of the training loader or at the end of its
epoch, and gives way to whatever else profiles or forks. Each change is a record ``torch_window``: the steps
that it touched are left out of every figure that profiling would spoil.
"""

from __future__ import annotations

import atexit
import os
import sys
from _thread import RLock
from time import monotonic_ns
from typing import Any

from iotrace.agent.dataloader import training
from iotrace.agent.recording.recorder import Recorder
from iotrace.agent.torch_profiler import module_ranges
from iotrace.agent.torch_profiler.profiler import TorchProfiler
from iotrace.session import names

WAITING, WARMUP, ACTIVE, OVER = "waiting", "warmup", "active", "over"


class Plan:
    """What the launcher's settings ask for; numbers of steps."""

    def __init__(self, settings: dict[str, str]) -> None:
        steps = settings.get(names.TORCH_STEPS, names.OFF)
        self.on = steps != names.OFF
        numbers = steps.split(":") if self.on else ["0"] * 4
        self.wait, self.warmup, self.active, self.repeat = (int(number) for number in numbers)
        self.options = {option for option in settings.get(names.TORCH_OPTIONS, "").split(",") if option}
        self.activities = settings.get(names.TORCH_ACTIVITIES, "all")


class Window:
    """The windows of this process, one after another; at most one profiler exists at any time."""

    def __init__(self, recorder: Recorder, plan: Plan) -> None:
        self._recorder = recorder
        self._plan = plan
        # A thread that starts a profiler of its own ends ours, while the training thread steps it.
        self._lock = RLock()
        self.phase = WAITING if plan.on else OVER
        self._number = 0
        self._cycle_step = 0  # the loader's step at which this cycle began to wait
        self._phase_step = 0  # ... and this phase
        self._loader: Any = None
        self._iterator: tuple[int, int] = (-1, -1)
        self._step = 0
        self._profiler: TorchProfiler | None = None
        self._remove_ranges: Any = None
        self._step_range: Any = None
        self._registered = False

    def delivered(self, iterator: Any, grad: bool) -> None:
        """A loader has delivered a batch: a step of it begins."""
        if self.phase is OVER:
            return
        loader = iterator.loader
        step, loader.delivered = loader.delivered, loader.delivered + 1
        # A loader is known to train once a backward pass has followed a batch of its own.
        loader.trains = loader.trains or (grad and 0 <= loader.backward_count < training.backward_count)
        loader.backward_count = training.backward_count if grad else -1
        with self._lock:
            try:
                self._advance(iterator, loader, grad, step)
            except Exception as error:
                self._fail(error)

    def _advance(self, iterator: Any, loader: Any, grad: bool, step: int) -> None:
        if self._loader is not None and loader is not self._loader:
            if self.phase is ACTIVE and not grad:
                self._finish("evaluation")
            return
        self._step = step
        identity = (iterator.number, iterator.generation)
        if self.phase is ACTIVE:
            if identity != self._iterator:  # the epoch was left by `break`
                self._finish("epoch")
            elif step - self._phase_step >= self._plan.active:
                self._finish("")
        self._iterator = identity
        if self.phase is WAITING and self._is_due(loader, grad, step):
            self._loader = loader
            self._phase_step = step
            self.phase = WARMUP
            if self._plan.warmup:
                self._tell(WARMUP, self._prepare)
        if self.phase is WARMUP and step - self._phase_step >= self._plan.warmup:
            self._phase_step = step
            self._tell(ACTIVE, self._start)
            self.phase = ACTIVE
        if self.phase is ACTIVE:
            self._mark_step()

    def _is_due(self, loader: Any, grad: bool, step: int) -> bool:
        if not grad or step - self._cycle_step < self._plan.wait:
            return False
        # Without a step to wait for, nothing is known but that grad mode is on.
        return (loader.trains or self._plan.wait == 0) and not _in_worker()

    def epoch_ended(self, iterator: Any) -> None:
        """The loader has no further batch. What follows, such as validation, belongs to no step."""
        if self.phase is not ACTIVE or iterator.loader is not self._loader:
            return
        with self._lock:
            try:
                if self.phase is ACTIVE:
                    self._finish("epoch")
            except Exception as error:
                self._fail(error)

    def end(self, why: str) -> None:
        """End the window now, whatever thread this is; no other will follow."""
        with self._lock:
            try:
                self._interrupt(why)
            except Exception as error:
                self._fail(error)
            self.phase = OVER

    def before_fork(self) -> None:
        """A child must not inherit a running profiler: stop. The lock is held until after the fork."""
        self._lock.acquire()
        try:
            self._interrupt("fork")
        except Exception as error:
            self._fail(error)

    def after_fork_in_parent(self) -> None:
        self._lock.release()

    def after_fork_in_child(self) -> None:
        """A child of a process that has profiled never does: Kineto's threads are not there any more."""
        self._lock = RLock()
        self._registered = False
        if self._profiler is not None or self._number or self._loader is not None:
            self.phase = OVER
        self._profiler = self._remove_ranges = self._step_range = self._loader = None

    def _interrupt(self, why: str) -> None:
        if self.phase is ACTIVE:
            self._finish(why)
        elif self.phase is WARMUP and self._profiler is not None:
            profiler, self._profiler = self._profiler, None
            self._remove_ranges()
            self._tell("end", profiler.discard, why=why)

    def _prepare(self) -> None:
        if not self._registered:
            self._registered = True
            # A profiler that runs when the process ends crashes it. Registered late, called early.
            atexit.register(self.end, "exit")
            self._recorder.before_close.append(lambda: self.end("exit"))
        if not guarded:
            raise RuntimeError("the program's own profilers cannot be seen, hence none of ours is safe")
        if not os.path.isdir(self._recorder.directory):
            raise OSError("the session is gone")
        self._remove_ranges = module_ranges.install()
        self._profiler = TorchProfiler(self._plan.options, self._plan.activities)
        self._profiler.prepare()

    def _start(self) -> None:
        if self._profiler is None:  # no warm-up, or a fork ended it
            self._prepare()
        assert self._profiler is not None
        self._profiler.start()

    def _mark_step(self) -> None:
        self._leave_step()
        record_function: Any = sys.modules["torch"].autograd.profiler.record_function
        self._step_range = record_function(f"{names.STEP_RANGE}{self._step}")
        self._step_range.__enter__()

    def _leave_step(self) -> None:
        left, self._step_range = self._step_range, None
        if left is not None:
            left.__exit__(None, None, None)

    def _finish(self, why: str) -> None:
        """Stop, write the trace, and wait for the next cycle if there is one."""
        self.phase = WAITING
        profiler, self._profiler = self._profiler, None
        assert profiler is not None
        name = names.TORCH_TRACE.format(self._number)
        path = f"{self._recorder.directory}/{name}"

        def stop() -> None:
            self._leave_step()
            profiler.stop()
            self._remove_ranges()

        self._tell("end", stop, why=why)
        self._tell("exported", lambda: profiler.save(path), path=name, why=why)
        self._number += 1
        self._cycle_step = self._step
        self._loader = None
        if self._number >= self._plan.repeat:
            self.phase = OVER

    def _tell(self, event: str, act: Any, **fields: Any) -> None:
        """Do `act` and record it with the time that it took from the program."""
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
        self._recorder.log(f"torch profiler: {error!r}")
        self._record("error", monotonic_ns(), why=str(error) or repr(error))
        try:
            if self._remove_ranges is not None:
                self._remove_ranges()
            if profiler is not None:
                profiler.stop()
        except Exception as another:
            self._recorder.log(f"torch profiler could not be stopped: {another!r}")


def _in_worker() -> bool:
    """Whether this process makes batches for another one; its dataset may iterate a loader of its own."""
    worker: Any = sys.modules.get("torch.utils.data._utils.worker")
    return worker is not None and getattr(worker, "_worker_info", None) is not None


_window: Window | None = None
# Whether the starts of the program's profilers are patched.
guarded = False
# What the program profiles with; a process that profiles itself is never profiled by us.
_program_profiler = ""


def install(recorder: Recorder, settings: dict[str, str]) -> None:
    """Make this process's window, if the settings ask for one."""
    global _window
    plan = Plan(settings)
    if not plan.on or _window is not None:
        return
    if "KINETO_USE_DAEMON" in os.environ:  # a profiler outside this process may start at any moment
        give_way(recorder, "the daemon of Kineto (KINETO_USE_DAEMON)")
        return
    _window = Window(recorder, plan)
    if _program_profiler:
        _window.phase = OVER
    os.register_at_fork(
        before=_window.before_fork,
        after_in_parent=_window.after_fork_in_parent,
        after_in_child=_window.after_fork_in_child,
    )


def delivered(iterator: Any, grad: bool) -> None:
    """Tell the window of a delivery."""
    if _window is not None:
        _window.delivered(iterator, grad)


def epoch_ended(iterator: Any) -> None:
    """Tell the window that a loader is exhausted."""
    if _window is not None:
        _window.epoch_ended(iterator)


def give_way(recorder: Recorder, what: str, starts: bool = False) -> None:
    """The program is about to profile itself, with `what`: end our window, for good.

    Told once, and each time that a profiler `starts`, to know from when on its steps are slowed.
    """
    global _program_profiler
    if starts or not _program_profiler:
        _program_profiler = what
        recorder.records.append({"type": "torch_program", "what": what, "mono_ns": monotonic_ns()})
    if _window is not None and _window.phase is not OVER:
        _window.end("program")
