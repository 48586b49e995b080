"""The search: measure the program as it is, then what the model thinks best, until nothing better is left."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator

from iotrace.errors import IotraceError
from iotrace.sweeps.execute import Executor, Request
from iotrace.sweeps.grid import IN_ORDER, PERSISTENT, PIN_MEMORY, PREFETCH, SHARING, THREADS, WORKERS
from iotrace.sweeps.results import SweepRun
from iotrace.sweeps.rows import ceiling_of
from iotrace.sweeps.schedule import Sweep
from iotrace.sweeps.tune.model import Look, Predictor, Seen
from iotrace.sweeps.tune.place import Place, refused
from iotrace.sweeps.tune.results import NoEffect, Refused

Params = dict[str, str]

AS_GOOD = 0.01  # of a step: settings that differ by less are alike; what is less simple has to gain more
CEILING = 0.02  # of the ceiling's step: what is closer is at it
_NO_WAIT = 0.02  # of a step: with less wait there is nothing to gain
_MOST_RUNS = 8  # beside the confirming pairs
_PAIRS = 2
_TRANSPORT = 0.05  # of a step: from there the sharing strategy is tried
_VAGUE_PERCENT = 5.0  # half of an interval: a wider one does not tell that there is no effect
_THREADS = 1.2  # cores that the training keeps busy: from there fewer threads are tried
_COUNTS = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32, 48, 64)


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
        self._budget_s, self._clock = budget_s, clock
        self._until = math.inf
        self.seen: dict[str, Seen] = {}
        self.measured: list[SweepRun] = []
        self._asked: tuple[Executor, Callable[[Request], None], Callable[[SweepRun], None]] | None = None
        self._tried: set[str] = set()
        self.predicted: dict[str, float] = {}  # step in ms, before the first run of a setting
        self.no_effect: list[NoEffect] = []
        self.refused: list[Refused] = []
        self.stopped = "interrupted"
        self.at_ceiling = self.complete = False

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
        self._until = math.inf if self._budget_s is None else self._clock() + self._budget_s
        self._asked = executor, before, after
        try:
            self.stopped = self._search()
            self._confirm()
            self.complete = True
        except _NoRoomError as full:
            self.stopped = str(full)
            self.complete = True

    @property
    def own(self) -> SweepRun | None:
        """The program as it is."""
        return next((run for run in self.measured if not run.params), None)

    @property
    def best(self) -> SweepRun | None:
        """The simplest setting that is as fast as the fastest: the program's own, or with fewest workers."""
        if not self.measured:
            return None
        least = min(run.step_ms or math.inf for run in self.measured)
        as_good = [run for run in self.measured if (run.step_ms or math.inf) <= (1 + AS_GOOD) * least]
        return min(as_good, key=lambda run: _effort(run.params))

    def _measure(self, params: Params, kind: str = "point", repeat: int = 0) -> SweepRun:
        """Run a setting, where the budget has room for one more run."""
        took = [run.seconds for run in self.sweep.runs]
        request = self.sweep.plan.request(self.sweep.directory, kind, params, repeat)
        mean = sum(took) / len(took) if took else 0.0
        if took and self._clock() + mean > self._until:
            raise _NoRoomError(f"no room for one more run of about {mean:.0f} s in the budget")
        assert self._asked is not None
        run = self.sweep.run_one(request, *self._asked)
        self._tried.add(key_of(params))
        if kind == "point" and repeat == 0 and run.ok and run.step_ms:
            self.measured.append(run)
            seen = self._look(run)
            if seen is not None:
                self.seen[key_of(params)] = seen
        return run

    def _search(self) -> str:
        own = self._measure({})
        if not own.ok or not own.step_ms:
            raise IotraceError(f"the program as it is gave no figures: {own.reason or own.status}",
                             "look at its output, and give it more --steps")  # fmt: skip
        seen = self.seen.get(key_of({}))
        if seen is None:
            raise IotraceError("the loop takes its batches from no DataLoader that could be tuned",
                             "iotrace report shows what it waits for")  # fmt: skip
        if self._no_wait(own):
            self.at_ceiling = True
            return "the loop does not wait for its data"
        ceiling = self._measure({}, "ceiling")
        if ceiling.ok and self._near_ceiling(own):
            self.at_ceiling = True
            return "the program runs as fast as on batches from memory"
        second = self._second(seen)
        if second is not None:
            run = self._measure(second)
            if run.status == "not applied":
                return f"num_workers could not be set: {run.reason}"
        while len(self.measured) < _MOST_RUNS:
            best = self.best
            assert best is not None
            params = self._next(seen)
            if self._near_ceiling(best):
                if params is not None and _effort(params) < _effort(best.params):
                    self._measure(params)  # could fewer workers do as well?
                self.at_ceiling = True
                return "the best runs as fast as on batches from memory"
            if params is None:
                break
            self._measure(params)
        else:
            return f"{_MOST_RUNS} settings were measured"
        self._probe(seen)
        return "the model knows no better setting"

    def _no_wait(self, run: SweepRun) -> bool:
        fraction = run.raw_wait_fraction if run.stall_fraction is None else run.stall_fraction
        return fraction is not None and fraction < _NO_WAIT

    def _near_ceiling(self, run: SweepRun) -> bool:
        ceiling = ceiling_of(self.sweep.runs)
        return (
            ceiling is not None and run.step_ms is not None and run.step_ms <= (1 + CEILING) * ceiling.step_ms
        )

    def _second(self, seen: Seen) -> Params | None:
        """Another number of workers, that the model thinks best: two are measured before one is predicted."""
        own = int(seen.settings.get(WORKERS, 0))
        predictor = Predictor([seen])
        steps = {}
        for params in self._possible([{WORKERS: str(count)} for count in _COUNTS if count != own], seen):
            steps[key_of(params)] = (predictor.step_ms(params) or 0.0, params)
        if not steps:
            return None
        enough_ms = self._enough_ms(min(step for step, _ in steps.values()), AS_GOOD)
        return min((params for step, params in steps.values() if step <= enough_ms), key=_effort)

    def _enough_ms(self, least_ms: float, apart: float) -> float:
        """The step that is as good as `least_ms`, or as the ceiling."""
        ceiling = ceiling_of(self.sweep.runs)
        return max((1 + apart) * least_ms, 0.0 if ceiling is None else (1 + CEILING) * ceiling.step_ms)

    def _next(self, seen: Seen) -> Params | None:
        """The setting that the model thinks best, unless it was tried or is hardly better than the best."""
        predictor = Predictor(list(self.seen.values()))
        best = self.best
        if len(predictor.counts) < 2 or best is None or best.step_ms is None:
            return None
        found = []
        for params in self._possible(self._candidates(seen), seen):
            step = predictor.step_ms(params)
            if step is not None and not math.isnan(step):
                found.append((step, params))
        if not found:
            return None
        enough_ms = self._enough_ms(min(step for step, _ in found), AS_GOOD)
        chosen = min((pair for pair in found if pair[0] <= enough_ms), key=lambda pair: _effort(pair[1]))
        self._tell_no_effect(predictor, chosen[1], seen)
        simpler = _effort(chosen[1]) < _effort(best.params)
        if (
            key_of(chosen[1]) in self._tried
            or chosen[0] > (1 + AS_GOOD * (1 if simpler else -1)) * best.step_ms
        ):
            return None
        self.predicted[key_of(chosen[1])] = chosen[0]
        return chosen[1]

    def _candidates(self, seen: Seen) -> Iterator[Params]:
        own = int(seen.settings.get(WORKERS, 0))
        prefetch = int(seen.settings.get(PREFETCH, 2))
        for workers in _COUNTS:
            base = {} if workers == own else {WORKERS: str(workers)}
            yield base
            for factor in (2 * prefetch, 4 * prefetch):
                yield {**base, PREFETCH: str(factor)}
            for change in self._switches(seen):
                yield {**base, **change}

    def _switches(self, seen: Seen) -> list[Params]:
        found: list[Params] = []
        if seen.settings.get(IN_ORDER) == "True":
            found.append({IN_ORDER: "False"})
        if seen.epochs > 1 and seen.settings.get(PERSISTENT) == "False":
            found.append({PERSISTENT: "True"})
        return found + ([{**found[0], **found[1]}] if len(found) > 1 else [])

    def _possible(self, candidates: Iterator[Params] | list[Params], seen: Seen) -> Iterator[Params]:
        """Leave out what this place has no room for, and tell of it once."""
        for params in candidates:
            why = refused(params, seen, self.place)
            if why is None:
                yield params
            elif list(params) == [WORKERS] and all(each.params != params for each in self.refused):
                self.refused.append(Refused(params=params, why=why))

    def _tell_no_effect(self, predictor: Predictor, params: Params, seen: Seen) -> None:
        """Keep of each switch and of more prefetching what the model says, where that is next to nothing."""
        before = predictor.step_ms(params)
        self.no_effect = [each for each in self.no_effect if each.source == "measured"]
        prefetch = int(params.get(PREFETCH, seen.settings.get(PREFETCH, 2)))
        for change in [*self._switches(seen)[:2], {PREFETCH: str(2 * prefetch)}]:
            after = predictor.step_ms({**params, **change})
            if before is None or after is None or not after > 0 or change.items() <= params.items():
                continue
            percent = 100 * (before / after - 1)
            if abs(percent) < 100 * AS_GOOD:
                self._no_effect(change, percent, 100 * AS_GOOD, "predicted")

    def _no_effect(self, change: Params, percent: float, half: float, source: str) -> None:
        knob = ", ".join(f"{name}={value}" for name, value in change.items())
        self.no_effect.append(
            NoEffect(knob=knob, interval_pct=[percent - half, percent + half], source=source)
        )

    def _probe(self, seen: Seen) -> None:
        """Try, one by one on top of the best, what the model does not know and this program could feel."""
        for change in self._probes(seen):
            best = self.best
            if best is None or best.step_ms is None or len(self.measured) >= _MOST_RUNS:
                return
            run = self._measure({**best.params, **change})
            if run.ok and run.step_ms and run.step_ci95_ms and run.step_ms > (1 - AS_GOOD) * best.step_ms:
                low, high = run.step_ci95_ms
                half = 50 * (high - low) / run.step_ms
                if half > _VAGUE_PERCENT:
                    continue  # no evidence of anything
                self._no_effect(change, 100 * (best.step_ms / run.step_ms - 1), half, "measured")

    def _probes(self, seen: Seen) -> Iterator[Params]:
        if seen.pipeline is not None and seen.pipeline.threads > _THREADS:
            yield {THREADS: "1"}
        if seen.accelerated and seen.pipeline is not None and not seen.pipeline.pinned:
            yield {PIN_MEMORY: "True"}
        if seen.transport_share >= _TRANSPORT:
            yield {SHARING: "file_system"}

    def _confirm(self) -> None:
        """Run the program's own setting and the best in turns."""
        best = self.best
        if best is None or best is self.own:
            return
        for repeat in range(1, _PAIRS + 1):
            for params in ({}, best.params):
                self._measure(params, repeat=repeat)


class _NoRoomError(Exception):
    """The budget has no room for one more run."""


def _effort(params: Params) -> tuple[int, int, int]:
    """What a setting asks for: changed settings, workers, prefetching."""
    return len(params), int(params.get(WORKERS, 0)), int(params.get(PREFETCH, 0))


def key_of(params: Params) -> str:
    """Name a setting, in whichever order its values stand."""
    return " ".join(f"{name}={params[name]}" for name in sorted(params))
