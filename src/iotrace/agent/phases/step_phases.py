"""Time what a thread is in: forward, backward, an optimizer's step. Each call is a span of the kind `phase`.

Forward is the call of a root, which `roots` finds: of a module that no other module's call holds.
"""

from __future__ import annotations

import sys
from time import monotonic_ns
from typing import Any

from iotrace.agent.dataloader.cuda_events import CudaEvents
from iotrace.agent.patching import hide_frame
from iotrace.agent.phases.model_table import ModelTable
from iotrace.agent.recording.recorder import Recorder
from iotrace.agent.recording.thread_clocks import current, thread_id
from iotrace.agent.unpatched import _local, get_ident
from iotrace.session.guard import ours
from iotrace.session.names import BACKWARD, CLOSURE, DEVICE_PHASE_ROW, KIND_PHASE, OPTIMIZER

Begun = tuple[Any, int]  # an event on the device, where one is in use; CLOCK_MONOTONIC

_MOST_PENDING = 1024  # phases that a device has not come to


class _ThreadState(_local):
    """What a thread is in; `has_called`: it has called a root since its last optimizer's step."""

    in_root = False
    in_backward = False
    has_called = False

    def __init__(self) -> None:
        self.table: ModelTable | None = None  # of the root that it is in, where its modules are noted
        self.recorder: Recorder | None = None
        self.events: CudaEvents | None = None
        self.optimizers: list[tuple[int, Begun]] = []  # the steps that are open: whose, since when


thread_state = _ThreadState()
_backward: dict[int, bool] = {}  # the threads in a backward pass


def begin() -> Begun:
    """Begin a phase of this thread."""
    events = thread_state.events
    if (taken := current.thread.taken) is not None:
        taken.begin_step()
    return (None if events is None else events.begin()), monotonic_ns()


def record(recorder: Recorder, name: str, begun: Begun) -> None:
    """Record a phase of this thread that ends now."""
    event, start_ns = begun
    duration_ns = monotonic_ns() - start_ns
    events = thread_state.events
    pair = events.end(event) if event is not None and events is not None else None
    if pair is not None and events is not None:
        events.keep(pair, (DEVICE_PHASE_ROW, thread_id(), start_ns))
    what = (-1, -1, thread_id(), recorder.text(name), -1, KIND_PHASE)
    recorder.spans.append((start_ns, duration_ns, *what, -1, -1, -1, -1, -1))


def in_backward() -> bool:
    """Whether this thread works on a backward pass: one that begins there is a part of it."""
    return thread_state.in_backward or (bool(_backward) and _is_foreign())


def begin_backward(recorder: Recorder) -> Begun:
    """Begin a backward pass of this thread. From the first on, its phases are timed on the device, too."""
    thread = thread_state
    if thread.recorder is not recorder:
        thread.recorder, thread.events = recorder, CudaEvents(recorder, _MOST_PENDING)
        recorder.before_close.append(thread.events.close)
    begun, ident = begin(), get_ident()
    thread.in_backward = _backward[ident] = True
    return begun


def _is_foreign() -> bool:
    """Whether Python did not start this thread: autograd's own work on the backward passes of others."""
    threading: Any = sys.modules["threading"]
    known = threading._active.get(get_ident())
    return known is None or isinstance(known, threading._DummyThread)


def end_backward(recorder: Recorder, begun: Begun) -> None:
    """Record the backward pass that `begin_backward` began."""
    thread = thread_state
    thread.in_backward = False
    _backward.pop(get_ident(), None)
    recorder.start()
    record(recorder, BACKWARD, begun)


def begin_optimizer(optimizer: Any) -> None:
    """Note that the step of `optimizer` begins; forget one of its own that raised."""
    steps = thread_state.optimizers
    key = id(optimizer)
    for position, (other, _) in enumerate(steps):
        if other == key:
            del steps[position:]
            break
    steps.append((key, begin()))


def timed_closure(recorder: Recorder, closure: Any) -> Any:
    """Stand in for the closure of an optimizer's step: its time is none of the optimizer's."""

    def timed(*args: Any, **kwargs: Any) -> Any:
        begun = begin()
        try:
            return closure(*args, **kwargs)
        except BaseException as error:
            hide_frame(error)
            raise
        finally:
            try:
                record(recorder, CLOSURE, begun)
            except ours(Exception) as problem:
                recorder.absorb(problem, "recording an optimizer's closure")

    return timed


def end_optimizer(recorder: Recorder, optimizer: Any) -> None:
    """Record the step of `optimizer` that `begin_optimizer` began on this thread."""
    thread = thread_state
    thread.has_called = False
    while thread.optimizers:
        key, begun = thread.optimizers.pop()
        if key == id(optimizer):
            recorder.start()
            record(recorder, OPTIMIZER, begun)
            return
