"""``iotrace report --compat``: the figures of other tools, to compare with what they say themselves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import typer

from iotrace.analysis.compat.hta import holistic
from iotrace.analysis.compat.tb import tensorboard
from iotrace.cli.output import print_json
from iotrace.sources.kineto.reader import read_kineto
from iotrace.sources.kineto.trace import KinetoTrace


def print_compat(paths: Sequence[Path], tool: str, as_json: bool) -> None:
    """Print what `tool` (``tb`` or ``hta``) says of each trace."""
    found = {str(path): _figures(read_kineto(path), tool) for path in paths}
    if as_json:
        print_json(found)
        return
    for path, figures in found.items():
        typer.echo(path)
        for name, figure in (figures or {"figures": "none: no device activity"}).items():
            typer.echo(f"  {name:24} {_text(figure)}")


def _figures(trace: KinetoTrace, tool: str) -> dict[str, Any] | None:
    if tool == "tb":
        return asdict(tensorboard(trace))
    found = holistic(trace)
    if found is None:
        return None
    derived = {"idle_us": found.idle_us, "non_compute_us": found.non_compute_us, "idle_pct": found.idle_pct}
    return {**derived, **asdict(found)}


def _text(figure: Any) -> str:
    if isinstance(figure, dict):
        return "  ".join(f"{key} {_text(value)}" for key, value in figure.items())
    if isinstance(figure, list):
        return " ".join(map(str, figure))
    if isinstance(figure, float):
        return f"{figure:.1f}" if figure >= 1 or not figure else f"{figure:.5f}"
    return str(figure)
