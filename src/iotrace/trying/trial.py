"""A trial under way: copies, then runs without and with the change in turns, until they prove something.

Before each run data is brought into memory, or out of it: a copy has just been written, so its original has
to be as near.
"""

from __future__ import annotations

import dataclasses
import os
import shutil
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from msgspec.structs import replace

from iotrace.analysis.rank import SessionAnalysis
from iotrace.analysis.report import analyse
from iotrace.analysis.results import PARQUET, Report
from iotrace.errors import IotraceError, UsageError
from iotrace.patching.git import check, check_clean
from iotrace.patching.loader import MadeLoader, made_loader
from iotrace.patching.patch import Patch, patch_of_fix
from iotrace.session.manifest import write_document
from iotrace.session.masks import masked
from iotrace.sources.session import open_session
from iotrace.sweeps import cache
from iotrace.sweeps.ending import terminated_by_signals, undisturbed
from iotrace.sweeps.execute import Executor, execute
from iotrace.sweeps.plan import SweepPlan
from iotrace.sweeps.results import SweepRun
from iotrace.sweeps.schedule import Sweep, open_sweep
from iotrace.sweeps.tune.candidates import Budget
from iotrace.trying.copied import Copied
from iotrace.trying.copies import Job, list_jobs, put_in_place
from iotrace.trying.fixes import Choice, choose, describe_lines
from iotrace.trying.options import STEPS, Options
from iotrace.trying.patched import patch_of_trial
from iotrace.trying.program import Program, find_program, offline
from iotrace.trying.proof import (
    FEWEST_PAIRS,
    Judgement,
    check_pair,
    check_run,
    choose_step_time,
    judge,
    judge_unqueued,
    looks,
)
from iotrace.trying.results import FAILED, PROVEN, RESULT, RUN, STEP, UNCLEAR, StopError, Trial
from iotrace.trying.summary import describe_intent, summed_up
from iotrace.units import counted, time_span

_MOST_BYTES = 8 << 30  # of data: larger ones are left as they are
_FROM_STORAGE = 0.5  # of the bytes read, from which on data counts as not in memory


class Pages:
    """Brings data into memory before each run, or out of it where the recorded run read it from storage."""

    def __init__(self, report: Report) -> None:
        stored = [each.storage_read_bytes or 0 for rank in report.ranks for each in rank.system.processes]
        read = [file.read_bytes or 0 for rank in report.ranks for file in (rank.io.files if rank.io else ())]
        self.wanted = cache.COLD if sum(read) and sum(stored) >= _FROM_STORAGE * sum(read) else cache.WARM

    def prepare(self, paths: Sequence[str]) -> None:
        """Prepare the files, and those of stores."""
        files = [file for path in paths for file in _files(path)]
        if files and sum(map(os.path.getsize, files)) <= _MOST_BYTES:
            cache.prepare(self.wanted, files)


def _files(path: str) -> list[str]:
    if not os.path.isdir(path):
        return [path]
    return [os.path.join(root, name) for root, _, names in os.walk(path) for name in names]


_LONGEST_S = 7200.0  # of a trial that was given no budget
_SHORTEST_S = 1.0  # that a run is given
_RECORDER = Path(__file__).parents[1] / "_posix_recorder.so"
Tell = Callable[[str], None]


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
        for job in list_jobs(change, report, opened.paths.absolute)
    }
    program = find_program(opened, report, command)
    return Trying(session, report, choice, program, list(jobs.values()), options, made=made_loader(analysis))


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
        jobs: Sequence[Job],
        options: Options,
        executor: Executor = execute,
        recorder: Path = _RECORDER,
        made: MadeLoader | None = None,
    ) -> None:
        options.check(choice.change, any(each.stored == PARQUET for each in choice.stored))
        if jobs and not recorder.exists():
            raise UsageError("the recorder, which gives the program the copy, was not compiled here")
        self._session, self._report, self._choice, self._program = session, report, choice, program
        self._options, self._jobs, self._executor, self._recorder = options, list(jobs), executor, recorder
        self._made = made
        self._measured = RUN if options.bare else choice.measured
        self._steps = options.steps or (STEPS if self._measured == STEP else None)
        self._pages = Pages(report)

    @property
    def intent(self) -> list[str]:
        """What is tried, and what that does to the user's files: said before anything runs."""
        return describe_intent(self._choice, self._jobs, self._program, self._options.runs, self._steps)

    def check_apply(self) -> None:
        """Refuse before the first run what ``--apply`` would refuse after the last one.

        Raises:
            IotraceError: a git tree has changes that are not committed, or the program is in none.
        """
        for job in self._jobs:
            check_clean(Path(job.source))
        for fix in self._choice.fixes:
            if fix.change is not None and not fix.change.stored:
                patch = patch_of_fix(self._session, fix, self._made)
                if patch.diff is not None:
                    check(patch)

    def patch(self, trial: Trial) -> Patch:
        """Return the patch of what was proven; where the data stays in its place, of the copies too.

        Raises:
            SessionError: the session cannot be read.
        """
        in_cwd = Path(self._program.working_directory)
        kept_open = [str(in_cwd / path) for path in self._choice.change.kept_open]
        written = [os.path.realpath(in_cwd / path) for path in self._program.wrote or []]
        return patch_of_trial(self._session, trial, kept_open, written)

    def run(self, tell: Tell, progress: Callable[[float], None] = lambda _: None) -> Trial:
        """Copy, run and judge. KeyboardInterrupt passes: the runs so far are kept, copies are not.

        SIGTERM and SIGHUP become a KeyboardInterrupt, unless they have a handler.

        Raises:
            IotraceError: the program as it is fails, or there is no room; nothing is left behind.
        """
        directory = self._options.directory or Path(time.strftime("iotrace-try-%Y%m%d-%H%M%S"))
        was_there = directory.exists()
        sweep = open_sweep(self._plan(), directory)
        copied = Copied(self._jobs, sweep.directory, self._recorder if self._options.bare else None)
        try:
            with terminated_by_signals():
                if self._jobs:
                    tell(copied.write(self._program.python, progress))
                trial = self._prove(sweep, copied, tell)
        except BaseException as error:
            with undisturbed():
                copied.remove()
                if isinstance(error, IotraceError) and not was_there:
                    shutil.rmtree(sweep.directory, ignore_errors=True)
                elif not isinstance(error, IotraceError):
                    _keep(self._result(sweep, copied, Judgement(), "interrupted"))
            raise
        with undisturbed():
            if trial.kind != PROVEN:
                copied.remove()
            _keep(trial)
        return trial

    def _plan(self) -> SweepPlan:
        only = [word for path in self._program.only for word in ("--io", path)]
        return SweepPlan(
            command=self._program.command,
            axes={},
            repeats=1,
            steps=None if self._options.bare else self._steps,
            cache="asis",
            ceiling=False,
            options=only,
        )

    def _prove(self, sweep: Sweep, copied: Copied, tell: Tell) -> Trial:
        """Run pairs until they show something, or there is no room for another one."""
        minutes, most = self._options.minutes, self._options.runs // 2
        budget_s = _LONGEST_S if minutes is None else 60 * minutes
        until = time.monotonic() + budget_s
        budget = Budget(budget_s, time.monotonic)
        budget.begin([])
        looked, judged, why = looks(most), Judgement(), ""
        try:
            for repeat in range(1, most + 1):
                if not budget.has_room(2):
                    why = f"{time_span(budget_s)} are not enough for more: --minutes allows it"
                    break
                pair = []
                for params in ({}, self._choice.params):
                    started = time.monotonic()
                    most_s = max(_SHORTEST_S, until - started)
                    pair.append(self._one(sweep, copied, params, repeat, most_s))
                    budget.add(time.monotonic() - started)
                    tell(f"{'with the fix' if params else 'as it is    '}  {self._said(pair[-1])}")
                    check_run(pair[-1], is_first=len(sweep.runs) == 1, most_s=most_s)
                    if params:
                        copied.note_given()
                check_pair(pair, sweep.runs[0], self._steps)
                if repeat in looked:
                    judged = judge(choose_step_time(sweep.runs, self._measured), self._choice.params)
                    if judged.is_final:
                        break
        except StopError as stop:
            stopped = replace(judged, kind=stop.kind)
            return self._result(sweep, copied, stopped, str(stop), complete=stop.kind == FAILED)
        if self._measured == STEP and self._choice.is_of_data_alone:
            judged = judge_unqueued(sweep.runs, self._choice.params, judged)
        if judged.gain is None:
            pairs = counted(len(sweep.runs) // 2, "pair")
            why = f"{pairs} of runs: {FEWEST_PAIRS} are the least; {why}"
        elif judged.kind == UNCLEAR:
            why = why or f"{len(sweep.runs)} runs do not tell it from chance: --runs gives it more"
        return self._result(sweep, copied, judged, why, complete=True)

    def _one(
        self, sweep: Sweep, copied: Copied, params: dict[str, str], repeat: int, most_s: float
    ) -> SweepRun:
        """Run the program once, without the change or with it."""
        changed, asked = bool(params), {}
        if not self._options.as_it_is:
            asked = offline(sweep.directory)
        if changed:
            asked |= self._choice.change.variables
        asked |= copied.variables(changed)
        self._pages.prepare(copied.paths(changed))
        request = dataclasses.replace(
            sweep.plan.request(sweep.directory, "point", params, repeat),
            variables=tuple(asked.items()),
            working_directory=self._program.working_directory,
            bare=self._options.bare,
            most_s=most_s,
        )
        return sweep.run_one(request, self._executor)

    def _said(self, run: SweepRun) -> str:
        if not run.ok:
            return f"{run.status}: {run.reason}"
        (timed,) = choose_step_time([run], self._measured)
        if self._measured == RUN or not timed.step_ms:
            return f"{run.seconds:.1f} s"
        return f"{timed.step_ms:.1f} ms a step, {run.seconds:.1f} s in all"

    def _result(
        self, sweep: Sweep, copied: Copied, judged: Judgement, why: str, complete: bool = False
    ) -> Trial:
        about = Trial(
            path=str(sweep.directory),
            session=str(self._session),
            argv=masked(self._program.command),
            working_directory=self._program.working_directory,
            fix=None,
            fix_id="",
            fix_text="",
            data=copied.data,
            bare=self._options.bare,
            measured=self._measured,
            why=why,
            warnings=copied.warnings,
            complete=complete,
        )
        where = describe_lines(self._report, "")
        return summed_up(about, self._choice, self._report, sweep.runs, self._program.command, judged, where)


def _keep(trial: Trial) -> None:
    """Write the result into the trial's directory."""
    write_document(Path(trial.path) / RESULT, trial)


def is_replaceable(trial: Trial) -> bool:
    """Whether the trial has copies, and the program reads them as it reads the originals."""
    return bool(trial.data) and all(each.how != PARQUET for each in trial.data)


def in_place(trial: Trial) -> Trial:
    """Put the copies of a proven trial in the place of their originals; the result says where these are.

    Raises:
        IotraceError: they stay as they are.
    """
    placed = replace(trial, data=put_in_place(trial.data))
    _keep(placed)
    return placed
