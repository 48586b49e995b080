"""What bare traces say beside the data wait: how long the device idled, and what ended that."""

from __future__ import annotations

from iotrace.analysis.results import Accelerator, RankReport
from iotrace.units import duration, milliseconds, percent

IDLE_PERCENT = 10.0  # of the traced window, from which the device's idle time is the verdict
_MOSTLY = 0.5  # of the idle time: what one class has to take to be named as its reason
_REASONS = {
    "data_wait": "it waits for data",
    "host_wait": "the host launches its kernels too late",
    "kernel_wait": "its kernels are short, with gaps between them",
}
_ON_DEVICE = ("kernel", "memcpy", "memset", "communication")


def each_step(rank: RankReport) -> str:
    """What a share of the steps is a share of: a trace without steps is taken for one."""
    return "the trace" if rank.steps.count == 1 and rank.steps.per_second is None else "each step"


def idle_fraction(rank: RankReport) -> float | None:
    """The share of the steps, without steps of the traced window, in which the device did nothing."""
    found, parts = rank.accelerator, rank.breakdown_ms
    if found is None or not found.span_us:
        return None
    if not parts or not sum(parts.values()):
        return found.idle_us / found.span_us
    return 1 - sum(parts.get(name, 0.0) for name in _ON_DEVICE) / sum(parts.values())


def idle_text(rank: RankReport) -> str | None:
    """Say how long the device idled; None where that is little, or was not recorded."""
    fraction, found, parts = idle_fraction(rank), rank.accelerator, rank.breakdown_ms
    if fraction is None or found is None or 100 * fraction < IDLE_PERCENT:
        return None
    named = {gpu.name for gpu in rank.system.gpus}
    device = f", {named.pop()}" if len(named) == 1 else ""
    step_ms = sum((parts or {}).values())
    if not step_ms:
        of = f"{duration(1e3 * found.idle_us)} of {duration(1e3 * found.span_us)}"
        return f"{percent(fraction)} of the traced time ({of}){device}"
    return f"{percent(fraction)} of {each_step(rank)} ({fraction * step_ms:.1f} of {step_ms:.1f} ms){device}"


def exposed_communication(found: Accelerator) -> str:
    """Say how much communication no computation hides; empty where that is little."""
    exposed_us = found.comm_us - found.comm_comp_overlap_us
    if not found.span_us or 100 * exposed_us / found.span_us < IDLE_PERCENT:
        return ""
    return (
        f"communication that no compute hides takes {percent(exposed_us / found.span_us)} of the traced time"
    )


def why_idle(found: Accelerator) -> str | None:
    """Name the class of most gaps between kernels, and the module whose kernel ended most of them."""
    name = max(found.idle_by_class_us, key=lambda each: found.idle_by_class_us[each], default="")
    idle_us, exposed = found.idle_by_class_us.get(name, 0.0), exposed_communication(found)
    if name not in _REASONS or not idle_us or idle_us < _MOSTLY * found.idle_us:
        return exposed or None
    share = percent(idle_us / found.idle_us)
    ended = max(found.idle_by_module, key=lambda one: one.idle_us, default=None)
    where = ""
    if ended is not None and (ended.module or ended.phase != "other"):
        module = f"{ended.module}, " if ended.module else ""
        where = f", {percent(ended.idle_us / found.idle_us)} before kernels of {module}{ended.phase}"
    elif (origin := next((one for one in found.idle_by_origin if one.kind == "operator"), None)) is not None:
        where = f", {percent(origin.idle_us / found.idle_us)} before kernels of {origin.name}"
    return f"{_REASONS[name]}: {share} of its gaps{where}{exposed and f'; {exposed}'}"


def why_first(rank: RankReport) -> str | None:
    """Say what the first steps paid, where that is most of the device's idle time; else None."""
    first = [step for step in rank.slow_steps or [] if step.is_first and step.over_ms is not None]
    over_ms = sum(step.over_ms or 0.0 for step in first)
    if rank.accelerator is None or over_ms * 1e3 < _MOSTLY * rank.accelerator.idle_us:
        return None
    names = {name for step in first for name in step.parts_ms}
    parts = {name: sum(step.parts_ms.get(name, 0.0) for step in first) for name in names}
    told = [
        (name, ms) for name, ms in sorted(parts.items(), key=lambda pair: -pair[1]) if ms >= 0.1 * over_ms
    ]
    which = "the first step takes" if len(first) == 1 else f"the first {len(first)} steps take"
    named = ", ".join(f"{name.replace('_', ' ')} {milliseconds(ms)}" for name, ms in told)
    return f"{which} {milliseconds(over_ms)} longer than the later ones{named and f': {named}'}"
