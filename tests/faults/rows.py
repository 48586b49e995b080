"""What the rows of the matrix state, and their table in docs/reliability.md."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import pytest

DOCUMENT = Path(__file__).parent.parent.parent / "docs" / "reliability.md"
BEGIN = "<!-- Made from tests/faults by: python -m tests.faults -->\n"
END = "<!-- End of the table -->\n"

Test = TypeVar("Test", bound=Callable[..., Any])


@dataclass(frozen=True)
class Row:
    """One line of the table."""

    fault: str
    kept: str
    lost: str


_ROWS: dict[str, list[Row]] = {}  # by module, in the order of its tests


def row(
    fault: str, *, kept: str, lost: str, limit_s: int = 240, default: bool = False
) -> Callable[[Test], Test]:
    """Make a test a row of the matrix; a parametrized test is one row.

    `lost` names what is lost and its bound. `limit_s` ends a row that hangs: machines may be busy.
    A row with `default` costs a second or two and runs in the default suite, too.
    """

    def mark(test: Test) -> Test:
        _ROWS.setdefault(test.__module__, []).append(Row(fault, kept, lost))
        marked: Test = pytest.mark.timeout(limit_s)(test)
        return marked if default else pytest.mark.fault(marked)

    return mark


def titles() -> dict[str, str]:
    """Import all modules of rows; return the first line of each one's docstring."""
    found = {}
    for module in pkgutil.iter_modules([str(Path(__file__).parent)]):
        if module.name.startswith("test_"):
            loaded = importlib.import_module(f"tests.faults.{module.name}")
            found[loaded.__name__] = (loaded.__doc__ or "").splitlines()[0].rstrip(".")
    return {name: title for name, title in found.items() if name in _ROWS}


def table() -> str:
    """Return the table in Markdown, a part for each module."""
    parts = [BEGIN]
    for module, title in titles().items():
        lines = [f"| {row.fault} | {row.kept} | {row.lost} |" for row in _ROWS[module]]
        parts.append("\n".join([f"### {title}\n", "| fault | kept | lost |", "|---|---|---|", *lines]) + "\n")
    return "\n".join([*parts, END])


def documented() -> tuple[str, str, str]:
    """Return the text before the table, the table, and the text after it, as the document has them."""
    before, rest = DOCUMENT.read_text().split(BEGIN)
    found, after = rest.split(END)
    return before, BEGIN + found + END, after
