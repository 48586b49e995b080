"""The verdict over a job: one line that holds for all its ranks, and the reason for it."""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter
from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import replace

from iotrace.analysis.results import (
    START_UP,
    TRACING_PERCENT,
    Fix,
    LoopCode,
    LoopEvents,
    RankReport,
    Recommendation,
    SessionInfo,
    Trust,
    Verdict,
    commands_of,
)
from iotrace.analysis.rules.model import find_all, rule_of
from iotrace.analysis.verdict import failed
from iotrace.analysis.verdict.device import costliest, costs_of, each_step, verdict_of_device
from iotrace.analysis.verdict.reason import MOSTLY, fixes_of, ready_text, reason_of, waits_text
from iotrace.analysis.wait.data_wait import (
    HIGHLY_PERCENT,
    KEPT_UP_PERCENT,
    MODERATELY_PERCENT,
    bound_fraction,
    device_waits,
    is_of_the_loader,
    verdict as verdict_in_words,
)
from iotrace.session.liveness import ENDED, RUNNING
from iotrace.units import bounds, duration, percent

if TYPE_CHECKING:
    from iotrace.analysis.results import Imbalance
    from iotrace.analysis.rules.facts.job import JobFacts
    from iotrace.analysis.verdict.loop_costs import LoopCosts

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
_OF_STEPS = (
    "training-without-cpu",
    "code-of-the-loop",
    "padded-batches",
)  # culprits of steps that hardly wait
_KINDS = {
    "highly input-bound": "input-bound",
    "moderately input-bound": "moderately-input-bound",
    "not input-bound": "not-input-bound",
}

# What makes an unknown wait known.
_NAME_IT = Fix(
    id="name-the-source", text="iotrace.batches(YOUR_ITERABLE) around the loop's source names the wait"
)

# What makes a wait known that tracing made, or may have.
_TRACE_LESS = Fix(id="trace-less", text="run again with --io off: POSIX calls cost most of that")

# What takes reads out of the loop.
_READ_AHEAD = Fix(
    id="read-in-the-dataset",
    text="read in the dataset's __getitem__: workers then read ahead of the loop",
)


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """A verdict before its fixes: what is said, of which rank."""

    kind: str
    text: str
    why: str | None = None
    beside: str | None = None
    file: str | None = None
    cause: str | None = None
    rank: RankReport | None = None
    fix: Fix | None = None  # in place of those of the advice
    culprit: str | None = None


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
        fixes=fixes_of(own, ranks, trust, found.cause) if found.fix is None else [found.fix],
        trust=trust,
    )
    return _failed(session, ranks, verdict, found) if session.exit_code else verdict


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
    share = f"{percent(_fraction(found.rank))} waited for data"
    due = ", ".join(part for part in (found.cause, found.file) if part)
    return f"{BANNERS[found.kind]}, {share}{f' ({due})' if due else ''}"


def _waits_much(rank: RankReport) -> bool:
    return 100 * _fraction(rank) >= KEPT_UP_PERCENT


def _so_far(found: Finding) -> Finding:
    """Say of a run that goes on what its steps until now show."""
    known = found.kind != "wait-unknown"
    text = f"so far: {BANNERS[found.kind]} {found.text}" if known else f"{found.text} so far"
    return replace(found, kind="running", text=text)


def _late(job: JobFacts) -> Finding | None:
    """Say which rank the others wait for, where that costs them much; or that ranks are late by turns."""
    from iotrace.analysis.rules.job import LATE_BY_DATA, ONE_LATE_WORKER  # few reports are of several ranks

    late, found = job.late, find_all("job", job)
    rank = None if late is None else job.rank(late.rank)
    why = next((each for each in found if each.is_main_cause), None)
    if late is None or rank is None or why is None:
        return None
    least = "at least " if late.is_least else ""
    of_profiled = f" ({late.profiled[0]:.0f} % of {late.profiled[1]} profiled)" if late.profiled else ""
    waiting = (
        f"{late.others} rank{'s wait' if late.others > 1 else ' waits'} {least}{late.pct:.0f} % of each step"
    )
    text = f"rank {late.rank} is late; {waiting} for it{of_profiled}"
    if late.by_turns:
        text = f"{late.by_turns} ranks are late by turns; ranks wait {late.pct:.0f} % of each step for one"
    fix = Fix(id=rule_of(why.rule).id, text=why.remedy, code=why.rule) if why.remedy else None
    told = Finding(kind="rank-late", text=text, why=why.text, rank=rank, fix=fix)
    if late.kind != "data":
        return told
    reason = reason_of(rank)
    if (own := reason.get("why")) is not None:
        more = [each.text for each in found if each.rule == ONE_LATE_WORKER]
        first = [] if why.rule == LATE_BY_DATA else [why.text]
        reason["why"] = "; ".join([*first, own, *more])
    return replace(told, **{"why": why.text, **reason})


def of_worst(ranks: Sequence[RankReport]) -> Finding:
    """Judge the job by the rank that waits for the largest share of its steps.

    Of several commands it is the one that loses most time: they do not run in step, and a short one that
    waits for nearly all of its time loses little. A rank whose wait is unknown may wait longest: then only a
    wait of another that is long enough is told.
    """
    commands = commands_of(ranks)
    rank = max(ranks, key=_lost_seconds if commands else _fraction, default=None)
    if rank is None:
        return Finding(kind="wait-unknown", text="no process was traced")
    command = commands.get(rank.pid or 0)
    whose = f"{command or rank.called}: " if len(ranks) > 1 else ""
    wait, fraction, costs = rank.data_wait, _fraction(rank), _loop_costs(rank)
    if costs is not None and costs.fraction > _step_fraction(rank):
        kind, said = _KINDS[verdict_in_words(fraction)], f"{whose}{costs.text}"
        found = Finding(kind=kind, text=said, why=costs.why, cause="startup", rank=rank)
        reason = reason_of(rank) if costs.mostly_waits else {"why": None}
        return found if reason["why"] is None else replace(found, **{**reason, "beside": costs.why})
    reads = _of_reads(ranks)
    if reads is not None and fraction >= 0 and _reads_more(reads, fraction):
        return reads
    text = f"{whose}{waits_text(rank, fraction)}"
    ready = None if rank.primary is None else rank.primary.queue_depth_mean
    handing_over = wait.causes_ms.get("transport", 0.0) / wait.raw_ms if wait.raw_ms else 0.0
    others, most = _others_may_make_it(rank), _recurs_most(rank)
    if most is not None and _hardly_waits_in_all(rank) and not device_waits(wait):
        of_loop = rank.account.loader_pct / 100 if rank.account and rank.account.loader_pct else 0.0
        text = f"{whose}{percent(of_loop)} of the loop waits for data{_now_and_then(rank)}"
        return reads or Finding(kind="not-input-bound", text=text, why=most.said, rank=rank)
    if is_of_the_loader(100 * fraction, handing_over, ready, others_may_make_it=others):
        if (traced := _of_tracing(rank, fraction)) is not None:
            text = f"{whose}{traced}, the wait {percent(fraction)}"
            fix = _TRACE_LESS if rank.overhead is not None and rank.overhead.calls_cost_most else None
            return Finding(kind="wait-unknown", text=text, rank=rank, fix=fix)
        text += _now_and_then(rank)
        return replace(Finding(kind=_KINDS[wait.verdict or ""], text=text, rank=rank), **reason_of(rank))
    unseen = next((each for each in ranks if each.data_wait.raw_wait_fraction is None), None)
    if unseen is None:
        # A rank's own code is told before what its loader might save.
        own = [each.text for each in rank.culprits if each.id in _OF_STEPS]
        most = max(rank.recurring, key=attrgetter("loop_fraction"), default=None)
        if most is not None and 100 * most.loop_fraction >= MODERATELY_PERCENT:
            own.insert(0, most.said)
        own_first, *others_too = filter(None, [*own, ready_text(rank)])
        if 100 * fraction >= KEPT_UP_PERCENT and (ready or 0.0) >= 1 and not device_waits(wait):
            waited = f"{percent(fraction)} of {each_step(rank)} ({wait.raw_ms or 0.0:.1f} ms)"
            why = ", perhaps because no CPU is free" if others else ""
            text = f"{whose}batches are ready, but taking them costs {waited}{why}"
        text += _beside_steps(rank)
        beside = "; ".join(others_too) or None
        return reads or Finding(kind="not-input-bound", text=text, why=own_first, beside=beside, rank=rank)
    return _of_unseen(unseen, f"{unseen.called}: " if len(ranks) > 1 else "")


def _of_unseen(rank: RankReport, whose: str) -> Finding:
    """Judge a rank whose wait is not known: without a loader by what lies before its forward pass."""
    what, feeding = rank.steps.unknown_why or "no step was measured", rank.feeding
    if feeding is None:
        fix = None if rank.steps.unknown_why is None else _NAME_IT
        return Finding(kind="wait-unknown", text=f"{whose}{what}", why=_loop_reads(rank), rank=rank, fix=fix)
    most = f"at most {percent(feeding.before_fraction)} of {each_step(rank)}"
    of = f"({feeding.before_ms:.1f} of {rank.steps.mean_ms or 0.0:.1f} ms)"
    if 100 * feeding.before_fraction < KEPT_UP_PERCENT:
        why = "no known loader feeds the loop, and it hardly does anything before the forward pass of a step"
        text = f"{whose}{most} waits for data {of}{_beside_steps(rank)}"
        return Finding(kind="not-input-bound", text=text, why=why, rank=rank)
    own = next((each for each in rank.culprits if each.id == "prepared-in-the-loop"), None)
    text = f"{whose}{most} {of}: what the loop does before its forward pass"
    if feeding.asleep:
        return Finding(kind="wait-unknown", text=text, why=feeding.asleep, rank=rank)
    if own is None:
        return Finding(kind="wait-unknown", text=text, why=_loop_reads(rank), rank=rank, fix=_NAME_IT)
    return Finding(kind="wait-unknown", text=text, why=own.text, rank=rank)


def _beside_steps(rank: RankReport) -> str:
    """Say what the loop, or the start, does beside its steps where that takes as much as a bad wait would."""
    if found := _now_and_then(rank):
        return found
    if rank.account is None:  # of bare traces
        return ""
    from iotrace.analysis.rules.startup import OWN_START

    if not any(each.id == OWN_START for each in rank.culprits):
        return ""
    start_ns, whole_ns = rank.account.part_ns(START_UP), rank.account.whole_ns
    if 100 * start_ns < HIGHLY_PERCENT * whole_ns:
        return ""
    return f"; start-up takes {duration(start_ns)} of {duration(whole_ns)}"


def _now_and_then(rank: RankReport) -> str:
    """Say what recurs in the loop, where that takes as much of it as a bad wait would."""
    most = _recurs_most(rank)
    return "" if most is None else f"; {most.what} takes {percent(most.loop_fraction)} of the loop"


def _recurs_most(rank: RankReport) -> LoopEvents | LoopCode | None:
    most = max(rank.recurring, key=attrgetter("loop_fraction"), default=None)
    return None if most is None or 100 * most.loop_fraction < HIGHLY_PERCENT else most


def _hardly_waits_in_all(rank: RankReport) -> bool:
    """Whether all that its loaders cost is little of the loop, however much of a step that is."""
    account = rank.account
    return account is not None and account.loader_pct is not None and account.loader_pct < MODERATELY_PERCENT


def _others_may_make_it(rank: RankReport) -> bool:
    if rank.system.host is None:  # of bare traces
        return False
    from iotrace.analysis.host.disturbance import may_be_all_of_wait

    return may_be_all_of_wait(rank, KEPT_UP_PERCENT)


def _of_tracing(rank: RankReport, fraction: float) -> str | None:
    """Say what tracing took where the wait may be its work: at least half of it, or perhaps all of it."""
    overhead = rank.overhead
    if overhead is None or overhead.least_pct_of_step is None:
        return None
    least, most = overhead.least_pct_of_step, overhead.estimated_pct_of_step or 0.0
    perhaps_all = least >= TRACING_PERCENT[1] and most >= 100 * fraction
    if least < MOSTLY * 100 * fraction and not perhaps_all:
        return None
    return f"tracing itself took {bounds(least, max(least, most))} of a step"


def _of_reads(ranks: Sequence[RankReport]) -> Finding | None:
    """Judge ranks by the one that reads most in its loop, where that is much of its step."""
    rank = max(ranks, key=_read_ms)
    reads, step_ms = rank.loop_reads, rank.steps.mean_ms
    if reads is None or not step_ms or 100 * _read_ms(rank) < MODERATELY_PERCENT * step_ms:
        return None
    found = rank.accelerator
    if found is not None and found.span_us and 100 * found.idle_us < MODERATELY_PERCENT * found.span_us:
        return None  # the device works while the loop reads
    spent_ms = _read_ms(rank) + (rank.data_wait.raw_ms or 0.0)
    whose = f"{rank.called}: " if len(ranks) > 1 else ""
    share = f"{percent(spent_ms / step_ms)} of each step waits for data or reads it"
    return Finding(
        kind=_KINDS[verdict_in_words(spent_ms / step_ms)],
        text=f"{whose}{share} ({spent_ms:.1f} of {step_ms:.1f} ms)",
        why=_loop_reads(rank),
        file=reads.files[0].path if reads.files else None,
        rank=rank,
        fix=_READ_AHEAD,
    )


def _reads_more(reads: Finding, fraction: float) -> bool:
    """Whether a rank's own reads cost more of its step than its loader costs the rank that waits longest."""
    rank = reads.rank
    return rank is not None and _read_ms(rank) > fraction * (rank.steps.mean_ms or 0.0)


def _read_ms(rank: RankReport) -> float:
    return rank.loop_reads.read_ms + rank.loop_reads.decode_ms if rank.loop_reads is not None else 0.0


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
    return found.rank is not None and _fraction(found.rank) >= costs_of(rank).get(cause, 0.0)


def _why_of_trace(rank: RankReport | None, recommendations: Sequence[Recommendation]) -> str | None:
    """Say as much of a wait as a bare trace shows: not what the loader did meanwhile."""
    if any(item.id == "no-workers" for item in recommendations):
        return "its loader has no workers: the loop loads each batch itself"
    if rank is None or not rank.data_wait.raw_ms:
        return None
    wait = f"its loop waits {rank.data_wait.raw_ms:.1f} ms a step for data"
    return f"{wait}; what the loader did then is in no trace"


def _loop_reads(rank: RankReport) -> str | None:
    """Say what the training thread read itself, as far as that is worth a word."""
    reads, step_ms = rank.loop_reads, rank.steps.mean_ms
    if reads is None or not step_ms:
        return None
    spent_ms = _read_ms(rank)
    if not spent_ms:
        return "the training thread itself reads no file in its steps"
    share = f"{spent_ms:.1f} of {step_ms:.1f} ms a step ({percent(spent_ms / step_ms)})"
    costly = reads.files[0] if reads.files else None
    where = f", most in {costly.path}" if costly is not None and costly.ms >= MOSTLY * spent_ms else ""
    return f"the training thread itself reads for {share}{where}"


def _fraction(rank: RankReport) -> float:
    """The share that its loaders cost the loop: of the steady step, or in all where that is more."""
    costs = _loop_costs(rank)
    return max(_step_fraction(rank), -1.0 if costs is None else costs.fraction)


def _lost_seconds(rank: RankReport) -> float:
    """What its loaders cost the rank's loop in all; negative where that is unknown."""
    steps = rank.steps
    own = steps.count * (steps.mean_ms or 0.0) / 1000
    return _fraction(rank) * (own if steps.loop_seconds is None else steps.loop_seconds)


def _loop_costs(rank: RankReport) -> LoopCosts | None:
    if rank.account is None:  # of bare traces
        return None
    from iotrace.analysis.verdict.loop_costs import loop_costs

    return loop_costs(rank)


def _step_fraction(rank: RankReport) -> float:
    fraction = bound_fraction(rank.data_wait)
    return -1.0 if fraction is None else fraction
