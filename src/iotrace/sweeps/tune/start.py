"""The start of a search: what was asked, checked."""

from __future__ import annotations

import re
import time
from pathlib import Path

from iotrace.errors import UsageError
from iotrace.sweeps.model import Look
from iotrace.sweeps.plan import SweepPlan
from iotrace.sweeps.schedule import open_sweep
from iotrace.sweeps.tune.limits import Place
from iotrace.sweeps.tune.search import Search

_EXAMPLE = "iotrace tune --budget 10m -- python train.py"
_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "": 1.0}


def seconds_of(text: str) -> float:
    """Read a time as 90s, 10m or 1h.

    Raises:
        UsageError: it is none.
    """
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([smh]?)", text.strip())
    if found is None or not float(found[1]):
        raise UsageError(f"--budget {text!r} is no time", "for example --budget 90s, 10m or 1h")
    return float(found[1]) * _UNITS[found[2]]


def open_search(
    command: list[str],
    look: Look,
    place: Place,
    budget_s: float | None,
    steps: int | None,
    directory: Path | None,
    resume: bool,
    io: list[str],
) -> Search:
    """Begin a search, or take up the one in `directory`.

    Raises:
        UsageError: it cannot be run as asked.
    """
    if not command:
        raise UsageError("no command was given", _EXAMPLE)
    for word in command:
        if re.search(r"\{(workers|prefetch)\}", word):
            raise UsageError(
                f"{word!r} has a place for a value, and tune runs the command as it is",
                "write the value that you use: iotrace sets the loader's settings itself",
            )
    directory = directory or Path(time.strftime("iotrace-tune-%Y%m%d-%H%M%S"))
    plan = SweepPlan(
        command=command,
        axes={},
        repeats=1,
        steps=steps,
        cache="asis",
        ceiling=True,
        options=[word for path in io for word in ("--io", path)],
    )
    return Search(open_sweep(plan, directory, resume), look, place, budget_s)
