"""Record how long a thread that trains stays in collectives on the host: those that it calls, and DDP's.

DistributedDataParallel times when a backward pass had its last gradient, and when all were reduced: in the
first ten iterations, then in every hundredth. On a host, where that costs two readings of a clock a
parameter, it is asked to time each. On a device it would wait for events, so that nothing is asked there.
"""

from __future__ import annotations

from time import monotonic_ns, time_ns
from typing import Any

from iotrace.agent import patching
from iotrace.agent.recording.recorder import Recorder
from iotrace.agent.recording.regions import compiling
from iotrace.agent.recording.thread_clocks import thread_id
from iotrace.session.guard import ours
from iotrace.session.names import KIND_REDUCTION, OF_GRADIENTS

_EVERY, _USUAL = 1, 100  # iterations that DDP times one of
_MOST_COST = 200  # an iteration takes as often as long as the question, at least
_FEWEST_ASKED = 10
_TRIES, _AT_ONCE_NS = 5, 20_000  # of three readings of clocks, one behind the other

_CALLS = (
    *("all_reduce", "all_gather", "all_gather_into_tensor", "all_to_all", "all_to_all_single", "barrier"),
    *("broadcast", "gather", "reduce", "reduce_scatter", "reduce_scatter_tensor", "scatter"),
)

_asked: _Asked | None = None


def hook_calls(module: Any, recorder: Recorder) -> None:
    """Time the collectives of ``torch.distributed.distributed_c10d`` that a program calls and waits for.

    Where a call returns at once (`async_op`), the program waits in `Work.wait`.
    """
    calling: set[int] = set()  # threads: what a call does inside is a part of it

    def begins(*_: Any) -> tuple[int, int] | None:
        if compiling() or not recorder.running or (thread := thread_id()) in calling:
            return None
        calling.add(thread)
        return monotonic_ns(), thread

    def ended_of(name: str) -> Any:
        def ended(begun: tuple[int, int] | None, _: list[Any], kwargs: dict[str, Any]) -> None:
            if begun is None:
                return
            calling.discard(begun[1])
            if not kwargs.get("async_op"):
                _record(recorder, name, begun[0], monotonic_ns() - begun[0])

        return ended

    for name in _CALLS:
        patching.observe(module, name, recorder, "timing a collective", before=begins, ended=ended_of(name))
    if hasattr(module, "Work"):
        wait = ended_of("wait")
        patching.observe(module.Work, "wait", recorder, "timing a collective", before=begins, ended=wait)


def _record(recorder: Recorder, name: str, start_ns: int, duration_ns: int) -> None:
    what = (-1, -1, thread_id(), recorder.text(name), -1, KIND_REDUCTION)
    recorder.spans.append((start_ns, duration_ns, *what, -1, -1, -1, -1, -1))


def hook_ddp(module: Any, recorder: Recorder) -> None:
    """Know the modules of ``torch.nn.parallel.distributed`` that the program makes."""
    global _asked
    if not hasattr(module.DistributedDataParallel, "_set_ddp_runtime_logging_sample_rate"):
        return
    _asked = asked = _Asked(recorder)
    patching.on_undo(leave)
    patching.observe(
        module.DistributedDataParallel,
        "_set_ddp_runtime_logging_sample_rate",
        recorder,
        "leaving a module",
        after=lambda _, __, args, ___: asked.forget(args[0]),
    )
    patching.observe(
        module.DistributedDataParallel,
        "__init__",
        recorder,
        "asking a module for the times of its reductions",
        after=lambda _, __, args, ___: asked.ask(args[0]),
    )


def backward_ended() -> None:
    """Record the reductions of the backward passes before; DDP tells each in its next iteration."""
    if _asked is not None:
        _asked.record()


def leave() -> None:
    """Ask no module any more."""
    global _asked
    left, _asked = _asked, None
    if left is not None:
        left.close()


def _since_day() -> int:
    """Return what turns a time of the clock of the day into one of ours: read while nothing interrupts it."""
    for _ in range(_TRIES):
        before_ns, day_ns, after_ns = monotonic_ns(), time_ns(), monotonic_ns()
        if after_ns - before_ns < _AT_ONCE_NS:
            break
    return (before_ns + after_ns) // 2 - day_ns


class _Asked:
    """The modules whose reductions are timed, each with the end of the last one that was recorded."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._modules = patching.WeakTable()
        self._began_ns = self._count = self._cost_ns = 0

    def ask(self, module: Any) -> None:
        """Have each iteration of a module on the host timed."""
        if module.device.type == "cpu" and self._modules.put(module, [0]):
            module.reducer._set_ddp_runtime_logging_sample_rate(_EVERY)

    def forget(self, module: Any) -> None:
        """Leave a module of which the program itself says how often it is timed."""
        self._modules.drop(module)

    def record(self) -> None:
        """Record one span a module; leave all where steps are so short that asking costs them much."""
        self._began_ns = self._began_ns or monotonic_ns()
        for module in self._modules.alive():
            last = self._modules.get(module)
            now_ns = monotonic_ns()
            times = module.logger._get_ddp_logging_data().ints_map
            ready, reduced = (times.get(f"backward_{part}_time_end", 0) for part in ("compute", "comm"))
            self._cost_ns += monotonic_ns() - now_ns
            self._count += 1
            if not last[0] < ready <= reduced:
                continue
            last[0] = reduced
            start_ns = ready + _since_day()
            if self._began_ns < start_ns < now_ns:  # else somebody has set the clock of the day
                _record(self._recorder, OF_GRADIENTS, start_ns, reduced - ready)
        if self._count == _FEWEST_ASKED and self._cost_ns * _MOST_COST > monotonic_ns() - self._began_ns:
            leave()

    def close(self) -> None:
        """Leave the modules as they were."""
        for module in self._modules.alive():
            try:
                module.reducer._set_ddp_runtime_logging_sample_rate(_USUAL)
            except ours(Exception) as error:
                self._recorder.absorb(error, "leaving a module")
