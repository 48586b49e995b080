"""The verdict over a job: one line that holds for all its ranks, and the reason for it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import msgspec
from msgspec.structs import replace

from iotrace.analysis.results import (
    FileCost,
    FileGroup,
    Fix,
    Imbalance,
    RankReport,
    Recommendation,
    SessionInfo,
    Straggler,
    Trust,
    Verdict,
)
from iotrace.analysis.verdict import failed
from iotrace.analysis.verdict.device import (
    busy_text,
    each_step,
    idle_fraction,
    idle_text,
    why_first,
    why_idle,
)
from iotrace.analysis.verdict.fixes import fixes_of
from iotrace.analysis.verdict.trust import competes
from iotrace.analysis.wait.data_wait import MODERATELY_PERCENT, bound_fraction, device_waits
from iotrace.analysis.wait.data_wait import verdict as verdict_in_words
from iotrace.session.liveness import ENDED, RUNNING
from iotrace.units import percent

BANNERS = {
    "input-bound": "INPUT-BOUND",
    "moderately-input-bound": "MODERATELY INPUT-BOUND",
    "not-input-bound": "NOT INPUT-BOUND",
    "rank-late": "RANK LATE",
    "failed": "FAILED",
    "running": "RUNNING",
    "wait-unknown": "WAIT UNKNOWN",
    "device-idle": "DEVICE IDLE",
}
_KINDS = {
    "highly input-bound": "input-bound",
    "moderately input-bound": "moderately-input-bound",
    "not input-bound": "not-input-bound",
}
_MOSTLY = 0.5  # of a wait or a cause: what one thing has to cost to be named for it
_LATE_PERCENT = 10.0  # of a step that the others wait for one rank
_BY_DATA_PERCENT = 50.0  # of its lateness
_OF_MACHINE = {"compute": "device and its share of the work", "launch": "host's CPUs", "host": "host"}
_SLOW = {"read": "slow to read", "decode": "slow to decode"}
_CAUSES = {
    "read": "reading",
    "decode": "decoding",
    "transform": "the dataset's own code (transform)",
    "collate": "putting samples together (collate)",
    "transport": "handing batches over from the workers (transport)",
    "queued": "workers that had nothing to do (queued)",
    "startup": "starting workers anew (startup)",
}


# What makes an unknown wait known.
_NAME_IT = Fix(
    id="name-the-source",
    text="iotrace.batches(YOUR_ITERABLE) around the loop's source names the wait",
    gain_ms_per_step=None,
    speedup=None,
)

# What takes reads out of the loop.
_READ_AHEAD = Fix(
    id="read-in-the-dataset",
    text="read in the dataset's __getitem__: workers then read ahead of the loop",
    gain_ms_per_step=None,
    speedup=None,
)


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """A verdict before its fixes: what is said, of which rank."""

    kind: str
    text: str
    why: str | None = None
    file: str | None = None
    cause: str | None = None
    rank: RankReport | None = None
    fix: Fix | None = None  # in place of those of the advice
    culprit: str | None = None


def verdict_of(
    session: SessionInfo,
    ranks: Sequence[RankReport],
    imbalance: Imbalance | None,
    recommendations: Sequence[Recommendation],
    trust: Trust,
) -> Verdict:
    """Say what holds for the job: its failure, a rank that is late, else the rank that waits longest."""
    found = _late(ranks, imbalance) or of_worst(ranks)
    if not session.argv:
        found = _of_traces(found, ranks)
        if found.why is None and any(item.id == "no-workers" for item in recommendations):
            found = replace(found, why="its loader has no workers: the loop loads each batch itself")
    if session.state != ENDED and found.kind == "wait-unknown":  # a loop that was not seen may not have begun
        found = replace(found, fix=None)
    if session.state == RUNNING:
        found = _so_far(found)
    rank = None if found.rank is None else found.rank.rank
    own = [item for item in recommendations if rank is None or item.rank == rank]
    verdict = Verdict(
        text=f"{BANNERS[found.kind]} {found.text}",
        banner=BANNERS[found.kind],
        kind=found.kind,
        why=found.why,
        file=found.file,
        cause=found.cause,
        rank=rank,
        culprit=found.culprit,
        until=None,
        fixes=fixes_of(own, ranks, trust, found.cause) if found.fix is None else [found.fix],
        trust=trust,
    )
    return _failed(session, ranks, verdict, found) if session.exit_code else verdict


def _failed(session: SessionInfo, ranks: Sequence[RankReport], until: Verdict, found: Finding) -> Verdict:
    """Say that the run failed; what it would have said otherwise held until then."""
    cause, banner = failed.cause_of(session), failed.banner_of(session)
    return replace(
        until,
        text=f"{banner} {failed.what_failed(session, ranks)}",
        banner=banner,
        kind="failed",
        why=failed.why_failed(session),
        file=None if cause is None else cause.file,
        cause=None,
        rank=None if cause is None else cause.rank,
        until=_until(found),
        # A fix of the wait mends no failure; who interrupts a run may have seen enough of it.
        fixes=until.fixes if banner == failed.INTERRUPTED else [],
        trust=failed.trust_after(until.trust, ranks),
    )


def _until(found: Finding) -> str:
    """Say in one line what held: the share of the wait, its cause and file."""
    if found.kind == "wait-unknown":
        return f"{BANNERS[found.kind]}, {found.text}"
    if found.kind == "rank-late" or found.rank is None:
        return f"{BANNERS[found.kind]}, {found.text}"
    share = f"{percent(_fraction(found.rank))} waited for data"
    due = ", ".join(part for part in (found.cause, found.file) if part)
    return f"{BANNERS[found.kind]}, {share}{f' ({due})' if due else ''}"


def _so_far(found: Finding) -> Finding:
    """Say of a run that goes on what its steps until now show."""
    known = found.kind != "wait-unknown"
    text = f"so far: {BANNERS[found.kind]} {found.text}" if known else f"{found.text} so far"
    return replace(found, kind="running", text=text)


def _late(ranks: Sequence[RankReport], imbalance: Imbalance | None) -> Finding | None:
    """Find the rank that the others wait for, where that costs them much; or that ranks are late by turns."""
    if imbalance is None:
        return None
    late: Straggler | None = max(imbalance.stragglers, key=lambda each: each.impact_pct or 0.0, default=None)
    if late is None or max(late.impact_pct or 0.0, _moving_pct(imbalance)) < _LATE_PERCENT:
        return None
    rank = next((each for each in ranks if each.rank == late.rank), None)
    if rank is None:
        return None
    if _moving_pct(imbalance) >= _LATE_PERCENT:
        return _by_turns(imbalance, late, rank)
    others = imbalance.ranks_seen - 1
    text = (
        f"rank {late.rank} is late; {others} rank{'s wait' if others > 1 else ' waits'} "
        f"{late.impact_pct:.0f} % of each step for it"
    )
    if (late.by_data_pct or 0.0) < _BY_DATA_PERCENT:
        why = late.evidence or "its data did not make it late"
        if imbalance.pattern == "stays" and late.kind in _OF_MACHINE:
            share = f"{late.late_steps} of {imbalance.late_steps} late steps"
            why = f"{why}, in {share}: look at its {_OF_MACHINE[late.kind]}"
        return Finding(kind="rank-late", text=text, why=why, rank=rank)
    reason = _reason(rank)
    several = any(each.primary and each.workers > 1 for each in rank.loaders)
    if late.worker is not None and several and reason.get("why"):
        reason["why"] = f"{reason['why']}; late most by worker {late.worker}"
    return replace(Finding(kind="rank-late", text=text, rank=rank), **reason)


def _moving_pct(imbalance: Imbalance) -> float:
    """What ranks that are late by turns cost, percent of all steps; 0 where one stays the late one."""
    return (imbalance.late_pct or 0.0) if imbalance.pattern == "moves" else 0.0


def _by_turns(imbalance: Imbalance, most: Straggler, rank: RankReport) -> Finding:
    """Say that the late rank moves: uneven batches do that, a slow machine does not."""
    late = [each for each in imbalance.stragglers if each.late_steps]
    text = (
        f"{len(late)} ranks are late by turns; ranks wait {_moving_pct(imbalance):.0f} % of each step for one"
    )
    share = f"rank {most.rank} in {most.late_steps} of {imbalance.late_steps} late steps"
    skew_ms = sum(sum(each.late_by_ms.values()) for each in late)
    data_ms = sum(each.late_by_ms.get("data", 0.0) for each in late)
    if not skew_ms or data_ms < _MOSTLY * skew_ms:
        return Finding(kind="rank-late", text=text, why=f"no rank stays the late one: {share}", rank=rank)
    found = replace(Finding(kind="rank-late", text=text, rank=rank), **_reason(rank))
    return replace(
        found, why=f"their data, not a slow machine: {share}" + (f"; {found.why}" if found.why else "")
    )


def of_worst(ranks: Sequence[RankReport]) -> Finding:
    """Judge the job by the rank that waits for the largest share of its steps.

    A rank whose wait is unknown may wait longest: then only a wait of another that is long enough is told.
    """
    rank = max(ranks, key=_fraction, default=None)
    if rank is None:
        return Finding(kind="wait-unknown", text="no process was traced")
    whose = f"{rank.called}: " if len(ranks) > 1 else ""
    wait, fraction = rank.data_wait, _fraction(rank)
    text = f"{whose}{_waits(rank, fraction)}"
    if 100 * fraction >= MODERATELY_PERCENT:
        cost = rank.overhead.least_pct_of_step if rank.overhead is not None else None
        if cost is not None and cost >= _MOSTLY * 100 * fraction:
            text = f"{whose}tracing itself took {cost:.0f} % of a step or more, the wait {percent(fraction)}"
            return Finding(kind="wait-unknown", text=text, rank=rank)
        return replace(Finding(kind=_KINDS[wait.verdict or ""], text=text, rank=rank), **_reason(rank))
    unknown = next((each for each in ranks if each.data_wait.raw_wait_fraction is None), None)
    if unknown is None:
        return _of_reads(ranks) or Finding(kind="not-input-bound", text=text, why=_ready(rank), rank=rank)
    whose = f"{unknown.called}: " if len(ranks) > 1 else ""
    what = unknown.steps.unknown_why or "no step was measured"
    why, fix = _loop_reads(unknown), None if unknown.steps.unknown_why is None else _NAME_IT
    return Finding(kind="wait-unknown", text=f"{whose}{what}", why=why, rank=unknown, fix=fix)


def _of_reads(ranks: Sequence[RankReport]) -> Finding | None:
    """Judge ranks that hardly wait by the one that reads most in its loop, where that is much of its step."""
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


def _read_ms(rank: RankReport) -> float:
    return rank.loop_reads.read_ms + rank.loop_reads.decode_ms if rank.loop_reads is not None else 0.0


def _of_traces(found: Finding, ranks: Sequence[RankReport]) -> Finding:
    """Judge bare traces: by the data wait where there is one, else by the device's idle time."""
    if found.kind not in ("wait-unknown", "not-input-bound"):
        return found
    known = [rank for rank in ranks if rank.accelerator is not None and rank.accelerator.span_us]
    rank = max(known, key=lambda each: idle_fraction(each) or 0.0, default=None)
    if rank is not None and rank.accelerator is not None and (text := idle_text(rank)) is not None:
        of = f", rank {rank.rank} of {rank.world_size or len(ranks)}" if len(ranks) > 1 else ""
        return Finding(
            kind="device-idle",
            text=f"{text}{of}",
            why=why_first(rank) or why_idle(rank.accelerator),
            rank=rank,
        )
    if found.kind == "wait-unknown" and found.rank is not None and found.rank.steps.count:
        return replace(found, text="no wait for a DataLoader was recorded", fix=None)
    return found


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
    where = f", most in {costly.path}" if costly is not None and costly.ms >= _MOSTLY * spent_ms else ""
    return f"the training thread itself reads for {share}{where}"


def _fraction(rank: RankReport) -> float:
    fraction = bound_fraction(rank.data_wait)
    return -1.0 if fraction is None else fraction


def _waits(rank: RankReport, fraction: float) -> str:
    """Say who waits for data, and for how much of a step."""
    wait, step_ms, each = rank.data_wait, rank.steps.mean_ms or 0.0, each_step(rank)
    if device_waits(wait):
        share = "no step" if not wait.exposed_ms else f"{percent(fraction)} of {each}"
        waited = f"{wait.exposed_ms or 0.0:.1f} of {step_ms:.1f} ms"
        return f"the device waits for data in {share} ({waited})"
    return f"{percent(fraction)} of {each} waits for data ({wait.raw_ms or 0.0:.1f} of {step_ms:.1f} ms)"


def _ready(rank: RankReport) -> str | None:
    """Say that batches lie ready, where that was seen."""
    primary = next((loader for loader in rank.loaders if loader.primary), None)
    wait = rank.data_wait
    gain = f"a faster loader gains <= {wait.raw_ms if wait.exposed_ms is None else wait.exposed_ms:.1f} ms"
    if device_waits(wait) and 100 * (wait.raw_wait_fraction or 0.0) >= MODERATELY_PERCENT:
        return f"the loop waits {wait.raw_ms:.1f} ms, but the device has work meanwhile: {gain}"
    if rank.accelerator is not None and rank.accelerator.span_us:
        gain += f"; {busy_text(rank.accelerator)}"
    if competes(rank):
        gain = "what a faster loader gains is unknown, as no CPU was free"
    if primary is None or primary.queue_depth_mean is None or primary.queue_depth_mean < 0.5:
        return gain
    return f"batches lie ready: {primary.queue_depth_mean:.1f} when asked; {gain}"


def _reason(rank: RankReport) -> dict[str, str | None]:
    """Name the file and the cause that most of a rank's wait is due to; who kept CPUs from it comes first.

    What nobody who runs the job can change stands behind them.
    """
    found = _cause_of(rank)
    culprit = next((each for each in rank.culprits if each.leads), None)
    if culprit is None or found["why"] is None:
        return found
    why = culprit.text if culprit.remedy else f"{found['why']}; {culprit.text}"
    return {**found, "why": why, "culprit": culprit.id}


def _cause_of(rank: RankReport) -> dict[str, str | None]:
    wait = rank.data_wait
    raw_ms, causes = wait.raw_ms or 0.0, wait.causes_ms
    cause = max(causes, key=lambda name: causes[name], default=None)
    primary = next((loader for loader in rank.loaders if loader.primary), None)
    if not raw_ms or cause is None or causes[cause] <= 0:
        return {"why": None}
    share = percent(causes[cause] / raw_ms)
    if cause == "unknown":
        why = f"unknown: {share} of the wait is not explained by what was seen"
        if primary is not None and primary.wrapped:
            why = f"unknown what the source did in {share} of the wait; iotrace.region in it tells"
        return {"why": why, "cause": cause}
    file = _costliest(wait.files, cause)
    if cause in _SLOW and file is not None and _cost(file, cause) >= _MOSTLY * causes[cause]:
        share = percent(_cost(file, cause) / raw_ms)
        return {
            "why": f"{file.path} is {_SLOW[cause]}: {share} of the wait",
            "file": file.path,
            "cause": cause,
        }
    group = _costliest(rank.file_groups, cause)
    if cause in _SLOW and group is not None and _cost(group, cause) >= _MOSTLY * causes[cause]:
        share = percent(_cost(group, cause) / raw_ms)
        members = f" ({group.members} files)" if group.members is not None else ""
        return {
            "why": f"{group.path}{members} is {_SLOW[cause]}: {share} of the wait",
            "file": group.path,
            "cause": cause,
        }
    what = _CAUSES[cause]
    if cause == "transform" and primary is not None:
        what = primary.item or f"the own code of {primary.dataset} (transform)"
    if cause == "transport" and primary is not None and (primary.queue_depth_mean or 0.0) >= 1:
        what = f"batches lay ready ({primary.queue_depth_mean:.1f} when asked): {what}"
    return {"why": f"{what} takes {share} of the wait", "cause": cause}


def _cost(file: FileCost | FileGroup, cause: str) -> float:
    return {"read": file.read_ms, "decode": file.decode_ms}.get(cause) or 0.0


_Costly = TypeVar("_Costly", FileCost, FileGroup)


def _costliest(files: Sequence[_Costly], cause: str) -> _Costly | None:
    return max(files, key=lambda file: _cost(file, cause), default=None)
