"""The fixes of a verdict: what each gains with all else as it was, and at most; how one stands to the first.

Without its cause a step has less to do, and what is left queues for the CPUs with less, and shares caches and
memory with less. So the replay of the loop without the cause is no upper bound. That is the step in which the
training waits for a CPU no longer than it would without the share of the job's work that the fix spares, and
computes quicker (`quicker_by`) by that share; nor less than it computes at all.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec
from msgspec.structs import replace

from iotrace.analysis.results import BAD, GONE, Fix, RankReport, Recommendation, Trust
from iotrace.analysis.rules.advice import frees_cpus, saves_wait
from iotrace.analysis.rules.model import THE_DEVICE, THE_LOOP, rule_of
from iotrace.analysis.verdict.reason import is_of_lists, of_another
from iotrace.analysis.wait.data_wait import QUICKER, device_waits, quicker_by, taking_is_work

_SAMPLING = "IO217"  # what it saves of the wait the training thread itself computes
_MORE_CPUS = ("IO302", "IO303")  # rules whose remedy gives the same work more of the host's CPUs
_TAKEN = 0.2  # of the CPUs, by other programs: what a thread's queueing depends on
_SEVERAL_THREADS = 1.5  # CPUs that the training keeps busy: its thread waits for others, which may lack one


class FixGain(msgspec.Struct, frozen=True):
    """Times are ms per step; `most_ms` is None where nothing bounds it.

    `at_most`: nobody knows what the change leaves of its cause.
    """

    gain_ms: float | None = None
    speedup: float | None = None
    at_most: bool = True
    interval_ms: list[float] | None = None
    most_ms: float | None = None


def gain_of(item: Recommendation, rank: RankReport) -> FixGain:
    """Return what a piece of advice gains."""
    gain_ms = item.gain_ms_per_step
    is_of_run = item.code is not None and rule_of(item.code).of_run and rank.account is not None
    step_ms = rank.account.step_ms if is_of_run and rank.account is not None else rank.steps.mean_ms
    exposed_ms = rank.data_wait.exposed_ms
    # Ending and starting workers takes time outside the wait, too; so do writing and what idles the device.
    if gain_ms is not None and saves_wait(item) and exposed_ms is not None:
        # The device works through the rest of the wait: only its idle time can be won.
        gain_ms = min(gain_ms, exposed_ms)
    if gain_ms is None or not step_ms:
        return FixGain(gain_ms)
    interval_ms, most_wait_ms = item.gain_interval_ms, _most_of_wait_ms(gain_ms, item, rank)
    # A rule's own interval, without a row of gains, is what a change may leave: nothing predicted it.
    is_predicted = interval_ms is not None and item.gain is not None
    is_setting = is_predicted and not any(row.id == item.gain and row.change == GONE for row in rank.gain)
    most_ms: float | None = (
        gain_ms if interval_ms is None else _no_more_than_waits(item, rank, interval_ms[1])
    )
    if frees_cpus(item):
        # What comes with iterators lies beside the measured steps.
        spares = 1.0 if item.spares_fraction is None else item.spares_fraction
        of_rest_ms = rest_gets_quicker_by_ms(rank, 0.0 if is_of_run else most_wait_ms, spares)
        most_ms = None if of_rest_ms is None else max(most_ms or 0.0, most_wait_ms + of_rest_ms)
        if interval_ms is None and most_ms is not None:
            most_ms = _in_longer_waits(rank, most_ms, spares)
        if most_ms is not None:
            most_ms = max(gain_ms, min(most_ms, _beyond_computing_ms(rank, step_ms)))
    if most_ms is not None and item.code in _MORE_CPUS:
        most_ms = max(gain_ms, min(most_ms, _beyond_work_ms(rank)))
    is_of_thread = not saves_wait(item) or item.code == _SAMPLING
    if is_of_thread and interval_ms is None and _lacks_free_cpus(rank):
        most_ms = None  # a thread that computes less queues for less behind other programs, too
    if interval_ms is not None:
        interval_ms = [interval_ms[0], max(gain_ms, interval_ms[1] if most_ms is None else most_ms)]
    return FixGain(
        gain_ms=gain_ms,
        speedup=None if gain_ms >= step_ms else step_ms / (step_ms - gain_ms),
        at_most=most_ms is not None and not is_setting,
        interval_ms=interval_ms,
        most_ms=most_ms,
    )


def _lacks_free_cpus(rank: RankReport) -> bool:
    host = rank.system.host
    return host is not None and not host.has_free_cpus and (host.others_cpu_fraction or 0.0) >= _TAKEN


def _beyond_work_ms(rank: RankReport) -> float:
    """What of a step is no work of the job on all CPUs: to get more of these makes none of it less."""
    system, step_ms = rank.system, rank.steps.mean_ms or 0.0
    cpus = max(system.cpus_online or 0, len(system.cpus_usable or ()))
    if system.cpu_pct_mean is None or not cpus:
        return step_ms
    return max(0.0, step_ms - step_ms * system.cpu_pct_mean / 100 / cpus)


def rest_gets_quicker_by_ms(rank: RankReport, gone_ms: float, share: float = 1.0) -> float | None:
    """Bound what a step loses beside its data wait once others compute less: `gone_ms` of the wait is gone.

    `share` of the making of batches is. The training thread queues for a CPU for less then, and computes as
    much as now, but quicker. None: how long it queued is not known, or other threads compute for it, which
    may have queued.
    """
    if _makes_all_batches(rank):  # one thread did both in turn: what took its CPU goes on to
        return 0.0
    steps, wait = rank.steps, rank.data_wait
    step_ms, delay_ms = steps.mean_ms or 0.0, _queued_ms(rank)
    if delay_ms is None:
        return None
    rest_ms = max(0.0, step_ms - (wait.raw_ms or 0.0))
    if device_waits(wait):  # it is the device that computes
        return min(rest_ms, delay_ms)
    quicker = quicker_by(rank.system.shared_cores)
    if steps.thread_cpu_ms is None:
        return rest_ms - (1 - quicker) * max(0.0, rest_ms - delay_ms)
    # What the loop itself makes, it computes in its wait.
    cpu_ms = max(0.0, steps.thread_cpu_ms - (gone_ms if _makes_batches(rank) else 0.0))
    # The kernel gives all their turn: it waited for each other thread as long as it runs itself, about.
    delay_ms = min(delay_ms, (1 + quicker) * share * cpu_ms * _ready_beside(rank))
    left_ms = max(0.0, rest_ms - delay_ms)
    left_ms -= quicker * share * min(left_ms, cpu_ms)
    least_ms = max(step_ms - gone_ms - rest_ms + left_ms, min(step_ms - gone_ms, _computes_ms(rank, cpu_ms)))
    quicker_ms, others_ms = step_ms - gone_ms - least_ms, _others_compute_ms(rank)
    # It queued no longer for the job's other threads, and shared a core with them, than these computed.
    return quicker_ms if others_ms is None else min(quicker_ms, (1 + quicker) * others_ms)


def _beyond_computing_ms(rank: RankReport, step_ms: float) -> float:
    """What of a step its thread does not compute, and may lose; all of it where that is not told apart."""
    cpu_ms = rank.steps.thread_cpu_ms
    if cpu_ms is None or device_waits(rank.data_wait) or _makes_batches(rank):
        return step_ms
    return max(0.0, step_ms - _computes_ms(rank, cpu_ms))


def _computes_ms(rank: RankReport, cpu_ms: float) -> float:
    """Return what a step computes at the least: a core that two CPUs share makes that longer, too."""
    if taking_is_work(rank.data_wait):  # which may go with what makes it
        cpu_ms = max(0.0, cpu_ms - rank.data_wait.causes_ms.get("transport", 0.0))
    return (1 + QUICKER - quicker_by(rank.system.shared_cores)) * cpu_ms


def _ready_beside(rank: RankReport) -> float:
    """Return how many threads of the job beside the training one run, or are ready to; infinite: unknown."""
    step_ms, others_ms = rank.steps.mean_ms, _others_compute_ms(rank)
    workers = [each for each in rank.system.processes if each.role != "main"]
    cpu = sum((each.cpu_pct_mean or 0.0) / 100 for each in workers)
    if not step_ms or others_ms is None or not cpu:
        return math.inf
    delays = [(each.run_delay_pct_mean or 0.0) + (each.pool_delay_pct_mean or 0.0) for each in workers]
    # What else of the job computes, such as ranks beside this one, queues as much.
    return max(cpu, others_ms / step_ms) * (1 + sum(delays) / 100 / cpu)


def _others_compute_ms(rank: RankReport) -> float | None:
    """Return the CPU time that the job took a step on this host, beside the training thread; in ms."""
    host, cpus = rank.system.host, len(rank.system.cpus_usable or ())
    if rank.system.cpu_pct_mean is None or rank.steps.thread_cpu_ms is None or rank.steps.mean_ms is None:
        return None
    busy_cpus = rank.system.cpu_pct_mean / 100
    if host is not None and host.cpu_busy_fraction is not None and host.others_cpu_fraction is not None:
        busy_cpus = max(busy_cpus, (host.cpu_busy_fraction - host.others_cpu_fraction) * cpus)
    return max(0.0, busy_cpus * rank.steps.mean_ms - rank.steps.thread_cpu_ms)


def _queued_ms(rank: RankReport) -> float | None:
    """Return how long the step beside its data wait queued for a CPU at most, in ms."""
    main = next((each for each in rank.system.processes if each.role == "main"), None)
    host, steps, step_ms = rank.system.host, rank.steps, rank.steps.mean_ms or 0.0
    was_free = host is not None and host.has_free_cpus
    cpu_ms = steps.thread_cpu_ms
    process_ms = 0.0 if main is None else (main.cpu_pct_mean or 0.0) / 100 * step_ms
    if cpu_ms and not was_free and process_ms >= _SEVERAL_THREADS * cpu_ms:
        return None
    delay_ms = steps.thread_run_delay_ms
    if delay_ms is None and main is not None and main.run_delay_pct_mean is not None:
        delay_ms = main.run_delay_pct_mean / 100 * step_ms
    if delay_ms is None:
        return 0.0 if was_free else None
    if _makes_batches(rank):  # it queued while it made them, too
        delay_ms -= sum((rank.data_wait.without_cpu_ms or {}).values())
    return max(0.0, delay_ms)


def _in_longer_waits(rank: RankReport, most_ms: float, share: float) -> float:
    """Return a bound that holds, too, where the mean wait is as long as the few measured steps let it be.

    What a step takes longer is then a wait, of which the `share` of the making goes that is spared. What else
    in it varies does not go.
    """
    step_ms, between, wait = rank.steps.mean_ms, rank.steps.mean_ci95_ms, rank.data_wait
    if not step_ms or between is None or most_ms >= step_ms:
        return most_ms
    longest_ms, shares = max(step_ms, between[1]), wait.raw_wait_fraction_ci95
    if shares is not None and wait.raw_ms is not None:
        longest_ms = min(longest_ms, step_ms + max(0.0, shares[1] * longest_ms - wait.raw_ms))
    longest_ms = step_ms + share * (longest_ms - step_ms)
    return step_ms - step_ms * (step_ms - most_ms) / longest_ms


def _makes_batches(rank: RankReport) -> bool:
    """Whether the training thread itself makes batches that it waits for."""
    inline = {loader.id for loader in rank.loaders if not loader.workers}
    return any(each.raw_ms > 0 and each.loader in inline for each in rank.data_wait.by_loader)


def _makes_all_batches(rank: RankReport) -> bool:
    """Whether no worker makes any of them."""
    return _makes_batches(rank) and not any(loader.workers for loader in rank.loaders)


def _most_of_wait_ms(gain_ms: float, item: Recommendation, rank: RankReport) -> float:
    """Return what of the data wait goes with it at most; all that it gains, where more than that goes."""
    wait = rank.data_wait
    whole_ms = wait.raw_ms if wait.exposed_ms is None else wait.exposed_ms
    if whole_ms is None:
        return max(gain_ms, item.most_ms_per_step or 0.0)
    return max(gain_ms, whole_ms if item.most_ms_per_step is None else min(whole_ms, item.most_ms_per_step))


def _no_more_than_waits(item: Recommendation, rank: RankReport, most_ms: float) -> float:
    """Of the data wait no more than all of it goes."""
    wait_ms = rank.data_wait.raw_ms
    return min(most_ms, wait_ms) if wait_ms is not None and saves_wait(item) else most_ms


# The causes that a piece of advice may be named after; others end what any of them makes.
CAUSES = ("read", "decode", "transform", "collate", "sampling", "transport", "queued", "startup")
_NOTABLE, _OF_STEP = 1 / 3, 0.05  # of what the first fix saves, and of a step
_FILES = ("read", "decode")


def fixes_of(
    recommendations: Sequence[Recommendation],
    ranks: Sequence[RankReport],
    trust: Trust,
    cause: str | None = None,
) -> list[Fix]:
    """Make one fix of each recommendation, in their order; no gain is told where the figures are not good.

    `cause` is the one that the verdict names: a fix of another says of which. What is won once, at the first
    start of workers, comes last where that is about steps, and is no fix by itself.
    """
    if cause != "startup":
        recommendations = sorted(recommendations, key=_is_once)
        recommendations = [] if all(map(_is_once, recommendations)) else recommendations
    by_number: dict[int | None, RankReport] = {rank.rank: rank for rank in ranks}
    remedies = [(item.rank, item.remedy) for item in recommendations]
    fixes: list[Fix] = []  # two causes may have one remedy
    for item, remedy in zip(recommendations, remedies, strict=True):
        again = remedies.count(remedy) > 1 and "loader" in item.evidence
        of_loader = f"loader {item.evidence['loader']:.0f}: " if again else ""
        fix = _fix(item, by_number[item.rank], cause, of_loader)
        if not any(each.text == fix.text and each.code != fix.code for each in fixes):
            first = (recommendations[0], fixes[0]) if fixes else None
            fixes.append(fix if first is None else _beside_first(fix, item, *first, by_number[item.rank]))
    return [without_gain(fix) for fix in fixes] if trust.level == BAD else fixes


def without_gain(fix: Fix) -> Fix:
    """A fix of which nobody knows what it gains."""
    unknown = dict.fromkeys(("gain_ms_per_step", "speedup", "gain_interval_ms", "most_ms_per_step"))
    return replace(fix, **unknown)


def with_other_ranks(
    fix: Fix, behind_ms: float | None, step_ms: float, slower_ms: float | None = None
) -> Fix:
    """Bound what a fix of the wait gains where the other ranks have it, too: none waits for a late one then.

    `behind_ms` is what the rank waits for others, ms a step; None: not known, and nothing bounds the gain.
    In `slower_ms` of a step of `step_ms` another rank makes its batches: no step is shorter for this fix.
    """
    if fix.gain_ms_per_step is None or (fix.code is not None and not rule_of(fix.code).saves_wait):
        return fix
    left_ms = None if slower_ms is None else max(0.0, step_ms - slower_ms)
    if left_ms is not None and left_ms < fix.gain_ms_per_step:
        fix = replace(
            fix, gain_ms_per_step=left_ms, speedup=step_ms / (step_ms - left_ms), gain_interval_ms=None
        )
    if behind_ms is None or fix.bound_ms is None:
        return replace(fix, most_ms_per_step=None, at_most=False)
    interval_ms = fix.gain_interval_ms
    return replace(
        fix,
        most_ms_per_step=fix.bound_ms + behind_ms,
        gain_interval_ms=interval_ms and [interval_ms[0], interval_ms[1] + behind_ms],
    )


def _is_once(item: Recommendation) -> bool:
    return item.code is not None and rule_of(item.code).of_run and item.evidence.get("starts") == 1


def _fix(item: Recommendation, rank: RankReport, cause: str | None, of_loader: str) -> Fix:
    gain = gain_of(item, rank)
    return Fix(
        id=item.fix or item.id,
        text=of_loader + item.remedy + of_another(item, rank, cause),
        gain_ms_per_step=gain.gain_ms,
        speedup=gain.speedup,
        at_most=gain.at_most,
        gain_interval_ms=gain.interval_ms,
        most_ms_per_step=gain.most_ms,
        cost_ms_per_step=item.cost_ms_per_step,
        code=item.code,
        command=item.command,
        change=item.change,
    )


def _beside_first(
    fix: Fix, item: Recommendation, first: Recommendation, its_fix: Fix, rank: RankReport
) -> Fix:
    """Say whether a fix is another way to end what the first one ends, and whether it gains little."""
    own, its = _ends(item), _ends(first)
    is_same = own == its or ("" in (own, its) and saves_wait(item) and saves_wait(first))
    gain_ms, step_ms = fix.gain_ms_per_step, rank.steps.mean_ms or 0.0
    if gain_ms is None:  # nobody knows: what costs much is told
        return replace(
            fix, joins="or" if is_same else "and", is_minor=not is_same and item.severity != "high"
        )
    least_ms = gain_ms if is_same or fix.gain_interval_ms is None else fix.gain_interval_ms[0]
    is_minor = least_ms < max(_OF_STEP * step_ms, _NOTABLE * (its_fix.gain_ms_per_step or 0.0))
    return replace(fix, joins="or" if is_same else "and", is_minor=is_minor)


def second_cause(own: Sequence[Recommendation], fixes: Sequence[Fix]) -> str | None:
    """Say what of the loop itself a fix ends that is told beside the first one; None where none is."""
    for fix in fixes[1:]:
        item = next((each for each in own if each.code == fix.code), None)
        if fix.joins == "or" or fix.is_minor or item is None or item.code is None or saves_wait(item):
            continue
        if rule_of(item.code).turn == THE_LOOP:
            return item.seen or None
    return None


def _ends(item: Recommendation) -> str:
    """Name the cause that a piece of advice ends; empty of one that may end any, as more workers do."""
    if item.code is not None and rule_of(item.code).turn in (THE_LOOP, THE_DEVICE):
        return item.id
    if is_of_lists(item):
        return ""
    own = item.id.removesuffix("-bound")
    return "files" if own in _FILES else own if own in CAUSES else ""
