"""The settings that a search may try: what each asks for, and which may change a program's speed.

What a search has room for: settings are refused before they are tried, runs before they are begun.

What is not worth changing, with the evidence; what a run proves of a setting that no model speaks for.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping

import msgspec

from iotrace.analysis.rules.facts.sweep import SettingFacts
from iotrace.analysis.rules.model import Finding, find_all
from iotrace.sweeps.grid import (
    CV2_THREADS,
    IN_ORDER,
    PERSISTENT,
    PIN_MEMORY,
    PREFETCH,
    SHARING,
    THREADS,
    WORKERS,
)
from iotrace.sweeps.model import Predictor, Seen
from iotrace.sweeps.results import SweepRun
from iotrace.sweeps.tune.results import NoEffect

Params = dict[str, str]

COUNTS = (0, 1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32, 48, 64)
_TRANSPORT = 0.05  # of a step: from there the sharing strategy is tried
_THREADS = 1.2  # cores that the training keeps busy: from there fewer threads are tried
_COMPUTED = 0.2  # of the batches' making: with less computing, threads of cv2 do not matter


def effort(params: Params) -> tuple[int, int, int]:
    """What a setting asks for: changed settings, workers, prefetching."""
    return len(params), int(params.get(WORKERS, 0)), int(params.get(PREFETCH, 0))


def setting_name(params: Params) -> str:
    """Name a setting; the order of its values does not matter."""
    return " ".join(f"{name}={params[name]}" for name in sorted(params))


def counts(seen: Seen) -> list[Params]:
    """Every other number of workers."""
    return [{WORKERS: str(count)} for count in COUNTS if count != own_workers(seen)]


def ladders(seen: Seen) -> Iterator[list[Params]]:
    """Yield more and more workers, each twice as many as before, then fewer and fewer."""
    own = own_workers(seen)
    yield [{WORKERS: str(max(own, 1) * 2**power)} for power in range(0 if not own else 1, 7)]
    yield [{WORKERS: str(own // 2**power)} for power in range(1, own.bit_length())]


def own_workers(seen: Seen) -> int:
    """The number of workers of a run."""
    return int(seen.settings.get(WORKERS, 0))


def candidates(seen: Seen) -> Iterator[Params]:
    """Yield what the model knows: each number of workers with each other way to hand over batches."""
    prefetch = int(seen.settings.get(PREFETCH, 2))
    for workers in COUNTS:
        base = {} if workers == own_workers(seen) else {WORKERS: str(workers)}
        yield base
        if not workers:
            continue
        for factor in (2 * prefetch, 4 * prefetch):
            yield {**base, PREFETCH: str(factor)}
        for change in switches(seen):
            yield {**base, **change}


def switches(seen: Seen) -> list[Params]:
    """The switches of a loader that are not set yet, the last entry all of them."""
    switches: list[Params] = []
    if seen.settings.get(IN_ORDER) == "True" and seen.can_set(IN_ORDER):
        switches.append({IN_ORDER: "False"})
    if seen.epochs > 1 and seen.settings.get(PERSISTENT) == "False":
        switches.append({PERSISTENT: "True"})
    return switches + ([{**switches[0], **switches[1]}] if len(switches) > 1 else [])


def probes(seen: Seen) -> Iterator[Params]:
    """Yield what the model does not know and this program could feel."""
    pipeline = seen.pipeline
    if seen.torch_threads != 1 and pipeline is not None and pipeline.threads > _THREADS:
        yield {THREADS: "1"}
    if seen.cv2_threads > 1 and (pipeline is None or _computes(seen)):
        yield {CV2_THREADS: "1"}
    if seen.accelerated and pipeline is not None and not pipeline.pinned:
        yield {PIN_MEMORY: "True"}
    if seen.transport_share >= _TRANSPORT:
        yield {SHARING: "file_system"}


def _computes(seen: Seen) -> bool:
    assert seen.pipeline is not None
    computed, slept = float(seen.pipeline.cpu_ns.sum()), float(seen.pipeline.blocked_ns.sum())
    return computed > _COMPUTED * (computed + slept)


_DESCRIPTORS = 64  # of a program, in addition to its workers'
_OF_WORKER, _OF_BATCH = 8, 4  # descriptors: pipes and queues; tensors on their way


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """What is left here; None is unknown. `cpus` may be a quota of a control group."""

    cpus: float
    memory_bytes: int | None = None
    shm_bytes: int | None = None
    descriptors: int | None = None


def refused(params: Mapping[str, str], seen: Seen, place: Place) -> Finding | None:
    """Find why there is no room for `params`; None where there is. `seen` is the program's own run."""
    settings = {**seen.settings, **params}
    workers, before = int(settings.get(WORKERS, 0)), int(seen.settings.get(WORKERS, 0))
    prefetch, ranks = int(settings.get(PREFETCH, 2)), max(1, seen.ranks)
    more = ranks * (workers - before)
    facts = SettingFacts(
        workers=workers,
        ranks=ranks,
        cpus=place.cpus,
        more_workers=more,
        memory_needed_bytes=more * seen.worker_bytes if seen.worker_bytes and more > 0 else None,
        memory_left_bytes=place.memory_bytes,
        shm_needed_bytes=ranks * workers * (prefetch + 1) * seen.batch_bytes if seen.batch_bytes else None,
        shm_left_bytes=place.shm_bytes,
        descriptors_needed=_DESCRIPTORS + workers * (_OF_WORKER + prefetch * _OF_BATCH),
        descriptors=place.descriptors,
    )
    return next(iter(find_all("setting", facts)), None)


class NoRoomError(Exception):
    """The budget has no room for one more run."""


class Budget:
    """`seconds` from `begin` on, without end where they are None."""

    def __init__(self, seconds: float | None, clock: Callable[[], float]) -> None:
        self._seconds, self.clock = seconds, clock
        self._until = math.inf
        self._took: list[float] = []

    def begin(self, took: list[float]) -> None:
        """Let the time run; `took` are the seconds of runs that are there already."""
        self._until = math.inf if self._seconds is None else self.clock() + self._seconds
        self._took = [*took]

    def add(self, seconds: float) -> None:
        """Note how long a run took, with the look at its session."""
        self._took.append(seconds)

    def has_room(self, runs: int) -> bool:
        """Whether so many further runs end in time; of the first one nobody knows."""
        return not self._took or self.clock() + runs * self._run_s <= self._until

    def check(self, runs: int) -> None:
        """Raise NoRoomError where so many further runs would not end in time."""
        if not self.has_room(runs):
            what = "one more run" if runs == 1 else "one more setting and a pair as proof:"
            each = f"of about {self._run_s:.0f} s" if runs == 1 else f"runs take about {self._run_s:.0f} s"
            raise NoRoomError(f"no room in the budget for {what} {each}")

    @property
    def _run_s(self) -> float:
        return sum(self._took) / len(self._took)


AS_GOOD = 0.01  # of a step: settings that differ by less are alike; what is less simple has to gain more
_VAGUE_PERCENT = 5.0  # half of an interval: a wider one does not tell that there is no effect


def gained(run: SweepRun, before: SweepRun) -> bool:
    """Whether a run is faster than the one before, by the means alone."""
    return run.ok and bool(run.step_ms) and (run.step_ms or 0.0) < (1 - AS_GOOD) * (before.step_ms or 0.0)


def proven(run: SweepRun, before: SweepRun) -> bool:
    """Whether a run is faster than the one before beyond the intervals of both."""
    step_ms, before_ms = run.step_ms or math.inf, before.step_ms or 0.0
    return step_ms + math.hypot(_half_ms(run), _half_ms(before)) < (1 - AS_GOOD) * before_ms


def measured(change: Params, run: SweepRun, before: SweepRun) -> NoEffect | None:
    """What `change` did in `run`; None where the runs are no evidence of anything."""
    step_ms, before_ms = run.step_ms or math.inf, before.step_ms or math.inf
    half = 100 * math.hypot(_half_ms(run) / step_ms, _half_ms(before) / before_ms)
    return _of(change, 100 * (before_ms / step_ms - 1), half, "measured") if half <= _VAGUE_PERCENT else None


def predicted(predictor: Predictor, params: Params, seen: Seen) -> list[NoEffect]:
    """List each switch, and more prefetching, where the model says that it adds nothing to `params`."""
    before = predictor.step_ms(params)
    prefetch = int(params.get(PREFETCH, seen.settings.get(PREFETCH, 2)))
    effects = []
    for change in [*switches(seen)[:2], {PREFETCH: str(2 * prefetch)}]:
        after = predictor.step_ms({**params, **change})
        if before is None or after is None or not after > 0 or change.items() <= params.items():
            continue
        percent = 100 * (before / after - 1)
        if abs(percent) < 100 * AS_GOOD:
            effects.append(_of(change, percent, 100 * AS_GOOD, "predicted"))
    return effects


def _of(change: Params, percent: float, half: float, source: str) -> NoEffect:
    knob = ", ".join(f"{name}={value}" for name, value in change.items())
    return NoEffect(knob=knob, interval_pct=[percent - half, percent + half], source=source)


def _half_ms(run: SweepRun) -> float:
    """Half of the interval of a run's step; without one it may be anything."""
    return math.inf if run.step_ci95_ms is None else (run.step_ci95_ms[1] - run.step_ci95_ms[0]) / 2
