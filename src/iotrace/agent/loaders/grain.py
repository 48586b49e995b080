"""Record grain's datasets, of which each kind has an ``__iter__`` of its own."""

from __future__ import annotations

from typing import Any

from iotrace.agent.loaders.record import hook_passes, passes_recorded
from iotrace.agent.loaders.table import Row
from iotrace.agent.patching import patch
from iotrace.agent.recording.recorder import Recorder

_ROW = Row("grain", "IterDataset.__iter__", ("_parent*._source",))


def hook_datasets(module: Any, recorder: Recorder) -> None:
    """Patch the kinds that ``grain._src.python.dataset.dataset`` defines, and those that will be defined."""

    def hook_kinds(kind: Any) -> None:
        for each in kind.__subclasses__():
            if "__iter__" in vars(each):
                hook_passes(each, "__iter__", _ROW, recorder)
            hook_kinds(each)

    def make(original: Any) -> Any:
        def output_dataset_injector(iterate: Any) -> Any:  # grain calls it for each new kind
            return passes_recorded(_ROW, recorder)(original(iterate))

        return output_dataset_injector

    hook_kinds(module.IterDataset)
    patch(module, "output_dataset_injector", make)
