"""What a step took in all on both sides: with the start of workers, iterators made anew, and evaluations."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from iotrace.analysis.compare.basis import Rank
from iotrace.analysis.compare.results import PartChange, WholeRun
from iotrace.analysis.host.disturbance import is_disturbed
from iotrace.analysis.results import (
    ACCOUNT_NAMES,
    BAD,
    CHECKPOINTS,
    FIRST_BATCHES,
    FIRST_START,
    ITERATORS,
    VALIDATION,
    VALIDATION_ITERATORS,
    WRITING,
    Account,
    Trust,
)

_STARTING = (FIRST_START, ITERATORS, FIRST_BATCHES, VALIDATION_ITERATORS)
_BESIDE_STEPS = (*_STARTING, VALIDATION, CHECKPOINTS)
# What is seen a few times in a run differs more from run to run than a mean of many steps.
_SPREAD, _SPREAD_UNTRUSTED = 0.25, 0.5
_MOSTLY = 0.5  # of the change: what starting has to have for the whole to be judged
_WORTH = 0.1  # of the longer whole


def whole_run(ranks: tuple[Rank, Rank], trusts: tuple[Trust, Trust]) -> WholeRun | None:
    """Compare the whole loops and the first starts, per step; None where a side does not have them."""
    one, other = (rank.account for rank in ranks)
    if one is None or other is None or one.step_ms is None or other.step_ms is None:
        return None
    steps_ms = [one.step_ms, other.step_ms]
    parts_ms = {
        part.name: [account.part_ns(part.name) / account.steps / 1e6 for account in (one, other)]
        for part in one.parts
        if part.in_loop or part.name == FIRST_START
    }
    by_starting_ms = sum(
        after - before for before, after in (parts_ms.get(name, [0.0, 0.0]) for name in _STARTING)
    )
    by_ms = steps_ms[1] - steps_ms[0]
    spreads = [_SPREAD_UNTRUSTED if trust.level == BAD else _SPREAD for trust in trusts]
    verdict = None
    if by_ms and by_starting_ms / by_ms >= _MOSTLY and _differ(steps_ms, spreads):
        verdict = "faster" if by_ms < 0 else "slower"
    disturbed = any(is_disturbed(rank.system.host) for rank in ranks)
    changed = list(_changed(ranks, (one, other), parts_ms, spreads, disturbed))
    by_parts_ms = sum(part.step_ms[1] - part.step_ms[0] for part in changed)
    likely = verdict is None and disturbed
    # Beside the steps as they are: what they lost or won meanwhile may not undo it.
    if verdict is None and by_parts_ms and by_ms / by_parts_ms >= _MOSTLY:
        verdict = "faster" if by_ms < 0 else "slower"
    return WholeRun(
        verdict=verdict,
        likely=verdict is not None and likely,
        changed=changed,
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

    How long a part takes is the neighbours' doing, too, how often it happens is not.
    """
    worth_ms = _WORTH * max(account.step_ms or 0.0 for account in accounts)
    found = []
    written = list(_of_events(ranks, accounts))
    names = _BESIDE_STEPS if written else (*_BESIDE_STEPS, WRITING)
    for what, times_ms, counts in (*_of_account(accounts, parts_ms, names), *written):
        if abs(times_ms[1] - times_ms[0]) < worth_ms or not _differ(times_ms, spreads):
            continue
        known = [count for count in counts if count is not None]
        times = known if len(known) == len(counts) else None
        often = [count / account.steps for count, account in zip(times or (), accounts, strict=False)]
        if disturbed and not (often and _differ(often, spreads) and _rise(often) == _rise(times_ms)):
            continue
        found.append(PartChange(what=what, step_ms=times_ms, times=times))
    yield from sorted(found, key=lambda part: -abs(part.step_ms[1] - part.step_ms[0]))


_Part = tuple[str, list[float], list[int | None]]  # its name; ms a step and how often, on both sides


def _of_account(
    accounts: tuple[Account, Account], parts_ms: dict[str, list[float]], names: Sequence[str]
) -> Iterator[_Part]:
    for name in names:
        counts = [next((part.times for part in each.parts if part.name == name), None) for each in accounts]
        what = ACCOUNT_NAMES.get(name, name)
        restarted = [each.restarted for each in accounts]
        if name == ITERATORS and restarted[0] != restarted[1]:  # those with kept workers cost little
            what, counts = "starting workers anew", [*restarted]
        yield what, parts_ms.get(name, [0.0, 0.0]), counts


def _of_events(ranks: tuple[Rank, Rank], accounts: tuple[Account, Account]) -> Iterator[_Part]:
    """Yield what writing files takes of the steps that do it: more than its calls, which the account has."""
    written = [{each.file: each for each in rank.loop_events if each.kind == "writing"} for rank in ranks]
    for file in {**written[0], **written[1]}:
        own = [each.get(file) for each in written]
        times_ms = [
            0.0 if each is None else 1e3 * each.seconds / account.steps
            for each, account in zip(own, accounts, strict=True)
        ]
        yield f"writing {file or 'files'}", times_ms, [0 if each is None else each.count for each in own]


def _rise(values: Sequence[float]) -> bool:
    return values[1] > values[0]


def _differ(values: Sequence[float], spreads: Sequence[float]) -> bool:
    """Whether two values differ by more than both may err."""
    (low, high), (other_low, other_high) = (
        (value * (1 - spread), value * (1 + spread)) for value, spread in zip(values, spreads, strict=True)
    )
    return other_high < low or high < other_low
