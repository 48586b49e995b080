"""The doctor's visit: its checks run together, and what follows from them."""

from __future__ import annotations

import time

import msgspec

from iotrace import __version__
from iotrace.doctor import command
from iotrace.doctor.checks import accelerators
from iotrace.doctor.checks.catalog import Visit
from iotrace.doctor.checks.torch_probe import BROKEN
from iotrace.doctor.probe import clean_environment
from iotrace.doctor.results import SCHEMA_VERSION, Check, Diagnosis, Unknown
from iotrace.doctor.run import run_checks

# What a run records, and the checks on which that rests.
_RECORDED = {
    "steps, data waits and their causes": ("agent", "torch"),
    "reads and decoding by file (h5py, zarr, numpy, PIL)": ("agent",),
    "POSIX calls": ("posix",),
    "operators and kernels (torch.profiler)": ("agent", "torch", "torch-profiler"),
    "processes and host": ("telemetry",),
}
_GPUS = "GPUs"


def diagnose(words: list[str], data: str | None, output: str | None) -> Diagnosis:
    """Look at what a run of the command `words` (may be empty: iotrace's own Python) would meet here.

    `data` and `output` as the user gave them. UsageError where the data cannot be looked at.
    """
    start = time.monotonic()
    visit = Visit(words, data, output, clean_environment())
    try:
        found = run_checks(visit.checks())
    finally:  # an interruption, too
        visit.workplace.close()
    if any(check.id == "torch" and check.status == "warning" for check in found):
        found = [check for check in found if check.id != "torch-profiler"]
    found = [_readable_check(check) for check in found]
    captured, not_captured, not_known = consequences(found)
    return Diagnosis(
        schema_version=SCHEMA_VERSION,
        iotrace_version=__version__,
        argv=[_readable(word) for word in words],
        interpreter=_readable(visit.interpreter) if visit.interpreter is not None else None,
        captured=captured,
        not_captured=not_captured,
        unknown=not_known,
        checks=found,
        seconds=time.monotonic() - start,
    )


def _readable(text: str) -> str:
    """`text` as UTF-8 can hold it: names of files may be any bytes."""
    return text.encode(errors="surrogateescape").decode(errors="replace")


def _readable_check(check: Check) -> Check:
    told = {name: _readable(getattr(check, name)) for name in ("what", "why", "remedy")}
    return msgspec.structs.replace(check, **told)


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
