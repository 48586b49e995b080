"""What the rank that waits longest says of the job: whether its loop waits for data, and why."""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter
from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import replace

from iotrace.analysis.loop.deliveries import ASK_OUTSIDE, ASKS_WITHIN
from iotrace.analysis.results import (
    SKIPPED,
    START_UP,
    TRACING_PERCENT,
    Fix,
    LoopCode,
    LoopEvents,
    RankReport,
    commands_of,
)
from iotrace.analysis.verdict.device import each_step
from iotrace.analysis.verdict.reason import MOSTLY, ready_text, reason_of, waits_text
from iotrace.analysis.wait.data_wait import (
    HIGHLY_PERCENT,
    KEPT_UP_PERCENT,
    MODERATELY_PERCENT,
    bound_fraction,
    device_waits,
    handed_over,
    is_of_the_loader,
    verdict as verdict_in_words,
)
from iotrace.units import bounds, duration, percent

if TYPE_CHECKING:
    from iotrace.analysis.verdict.loop_costs import LoopCosts

# Culprits of steps that hardly wait.
_OF_STEPS = (
    *("batches-skipped", "training-without-cpu", "code-of-the-loop", "collectives-of-the-loop"),
    *("padded-batches", "state-with-each-batch"),
)
_KINDS = {
    "highly input-bound": "input-bound",
    "moderately input-bound": "moderately-input-bound",
    "not input-bound": "not-input-bound",
}

_LARGE = 0.4  # of a step: a phase that is worth naming

# What makes an unknown wait known.
_NAME_IT = Fix(
    id="name-the-source", text="iotrace.batches(YOUR_ITERABLE) around the loop's source names the wait"
)

# What does where a library asks for its batches within its step.
_ASK_OUTSIDE = Fix(id="ask-in-python", text=ASK_OUTSIDE)

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
    second: Fix | None = None  # beside it
    culprit: str | None = None


def of_worst(ranks: Sequence[RankReport]) -> Finding:
    """Judge the job by the rank that waits for the largest share of its steps.

    Of several commands it is the one that loses most time: they do not run in step, and a short one that
    waits for nearly all of its time loses little. A rank whose wait is unknown may wait longest: then only a
    wait of another that is long enough is told.
    """
    commands = commands_of(ranks)
    rank = max(ranks, key=_lost_seconds if commands else wait_fraction, default=None)
    if rank is None:
        return Finding(kind="wait-unknown", text="no Python process was traced")
    command = commands.get(rank.pid or 0)
    whose = f"{command or rank.called}: " if len(ranks) > 1 else ""
    wait, fraction, costs = rank.data_wait, wait_fraction(rank), _loop_costs(rank)
    if costs is not None and costs.fraction > _step_fraction(rank):
        kind, said = _KINDS[verdict_in_words(fraction)], f"{whose}{costs.text}"
        found = Finding(kind=kind, text=said, why=costs.why, cause=costs.cause, rank=rank)
        reason = reason_of(rank) if costs.mostly_waits else {"why": None}
        return found if reason["why"] is None else replace(found, **{**reason, "beside": costs.why})
    reads = _of_reads(ranks)
    if reads is not None and fraction >= 0 and _reads_more(reads, fraction):
        return reads
    text = f"{whose}{waits_text(rank, fraction)}"
    ready = None if rank.primary is None else rank.primary.ready_in_turn_mean
    handing_over = handed_over(wait)
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
        text += _now_and_then(rank) or _own_code(rank, more_than=fraction)
        return replace(Finding(kind=_KINDS[wait.verdict or ""], text=text, rank=rank), **reason_of(rank))
    unseen = next((each for each in ranks if each.data_wait.raw_wait_fraction is None), None)
    if unseen is None:
        # A rank's own code is told before what its loader might save.
        own, seldom = _own_of(rank), _recurs_little(rank)
        phase = None if own else _phase_of(rank)
        own_first, *others_too = filter(None, [*own, ready_text(rank), phase, seldom])
        takes_ready = (ready or 0.0) >= 1 and handing_over >= MOSTLY
        if 100 * fraction >= KEPT_UP_PERCENT and takes_ready and not device_waits(wait):
            waited = f"{percent(fraction)} of {each_step(rank)} ({wait.raw_ms or 0.0:.1f} ms)"
            why = ", perhaps because no CPU is free" if others else ""
            text = f"{whose}batches are ready, but taking them costs {waited}{why}"
        text += _outside_steps(rank)
        beside = "; ".join(others_too) or None
        return reads or Finding(kind="not-input-bound", text=text, why=own_first, beside=beside, rank=rank)
    return _of_unseen(unseen, f"{unseen.called}: " if len(ranks) > 1 else "")


_FEEDS_ITSELF = ("child-at-work", "prepared-in-the-loop", "recurring-code")  # ids of rules, the first first


def _own_of(rank: RankReport) -> list[str]:
    """Say what the loop itself does that takes much of it, what recurs first."""
    own = [each.text for each in rank.culprits if each.id in _OF_STEPS]
    most = _most_recurring(rank, KEPT_UP_PERCENT)
    return own if most is None else [most.said, *own]


def _recurs_little(rank: RankReport) -> str | None:
    """Say what recurs and takes so little of the loop that nothing is wrong with it: told, but not first."""
    most = _most_recurring(rank, MODERATELY_PERCENT)
    return None if most is None or 100 * most.loop_fraction >= KEPT_UP_PERCENT else most.said


def _most_recurring(rank: RankReport, least_percent: float) -> LoopEvents | LoopCode | None:
    most = max(rank.recurring, key=attrgetter("loop_fraction"), default=None)
    return None if most is None or 100 * most.loop_fraction < least_percent else most


def _phase_of(rank: RankReport) -> str | None:
    """Name the phase that takes most of a step, where the host computes it."""
    phases, step_ms = rank.phases_ms, rank.steps.mean_ms
    known = {name: getattr(phases, name) or 0.0 for name in ("forward", "backward", "optimizer")}
    most = max(known, key=lambda name: known[name])
    device = rank.accelerator
    if not step_ms or known[most] < _LARGE * step_ms or (device is not None and device.span_us):
        return None
    return f"{most} takes {percent(known[most] / step_ms)} of a step"


def _of_unseen(rank: RankReport, whose: str) -> Finding:
    """Judge a rank whose wait is not known: without a loader by what lies before its forward pass."""
    what, feeding = rank.steps.unknown_why or "no step was measured", rank.feeding
    if feeding is None:
        within = any(loader.library == ASKS_WITHIN for loader in rank.loaders)
        fix = None if rank.steps.unknown_why is None else _ASK_OUTSIDE if within else _NAME_IT
        suspect = second = None
        if within:  # few loops ask so
            from iotrace.analysis.verdict.suspects import suspect_of

            suspect, second = suspect_of(rank)
        told = [*filter(None, (_busiest_of_library(rank), suspect, _loop_reads(rank)))]
        why, beside = [*told, None, None][:2]
        found = Finding(
            kind="wait-unknown", text=f"{whose}{what}", why=why, beside=beside, rank=rank, fix=fix
        )
        return found if second is None else replace(found, fix=second, second=fix)
    saved_ms = _saved_before_ms(rank)
    fraction = (
        feeding.before_fraction * max(0.0, 1 - saved_ms / feeding.before_ms)
        if saved_ms
        else feeding.before_fraction
    )
    most = f"at most {percent(fraction)} of {each_step(rank)}"
    of = f"({max(0.0, feeding.before_ms - saved_ms):.1f} of {rank.steps.mean_ms or 0.0:.1f} ms)"
    if 100 * fraction < KEPT_UP_PERCENT:
        why = "no known loader feeds the loop, and it hardly does anything before the forward pass of a step"
        text = f"{whose}{most} waits for data {of}{_outside_steps(rank)}"
        told = [*_own_of(rank), why, *filter(None, [_recurs_little(rank)])]
        beside = "; ".join(told[1:]) or None
        return Finding(kind="not-input-bound", text=text, why=told[0], beside=beside, rank=rank)
    own = next((each for id in _FEEDS_ITSELF for each in rank.culprits if each.id == id), None)
    text = f"{whose}{most} {of}: what the loop does before its forward pass"
    if own is None and not feeding.asleep:
        return Finding(kind="wait-unknown", text=text, why=_loop_reads(rank), rank=rank, fix=_NAME_IT)
    if own is None:
        return Finding(kind="wait-unknown", text=text, why=feeding.asleep, rank=rank)
    return Finding(kind="wait-unknown", text=text, why=own.text, beside=feeding.asleep, rank=rank)


def _busiest_of_library(rank: RankReport) -> str | None:
    """Name the program's function that a library calls to make batches, where it works for most of the loop.

    Whether the loop waits for it is not known: it may work ahead.
    """
    stage = max(rank.pipeline, key=attrgetter("busy"), default=None)
    if stage is None or stage.busy < MOSTLY:
        return None
    at = f" ({stage.site})" if stage.site else ""
    threads = f", on {stage.makers} threads" if stage.makers > 1 else ""
    called = f"{stage.name}{at} runs {stage.items} times in the measured steps, {stage.item_ms:.1f} ms each"
    together = "together " if stage.makers > 1 else ""
    return f"{called}{threads}: {together}{percent(stage.busy)} of their time"


def _saved_before_ms(rank: RankReport) -> float:
    """How long a step writes in the function that lies before its forward pass, or waits for its checkpoints.

    What was seen of checkpoints is left out already.
    """
    if rank.feeding is None or not rank.steps.count:
        return 0.0
    own = [each for each in rank.loop_events if each.function and each.function == rank.feeding.function]
    saved = sum(each.seconds for each in own if each.kind == "writing")
    saved += sum(each.seconds - each.seen_seconds for each in own if each.kind == "checkpoint")
    return min(rank.feeding.before_ms, 1e3 * saved / rank.steps.count)


def _outside_steps(rank: RankReport) -> str:
    """Say what the loop, or the start, does beside its steps where that takes as much as a bad wait would."""
    if found := _now_and_then(rank):
        return found
    if found := _own_code(rank):
        return found
    if rank.account is None:  # of bare traces
        return ""
    skipped_pct = 100 * rank.account.part_ns(SKIPPED) / max(1, rank.account.loop_ns)
    if skipped_pct >= HIGHLY_PERCENT:
        return f"; taking batches that it does not train on takes {skipped_pct:.0f} % of the loop"
    from iotrace.analysis.rules.startup import OWN_START

    if not any(each.id == OWN_START for each in rank.culprits):
        return ""
    start_ns, whole_ns = rank.account.part_ns(START_UP), rank.account.whole_ns
    if 100 * start_ns < HIGHLY_PERCENT * whole_ns:
        return ""
    return f"; start-up takes {duration(start_ns)} of {duration(whole_ns)}"


def _own_code(rank: RankReport, more_than: float = 0.0) -> str:
    """Say what share of a step the loop's own code, or its sleep, takes where that is `more_than`."""
    step_ms, ms = rank.steps.mean_ms or 1.0, rank.phases_ms.other or 0.0
    own = next((each for each in rank.culprits if each.id == "code-of-the-loop"), None)
    if own is None or 100 * ms < max(HIGHLY_PERCENT, 100 * more_than) * step_ms:
        return ""
    asleep_ms = own.evidence.get("asleep_ms")
    if isinstance(asleep_ms, float):  # perhaps in place of a device: nothing to change beside a wait
        return (
            ""
            if more_than
            else f"; the loop sleeps for {percent(min(1.0, asleep_ms / step_ms))} of each step"
        )
    return f"; the loop's own code takes {percent(ms / step_ms)} of each step"


def _now_and_then(rank: RankReport) -> str:
    """Say what recurs in the loop, where that takes as much of it as a bad wait would."""
    most = _recurs_most(rank)
    if most is None:
        return ""
    share = percent(most.loop_fraction)
    if isinstance(most, LoopCode) and most.inside_seconds:
        share = f"{share.removesuffix(' %')} to {percent(most.most_fraction)}"
    return f"; {most.what} takes {share} of the loop"


def _recurs_most(rank: RankReport) -> LoopEvents | LoopCode | None:
    return _most_recurring(rank, HIGHLY_PERCENT)


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


def wait_fraction(rank: RankReport) -> float:
    """The share that its loaders cost the loop: of the steady step, or in all where that is more."""
    costs = _loop_costs(rank)
    return max(_step_fraction(rank), -1.0 if costs is None else costs.fraction)


def _lost_seconds(rank: RankReport) -> float:
    """What its loaders cost the rank's loop in all; negative where that is unknown."""
    steps = rank.steps
    own = steps.count * (steps.mean_ms or 0.0) / 1000
    return wait_fraction(rank) * (own if steps.loop_seconds is None else steps.loop_seconds)


def _loop_costs(rank: RankReport) -> LoopCosts | None:
    if rank.account is None:  # of bare traces
        return None
    from iotrace.analysis.verdict.loop_costs import loop_costs

    return loop_costs(rank)


def _step_fraction(rank: RankReport) -> float:
    fraction = bound_fraction(rank.data_wait)
    return -1.0 if fraction is None else fraction
