"""List the checks. Whatever may hang, even a look whether a file exists, happens within a check."""

from __future__ import annotations

import os
import sys
import time
from functools import cached_property
from pathlib import Path

from iotrace.doctor.checks import (
    accelerators,
    clock,
    command,
    cpus_and_memory,
    interpreter,
    limits,
    page_cache,
    storage,
    telemetry,
)
from iotrace.doctor.checks.torch_probe import TORCH, check_torch
from iotrace.doctor.command import (
    Interpreter,
    data_of,
    demand_of,
    hosts_of,
    interpreter_of,
)
from iotrace.doctor.probe import probe
from iotrace.doctor.results import Check, unknown
from iotrace.doctor.run import TORCH_SECONDS, BadDataError, Named
from iotrace.doctor.sandbox import Sandbox

_LOOK_SECONDS = 1.0  # for the size of the data


class Catalog:
    """The checks for the command `words` (may be empty), with `data` and `output` as the user named them."""

    def __init__(
        self,
        words: list[str],
        data: str | None,
        output: str | None,
        environment: dict[str, str],
        torch_seconds: float = TORCH_SECONDS,
    ) -> None:
        self.words = words
        self.output = output
        self.environment = environment
        self.torch_seconds = torch_seconds
        self.sandbox = Sandbox()
        # The Python that is tried, once it is known.
        self.interpreter: str | None = None if words else sys.executable
        self._path = environment.get("PATH")
        self._named_data = data

    def checks(self) -> list[Named]:
        """Return every check with its name, in the order of the findings."""
        demand = demand_of(self.words)
        about_command: list[Named] = [
            ("command", lambda: command.check_command(self.words, self._path)),
            ("interpreter", lambda: command.check_interpreter(self.words, self._python)),
        ]
        return [
            *(about_command if self.words else []),
            ("agent", self._agent),
            (TORCH, self._torch),
            ("telemetry", telemetry.telemetry),
            ("nvidia", accelerators.nvidia),
            ("amd", accelerators.amd),
            ("cpus", lambda: cpus_and_memory.cpus(demand, self.environment)),
            ("memory", lambda: cpus_and_memory.memory(demand)),
            ("shm", lambda: limits.check_shm(limits.SHM, demand)),
            ("limits", lambda: limits.limits(demand)),
            ("clock", lambda: clock.check_clock_source(clock.SOURCE, clock.read_cost_ns())),
            ("clock-sync", lambda: clock.synchronised(hosts_of(self.words, self.environment))),
            ("output", lambda: storage.output(self.output, self._mounts)),
            ("data", self._storage),
            ("page-cache", self._page_cache),
            ("data-memory", lambda: self._copies(demand)),
        ]

    @cached_property
    def _python(self) -> Interpreter | None:
        if not self.words:
            return Interpreter((sys.executable,), sys.executable)
        found = interpreter_of(self.words, self._path)
        self.interpreter = found.program if found is not None else None
        return found

    @cached_property
    def _mounts(self) -> list[storage.Mount]:
        return storage.mounts()

    def _agent(self) -> list[Check]:
        if self._python is None:
            return []
        found = probe(self._python, self.environment, self.sandbox)
        return interpreter.judge(found, self.environment)

    def _torch(self) -> list[Check]:
        if self._python is None:
            return []
        return [check_torch(self._python, self.environment, self.sandbox, self.torch_seconds)]

    @cached_property
    def _data(self) -> Path | None:
        return existing(self._named_data) if self._named_data is not None else data_of(self.words, Path())

    def _copies(self, demand: cpus_and_memory.Demand) -> list[Check]:
        if self._data is None or not demand.workers:
            return []
        found = page_cache.find(self._data, time.monotonic() + _LOOK_SECONDS)
        return cpus_and_memory.copies(demand, sum(found.sizes.values()))

    def _storage(self) -> Check:
        if self._data is None:
            return unknown("data", "no data was named", "nothing in the command looks like it", "--data PATH")
        return storage.check_data(self._data, self._mounts)

    def _page_cache(self) -> list[Check]:
        if self._data is None:
            return []
        mount = storage.mount_of(os.path.realpath(self._data), self._mounts)
        return [page_cache.check_page_cache(self._data, mount.kind if mount is not None else "")]


def existing(data: str) -> Path:
    """Return `data` as a path.

    Raises:
        BadDataError: it does not exist, or cannot be looked at.
    """
    try:
        os.stat(data)
    except FileNotFoundError as error:
        remedy = "name a file or a directory of the data"
        raise BadDataError(f"--data {data} does not exist", remedy) from error
    except OSError as error:
        raise BadDataError(f"--data {data} cannot be looked at: {error.strerror}") from error
    return Path(data)
