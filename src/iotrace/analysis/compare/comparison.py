"""What changed between two sessions, and why: what ``iotrace compare`` prints.

What changed between two sessions: the step, the causes of its wait, the files; with intervals.

What a step took in all on both sides: with the start of workers, iterators made anew, and evaluations.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timezone
from typing import TypeVar

import numpy as np
from msgspec.structs import replace

from iotrace.analysis.compare.basis import Basis, Rank, rank_pair
from iotrace.analysis.compare.results import (
    COMMIT,
    DATA,
    PROGRAM,
    Changed,
    Comparison,
    Differing,
    PartChange,
    Side,
    StageChange,
    WholeRun,
)
from iotrace.analysis.compare.same_work import (
    both_names,
    differences,
    new_names,
    read_bytes,
    renamed,
    replaced,
    under_old_names,
)
from iotrace.analysis.compare.spread import cpu_slower_pct
from iotrace.analysis.compare.stage_changes import stage_changes
from iotrace.analysis.compare.step_verdict import BANNERS, judge_step
from iotrace.analysis.host.disturbance import TRACING_COST, grown_beside_others, is_disturbed
from iotrace.analysis.resampling import Floats, interval_of, resampled_means
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
    StepBlocks,
    Trust,
)

_STARTING = (FIRST_START, ITERATORS, FIRST_BATCHES, VALIDATION_ITERATORS)
_OF_VALIDATION = (VALIDATION, VALIDATION_ITERATORS)
_BESIDE_STEPS = (*_STARTING, VALIDATION, CHECKPOINTS)
# What is seen a few times in a run differs more from run to run than a mean of many steps.
_SPREAD, _SPREAD_UNTRUSTED = 0.25, 0.5
_MOSTLY_STARTING = 0.5  # of the change: what starting has to have for the whole to be judged
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
        if (part.in_loop or part.name == FIRST_START) and _recorded(part.name, (one, other))
    }
    by_starting_ms = sum(
        after - before for before, after in (parts_ms.get(name, [0.0, 0.0]) for name in _STARTING)
    )
    by_ms = steps_ms[1] - steps_ms[0]
    spreads = [_SPREAD_UNTRUSTED if trust.level == BAD else _SPREAD for trust in trusts]
    verdict = None
    if by_ms and by_starting_ms / by_ms >= _MOSTLY_STARTING and _differ(steps_ms, spreads):
        verdict = "faster" if by_ms < 0 else "slower"
    disturbed = any(is_disturbed(rank.system.host) for rank in ranks)
    changed = list(_changed(ranks, (one, other), parts_ms, spreads, disturbed))
    by_parts_ms = sum(part.step_ms[1] - part.step_ms[0] for part in changed)
    likely = verdict is None and disturbed
    # Beside the steps as they are: what they lost or won meanwhile may not undo it.
    if verdict is None and by_parts_ms and by_ms / by_parts_ms >= _MOSTLY_STARTING:
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

    How long a part takes is the neighbours' doing, too, as far as times may have grown beside them; how often
    it happens is not.
    """
    grown = grown_beside_others([rank.system.host for rank in ranks], "wall")
    worth_ms = _WORTH * max(account.step_ms or 0.0 for account in accounts)
    found = []
    written = list(_of_events(ranks, accounts))
    names = (
        _BESIDE_STEPS
        if any(what.startswith("writing") for what, *_ in written)
        else (*_BESIDE_STEPS, WRITING)
    )
    for what, times_ms, counts in (*_of_account(accounts, parts_ms, names), *written):
        if abs(times_ms[1] - times_ms[0]) < worth_ms or not _differ(times_ms, spreads):
            continue
        known = [count for count in counts if count is not None]
        times = known if len(known) == len(counts) else None
        often = [count / account.steps for count, account in zip(times or (), accounts, strict=False)]
        more_often = often and _differ(often, spreads) and _rise(often) == _rise(times_ms)
        if disturbed and not more_often and max(times_ms) <= (1 + grown) * min(times_ms):
            continue
        found.append(PartChange(what=what, step_ms=times_ms, times=times))
    yield from sorted(found, key=lambda part: -abs(part.step_ms[1] - part.step_ms[0]))


_Part = tuple[str, list[float], list[int | None]]  # its name; ms a step and how often, on both sides


def _of_account(
    accounts: tuple[Account, Account], parts_ms: dict[str, list[float]], names: Sequence[str]
) -> Iterator[_Part]:
    for name in names:
        if not _recorded(name, accounts):
            continue
        counts = [next((part.times for part in each.parts if part.name == name), None) for each in accounts]
        what = ACCOUNT_NAMES.get(name, name)
        restarted = [each.restarted for each in accounts]
        if name == ITERATORS and restarted[0] != restarted[1]:  # those with kept workers cost little
            what, counts = "starting workers anew", [*restarted]
        yield what, parts_ms.get(name, [0.0, 0.0]), counts


def _recorded(name: str, accounts: tuple[Account, Account]) -> bool:
    """Whether both sides recorded a part; validation is where a loader feeds it: of none nothing is known."""
    parts = [{part.name: part for part in account.parts} for account in accounts]
    if any(name in each and each[name].ns is None for each in parts):
        return False
    if name not in _OF_VALIDATION:
        return True
    return all(any(account.part_ns(each) for each in _OF_VALIDATION) for account in accounts)


def _of_events(ranks: tuple[Rank, Rank], accounts: tuple[Account, Account]) -> Iterator[_Part]:
    """Yield what collecting garbage takes of the steps, and what writing files takes of those that do it.

    Writing takes more than its calls, which the account has.
    """
    collected = [[each for each in rank.loop_events if each.kind == "collection"] for rank in ranks]
    if all(collected):  # where a side has none, it took less of its loop than is kept
        seconds = [each[0].seconds for each in collected]
        times_ms = [1e3 * own / account.steps for own, account in zip(seconds, accounts, strict=True)]
        yield collected[0][0].what, times_ms, [None, None]
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


REST = "the rest of the step"
OTHER = "other"
PHASES = ("forward", "backward", "optimizer", OTHER)  # what the rest consists of, where it is known
_WORTH_NAMING = 0.01  # of the step before
_COMMIT = 12  # characters of a commit's hash
_OF_FILES = ("read", "decode")
_MOSTLY = 0.6  # of a cause's change: what one file has to change to stand for it


def step_change(ranks: tuple[Rank, Rank]) -> tuple[list[float], float, list[float] | None]:
    """Return the two mean steps in ms, the change in percent of the first, and its 95 % interval."""
    steps_ms = [rank.steps.mean_ms or 0.0 for rank in ranks]
    change_pct = 100 * (steps_ms[1] / steps_ms[0] - 1)
    before, after = _resampled(ranks, "step")
    if before is None or after is None:
        return steps_ms, change_pct, None
    return steps_ms, change_pct, _around(change_pct, 100 * (after / before - 1))


def changed_parts(ranks: tuple[Rank, Rank]) -> list[Changed]:
    """List the parts of a step that changed beyond their intervals, and by 1 % of the step, largest first.

    The parts are the causes of the data wait, where both sides know it, and the rest of the step. A cause is
    told as one file's where that file has most of its change.
    """
    found = list(_changes(ranks))
    least_ms = _WORTH_NAMING * (ranks[0].steps.mean_ms or 0.0)
    beyond = [
        change
        for change in found
        if abs(change.by_ms) >= least_ms
        and change.ci95_ms is not None
        and (change.ci95_ms[0] > 0 or change.ci95_ms[1] < 0)
    ]
    return sorted(beyond, key=lambda change: -abs(change.by_ms))


def _changes(ranks: tuple[Rank, Rank]) -> Iterator[Changed]:
    one, other = (rank.data_wait for rank in ranks)
    for cause in dict.fromkeys([*one.causes_ms, *other.causes_ms] if _waits_known(ranks) else ()):
        by_ms = other.causes_ms.get(cause, 0.0) - one.causes_ms.get(cause, 0.0)
        file = _file_behind(ranks, cause, by_ms) if cause in _OF_FILES else None
        yield Changed(
            what=f"{cause} of {file}" if file else cause,
            by_ms=by_ms,
            ci95_ms=_difference(ranks, cause, by_ms),
            cause=cause,
            file=file,
        )
    for part, values in rest_parts(ranks).items():
        by_ms = values[1] - values[0]
        yield Changed(what=part, by_ms=by_ms, ci95_ms=_difference(ranks, part, by_ms), cause=None, file=None)


def rest_parts(ranks: tuple[Rank, Rank]) -> dict[str, list[float]]:
    """Return what a step does besides waiting, before and after: its phases, where both sides have them.

    Where a side does not know its wait, that lies in the rest of both: what the known phases leave.
    """
    phases = [rank.phases_ms for rank in ranks]
    steps_ms = [rank.steps.mean_ms or 0.0 for rank in ranks]
    known = {
        phase: [each[phase] or 0.0 for each in phases]
        for phase in PHASES
        if all(each.get(phase) is not None for each in phases)
    }
    if not _waits_known(ranks):
        known.pop(OTHER, None)
        left_ms = [step - sum(own[side] for own in known.values()) for side, step in enumerate(steps_ms)]
        return {**known, REST: left_ms} if known else {}
    if len(known) == len(PHASES):
        return known
    return {REST: [step - (rank.data_wait.raw_ms or 0.0) for step, rank in zip(steps_ms, ranks, strict=True)]}


def _waits_known(ranks: tuple[Rank, Rank]) -> bool:
    return all(rank.data_wait.raw_ms is not None for rank in ranks)


def _file_behind(ranks: tuple[Rank, Rank], cause: str, by_ms: float) -> str | None:
    """Find the file whose wait by `cause` changed by most of `by_ms`, in the same direction."""
    costs = [{file.path: getattr(file, f"{cause}_ms") for file in rank.data_wait.files} for rank in ranks]
    if any(None in own.values() for own in costs):
        return None
    changes = {path: costs[1].get(path, 0.0) - costs[0].get(path, 0.0) for path in {**costs[0], **costs[1]}}
    if not by_ms or len(changes) < 2:
        return None
    path = max(changes, key=lambda path: changes[path] / by_ms)
    return path if changes[path] / by_ms >= _MOSTLY else None


def _difference(ranks: tuple[Rank, Rank], part: str, by_ms: float) -> list[float] | None:
    before, after = _resampled(ranks, part)
    return None if before is None or after is None else _around(by_ms, after - before)


def _around(value: float, samples: Floats) -> list[float]:
    """Return the interval of `samples` about `value`: blocks leave out a few steps at the end."""
    low, high = interval_of(samples + (value - float(np.mean(samples))))
    return [low, high]


def _resampled(ranks: tuple[Rank, Rank], part: str) -> list[Floats | None]:
    """Resample the means of a part of the step, of each side on its own."""
    waits_known = _waits_known(ranks)
    known = [None if rank.blocks is None else _part(rank.blocks, part, waits_known) for rank in ranks]
    return [None if one is None else resampled_means(one, seed=seed) for seed, one in enumerate(known)]


def _part(blocks: StepBlocks, part: str, waits_known: bool) -> Floats | None:
    """Take the blocks of a part of the step; None where it is not known of them.

    Unless the waits of both sides are known, the rest is what the phases leave.
    """
    known = {**blocks.causes_ms, **blocks.phases_ms, "step": blocks.step_ms}
    if part in known:
        return np.array(known[part])
    if waits_known and not blocks.wait_ms:
        return None
    named = [*blocks.phases_ms.values()] if part != REST or not waits_known else []
    named += [blocks.wait_ms] if waits_known else []
    return np.asarray(np.array(blocks.step_ms) - sum(np.array(own) for own in named))


SCHEMA_VERSION = 1
# Of the loop's loader, under their names in DataLoader.
_SETTINGS = {
    "workers": "num_workers",
    "prefetch_factor": "prefetch_factor",
    "persistent_workers": "persistent_workers",
    "pin_memory": "pin_memory",
    "in_order": "in_order",
    "start_method": "start_method",
    "library": "library",
}


def compare(one: Basis, other: Basis) -> Comparison:
    """Compare two sessions, `one` before `other`, whether they did the same work or not."""
    recorded = rank_pair(one, other)
    names = new_names(recorded)
    ranks = under_old_names(recorded)
    steps_ms, change_pct, ci95_pct = step_change(ranks)
    stages = stage_changes(ranks[:1], ranks[1:])
    judged = judge_step(ranks, change_pct, ci95_pct, stages, _traced_too_much(one, other))
    whole = whole_run(ranks, (one.verdict.trust, other.verdict.trust))
    if whole is not None and whole.verdict is not None and _tells(whole, judged.verdict):
        text = _whole_text(whole.verdict, whole, steps_ms)
        judged = replace(judged, verdict=whole.verdict, text=text, likely=whole.likely, remedy=None)
    differs = list(differences(one, other, recorded))
    waits_ms = [rank.data_wait.raw_ms for rank in ranks]
    causes = [rank.data_wait.causes_ms for rank in ranks]
    return Comparison(
        schema_version=SCHEMA_VERSION,
        sessions=[_side(side, rank) for side, rank in zip((one, other), ranks, strict=True)],
        comparable=not differs,
        differs=differs,
        verdict=judged.verdict,
        likely=judged.likely,
        remedy=judged.remedy,
        text=judged.text,
        rank=ranks[0].rank,
        ranks=[len(side.ranks) for side in (one, other)],
        step_ms=steps_ms,
        change_pct=change_pct,
        ci95_pct=ci95_pct,
        alone_pct=judged.alone_pct,
        wait_ms=None if None in waits_ms else [wait for wait in waits_ms if wait is not None],
        causes_ms={
            cause: [each.get(cause, 0.0) for each in causes]
            for cause in dict.fromkeys([*causes[0], *causes[1]])
            if all(causes)
        },
        rest_ms=rest_parts(ranks),
        changed=[_named(each, each.cause or "", names) for each in changed_parts(ranks)],
        stages=[_named(each, each.stage, names) for each in stages],
        settings=[*_renamed(one, other, recorded), *_replaced(recorded), *_settings(ranks)],
        environment=list(_environment(one, other, ranks)),
        cpu_slower_pct=cpu_slower_pct(ranks[:1], ranks[1:]),
        whole_run=whole,
    )


_Named = TypeVar("_Named", Changed, StageChange)


def _named(change: _Named, stage: str, names: Mapping[str, str]) -> _Named:
    """Name what is of a file that the second does not read by both files."""
    file = change.file
    if file is None or file not in names:
        return change
    return replace(change, what=f"{stage} of {both_names(file, names[file])}", replaced_by=names[file])


def _side(basis: Basis, rank: Rank) -> Side:
    started_ns = basis.session.started_ns
    recorded = None
    if started_ns is not None:
        recorded = datetime.fromtimestamp(started_ns // 10**9, timezone.utc).isoformat()
    return Side(path=basis.path, recorded=recorded, steps=rank.steps.count, trust=basis.verdict.trust)


def _traced_too_much(one: Basis, other: Basis) -> str | None:
    """Say that tracing itself made a side's steps longer; None where it hardly did, or nobody knows."""
    for name, side in (("A", one), ("B", other)):
        trust = side.verdict.trust
        is_known = any(
            rank.overhead and rank.overhead.estimated_pct_of_step is not None for rank in side.ranks
        )
        if is_known and trust.level == BAD and TRACING_COST in trust.codes:
            return f"{name}: {trust.reasons[trust.codes.index(TRACING_COST)]}"
    return None


def _tells(whole: WholeRun, of_steps: str) -> bool:
    """Whether the whole loop says more than its steps: what is likely does where they say nothing alike."""
    return not whole.likely or of_steps != whole.verdict


def _whole_text(verdict: str, whole: WholeRun, steps_ms: list[float]) -> str:
    in_all, starting, measured = (
        f"{one:.1f} -> {other:.1f}" for one, other in (whole.step_ms, whole.starting_ms, steps_ms)
    )
    if whole.changed:
        part = whole.changed[0]
        did = f"{part.what} {part.step_ms[0]:.1f} -> {part.step_ms[1]:.1f}"
        likely = "LIKELY " if whole.likely else ""
        change = f"{abs(whole.change_pct):.0f} %: {in_all} ms a step in all, of which {did}"
        return f"{likely}{BANNERS[verdict]} {change}; a measured step took {measured} ms"
    return (
        f"{BANNERS[verdict]} {abs(whole.change_pct):.0f} %: {in_all} ms a step in all, of which starting "
        f"workers and first batches {starting}; a measured step took {measured} ms"
    )


def _renamed(one: Basis, other: Basis, ranks: tuple[Rank, Rank]) -> Iterator[Differing]:
    """Yield the file of the program, where that is another one for the same work."""
    names = renamed(one, other, ranks)
    if names is not None:
        yield Differing(what=PROGRAM, values=[*names])


def _replaced(ranks: tuple[Rank, Rank]) -> Iterator[Differing]:
    """Yield the data that the second reads in place of the first's."""
    names = replaced(ranks)
    if names is not None:
        shown = [each[0] if len(each) == 1 else f"{each[0]} and {len(each) - 1} more" for each in names]
        yield Differing(what=DATA, values=shown, read_bytes=read_bytes(ranks, names))


def _settings(ranks: tuple[Rank, Rank]) -> list[Differing]:
    """List the settings of the loop's loader that differ, under their names in DataLoader."""
    one, other = (rank.primary for rank in ranks)
    if one is None or other is None:
        return []
    pairs = ((shown, getattr(one, name), getattr(other, name)) for name, shown in _SETTINGS.items())
    return [
        Differing(what=shown, values=[_value(before), _value(after)])
        for shown, before, after in pairs
        if before != after
    ]


def _environment(one: Basis, other: Basis, ranks: tuple[Rank, Rank]) -> Iterator[Differing]:
    """Yield what differs around the program."""
    sides = (one, other)
    versions = [
        {name: text for process in side.processes for name, text in process.versions.items()}
        for side in sides
    ]
    for what, values in (
        (COMMIT, [(side.session.commit or "")[:_COMMIT] for side in sides]),
        ("Python", [_all(process.python for process in side.processes) for side in sides]),
        *((name, [each.get(name, "") for each in versions]) for name in {**versions[0], **versions[1]}),
        ("iotrace", [side.session.iotrace_version or "" for side in sides]),
        ("host", [_all(rank.host or "" for rank in side.ranks) for side in sides]),
        ("CPUs", [_value(rank.system.cpus) for rank in ranks]),
        ("accelerators", [_all(gpu.name for gpu in rank.system.gpus) for rank in ranks]),
    ):
        if values[0] != values[1]:
            yield Differing(what=what, values=[value or "unknown" for value in values])


def _all(values: Iterator[str]) -> str:
    return ", ".join(sorted({value for value in values if value}))


def _value(value: object) -> str:
    return "unknown" if value is None else str(value)
