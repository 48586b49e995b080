"""How far the figures of a report can be relied on, and what that rests on (docs/definitions.md, trust)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from iotrace.analysis.resampling import FEWEST
from iotrace.analysis.results import ClockInfo, HostUse, Overhead, RankReport, SessionInfo, Trust
from iotrace.analysis.wait.data_wait import bound_fraction
from iotrace.session.manifest import NotCaptured
from iotrace.units import bounds, counted, milliseconds, percent, size

OK, CAUTION, BAD = "ok", "caution", "bad"
LEVELS = (OK, CAUTION, BAD)

# Each bound is (caution, bad); definitions.md has the reason for each.
_FEW_STEPS = 20
_OTHERS = (0.05, 0.20)  # of the CPUs, where none is free
_OTHERS_BESIDE = 0.25  # of the CPUs, where some are free
_BUSY, _SATURATED = 0.9, 0.2  # no CPU is free
_STOLEN = (0.05, 0.20)
_SWAPPED_BYTES = 16 << 20
_HELD_BACK = 0.1  # of a quota's periods, and of a device's polls
_UNEXPLAINED = (0.2, 0.5)  # of the wait
TRACING_PERCENT = (2.0, 10.0)
LESS_TRACING = "repeat with --io off"
_SPREAD = (0.1, 0.5)  # half of the interval, of the mean
_LONG_STEPS = 2.0  # p95 over median, from which it is told
_DRIFT_PERCENT = 10.0
_VERDICT_BOUNDS = (0.05, 0.20)
_COVERAGE = 0.9
_CODE_AND_PIPES_BYTES = 10 << 20
_CLOCK_BOUND = 0.05  # of a step
_USUAL_THROTTLE = "power cap"  # how a device works under full load


class _Doubt(NamedTuple):
    level: str
    text: str


def trust_of(
    session: SessionInfo,
    ranks: Sequence[RankReport],
    clocks: Sequence[ClockInfo] = (),
    losses: Sequence[NotCaptured] = (),
    withheld: str | None = None,
) -> Trust:
    """Judge the figures of `ranks`, the worst of them for each kind of doubt.

    `withheld`: why no rank is named as late.
    """
    if not ranks:
        return Trust(level=BAD, reasons=["no process was traced"])
    # A rank that trained nothing has no figures.
    trained = [rank for rank in ranks if rank.steps.count]
    without = [rank for rank in ranks if not rank.steps.count] if trained else []
    ranks = trained or ranks
    doubts = [doubt for check in _CHECKS if (doubt := _worst(check, ranks)) is not None]
    if without:
        doubts.append(_Doubt(CAUTION, f"{without[0].called}: no step was measured"))
    # The rank that waits longest decides the verdict's class.
    longest = max(ranks, key=lambda rank: bound_fraction(rank.data_wait) or 0.0, default=None)
    doubts += [] if longest is None else _of_class(longest)
    doubts += [*_of_run(session, losses), *_of_clocks(clocks, ranks)]
    doubts += [] if withheld is None else [_Doubt(CAUTION, withheld)]
    return _judged(doubts, _facts(ranks))


def trust_of_traces(
    ranks: Sequence[RankReport],
    recorded: Sequence[str],
    complete: bool,
    stepped: bool = True,
    apart: str | None = None,
) -> Trust:
    """Judge figures of bare traces of torch.profiler; `recorded`: what else than times each has.

    `stepped`: they have steps, or else are taken for one each; `apart`: why they are not compared as ranks of
    one job.
    """
    count = min((rank.steps.count for rank in ranks), default=0)
    missing = [what for what in ("shapes", "stacks") if what not in recorded]
    reasons = [] if apart is None else [f"the ranks are not compared: {apart}"]
    reasons.append(counted(count, "step") if count and stepped else "no steps: the whole trace is one")
    reasons += [f"no {' or '.join(missing)} recorded"] if missing else []
    reasons += [] if complete else ["part of a trace was lost"]
    # A profiled step is slower than others, and nothing says by how much.
    level = BAD if stepped and 0 < count < FEWEST else CAUTION
    return Trust(level=level, reasons=[*reasons, "no file is known"])


def _judged(doubts: Sequence[_Doubt], facts: list[str]) -> Trust:
    if not doubts:
        return Trust(level=OK, reasons=facts)
    doubts = sorted(doubts, key=lambda doubt: -LEVELS.index(doubt.level))
    return Trust(level=doubts[0].level, reasons=[doubt.text for doubt in doubts])


def _worst(check: Callable[[RankReport], Iterator[_Doubt]], ranks: Sequence[RankReport]) -> _Doubt | None:
    """Find the worst doubt of one kind; of several ranks its rank is named where not all have the same."""
    found = [(doubt, rank.called) for rank in ranks for doubt in check(rank)]
    if not found:
        return None
    doubt, rank = max(found, key=lambda pair: LEVELS.index(pair[0].level))
    alike = sum(other.text == doubt.text for other, _ in found) == len(ranks)
    return doubt if alike else doubt._replace(text=f"{rank}: {doubt.text}")


def _doubt(value: float | None, bounds: tuple[float, float], text: str) -> Iterator[_Doubt]:
    if value is not None and value >= bounds[0]:
        yield _Doubt(BAD if value >= bounds[1] else CAUTION, text)


def _of_steps(rank: RankReport) -> Iterator[_Doubt]:
    count = rank.steps.count
    if count < _FEW_STEPS:
        text = f"{counted(count, 'step')} measured" if count else "no step was measured"
        yield _Doubt(BAD if count < FEWEST else CAUTION, text)


def _of_others(rank: RankReport) -> Iterator[_Doubt]:
    host = rank.system.host
    others = host.others_cpu_fraction if host is not None else None
    if host is None or others is None:
        if rank.steps.count:
            yield _Doubt(CAUTION, "not known: whether other programs were busy")
        return
    bounds = (_OTHERS_BESIDE, 2.0) if free_cpus(host) else _OTHERS
    yield from _doubt(others, bounds, f"other programs used {percent(others)} of the CPUs")


def free_cpus(host: HostUse) -> bool:
    """Whether there was a CPU that neither the job nor anything else kept busy."""
    busy, saturated = host.cpu_busy_fraction, host.cpu_saturated_fraction
    return busy is not None and busy < _BUSY and (saturated or 0.0) < _SATURATED


def disturbed(host: HostUse | None) -> bool:
    """Whether other programs or machines took so many of the CPUs that times are no longer the job's own."""
    if host is None:
        return False
    others = host.others_cpu_fraction or 0.0
    return (not free_cpus(host) and others >= _OTHERS[1]) or (host.cpu_stolen_fraction or 0.0) >= _STOLEN[1]


def _of_stolen(rank: RankReport) -> Iterator[_Doubt]:
    stolen = rank.system.host.cpu_stolen_fraction if rank.system.host is not None else None
    yield from _doubt(stolen, _STOLEN, f"the hypervisor took {percent(stolen or 0.0)} of the CPUs' time")


def _of_throttling(rank: RankReport) -> Iterator[_Doubt]:
    host = rank.system.host
    held = host.cpu_throttled_fraction if host is not None else None
    if held is not None and held >= _HELD_BACK:
        yield _Doubt(CAUTION, f"the CPU quota held the job back in {percent(held)} of its periods")
    for gpu in rank.system.gpus:
        reasons = {why: share for why, share in gpu.throttle_reasons.items() if why != _USUAL_THROTTLE}
        why = max(reasons, key=lambda name: reasons[name], default="")
        if why and reasons[why] >= _HELD_BACK:
            text = f"GPU {gpu.index} was slowed down {percent(reasons[why])} of the time ({why})"
            yield _Doubt(CAUTION, text)


def _of_wait(rank: RankReport) -> Iterator[_Doubt]:
    wait = rank.data_wait
    if wait.raw_wait_fraction is None or not wait.raw_ms:
        if rank.steps.count and wait.raw_wait_fraction is None:
            yield _Doubt(CAUTION, "the data wait was not seen")
        return
    if (bound_fraction(wait) or 0.0) >= _VERDICT_BOUNDS[0]:
        if wait.exposed_ms is None:
            yield _Doubt(CAUTION, "not known: whether the accelerator had work in the wait")
        elif wait.exposed_source == "kernels" and 2 * (wait.exposed_steps or 0) < rank.steps.count:
            alone = counted(wait.exposed_steps or 0, "profiled step")
            yield _Doubt(CAUTION, f"that the accelerator idles is known of {alone} alone")
        unknown = wait.causes_ms.get("unknown", 0.0) / wait.raw_ms
        yield from _doubt(unknown, _UNEXPLAINED, f"{percent(unknown)} of the wait is not explained")


def _of_class(rank: RankReport) -> Iterator[_Doubt]:
    wait = rank.data_wait
    interval = wait.raw_wait_fraction_ci95 if wait.stall_fraction is None else wait.stall_fraction_ci95
    if interval is not None and any(interval[0] < bound < interval[1] for bound in _VERDICT_BOUNDS):
        low, high = interval
        yield _Doubt(CAUTION, f"the wait is {100 * low:.0f} to {percent(high)} of a step (95 %)")


def _of_tracing(rank: RankReport) -> Iterator[_Doubt]:
    cost = rank.overhead.estimated_pct_of_step if rank.overhead is not None else None
    if rank.overhead is None or cost is None:
        if rank.steps.count:
            yield _Doubt(CAUTION, "tracing cost not measured")
        return
    caution, bad = TRACING_PERCENT
    if cost >= caution:
        # An upper bound raises a doubt; only what tracing took at least makes figures bad.
        level = BAD if (rank.overhead.least_pct_of_step or 0.0) >= bad else CAUTION
        text = f"tracing took {bounds(rank.overhead.least_pct_of_step, cost)} of a step"
        yield _Doubt(
            level, f"{text}: {LESS_TRACING}" if level == BAD and calls_cost_most(rank.overhead) else text
        )


def calls_cost_most(overhead: Overhead) -> bool:
    """Whether to trace POSIX calls cost more than spans did, at the least."""
    calls_us = (overhead.posix_calls or 0) * (overhead.next_posix_call_us or 0.0)
    return calls_us > overhead.spans * (overhead.span_us or 0.0)


def _of_coverage(rank: RankReport) -> Iterator[_Doubt]:
    io = rank.io
    if io is None or io.unseen_because is None:
        return
    # The training process reads code and its workers' queues, which are no data.
    makers = [process for process in io.processes if process.is_worker] or io.processes
    coverage = io.coverage if io.data_coverage is None else io.data_coverage
    if coverage is None or coverage >= _COVERAGE:
        return
    of_steps = io.data_coverage is not None and io.data_coverage_of_steps
    read = [process.steps_kernel_bytes if of_steps else process.kernel_bytes for process in makers]
    missed = (1 - coverage) * sum(filter(None, read))
    if missed >= _CODE_AND_PIPES_BYTES:
        what = f"{percent(1 - coverage)} of the bytes read were not traced: some of decode may be reading"
        yield _Doubt(CAUTION, what)


def _of_spread(rank: RankReport) -> Iterator[_Doubt]:
    steps = rank.steps
    if steps.mean_ms and steps.mean_ci95_ms is not None and steps.count >= FEWEST:
        low, high = steps.mean_ci95_ms
        half = (high - low) / 2 / steps.mean_ms
        text = f"steps vary: mean {steps.mean_ms:.1f} ± {(high - low) / 2:.1f} ms"
        if steps.p50_ms and steps.p95_ms and steps.p95_ms >= _LONG_STEPS * steps.p50_ms:
            text += f" (p95 is {steps.p95_ms / steps.p50_ms:.1f}x the median)"
        yield from _doubt(half, _SPREAD, text)


def _of_drift(rank: RankReport) -> Iterator[_Doubt]:
    drift, interval = rank.steps.drift_pct, rank.steps.drift_ci95_pct
    if drift is None or interval is None or abs(drift) < _DRIFT_PERCENT or interval[0] <= 0 <= interval[1]:
        return
    grew = "longer" if drift > 0 else "shorter"
    yield _Doubt(CAUTION, f"later steps are {abs(drift):.0f} % {grew} than earlier ones")


def _of_swap(rank: RankReport) -> Iterator[_Doubt]:
    host, own = rank.system.host, [each.swap_bytes_peak or 0 for each in rank.system.processes]
    back = host.swap_in_bytes if host is not None else None
    if back is not None and min(back, sum(own)) >= _SWAPPED_BYTES:
        yield _Doubt(CAUTION, f"memory in swap: {size(back)} of it came back in the steps")


# The order in which reasons of one level are told.
_CHECKS = (
    _of_steps,
    _of_others,
    _of_stolen,
    _of_throttling,
    _of_swap,
    _of_wait,
    _of_tracing,
    _of_spread,
    _of_drift,
    _of_coverage,
)


def _of_run(session: SessionInfo, losses: Sequence[NotCaptured]) -> Iterator[_Doubt]:
    if losses:
        what = list(dict.fromkeys(each.what for each in losses))
        more = f" and {what[1] if len(what) == 2 else f'{len(what) - 1} other parts'}" if what[1:] else ""
        yield _Doubt(CAUTION, f"lost: {what[0]}{more}")
    elif not session.ended:
        yield _Doubt(CAUTION, "the end of the run was not seen")
    elif not session.complete:
        yield _Doubt(CAUTION, "part of the data was lost")


def _of_clocks(clocks: Sequence[ClockInfo], ranks: Sequence[RankReport]) -> Iterator[_Doubt]:
    hosts = {clock.host for clock in clocks}
    if len(hosts) > 1 and any(clock.bound_ns is None for clock in clocks):
        yield _Doubt(CAUTION, f"the clocks of {len(hosts)} hosts were not compared")
    bound_ms = max((clock.bound_ns or 0 for clock in clocks), default=0) / 1e6
    step_ms = min((rank.steps.mean_ms for rank in ranks if rank.steps.mean_ms), default=None)
    if step_ms is not None and bound_ms >= _CLOCK_BOUND * step_ms:
        yield _Doubt(CAUTION, f"times of POSIX calls are known to ± {milliseconds(bound_ms)}")
    set_ns = max((abs(item.by_ns) for clock in clocks for item in clock.set), default=0)
    if set_ns:
        yield _Doubt(CAUTION, f"a clock was set by {milliseconds(set_ns / 1e6)} during the run (undone)")


def _facts(ranks: Sequence[RankReport]) -> list[str]:
    facts = [counted(min(rank.steps.count for rank in ranks), "step")]
    costs = [rank.overhead.estimated_pct_of_step for rank in ranks if rank.overhead is not None]
    if known := [cost for cost in costs if cost is not None]:
        facts.append(f"tracing <= {max(max(known), 0.1):.1f} %")
    hosts = [rank.system.host for rank in ranks if rank.system.host is not None]
    free = all(map(free_cpus, hosts))
    return [*facts, "the machine had free cores" if free else "no other program was busy"]
