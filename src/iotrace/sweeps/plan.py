"""What a sweep runs: the grid, and the order of the runs; what it and a search keep in their directory."""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeVar

import msgspec

from iotrace.errors import UsageError
from iotrace.session import names
from iotrace.session.manifest import read_document, write_atomically, write_document
from iotrace.session.masks import masked
from iotrace.sweeps.execute import Request
from iotrace.sweeps.grid import PREFETCH, check_placeholders, points
from iotrace.sweeps.results import SweepResult, SweepRun
from iotrace.sweeps.tune.results import TuneResult


class SweepPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What the user asked for. It is kept with the runs, so that a sweep is resumed as it was begun."""

    command: list[str]
    axes: dict[str, list[str]]
    repeats: int
    steps: int | None
    cache: str
    ceiling: bool
    options: list[str] = []

    @property
    def points(self) -> list[dict[str, str]]:
        """The grid's points, in order."""
        return points(self.axes)

    def requests(self, directory: Path) -> list[Request]:
        """List all runs below `directory`, in their order.

        Repeats are interleaved, so that a slow hour slows every point alike.
        """
        requests = []
        if self.cache != "asis":
            requests.append(self.request(directory, "scout", self.points[0], 0))
        if self.ceiling:
            requests.append(self.request(directory, "ceiling", self.points[0], 0))
        for repeat in range(self.repeats):
            for params in self.points:
                if self.cache == "cold":
                    requests.append(self.request(directory, "cold", params, repeat))
                requests.append(self.request(directory, "point", params, repeat))
        return requests

    def request(self, directory: Path, kind: str, params: dict[str, str], repeat: int) -> Request:
        """Make the request of one run."""
        name = "_".join(f"{key}={value}" for key, value in params.items())
        safe = "".join(c if c.isalnum() or c in "._=-" else "-" for c in f"{kind}_{name}_{repeat}")
        return Request(
            command=self.command,
            params=params,
            kind=kind,
            repeat=repeat,
            directory=directory / "runs" / safe,
            steps=self.steps,
            options=tuple(self.options),
        )


def make_plan(
    command: list[str],
    axes: dict[str, list[str]],
    *,
    repeat: int,
    steps: int | None,
    cache: str,
    ceiling: bool,
    io: list[str],
) -> SweepPlan:
    """Check what was asked and make it a plan.

    Raises:
        UsageError: it cannot be run.
    """
    example = "iotrace sweep --workers 1,4,7 -- python train.py"
    if not command:
        raise UsageError("no command was given", example)
    if not axes:
        raise UsageError("nothing to compare was given", example)
    if "0" in axes.get(PREFETCH, []):
        raise UsageError("--prefetch 0 is no prefetch factor", "give values from 1 up")
    if cache not in ("asis", "warm", "cold") or repeat < 1 or (steps is not None and steps < 2):
        raise UsageError("cache is asis, warm or cold; repeat from 1 up; steps from 2 up", example)
    check_placeholders(command, axes)
    return SweepPlan(
        command=command,
        axes=axes,
        repeats=repeat,
        steps=steps,
        cache=cache,
        ceiling=ceiling,
        options=[word for path in io for word in ("--io", path)],
    )


_FORMAT = 1


class State(msgspec.Struct, kw_only=True):
    """What is on disk: the plan, the runs so far, and the warnings that they gave."""

    format: int = _FORMAT
    plan: SweepPlan
    runs: list[SweepRun] = []
    warnings: list[str] = []


def save(state: State, directory: Path) -> None:
    """Write `state` into `directory`: it is replaced whole or not at all."""
    stored = msgspec.structs.replace(state, plan=_stored(state.plan))
    write_atomically(
        directory / names.SWEEP_STATE, msgspec.json.format(msgspec.json.encode(stored), indent=2)
    )


def _stored(plan: SweepPlan) -> SweepPlan:
    """Return `plan` without secrets on its command line: who resumes gives the command again."""
    return msgspec.structs.replace(plan, command=masked(plan.command))


def create(plan: SweepPlan, directory: Path) -> State:
    """Make the directory of a new sweep.

    Raises:
        UsageError: something is there already, or it cannot be written.
    """
    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        what = (
            "holds runs already"
            if (directory / names.SWEEP_STATE).exists()
            else "exists and holds something else"
        )
        raise UsageError(
            f"{directory} {what}", "choose another directory with -o DIR, or continue with --resume"
        )
    state = State(plan=plan)
    try:
        directory.parent.mkdir(parents=True, exist_ok=True)
        directory.mkdir(names.DIRECTORY_MODE, exist_ok=True)
        save(state, directory)
    except OSError as error:
        raise UsageError(
            f"cannot write to {directory}: {error.strerror}", "choose another with -o DIR"
        ) from error
    return state


def kept_steps(directory: Path) -> int | None:
    """Read with how many steps a run the sweep or the search in `directory` was begun; None without one."""
    state = read_document(directory / names.SWEEP_STATE, State)  # who opens it says why there is none
    return None if state is None else state.plan.steps


def load(plan: SweepPlan, directory: Path) -> State:
    """Read the sweep at `directory`; the state has `plan`, which may have more points or repeats.

    Raises:
        UsageError: there is no sweep, it is damaged, or it has another command, --steps or --cache.
    """
    try:
        state = msgspec.json.decode((directory / names.SWEEP_STATE).read_bytes(), type=State)
    except OSError as error:
        raise UsageError(f"{directory} holds no runs to resume", "omit --resume to begin one") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        remedy = "begin anew with another -o DIR"
        raise UsageError(f"{directory / names.SWEEP_STATE} is damaged", remedy) from error
    for what in ("command", "steps", "cache"):
        before, now = getattr(_stored(state.plan), what), getattr(_stored(plan), what)
        if before != now:
            raise UsageError(
                f"{directory} has runs of another {what}: {before!r}, not {now!r}",
                "give the same command and options, or another -o DIR",
            )
    runs = [_found_at(run, directory.resolve()) for run in state.runs]
    return State(plan=plan, runs=runs, warnings=state.warnings)


def _found_at(run: SweepRun, directory: Path) -> SweepRun:
    """Return `run` with its session below `directory`: the sweep may have been moved, or copied."""
    before = Path(run.session)
    moved = directory / before.parent.parent.name / before.parent.name / before.name
    return msgspec.structs.replace(run, session=str(moved)) if moved != before and moved.is_dir() else run


def keep(result: SweepResult | TuneResult) -> None:
    """Write `result` into its directory."""
    name = names.SWEEP_RESULT if isinstance(result, SweepResult) else names.TUNE_RESULT
    write_document(Path(result.path) / name, result)


def kept(directory: Path) -> SweepResult | TuneResult | None:
    """Read the result in `directory`; None where no sweep and no search ended there."""
    result = read_document(directory / names.SWEEP_RESULT, SweepResult)
    if result is not None:
        return _moved(result, directory)
    search = read_document(directory / names.TUNE_RESULT, TuneResult)
    return None if search is None else _moved(search, directory)


_Result = TypeVar("_Result", SweepResult, TuneResult)


def _moved(result: _Result, directory: Path) -> _Result:
    """Return `result` with the paths of its sessions below `directory`: it may have been moved, or copied."""
    before, after = result.path, str(directory.resolve())
    if Path(before).resolve() == directory.resolve():
        return result

    def renamed(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: renamed(own) for name, own in value.items()}
        if isinstance(value, list):
            return [renamed(own) for own in value]
        if isinstance(value, str) and (value == before or value.startswith(f"{before}/")):
            return after + value[len(before) :]
        return value

    return msgspec.convert(renamed(msgspec.to_builtins(result)), type(result))
