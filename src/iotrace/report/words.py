"""In words: what a fix gains, what a step is besides an update, what a device was busy for, who failed."""

from __future__ import annotations

from collections.abc import Sequence

from iotrace.analysis.results import Failure, Fix, RankReport, Steps
from iotrace.units import milliseconds

_WORTH_A_FACTOR = 1.05  # a speedup below is told in ms
_ACCUMULATED = 1.5  # micro-batches: less is an update that is left out now and then
_LEAST_MS = 0.05  # what is shown as 0.0
_WORTH_TELLING = 0.1  # of a gain: what is beyond the cost of the fix's own cause


def gain_text(fix: Fix) -> str:
    """What a fix gains: as predicted, with its interval; else the whole wait that it is about, a bound.

    A prediction is a bound, too, where it is of a cause that is gone: nobody knows what a fix leaves of it.
    Where the compute gets shorter with the wait, the wait bounds nothing: then it is told as a condition.
    """
    if fix.gain_ms_per_step is None:
        return ""
    if fix.gain_interval_ms is not None and not fix.at_most:
        return _predicted_text(fix, fix.gain_ms_per_step, fix.gain_interval_ms)
    is_factor = fix.speedup is not None and fix.speedup >= _WORTH_A_FACTOR
    told = f"{fix.speedup:.1f}x faster" if is_factor else f"{milliseconds(fix.gain_ms_per_step)} a step"
    if not fix.at_most:
        return f"{told} if its wait ends"
    return f"at most about {told}" if fix.gain_interval_ms is not None else f"at most {told}"


def _predicted_text(fix: Fix, gain_ms: float, interval_ms: Sequence[float]) -> str:
    low_ms, high_ms = interval_ms
    if fix.speedup is None or fix.speedup < _WORTH_A_FACTOR:
        return f"saves {milliseconds(gain_ms)} a step ({low_ms:.1f} to {high_ms:.1f})"
    step_ms = gain_ms / (1 - 1 / fix.speedup)
    low, high = (f"{step_ms / max(step_ms - each, 0.01 * step_ms):.1f}" for each in (low_ms, high_ms))
    return f"{fix.speedup:.1f}x faster ({low} to {high})"


def other_wait_text(fix: Fix) -> str:
    """Say why a fix gains more than its own cause or file costs; empty where it does not."""
    gain_ms, cost_ms = fix.gain_ms_per_step, fix.cost_ms_per_step
    if gain_ms is None or cost_ms is None or gain_ms - cost_ms < _WORTH_TELLING * gain_ms:
        return ""
    more = milliseconds(gain_ms - cost_ms)
    return f"it costs {milliseconds(cost_ms)}; {more} of other wait end, too, as workers get ahead"


def gain_words(fix: Fix) -> str:
    """What a fix gains and, where that is more than its cause costs, why: in one line."""
    return ": ".join(each for each in (gain_text(fix), other_wait_text(fix)) if each)


def who_failed(failure: Failure, several: bool) -> str:
    """Name the worker, thread or process that an exception ended; of `several` ranks with the rank."""
    training = failure.role == "rank"
    who = "the training process" if training else failure.role or "a process"
    if failure.worker is not None:
        who = f"worker {failure.worker}"
    if several and failure.rank is not None:
        who = (
            f"rank {failure.rank}" if training and failure.worker is None else f"{who} of rank {failure.rank}"
        )
    return f"thread {failure.thread} of {who}" if failure.thread is not None else who


def device_facts(rank: RankReport) -> list[str]:
    """Say how long the device was busy, and for which phases, where launches tell; they sum to that."""
    found = rank.accelerator
    if found is None or found.by_phase is None:
        return []
    parts = []
    for one in found.by_phase:
        if one.busy_us is None:
            continue
        alone_ms = (one.comm_alone_us or 0.0) / 1e3
        alone = f" ({alone_ms:.1f} communication alone)" if alone_ms >= _LEAST_MS else ""
        parts.append(f"{one.phase} {one.busy_us / 1e3:.1f}{alone}")
    busy = f"busy {found.busy_us / 1e3:.1f} of {milliseconds(found.span_us / 1e3)} traced"
    return [busy, " · ".join(parts)]


def accumulated(steps: Steps) -> list[str]:
    """Say that a step is less than an update of the weights, or takes several batches; else nothing."""
    found = []
    if (steps.per_update or 0.0) >= _ACCUMULATED:
        found.append(f"{steps.per_update:.3g} steps an update")
    if (steps.batches or 0.0) >= _ACCUMULATED:
        found.append(f"{steps.batches:.3g} batches a step")
    return found
