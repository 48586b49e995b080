"""A sweep's state on disk: written after each run, read by ``--resume``."""

from __future__ import annotations

from pathlib import Path

import msgspec

from iotrace.errors import UsageError
from iotrace.session.manifest import write_atomically
from iotrace.sweeps.plan import SweepPlan
from iotrace.sweeps.results import SweepRun

STATE = "sweep.json"
_FORMAT = 1


class SweepState(msgspec.Struct, kw_only=True):
    """The plan, the runs so far, and the warnings that they gave."""

    format: int = _FORMAT
    plan: SweepPlan
    runs: list[SweepRun] = []
    warnings: list[str] = []


def save(state: SweepState, directory: Path) -> None:
    """Write `state` into `directory`: it is replaced whole or not at all."""
    write_atomically(directory / STATE, msgspec.json.format(msgspec.json.encode(state), indent=2))


def create(plan: SweepPlan, directory: Path) -> SweepState:
    """Make the directory of a new sweep.

    Raises:
        UsageError: something is there already, or it cannot be written.
    """
    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        what = "holds a sweep" if (directory / STATE).exists() else "exists and is no sweep"
        raise UsageError(
            f"{directory} {what}", "choose another directory with -o DIR, or continue with --resume"
        )
    state = SweepState(plan=plan)
    try:
        directory.mkdir(parents=True, exist_ok=True)
        save(state, directory)
    except OSError as error:
        raise UsageError(
            f"cannot write to {directory}: {error.strerror}", "choose another with -o DIR"
        ) from error
    return state


def load(plan: SweepPlan, directory: Path) -> SweepState:
    """Read the sweep at `directory`; the state has `plan`, which may have more points or repeats.

    Raises:
        UsageError: there is no sweep, it is damaged, or it has another command, --steps or --cache.
    """
    try:
        state = msgspec.json.decode((directory / STATE).read_bytes(), type=SweepState)
    except OSError as error:
        raise UsageError(f"{directory} holds no sweep to resume", "omit --resume to begin one") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise UsageError(
            f"{directory / STATE} is damaged: {error}", "begin a new sweep with another -o DIR"
        ) from error
    for what in ("command", "steps", "cache"):
        before, now = getattr(state.plan, what), getattr(plan, what)
        if before != now:
            raise UsageError(
                f"{directory} is a sweep with another {what}: {before!r}, not {now!r}",
                "give the same command, --steps and --cache, or another -o DIR",
            )
    return SweepState(plan=plan, runs=state.runs, warnings=state.warnings)
