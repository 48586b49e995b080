"""Which checks there are. All that may hang, if only to ask whether a file is there, is within a check."""

from __future__ import annotations

import os
from functools import cached_property
from pathlib import Path

from iotrace.doctor import command
from iotrace.doctor.checks import (
    accelerators,
    clock,
    interpreter,
    limits,
    pagecache,
    processors,
    storage,
    telemetry,
)
from iotrace.doctor.checks.torch_probe import check_torch
from iotrace.doctor.guess import data_of, ranks_of, workers_of
from iotrace.doctor.probe import default_interpreter, probe
from iotrace.doctor.results import Check, unknown
from iotrace.doctor.run import Named, UsageError
from iotrace.doctor.sandbox import Workplace


class Visit:
    """One look at the command `words` (may be empty), at `data` and `output` as the user named them."""

    def __init__(
        self, words: list[str], data: str | None, output: str | None, environment: dict[str, str]
    ) -> None:
        self.words = words
        self.output = output
        self.environment = environment
        self.workplace = Workplace()
        # The Python that was tried, once that is known.
        self.interpreter: str | None = None if words else default_interpreter().program
        self._path = environment.get("PATH")
        self._named = data
        self._mountinfo = storage.mounts()

    def checks(self) -> list[Named]:
        """Every check with its name, in the order in which they are told."""
        demand = processors.Demand(workers_of(self.words), ranks_of(self.words))
        about_command: list[Named] = [
            ("command", lambda: command.check_command(self.words, self._path)),
            ("interpreter", lambda: command.check_interpreter(self.words, self._python)),
        ]
        return [
            *(about_command if self.words else []),
            ("agent", self._agent),
            ("torch-profiler", self._torch),
            ("telemetry", telemetry.telemetry),
            ("nvidia", accelerators.nvidia),
            ("amd", accelerators.amd),
            ("cpus", lambda: processors.processors(demand)),
            ("memory", processors.memory),
            ("shm", lambda: limits.shm(demand.workers)),
            ("limits", limits.limits),
            ("clock", clock.clock_source),
            ("clock-sync", clock.synchronised),
            ("output", lambda: storage.output(self.output, self._mountinfo)),
            ("data", self._storage),
            ("page-cache", self._page_cache),
        ]

    @cached_property
    def _python(self) -> command.Interpreter | None:
        """The Python that the command starts, found on its PATH."""
        found = command.interpreter_of(self.words, self._path) if self.words else default_interpreter()
        if found is not None:
            self.interpreter = found.program
        return found

    def _agent(self) -> list[Check]:
        if self._python is None:
            return []
        return interpreter.judge(probe(self._python.here, self.environment, self.workplace), self.environment)

    def _torch(self) -> list[Check]:
        if self._python is None:
            return []
        return [check_torch(self._python.here, self.environment, self.workplace)]

    @cached_property
    def _data(self) -> Path | None:
        """The data that the user named, else a guess."""
        return look_at(self._named) if self._named is not None else data_of(self.words, Path())

    def _storage(self) -> Check:
        if self._data is None:
            return unknown("data", "no data was named", "nothing in the command looks like it", "--data PATH")
        return storage.check_data(self._data, self._mountinfo)

    def _page_cache(self) -> list[Check]:
        if self._data is None:
            return []
        mount = storage.mount_of(os.path.realpath(self._data), self._mountinfo)
        return [pagecache.check_page_cache(self._data, mount.kind if mount is not None else "")]


def look_at(data: str) -> Path:
    """`data`, if it is there; UsageError if not."""
    try:
        os.stat(data)
    except FileNotFoundError as error:
        raise UsageError(f"--data {data} does not exist", "name a file or a directory of the data") from error
    except (OSError, ValueError) as error:  # ValueError: a null byte
        why = error.strerror if isinstance(error, OSError) else str(error)
        raise UsageError(f"--data {data} cannot be looked at: {why}") from error
    return Path(data)
