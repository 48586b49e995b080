"""``iotrace.transformers.IotraceCallback``: a program of Hugging Face's Trainer without the launcher."""

from __future__ import annotations

import atexit
import os
from typing import Any

from iotrace.profiling import Profile

try:
    from transformers import TrainerCallback
except ImportError as error:
    raise ImportError("IotraceCallback needs transformers: pip install transformers") from error


class IotraceCallback(TrainerCallback):  # type: ignore[misc]
    """Record each ``Trainer.train`` as `iotrace.profile` does; ``Trainer(callbacks=[IotraceCallback()])``.

    `output` and `report` are those of `iotrace.profile`: every rank makes sessions of its own. Under
    `iotrace run` the callback does nothing. Trainer does not tell callbacks of an exception: then the session
    ends at the next training, with the program, or by `end`.
    """

    def __init__(self, output: str | os.PathLike[str] | None = None, report: bool = True) -> None:
        super().__init__()
        self._output = None if output is None else os.fspath(output)
        self._report = report
        self._profile: Profile | None = None

    def __reduce__(self) -> Any:  # a copy records nothing yet
        return type(self), (self._output, self._report)

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Begin the session."""
        from iotrace.agent import bootstrap

        self.end()
        if bootstrap.recording():
            return
        rank = args.process_index if args.world_size > 1 else None
        self._profile = Profile(self._output, self._report, "train", rank).__enter__()
        atexit.register(self.end)

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """End the session."""
        self.end()

    def end(self) -> None:
        """End the session, if there is one."""
        profile, self._profile = self._profile, None
        if profile is not None:
            atexit.unregister(self.end)
            profile.__exit__(None, None, None)
