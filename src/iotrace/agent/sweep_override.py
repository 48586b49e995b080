"""Apply what a sweep asks of this run: the training loader's workers, its steps, batches from memory.

Armed only where ``iotrace sweep`` set its variable. The loader of training is the one that is iterated with
grad enabled. Steps are counted, and batches replayed, only once a backward pass has followed its batches.
A program that trains with none, as an earlier run has shown (`inference`), has all its loaders overridden.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from posix import write
from typing import Any

from iotrace.agent import training
from iotrace.agent.dataloader.fetch import dataset_name
from iotrace.agent.patching import WeakTable, hide_frame, observe, patch
from iotrace.agent.recording.recorder import Recorder
from iotrace.agent.worker_override import AtStart, hook_workers, unbind
from iotrace.session.guard import ours

_STATE = "_iotrace_override"
_WHAT = "overriding a loader"
_LAYER = "override"  # below the recording, which then sees what becomes of the loader
_ENOUGH = 200  # batches from memory, of an iteration that has no length and no end
_SWITCHES = ("in_order", "pin_memory", "persistent_workers")
_MOST_EMPTY = 3  # iterations without a batch, after which a program that never ends is ended


class Override:
    """What the sweep asks of this run; None leaves the program's own."""

    def __init__(self, settings: dict[str, str]) -> None:
        self.workers = _number(settings.get("workers"))
        self.prefetch = _number(settings.get("prefetch"))
        self.steps = _number(settings.get("steps"))
        self.replay = _number(settings.get("replay"))
        self.inference = bool(settings.get("inference"))
        self.switches = {name: settings[name] == "True" for name in _SWITCHES if name in settings}
        self.sharing = settings.get("sharing")
        self.at_start = AtStart(settings)


def _number(text: str | None) -> int | None:
    return int(text) if text and text.isdigit() else None


class _Training:
    """What has been delivered of one kind of dataset, whichever loader object an epoch makes for it."""

    def __init__(self, override: Override, workers: int) -> None:
        self.most: int | None = None
        if override.steps is not None:
            # The first step, and those that await a worker's first batch, are not measured.
            self.most = override.steps + max(1, workers - 1)
        self.delivered = 0
        self.in_this_iteration = 0
        self.empty = 0
        self.backward_count = training.backward_count
        self.kept: list[Any] = []
        self.replayed = 0
        self._inference = override.inference

    @property
    def runs(self) -> bool:
        """Whether its batches are those of the loop that the sweep measures."""
        return self._inference or training.backward_count > self.backward_count


class _Overriding:
    """The override in force in this process, for torch's loaders and those that iterate in their own way."""

    def __init__(self, recorder: Recorder, override: Override, is_grad_enabled: Callable[[], bool]) -> None:
        self.recorder = recorder
        self.override = override
        self._is_grad_enabled = is_grad_enabled
        self._states: dict[str, _Training] = {}
        self._seen = WeakTable()

    def hook_iteration(self, owner: Any, name: str, inner: str = "") -> None:
        """Patch a method that iterates a loader, or makes its iterator.

        `inner`: the attribute that holds what torch's iterators take for the loader, if that is another one.
        """

        def iterating(args: list[Any], _: dict[str, Any]) -> None:
            self._iterating(getattr(args[0], inner) if inner else args[0])

        observe(owner, name, self.recorder, _WHAT, before=iterating, layer=_LAYER)

    def hook_making(self, iterator_class: Any) -> None:
        """Patch ``__init__`` of torch's base of iterators, so that each knows what is overridden."""

        def made(_: Any, __: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> None:
            loader = args[1] if len(args) > 1 else kwargs["loader"]
            if self._seen.get(loader) and self._is_of_loop():
                setattr(args[0], _STATE, self._states[dataset_name(loader.dataset)])

        observe(iterator_class, "__init__", self.recorder, _WHAT, after=made, layer=_LAYER)

    def _is_of_loop(self) -> bool:
        return self.override.inference or self._is_grad_enabled()

    def _iterating(self, loader: Any) -> None:
        if training.in_worker() or not self._is_of_loop():
            return
        if not self._seen.get(loader):
            self._seen.put(loader, True)
            unbind(self.override.at_start.cpus, self.recorder)
            _apply(loader, self.override, self.recorder)
        kind = dataset_name(loader.dataset)
        if kind not in self._states:
            self._states[kind] = _Training(self.override, loader.num_workers)
        self._states[kind].in_this_iteration = 0


def hook_override(module: Any, recorder: Recorder, override: Override) -> None:
    """Patch ``DataLoader.__iter__`` and, below the recording, the iterator's ``__next__``."""
    training.override = in_force = _Overriding(recorder, override, module.torch.is_grad_enabled)
    in_force.hook_iteration(module.DataLoader, "__iter__")
    in_force.hook_iteration(module.DataLoader, "_get_iterator")  # of subclasses with their own `__iter__`
    in_force.hook_making(module._BaseDataLoaderIter)
    if override.at_start:
        hook_workers(module._utils.worker, recorder, override.at_start)
    if override.sharing:
        try:
            module.multiprocessing.set_sharing_strategy(override.sharing)
        except ours(Exception):  # one that this platform does not have
            pass

    def make_next(original: Any) -> Any:
        def __next__(self: Any) -> Any:  # noqa: N807
            state: _Training | None = self.__dict__.get(_STATE)
            if state is not None:
                if state.most is not None and state.delivered >= state.most and state.runs:
                    _exhaust(state, recorder)
                if override.replay and len(state.kept) >= override.replay:
                    if state.in_this_iteration >= _length(self):
                        raise StopIteration  # the epoch is over, as it were with batches of the loader
                    state.delivered += 1
                    state.in_this_iteration += 1
                    if not state.replayed:
                        recorder.records.append({"type": "replayed"})
                    state.replayed += 1
                    return _clone(state.kept[state.delivered % override.replay], module.torch)
            try:
                batch = original(self)
            except BaseException as error:
                hide_frame(error)
                raise
            if state is not None:
                state.delivered += 1
                state.in_this_iteration += 1
                if override.replay and state.runs:
                    state.kept.append(_clone(batch, module.torch))
            return batch

        return __next__

    patch(module._BaseDataLoaderIter, "__next__", make_next, layer=_LAYER)


def _length(iterator: Any) -> int:
    """Return how many batches the iterator has; of one that does not know, as many as are enough."""
    try:
        return len(iterator)
    except ours(Exception):  # an IterableDataset has no length
        return _ENOUGH


def _apply(loader: Any, override: Override, recorder: Recorder) -> None:
    """Set the loader's workers and prefetching, and what depends on them to legal values."""
    before = (loader.num_workers, loader.prefetch_factor)
    if override.workers is not None:
        workers = override.workers
        if override.replay and not workers and loader.worker_init_fn is not None:
            workers = 1  # a dataset that a worker prepares for its work; it sleeps once the batches are kept
        loader.num_workers = _workers_of_state(loader, workers)
    if loader.num_workers == 0:
        loader.prefetch_factor = None
        loader.timeout = 0
    else:
        loader.prefetch_factor = override.prefetch or loader.prefetch_factor or 2
    for name, value in override.switches.items():
        if hasattr(loader, name):
            # torch refuses to change persistent_workers later on, and reads it when workers are made.
            object.__setattr__(
                loader, name, value and (name != "persistent_workers" or loader.num_workers > 0)
            )
    after = (loader.num_workers, loader.prefetch_factor)
    if after != before:
        dataset = dataset_name(loader.dataset)
        recorder.records.append(
            {"type": "override", "dataset": dataset, "before": list(before), "after": list(after)}
        )
        _print(
            f"num_workers, prefetch_factor of the loader of {dataset}: "
            f"{before[0]}, {before[1]} → {after[0]}, {after[1]}"
        )


def _workers_of_state(loader: Any, workers: int) -> int:
    """Return how many workers the state has that a StatefulDataLoader resumes from; `workers` without one."""
    state = getattr(loader, "next_iter_state", None)
    if not state:
        return workers
    number: int = state.get("_snapshot", {}).get("_main_snapshot", {}).get("_num_workers", 0)
    return number


def _exhaust(state: _Training, recorder: Recorder) -> None:
    """End this iteration, as the steps are done; end a program that goes on without batches."""
    if not state.in_this_iteration:
        state.empty += 1
        if state.empty >= _MOST_EMPTY:
            recorder.records.append({"type": "ended", "empty": state.empty})
            _print(f"the program iterated {state.empty} times without a batch: it is ended here")
            raise SystemExit(0)
    raise StepsDone


class StepsDone(StopIteration):
    """The loader has no further batch, as the sweep has its steps."""


def _clone(batch: Any, torch: Any) -> Any:
    """Copy `batch`; the copy shares no memory with it and is pinned where it was."""
    if isinstance(batch, torch.Tensor):
        clone = batch.clone()
        return clone.pin_memory() if batch.is_pinned() else clone
    if isinstance(batch, dict):
        return type(batch)({key: _clone(value, torch) for key, value in batch.items()})
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*[_clone(value, torch) for value in batch])
    if isinstance(batch, list | tuple):
        return type(batch)([_clone(value, torch) for value in batch])
    return copy.deepcopy(batch)


def _print(message: str) -> None:
    try:
        write(2, f"iotrace: {message}\n".encode())
    except ours(OSError):
        pass
