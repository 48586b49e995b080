"""The figures of other tools on the terminal, as plain lines to compare with what they print themselves."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from iotrace.report.printing import echo


def print_compat(found: Mapping[str, Mapping[str, Any] | None]) -> None:
    """Print the figures of each trace, by its path; None where the tool finds nothing that it counts."""
    for path, figures in found.items():
        echo(path)
        for name, figure in (figures or {"figures": "none: the trace holds nothing that it counts"}).items():
            echo(f"  {name:24} {_text(figure)}")


def _text(figure: Any) -> str:
    if isinstance(figure, Mapping):
        return "  ".join(f"{key} {_text(value)}" for key, value in figure.items())
    if isinstance(figure, list):
        return " ".join(map(str, figure))
    if isinstance(figure, float):
        return f"{figure:.1f}" if figure >= 1 or not figure else f"{figure:.5f}"
    return str(figure)
