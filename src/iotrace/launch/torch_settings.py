"""Check the settings of the torch profiler, which the agent uses in each training process."""

from __future__ import annotations

import re

from iotrace.errors import LaunchError
from iotrace.session import names

# Five steps pass the start of the workers, and a warm-up of one is what torch's own examples take. Five
# steps recorded leave a run of sixteen with seven measured ones.
DEFAULT_STEPS = "5:1:5:1"
OPTIONS = ("shapes", "stacks", "memory", "flops")
ACTIVITIES = ("cpu", "all")

_LEAST = {"WAIT": 0, "WARMUP": 0, "ACTIVE": 1, "REPEAT": 1}


def settings(steps: str, options: str, activities: str, snapshot: str | None = None) -> dict[str, str]:
    """Return the agent's settings.

    Raises:
        LaunchError: torch's profiler does not have such a setting.
    """
    chosen = [option for option in options.split(",") if option]
    for option in chosen:
        if option not in OPTIONS:
            remedy = f"choose from {','.join(OPTIONS)}, or none"
            raise LaunchError(f"--torch-options does not know {option!r}", remedy)
    if activities not in ACTIVITIES:
        remedy = f"choose one of {', '.join(ACTIVITIES)}"
        raise LaunchError(f"--torch-activities does not know {activities!r}", remedy)
    return {
        names.TORCH_STEPS: _steps(steps),
        names.TORCH_OPTIONS: ",".join(chosen),
        names.TORCH_ACTIVITIES: activities,
        **({names.CUDA_SNAPSHOT: _snapshot(snapshot)} if snapshot is not None else {}),
    }


def _snapshot(text: str) -> str:
    """Return `text`, checked: training steps to wait, and steps to record."""
    if not re.fullmatch(r"[0-9]+:0*[1-9][0-9]*", text):
        raise LaunchError(
            f"--cuda-snapshot {text!r} is not WARMUP:STEPS in whole training steps, one or more to record",
            "as in --cuda-snapshot 5:3",
        )
    return text


def _steps(text: str) -> str:
    """Return `text` with all four numbers, or ``off``."""
    if text == names.OFF:
        return text
    remedy = f"as in --torch-steps {DEFAULT_STEPS}, or --torch-steps {names.OFF}"
    if not re.fullmatch(r"[0-9]+(:[0-9]+){2,3}", text):
        raise LaunchError(f"--torch-steps {text!r} is not WAIT:WARMUP:ACTIVE[:REPEAT] in whole steps", remedy)
    numbers = [*map(int, text.split(":")), 1][:4]
    for (name, least), number in zip(_LEAST.items(), numbers, strict=True):
        if number < least:
            raise LaunchError(f"--torch-steps {text!r}: {name} has to be {least} or more", remedy)
    return ":".join(map(str, numbers))
