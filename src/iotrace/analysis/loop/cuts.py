"""Where the steps of a training loop begin, and whether that explains what the program trained.

When each thread trained: its backward passes and optimizer steps.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from iotrace.analysis.intervals import Coverage, Times, distinct, grouped
from iotrace.analysis.loop.deliveries import Deliveries, Pass, PassKey
from iotrace.analysis.table import NONE, key_of
from iotrace.session import names
from iotrace.sources.columns import held
from iotrace.sources.processes import Process
from iotrace.sources.records import IteratorEnd

# So many steps at most warm up what is replayed later: torch's recipe for a CUDA graph makes 12.
_WARM_UP = 20


class Rounds(msgspec.Struct, frozen=True, dict=True):
    """The backward passes and optimizer steps of a thread: times in ns, sorted; which `optimizer` stepped.

    Optimizers are numbered by their first steps, -1 is a backward pass.
    """

    times_ns: Times
    optimizer: npt.NDArray[np.integer[Any]]

    @property
    def series(self) -> list[Times]:
        """The backward passes, all optimizer steps, and those of each optimizer where there are several."""
        made = [self.optimizer < 0, self.optimizer >= 0]
        several = int(self.optimizer.max(initial=-1)) + 1
        made += [self.optimizer == number for number in range(several)] if several > 1 else []
        return [self.times_ns[own] for own in made]

    @cached_property
    def updates_ns(self) -> Times:
        """The steps of the busiest optimizer."""
        steps = self.optimizer[self.optimizer >= 0]
        busiest = int(np.bincount(steps).argmax()) if len(steps) else 0
        return np.asarray(self.times_ns[self.optimizer == busiest])

    @property
    def steps_ns(self) -> Times:
        """One time a step: the steps of the busiest optimizer, without one the backward passes."""
        found = self.updates_ns
        return found if len(found) else self.times_ns

    def steps_to_an_update(self, starts_ns: Times, end_ns: int) -> float | None:
        """Return how many of the steps that begin at `starts_ns` one of the busiest optimizer's stands for.

        From the first of its steps to the last before `end_ns`; None where there are not two.
        """
        times_ns = self.updates_ns
        begun = np.searchsorted(starts_ns, times_ns[times_ns <= end_ns], side="right")
        begun = begun[begun > 0]
        return float(begun[-1] - begun[0]) / (len(begun) - 1) if len(begun) > 1 else None

    def until(self, times_ns: Times) -> Times:
        """Count the rounds up to each time."""
        return np.searchsorted(self.times_ns, times_ns, side="right")

    def between(self, start_ns: int, end_ns: int) -> bool:
        """Tell whether one lies in ``(start_ns, end_ns]``."""
        first, last = self.until(np.array([start_ns, end_ns])).tolist()
        return bool(first < last)


def is_warm_up(rounds: Rounds, asked: Deliveries) -> bool:
    """Tell whether the rounds only warm up what the loop replays (a CUDA graph): few, before it asks."""
    trained_on = asked[asked.may_train]
    if not len(trained_on) or not len(rounds.times_ns):
        return False
    count = len(rounds.steps_ns)
    is_before = rounds.times_ns[-1] <= trained_on["wait_start_ns"].min()
    return bool(is_before and count <= _WARM_UP and count < len(trained_on))


def rounds_by_thread(main: Process) -> dict[int, Rounds]:
    """Find the rounds of each thread of `main` that trained."""
    rows = main.rows(names.ROUND_ROW)
    times = main.clock.times_to_session_ns(rows["mono_ns"])
    steps, tids = rows["what"] == names.ROUNDS.index("optimizer"), rows["tid"]
    if not len(rows):
        times, tids = _rounds_by_count(main)
        steps = np.zeros(len(times), np.bool_)
    found = {}
    for tid in distinct(tids).tolist():
        own = tids == tid
        _, first, of = grouped(rows["number"][own & steps] if len(rows) else steps[:0])
        optimizer = np.full(np.count_nonzero(own), -1, np.int16)
        optimizer[steps[own]] = np.argsort(np.argsort(first))[of]
        order = np.argsort(times[own], kind="stable")
        found[tid] = Rounds(times[own][order], optimizer[order])
    return found


def _rounds_by_count(main: Process) -> tuple[Times, Times]:
    """Read backward passes from the counts that deliveries carry: sessions of older agents have no more."""
    rows, ends = main.rows(names.BATCH_ROW), main.of_type(IteratorEnd)
    at = np.concatenate((rows["delivered_ns"], np.array([each.mono_ns for each in ends], np.int64)))
    count = np.concatenate(
        (rows["backward_count"], np.array([each.backward_count for each in ends], np.int64))
    )
    order = np.argsort(at, kind="stable")
    more = np.diff(count[order], prepend=0)
    last = np.maximum.accumulate(np.where(order < len(rows), order, -1))  # the batch before each ask, or it
    before = np.append(-1, last[:-1])[: len(order)]
    more = np.where(before >= 0, np.maximum(more, 0), 0)
    row = np.repeat(before, more)
    return main.clock.times_to_session_ns(rows["delivered_ns"][row] + 1), rows["tid"][row]


def off_cpu_fraction(main: Process, tid: int, waits: Times) -> float | None:
    """Find the share of the time between the first and the last round of `tid` that it slept, waits aside.

    Time that it was ready to run and had no CPU is no sleep. None where fewer than two rounds say, or none.
    """
    rounds = main.rows(names.ROUND_ROW)
    own = np.flatnonzero(rounds["tid"] == tid)
    if len(own) < 2:
        return None
    fields = ("mono_ns", "cpu_ns", "run_delay_ns")
    (first_ns, first_cpu_ns, first_delay_ns), (last_ns, last_cpu_ns, last_delay_ns) = (
        [int(rounds[field][row]) for field in fields] for row in (own[0], own[-1])
    )
    if min(first_cpu_ns, last_cpu_ns) < 0:
        return None
    length_ns = last_ns - first_ns
    delay_ns = max(0, last_delay_ns - max(0, first_delay_ns))
    off_cpu_ns = length_ns - (last_cpu_ns - first_cpu_ns) - delay_ns
    within = main.clock.times_to_session_ns([[first_ns], [last_ns]])
    waited_ns = int(Coverage(waits[:, 0], waits[:, 1]).within(*within)[0])
    return max(0, off_cpu_ns - waited_ns) / length_ns if length_ns else None


def first_at(times: Times, time_ns: int) -> int | None:
    """Return the first of the sorted `times` that is not before `time_ns`; None without one."""
    index = int(np.searchsorted(times, time_ns))
    return int(times[index]) if index < len(times) else None


_FEW = 2  # of two counts: so much they may differ
_REPLAYS = 5  # so many batches without a round, and as many as with one, are no batches taken ahead
SHARE = 0.05
_MANY = 8  # rounds on one batch: then their number need not be the same
_TIMES = 4  # so many times more, or fewer, than usual they may be


class Cuts(msgspec.Struct, frozen=True):
    """Where steps begin; `opened` is the row in `deliveries` of what each works on, `NONE`: of nothing."""

    times_ns: Times
    opened: Times
    deliveries: Deliveries

    def __len__(self) -> int:
        return len(self.times_ns)

    @property
    def opening(self) -> Deliveries:
        """The batches that steps work on."""
        opened: Times = self.opened[self.opened != NONE]
        return self.deliveries[opened]

    def while_trained(self, rounds: Rounds) -> Cuts:
        """Leave out the cuts behind the one that follows the last round."""
        count = int(np.searchsorted(self.times_ns, rounds.times_ns[-1:], side="right").max(initial=0)) + 1
        return Cuts(self.times_ns[:count], self.opened[:count], self.deliveries)


def no_cuts(deliveries: Deliveries) -> Cuts:
    """Cut nowhere."""
    nothing = np.empty(0, np.int64)
    return Cuts(nothing, nothing, deliveries)


def cuts_of(deliveries: Deliveries, passes: dict[PassKey, Pass], rounds: Rounds) -> Cuts:
    """Cut at the first delivery after a round; at each delivery where the thread makes no rounds (any more).

    A loop that takes batches ahead works on its last ones after the loader has said that there is no more:
    that call cuts, too, if rounds lie on both sides of it. `deliveries` are in order of delivery.
    """
    times = deliveries["delivered_ns"]
    if not len(rounds.times_ns) or not len(times):
        return Cuts(times, np.arange(len(times)), deliveries)
    trained = rounds.until(times)
    *_, of_pass = grouped(key_of(deliveries["iterator"], deliveries["epoch"]))
    by_pass = np.argsort(of_pass, kind="stable")
    taken = np.split(
        by_pass, np.flatnonzero(np.diff(of_pass[by_pass])) + 1
    )  # of each: the rows of its batches
    ends = [_exhausted(deliveries, rows, passes) for rows in taken]
    cuts_at = np.zeros(len(times), np.bool_)
    extra: list[tuple[int, int, int]] = []  # cuts where a loader ended: time, pass, its last row
    since, before = 0, -1  # the rows behind the last end; the rounds before the last cut
    over = [(end[1], number, end[0]) for number, end in enumerate(ends) if end is not None]
    for end_ns, number, asked_ns in [*sorted(over, key=lambda each: each[0]), (None, -1, 0)]:
        until = len(times) if end_ns is None else int(np.searchsorted(times, end_ns, side="right"))
        part = trained[since:until]
        if len(part):
            cuts_at[since:until] = part != np.append(before, part[:-1])
            cuts_at[since] = part[0] > before
            before, since = max(before, int(part[-1])), until
        if end_ns is None or not until:
            continue
        next_ns = first_at(times, end_ns) or max(int(rounds.times_ns[-1]), end_ns)
        rows = taken[number][: int(np.searchsorted(taken[number], until))]
        is_ahead = not cuts_at[rows].all() and rounds.between(end_ns, next_ns)
        if is_ahead and before < int(rounds.until(np.array([asked_ns]))[0]):
            extra.append((end_ns, number, int(rows[-1])))
            before = int(rounds.until(np.array([end_ns]))[0])
    last_pass = of_pass == of_pass[np.searchsorted(times, rounds.times_ns[-1]) - 1]
    behind = times > rounds.times_ns[-1]
    if np.count_nonzero(behind & last_pass) >= max(_REPLAYS, len(rounds.steps_ns)):
        cuts_at |= behind  # the pass goes on without rounds: what they warmed up is replayed (a CUDA graph)
    opened = held(np.flatnonzero(cuts_at))
    cuts = Cuts(times if len(opened) == len(times) else times[opened], opened, deliveries)
    if extra:
        cuts = _with_ends(cuts, extra, taken)
    last = int(cuts.opened[-1])
    if cuts.times_ns[-1] > rounds.times_ns[-1] and last != NONE and ends[of_pass[last]] is not None:
        # The loop dropped the last batches, and asked for more.
        cuts = Cuts(cuts.times_ns[:-1], cuts.opened[:-1], deliveries)
    return cuts


def _exhausted(deliveries: Deliveries, rows: Times, passes: dict[PassKey, Pass]) -> tuple[int, int] | None:
    """Tell when the pass of these deliveries was at its end, if it was."""
    iterator, epoch = (int(deliveries[field][rows[0]]) for field in ("iterator", "epoch"))
    return passes[iterator, epoch].exhausted_ns


def _with_ends(cuts: Cuts, extra: list[tuple[int, int, int]], taken: list[Times]) -> Cuts:
    """Add the cuts where loaders ended; of a pass with as many cuts as batches each works on one of these."""
    times = np.concatenate((cuts.times_ns, [end_ns for end_ns, _, _ in extra]))
    order = np.argsort(times, kind="stable")
    opened = np.concatenate((cuts.opened, [row for *_, row in extra]))[order]
    for _, number, _ in extra:
        own = np.flatnonzero(np.isin(opened, taken[number]))
        if len(own) == len(taken[number]):
            opened[own] = taken[number]
    return Cuts(times[order], opened, cuts.deliveries)


def explains(cuts: Cuts, rounds: Rounds) -> bool:
    """Tell whether the cuts account for the rounds: as many between any two of them, but for few.

    Rounds that no delivery precedes train on batches from elsewhere. Of backward passes and optimizers, one
    kind has to be regular: with accumulation these are the backward passes, with critics their optimizer's.
    Of many on each batch the number may vary.
    """
    cuts = cuts.while_trained(rounds)
    every = _per_cut(cuts, rounds.times_ns)
    most = int(every[1:-1].max()) if len(cuts) > 1 else int(every[-1])
    # Before the first cut and behind the last one's step: a phase of training with another loader.
    outside = int(every[0]) + max(0, int(every[-1]) - most)
    if outside > max(2 * _FEW, SHARE * len(rounds.times_ns)):
        return False
    for series in rounds.series:
        if not len(series):
            continue
        per_cut = _per_cut(cuts, series)
        closed = per_cut[1:-1] if len(per_cut) > 2 else per_cut[-1:]
        counts, first, amounts = np.unique(closed, return_index=True, return_counts=True)
        usual = int(counts[np.lexsort((first, -amounts))[0]])
        strays = int(per_cut[0]) + int(np.abs(per_cut[1:-1] - usual).sum())
        strays += max(0, int(per_cut[-1]) - usual)
        if usual and strays <= max(_FEW, SHARE * len(series)):
            return True
        near = (closed * _TIMES >= usual) & (closed <= usual * _TIMES)
        if usual >= _MANY and (~near).sum() <= SHARE * len(closed):
            return True  # it trains on each batch for a time
    return False


def _per_cut(cuts: Cuts, times_ns: Times) -> Times:
    """Count the times before the first cut, and from each cut on."""
    return np.bincount(np.searchsorted(cuts.times_ns, times_ns, side="right"), minlength=len(cuts) + 1)
