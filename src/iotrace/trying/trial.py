"""A trial under way: copies, then runs without and with the change in turns, until they prove something."""

from __future__ import annotations

import dataclasses
import math
import os
import shlex
import shutil
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
from msgspec.structs import replace

from iotrace.analysis.rank import SessionAnalysis
from iotrace.analysis.report import analyse
from iotrace.analysis.results import Report
from iotrace.errors import IotraceError, UsageError
from iotrace.session.manifest import write_document
from iotrace.session.masks import masked
from iotrace.sources.session import open_session
from iotrace.sweeps.apply import changes
from iotrace.sweeps.execute import Executor, execute, tail
from iotrace.sweeps.grid import LOADER_ARGUMENTS, WORKERS
from iotrace.sweeps.intervals import pairs_of
from iotrace.sweeps.plan import SweepPlan
from iotrace.sweeps.results import SweepRun
from iotrace.sweeps.schedule import Sweep, open_sweep
from iotrace.sweeps.tune.candidates import Budget
from iotrace.trying import copies
from iotrace.trying.fixes import Choice, choose, told_of
from iotrace.trying.program import Program, offline, program_of
from iotrace.trying.proof import FEWEST_PAIRS, Found, judge, looks, times_of
from iotrace.trying.results import FAILED, PROVEN, RESULT, RUN, STEP, UNCLEAR, Data, Runs, Setting, Trial
from iotrace.trying.serving import given, variables, write_table
from iotrace.trying.states import Pages
from iotrace.trying.words import text_of
from iotrace.units import counted, time_span

RUNS, STEPS = 10, 100
_LONGEST_S = 7200.0  # of a trial that was given no budget
_TABLE = "served"
_LONGEST = 120  # of a program's last line
_RECORDER = Path(__file__).parents[1] / "_posix_recorder.so"
Tell = Callable[[str], None]


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """What the user asked for. `steps` None: by what is measured."""

    runs: int = RUNS
    minutes: float | None = None
    steps: int | None = None
    bare: bool = False
    as_it_is: bool = False
    directory: Path | None = None


class StopError(Exception):
    """The trial ends here: why its change cannot be tried, or why no more is known of it."""

    def __init__(self, kind: str, why: str) -> None:
        super().__init__(why)
        self.kind = kind


def open_trial(session: Path, wanted: Sequence[str], command: Sequence[str], options: Options) -> Trying:
    """Prepare the trial of a session's fixes; nothing is run or written yet.

    Raises:
        UsageError: it cannot be run as asked.
        IotraceError: the session has no fix that can be tried, or cannot be read.
    """
    opened = open_session(session)
    analysis = SessionAnalysis(opened)
    report = analyse(analysis)
    sites = [rank.source.description.site for rank in analysis.ranks if rank.source is not None]
    choice = choose(report, wanted, next(filter(None, sites), ""))
    jobs = {
        job.source: job
        for change in choice.stored
        for job in copies.jobs_of(change, report, opened.paths.absolute)
    }
    program = program_of(opened, report, command)
    return Trying(session, report, choice, program, list(jobs.values()), options)


class Trying:
    """A trial; `executor` runs a request.

    Raises:
        UsageError: it cannot be run as asked.
    """

    def __init__(
        self,
        session: Path,
        report: Report,
        choice: Choice,
        program: Program,
        jobs: Sequence[copies.Job],
        options: Options,
        executor: Executor = execute,
        recorder: Path = _RECORDER,
    ) -> None:
        self.session, self.report, self.choice, self.program = session, report, choice, program
        self.options, self._jobs = options, list(jobs)
        self._executor, self._recorder = executor, recorder
        self.measured = RUN if options.bare else choice.measured
        self.steps = options.steps or (STEPS if self.measured == STEP else None)
        self._check()
        self._pages = Pages(report)
        self.data: list[Data] = []
        self.warnings: list[str] = []
        self._place: Path | None = None
        self._sweep: Sweep | None = None
        self._until = math.inf

    def _check(self) -> None:
        options = self.options
        if options.bare and self.choice.change.settings:
            names = ", ".join(self.choice.change.settings)
            raise UsageError(f"--bare: the agent sets {names}, and is in no bare run", "leave --bare out")
        if options.bare and options.steps:
            raise UsageError("--bare: nobody ends an untraced run after --steps", "leave one of both out")
        if options.runs < 2 * FEWEST_PAIRS:
            raise UsageError(f"--runs {options.runs} prove nothing", f"give {2 * FEWEST_PAIRS} or more")
        if self._jobs and not self._recorder.exists():
            raise UsageError("the recorder, which gives the program the copy, was not compiled here")

    @property
    def intent(self) -> list[str]:
        """What is tried, and what that does to the user's files: said before anything runs."""
        program, most = self.program, self.options.runs
        found = [f"tries: {'; '.join(fix.text for fix in self.choice.fixes)}"]
        if self._jobs:
            copied = [os.path.relpath(job.source, program.working_directory) for job in self._jobs]
            what = copied[0] if len(copied) == 1 else counted(len(copied), "file")
            found.append(f"copies {what}, by {program.python}; the original stays as it is")
        took = f", recorded in {time_span(program.seconds)}" if program.seconds else ""
        ended = f", each ended after {self.steps} steps" if self.steps else ""
        line = shlex.join(masked(program.command))
        times = (
            f"{2 * FEWEST_PAIRS} times"
            if most < 2 * FEWEST_PAIRS + 2
            else f"{2 * FEWEST_PAIRS} to {most} times"
        )
        found.append(f"runs {times}{took}{ended}: {line}")
        if program.wrote is None:
            return [*found, "what a run writes is not known: the session recorded no calls"]
        if not program.wrote:
            return [*found, "the recorded run wrote no file that is still there"]
        more = f" and {len(program.wrote) - 3} more" if len(program.wrote) > 3 else ""
        return [*found, f"each run writes what the recorded one wrote: {', '.join(program.wrote[:3])}{more}"]

    def run(self, tell: Tell, progress: Callable[[float], None] = lambda _: None) -> Trial:
        """Copy, run and judge. KeyboardInterrupt passes: the runs so far are kept, copies are not.

        Raises:
            IotraceError: the program as it is fails, or there is no room; nothing is left behind.
        """
        directory = self.options.directory or Path(time.strftime("iotrace-try-%Y%m%d-%H%M%S"))
        was_there = directory.exists()
        sweep = self._sweep = open_sweep(self._plan(), directory)
        try:
            self._copy(sweep.directory, tell, progress)
            found = self._prove(sweep, tell)
        except KeyboardInterrupt:
            self._remove_copies()
            keep(self.result(Found(), "interrupted"))
            raise
        except IotraceError:
            self._remove_copies()
            if not was_there:
                shutil.rmtree(sweep.directory, ignore_errors=True)
            raise
        if found.kind != PROVEN:
            self._remove_copies()
        keep(found)
        return found

    def _plan(self) -> SweepPlan:
        only = [word for path in self.program.only for word in ("--io", path)]
        return SweepPlan(
            command=self.program.command,
            axes={},
            repeats=1,
            steps=None if self.options.bare else self.steps,
            cache="asis",
            ceiling=False,
            options=only,
        )

    def _copy(self, directory: Path, tell: Tell, progress: Callable[[float], None]) -> None:
        if not self._jobs:
            return
        self._place = copies.place_for(self._jobs, directory)
        jobs = copies.with_targets(self._jobs, self._place)
        started = time.monotonic()
        self.data = copies.write_copies(jobs, self.program.python, progress)
        what = self.data[0].path if len(self.data) == 1 else counted(len(self.data), "file")
        took = time_span(time.monotonic() - started)
        tell(f"copied {what} in {took}: equal values, in {self._place}")
        if any(job.format == copies.IMAGE for job in jobs):
            text = (
                "images were tried decoded, at their own size: at the size that training takes they cost less"
            )
            self.warnings.append(text)
        if len(self.data) < len(jobs):
            left = counted(len(jobs) - len(self.data), "file")
            self.warnings.append(f"{left} could not be stored so, and are read as they are")

    def _remove_copies(self) -> None:
        copies.remove([each.new_path for each in self.data])
        if self._place is not None:
            shutil.rmtree(self._place, ignore_errors=True)

    def _prove(self, sweep: Sweep, tell: Tell) -> Trial:
        """Run pairs until they show something, or there is no room for another one."""
        minutes = self.options.minutes
        budget_s = _LONGEST_S if minutes is None else 60 * minutes
        self._until = time.monotonic() + budget_s
        budget = Budget(budget_s, time.monotonic)
        budget.begin([])
        most = self.options.runs // 2
        looked, found, why = looks(most), Found(), ""
        try:
            for repeat in range(1, most + 1):
                if not budget.has_room(2):
                    why = f"{time_span(budget_s)} are not enough for more: --minutes allows it"
                    break
                pair = [self._one(sweep, params, repeat, tell, budget) for params in ({}, self.choice.params)]
                self._check_pair(pair, sweep)
                if repeat in looked:
                    found = judge(times_of(sweep.runs, self.measured), self.choice.params)
                    if found.is_final:
                        break
        except StopError as stop:
            return self.result(replace(found, kind=stop.kind), str(stop), complete=stop.kind == FAILED)
        if found.gain is None:
            why = f"{counted(len(self._pairs()), 'pair')} of runs: {FEWEST_PAIRS} are the least; {why}"
        elif found.kind == UNCLEAR:
            why = why or f"{len(sweep.runs)} runs do not tell it from chance: --runs gives it more"
        return self.result(found, why, complete=True)

    def _one(self, sweep: Sweep, params: dict[str, str], repeat: int, tell: Tell, budget: Budget) -> SweepRun:
        """Run the program once, without the change or with it."""
        changed, table = bool(params), sweep.directory / _TABLE
        replaced = self.data if changed else []
        asked = dict(self.choice.change.variables) if changed else {}
        if not self.options.as_it_is:
            asked = {**offline(sweep.directory), **asked}
        if replaced:
            self._check_originals()
            write_table(table, replaced)
        if self.data:
            recorder = self._recorder if self.options.bare else None
            served = variables(table, recorder)
            asked |= served if changed else {k: v for k, v in served.items() if k == "LD_PRELOAD"}
        self._pages.prepare([each.new_path if changed else each.path for each in self.data])
        request = dataclasses.replace(
            sweep.plan.request(sweep.directory, "point", params, repeat),
            variables=tuple(asked.items()),
            working_directory=self.program.working_directory,
            bare=self.options.bare,
            most_s=max(1.0, self._until - time.monotonic()),
        )
        started = time.monotonic()
        run = sweep.run_one(request, self._executor)
        budget.add(time.monotonic() - started)
        tell(f"{'with the fix' if changed else 'as it is    '}  {self._said(run)}")
        if replaced and run.ok:
            self._note_given(table)
        return run

    def _said(self, run: SweepRun) -> str:
        if not run.ok:
            return f"{run.status}: {run.reason}"
        (timed,) = times_of([run], self.measured)
        if self.measured == RUN or not timed.step_ms:
            return f"{run.seconds:.1f} s"
        return f"{timed.step_ms:.1f} ms a step, {run.seconds:.1f} s in all"

    def _check_originals(self) -> None:
        for each in self.data:
            if not os.path.isdir(each.path) and _changed_ns(each.path) != _changed_ns(each.new_path):
                raise StopError(FAILED, f"{each.path} was changed during the trial")

    def _note_given(self, table: Path) -> None:
        """Note how often each copy was opened; stop where none was, or where the program writes to data."""
        opens, written = given(table, self.data)
        if written:
            raise StopError(FAILED, f"the program writes to {written[0]}, so no copy can stand for it")
        if not any(opens.values()):
            what = self.data[0].path if len(self.data) == 1 else "any of the files"
            raise StopError(FAILED, f"the program did not open {what} by a call that iotrace can redirect")
        self.data = [
            replace(each, opens=opens[each.path] if each.opens is None else min(each.opens, opens[each.path]))
            for each in self.data
        ]

    def _check_pair(self, pair: Sequence[SweepRun], sweep: Sweep) -> None:
        """Stop where a run failed, or where the two did not do the same work."""
        own, other = pair
        first = len(sweep.runs) <= 2
        if not own.ok:
            what = f"the program fails as it is: {own.reason or own.status}"
            if first:
                raise IotraceError(what, "run it by itself first; it gets no terminal here", tail(own))
            raise StopError(UNCLEAR, what)
        if not other.ok:
            said = [line.strip() for line in tail(other).split("\n") if line.strip()]
            last = f": {said[-1][:_LONGEST]}" if said and other.status == "failed" else ""
            how = "fails with it" if other.status == "failed" else "does not take it"
            raise StopError(FAILED, f"the program {how}: {other.reason or other.status}{last}")
        if (lengths := self._other_lengths([*sweep.runs[:1], own, other])) is not None:
            least, most = lengths
            raise StopError(FAILED, f"the runs did not do the same work: {least} and {most} batches")

    def _other_lengths(self, runs: Sequence[SweepRun]) -> tuple[int, int] | None:
        """The fewest and most batches where runs were of other lengths; one that is ended may be longer."""
        whole = [run.batches for run in runs if run.batches is not None and self._is_whole(run)]
        known = [run.batches for run in runs if run.batches is not None]
        if not whole or (min(whole) == max(whole) and max(known) <= min(whole)):
            return None
        return min(whole), max(known)

    def _is_whole(self, run: SweepRun) -> bool:
        """Whether a run came to its own end: one that --steps ends has as many batches as that allows."""
        if run.batches is None:
            return False
        return self.steps is None or run.batches < self.steps + max(1, (run.workers or 0) - 1)

    def _pairs(self) -> list[tuple[float, float]]:
        runs = [] if self._sweep is None else times_of(self._sweep.runs, self.measured)
        return pairs_of(runs, self.choice.params)

    def result(self, found: Found, why: str, complete: bool = False) -> Trial:
        """Sum the trial up as far as it has run."""
        assert self._sweep is not None
        pairs, first = self._pairs(), self.choice.fixes[0]
        disturbed = sum(run.disturbed for run in self._sweep.runs)
        if disturbed:
            text = (
                f"other programs took CPUs in {disturbed} of {len(self._sweep.runs)} runs: a pair shares them"
            )
            self.warnings = [*self.warnings, text]
        trial = Trial(
            path=str(self._sweep.directory),
            session=str(self.session),
            argv=masked(self.program.command),
            working_directory=self.program.working_directory,
            fix=first.code,
            fix_id=first.id,
            fix_text="; ".join(fix.text for fix in self.choice.fixes),
            command=first.command,
            apply=self._typed(),
            settings=[
                Setting(parameter=name, before=self._before(name), after=value)
                for name, value in self.choice.change.settings.items()
            ],
            variables=[
                Setting(parameter=name, before=os.environ.get(name), after=value)
                for name, value in self.choice.change.variables.items()
            ],
            data=self.data,
            bare=self.options.bare,
            measured=self.measured,
            runs=Runs(
                before_ns=[round(own * 1e6) for own, _ in pairs],
                after_ns=[round(other * 1e6) for _, other in pairs],
            ),
            gain=found.gain,
            told=told_of(self.choice.fixes),
            kind=found.kind,
            proven=found.kind == PROVEN,
            why=why,
            untried=self.choice.untried,
            warnings=self.warnings,
            complete=complete,
        )
        return replace(trial, text=text_of(trial))

    def _typed(self) -> list[str]:
        """How to type settings and variables, as a search says it of its best."""
        assert self._sweep is not None
        origin = next((run.origin for run in self._sweep.runs if run.origin and not run.params), None)
        found = changes(self.choice.params, self.program.command, origin)
        return [
            *found,
            *(f"{name}={value} before the command" for name, value in self.choice.change.variables.items()),
        ]

    def _before(self, argument: str) -> str | None:
        """The program's own value of an argument of its loader."""
        rank = self.report.main_rank
        loader = None if rank is None else rank.primary
        by_argument = {name: knob for knob, name in LOADER_ARGUMENTS.items()}
        field = "workers" if by_argument[argument] == WORKERS else argument
        value = None if loader is None else getattr(loader, field)
        return None if value is None else str(value)


def _changed_ns(path: str) -> int:
    return os.stat(path).st_mtime_ns


def keep(trial: Trial) -> None:
    """Write the result into the trial's directory."""
    write_document(Path(trial.path) / RESULT, trial)
