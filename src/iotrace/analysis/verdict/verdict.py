"""The verdict over a job: one line that holds for all its ranks, and the reason for it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from msgspec.structs import replace

from iotrace.analysis.results import (
    BAD,
    Fix,
    RankReport,
    Recommendation,
    SessionInfo,
    Trust,
    Verdict,
)
from iotrace.analysis.rules.advice import saves_wait
from iotrace.analysis.rules.model import find_all, rule_of
from iotrace.analysis.verdict.device import costliest, costs_of, verdict_of_device
from iotrace.analysis.verdict.gains import fixes_of, second_cause, with_other_ranks, without_gain
from iotrace.analysis.verdict.reason import making_ms, reason_of
from iotrace.analysis.verdict.worst_rank import Finding, of_worst, wait_fraction
from iotrace.analysis.wait.data_wait import KEPT_UP_PERCENT
from iotrace.session.liveness import ENDED, RUNNING
from iotrace.units import percent

if TYPE_CHECKING:
    from iotrace.analysis.results import Imbalance
    from iotrace.analysis.rules.facts.job import JobFacts

BANNERS = {
    "input-bound": "INPUT-BOUND",
    "moderately-input-bound": "MODERATELY INPUT-BOUND",
    "not-input-bound": "NOT INPUT-BOUND",
    "rank-late": "RANK LATE",
    "failed": "FAILED",
    "running": "RUNNING",
    "wait-unknown": "WAIT UNKNOWN",
    "device-idle": "DEVICE IDLE",
    "communication-bound": "COMMUNICATION-BOUND",
    "device-busy": "DEVICE BUSY",
}

# What a rank does alone in few of its steps.
_NOW_AND_THEN = ("evaluation", "checkpoint", "writing")
_LEAST_LEFT = 0.01  # of a step
_OFTEN = 0.2  # of the late steps: what is no chance


def verdict_of(
    session: SessionInfo,
    ranks: Sequence[RankReport],
    job: JobFacts | None,
    recommendations: Sequence[Recommendation],
    trust: Trust,
) -> Verdict:
    """Say what holds for the job: its failure, a rank that is late, else the rank that waits longest."""
    found = (_late(job) if job is not None else None) or of_worst(ranks)
    if not session.argv:
        found = _of_traces(found, ranks, None if job is None else job.imbalance)
        if found.why is None and found.kind not in ("wait-unknown", "not-input-bound"):
            found = replace(found, why=_why_of_trace(found.rank, recommendations))
    if session.state != ENDED and found.kind == "wait-unknown":  # a loop that was not seen may not have begun
        found = replace(found, fix=None)
    if session.state == RUNNING:
        found = _so_far(found)
    rank = None if found.rank is None else found.rank.rank
    own = [item for item in recommendations if rank is None or item.rank == rank]
    found = _as_first_fix(found, own)
    fixes = fixes_of(own, ranks, trust, found.cause)
    if found.fix is not None:
        fixes = [found.fix, *([] if found.second is None else [found.second])]
    if job is not None and found.rank is not None and max(found.rank.world_size or 0, len(ranks)) > 1:
        behind_ms = job.behind_ms.get(found.rank.rank)
        slow = _next_slowest(found.rank, ranks) if job.in_step else None
        step_ms, slower_ms = found.rank.steps.mean_ms or 0.0, None if slow is None else slow[1]
        held = [with_other_ranks(fix, behind_ms, step_ms, slower_ms) for fix in fixes]
        if slow is not None and fixes and _is_less(held[0], fixes[0]):
            beside = [_both(*slow, recommendations), found.beside]
            found = replace(found, beside="; ".join(filter(None, beside)))
        fixes = held
    if job is not None and found.kind == "rank-late" and found.beside is None:
        second = _second(job, found, recommendations)
        if second is not None:
            found, fixes = replace(found, beside=second[0]), [*fixes, second[1]]
    if found.fix is None:
        also = second_cause(own, fixes)
        if also is not None and also not in (found.why or ""):
            found = replace(found, beside="; ".join(filter(None, [found.beside, also])))
    if trust.level == BAD:
        fixes = [without_gain(fix) for fix in fixes]
    verdict = Verdict(
        text=f"{BANNERS[found.kind]} {found.text}",
        banner=BANNERS[found.kind],
        kind=found.kind,
        why=found.why,
        beside=found.beside,
        file=found.file,
        cause=found.cause,
        rank=rank,
        culprit=found.culprit,
        until=None,
        fixes=fixes,
        trust=trust,
    )
    return _failed(session, ranks, verdict, found) if session.exit_code else verdict


def _next_slowest(late: RankReport, ranks: Sequence[RankReport]) -> tuple[RankReport, float] | None:
    """Find the other rank that takes longest to make its batches, and how long that is, ms a step."""
    known = [(each, ms) for each in ranks if each.rank != late.rank and (ms := making_ms(each)) is not None]
    return max(known, key=lambda pair: pair[1], default=None)


def _is_less(held: Fix, alone_fix: Fix) -> bool:
    """Whether a fix gains less than half of what it would without the other ranks."""
    own, alone = held.gain_ms_per_step, alone_fix.gain_ms_per_step
    return own is not None and alone is not None and own < alone / 2


def _both(rank: RankReport, ms: float, recommendations: Sequence[Recommendation]) -> str:
    """Say that another rank makes its batches hardly faster, and what mends that."""
    own = (each.remedy for each in recommendations if each.rank == rank.rank and saves_wait(each))
    remedy = next(filter(None, own), "")
    text = f"{rank.called} takes {ms:.0f} ms a step to make its batches, so it needs a fix, too"
    return f"{text}: {remedy}" if remedy else text


def _second(
    job: JobFacts, found: Finding, recommendations: Sequence[Recommendation]
) -> tuple[str, Fix] | None:
    """Say which other rank comes last in many late steps as it waits for its data, and what mends that.

    What it gains nobody knows while the first one is late.
    """
    late = None if found.rank is None else found.rank.rank
    waiting = [
        each
        for each in job.ranks
        if each.rank != late and 100 * (each.data_wait.raw_wait_fraction or 0.0) >= KEPT_UP_PERCENT
    ]
    for rank in sorted(waiting, key=wait_fraction, reverse=True):
        last, of = job.last_in.get(rank.rank, (0, 0))
        own = (each for each in recommendations if each.rank == rank.rank and each.remedy)
        first, why = next(filter(saves_wait, own), None), reason_of(rank).get("why")
        if first is None or why is None or last < _OFTEN * max(1, of):
            continue
        share = percent(rank.data_wait.raw_wait_fraction or 0.0)
        text = f"rank {rank.rank} waits for data {share} of its time"
        text += f", and comes last in {last} of {of} late steps"
        remedy = f"on rank {rank.rank}: {first.remedy}"
        fix = Fix(id=first.id, text=remedy, code=first.code, command=first.command, joins="and")
        return f"{text}: {why}", fix
    return None


def _as_first_fix(found: Finding, own: Sequence[Recommendation]) -> Finding:
    """Explain what the first fix ends, where the culprit's own may gain nothing and comes behind it."""
    if found.rank is None or found.culprit is None or not own:
        return found
    culprit = next((each for each in found.rank.culprits if each.id == found.culprit), None)
    if culprit is None or not culprit.tries or own[0].code == culprit.code:
        return found
    return replace(found, **{"culprit": None, "beside": None, **reason_of(found.rank, without=culprit)})


def _failed(session: SessionInfo, ranks: Sequence[RankReport], until: Verdict, found: Finding) -> Verdict:
    """Say that the run failed; what it would have said otherwise held until then."""
    from iotrace.analysis.verdict import failed  # few runs fail

    cause, banner = failed.cause_of(session), failed.banner_of(session)
    file, rank = (None, None) if cause is None else (cause.file, cause.rank)
    text = f"{banner} {failed.what_failed(session, ranks)}"
    hang = failed.hung_until_end(session)
    if hang is not None:
        stuck, rank = failed.stuck_process(hang)
        file = None if stuck is None else stuck.file
        text = f"{banner}, {failed.what_failed(session, ranks)}"
    return replace(
        until,
        text=text,
        banner=banner,
        kind="failed",
        why=failed.why_failed(session, ranks),
        file=file,
        cause=None,
        rank=rank,
        until=_until(found),
        # A fix of the wait mends no failure; who interrupts a run may have seen enough of it.
        fixes=until.fixes if banner == failed.INTERRUPTED else [],
        trust=failed.trust_after(until.trust, ranks),
    )


def _until(found: Finding) -> str:
    """Say in one line what held: the share of the wait, its cause and file."""
    own_words = found.kind in ("wait-unknown", "rank-late")
    if own_words or found.rank is None or (found.kind == "not-input-bound" and _waits_much(found.rank)):
        return f"{BANNERS[found.kind]}, {found.text}"
    share = f"{percent(wait_fraction(found.rank))} waited for data"
    due = ", ".join(part for part in (found.cause, found.file) if part)
    return f"{BANNERS[found.kind]}, {share}{f' ({due})' if due else ''}"


def _waits_much(rank: RankReport) -> bool:
    return 100 * wait_fraction(rank) >= KEPT_UP_PERCENT


def _so_far(found: Finding) -> Finding:
    """Say of a run that goes on what its steps until now show."""
    known = found.kind != "wait-unknown"
    text = f"so far: {BANNERS[found.kind]} {found.text}" if known else f"{found.text} so far"
    return replace(found, kind="running", text=text)


def _late(job: JobFacts) -> Finding | None:
    """Say which rank the others wait for, where that costs them much; or that ranks are late by turns."""
    from iotrace.analysis.rules.job import LATE_BY_DATA, ONE_LATE_WORKER  # few reports are of several ranks
    from iotrace.analysis.rules.switches import REDUCES_OFTEN

    late, found = job.late, find_all("job", job)
    rank = None if late is None else job.rank(late.rank)
    why = next((each for each in found if each.is_main_cause), None)
    if late is None or rank is None or why is None:
        return None
    least = "at least " if late.is_least else ""
    each = "its time" if late.kind in _NOW_AND_THEN else "each step"
    of_profiled = f" ({late.profiled[0]:.0f} % of {late.profiled[1]} profiled)" if late.profiled else ""
    others = {each.rank for each in job.ranks} - {late.rank}
    who = f"{late.others} rank{'s wait' if late.others > 1 else ' waits'}"
    if late.others == len(others) == 1:
        who = f"rank {others.pop()} waits"
    waiting = f"{who} {least}{late.pct:.0f} % of {each}"
    text = f"rank {late.rank} is late; {waiting} for it{of_profiled}"
    if late.by_turns:
        text = f"{late.by_turns} ranks are late by turns; ranks wait {late.pct:.0f} % of each step for one"
    fix = Fix(id=rule_of(why.rule).id, text=why.remedy, code=why.rule) if why.remedy else None
    if fix is not None and late.kind in _NOW_AND_THEN and late.wait_ms and not late.by_turns:
        # Another rank may be late then.
        gain_ms = late.wait_ms
        fix = replace(
            fix,
            gain_ms_per_step=gain_ms,
            speedup=1 / max(_LEAST_LEFT, 1 - late.pct / 100),
            gain_interval_ms=[0.0, gain_ms],
            most_ms_per_step=gain_ms,
        )
    told = Finding(kind="rank-late", text=text, why=why.text, rank=rank, fix=fix)
    often = next((each for each in rank.culprits if each.code == REDUCES_OFTEN and each.leads), None)
    if late.by_turns and late.kind != "data" and often is not None:  # each step waits for its latest rank
        fix = Fix(id=often.id, text=often.remedy or "", code=often.code)
        return replace(told, why=often.text, beside=why.text, fix=fix)
    if late.kind != "data":
        return told
    reason = reason_of(rank)
    if (own := reason.get("why")) is not None:
        more = [each.text for each in found if each.rule == ONE_LATE_WORKER]
        first = [] if why.rule == LATE_BY_DATA else [why.text]
        reason["why"] = "; ".join([*first, own, *more])
    return replace(told, **{"why": why.text, **reason})


def _of_traces(found: Finding, ranks: Sequence[RankReport], imbalance: Imbalance | None) -> Finding:
    """Judge bare traces by what costs most: the data wait, else the device by its largest cause."""
    if found.kind in ("rank-late", "failed", "running"):
        return found
    worst = costliest(ranks)
    if worst is None:
        if found.kind == "wait-unknown" and all(each.accelerator is None for each in ranks):
            if not any(each.operators for each in ranks) and not any(each.steps.per_second for each in ranks):
                text = "it holds no step, no operator and no kernel that iotrace knows"
                return replace(found, text=text, fix=None)
            text = "no wait for a DataLoader was recorded, and nothing of an accelerator"
            return replace(found, text=text, fix=None)
        if found.kind == "wait-unknown" and found.rank is not None and found.rank.steps.count:
            return replace(found, text="no wait for a DataLoader was recorded", fix=None)
        return found
    cause, rank = worst
    is_input_bound = found.kind in ("input-bound", "moderately-input-bound")
    told = verdict_of_device(cause, rank, imbalance)
    if told is None or (is_input_bound and (cause == "data_wait" or _data_costs_most(found, cause, rank))):
        return found
    kind, text, why = told
    if kind == "device-busy" and found.kind != "wait-unknown":
        return found
    of = f", rank {rank.rank} of {rank.world_size or len(ranks)}" if len(ranks) > 1 else ""
    return Finding(kind=kind, text=f"{text}{of}", why=why, rank=rank)


def _data_costs_most(found: Finding, cause: str, rank: RankReport) -> bool:
    """Whether the rank that waits longest for data loses more by that than another one by a cause."""
    return found.rank is not None and wait_fraction(found.rank) >= costs_of(rank).get(cause, 0.0)


def _why_of_trace(rank: RankReport | None, recommendations: Sequence[Recommendation]) -> str | None:
    """Say as much of a wait as a bare trace shows: not what the loader did meanwhile."""
    if any(item.id == "no-workers" for item in recommendations):
        return "its loader has no workers: the loop loads each batch itself"
    if rank is None or not rank.data_wait.raw_ms:
        return None
    wait = f"its loop waits {rank.data_wait.raw_ms:.1f} ms a step for data"
    return f"{wait}; no trace shows what the loader did then"
