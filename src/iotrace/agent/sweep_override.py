"""One point of a sweep inside the program: the training loader's workers, its steps, batches from memory.

Armed only where ``iotrace sweep`` set its variable. The loader of training is the one that is iterated with
grad enabled; steps are counted, and batches replayed, only once a backward pass has followed its batches.
"""

from __future__ import annotations

import copy
import os
from typing import Any
from weakref import WeakSet

from iotrace.agent.dataloader import training
from iotrace.agent.patching import hide_frame, patch
from iotrace.agent.recording.recorder import Recorder

_STATE = "_iotrace_point"
_MOST_EMPTY = 3  # iterations without a batch, after which a program that never ends is ended


class Point:
    """What the sweep asks of this run; None leaves the program's own."""

    def __init__(self, settings: dict[str, str]) -> None:
        self.workers = _number(settings.get("workers"))
        self.prefetch = _number(settings.get("prefetch"))
        self.steps = _number(settings.get("steps"))
        self.replay = _number(settings.get("replay"))


def _number(text: str | None) -> int | None:
    return int(text) if text and text.isdigit() else None


class _Training:
    """What has been delivered of one kind of dataset, whichever loader object an epoch makes for it."""

    def __init__(self, point: Point, workers: int) -> None:
        self.most: int | None = None
        if point.steps is not None:
            # The first step, and those that await a worker's first batch, are not measured.
            self.most = point.steps + max(1, workers - 1)
        self.delivered = 0
        self.in_this_iteration = 0
        self.empty = 0
        self.backward_count = training.backward_count
        self.kept: list[Any] = []

    @property
    def trains(self) -> bool:
        return training.backward_count > self.backward_count


def hook_point(module: Any, recorder: Recorder, point: Point) -> None:
    """Patch ``DataLoader.__iter__`` and, below the recording, the iterator's ``__next__``."""
    states: dict[str, _Training] = {}
    seen: WeakSet[Any] = WeakSet()

    def make_iter(original: Any) -> Any:
        def __iter__(self: Any) -> Any:  # noqa: N807
            state = None
            try:
                in_worker = module._utils.worker.get_worker_info() is not None
                if module.torch.is_grad_enabled() and not in_worker:
                    if self not in seen:
                        seen.add(self)
                        _override(self, point, recorder)
                    kind = type(self.dataset).__qualname__
                    if kind not in states:
                        states[kind] = _Training(point, self.num_workers)
                    state = states[kind]
                    state.in_this_iteration = 0
            except Exception as error:
                recorder.log(f"the point is not applied: {error!r}")
            try:
                iterator = original(self)
            except BaseException as error:
                hide_frame(error)
                raise
            if state is not None:
                setattr(iterator, _STATE, state)
            return iterator

        return __iter__

    def make_next(original: Any) -> Any:
        def __next__(self: Any) -> Any:  # noqa: N807
            state: _Training | None = self.__dict__.get(_STATE)
            if state is not None:
                if state.most is not None and state.delivered >= state.most and state.trains:
                    _exhaust(state, recorder)
                if point.replay and len(state.kept) >= point.replay:
                    state.delivered += 1
                    state.in_this_iteration += 1
                    return _clone(state.kept[state.delivered % point.replay], module.torch)
            try:
                batch = original(self)
            except BaseException as error:
                hide_frame(error)
                raise
            if state is not None:
                state.delivered += 1
                state.in_this_iteration += 1
                if point.replay and state.trains:
                    state.kept.append(_clone(batch, module.torch))
            return batch

        return __next__

    patch(module.DataLoader, "__iter__", make_iter, layer="point")
    patch(module._BaseDataLoaderIter, "__next__", make_next, layer="point")


def _override(loader: Any, point: Point, recorder: Recorder) -> None:
    """Set the loader's workers and prefetching, and keep what belongs to them legal."""
    before = (loader.num_workers, loader.prefetch_factor)
    if point.workers is not None:
        loader.num_workers = point.workers
    if loader.num_workers == 0:
        loader.prefetch_factor = None
        loader.timeout = 0
    else:
        loader.prefetch_factor = point.prefetch or loader.prefetch_factor or 2
    after = (loader.num_workers, loader.prefetch_factor)
    if after != before:
        dataset = type(loader.dataset).__name__
        recorder.records.append(
            {"type": "override", "dataset": dataset, "before": list(before), "after": list(after)}
        )
        _say(
            f"num_workers, prefetch_factor of the loader of {dataset}: "
            f"{before[0]}, {before[1]} → {after[0]}, {after[1]}"
        )


def _exhaust(state: _Training, recorder: Recorder) -> None:
    """Enough steps: this iteration ends; a program that goes on without batches is ended."""
    if not state.in_this_iteration:
        state.empty += 1
        if state.empty >= _MOST_EMPTY:
            recorder.records.append({"type": "ended", "empty": state.empty})
            _say(f"the program iterated {state.empty} times without a batch: it is ended here")
            raise SystemExit(0)
    raise StopIteration


def _clone(batch: Any, torch: Any) -> Any:
    """A copy that shares no memory with `batch`, pinned where it was."""
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


def _say(message: str) -> None:
    try:
        os.write(2, f"iotrace: {message}\n".encode())
    except OSError:
        pass
