"""Steps of the training loop, from cut to cut: whose they are, which waits lie in them, what stays unknown.

Definitions: docs/definitions.md, "Steps".
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from itertools import pairwise

import msgspec

from iotrace.analysis.loop.deliveries import Delivery, Interval, LoaderRun, Pass, PassKey, Step
from iotrace.analysis.loop.threads import Rounds, TrainingThread, first_at, training_thread
from iotrace.sources.records import StepMark
from iotrace.sources.session import Rank

_TRAINING = "train"
NO_LOADER = "no loader that iotrace knows was iterated"
_FEW = 2  # of two counts: so much they may differ
_SHARE = 0.05


class Cut(msgspec.Struct, frozen=True):
    """Where a step begins; `delivery` is the batch that it works on, None where rounds of training cut."""

    time_ns: int
    delivery: Delivery | None = None


class Loop(msgspec.Struct, frozen=True):
    """A rank's training loop: the loader that it waits for, if that is known, and all its closed steps.

    `begun` counts the steps, also one without a known end. `marked`: the steps are between marks of the
    program's. `unknown_why` is why the data wait is not known; empty where it is.
    """

    primary: LoaderRun | None = None
    steps: list[Step] = []
    begun: int | None = None
    marked: bool = False
    unknown_why: str = ""
    thread: TrainingThread | None = None


def loop_of(rank: Rank, loaders: list[LoaderRun]) -> Loop:
    """Find the training loop of a rank whose loaders are `loaders`."""
    thread = training_thread(rank.main, loaders)
    marks = [rank.main.clock.to_session_ns(mark.mono_ns) for mark in rank.main.of_type(StepMark)]
    if thread is None:
        steps = [Step(None, start_ns, end_ns) for start_ns, end_ns in pairwise(marks)]
        why = "nothing tells what the loop takes its batches from" if marks else NO_LOADER
        return Loop(None, steps, len(marks) or None, bool(marks), why)
    primary, cuts = _primary(thread, loaders)
    if primary is not None and thread.rounds.times_ns and not _explains(cuts, thread.rounds):
        training = {loader.number for loader in loaders if loader.training}
        asked = [item for item in _trained_on(thread.asked) if item.loader in training]
        together = _cuts(asked, _passes(loaders), thread.rounds)
        cuts = together if _explains(together, thread.rounds) else cuts
    trains = primary is not None and primary.training
    if marks and not trains:
        return _marked(marks, thread, loaders)
    if thread.rounds.times_ns and not (primary and _explains(cuts, thread.rounds)):
        return _by_rounds(thread, loaders, primary, cuts)
    why = ""
    if not thread.rounds.times_ns:
        if thread.handed and not cuts:
            why = "another thread takes the batches, and nothing tells where a step begins"
        elif thread.tid != rank.main.pid:
            why = "a thread other than the main one takes the batches, and nothing tells which one uses them"
    if primary is None:
        primary = _most(loaders, thread.handed)
    return Loop(primary, _steps(cuts, thread, loaders), len(cuts) or None, False, why, thread)


def _primary(thread: TrainingThread, loaders: list[LoaderRun]) -> tuple[LoaderRun | None, list[Cut]]:
    """Choose the loader of the thread with most cuts, and give them; the one asked first among equals."""
    by_loader: dict[int, list[Delivery]] = defaultdict(list)
    for delivery in thread.asked:
        by_loader[delivery.loader].append(delivery)
    trained = {number: _trained_on(own) for number, own in by_loader.items()}
    chosen = trained if any(trained.values()) else by_loader
    found: tuple[LoaderRun | None, list[Cut]] = None, []
    by_number = {loader.number: loader for loader in loaders}
    for number, own in sorted(chosen.items(), key=lambda item: item[1][0].wait_start_ns if item[1] else 0):
        cuts = _cuts(own, by_number[number].passes, thread.rounds)
        if len(cuts) > len(found[1]):
            found = by_number[number], cuts
    return found


def _trained_on(deliveries: list[Delivery]) -> list[Delivery]:
    """Choose the batches that may be trained on: by the trainer, without one by the grad mode."""
    return [item for item in deliveries if (item.phase == _TRAINING if item.phase else item.grad)]


def _passes(loaders: list[LoaderRun]) -> dict[PassKey, Pass]:
    """All passes: those of all loaders of a process have different iterators."""
    return {key: each for loader in loaders for key, each in loader.passes.items()}


def _cuts(deliveries: list[Delivery], passes: dict[PassKey, Pass], rounds: Rounds) -> list[Cut]:
    """Cut at the first delivery after a round; at each delivery where the thread makes no rounds.

    A loop that takes batches ahead works on its last ones after the loader has said that there is no more:
    that call cuts, too, if rounds lie on both sides of it.
    """
    if not rounds.times_ns:
        return [Cut(delivery.delivered_ns, delivery) for delivery in deliveries]
    taken: dict[PassKey, list[Delivery]] = defaultdict(list)  # by pass: its batches, and where they cut
    cut_at: dict[PassKey, list[int]] = defaultdict(list)
    cuts: list[Cut] = []
    times = [item.delivered_ns for item in deliveries]
    ends = {item.of_pass: passes[item.of_pass].exhausted_ns for item in deliveries}
    events: list[tuple[int, PassKey, Delivery | None]] = [
        *((item.delivered_ns, item.of_pass, item) for item in deliveries),
        *((end_ns[1], key, None) for key, end_ns in ends.items() if end_ns is not None),
    ]
    for time_ns, key, delivery in sorted(events, key=lambda event: event[0]):
        if delivery is not None:
            taken[key].append(delivery)
            cutting = not cuts or rounds.between(cuts[-1].time_ns, time_ns)
        else:
            next_ns = first_at(times, time_ns) or max(rounds.times_ns[-1], time_ns)
            asked_ns = (ends[key] or (time_ns,))[0]
            is_ahead = len(cut_at[key]) < len(taken[key]) and rounds.between(time_ns, next_ns)
            cutting = is_ahead and rounds.between(cuts[-1].time_ns, asked_ns)
        if cutting:
            cut_at[key].append(len(cuts))
            cuts.append(Cut(time_ns, taken[key][-1]))
    for key, own in taken.items():
        if len(own) == len(cut_at[key]):  # each works on one batch, perhaps on one taken ahead
            for position, delivery in zip(cut_at[key], own, strict=True):
                cuts[position] = Cut(cuts[position].time_ns, delivery)
    if cuts and cuts[-1].time_ns > rounds.times_ns[-1]:
        last = cuts[-1].delivery
        if last is not None and ends[last.of_pass] is not None:
            cuts.pop()  # the loop dropped the last batches, and asked for more
    return cuts


def _explains(cuts: list[Cut], rounds: Rounds) -> bool:
    """Tell whether the cuts account for the rounds: as many between any two of them, but for few.

    Rounds that no delivery precedes train on batches from elsewhere. Of backward passes and optimizers, one
    kind has to be regular: with accumulation these are the backward passes, with critics their optimizer's.
    """
    times = [cut.time_ns for cut in cuts]
    every = Counter(bisect_right(times, time_ns) for time_ns in rounds.times_ns)
    most = max((every[number] for number in range(1, len(times))), default=every[len(times)])
    # Before the first cut and behind the last one's step: a phase of training with another loader.
    outside = every[0] + max(0, every[len(times)] - most)
    if outside > max(2 * _FEW, _SHARE * len(rounds.times_ns)):
        return False
    for series in rounds.series:
        if not series:
            continue
        per_cut = Counter(bisect_right(times, time_ns) for time_ns in series)
        closed = [per_cut[number] for number in range(1, len(times))]
        usual = Counter(closed or [per_cut[len(times)]]).most_common(1)[0][0]
        strays = per_cut[0] + sum(abs(count - usual) for count in closed)
        strays += max(0, per_cut[len(times)] - usual)
        if usual and strays <= max(_FEW, _SHARE * len(series)):
            return True
    return False


def _by_rounds(
    thread: TrainingThread, loaders: list[LoaderRun], primary: LoaderRun | None, cuts: list[Cut]
) -> Loop:
    """Make the loop of a thread whose own deliveries do not account for its rounds."""
    rounds_ns = thread.rounds.steps_ns
    why = ""
    if not thread.handed and not (thread.handing and _awake(thread)):
        taken = sum(len(loader.deliveries) for loader in loaders)
        if primary is None and (thread.handing or thread.unhanded):
            why = _unhanded(thread)
        elif primary is None:
            why = f"the program trained {len(rounds_ns)} times, and no loader that is known delivered to it"
        else:
            why = f"the program trained {len(rounds_ns)} times, and its loaders delivered {taken} batches"
    if primary is None or 2 * len(cuts) < len(rounds_ns):
        cuts = [Cut(time_ns) for time_ns in rounds_ns]
        primary = _most(loaders, thread.handed) or primary or _fed(loaders, thread)
    return Loop(primary, _steps(cuts, thread, loaders), len(cuts), False, why, thread)


def _awake(thread: TrainingThread) -> bool:
    """Tell whether the thread hardly slept, asks and waits that were seen aside."""
    return thread.off_cpu_fraction is not None and thread.off_cpu_fraction <= _SHARE


def _unhanded(thread: TrainingThread) -> str:
    """Say why batches that another thread took, and handed over unseen, leave the wait unknown; its bound."""
    slept = thread.off_cpu_fraction
    if slept is not None and _awake(thread):
        return f"at most {100 * slept:.0f} %: another thread takes the batches, and this one slept no longer"
    return "another thread takes the batches, and how it hands them over cannot be seen"


def _most(loaders: list[LoaderRun], deliveries: list[Delivery]) -> LoaderRun | None:
    counts = Counter(delivery.loader for delivery in deliveries)
    return max(
        (loader for loader in loaders if counts[loader.number]),
        key=lambda loader: counts[loader.number],
        default=None,
    )


def _fed(loaders: list[LoaderRun], thread: TrainingThread) -> LoaderRun | None:
    """The loader with most batches of other threads, which are handed over without a wait."""
    others = thread.handing | thread.unhanded
    return _most(loaders, [item for loader in loaders for item in loader.deliveries if item.tid in others])


def _marked(marks: list[int], thread: TrainingThread, loaders: list[LoaderRun]) -> Loop:
    """Make a step from each mark to the next; loaders that evaluate are no source of theirs."""
    sources = {loader.number for loader in loaders if loader.kind == "other"}
    awaited = [item for item in [*thread.asked, *thread.handed] if item.loader in sources or item.handed_over]
    primary = _most(loaders, awaited)
    awaited.sort(key=lambda item: item.delivered_ns)
    times = [item.delivered_ns for item in awaited]
    steps = []
    for start_ns, end_ns in pairwise(marks):
        own = tuple(awaited[bisect_left(times, start_ns) : bisect_left(times, end_ns)])
        samples = _sum([item.samples for item in own]) if own else None
        steps.append(Step(None, start_ns, end_ns, own, (), samples))
    why = "" if primary else "its steps are marked, and nothing tells what the loop takes batches from"
    return Loop(primary, steps, len(marks), True, why, thread)


def _steps(cuts: list[Cut], thread: TrainingThread, loaders: list[LoaderRun]) -> list[Step]:
    """Make the closed steps, from cut to cut, less evaluation passes."""
    left_out = _evaluations(cuts, thread, loaders)
    left_out_starts = [start_ns for start_ns, _ in left_out]
    awaited = sorted([*thread.asked, *thread.handed], key=lambda item: item.delivered_ns)
    times = [item.delivered_ns for item in awaited]
    steps = []
    for cut, following in pairwise(cuts):
        start_ns, end_ns = cut.time_ns, following.time_ns
        first, behind = bisect_left(left_out_starts, start_ns), bisect_left(left_out_starts, end_ns)
        evaluation = tuple(left_out[first:behind])
        inside = awaited[bisect_right(times, start_ns) : bisect_right(times, end_ns)]
        own = tuple(item for item in inside if not _is_inside(item, evaluation))
        taken = awaited[bisect_left(times, start_ns) : bisect_left(times, end_ns)]
        taken = [item for item in taken if not _is_inside(item, evaluation)]
        steps.append(Step(cut.delivery, start_ns, end_ns, own, evaluation, _samples(cut, taken)))
    return steps


def _is_inside(item: Delivery, intervals: tuple[Interval, ...]) -> bool:
    return any(start_ns < item.delivered_ns <= end_ns for start_ns, end_ns in intervals)


def _samples(cut: Cut, taken: list[Delivery]) -> int | None:
    """Sum up the samples of the batches of a step; None where those of one are unknown, or without any."""
    opening = cut.delivery
    counts = [item.samples for item in taken]
    if opening is not None and cut.time_ns != opening.delivered_ns:  # taken ahead: it works on another one
        others = [item.samples for item in taken if item.loader != opening.loader]
        counts = [opening.samples, *others]
    return _sum(counts) if counts else None


def _sum(counts: list[int | None]) -> int | None:
    known = [count for count in counts if count is not None]
    return sum(known) if len(known) == len(counts) else None


def _evaluations(cuts: list[Cut], thread: TrainingThread, loaders: list[LoaderRun]) -> list[Interval]:
    """Find the evaluation passes: from their first ask to the loop's next one, inside one step each.

    The trainer says so, or the pass lies whole in a step, ended or gave two batches or more, and nothing was
    trained during it.
    """
    times = [cut.time_ns for cut in cuts]
    opening = {cut.delivery.of_pass for cut in cuts if cut.delivery is not None}
    asked = {(item.loader, *item.of_pass) for item in thread.asked}
    next_asks = _asks(loaders, opening, thread)
    found: list[Interval] = []
    by_trainer = any(cut.delivery is not None and cut.delivery.phase for cut in cuts)
    for loader in loaders:
        for key, each in loader.passes.items():
            own = (loader.number, *key) in asked or (not each.batches and each.exhausted_ns is not None)
            if not own or key in opening:
                continue
            at = bisect_right(times, each.asked_ns) - 1
            if at < 0 or at + 1 >= len(times):
                continue
            start_ns = each.start_ns if each.start_ns >= times[at] else each.asked_ns
            whole = each.end_ns <= times[at + 1]
            told = by_trainer and each.phase is not None and each.phase != _TRAINING
            complete = each.exhausted_ns is not None or each.batches > 1
            trained = thread.rounds.between(each.asked_ns, each.end_ns)
            if told or (whole and complete and not trained):
                next_ns = first_at(next_asks, each.end_ns)
                end_ns = min(next_ns if next_ns is not None else each.end_ns, times[at + 1])
                found.append((start_ns, max(start_ns, end_ns)))
    return _merged(found)


def _asks(loaders: list[LoaderRun], opening: set[PassKey], thread: TrainingThread) -> list[int]:
    """When the passes that open steps were begun and asked, and when waits for a hand-over began."""
    found = [item.wait_start_ns for item in thread.handed]
    found += [item.wait_start_ns for item in thread.asked if item.of_pass in opening]
    for key, each in _passes(loaders).items():
        if key in opening:
            found += [each.start_ns, *([each.exhausted_ns[0]] if each.exhausted_ns else [])]
    return sorted(found)


def _merged(found: list[Interval]) -> list[Interval]:
    merged: list[Interval] = []
    for start_ns, end_ns in sorted(found):
        if merged and start_ns < merged[-1][1]:
            merged[-1] = merged[-1][0], max(merged[-1][1], end_ns)
        else:
            merged.append((start_ns, end_ns))
    return merged
