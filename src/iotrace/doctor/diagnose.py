"""The doctor's visit: which checks there are, run together, and what follows from them."""

from __future__ import annotations

import os
import time
from pathlib import Path

from iotrace import __version__
from iotrace.doctor import (
    accelerators,
    clock,
    command,
    interpreter,
    limits,
    pagecache,
    processors,
    storage,
    telemetry,
)
from iotrace.doctor.probe import clean_environment, default_interpreter, probe
from iotrace.doctor.results import SCHEMA_VERSION, Check, Diagnosis, Unknown, unknown
from iotrace.doctor.run import Named, run_checks
from iotrace.doctor.torch_probe import BROKEN, check_torch

# What a run records, and the checks on which that rests.
_RECORDED = {
    "steps, data waits and their causes": ("agent", "torch"),
    "reads and decoding by file (h5py, zarr, numpy, PIL)": ("agent",),
    "POSIX calls": ("posix",),
    "operators and kernels (torch.profiler)": ("agent", "torch", "torch-profiler"),
    "processes and host": ("telemetry",),
}
_GPUS = "GPUs"


def diagnose(words: list[str], data: Path | None, output: Path) -> Diagnosis:
    """Look at what a run of the command `words` (may be empty: iotrace's own Python) would meet here."""
    start = time.monotonic()
    environment = clean_environment()
    path = environment.get("PATH")
    python = command.interpreter_of(words, path) if words else default_interpreter()
    tried = python.here if python is not None else None
    workers = command.workers_of(words)
    data = data or storage.data_of(words, Path())
    mountinfo = storage.mounts()

    checks: list[Named] = []
    if words:
        checks.append(("command", lambda: command.check_command(words, path)))
        checks.append(("interpreter", lambda: command.check_interpreter(words, python)))
    if tried is not None:
        checks.append(("agent", lambda: interpreter.judge(probe(tried, environment), environment)))
        checks.append(("torch-profiler", lambda: check_torch(tried, environment)))
    checks += [
        ("telemetry", telemetry.telemetry),
        ("nvidia", accelerators.nvidia),
        ("amd", accelerators.amd),
        ("cpus", lambda: processors.processors(workers)),
        ("memory", processors.memory),
        ("shm", lambda: limits.shm(workers)),
        ("limits", limits.limits),
        ("clock", clock.clock_source),
        ("clock-sync", clock.synchronised),
        ("output", lambda: storage.check_output(output, mountinfo)),
    ]
    if data is not None:
        checks.append(("data", lambda: storage.check_data(data, mountinfo)))
        mount = storage.mount_of(os.path.realpath(data), mountinfo)
        kind = mount.kind if mount is not None else ""
        checks.append(("page-cache", lambda: pagecache.check_page_cache(data, kind)))
    found = run_checks(checks)
    if any(check.id == "torch" and check.status == "warning" for check in found):
        found = [check for check in found if check.id != "torch-profiler"]
    if data is None:
        found.append(
            unknown("data", "no data was named", "nothing in the command looks like it", "--data PATH")
        )
    captured, not_captured, not_known = consequences(found)
    return Diagnosis(
        schema_version=SCHEMA_VERSION,
        iotrace_version=__version__,
        argv=[os.fsencode(word).decode(errors="replace") for word in words],
        interpreter=python.program if python is not None else None,
        captured=captured,
        not_captured=not_captured,
        unknown=not_known,
        checks=found,
        seconds=time.monotonic() - start,
    )


def consequences(checks: list[Check]) -> tuple[list[str], list[str], list[Unknown]]:
    """What will be recorded, what will not, and of what it is not known, with the reason."""
    status = {check.id: check.status for check in checks}
    if any(check.what.startswith(BROKEN) for check in checks):
        status["torch"] = "missing"
    if status.get("command") == "missing":  # whatever its interpreter, tried alone, may say
        status["posix"] = "missing"
    if any(check.why == command.NOTHING_ENTERS for check in checks):
        status["agent"] = "missing"
    lost_all = status.get("output") == "missing" or any(check.why == command.NOTHING_RUNS for check in checks)
    captured, not_captured, not_known = [], [], []
    for part, needed in _RECORDED.items():
        states = [status.get(name, "unknown") for name in needed]
        if lost_all or "missing" in states or ("torch" in needed and status.get("torch") == "warning"):
            not_captured.append(part)
        elif "unknown" in states:
            not_known.append(Unknown(part, _why_unknown(needed, checks)))
        else:
            captured.append(part)
    nowhere = (accelerators.NO_NVIDIA, accelerators.NO_AMD)
    gpus = [check for check in checks if check.id in ("nvidia", "amd") and check.what not in nowhere]
    there = [check.status for check in gpus]
    if "ok" in there and not lost_all:
        captured.append(_GPUS)
    elif "unknown" in there and not lost_all:
        not_known.append(Unknown(_GPUS, _why_unknown(("nvidia", "amd"), gpus)))
    elif there:
        not_captured.append(_GPUS)
    return captured, not_captured, not_known


def _why_unknown(needed: tuple[str, ...], checks: list[Check]) -> str:
    """The first unknown check of `needed`, else the one for want of which they were not made; its reason."""
    unanswered = {check.id: check for check in checks if check.status == "unknown"}
    for name in (*needed, "agent", "interpreter"):
        if name in unanswered:
            check = unanswered[name]
            # Where there is no interpreter to try, the finding is the reason.
            return f"{name}: {check.what if name == 'interpreter' else check.why}"
    return f"{', '.join(needed)}: not looked at"
