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
    if found is None:
        return None
    derived = {"idle_us": found.idle_us, "non_compute_us": found.non_compute_us, "idle_pct": found.idle_pct}
    return {**derived, **asdict(found)}
