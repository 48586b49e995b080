"""What the user asks of a trial."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from iotrace.analysis.results import Change
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

    def check(self, change: Change, tables: bool) -> None:
        """Refuse what proves nothing of this change; `tables`: CSV is given as Parquet.

        Raises:
            UsageError: it cannot be run so.
        """
        threads = [f"the threads of {name}" for name in change.threads]
        by_agent = [*change.settings, *threads, *(["the CPUs"] if change.cpus else [])]
        by_agent += [f"what keeps {os.path.basename(path)} open" for path in change.kept_open]
        if self.bare and by_agent:
            names = ", ".join(by_agent)
            raise UsageError(f"--bare: the agent sets {names}, and is in no bare run", "leave --bare out")
        if self.bare and tables:
            raise UsageError("--bare: the agent reads Parquet, and is in no bare run", "leave --bare out")
        if self.bare and self.steps:
            raise UsageError("--bare: nobody ends an untraced run after --steps", "leave one of both out")
        if self.runs < 2 * FEWEST_PAIRS:
            raise UsageError(f"--runs {self.runs} prove nothing", f"give {2 * FEWEST_PAIRS} or more")
