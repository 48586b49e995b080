"""``iotrace.lightning.IotraceCallback``: a Lightning program without the launcher."""

from __future__ import annotations

import os
import sys
from typing import Any

from iotrace.agent import bootstrap
from iotrace.agent.lightning import attach, detach
from iotrace.profiling import Profile


class IotraceCallback:
    """Record each fit, validate, test and predict of the trainer as `iotrace.profile` does.

    An instance is a ``Callback`` of each Lightning namespace that the program has imported by then.
    `output` and `report` are those of `iotrace.profile`: every rank makes sessions of its own. Under
    `iotrace run` the callback does nothing.
    """

    _profile: Profile | None = None

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        return super().__new__(_callback_class(cls))

    def __init__(self, output: str | os.PathLike[str] | None = None, report: bool = True) -> None:
        super().__init__()
        self._output = None if output is None else os.fspath(output)
        self._report = report

    def __reduce__(self) -> Any:
        # Strategies that spawn send it to their processes; its class was made here, by no importable name.
        return getattr(type(self), "_named", type(self)), (self._output, self._report)

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Begin the session."""
        if self._profile is not None or bootstrap.recording():
            return
        rank = trainer.global_rank if trainer.world_size > 1 else None
        begun = Profile(self._output, self._report, rank=rank)
        begun.__enter__()
        self._profile = begun
        attach(trainer)  # its run has begun: the agent's hook comes too late for it

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """End the session."""
        self._end()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """End the session: Lightning calls no ``teardown`` then."""
        self._end()

    def _end(self) -> None:
        profile, self._profile = self._profile, None
        if profile is not None:
            detach()
            profile.__exit__(None, None, None)


_classes: dict[tuple[type, ...], type] = {}


def _callback_class(cls: type) -> type:
    """A subclass of `cls` and of the program's ``Callback`` classes."""
    modules = [sys.modules[name] for name in bootstrap.LIGHTNING if name in sys.modules]
    bases = tuple(module.Callback for module in modules if not issubclass(cls, module.Callback))
    if not modules:
        raise ImportError(
            "IotraceCallback needs the Lightning of its program, and none is imported: "
            "import pytorch_lightning or lightning.pytorch before making it"
        )
    if not bases:
        return cls
    family = (cls, *bases)
    if family not in _classes:
        _classes[family] = type(cls.__name__, family, {"__module__": cls.__module__, "_named": cls})
    return _classes[family]
