"""The accelerator's part of the terminal report: breakdown, idle time, and the ranks compared."""

from __future__ import annotations

from rich.console import Console
from rich.text import Text

from iotrace.analysis.results import Accelerator, Imbalance, RankReport, Straggler
from iotrace.report.layout import line
from iotrace.report.views.device import CLASSES
from iotrace.units import counted, milliseconds, percent

_WORTH_SHOWING = 0.005  # of the step
_MOST_MODULES = 3
_ROLE_NAMES = {"cpu_op": "CPU ops", "dataloader": "data loader"}


def print_compute(rank: RankReport, console: Console) -> None:
    """What the rank's torch.profiler traces say; nothing where it left none."""
    if rank.breakdown_ms is not None:
        step_ms = sum(rank.breakdown_ms.values())
        parts = [
            f"{_ROLE_NAMES.get(role, role)} {percent(ms / step_ms)}"
            for role, ms in rank.breakdown_ms.items()
            if ms >= _WORTH_SHOWING * step_ms > 0
        ]
        # Profiling slows a step: its parts are shares, beside the ms of the measured steps.
        steps = counted(rank.breakdown_steps or 0, "profiled step")
        line(console, "breakdown", f"{' · '.join(parts)} (of {steps}, {milliseconds(step_ms)} each)")
    if rank.accelerator is not None:
        _print_accelerator(rank.accelerator, rank.breakdown_steps, console)


def _print_accelerator(found: Accelerator, steps: int | None, console: Console) -> None:
    """Print sums over the profiled steps: a mean stands in the line of the breakdown alone."""
    in_all = f" ({counted(steps, 'step')} in all)" if steps else ""
    span = f"{milliseconds(found.span_us / 1e3)}{in_all}"
    busy = percent(found.busy_us / found.span_us)
    text = f"busy {busy} of {span}: compute {found.compute_us / 1e3:.1f}"
    if found.comm_us:
        text += f", communication {found.comm_us / 1e3:.1f}"
        if found.comm_comp_overlap_pct is not None:
            text += f" ({found.comm_comp_overlap_pct:.0f} % of it during compute)"
    if found.memory_us:
        text += f", memory {found.memory_us / 1e3:.1f}"
    line(console, "accelerator", text)
    if not found.idle_us:
        return
    classes = [f"{CLASSES[name]} {us / 1e3:.1f}" for name, us in found.idle_by_class_us.items() if us > 0]
    line(console, "idle", f"{milliseconds(found.idle_us / 1e3)} of it: {' · '.join(classes)}")
    account = found.idle_time
    if account is not None:
        told = [one for one in account.parts if one.us >= _WORTH_SHOWING * account.span_us]
        causes = [f"{one.cause.replace('_', ' ')} {one.us / 1e3:.1f}" for one in told]
        span = milliseconds(account.span_us / 1e3)
        line(console, "idle due to", f"{milliseconds(account.idle_us / 1e3)} of {span}: {' · '.join(causes)}")
    ended = [
        f"{one.module or 'no module'}, {one.phase} {one.idle_us / 1e3:.1f}"
        for one in found.idle_by_module[:_MOST_MODULES]
        if one.idle_us > 0
    ]
    line(console, "idle before", " · ".join(ended))


def print_imbalance(found: Imbalance, console: Console) -> None:
    """The ranks compared, and which of them the others wait for."""
    console.print()
    console.rule("ranks compared", align="left")
    for one in found.ranks:
        parts = {
            "compute": one.compute_ms,
            "communication wait": one.communication_wait_ms,
            "data wait": one.data_wait_ms,
            "other": one.other_ms,
        }
        known = {name: ms for name, ms in parts.items() if one.step_ms and ms is not None}
        shares = [f"{name} {percent(ms / one.step_ms)}" for name, ms in known.items()]
        of = f"of {counted(one.steps, 'profiled step')}, {milliseconds(one.step_ms)} each"
        line(console, f"rank {one.rank}", f"{' · '.join(shares)} ({of})")
    collectives = found.collectives
    if collectives.skew_ms_mean is not None and collectives.skew_ms_max is not None:
        unmatched = f", {collectives.unmatched} not matched" if collectives.unmatched else ""
        line(
            console,
            "skew",
            f"{milliseconds(collectives.skew_ms_mean)} mean, {milliseconds(collectives.skew_ms_max)} worst, "
            f"over {collectives.matched} collectives{unmatched}",
        )
    if found.world_size is not None and found.ranks_seen < found.world_size:
        line(console, "", f"{found.ranks_seen} of {found.world_size} ranks left a trace")
    if found.withheld is not None:
        line(console, "late", found.withheld)
    for straggler in found.stragglers:
        if straggler.severity is not None:
            line(console, straggler.severity, _straggler(straggler))


def _straggler(found: Straggler) -> Text:
    cause = "" if found.by_data_pct is None else f"; {found.by_data_pct:.0f} % of its lateness is data wait"
    return Text.assemble(
        (f"rank {found.rank} is waited for", "bold red" if found.severity == "critical" else "bold"),
        f": {found.impact_pct:.0f} % of the others' time, last in {found.last_to_arrive} collectives{cause}"
        + ("" if found.evidence is None else f"; {found.evidence}"),
    )
