"""What a step and the device are made of, as tables of bars."""

from __future__ import annotations

from typing import Any

from iotrace.analysis.results import IdleByModule, RankReport
from iotrace.report.views.device import CLASSES
from iotrace.report.words import step_parts_ms
from iotrace.units import fixed, milliseconds, percent

_ROLE_NAMES = {"cpu_op": "CPU operators", "dataloader": "data loader"}


def step_parts(rank: RankReport) -> list[dict[str, Any]]:
    """What a step is made of, in tables of bars: by phase, as profiled, what idled the device and where."""
    tables = []
    known = step_parts_ms(rank)
    if len(known) > 1:
        source = "by events of the device" if rank.phases_source == "device_events" else "by the host's clock"
        tables.append(
            _bar_table("A step, in ms", known, f"Mean of {rank.steps.count} measured steps, {source}.")
        )
    if rank.breakdown_ms is not None and sum(rank.breakdown_ms.values()) > 0:
        note = f"Mean of {rank.breakdown_steps} profiled steps: profiling slows a step, look at the shares."
        named = {_ROLE_NAMES.get(role, role): ms for role, ms in rank.breakdown_ms.items() if ms > 0}
        tables.append(_bar_table("As torch.profiler saw it, in ms", named, note))
    return tables + _device_tables(rank)


def _device_tables(rank: RankReport) -> list[dict[str, Any]]:
    found = rank.accelerator
    if found is None or not found.span_us:
        return []
    device = {
        "compute": found.compute_us,
        "communication": found.comm_us,
        "memory": found.memory_us,
        "idle": found.idle_us,
    }
    whole_us = found.span_us
    note = f"Busy {percent(found.busy_us / whole_us)} of the {milliseconds(whole_us / 1e3)} traced."
    if found.comm_us and found.comm_comp_overlap_pct is not None:
        note += f" {found.comm_comp_overlap_pct:.0f} % of the communication ran during compute."
    seen = {name: us for name, us in device.items() if us > 0}
    tables = [_share_table("The device, % of the traced time", seen, whole_us, note)]
    if found.idle_us:
        idle = {CLASSES.get(name, name): us for name, us in found.idle_by_class_us.items() if us > 0}
        tables.append(_share_table("The device idled for, %", idle, whole_us, ""))
        modules = {_kernels(one): one.idle_us for one in found.idle_by_module[:12] if one.idle_us > 0}
        if modules:
            tables.append(_share_table("The device idled before kernels of, %", modules, whole_us, ""))
        comm = {
            _kernels(one): one.comm_us
            for one in sorted(found.idle_by_module, key=lambda one: -one.comm_us)[:8]
            if one.comm_us > 0
        }
        if comm:
            tables.append(_share_table("Communication launched by, %", comm, whole_us, ""))
    return tables


def _kernels(found: IdleByModule) -> str:
    return f"{found.module}, {found.phase}" if found.module else found.phase


def _share_table(title: str, values_us: dict[str, float], whole_us: float, note: str) -> dict[str, Any]:
    """Shares of the traced time: totals would stand beside figures of one step."""
    return _bar_table(title, {name: 100 * us / whole_us for name, us in values_us.items()}, note)


def _bar_table(title: str, values: dict[str, float], note: str) -> dict[str, Any]:
    most = max(values.values(), default=0.0) or 1.0
    least = 0.002 * most  # what would be no bar
    rows = [
        {"name": name, "value": value, "text": fixed(value, most), "width": f"{100 * value / most:.2f}"}
        for name, value in values.items()
        if value >= least
    ]
    return {"title": title, "rows": rows, "note": note}
