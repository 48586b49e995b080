"""Run the checks, and say what follows from them for a run."""

from __future__ import annotations

import time
from collections.abc import Callable

import msgspec

from iotrace.doctor.checks import accelerators
from iotrace.doctor.checks.catalog import Catalog
from iotrace.doctor.checks.torch_probe import BROKEN, TORCH
from iotrace.doctor.probe import clean_environment
from iotrace.doctor.results import SCHEMA_VERSION, Check, Diagnosis, Unknown
from iotrace.doctor.run import TORCH_SECONDS, run_checks
from iotrace.launch.traced_run import readable
from iotrace.session.masks import masked
from iotrace.version import __version__

_STEPS = "steps, data waits and their causes"
# What a run records, and the checks on which that rests.
_RECORDED = {
    _STEPS: ("agent", "torch"),
    "reads and decoding by file (h5py, zarr, numpy, PIL)": ("agent",),
    "POSIX calls": ("posix",),
    "operators and kernels (torch.profiler)": ("agent", "torch", "torch-profiler"),
    "processes and host": ("telemetry",),
}
_GPUS = ("nvidia", "amd")
_USELESS_IF_WARNED = ("torch", *_GPUS)  # a warning of these: there is none that could be recorded


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
        found = run_checks(catalog.checks(), longer={TORCH: torch_seconds + 0.5}, waiting=waiting)
    finally:  # an interruption, too
        catalog.sandbox.close()
    if any(check.id == "torch" and check.status == "warning" for check in found):
        found = [check for check in found if check.id != "torch-profiler"]
    found = [_readable_check(check) for check in found]
    captured, not_captured, not_known = consequences(found)
    return Diagnosis(
        schema_version=SCHEMA_VERSION,
        iotrace_version=__version__,
        argv=masked([readable(word) for word in words]),
        interpreter=readable(catalog.interpreter) if catalog.interpreter is not None else None,
        captured=captured,
        not_captured=not_captured,
        unknown=not_known,
        checks=found,
        seconds=time.monotonic() - start,
    )


def _readable_check(check: Check) -> Check:
    texts = {name: readable(getattr(check, name)) for name in ("what", "why", "remedy")}
    files = [msgspec.structs.replace(file, path=readable(file.path)) for file in check.files]
    return msgspec.structs.replace(check, **texts, files=files)


def consequences(checks: list[Check]) -> tuple[list[str], list[str], list[Unknown]]:
    """Return the parts that will be recorded, those that will not, and those of which it is not known."""
    status = {check.id: check.status for check in checks}
    if any(check.what.startswith(BROKEN) for check in checks):
        status["torch"] = "missing"
    # Whatever its interpreter, tried alone, may say.
    lost_all = "missing" in (status.get("output"), status.get("command"))
    absent = (accelerators.NO_NVIDIA, accelerators.NO_AMD)
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
