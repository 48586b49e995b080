"""What a step took in all on both sides: with the start of workers, iterators made anew, and evaluations."""

from __future__ import annotations

import posixpath
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from iotrace.analysis.compare.basis import Rank
from iotrace.analysis.compare.results import PartChange, WholeRun
from iotrace.analysis.compare.spread import differ, spread_of
from iotrace.analysis.compare.step_verdict import BANNERS, times
from iotrace.analysis.host.disturbance import grown_beside_others, grown_between, is_disturbed
from iotrace.analysis.results import (
    ACCOUNT_NAMES,
    CHECKPOINTS,
    FIRST_BATCHES,
    FIRST_SAMPLING,
    FIRST_START,
    ITERATORS,
    LEAST_COLLECTION,
    SAMPLING,
    SKIPPED,
    VALIDATION,
    VALIDATION_ITERATORS,
    WRITING,
    Account,
    Trust,
)

_FIRST = (FIRST_START, FIRST_SAMPLING)
_STARTING = (*_FIRST, ITERATORS, SAMPLING, FIRST_BATCHES, VALIDATION_ITERATORS)
_OF_VALIDATION = (VALIDATION, VALIDATION_ITERATORS)
_BESIDE_STEPS = (*_STARTING, SKIPPED, VALIDATION, CHECKPOINTS)
_ANEW = {ITERATORS: "starting workers anew", FIRST_BATCHES: "first batches of workers started anew"}
_WITH_FIRST_BATCHES = "starting workers of its validation and their first batches"
_PICKLING = "pickling for spawned workers"  # which starting them holds
_MOSTLY_STARTING = 0.5  # of the change: what starting has to have for the whole to be judged
_BETWEEN = 0.5  # by what share a part's time may grow from one crowd of neighbours to another that is alike
_DECIDES, _NAMED = 0.1, 0.02  # of the longer whole: a part that is judged by, one that is named


def whole_run(ranks: tuple[Rank, Rank], trusts: tuple[Trust, Trust]) -> WholeRun | None:
    """Compare the whole loops and the first starts, per step; None where a side does not have them.

    A first start is spread over the steps of the longer run on both sides.
    """
    one, other = (rank.account for rank in ranks)
    if one is None or other is None or one.step_ms is None or other.step_ms is None:
        return None
    # Workers start once, however many steps follow.
    most = max(one.steps, other.steps)
    steps_ms = [(account.loop_ns / account.steps + account.first_ns / most) / 1e6 for account in (one, other)]
    parts_ms = {
        part.name: [
            account.part_ns(part.name) / (most if part.name in _FIRST else account.steps) / 1e6
            for account in (one, other)
        ]
        for part in one.parts
        if (part.in_loop or part.name in _FIRST) and _recorded(part.name, (one, other))
    }
    by_starting_ms = sum(
        after - before for before, after in (parts_ms.get(name, [0.0, 0.0]) for name in _STARTING)
    )
    by_ms = steps_ms[1] - steps_ms[0]
    spreads = [spread_of(trust) for trust in trusts]
    verdict = None
    if by_ms and by_starting_ms / by_ms >= _MOSTLY_STARTING and differ(steps_ms, spreads):
        verdict = "faster" if by_ms < 0 else "slower"
    disturbed = any(is_disturbed(rank.system.host) for rank in ranks)
    changed = list(_changed(ranks, (one, other), parts_ms, spreads, disturbed))
    decide_ms = _DECIDES * max(steps_ms)
    by_parts_ms = sum(part.by_ms for part in changed if abs(part.by_ms) >= decide_ms and not part.unsure)
    likely = verdict is None and disturbed
    # Beside the steps as they are: what they lost or won meanwhile may not undo it.
    if verdict is None and by_parts_ms and by_ms / by_parts_ms >= _MOSTLY_STARTING:
        verdict = "faster" if by_ms < 0 else "slower"
    changed += _pickled(ranks, (one, other), spreads, disturbed)
    return WholeRun(
        verdict=verdict,
        likely=verdict is not None and likely,
        changed=sorted(changed, key=lambda part: -abs(part.by_ms)),
        step_ms=steps_ms,
        change_pct=100 * by_ms / steps_ms[0],
        parts_ms=parts_ms,
        starting_ms=[sum(parts_ms.get(name, [0.0, 0.0])[side] for name in _STARTING) for side in (0, 1)],
    )


def _changed(
    ranks: tuple[Rank, Rank],
    accounts: tuple[Account, Account],
    parts_ms: dict[str, list[float]],
    spreads: Sequence[float],
    disturbed: bool,
) -> Iterator[PartChange]:
    """Yield the parts beside the steps that changed beyond what such times differ by, the largest first.

    How long a part takes is the neighbours' doing, too, as far as times may have grown beside them; how often
    it happens is not. A program suffers alike from neighbours that are alike: what they do then is `unsure`.
    """
    hosts = [rank.system.host for rank in ranks]
    grown = grown_beside_others(hosts, "wall")
    between = max(_BETWEEN, grown_between(*hosts))
    longer_ms = max(account.step_ms or 0.0 for account in accounts)
    found = []
    written = list(_of_events(ranks, accounts))
    names = (
        _BESIDE_STEPS
        if any(part.what.startswith("writing") for part in written)
        else (*_BESIDE_STEPS, WRITING)
    )
    for what, times_ms, counts, bounded in (*_of_account(accounts, parts_ms, names), *written):
        worth = (
            _DECIDES if what in [ACCOUNT_NAMES[name] for name in _FIRST] else _NAMED
        )  # of a single time nothing is a mean
        if abs(times_ms[1] - times_ms[0]) < worth * longer_ms:
            continue
        known = [count for count in counts if count is not None]
        times = known if len(known) == len(counts) else None
        often = [count / account.steps for count, account in zip(times or (), accounts, strict=False)]
        more_often = often and differ(often, spreads) and _rise(often) == _rise(times_ms)
        by_others = disturbed and not more_often and max(times_ms) <= (1 + grown) * min(times_ms)
        unsure = by_others or not differ(times_ms, spreads)
        if unsure and (not disturbed or max(times_ms) <= (1 + between) * min(times_ms)):
            continue
        found.append(PartChange(what=what, step_ms=times_ms, times=times, bounded=bounded, unsure=unsure))
    yield from sorted(found, key=lambda part: -abs(part.by_ms))


def _pickled(
    ranks: tuple[Rank, Rank],
    accounts: tuple[Account, Account],
    spreads: Sequence[float],
    disturbed: bool,
) -> list[PartChange]:
    """Return what pickling the dataset for spawned workers took, where it changed beyond chance."""
    spawned = [account.spawned for account in accounts]
    times_ms = [
        each.pickle_ns / account.steps / 1e6
        for each, account in zip(spawned, accounts, strict=True)
        if each is not None
    ]
    if len(times_ms) < len(accounts):
        return []
    longer_ms = max(account.step_ms or 0.0 for account in accounts)
    grown = grown_beside_others([rank.system.host for rank in ranks], "wall") if disturbed else 0.0
    if abs(times_ms[1] - times_ms[0]) < _NAMED * longer_ms or not differ(times_ms, spreads):
        return []
    if max(times_ms) <= (1 + grown) * min(times_ms):
        return []
    return [PartChange(what=_PICKLING, step_ms=times_ms, times=None)]


class _Part(NamedTuple):
    """Its name; ms a step and how often, on both sides; whether the smaller one is an upper bound."""

    what: str
    times_ms: list[float]
    counts: Sequence[int | None]
    bounded: bool = False


def _of_account(
    accounts: tuple[Account, Account], parts_ms: dict[str, list[float]], names: Sequence[str]
) -> Iterator[_Part]:
    for name in names:
        if not _recorded(name, accounts):
            continue
        counts = [next((part.times for part in each.parts if part.name == name), None) for each in accounts]
        what = _WITH_FIRST_BATCHES if name == VALIDATION_ITERATORS else ACCOUNT_NAMES.get(name, name)
        restarted = [each.restarted for each in accounts]
        if name in _ANEW and restarted[0] != restarted[1]:  # those of kept workers cost little
            what, counts = _ANEW[name], [*restarted]
        yield _Part(what, parts_ms.get(name, [0.0, 0.0]), counts)


def _recorded(name: str, accounts: tuple[Account, Account]) -> bool:
    """Whether both sides recorded a part.

    Validation is where a loader feeds it: of none nothing is known, unless the whole is longer by most of it.
    """
    parts = [{part.name: part for part in account.parts} for account in accounts]
    if any(name in each and each[name].ns is None for each in parts):
        return False
    if name not in _OF_VALIDATION:
        return True
    by_ms = [
        sum(account.part_ns(each) for each in _OF_VALIDATION) / account.steps / 1e6 for account in accounts
    ]
    if all(by_ms):
        return True
    whole_ms = (accounts[1].step_ms or 0.0) - (accounts[0].step_ms or 0.0)
    return by_ms[0] != by_ms[1] and whole_ms / (by_ms[1] - by_ms[0]) >= _MOSTLY_STARTING


def _of_events(ranks: tuple[Rank, Rank], accounts: tuple[Account, Account]) -> Iterator[_Part]:
    """Yield what collecting garbage takes of the steps, and what writing files takes of those that do it.

    Writing takes more than its calls, which the account has.
    """
    collected = [
        next((each for each in rank.loop_events if each.kind == "collection"), None) for rank in ranks
    ]
    seen = next(filter(None, collected), None)
    if seen is not None:  # where a side has none, it took less of its loop than is kept
        times_ms = [
            1e3 * own.seconds / account.steps
            if own
            else LEAST_COLLECTION * account.loop_ns / account.steps / 1e6
            for own, account in zip(collected, accounts, strict=True)
        ]
        yield _Part(seen.what, times_ms, [None, None], None in collected)
    written = [
        {_place(each.file): each for each in rank.loop_events if each.kind == "writing"} for rank in ranks
    ]
    for place in {**written[0], **written[1]}:
        own = [each.get(place) for each in written]
        file = next(each.file for each in own if each is not None)
        times_ms = [
            0.0 if each is None else 1e3 * each.seconds / account.steps
            for each, account in zip(own, accounts, strict=True)
        ]
        counts = [0 if each is None else each.count for each in own]
        yield _Part(f"writing {file or 'files'}", times_ms, counts)


def _place(file: str | None) -> tuple[str, str]:
    """What stays the same of files that carry the number of a step: their directory and ending."""
    return posixpath.dirname(file or ""), posixpath.splitext(file or "")[1]


def _rise(values: Sequence[float]) -> bool:
    return values[1] > values[0]


def tells(whole: WholeRun, of_steps: str) -> bool:
    """Whether the whole loop says more than its steps: what is likely does where they say nothing alike."""
    return not whole.likely or of_steps != whole.verdict


def main_part(whole: WholeRun) -> PartChange | None:
    """Return the part beside the steps that has most of the change, where that is a tenth of the whole."""
    beside = (part for part in whole.changed if part.what != _PICKLING)  # which is in starting workers
    same_way = [part for part in beside if part.by_ms * whole.by_ms > 0 and not part.unsure]
    most = max(same_way, key=lambda part: abs(part.by_ms), default=None)
    return most if most is not None and abs(most.by_ms) >= _DECIDES * max(whole.step_ms) else None


def grown_part(whole: WholeRun) -> PartChange | None:
    """Return the part that made a whole longer; None where starting workers did."""
    by_starting_ms = whole.starting_ms[1] - whole.starting_ms[0]
    is_starting = whole.by_ms and by_starting_ms / whole.by_ms >= _MOSTLY_STARTING
    return None if is_starting else main_part(whole)


def whole_text(verdict: str, whole: WholeRun, steps_ms: list[float], unit: str) -> str:
    """Say what a step took in all on both sides, or so many samples, and what changed that most."""
    in_all, starting, measured = (
        f"{one:.1f} -> {other:.1f}" for one, other in (whole.step_ms, whole.starting_ms, steps_ms)
    )
    part = main_part(whole)
    did = f"starting workers and first batches {starting}" if part is None else f"{part.what} {part.shown}"
    likely = "LIKELY " if part is not None and whole.likely else ""
    by = times(1 + whole.change_pct / 100)
    return (
        f"{likely}{BANNERS[verdict]} {by}: {in_all} ms {unit} in all, of which {did}; "
        f"a measured step took {measured} ms"
    )
