"""What bare traces say beside the data wait: what cost the device most, its idle time by cause first."""

from __future__ import annotations

from collections.abc import Sequence

from iotrace.analysis.device.modules import short_frame
from iotrace.analysis.results import Accelerator, IdlePart, Imbalance, RankReport
from iotrace.units import counted, duration, milliseconds, percent

IDLE_PERCENT = 10.0  # of the account's span, from which idle time or communication is the verdict
_MOSTLY = 0.5  # of the idle time: what the first steps have to take to be named as its reason
_WORTH_NAMING = 0.15  # of the idle time
_MOST_NAMED = 2
ALONE = "communication_alone"
_CATEGORIES = {"gemm": "GEMM", "index": "indexing"}
_MOST_CATEGORIES = 3


def each_step(rank: RankReport) -> str:
    """What a share of the steps is a share of: a trace without steps is taken for one."""
    return "the trace" if rank.steps.count == 1 and rank.steps.per_second is None else "each step"


def costs_of(rank: RankReport) -> dict[str, float]:
    """What cost the device time, as shares of the account's span: idle time by cause, communication alone."""
    found = rank.accelerator
    if found is None or found.idle_time is None:
        return {}
    costs = {part.cause: part.us for part in found.idle_time.parts}
    costs[ALONE] = found.comm_us - found.comm_comp_overlap_us
    return {cause: us / found.idle_time.span_us for cause, us in costs.items()}


def costliest(ranks: Sequence[RankReport]) -> tuple[str, RankReport] | None:
    """Find the cause that costs the ranks most, and the rank that it costs most; None without a device."""
    known = [(rank, costs) for rank in ranks if (costs := costs_of(rank))]
    sums: dict[str, float] = {}
    for _, costs in known:
        for cause, share in costs.items():
            sums[cause] = sums.get(cause, 0.0) + share
    if not sums:
        return None
    cause = max(sums, key=lambda each: sums[each])
    return cause, max(known, key=lambda pair: pair[1].get(cause, 0.0))[0]


def idle_fraction(rank: RankReport) -> float:
    """The share of the account's span in which the device did nothing; 0 where no device is known."""
    found = rank.accelerator
    return (
        0.0 if found is None or found.idle_time is None else found.idle_time.idle_us / found.idle_time.span_us
    )


def verdict_of_device(
    cause: str, rank: RankReport, imbalance: Imbalance | None
) -> tuple[str, str, str] | None:
    """Return the kind of verdict, what it says and why; None where no device is known."""
    found = rank.accelerator
    if found is None or found.idle_time is None:
        return None
    idle, alone = idle_fraction(rank), costs_of(rank)[ALONE]
    span_us = found.idle_time.span_us
    device = _device(rank)
    if 100 * max(idle, alone) < IDLE_PERCENT:
        works = _share(1 - idle, span_us)
        return "device-busy", _busy(found, device), f"the device is hardly idle: it works {works}"
    if 100 * idle < IDLE_PERCENT or (cause == ALONE and 100 * alone >= IDLE_PERCENT):
        return "communication-bound", f"{_share(alone, span_us)}{device}", _why_alone(rank, imbalance)
    return "device-idle", f"{_share(idle, span_us)}{device}", why_first(rank) or why_idle(found)


def _share(fraction: float, span_us: float) -> str:
    spent, whole = duration(1e3 * fraction * span_us), duration(1e3 * span_us)
    if 1e4 <= span_us < 1e7:
        spent, whole = f"{fraction * span_us / 1e3:.1f}", f"{span_us / 1e3:.1f} ms"
    return f"{percent(fraction)} of the traced time ({spent} of {whole})"


def _device(rank: RankReport) -> str:
    named = {gpu.name for gpu in rank.system.gpus if gpu.name}
    return f", {named.pop()}" if len(named) == 1 else ""


def _busy(found: Accelerator, device: str) -> str:
    """Name the kinds of operators that have most of the device's time."""
    told = [
        f"{one.pct:.0f} % {_CATEGORIES.get(one.category, one.category)}"
        for one in found.categories[:_MOST_CATEGORIES]
        if one.pct >= 1
    ]
    return f"{', '.join(told)}{device}"


def _why_alone(rank: RankReport, imbalance: Imbalance | None) -> str:
    """Name the collectives, and how much of their time is the wait for ranks that came later."""
    found = rank.accelerator
    kinds = [] if found is None else sorted(found.collectives, key=lambda one: -one.exposed_us)
    named = ", ".join(f"{one.kind} {milliseconds(one.exposed_us / 1e3)}" for one in kinds[:_MOST_NAMED])
    text = f"no compute hides its communication: {named}"
    own = None if imbalance is None else next((one for one in imbalance.ranks if one.rank == rank.rank), None)
    if found is not None and found.idle_time is not None and found.idle_time.parts:
        part = found.idle_time.parts[0]
        if 100 * part.us >= IDLE_PERCENT * found.idle_time.span_us:
            text += f"; it idles {phrase(part)}"
    if own is not None and own.communication_wait_ms and own.step_ms:
        text += f"; waits for other ranks are {percent(own.communication_wait_ms / own.step_ms)} of each step"
    return text


def why_idle(found: Accelerator) -> str:
    """Name the causes of most of the idle time, with what each costs."""
    account = found.idle_time
    if account is None or not account.idle_us:
        return ""
    told = [part for part in account.parts if part.us >= _WORTH_NAMING * account.idle_us]
    said = [phrase(part) for part in (told or account.parts[:1])[:_MOST_NAMED]]
    exposed_us = found.comm_us - found.comm_comp_overlap_us
    if 100 * exposed_us >= IDLE_PERCENT * account.span_us:
        share = percent(exposed_us / account.span_us)
        said.append(f"communication that no compute hides takes {share} of the traced time")
    return "; ".join(said)


def phrase(part: IdlePart) -> str:
    """Say what a part of the idle time was spent on: its ms first."""
    where = f", most in {short_frame(part.where)}" if part.where else ""
    call = part.call or ("calls that wait for the device" if part.cause == "synchronisation" else "copies")
    gaps = counted(part.gaps, "gap")
    first = " before the first use of a kernel" if part.is_first_use else ""
    said = {
        "before_first_kernel": f"before the first kernel{where}{f', in {part.call}' if part.call else ''}",
        "launch_delay": "from the first launch to its start, for which the trace has no reason",
        "data_wait": "while the loop waits for data",
        "blocking_copy": f"in or after {call}, which blocks the host{where}",
        "synchronisation": f"after {call}, for which the host waits{where}",
        "allocation": f"while memory is allocated and freed{where}",
        "communication": "while the host communicates",
        "launch_gap": f"in {gaps} of at most 0.2 ms: the host launches kernels too late",
        "launch_call": f"inside slow calls of {part.call or 'the runtime'}{where}",
        "host": f"in {gaps} of more than 0.2 ms{first}, in which the host does other work{where}",
        "graph_replay": f"in {gaps} within CUDA graphs that were launched in time",
        "stream_wait": f"in {gaps} while streams wait for each other",
        "kernel_gap": f"in {gaps} between kernels that were launched in time",
        "after_last_kernel": f"after the last kernel{where}",
        "unknown": f"in {gaps} of unknown cause: the kernels were launched in time",
    }
    return f"{milliseconds(part.us / 1e3)} {said[part.cause]}"


def why_first(rank: RankReport) -> str | None:
    """Say what the first steps paid, where that is most of the device's idle time; else None."""
    first = [step for step in rank.slow_steps or [] if step.is_first and step.over_ms]
    over_ms = sum(step.over_ms or 0.0 for step in first)
    account = None if rank.accelerator is None else rank.accelerator.idle_time
    if account is None or not first or over_ms * 1e3 < _MOSTLY * account.idle_us:
        return None
    names = {name for step in first for name in step.parts_ms}
    parts = {name: sum(step.parts_ms.get(name, 0.0) for step in first) for name in names}
    told = [
        (name, ms) for name, ms in sorted(parts.items(), key=lambda pair: -pair[1]) if ms >= 0.1 * over_ms
    ]
    which = "the first step takes" if len(first) == 1 else f"the first {len(first)} steps take"
    named = ", ".join(f"{name.replace('_', ' ')} {milliseconds(ms)}" for name, ms in told)
    return f"{which} {milliseconds(over_ms)} longer than the later ones{named and f': {named}'}"
