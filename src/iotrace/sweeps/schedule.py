"""A sweep under way: what is missing is run in order, and the state is kept after each run."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from iotrace.errors import IotraceError, UsageError
from iotrace.sweeps import cache, state
from iotrace.sweeps.advice import advise
from iotrace.sweeps.execute import Executor, Request, tail
from iotrace.sweeps.grid import warnings_of
from iotrace.sweeps.plan import SweepPlan
from iotrace.sweeps.results import SCHEMA_VERSION, SweepResult, SweepRun
from iotrace.sweeps.rows import ceiling_of, rows
from iotrace.sweeps.state import SweepState


class Sweep:
    """A sweep in `directory`, on a machine with `cores` CPU cores."""

    def __init__(self, state: SweepState, directory: Path, cores: int) -> None:
        self.plan = state.plan
        self.directory = directory
        self.cores = cores
        self._state = state

    @property
    def runs(self) -> list[SweepRun]:
        """The last run of each request so far, failed ones included."""
        return self._state.runs

    def requests(self) -> list[Request]:
        """All runs of the sweep, in their order."""
        return self.plan.requests(self.directory)

    def missing(self) -> list[Request]:
        """The runs that have no usable result yet, in their order."""
        done = [_key(run) for run in self.runs if run.ok]
        return [request for request in self.requests() if _key(request) not in done]

    def run(
        self,
        executor: Executor,
        before: Callable[[Request], None] = lambda _: None,
        after: Callable[[SweepRun], None] = lambda _: None,
    ) -> None:
        """Run what is missing and keep the state after each run. KeyboardInterrupt passes.

        `before` is called with each request, `after` with its result.

        Raises:
            NoStepsError: the first run gave no measured steps.
            UsageError: the first run did not take the number of workers.
        """
        files: list[str] = []
        for request in self.missing():
            before(request)
            files = files or self._data_files()
            prepared = self._prepare_cache(request, files)
            _keep_earlier(request.directory)
            run = msgspec.structs.replace(executor(request), cache=prepared)
            self._state.runs = [old for old in self.runs if _key(old) != _key(run)] + [run]
            state.save(self._state, self.directory)
            after(run)
            if len(self.runs) == 1 or request.kind in ("ceiling", "scout"):
                self._stop_if_hopeless(run)

    def _stop_if_hopeless(self, run: SweepRun) -> None:
        """Stop after a first run without steps: no other point would have any."""
        if any(other.ok for other in self.runs):
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
        """Bring the page cache to what the run wants; returns the state it is in (see `cache`)."""
        if self.plan.cache == "asis" or request.kind in ("scout", "ceiling"):
            return cache.AS_IS
        found, problem = cache.prepare(cache.COLD if request.kind == "cold" else cache.WARM, files)
        if problem and problem not in self._state.warnings:
            self._state.warnings.append(problem)
        return found

    def result(self) -> SweepResult:
        """What is known so far."""
        found = rows(self.runs, self.plan.points, self.cores)
        ceiling = ceiling_of(self.runs)
        warnings = [*warnings_of(self.plan.axes, self.cores), *self._state.warnings]
        for row in found:
            if row.noisy:
                warnings.append(f"{_name(row.params)}: noisy; use more --repeat, or a quieter machine")
            if row.ended:
                warnings.append(
                    f"{_name(row.params)}: iotrace ended the program, which went on without batches"
                )
            if row.status == "ok" and row.reason:
                warnings.append(f"{_name(row.params)}: {row.reason}")
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

    def __init__(self, run: SweepRun) -> None:
        last = tail(run)
        super().__init__(
            f"the command gave no measured steps: {run.reason}"
            + (f"\nits last output:\n{last}" if last else ""),
            f"iotrace report {run.session}",
        )


def open_sweep(
    plan: SweepPlan, directory: Path | None = None, resume: bool = False, cores: int | None = None
) -> Sweep:
    """Make a new sweep at `directory`, or open the one there to run what `plan` still misses.

    By default the directory is named by the time, and `cores` are those that this process may use.

    Raises:
        UsageError: there is something else at `directory`.
    """
    directory = directory or Path(time.strftime("iotrace-sweep-%Y%m%d-%H%M%S"))
    kept = (state.load if resume else state.create)(plan, directory)
    return Sweep(kept, directory.resolve(), cores or len(os.sched_getaffinity(0)))


def _key(run: SweepRun | Request) -> tuple[str, dict[str, str], int]:
    return run.kind, run.params, run.repeat


def _name(params: dict[str, str]) -> str:
    return " ".join(f"{key}={value}" for key, value in params.items())


def _keep_earlier(directory: Path) -> None:
    """Rename the directory of an earlier, failed try of the same run."""
    if not directory.exists():
        return
    number = 1
    while (moved := directory.with_name(f"{directory.name}.old{number}")).exists():
        number += 1
    directory.rename(moved)
