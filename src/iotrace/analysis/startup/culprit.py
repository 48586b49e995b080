"""Whose fault a slow start is: the imports, not the model. Thresholds: docs/definitions.md, culprits."""

from __future__ import annotations

from collections.abc import Iterator

from iotrace.analysis.results import Culprit, Evidence, Startup
from iotrace.analysis.startup.waterfall import IMPORTS

SLOW_IMPORTS = "imports"
_SECONDS = 1.0
_FRACTION = 0.5  # of the time to the end of the first step; likewise of imports, waiting
_MOSTLY = 0.75
_REMEDY = "keep the environment on a local disk, or in one file (a container's image, squashfs)"


def slow_imports(startup: Startup | None) -> Iterator[Culprit]:
    """Name imports that are most of the time to the first step's end; where they wait, say what helps."""
    whole = None if startup is None else startup.first_step_seconds
    if startup is None or whole is None:
        return
    seconds = sum(part.seconds for part in startup.parts if part.name == IMPORTS)
    if seconds < _SECONDS or seconds < _FRACTION * whole:
        return
    waiting = startup.imports_waiting_seconds
    text = f"imports are {seconds:.1f} of the {whole:.1f} s to the end of the first step"
    evidence: Evidence = {"imports_seconds": seconds, "first_step_seconds": whole}
    remedy = ""
    if waiting is not None:
        evidence["imports_waiting_seconds"] = waiting
        if waiting >= _FRACTION * seconds:
            mount = _waited_for(startup)
            of = f" of {mount}" if mount is not None else ""
            text, remedy = f"{text}, {waiting:.1f} of it waiting, as for files{of}", _REMEDY
    yield Culprit(id=SLOW_IMPORTS, text=text, evidence=evidence, wait_ms=0.0, leads=False, remedy=remedy)


def _waited_for(startup: Startup) -> str | None:
    """Name the file system on which most of the imports' time off a CPU was spent; None: no one has most."""
    slept = {each.mount: each.seconds - each.cpu_seconds for each in startup.mounts}
    mount = max(slept, key=lambda name: slept[name], default=None)
    return mount if mount is not None and slept[mount] >= _MOSTLY * sum(slept.values()) else None
