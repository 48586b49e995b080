"""The battery's programs, and what is known of each by construction.

A program says it in a literal that is read without running it::

    KNOWN = {"steps": 60, "cause": "transform", "file": None}

``steps``     how many steps the loop begins
``cause``     what most of the wait goes to (one cause, or those that cannot be told apart)
``file``      the file that costs most of reading and decoding
``after``     the file that each slow item has read before its work begins
``stage``     what makes items for the loop, of several stages: the one that is slowest
``hot``       the file and line that this stage's work is mostly in; "": none is
``fix``       how the first remedy begins
``says``      the code of a rule that has to find something
``silent``    the code of a rule that must not
``reads``     the file that the loop itself reads, beside its loader, for most of a step
``exit``      the exit code, 0 if left out
``loaders``   how many loaders the program has
``ranks``     how many processes train, started by torchrun
``unknown``   "always": the wait can't be known; "allowed": it may be, and then has to be right
``torch``     False: the program does not use torch, so no word of a report may be about it
``needs``     modules without which it is skipped
``quick``     True: runs in the normal suite
"""

from __future__ import annotations

import ast
import importlib.util
from dataclasses import dataclass, field
from pathlib import Path

HERE = Path(__file__).parent
COMMON = HERE / "common"


@dataclass(frozen=True, kw_only=True)
class Known:
    """What is known of a program by construction."""

    steps: int
    cause: str | list[str] | None = None
    file: str | None = None
    after: str | None = None
    stage: str | None = None
    hot: str | None = None
    fix: str | None = None
    says: str | None = None
    silent: str | None = None
    reads: str | None = None
    exit: int = 0
    loaders: int | None = None
    ranks: int = 1
    unknown: str | None = None
    torch: bool = True
    needs: list[str] = field(default_factory=list)
    quick: bool = False

    @property
    def causes(self) -> list[str]:
        """The causes that are right."""
        return [self.cause] if isinstance(self.cause, str) else self.cause or []


@dataclass(frozen=True)
class Program:
    """A program of the battery."""

    path: Path
    known: Known

    @property
    def name(self) -> str:
        """The folder's and the program's name."""
        return f"{self.path.parent.name}/{self.path.stem}"

    @property
    def missing(self) -> str | None:
        """The first module that it needs and that is not installed."""
        return next((name for name in self.known.needs if importlib.util.find_spec(name) is None), None)


def programs() -> list[Program]:
    """List all programs, by folder and name."""
    paths = (path for path in HERE.glob("*/*.py") if path.parent != COMMON)
    return [Program(path, _known(path)) for path in sorted(paths)]


def _known(path: Path) -> Known:
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", None) == "KNOWN":
            return Known(**ast.literal_eval(node.value))
    raise ValueError(f"{path} says nothing of what is KNOWN")
