"""The checks: run them, and say what follows from them for a run.

Whatever may hang, even a look whether a file exists, happens within a check.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from functools import cached_property
from pathlib import Path

import msgspec

from iotrace.analysis.rules.facts.host import Demand
from iotrace.doctor.checks import (
    accelerators,
    host,
    interpreter,
    storage,
)
from iotrace.doctor.checks.accelerators import TORCH, check_torch
from iotrace.doctor.command import (
    Interpreter,
    count_hosts,
    find_interpreter,
    guess_data,
    parse_demand,
)
from iotrace.doctor.probe import clean_environment, probe
from iotrace.doctor.results import SCHEMA_VERSION, Check, Diagnosis, Unknown, unknown
from iotrace.doctor.run import TORCH_SECONDS, BadDataError, Named, Sandbox, run_checks
from iotrace.launch.traced_run import readable
from iotrace.session.masks import masked
from iotrace.version import __version__

_LOOK_SECONDS = 1.0  # for the size of the data
_STEPS = "steps, data waits and their causes"
# What a run records, and the checks on which that rests.
_RECORDED = {
    _STEPS: ("agent", "torch"),
    "reads and decoding by file": ("agent",),
    "POSIX calls": ("posix",),
    "operators and kernels (torch.profiler)": ("agent", "torch", "torch-profiler"),
    "processes and host": ("telemetry",),
}
_NOT_IMPORTABLE = "IO011"  # the rule: torch is there, and its import fails
_GPUS = ("nvidia", "amd", "intel")
_USELESS_IF_WARNED = ("torch", *_GPUS)  # a warning of these: there is none that could be recorded


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
        demand = parse_demand(self.words)
        about_command: list[Named] = [
            ("command", lambda: interpreter.check_command(self.words, self._path)),
            ("interpreter", lambda: interpreter.check_interpreter(self.words, self._python)),
        ]
        return [
            *(about_command if self.words else []),
            ("agent", self._agent),
            (TORCH, self._torch),
            ("telemetry", host.telemetry),
            ("nvidia", accelerators.nvidia),
            ("amd", accelerators.amd),
            ("intel", accelerators.intel),
            ("cpus", lambda: host.cpus(demand, self.environment)),
            ("memory", lambda: host.memory(demand)),
            ("shm", lambda: host.check_shm(host.SHM, demand)),
            ("limits", lambda: host.limits(demand)),
            ("clock", lambda: host.check_clock_source(host.SOURCE, host.read_cost_ns())),
            ("clock-sync", lambda: host.synchronised(count_hosts(self.words, self.environment))),
            ("output", lambda: storage.output(self.output, self._mounts)),
            ("data", self._storage),
            ("page-cache", self._page_cache),
            ("data-memory", lambda: self._copies(demand)),
        ]

    @cached_property
    def _python(self) -> Interpreter | None:
        if not self.words:
            return Interpreter((sys.executable,), sys.executable)
        python = find_interpreter(self.words, self._path)
        self.interpreter = python.program if python is not None else None
        return python

    @cached_property
    def _mounts(self) -> list[storage.Mount]:
        return storage.mounts()

    def _agent(self) -> list[Check]:
        if self._python is None:
            return []
        probed = probe(self._python, self.environment, self.sandbox)
        return interpreter.judge(probed, self.environment)

    def _torch(self) -> list[Check]:
        if self._python is None:
            return []
        return [check_torch(self._python, self.environment, self.sandbox, self.torch_seconds)]

    @cached_property
    def _data(self) -> Path | None:
        return existing(self._named_data) if self._named_data is not None else guess_data(self.words, Path())

    def _copies(self, demand: Demand) -> list[Check]:
        if self._data is None or not demand.workers:
            return []
        files = storage.find(self._data, time.monotonic() + _LOOK_SECONDS)
        return host.copies(demand, sum(files.sizes.values()))

    def _storage(self) -> Check:
        if self._data is None:
            return unknown("data", "no data was named", "nothing in the command looks like it", "--data PATH")
        return storage.check_data(self._data, self._mounts)

    def _page_cache(self) -> list[Check]:
        if self._data is None:
            return []
        mount = storage.find_mount(os.path.realpath(self._data), self._mounts)
        return [storage.check_page_cache(self._data, mount.kind if mount is not None else "")]


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


def diagnose(
    words: list[str],
    data: str | None,
    output: str | None,
    torch_seconds: float = TORCH_SECONDS,
    waiting: Callable[[list[str]], None] = lambda _: None,
) -> Diagnosis:
    """Check what a run of the command `words` would capture here; without words, of iotrace's own Python.

    `data` and `output` are as the user gave them. torch is given `torch_seconds`; `waiting` is called where
    only it still has to answer.

    Raises:
        BadDataError: `data` cannot be looked at.
    """
    start = time.monotonic()
    catalog = Catalog(words, data, output, clean_environment(), torch_seconds)
    try:
        # Its own limit is to end it, so that what it said until then counts.
        checks = run_checks(catalog.checks(), longer={TORCH: torch_seconds + 0.5}, waiting=waiting)
    finally:  # an interruption, too
        catalog.sandbox.close()
    if any(check.id == "torch" and check.status == "warning" for check in checks):
        checks = [check for check in checks if check.id != "torch-profiler"]
    checks = [_readable_check(check) for check in checks]
    captured, not_captured, not_known = consequences(checks)
    return Diagnosis(
        schema_version=SCHEMA_VERSION,
        iotrace_version=__version__,
        argv=masked([readable(word) for word in words]),
        interpreter=readable(catalog.interpreter) if catalog.interpreter is not None else None,
        captured=captured,
        not_captured=not_captured,
        unknown=not_known,
        checks=checks,
        seconds=time.monotonic() - start,
    )


def _readable_check(check: Check) -> Check:
    texts = {name: readable(getattr(check, name)) for name in ("what", "why", "remedy")}
    files = [msgspec.structs.replace(file, path=readable(file.path)) for file in check.files]
    return msgspec.structs.replace(check, **texts, files=files)


def consequences(checks: list[Check]) -> tuple[list[str], list[str], list[Unknown]]:
    """Return the parts that will be recorded, those that will not, and those where it is not known."""
    status = {check.id: check.status for check in checks}
    if any(check.code == _NOT_IMPORTABLE for check in checks):
        status["torch"] = "missing"
    # Whatever its interpreter, tried alone, may say.
    lost_all = "missing" in (status.get("output"), status.get("command"))
    absent = (accelerators.NO_NVIDIA, accelerators.NO_AMD, accelerators.NO_INTEL)
    gpus = [check.id for check in checks if check.id in _GPUS and check.what not in absent]
    recorded = {**_RECORDED, "GPUs": tuple(gpus)} if gpus else _RECORDED
    captured, not_captured, not_known = [], [], []
    for part, needed in recorded.items():
        states = [status.get(name, "unknown") for name in needed]
        if part == _STEPS and states == ["ok", "warning"] and not lost_all:
            not_known.append(Unknown(part, "torch: not there, and other loaders are seen in a run alone"))
            continue
        useless = any(status.get(name) == "warning" for name in needed if name in _USELESS_IF_WARNED)
        if lost_all or useless or "missing" in states:
            not_captured.append(part)
        elif "unknown" in states:
            not_known.append(Unknown(part, _why_unknown(needed, checks)))
        else:
            captured.append(part)
    return captured, not_captured, not_known


def _why_unknown(needed: tuple[str, ...], checks: list[Check]) -> str:
    """Return the reason of the first unknown check of `needed`, else of the one that these need."""
    unanswered = {check.id: check for check in checks if check.status == "unknown"}
    for name in (*needed, "agent", "interpreter"):
        if name in unanswered:
            check = unanswered[name]
            # Without an interpreter to try, the finding is the reason.
            return f"{name}: {check.what if name == 'interpreter' else check.why}"
    return f"{', '.join(needed)}: not checked"
