"""Record a source that is no torch DataLoader, wrapped by ``iotrace.batches``.

Its records are those of a DataLoader with ``num_workers=0``: the consumer's thread makes the batch.
"""

from __future__ import annotations

import sys
from time import monotonic_ns
from typing import Any
from weakref import WeakKeyDictionary

from iotrace.agent import training
from iotrace.agent.patching import StandIn, hide_frame
from iotrace.agent.recording.recorder import Recorder
from iotrace.agent.recording.spans import thread_id, timed
from iotrace.session.names import KIND_ITEM

Caller = tuple[str, int, str]  # a file, a line of it, the source's name


class _Source:
    """A source's number, and how often it has been iterated."""

    def __init__(self) -> None:
        self.number = training.next_loader()
        self.epochs = 0


_by_object: WeakKeyDictionary[Any, _Source] = WeakKeyDictionary()
_by_caller: dict[Caller, _Source] = {}


def recorded(iterable: Any, iterator: Any, recorder: Recorder) -> Any:
    """Wrap `iterator`, made by ``iter(iterable)``, so that each item is recorded; called by `batches`."""
    torch_loader = sys.modules.get("torch.utils.data.dataloader")
    if torch_loader is not None and isinstance(iterable, torch_loader.DataLoader):
        return iterator
    caller = sys._getframe(2)
    name = getattr(iterable, "__qualname__", type(iterable).__name__)
    source = _source_of(iterable, iterator, (caller.f_code.co_filename, caller.f_lineno, name))
    return _Batches(iterator, source, name, recorder)


def _source_of(iterable: Any, iterator: Any, caller: Caller) -> _Source:
    # A generator made anew for each epoch is the same source: it is known by the line that iterates it.
    if iterator is not iterable:
        try:
            if iterable not in _by_object:
                _by_object[iterable] = _Source()
            return _by_object[iterable]
        except TypeError:  # cannot be hashed, or be referred to weakly
            pass
    return _by_caller.setdefault(caller, _Source())


class _Batches(StandIn):
    """One pass over a source."""

    def __init__(self, iterator: Any, source: _Source, name: str, recorder: Recorder) -> None:
        super().__init__(iterator)
        self._recorder = recorder
        self._append = recorder.records.append
        self._next = timed(recorder, iterator.__next__, f"{name}.__next__", KIND_ITEM)
        self._number = training.next_iterator()
        self._epoch = source.epochs
        self._delivered = 0
        source.epochs += 1
        self._append(
            {
                "type": "iterator",
                "iterator": self._number,
                "loader": source.number,
                "dataset": name,
                "iterable": True,
                "workers": 0,
                "wrapped": True,
                "epoch": self._epoch,
                "generation": 0,
                "phase": training.current_phase()[0],
                "mono_ns": monotonic_ns(),
            }
        )
        recorder.start()

    def __iter__(self) -> _Batches:
        return self

    def __next__(self) -> Any:
        wait_start_ns = monotonic_ns()
        try:
            item = self._next()
        except BaseException as error:
            hide_frame(error)
            if not self._recorder.over:
                self._append(training.end_record(self._number, self._epoch, error, wait_start_ns))
            raise
        if not self._recorder.over:
            self._deliver(wait_start_ns, monotonic_ns())
        return item

    def _deliver(self, wait_start_ns: int, delivered_ns: int) -> None:
        torch = sys.modules.get("torch")
        phase, ahead = training.current_phase()
        grad_enabled = getattr(torch, "is_grad_enabled", None)  # absent while torch is being imported
        self._append(
            {
                "type": "batch",
                "iterator": self._number,
                "epoch": self._epoch,
                "generation": 0,
                "index": self._delivered,
                "tid": thread_id(),
                "wait_start_ns": wait_start_ns,
                "delivered_ns": delivered_ns,
                "grad": grad_enabled() if grad_enabled is not None else True,
                "backward_count": training.backward_count,
                "phase": phase,
                "ahead": ahead,
                "worker": None,
                "fetch_start_ns": wait_start_ns,
                "fetch_end_ns": delivered_ns,
                "samples": None,
            }
        )
        self._delivered += 1
