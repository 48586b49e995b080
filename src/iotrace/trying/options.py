"""What the user asks of a trial, and how one ends before it has shown anything."""

from __future__ import annotations

from pathlib import Path

import msgspec

from iotrace.errors import UsageError
from iotrace.trying.proof import FEWEST_PAIRS

RUNS, STEPS = 10, 100


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """What the user asked for. `steps` None: by what is measured."""

    runs: int = RUNS
    minutes: float | None = None
    steps: int | None = None
    bare: bool = False
    as_it_is: bool = False
    directory: Path | None = None

    def check(self, settings: dict[str, str]) -> None:
        """Refuse what proves nothing of these arguments of the loader.

        Raises:
            UsageError: it cannot be run so.
        """
        if self.bare and settings:
            names = ", ".join(settings)
            raise UsageError(f"--bare: the agent sets {names}, and is in no bare run", "leave --bare out")
        if self.bare and self.steps:
            raise UsageError("--bare: nobody ends an untraced run after --steps", "leave one of both out")
        if self.runs < 2 * FEWEST_PAIRS:
            raise UsageError(f"--runs {self.runs} prove nothing", f"give {2 * FEWEST_PAIRS} or more")


class StopError(Exception):
    """The trial ends here: why its change cannot be tried, or why no more is known of it."""

    def __init__(self, kind: str, why: str) -> None:
        super().__init__(why)
        self.kind = kind
