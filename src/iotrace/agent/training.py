"""What is known of the training loop: its loaders, backward passes, optimizer steps, phase and rank."""

from __future__ import annotations

import sys
from collections.abc import Callable
from itertools import count
from time import monotonic_ns
from typing import Any

from iotrace.agent import handovers, stacks
from iotrace.agent.debug_switches import debug_switches
from iotrace.agent.patching import observe, on_undo
from iotrace.agent.phases import reductions, roots, step_phases
from iotrace.agent.recording.loop_stacks import LoopStacks
from iotrace.agent.recording.pauses import watch_collections, watching
from iotrace.agent.recording.recorder import Recorder
from iotrace.agent.recording.regions import compiling
from iotrace.agent.recording.startup_stacks import StartupStacks
from iotrace.agent.recording.thread_clocks import thread_id, thread_times
from iotrace.agent.thread_counts import thread_counts
from iotrace.agent.unpatched import get_ident
from iotrace.session.guard import ours
from iotrace.session.identity import role
from iotrace.session.names import ROUND_ROW, ROUNDS

# Returns the phase, and how many batches the loop takes ahead of the one that it works on.
AskPhase = Callable[[], tuple[str | None, int]]

# Loaders and passes over them are numbered together, whether torch or the program made them.
_next_loader = count().__next__
_next_iterator = count().__next__


class Loader:
    """A loader's number, how often it has been iterated, and what the torch window knows of it."""

    def __init__(self) -> None:
        self.number = _next_loader()
        self.epochs = 0
        self.delivered = 0
        self.backward_count = -1
        self.trains = False


_LIBRARIES = (
    *("torch", "torchvision", "lightning", "pytorch_lightning", "transformers", "datasets", "numpy", "h5py"),
    *("zarr", "numcodecs", "netCDF4", "xarray", "PIL", "cv2", "tifffile", "pandas", "polars", "pyarrow"),
)

# A loader whose batches are followed by a backward pass is a training loader.
backward_count = 0
threads: set[int] = set()  # those that trained, by `get_ident`

ask_phase: AskPhase | None = None
override: Any = None  # what a sweep asked for, once torch's loaders are patched

_BACKWARD, _OPTIMIZER = map(ROUNDS.index, ("backward", "optimizer"))


def number_iterator(recorder: Recorder) -> int:
    """Number a pass over a loader; at the first one record the versions of the imported libraries."""
    number = _next_iterator()
    if not in_worker():
        watch_collections(recorder)
    if number == 0:
        # Not by getattr on the module: some modules import another at that.
        loaded = {name: getattr(sys.modules.get(name), "__dict__", {}) for name in _LIBRARIES}
        found = {name: own.get("__version__") for name, own in loaded.items()}
        versions = {name: str(text) for name, text in found.items() if isinstance(text, str)}
        recorder.records.append({"type": "versions", "versions": versions})
        recorder.records.append({**thread_counts(), "collections": watching()})
        stacks.install(recorder)
    return number


def set_phase_source(ask: AskPhase | None) -> None:
    """Have `current_phase` call `ask`; with None the phase is unknown."""
    global ask_phase
    ask_phase = ask


def current_phase() -> tuple[str | None, int]:
    """Return the phase, by its name in Lightning's RunningStage (None: unknown), and the batches ahead."""
    return ask_phase() if ask_phase is not None else (None, 0)


_is_worker = False


def enter_worker() -> None:
    """Say that this process is a worker of a loader, as are those that it forks."""
    global _is_worker
    _is_worker = True
    roots.leave()


def in_worker() -> bool:
    """Return whether this process is a worker, whose dataset may iterate a loader of its own."""
    # `iotrace.profile` asks without a run around it, too: then torch alone knows.
    torch_worker: Any = sys.modules.get("torch.utils.data._utils.worker")
    return _is_worker or getattr(torch_worker, "_worker_info", None) is not None


def end_record(iterator: int, epoch: int, error: BaseException, wait_start_ns: int) -> dict[str, Any]:
    """Make the record of a pass that has ended: ``exhausted``, or by what `error` is called."""
    return {
        "type": "iterator_end",
        "iterator": iterator,
        "epoch": epoch,
        "outcome": "exhausted" if isinstance(error, StopIteration) else type(error).__name__,
        "tid": thread_id(),
        "wait_start_ns": wait_start_ns,
        "mono_ns": monotonic_ns(),
        "backward_count": backward_count,
    }


def hook_autograd(module: Any, recorder: Recorder) -> None:
    """Record the calls of ``torch.autograd.backward``, which ``Tensor.backward`` uses."""
    recorder.records.append({"type": "framework", "name": "torch"})
    if role(list(getattr(sys, "orig_argv", []))) == "main" and not in_worker():
        _begin_startup(recorder)

    def begins(*_: Any) -> step_phases.Begun | None:
        global backward_count
        if compiling() or step_phases.in_backward():
            return None
        backward_count += 1
        _record_round(recorder, _BACKWARD, 0)
        return step_phases.begin_backward(recorder)

    def ended(begun: step_phases.Begun | None, *_: Any) -> None:
        if begun is not None:
            step_phases.end_backward(recorder, begun)
            reductions.backward_ended()
            if roots.search is not None:
                roots.search.trained(step_phases.thread_state.has_called)

    observe(module, "backward", recorder, "the backward pass", before=begins, ended=ended)


def hook_optimizers(module: Any, recorder: Recorder) -> None:
    """Record the steps of all optimizers of ``torch.optim``, by torch's own hook for that."""
    if not hasattr(module, "register_optimizer_step_post_hook"):  # torch before 2.0
        return
    numbers: dict[int, int] = {}

    def guarded(act: Callable[..., Any]) -> Callable[..., Any]:
        def hook(optimizer: Any, args: Any = (), kwargs: Any = None) -> Any:
            if compiling():
                return None
            try:
                return act(optimizer, args, kwargs)
            except ours(Exception) as error:
                recorder.absorb(error, "recording an optimizer's step")
                return None

        return hook

    def begins(optimizer: Any, args: Any, kwargs: Any) -> Any:
        step_phases.begin_optimizer(optimizer)
        if len(args) > 1 and callable(args[1]):
            return (args[0], step_phases.timed_closure(recorder, args[1]), *args[2:]), kwargs
        if kwargs and callable(kwargs.get("closure")):
            return args, {**kwargs, "closure": step_phases.timed_closure(recorder, kwargs["closure"])}
        return None

    def ended(optimizer: Any, *_: Any) -> None:
        step_phases.end_optimizer(recorder, optimizer)
        _record_round(recorder, _OPTIMIZER, numbers.setdefault(id(optimizer), len(numbers)))

    on_undo(module.register_optimizer_step_pre_hook(guarded(begins)).remove)
    on_undo(module.register_optimizer_step_post_hook(guarded(ended)).remove)


def _record_round(recorder: Recorder, what: int, number: int) -> None:
    """Record that this thread has trained; `number` tells optimizers apart."""
    threads.add(get_ident())
    if recorder.startup is not None or not recorder.begun:
        end_startup(recorder)
        switches = debug_switches()
        if switches is not None:
            recorder.records.append(switches)
        recorder.start()  # a program without a loader is written while it runs, too
        watch_collections(recorder)
    handovers.trained()
    tid, cpu_ns, run_delay_ns = thread_times()
    recorder.records.append((ROUND_ROW, what, number, tid, monotonic_ns(), cpu_ns, run_delay_ns))


def _begin_startup(recorder: Recorder) -> None:
    """Sample the calling thread until it trains; not where Python runs without its interpreter lock."""
    locked = getattr(sys, "_is_gil_enabled", None)
    if locked is not None and not locked():
        return
    if recorder.startup is None and not recorder.over:
        recorder.startup = StartupStacks()
        recorder.start()


def end_startup(recorder: Recorder, *, with_torch: bool = True) -> None:
    """Record what was sampled; the loop is sampled from now on.

    One that trains without torch is sampled already, from where it trains, if its call is known.
    """
    startup, recorder.startup = recorder.startup, None
    if startup is not None:
        try:
            recorder.records.append(startup.record())
        except ours(Exception) as error:
            recorder.absorb(error, "recording stacks of the start")
        try:
            if with_torch or recorder.loop_stacks is None:
                recorder.loop_stacks = LoopStacks(recorder)
        except ours(Exception) as error:
            recorder.absorb(error, "sampling the loop")


def hook_distributed(module: Any, recorder: Recorder) -> None:
    """Record the rank that ``torch.distributed`` gives: it holds whatever the environment says."""

    def record_rank(*_: Any) -> None:
        recorder.records.append(
            {
                "type": "distributed",
                "rank": module.get_rank(),
                "world_size": module.get_world_size(),
                "backend": str(module.get_backend()),
            }
        )

    observe(module, "init_process_group", recorder, "the rank of the process group", after=record_rank)
    reductions.hook_calls(module, recorder)
