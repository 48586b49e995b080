"""The search: measure the program as it is, then what the model thinks best, until nothing better is left.

The start of a search: what was asked, checked.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from iotrace.errors import IotraceError, UsageError
from iotrace.sweeps.execute import Executor, Request, tail
from iotrace.sweeps.grid import PREFETCH, WORKERS
from iotrace.sweeps.model import Look, Predictor, Seen
from iotrace.sweeps.plan import SweepPlan
from iotrace.sweeps.results import SweepRun
from iotrace.sweeps.rows import find_ceiling
from iotrace.sweeps.schedule import Sweep, open_sweep
from iotrace.sweeps.tune.candidates import (
    AS_GOOD,
    Budget,
    NoRoomError,
    Params,
    Place,
    candidates,
    counts,
    effort,
    gained,
    ladders,
    measured,
    own_workers,
    predicted,
    probes,
    proven,
    refused,
    setting_name,
    switches,
)
from iotrace.sweeps.tune.results import NoEffect, Refused

CEILING = 0.02  # of the ceiling's step: what is closer is at it
_NO_WAIT = 0.02  # of a step: with less wait there is nothing to gain
_MOST_RUNS = 8  # in addition to the confirming pairs
_PAIRS = 2
_BEST_AT_CEILING = "the best runs as fast as on batches from memory"


class Search:
    """A search in the directory of `sweep`, which keeps its runs: whoever resumes finds them there."""

    def __init__(
        self,
        sweep: Sweep,
        look: Look,
        place: Place,
        budget_s: float | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.sweep, self._look, self.place = sweep, look, place
        self.budget = Budget(budget_s, clock)
        self.seen: dict[str, Seen] = {}
        self.measured: list[SweepRun] = []
        self._asked: tuple[Executor, Callable[[Request], None], Callable[[SweepRun], None]] | None = None
        self._tried: set[str] = set()
        self.predicted: dict[str, float] = {}  # step in ms, before the first run of a setting
        self.no_effect: list[NoEffect] = []
        self.refused: list[Refused] = []
        self.stopped = "interrupted"
        self.at_ceiling = self.complete = False
        self._vague: set[str] = set()  # settings that no model speaks for, and that are not clearly faster
        self._failing: set[int] = set()  # numbers of workers that a run failed with

    def run(
        self,
        executor: Executor,
        before: Callable[[Request], None] = lambda _: None,
        after: Callable[[SweepRun], None] = lambda _: None,
    ) -> None:
        """Search and confirm; KeyboardInterrupt passes, all runs so far are kept.

        Raises:
            IotraceError: the program's own run gave no steps, or has no loader.
        """
        self.budget.begin([run.seconds for run in self.sweep.runs])
        self._asked = executor, before, after
        try:
            self.stopped = self._search()
            whole = True
        except NoRoomError as full:
            self.stopped = str(full)
            whole = False
        self.complete = self._confirm() and whole

    @property
    def own(self) -> SweepRun | None:
        """The program as it is."""
        return next((run for run in self.measured if not run.params), None)

    @property
    def best(self) -> SweepRun | None:
        """The simplest setting that is as fast as the fastest: the program's own, or with fewest workers."""
        known = [run for run in self.measured if setting_name(run.params) not in self._vague]
        if not known:
            return None
        least = min(run.step_ms or math.inf for run in known)
        as_good = [run for run in known if (run.step_ms or math.inf) <= (1 + AS_GOOD) * least]
        return min(as_good, key=lambda run: effort(run.params))

    @property
    def winner(self) -> SweepRun | None:
        """What pairs have to prove: the best, or what may be faster than the program as it is."""
        best = self.best
        if best is None or best is not self.own:
            return best
        faster = [
            run for run in self.measured if setting_name(run.params) in self._vague and gained(run, best)
        ]
        return min(faster, key=lambda run: run.step_ms or math.inf, default=best)

    def _measure(self, params: Params, kind: str = "point", repeat: int = 0) -> SweepRun:
        """Run a setting, where the budget has room for it and, of a further setting, for a pair as proof."""
        request = self.sweep.plan.request(self.sweep.directory, kind, params, repeat)
        known = self.sweep.has(request)
        further = kind == "point" and not repeat and len(self.measured) > 1
        if not known and not repeat:  # of pairs both or none are run
            self.budget.check(1 + 2 * further)
        assert self._asked is not None
        started = self.budget.clock()
        run = self.sweep.run_one(request, *self._asked)
        self._tried.add(setting_name(params))
        if kind == "point" and repeat == 0 and run.ok and run.step_ms:
            self.measured.append(run)
            seen = self._look(run)
            if seen is not None:
                self.seen[setting_name(params)] = seen
        if run.status == "failed" and WORKERS in params:
            self._failing.add(int(params[WORKERS]))
        if not known:
            self.budget.add(self.budget.clock() - started)
        return run

    def _first(self) -> tuple[SweepRun, Seen]:
        """Run the program as it is."""
        own = self._measure({})
        if not own.ok or not own.step_ms:
            what = f"the program as it is gave no figures: {own.reason or own.status}"
            raise IotraceError(what, f"iotrace report {own.session}", tail(own))
        seen = self.seen.get(setting_name({}))
        if seen is None:
            remedy = f"iotrace report {own.session} shows what it waits for"
            raise IotraceError("the loop takes its batches from no DataLoader that could be tuned", remedy)
        return own, seen

    def _search(self) -> str:
        own, seen = self._first()
        if self._no_wait(own):
            self.at_ceiling = True
            return "the loop does not wait for its data"
        ceiling = self._measure({}, "ceiling")
        if ceiling.ok and self._near_ceiling(own):
            self.at_ceiling = True
            return "the program runs as fast as on batches from memory"
        if seen.pipeline is None:
            return self._without_model(seen)
        while (second := self._second(seen)) is not None:
            run = self._measure(second)
            if run.status == "not applied":
                return f"num_workers could not be set: {run.reason}"
            if run.ok:
                break
        if len(self.measured) < 2 and self._failing:
            return "each run with other workers failed"
        while len(self.measured) < _MOST_RUNS:
            best = self.best
            assert best is not None
            params = self._next(seen)
            if self._near_ceiling(best):
                if params is not None and effort(params) < effort(best.params):
                    self._measure(params)  # could fewer workers do as well?
                self.at_ceiling = True
                return _BEST_AT_CEILING
            if params is None:
                break
            self._measure(params)
        else:
            return f"{_MOST_RUNS} settings were measured"
        self._try(probes(seen), seen)  # what the model does not know
        return "the model knows no better setting"

    def _without_model(self, seen: Seen) -> str:
        """Double the workers as long as that gains, halve them if not; then try the other settings."""
        for ladder in ladders(seen):
            for params in self._possible(ladder, seen):
                before = self.best
                run = self._measure(params)
                if run.status == "not applied":
                    return f"num_workers could not be set: {run.reason}"
                if run.ok and self._near_ceiling(run):
                    self.at_ceiling = True
                    return _BEST_AT_CEILING
                if before is None or not gained(run, before):
                    break
            if self.best is not self.own:
                break
        more = {PREFETCH: str(2 * int(seen.settings.get(PREFETCH, 2)))}
        own = [] if seen.by_hand else [more, *switches(seen)[:2]]  # which a library's stages do not have
        self._try([*own, *probes(seen)], seen)
        return "no other setting that was tried is faster, and none could be predicted"

    def _no_wait(self, run: SweepRun) -> bool:
        fraction = run.raw_wait_fraction if run.stall_fraction is None else run.stall_fraction
        return fraction is not None and fraction < _NO_WAIT

    def _near_ceiling(self, run: SweepRun) -> bool:
        ceiling_ms = self._ceiling_ms()
        return ceiling_ms is not None and run.step_ms is not None and run.step_ms <= ceiling_ms

    def _ceiling_ms(self) -> float | None:
        """The longest step that is at the ceiling; it may take less where fewer other programs run."""
        ceiling = find_ceiling(self.sweep.runs)
        if ceiling is None:
            return None
        held_up = any(run.disturbed for run in self.sweep.runs if run.kind == "ceiling")
        least_ms = 1e3 / ceiling.ci95[1] if held_up and ceiling.ci95 else ceiling.step_ms
        return (1 + CEILING) * least_ms

    def _second(self, seen: Seen) -> Params | None:
        """Another number of workers, that the model thinks best: two are measured before one is predicted.

        Where a run failed with many, half as many come next.
        """
        predictor = Predictor([seen])
        most = max(min(self._failing, default=1 << 30) // 2, own_workers(seen))
        left = [
            params
            for params in self._possible(counts(seen), seen)
            if setting_name(params) not in self._tried and int(params[WORKERS]) <= most
        ]
        if not left:
            return None
        step, chosen = self._simplest([(predictor.step_ms(params) or math.inf, params) for params in left])
        if math.isfinite(step):
            self.predicted[setting_name(chosen)] = step
        return chosen

    def _simplest(self, pairs: list[tuple[float, Params]]) -> tuple[float, Params]:
        """The simplest setting, with its step, that is as good as the best of them, or as the ceiling."""
        enough_ms = max((1 + AS_GOOD) * min(step for step, _ in pairs), self._ceiling_ms() or 0.0)
        return min((pair for pair in pairs if pair[0] <= enough_ms), key=lambda pair: effort(pair[1]))

    def _next(self, seen: Seen) -> Params | None:
        """The setting that the model thinks best, unless it was tried or is hardly better than the best."""
        predictor = Predictor(list(self.seen.values()))
        best = self.best
        if len(predictor.counts) < 2 or best is None or best.step_ms is None:
            return None
        pairs = []
        for params in self._possible(candidates(seen), seen):
            step = predictor.step_ms(params)
            if step is not None and not math.isnan(step):
                pairs.append((step, params))
        if not pairs:
            return None
        step, chosen = self._simplest(pairs)
        of_runs = [each for each in self.no_effect if each.source == "measured"]
        self.no_effect = of_runs + predicted(predictor, chosen, seen)
        apart = AS_GOOD if effort(chosen) < effort(best.params) else -AS_GOOD
        if setting_name(chosen) in self._tried or step > (1 + apart) * best.step_ms:
            return None
        self.predicted[setting_name(chosen)] = step
        return chosen

    def _possible(self, wanted: Iterable[Params], seen: Seen) -> Iterator[Params]:
        """Leave out numbers of workers that failed, and what has no room here, which is reported once."""
        for params in wanted:
            workers = int(params.get(WORKERS, 0))
            why = refused(params, seen, self.place)
            if why is None:
                if not any(own_workers(seen) < failed <= workers for failed in self._failing):
                    yield params
            elif list(params) == [WORKERS] and all(each.params != params for each in self.refused):
                self.refused.append(Refused(params=params, why=why.text, code=why.rule))

    def _try(self, changes: Iterable[Params], seen: Seen) -> None:
        """Measure each change on top of the best; what has no effect is kept with the evidence."""
        for change in changes:
            best = self.best
            if best is None or best.step_ms is None or len(self.measured) >= _MOST_RUNS:
                return
            params = {**best.params, **change}
            if not [*self._possible([params], seen)]:
                continue
            run = self._measure(params)
            if run.ok and run.step_ms and not proven(run, best):
                self._vague.add(setting_name(params))
                told = measured(change, run, best)
                self.no_effect += [told] if told is not None else []

    def _confirm(self) -> bool:
        """Run the program as it is and the winner in turns; False without room for all pairs."""
        best = self.winner
        if best is None or best is self.own:
            return True
        for repeat in range(1, _PAIRS + 1):
            settings = [{}, best.params]
            pair = [self.sweep.plan.request(self.sweep.directory, "point", each, repeat) for each in settings]
            if not self.budget.has_room(sum(not self.sweep.has(request) for request in pair)):
                return False
            for params in settings:
                self._measure(params, repeat=repeat)
        return True


_EXAMPLE = "iotrace tune --budget 10m -- python train.py"
_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "": 1.0}


def parse_seconds(text: str) -> float:
    """Read a time as 90s, 10m or 1h.

    Raises:
        UsageError: it is none.
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smh]?)", text.strip())
    if match is None or not float(match[1]):
        raise UsageError(f"--budget {text!r} is no time", "for example --budget 90s, 10m or 1h")
    return float(match[1]) * _UNITS[match[2]]


def open_search(
    command: list[str],
    look: Look,
    place: Place,
    budget_s: float | None,
    steps: int | None,
    directory: Path | None,
    resume: bool,
    io: list[str],
) -> Search:
    """Begin a search, or take up the one in `directory`.

    Raises:
        UsageError: it cannot be run as asked.
    """
    if not command:
        raise UsageError("no command was given", _EXAMPLE)
    for word in command:
        if re.search(r"\{(workers|prefetch)\}", word):
            raise UsageError(
                f"{word!r} has a place for a value, and tune runs the command as it is",
                "write the value that you use: iotrace sets the loader's settings itself",
            )
    directory = directory or Path(time.strftime("iotrace-tune-%Y%m%d-%H%M%S"))
    plan = SweepPlan(
        command=command,
        axes={},
        repeats=1,
        steps=steps,
        cache="asis",
        ceiling=True,
        options=[word for path in io for word in ("--io", path)],
    )
    return Search(open_sweep(plan, directory, resume), look, place, budget_s)
