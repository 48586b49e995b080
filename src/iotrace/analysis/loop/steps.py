"""Steps of the training loop, from cut to cut: whose they are, which waits lie in them, what stays unknown.

Definitions: docs/definitions.md, "Steps".
"""

from __future__ import annotations

from itertools import pairwise

import msgspec
import numpy as np
import numpy.typing as npt

from iotrace.analysis.intervals import Times, distinct, grouped
from iotrace.analysis.loop.cuts import SHARE, Cuts, cuts_of, explains, first_at, no_cuts
from iotrace.analysis.loop.deliveries import Deliveries, Delivery, LoaderRun, Pass, PassKey
from iotrace.analysis.loop.step_table import StepTable
from iotrace.analysis.loop.threads import TrainingThread, training_thread
from iotrace.analysis.loop.unfed import unfed_evaluations
from iotrace.analysis.table import NONE, key_of, match, sums
from iotrace.session import names
from iotrace.sources.columns import Columns
from iotrace.sources.session import Rank

_TRAINING = "train"
NO_LOADER = "no loader that iotrace knows was iterated"


class Loop(msgspec.Struct, frozen=True):
    """A rank's training loop: the loader that it waits for, if that is known, and all its closed steps.

    `begun` counts the steps, also one without a known end. `marked`: the steps are between marks of the
    program's. `unknown_why` is why the data wait is not known; empty where it is.
    """

    primary: LoaderRun | None
    steps: StepTable
    begun: int | None = None
    marked: bool = False
    unknown_why: str = ""
    thread: TrainingThread | None = None


def loop_of(rank: Rank, loaders: list[LoaderRun], no_input: str = "") -> Loop:
    """Find the training loop of a rank with these `loaders`; `no_input` is why none is known to feed it."""
    thread = training_thread(rank.main, loaders)
    marks = rank.main.clock.times_to_session_ns(rank.main.rows(names.MARK_ROW)["mono_ns"])
    if thread is None:
        why = no_input or ("nothing tells what the loop takes its batches from" if len(marks) else NO_LOADER)
        return Loop(None, _closed(marks, Deliveries.joined([])), len(marks) or None, bool(len(marks)), why)
    primary, cuts = _primary(thread, loaders)
    trained = bool(len(thread.rounds.times_ns))
    if primary is not None and trained and not explains(cuts, thread.rounds):
        training = [loader.number for loader in loaders if loader.training]
        asked = thread.asked[thread.asked.may_train & np.isin(thread.asked["loader"], training)]
        together = cuts_of(asked, _passes(loaders), thread.rounds)
        cuts = together if explains(together, thread.rounds) else cuts
    elif primary is not None and all(loader.description.pool for loader in loaders) and _in_turn(loaders):
        cuts = cuts_of(
            thread.asked, _passes(loaders), thread.rounds
        )  # the next pool of a loop goes on with it
    trains = primary is not None and primary.training
    if len(marks) and not trains:
        return _marked(marks, thread, loaders)
    if trained and not (primary and explains(cuts, thread.rounds)):
        return _by_rounds(thread, loaders, primary, cuts, no_input)
    why = no_input
    if not trained:
        if len(thread.handed) and not len(cuts):
            why = "another thread takes the batches, and nothing tells where a step begins"
        elif thread.tid != rank.main.pid:
            why = "a thread other than the main one takes the batches, and nothing tells which one uses them"
    if primary is None:
        primary = _most(loaders, thread.handed)
    return Loop(primary, _steps(cuts, thread, loaders), len(cuts) or None, False, why, thread)


def _primary(thread: TrainingThread, loaders: list[LoaderRun]) -> tuple[LoaderRun | None, Cuts]:
    """Choose the loader of the thread with most cuts, and give them; the one asked first among equals."""
    trained_on = thread.asked[thread.asked.may_train]
    chosen = trained_on if len(trained_on) else thread.asked
    of_loader = np.argsort(chosen["loader"], kind="stable")
    numbers, first, _ = grouped(chosen["loader"][of_loader])
    parts: dict[int, Times] = dict(zip(numbers.tolist(), np.split(of_loader, first[1:]), strict=False))
    found: tuple[LoaderRun | None, Cuts] = None, no_cuts(chosen)
    by_number = {loader.number: loader for loader in loaders}
    for number, rows in sorted(parts.items(), key=lambda part: int(chosen["wait_start_ns"][part[1][0]])):
        cuts = cuts_of(chosen[rows], by_number[number].passes, thread.rounds)
        if len(cuts) > len(found[1]):
            found = by_number[number], cuts
    return found


def _in_turn(loaders: list[LoaderRun]) -> bool:
    """Tell whether the loop takes from one of these after the other, not from several in a turn."""
    times = sorted(
        (each.deliveries["delivered_ns"][0], each.deliveries["delivered_ns"][-1]) for each in loaders
    )
    return all(before[1] <= after[0] for before, after in pairwise(times))


def _passes(loaders: list[LoaderRun]) -> dict[PassKey, Pass]:
    """All passes: those of all loaders of a process have different iterators."""
    return {key: each for loader in loaders for key, each in loader.passes.items()}


def _by_rounds(
    thread: TrainingThread,
    loaders: list[LoaderRun],
    primary: LoaderRun | None,
    cuts: Cuts,
    no_input: str,
) -> Loop:
    """Make the loop of a thread whose own deliveries do not account for its rounds."""
    rounds_ns = thread.rounds.steps_ns
    why = ""
    if not len(thread.handed) and not (thread.handing and _awake(thread)):
        # What the loop iterates has taken the items of the pools behind it.
        own = [loader for loader in loaders if not loader.description.pool] or loaders
        taken = sum(len(loader.deliveries) for loader in own)
        if primary is None and (thread.handing or thread.unhanded):
            why = _unhanded(thread)
        elif primary is None:
            why = (
                no_input
                or f"the program trained {len(rounds_ns)} times, but no loader that iotrace knows fed it"
            )
        else:
            why = f"the program trained {len(rounds_ns)} times, and its loaders delivered {taken} batches"
    # Of batches that the program pools, several rounds lie between two deliveries.
    pooled = bool(why) and len(cuts) < len(rounds_ns)
    if primary is None or pooled or 2 * len(cuts) < len(rounds_ns):
        cuts = Cuts(rounds_ns, np.full(len(rounds_ns), NONE), thread.asked)
        primary = _most(loaders, thread.handed) or primary or _fed(loaders, thread)
    return Loop(primary, _steps(cuts, thread, loaders), len(cuts), False, why, thread)


def _awake(thread: TrainingThread) -> bool:
    """Tell whether the thread hardly slept, asks and waits that were seen aside."""
    return thread.off_cpu_fraction is not None and thread.off_cpu_fraction <= SHARE


def _unhanded(thread: TrainingThread) -> str:
    """Say why batches that another thread took, and handed over unseen, leave the wait unknown; its bound."""
    slept = thread.off_cpu_fraction
    if slept is not None and _awake(thread):
        return f"at most {100 * slept:.0f} %: another thread takes the batches, and this one slept no longer"
    return "another thread takes the batches, and how it hands them over cannot be seen"


def _most(loaders: list[LoaderRun], deliveries: Deliveries) -> LoaderRun | None:
    numbers, _, of = grouped(deliveries["loader"])
    by_number = dict(zip(numbers.tolist(), np.bincount(of).tolist(), strict=True))
    return max(
        (loader for loader in loaders if loader.number in by_number),
        key=lambda loader: by_number[loader.number],
        default=None,
    )


def _fed(loaders: list[LoaderRun], thread: TrainingThread) -> LoaderRun | None:
    """The loader with most batches of other threads, which are handed over without a wait."""
    deliveries = Deliveries.joined(loader.deliveries for loader in loaders)
    others = np.array([*thread.handing, *thread.unhanded], np.int64)
    return _most(loaders, deliveries[np.isin(deliveries["tid"], others)])


def _by_delivery(thread: TrainingThread) -> Deliveries:
    """What the thread awaits, in order of delivery."""
    awaited = Deliveries.joined([thread.asked, thread.handed])
    return awaited[np.argsort(awaited["delivered_ns"], kind="stable")]


_NO_WAITS = {
    **dict.fromkeys(("opened", "samples"), NONE),
    **dict.fromkeys(("first", "behind", "first_left_out", "behind_left_out"), 0),
}


def _closed(bounds: Times, awaited: Deliveries, **columns: npt.ArrayLike) -> StepTable:
    """Make a step from each bound to the next, without evaluation passes; `columns` tell of waits in them."""
    rows = {"start_ns": bounds[:-1], "end_ns": bounds[1:], **_NO_WAITS, **columns}
    return StepTable(Columns(max(0, len(bounds) - 1), rows), awaited[:0], awaited, np.empty((0, 2), np.int64))


def _marked(marks: Times, thread: TrainingThread, loaders: list[LoaderRun]) -> Loop:
    """Make a step from each mark to the next; loaders that evaluate are no source of theirs."""
    sources = [loader.number for loader in loaders if loader.kind == "other"]
    awaited = _by_delivery(thread)
    awaited = awaited[np.isin(awaited["loader"], sources) | (awaited["handed_over"] != 0)]
    primary = _most(loaders, awaited)
    bounds = np.searchsorted(awaited["delivered_ns"], marks)
    first, behind = bounds[:-1], bounds[1:]
    steps = _closed(marks, awaited, first=first, behind=behind, samples=_samples(awaited, first, behind))
    why = "" if primary else "its steps are marked, and nothing tells what the loop takes batches from"
    return Loop(primary, steps, len(marks), True, why, thread)


def _steps(cuts: Cuts, thread: TrainingThread, loaders: list[LoaderRun]) -> StepTable:
    """Make the closed steps, from cut to cut, less evaluation passes."""
    left_out = _evaluations(cuts, thread, loaders)
    awaited = _by_delivery(thread)
    # Within an evaluation: in ``(start, end]``.
    at = np.searchsorted(left_out[:, 0], awaited["delivered_ns"]) - 1
    ends, starts = np.append(left_out[:, 1], np.iinfo(np.int64).min), cuts.times_ns
    outside = (at < 0) | (awaited["delivered_ns"] > ends[at])
    delivered_in = awaited[outside | (match(awaited["delivered_ns"], starts) >= 0)]
    awaited = awaited[outside]
    delivered = awaited["delivered_ns"]
    closed = slice(0, max(0, len(starts) - 1))
    bounds, outs = np.searchsorted(delivered, starts, side="right"), np.searchsorted(left_out[:, 0], starts)
    taken = np.searchsorted(delivered_in["delivered_ns"], starts)
    samples = _samples(delivered_in, taken[:-1], taken[1:])
    opened = cuts.opened[closed]
    number = np.where(opened == NONE, NONE, np.cumsum(opened != NONE) - 1)
    opening = cuts.deliveries[opened[opened != NONE]]
    for step in np.flatnonzero(opened != NONE)[opening["delivered_ns"] != starts[closed][opened != NONE]]:
        own = delivered_in[taken[step] : taken[step + 1]]
        samples[step] = _ahead(opening[int(number[step])], own) if len(own) else NONE
    rows = {"start_ns": starts[:-1], "end_ns": starts[1:], "opened": number, "samples": samples}
    rows |= {"first": bounds[:-1], "behind": bounds[1:]}
    rows |= {"first_left_out": outs[:-1], "behind_left_out": outs[1:]}
    return StepTable(Columns(len(opened), rows), opening, awaited, left_out)


def _samples(taken: Deliveries, first: Times, behind: Times) -> Times:
    """Sum up the samples of the batches of each step; `NONE` where those of one are unknown, or of none."""
    unknown = ~taken.known("samples")
    whole = sums(np.where(unknown, 0, taken["samples"]), first, behind)
    return np.where((sums(unknown, first, behind) > 0) | (first >= behind), NONE, whole)


def _ahead(opening: Delivery, taken: Deliveries) -> int:
    """Sum up the samples of a step that works on a batch taken ahead, not on that of its own loader."""
    others = taken[taken["loader"] != opening.loader]
    if opening.samples is None or not others.known("samples").all():
        return NONE
    return opening.samples + int(others["samples"].sum())


def _evaluations(cuts: Cuts, thread: TrainingThread, loaders: list[LoaderRun]) -> Times:
    """Find the evaluation passes: from their first ask to the loop's next one, inside one step each.

    The trainer says so, or the pass lies whole in a step, ended or gave two batches or more, and nothing was
    trained during it. Those that no loader feeds are calls of the model without gradients. The result has the
    shape (passes, 2): start and end, sorted and disjoint.
    """
    times, batches = cuts.times_ns, cuts.opening
    opening = _pass_keys(batches)
    asked = {*zip(*(_firsts(thread.asked)[field].tolist() for field in ("loader", *_PASS)), strict=True)}
    next_asks = _asks(loaders, opening, thread)
    found: list[tuple[int, int]] = []
    by_trainer = any(batches.texts.get(number) for number in distinct(batches["phase"]).tolist())
    for loader in loaders:
        for key, each in loader.passes.items():
            own = (loader.number, *key) in asked or (not each.batches and each.exhausted_ns is not None)
            if not own or key in opening:
                continue
            at = int(np.searchsorted(times, each.asked_ns, side="right")) - 1
            if at < 0 or at + 1 >= len(times):
                continue
            from_ns, until_ns = int(times[at]), int(times[at + 1])
            start_ns = each.start_ns if each.start_ns >= from_ns else each.asked_ns
            whole = each.end_ns <= until_ns
            told = by_trainer and each.phase is not None and each.phase != _TRAINING
            complete = each.exhausted_ns is not None or each.batches > 1
            trained = thread.rounds.between(each.asked_ns, each.end_ns)
            if told or (whole and complete and not trained):
                next_ns = first_at(next_asks, each.end_ns)
                end_ns = min(next_ns if next_ns is not None else each.end_ns, until_ns)
                found.append((start_ns, max(start_ns, end_ns)))
    if len(batches):
        unfed = unfed_evaluations(times, thread.rounds.times_ns, thread.calls, found, loaders, thread.called)
        found += [(start_ns, end_ns) for start_ns, end_ns in unfed.tolist() if start_ns < times[-1]]
    return _merged(found)


_PASS = ("iterator", "epoch")


def _firsts(deliveries: Deliveries) -> Deliveries:
    """One delivery of each pass."""
    return deliveries[grouped(key_of(*(deliveries[field] for field in ("loader", *_PASS))))[1]]


def _pass_keys(deliveries: Deliveries) -> set[PassKey]:
    firsts = _firsts(deliveries)
    return {*zip(firsts["iterator"].tolist(), firsts["epoch"].tolist(), strict=True)}


def _asks(loaders: list[LoaderRun], opening: set[PassKey], thread: TrainingThread) -> Times:
    """When the passes that open steps were begun and asked, and when waits for a hand-over began."""
    keys = np.array([*opening], np.int64).reshape(-1, 2)
    asked = thread.asked
    opens = np.isin(key_of(asked["iterator"], asked["epoch"]), key_of(keys[:, 0], keys[:, 1]))
    found = []
    for key, each in _passes(loaders).items():
        if key in opening:
            found += [each.start_ns, *([each.exhausted_ns[0]] if each.exhausted_ns else [])]
    begun = np.array(found, np.int64)
    return np.sort(np.concatenate((thread.handed["wait_start_ns"], asked["wait_start_ns"][opens], begun)))


def _merged(found: list[tuple[int, int]]) -> Times:
    """Join passes that overlap. Not `union`: those that touch at a cut belong to two steps."""
    merged: list[tuple[int, int]] = []
    for start_ns, end_ns in sorted(found):
        if merged and start_ns < merged[-1][1]:
            merged[-1] = merged[-1][0], max(merged[-1][1], end_ns)
        else:
            merged.append((start_ns, end_ns))
    return np.array(merged, np.int64).reshape(-1, 2)
