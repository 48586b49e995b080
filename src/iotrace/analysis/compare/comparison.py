"""What changed between two sessions, and why: what ``iotrace compare`` prints.

Of what the program does before its loop, too, where that takes longer than before, or less.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from datetime import datetime, timezone
from typing import TypeVar

from msgspec.structs import replace

from iotrace.analysis.compare.basis import Basis, Rank, Startup, rank_pair
from iotrace.analysis.compare.code_changes import code_changes
from iotrace.analysis.compare.epoch import epoch_change, epoch_text
from iotrace.analysis.compare.first_causes import first_cause
from iotrace.analysis.compare.results import (
    COMMIT,
    DATA,
    PROGRAM,
    Changed,
    Comparison,
    Differing,
    Side,
    StageChange,
    StartupChange,
    StartupPartChange,
    unit_of,
)
from iotrace.analysis.compare.same_samples import for_as_many, of_samples, samples_of_step
from iotrace.analysis.compare.same_work import (
    both_names,
    differences,
    new_names,
    other_steps,
    read_bytes,
    renamed,
    replaced,
    under_old_names,
    unlike,
)
from iotrace.analysis.compare.spread import cpu_slower_pct, differ, spread_of
from iotrace.analysis.compare.stage_changes import stage_changes
from iotrace.analysis.compare.step_parts import changed_parts, rest_parts, step_change
from iotrace.analysis.compare.step_verdict import REMEDY, judge_step
from iotrace.analysis.compare.whole_run import tells, whole_run, whole_text
from iotrace.analysis.host.disturbance import TRACING_COST, grown_beside_others
from iotrace.analysis.results import BAD, START_UP, Trust
from iotrace.analysis.startup.waterfall import PICKLING, WORKERS

_WORTH = 0.1  # of the longer run
_OF_PARTS = 0.1  # of the parts that changed, to be named
# The loop has these, and the first start of its workers, which is no part of the start-up.
_LATER = re.compile(rf"first (batch|step)|{WORKERS}|{PICKLING}")
_INSIDE = re.compile(r"\.<locals>[^(]*(?=$| )")  # a function of its own inside another
_UNNAMED = "not named"


def startup_change(ranks: tuple[Rank, Rank], trusts: tuple[Trust, Trust]) -> StartupChange | None:
    """Compare the start-ups; None unless parts that changed beyond chance make a tenth of a run.

    Beside others a part changed where it did so by more than times may have grown beside them.
    """
    one, other = (rank.account for rank in ranks)
    startups = [rank.startup for rank in ranks]
    if one is None or other is None or startups[0] is None or startups[1] is None:
        return None
    seconds = [account.part_ns(START_UP) / 1e9 for account in (one, other)]
    parts = [_parts(startup) for startup in startups if startup is not None]
    if not all(seconds) or not all(parts):
        return None
    grown = grown_beside_others([rank.system.host for rank in ranks], "wall")
    spreads = [spread_of(trust) for trust in trusts]
    pairs = {name: [own.get(name, 0.0) for own in parts] for name in {**parts[0], **parts[1]}}
    least = _WORTH * max(one.whole_ns, other.whole_ns) / 1e9
    changed = [
        StartupPartChange(what=name, seconds=pair)
        for name, pair in pairs.items()
        if name != _UNNAMED
        and (pair[1] < pair[0]) == (seconds[1] < seconds[0])
        and differ(pair, spreads)
        and max(pair) > (1 + grown) * min(pair)
    ]
    by = sum(abs(part.seconds[1] - part.seconds[0]) for part in changed)
    if by < least or abs(seconds[1] - seconds[0]) < least:
        return None
    named = [part for part in changed if abs(part.seconds[1] - part.seconds[0]) >= _OF_PARTS * by]
    named.sort(key=lambda part: -abs(part.seconds[1] - part.seconds[0]))
    return StartupChange(seconds=seconds, parts=named)


def _parts(startup: Startup) -> dict[str, float]:
    """Sum up the seconds before the loop by name."""
    found: dict[str, float] = {}
    for part in startup.parts:
        if not _LATER.match(part.name):
            name = _INSIDE.sub("", part.name)
            found[name] = found.get(name, 0.0) + part.seconds
    return found


_COMMIT = 12  # characters of a commit's hash
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
    data = replaced(one, other, recorded)
    names = new_names(data)
    samples = samples_of_step(one, other, recorded)
    factor = samples[0] / samples[1] if samples else 1.0
    before, after = of_samples(under_old_names(recorded, names))
    ranks = before, for_as_many(after, factor)
    steps_ms, change_pct, ci95_pct = step_change(ranks)
    stages = stage_changes(ranks[:1], ranks[1:])
    doubt = _traced_too_much(one, other) or other_steps(recorded)
    judged = judge_step(ranks, change_pct, ci95_pct, stages, doubt, samples)
    whole = whole_run(ranks, (one.verdict.trust, other.verdict.trust))
    if whole is not None and whole.verdict is not None and tells(whole, judged.verdict):
        text = whole_text(whole.verdict, whole, steps_ms, unit_of(samples))
        judged = replace(judged, verdict=whole.verdict, text=text, likely=whole.likely, remedy=None)
    epoch = epoch_change(ranks, (one.verdict.trust, other.verdict.trust), judged.alone_pct, samples)
    if epoch is not None and not _traced_too_much(one, other):
        text = epoch_text(epoch, [rank.steps.mean_ms or 0.0 for rank in recorded])
        remedy = REMEDY if epoch.verdict == "unknown" else None
        judged = replace(judged, verdict=epoch.verdict, text=text, likely=epoch.likely, remedy=remedy)
    differs = list(differences(one, other, recorded))
    waits_ms = [rank.data_wait.raw_ms for rank in ranks]
    causes = [rank.data_wait.causes_ms for rank in ranks]
    rest_ms = rest_parts(ranks)
    return Comparison(
        schema_version=SCHEMA_VERSION,
        sessions=[_side(side, rank) for side, rank in zip((one, other), ranks, strict=True)],
        comparable=not differs,
        differs=differs,
        refused=unlike(one, other, recorded),
        samples=samples,
        is_late=ranks[0].rank in (one.late_rank, other.late_rank),
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
        rest_ms=rest_ms,
        changed=[_named(each, each.cause or "", names) for each in changed_parts(ranks)],
        stages=[_named(each, each.stage, names) for each in stages],
        settings=[*_renamed(one, other, recorded), *_replaced(recorded, data), *_settings(ranks)],
        environment=list(_environment(one, other, ranks)),
        cpu_slower_pct=cpu_slower_pct(ranks[:1], ranks[1:]),
        whole_run=whole,
        epoch=epoch,
        code=code_changes(ranks),
        first=first_cause((one, other), ranks, rest_ms, whole, judged.verdict == "slower"),
        startup=startup_change(ranks, (one.verdict.trust, other.verdict.trust)),
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


def _renamed(one: Basis, other: Basis, ranks: tuple[Rank, Rank]) -> Iterator[Differing]:
    """Yield the file of the program, where that is another one for the same work."""
    names = renamed(one, other, ranks)
    if names is not None:
        yield Differing(what=PROGRAM, values=[*names])


def _replaced(ranks: tuple[Rank, Rank], names: tuple[list[str], list[str]] | None) -> Iterator[Differing]:
    """Yield the data that the second reads in place of the first's."""
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
        Differing(what=shown, values=[_value(before, "DataLoader"), _value(after, "DataLoader")])
        for shown, before, after in pairs
        if before != after and (shown == "library" or None not in (before, after))
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
        ("CPUs", [str(rank.system.cpus or "") for rank in ranks]),
        ("accelerators", [_all(gpu.name for gpu in rank.system.gpus) or "none seen" for rank in ranks]),
    ):
        if values[0] != values[1] and all(values):  # what one side alone tells is no difference
            yield Differing(what=what, values=values)


def _all(values: Iterator[str]) -> str:
    return ", ".join(sorted({value for value in values if value}))


def _value(value: object, none: str = "unknown") -> str:
    return none if value is None else str(value)
