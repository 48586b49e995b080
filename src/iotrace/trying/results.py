"""What a trial found, as plain data: its JSON, `trial.json`, is the contract (docs/try.md has the meanings).

Times are integer ns. None is unknown, never 0.
"""

from __future__ import annotations

import msgspec

SCHEMA_VERSION = 1
RESULT = "trial.json"

# What came of a trial.
PROVEN, NO_HELP, SLOWER, UNCLEAR, FAILED = "proven", "does-not-help", "slower", "not-proven", "failed"
# What a run's time is: of a measured step, of a step with all that lies between steps, of the whole command.
STEP, LOOP, RUN = "step", "loop", "run"


class Setting(msgspec.Struct, frozen=True, kw_only=True):
    """An argument of DataLoader, a variable of the environment, or what each worker sets as it starts.

    `before`: None where it is not known.
    """

    parameter: str
    before: str | None
    after: str


class Data(msgspec.Struct, frozen=True, kw_only=True):
    """A file or a store, and the copy that the changed runs were given in its place.

    `how` is `chunks`, `lighter`, `row-groups`, `unpacked` or `parquet`. `opens` counts how often a changed
    run opened the copy at least; None before one ended. `original` is where the original is since the copy
    took its place.
    """

    path: str
    new_path: str
    how: str
    bytes: int
    new_bytes: int
    opens: int | None = None
    original: str | None = None


class Gain(msgspec.Struct, frozen=True, kw_only=True):
    """How many times as fast the changed runs are: the median of the pairs, and the 95 % interval."""

    median: float
    low: float
    high: float


class Told(msgspec.Struct, frozen=True, kw_only=True):
    """What the report said before: an interval of how many times as fast, or (`low` is None) a bound.

    `about`: `low` is with all else as it was, and no bound; `high` is None where nothing bounds it.
    """

    low: float | None
    high: float | None
    about: bool = False


class Untried(msgspec.Struct, frozen=True, kw_only=True):
    """A fix that is listed before the one that was tried; `where` are lines of the program."""

    fix: str
    text: str
    why: str
    where: str = ""


class Runs(msgspec.Struct, frozen=True, kw_only=True):
    """What each run took, in the order of the pairs: without the change, and with it."""

    before_ns: list[int] = []
    after_ns: list[int] = []


class Trial(msgspec.Struct, frozen=True, kw_only=True):
    """A fix that was tried. `fix` is the code of its rule, `fix_id` its name in the report.

    `command` makes the change, or `apply` says how to type it, in lines: where the loader is made, a diff.

    `measured` says of what the times are: `step`, `loop` (with all between steps) or `run` (the whole
    command). `kind` is what came of it; `proven` that it is faster beyond chance. `gain_unqueued` is
    of the same steps without all queueing for a CPU, where other programs ran: None where it was not needed.
    """

    schema_version: int = SCHEMA_VERSION
    path: str
    session: str
    argv: list[str]
    working_directory: str
    fix: str | None
    fix_id: str
    fix_text: str
    command: str = ""
    apply: list[str] = []
    settings: list[Setting] = []
    variables: list[Setting] = []
    in_workers: list[Setting] = []
    data: list[Data] = []
    bare: bool = False
    measured: str = STEP
    runs: Runs = Runs()
    gain: Gain | None = None
    gain_unqueued: Gain | None = None
    told: Told | None = None
    kind: str = UNCLEAR
    proven: bool = False
    text: str = ""
    why: str = ""
    untried: list[Untried] = []
    warnings: list[str] = []
    complete: bool = False


class StopError(Exception):
    """The trial ends here: why its change cannot be tried, or why no more is known of it."""

    def __init__(self, kind: str, why: str) -> None:
        super().__init__(why)
        self.kind = kind
