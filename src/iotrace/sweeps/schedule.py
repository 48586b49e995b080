"""A sweep under way: what is missing is run in order, and the state is kept after each run."""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import msgspec

from iotrace.analysis.rules.facts.sweep import OutcomeFacts
from iotrace.analysis.rules.model import find_all
from iotrace.errors import IotraceError, UsageError
from iotrace.session.masks import masked
from iotrace.sweeps import cache
from iotrace.sweeps.execute import Executor, Request, tail
from iotrace.sweeps.grid import WORKERS, named
from iotrace.sweeps.model import Look, Predictor, Seen, look
from iotrace.sweeps.plan import State, SweepPlan, create, load, save
from iotrace.sweeps.results import SCHEMA_VERSION, PointResult, SweepResult, SweepRun
from iotrace.sweeps.rows import choose_base, find_ceiling, rows
from iotrace.sweeps.verdict import advise, choose, make_verdict


class Sweep:
    """A sweep in `directory`, on a machine with `cores` CPU cores; `look` reads the session of a run."""

    def __init__(self, state: State, directory: Path, cores: int, look: Look = look) -> None:
        self.plan = state.plan
        self.directory = directory
        self.cores = cores
        self._state = state
        self._inference = any(run.inference for run in state.runs)
        self._files: list[str] = []
        self._look = look
        self._looked: dict[str, Seen | None] = {}  # by session: reading one takes a second

    @property
    def runs(self) -> list[SweepRun]:
        """The last run of each request so far, failed ones included."""
        return self._state.runs

    def requests(self) -> list[Request]:
        """All runs of the sweep, in their order."""
        return self.plan.requests(self.directory)

    def missing(self) -> list[Request]:
        """The runs that have no usable result yet, in their order."""
        return [request for request in self.requests() if not self.has(request)]

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
        for request in self.missing():
            self.run_one(request, executor, before, after)

    def run_one(
        self,
        request: Request,
        executor: Executor,
        before: Callable[[Request], None] = lambda _: None,
        after: Callable[[SweepRun], None] = lambda _: None,
    ) -> SweepRun:
        """Run one request, or return its result where there is one already; raises as `run` does."""
        if (kept := self._kept(request)) is not None:
            return kept
        self._files = self._files or self._data_files()
        before(request)
        run = self._run(executor, request, self._files)
        if run.status == "not applied" and run.inference and not self._inference:
            # Armed for loops that train, it let this one be: that is known now.
            after(run)
            self._inference = True
            before(request)
            run = self._run(executor, request, self._files)
        self._inference = self._inference or run.inference
        after(run)
        if run.kind != "point" or sum(other.kind == "point" for other in self.runs) == 1:
            self._stop_if_hopeless(run)
        return run

    def has(self, request: Request) -> bool:
        """Whether the result of a request is there already."""
        return self._kept(request) is not None

    def _kept(self, request: Request) -> SweepRun | None:
        return next((run for run in self.runs if run.ok and _key(run) == _key(request)), None)

    def _run(self, executor: Executor, request: Request, files: list[str]) -> SweepRun:
        """Run one request and keep the state."""
        prepared = self._prepare_cache(request, files)
        _keep_earlier(request.directory)
        asked = dataclasses.replace(request, inference=self._inference)
        run = msgspec.structs.replace(executor(asked), cache=prepared)
        self._state.runs = [old for old in self.runs if _key(old) != _key(run)] + [run]
        save(self._state, self.directory)
        return run

    def _stop_if_hopeless(self, run: SweepRun) -> None:
        """Stop after a first run without steps: no other point would have any.

        A ceiling may fail alone: of a loop over loaders the first point decides.
        """
        if any(other.ok for other in self.runs) or (run.kind == "ceiling" and run.loaders):
            return
        if run.status == "no steps":
            raise NoStepsError(run)
        if run.status == "not applied" and run.kind != "ceiling":
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
        state, problem = cache.prepare(cache.COLD if request.kind == "cold" else cache.WARM, files)
        if problem and problem not in self._state.warnings:
            self._state.warnings.append(problem)
        return state

    def _predictor(self) -> Predictor | None:
        """Read the batches that the points are predicted from; None without a run of them."""
        base = choose_base(self.runs)
        if base is None:
            return None
        if base.session not in self._looked:
            self._looked[base.session] = self._look(base)
        seen = self._looked[base.session]
        return None if seen is None else Predictor([seen])

    def result(self) -> SweepResult:
        """What is known so far."""
        points = rows(self.runs, self.plan.points, self.cores, self._predictor())
        ceiling = find_ceiling(self.runs)
        warnings = [each for facts in self._outcomes(points) for each in find_all("outcome", facts)]
        choice = choose(points, ceiling, self.plan.repeats)
        return SweepResult(
            schema_version=SCHEMA_VERSION,
            path=str(self.directory),
            argv=masked(self.plan.command),
            complete=not self.missing(),
            verdict=make_verdict(choice, points, ceiling, self.runs, self.plan),
            points=points,
            ceiling=ceiling,
            advice=advise(choice.point, points, ceiling, self.runs),
            warnings=[each.text for each in warnings],
            warning_codes=[each.rule for each in warnings],
        )

    def _outcomes(self, points: Sequence[PointResult]) -> Iterator[OutcomeFacts]:
        workers = [int(value) for value in self.plan.axes.get(WORKERS, [])]
        yield OutcomeFacts(workers=workers, cpus=self.cores)
        yield from (OutcomeFacts(cache_problem=problem) for problem in self._state.warnings)
        for run in self.runs:
            if run.kind == "ceiling" and not run.ok:
                yield OutcomeFacts(no_ceiling=True, failed=run.kind, status=run.status, reason=run.reason)
        yield OutcomeFacts(ended=[named(row.params) for row in points if row.ended])
        for row in points:
            if row.status == "ok":
                yield OutcomeFacts(point=named(row.params), unknown=row.reason)


class NoStepsError(IotraceError):
    """The command has no loop that iotrace sees, or one that is too short."""

    def __init__(self, run: SweepRun) -> None:
        super().__init__(
            f"the command gave no measured steps: {run.reason}", f"iotrace report {run.session}", tail(run)
        )


def open_sweep(
    plan: SweepPlan,
    directory: Path | None = None,
    resume: bool = False,
    cores: int | None = None,
    look: Look = look,
) -> Sweep:
    """Make a new sweep at `directory`, or open the one there to run what `plan` still misses.

    By default the directory is named by the time, and `cores` are those that this process may use.

    Raises:
        UsageError: there is something else at `directory`.
    """
    directory = directory or Path(time.strftime("iotrace-sweep-%Y%m%d-%H%M%S"))
    kept = (load if resume else create)(plan, directory)
    return Sweep(kept, directory.resolve(), cores or len(os.sched_getaffinity(0)), look)


def _key(run: SweepRun | Request) -> tuple[str, dict[str, str], int]:
    return run.kind, run.params, run.repeat


def _keep_earlier(directory: Path) -> None:
    """Rename the directory of an earlier, failed try of the same run."""
    if not directory.exists():
        return
    number = 1
    while (moved := directory.with_name(f"{directory.name}.old{number}")).exists():
        number += 1
    directory.rename(moved)
