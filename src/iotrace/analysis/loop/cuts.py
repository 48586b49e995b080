"""Where the steps of a training loop begin, and whether that explains what the program trained."""

from __future__ import annotations

import msgspec
import numpy as np

from iotrace.analysis.intervals import Times, grouped
from iotrace.analysis.loop.deliveries import Deliveries, Pass, PassKey
from iotrace.analysis.loop.rounds import Rounds, first_at
from iotrace.analysis.table import NONE, key_of

_FEW = 2  # of two counts: so much they may differ
_REPLAYS = 5  # so many batches without a round, and as many as with one, are no batches taken ahead
SHARE = 0.05


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
    cuts = Cuts(times[cuts_at], np.flatnonzero(cuts_at), deliveries)
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
    return False


def _per_cut(cuts: Cuts, times_ns: Times) -> Times:
    """Count the times before the first cut, and from each cut on."""
    return np.bincount(np.searchsorted(cuts.times_ns, times_ns, side="right"), minlength=len(cuts) + 1)
