"""The order of a sweep's runs, and what is kept after each: a sweep that was interrupted is resumed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from iotrace.errors import IotraceError
from iotrace.session.manifest import write_atomically
from iotrace.sweeps import cache
from iotrace.sweeps.advice import advise
from iotrace.sweeps.execute import Executor, Request, tail
from iotrace.sweeps.grid import PREFETCH, UsageError, check_placeholders, points, warnings_of
from iotrace.sweeps.results import SCHEMA_VERSION, Run, SweepResult
from iotrace.sweeps.rows import ceiling_of, rows

STATE = "sweep.json"
_REPLAYED = 4  # batches kept in memory for the ceiling


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What was asked: kept with the runs, so that a sweep is resumed as it was begun."""

    command: list[str]
    axes: dict[str, list[str]]
    repeats: int
    steps: int | None
    cache: str
    ceiling: bool
    options: list[str] = []

    @property
    def points(self) -> list[dict[str, str]]:
        """The grid's points in order."""
        return points(self.axes)


def plan_of(
    command: list[str],
    axes: dict[str, list[str]],
    *,
    repeat: int,
    steps: int | None,
    cache: str,
    ceiling: bool,
    io: list[str],
) -> Plan:
    """The plan of what was asked; UsageError where that is none."""
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
    return Plan(
        command=command,
        axes=axes,
        repeats=repeat,
        steps=steps,
        cache=cache,
        ceiling=ceiling,
        options=[word for path in io for word in ("--io", path)],
    )


class _State(msgspec.Struct, kw_only=True):
    format: int
    plan: Plan
    runs: list[Run]
    warnings: list[str]


@dataclass
class Sweep:
    """A sweep under way. `progress` is called before each run (with it) and after it (with its result)."""

    plan: Plan
    directory: Path
    cores: int
    runs: list[Run] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    def requests(self) -> list[Request]:
        """All runs in their order: repeats interleaved, so that a slow hour slows every point."""
        found = []
        if self.plan.cache != "asis":
            found.append(self._request("scout", self.plan.points[0], 0))
        if self.plan.ceiling:
            found.append(self._request("ceiling", self.plan.points[0], 0))
        for repeat in range(self.plan.repeats):
            for params in self.plan.points:
                if self.plan.cache == "cold":
                    found.append(self._request("cold", params, repeat))
                found.append(self._request("point", params, repeat))
        return found

    def _request(self, kind: str, params: dict[str, str], repeat: int) -> Request:
        name = "_".join(f"{key}={value}" for key, value in params.items())
        safe = "".join(c if c.isalnum() or c in "._=-" else "-" for c in f"{kind}_{name}_{repeat}")
        return Request(
            command=self.plan.command,
            params=params,
            kind=kind,
            repeat=repeat,
            directory=self.directory / "runs" / safe,
            steps=self.plan.steps,
            replay=_REPLAYED if kind == "ceiling" else None,
            options=tuple(self.plan.options),
        )

    def missing(self) -> list[Request]:
        """The runs that have no usable result yet."""
        done = {_key(run) for run in self.runs if run.ok}
        return [
            request
            for request in self.requests()
            if (request.kind, tuple(request.params.items()), request.repeat) not in done
        ]

    def run(
        self,
        executor: Executor,
        before: Callable[[Request], None] = lambda _: None,
        after: Callable[[Run], None] = lambda _: None,
    ) -> None:
        """Run what is missing, keeping the table after each run. KeyboardInterrupt passes."""
        files: list[str] = []
        for request in self.missing():
            before(request)
            files = files or self._data_files()
            note = self._prepare_cache(request, files)
            _make_room(request.directory)
            run = executor(request)
            run = msgspec.structs.replace(run, cache=note)
            self.runs = [old for old in self.runs if _key(old) != _key(run)] + [run]
            self.keep()
            after(run)
            if len(self.runs) == 1 or request.kind in ("ceiling", "scout"):
                self._stop_if_hopeless(run)

    def _stop_if_hopeless(self, run: Run) -> None:
        """The first run tells whether the others can: a command without steps has none at any point."""
        if run.ok or len([other for other in self.runs if other.ok]):
            return
        if run.status == "no steps":
            raise NoStepsError(run)
        if run.status == "not applied":
            raise UsageError(
                f"num_workers could not be set: {run.reason}",
                "for example -- python train.py --num-workers {workers}",
            )

    def _data_files(self) -> list[str]:
        if self.plan.cache == "asis":
            return []
        session = next((Path(run.session) for run in self.runs if run.ok and run.kind != "ceiling"), None)
        return cache.data_files(session) if session is not None else []

    def _prepare_cache(self, request: Request, files: list[str]) -> str:
        """Bring the page cache to what the run wants; returns how far that worked."""
        if self.plan.cache == "asis" or request.kind in ("scout", "ceiling"):
            return "asis"
        if request.kind == "cold":
            left = cache.drop(files)
            if not left:
                return "cold"
                self._warn(f"{len(left)} of {len(files)} data files stay in the page cache: {left[0]}")
            return "cannot be cold"
        missing = cache.fill(files)
        if not missing:
            return "warm"
        self._warn(
            f"{len(missing)} of {len(files)} data files do not fit the page cache, such as {missing[0]}"
        )
        return "cannot be warm"

    def _warn(self, message: str) -> None:
        if message not in self.warnings:
            self.warnings.append(message)

    def keep(self) -> None:
        """Write the state and the table, so that nothing of a sweep that ends here is lost."""
        state = _State(format=1, plan=self.plan, runs=self.runs, warnings=self.warnings)
        write_atomically(self.directory / STATE, msgspec.json.format(msgspec.json.encode(state), indent=2))

    def result(self) -> SweepResult:
        """What is known so far."""
        found = rows(self.runs, self.plan.points, self.cores)
        ceiling = ceiling_of(self.runs)
        warnings = [*warnings_of(self.plan.axes, self.cores), *self.warnings]
        for row in found:
            if row.noisy:
                warnings.append(f"{_name(row.params)}: noisy; more --repeat, or a quieter machine")
            if row.ended:
                warnings.append(f"{_name(row.params)}: the program went on without batches and was ended")
        return SweepResult(
            schema_version=SCHEMA_VERSION,
            path=str(self.directory),
            argv=self.plan.command,
            complete=not self.missing(),
            points=found,
            ceiling=ceiling,
            advice=advise(found, ceiling, self.runs),
            warnings=warnings,
        )


class NoStepsError(IotraceError):
    """The command trains with no DataLoader that iotrace sees, or not long enough."""

    def __init__(self, run: Run) -> None:
        last = tail(run)
        super().__init__(
            f"the command gave no measured steps: {run.reason}"
            + (f"\nits last output:\n{last}" if last else ""),
            f"iotrace report {run.session}",
        )


def begin(plan: Plan, directory: Path, cores: int) -> Sweep:
    """A new sweep at `directory`; UsageError where something is there."""
    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        what = "holds a sweep" if (directory / STATE).exists() else "exists and is no sweep"
        raise UsageError(
            f"{directory} {what}", "choose another directory with -o DIR, or go on with --resume"
        )
    try:
        directory.mkdir(parents=True, exist_ok=True)
        sweep = Sweep(plan, directory.resolve(), cores)
        sweep.keep()
    except OSError as error:
        raise UsageError(
            f"cannot write to {directory}: {error.strerror}", "choose another with -o DIR"
        ) from error
    return sweep


def resume(plan: Plan, directory: Path, cores: int) -> Sweep:
    """The sweep at `directory`, to run what `plan` still misses; UsageError where it is another sweep."""
    try:
        state = msgspec.json.decode((directory / STATE).read_bytes(), type=_State)
    except OSError as error:
        raise UsageError(
            f"{directory} holds no sweep to resume", "leave --resume away to begin one"
        ) from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise UsageError(
            f"{directory / STATE} is damaged: {error}", "begin anew with another -o DIR"
        ) from error
    for what in ("command", "steps", "cache"):
        before, now = getattr(state.plan, what), getattr(plan, what)
        if before != now:
            raise UsageError(
                f"{directory} is a sweep with another {what}: {before!r}, not {now!r}",
                "give the same command, --steps and --cache, or another -o DIR",
            )
    return Sweep(plan, directory.resolve(), cores, state.runs, state.warnings)


def _key(run: Run) -> tuple[str, tuple[tuple[str, str], ...], int]:
    return run.kind, tuple(run.params.items()), run.repeat


def _name(params: dict[str, str]) -> str:
    return " ".join(f"{key}={value}" for key, value in params.items())


def _make_room(directory: Path) -> None:
    """An earlier, failed try of the same run is kept under another name."""
    if not directory.exists():
        return
    number = 1
    while (moved := directory.with_name(f"{directory.name}.old{number}")).exists():
        number += 1
    directory.rename(moved)
