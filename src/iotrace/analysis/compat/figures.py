"""The figures of another tool for a trace, as plain data."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from iotrace.analysis.compat.hta import holistic
from iotrace.analysis.compat.tb import tensorboard
from iotrace.sources.kineto.trace import KinetoTrace


def figures_of(trace: KinetoTrace, tool: str) -> dict[str, Any] | None:
    """Compute what `tool` (``tb``, ``hta``) says of `trace`; None where it finds nothing that it counts."""
    found = tensorboard(trace) if tool == "tb" else holistic(trace)
    return None if found is None else asdict(found)
