"""The figures of another tool for a trace, as plain data."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from iotrace.analysis.compat.hta import holistic
from iotrace.analysis.compat.tb import tensorboard
from iotrace.sources.kineto.trace import KinetoTrace


def figures_of(trace: KinetoTrace, tool: str) -> dict[str, Any] | None:
    """What `tool` (``tb`` or ``hta``) says of `trace`; None where ``hta`` finds no device activity."""
    if tool == "tb":
        return asdict(tensorboard(trace))
    found = holistic(trace)
    return None if found is None else asdict(found)
