"""Record torchdata's StatefulDataLoader as a DataLoader: its iterators and worker loop are its own."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from iotrace.agent import training
from iotrace.agent.dataloader import fetch
from iotrace.agent.dataloader.consumer import hook_multiprocessing, number_of, state_of
from iotrace.agent.dataloader.iterator_times import hook_making
from iotrace.agent.patching import observe, patch
from iotrace.agent.recording.recorder import Recorder

_WHAT = "recording a StatefulDataLoader"
_LAYER = "rewind"


def hook_stateful(module: Any, recorder: Recorder) -> None:
    """Patch ``torchdata.stateful_dataloader.stateful_dataloader``."""
    fetch.state_is_asked_for = True
    # The name that this module imported, where its worker loop was patched later than that.
    worker = sys.modules[f"{module.__package__}.worker"]
    if module._worker_loop is not worker._worker_loop:
        patch(module, "_worker_loop", lambda _: worker._worker_loop)
    if training.override is not None:  # its iterator may be made by `state_dict`, before it is iterated
        training.override.hook_iteration(module.StatefulDataLoader, "__iter__")
        training.override.hook_iteration(module.StatefulDataLoader, "_get_iterator")
    hook_making(module.StatefulDataLoader, recorder, lambda iterator: number_of(iterator, recorder))
    hook_multiprocessing(module._StatefulMultiProcessingDataLoaderIter, recorder)
    _hook_rewinding(module, recorder)


def _hook_rewinding(module: Any, recorder: Recorder) -> None:
    """Leave out what an iterator takes while it is made: the batches before its state."""

    def made(rewinding: bool) -> Any:
        def note(_: Any, __: Any, args: Sequence[Any], ___: dict[str, Any]) -> None:
            state = state_of(args[0], recorder)
            if state is not None:
                state.rewinding = rewinding

        return note

    observe(module._StatefulBaseDataLoaderIter, "__init__", recorder, _WHAT, after=made(True), layer=_LAYER)
    for kind in (module._StatefulSingleProcessDataLoaderIter, module._StatefulMultiProcessingDataLoaderIter):
        observe(kind, "__init__", recorder, _WHAT, after=made(False), layer=_LAYER)
