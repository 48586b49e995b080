"""What each section of a report's page shows; a section is None where its data do not exist."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from iotrace.analysis.page.costs import io_tree
from iotrace.analysis.results import FileCost, FileIo, IdleByModule, RankReport, Report
from iotrace.analysis.results.top import RankColumns
from iotrace.analysis.verdict.reason import unit_of
from iotrace.report.blocks import Bar, Bars, Field, Table, cells_of
from iotrace.report.printing import middle_cut
from iotrace.report.screen_ranks import late_in, waits_for_late
from iotrace.report.terminal import loader_text
from iotrace.report.terminal_system import gpu_label, gpu_text
from iotrace.report.views.device import CLASSES
from iotrace.report.words import step_parts_ms
from iotrace.units import counted, fixed, milliseconds, percent

_MOST_FILES = 100
_MOST_RANKS = 64
_LONGEST_NAME = 120  # characters: a kernel's mangled name has a thousand
_SHADES = 5
_NUMBER = re.compile(r"[-+]?[\d,.]+")
_SAMPLED = ("util_pct_mean", "power_w_mean", "memory_bytes_peak")


def files_table(rank: RankReport) -> dict[str, Any] | None:
    """Files by what they cost the wait, with their I/O over the run."""
    costs = {cost.path: cost for cost in rank.data_wait.files}
    rows = {row.path: row for row in (rank.io.files if rank.io is not None else []) if row.group is not None}
    paths = sorted({**costs, **rows}, key=lambda path: (-_share(costs[path]) if path in costs else 0.0, path))
    if not paths:
        return None
    known = rank.data_wait.raw_ms is not None
    shown = [_file_row(path, costs.get(path), rows.get(path), known) for path in paths[:_MOST_FILES]]
    return {
        "rows": shown,
        "in_part": rank.io is not None and rank.io.seen_in_part,
        "most": max(row["ms"] or 0.0 for row in shown),
        "most_read": max(row["read_ms_total"] or 0.0 for row in shown),
        "more": max(0, len(paths) - _MOST_FILES),
        "wait_known": known,
    }


def _share(cost: FileCost) -> float:
    """The ms of the wait that a file has in all: in it, and in the transform of what it held."""
    return cost.ms + cost.transform_ms


def _file_row(path: str, cost: FileCost | None, row: FileIo | None, known: bool) -> dict[str, Any]:
    none = 0.0 if known else None  # a file that no wait was for cost none of it
    return {
        "path": path,
        "ms": none if cost is None else _share(cost),
        "read_ms": none if cost is None else cost.read_ms,
        "decode_ms": none if cost is None else cost.decode_ms,
        "transform_ms": none if cost is None else cost.transform_ms,
        "reads": None if row is None else row.reads,
        "read_bytes": None if row is None or row.maps else row.read_bytes,
        "read_ms_total": None if row is None else row.read_ms_total,
    }


def ranks_table(report: Report) -> dict[str, Any] | None:
    """The ranks beside each other, the late one first; each with its wait over the run."""
    if len(report.ranks) < 2:
        return None
    found, compared = report.verdict, report.imbalance
    late = found.rank if found.kind == "rank-late" else None
    ranks = sorted(report.ranks, key=lambda rank: (rank.rank != late, rank.rank, rank.incarnation))
    rows = [_rank_row(rank, report, late) for rank in ranks[:_MOST_RANKS]]
    names = ("step", "data wait", "waits for other ranks", "compute", "came last in")
    columns = [name for name in names if any(row["cells"][name] is not None for row in rows)]
    return {
        "columns": columns,
        "rows": rows,
        "hosts": any(row["host"] for row in rows),
        "timed": any(row["over_time"] for row in rows),
        "more": max(0, len(ranks) - _MOST_RANKS),
        "caption": _ranks_caption(report, columns),
        "world_size": compared.world_size if compared is not None else None,
        "collectives": compared.collectives if compared is not None else None,
    }


def _ranks_caption(report: Report, columns: Sequence[str]) -> str:
    """Say of which steps each share is: of all, of the profiled, or of the measured ones."""
    loops, compared = report.lockstep, report.imbalance
    profiled = max((each.steps for each in compared.ranks), default=0) if compared is not None else 0
    of_profiled = f"of {counted(profiled, 'profiled step')}"
    of_all = None if loops is None or not any(each.waits_ms for each in loops.ranks) else loops.steps
    told = {
        "waits for other ranks": of_profiled if of_all is None else f"of {counted(of_all, 'step')}",
        "compute": of_profiled,
        "data wait": "of the measured steps",
        "came last in": "of all collectives"
        if loops is None or not loops.late_steps
        else f"of {counted(loops.late_steps, 'late step')}",
    }
    return "shares: " + ", ".join(f"{name} {of}" for name, of in told.items() if name in columns)


def _rank_row(rank: RankReport, report: Report, late: int | None) -> dict[str, Any]:
    compared = report.imbalance
    own, straggler = compared.of(rank.rank, rank.incarnation) if compared else (None, None)
    matched = compared.collectives.matched if compared else 0
    cells: dict[str, dict[str, Any] | None] = dict.fromkeys(
        ("step", "data wait", "waits for other ranks", "compute", "came last in")
    )
    if rank.steps.mean_ms is not None:
        cells["step"] = {"text": milliseconds(rank.steps.mean_ms), "value": rank.steps.mean_ms, "shade": 0}
    fraction = rank.data_wait.raw_wait_fraction
    if fraction is not None:
        cells["data wait"] = _cell(fraction)
    if (waits := waits_for_late(rank, report)) is not None:
        cells["waits for other ranks"] = _cell(waits)
    if own is not None and own.step_ms:
        cells["compute"] = _cell(own.compute_ms / own.step_ms, shaded=False)
        if fraction is None:
            cells["data wait"] = _cell(own.data_wait_ms / own.step_ms)
    if (share := late_in(rank, report)) is not None:
        cells["came last in"] = _cell(share)
    elif straggler is not None and matched and compared is not None and not compared.withheld:
        cells["came last in"] = _cell(straggler.last_to_arrive / matched)
    return {
        "rank": rank.rank,
        "name": f"{rank.rank if rank.pid is None else rank.called}"
        + (f", restart {rank.incarnation}" if rank.incarnation else ""),
        "host": rank.host or "",
        "late": rank.rank == late,
        "cells": cells,
        "over_time": _over_time(rank),
    }


def _cell(share: float, shaded: bool = True) -> dict[str, Any]:
    return {"text": percent(share), "value": share, "shade": _shade(share) if shaded else 0}


def _shade(share: float) -> int:
    return min(_SHADES, max(0, round(_SHADES * share)))


def _over_time(rank: RankReport) -> dict[str, Any] | None:
    """One cell a block of steps, by the share of the block that waited; one path for each shade."""
    blocks = rank.blocks
    if blocks is None or not blocks.wait_ms:
        return None
    pairs = zip(blocks.wait_ms, blocks.step_ms, strict=True)
    shares = [wait / step if step else 0.0 for wait, step in pairs]
    paths: dict[int, str] = dict.fromkeys(range(1, _SHADES + 1), "")
    for number, share in enumerate(shares):
        if shade := _shade(share):
            paths[shade] += f"M{number} 0h1v1h-1z"
    text = f"share of data wait over the run, {len(shares)} blocks of steps; at most {percent(max(shares))}"
    return {"count": len(shares), "paths": [pair for pair in paths.items() if pair[1]], "text": text}


def devices(rank: RankReport | None) -> list[str]:
    """What was sampled of each accelerator; nothing where no sample exists, as in bare traces."""
    gpus = rank.system.gpus if rank is not None else []
    if all(getattr(gpu, figure) is None for gpu in gpus for figure in _SAMPLED):
        return []
    return [f"{gpu_label(gpu)}: {gpu_text(gpu)}" for gpu in gpus]


def loaders(rank: RankReport) -> list[str]:
    """What each loader is and how it ran, as the report on a terminal has it."""
    named = [f"loader {loader.id}: " if len(rank.loaders) > 1 else "" for loader in rank.loaders]
    return [
        name + loader_text(loader, unit_of(rank) if loader.primary else "batches")
        for name, loader in zip(named, rank.loaders, strict=True)
    ]


def io_section(rank: RankReport) -> dict[str, Any] | None:
    """Files and directories as a tree; None where no data file was seen."""
    if rank.io is None:
        return None
    data = [file for file in rank.io.files if file.group is not None]
    if not data:
        return None
    coverage = None if rank.io.coverage is None else percent(rank.io.coverage)
    return {"tree": io_tree(data), "coverage": coverage, "unseen": rank.io.unseen_because}


def main_rank(report: Report, columns: RankColumns | None) -> RankReport | None:
    """The rank whose steps the page shows."""
    if columns is not None:
        return next(
            one for one in report.ranks if (one.rank, one.incarnation) == (columns.rank, columns.incarnation)
        )
    return report.main_rank or next(iter(report.ranks), None)


def shown_table(table: Table, most: int, names_first: bool = False) -> dict[str, Any]:
    """Texts of the first `most` rows of a table, and what each is sorted by.

    `names_first`: what names a row stands first, as a phone shows the left.
    """
    fields = list(table.fields)
    if names_first:
        texts = [field for field in fields if field.is_text]
        first = next((field for field in texts if field.name == "name"), texts[0] if texts else fields[0])
        fields = [first, *(field for field in fields if field is not first)]
    rows = table.rows[:most]
    return {
        "title": table.title,
        "fields": fields,
        "rows": [
            [(middle_cut(text, _LONGEST_NAME), _order(text, row, fields[at])) for at, text in enumerate(own)]
            for own, row in zip(cells_of(replace(table, fields=fields, rows=rows)), rows, strict=True)
        ],
        "more": max(0, len(table.rows) - most),
        "notes": table.notes,
        "commands": table.commands,
        "unknown": table.unknown,
    }


def _order(text: str, row: Any, field: Field) -> float | str | None:
    """What a figure is sorted by where its text does not say; empty where it is unknown."""
    value = None if "." in field.name else getattr(row, field.name)
    if value is None:
        return ""
    return None if field.is_text or _NUMBER.fullmatch(text) or not isinstance(value, int | float) else value


_ROLE_NAMES = {"cpu_op": "CPU operators", "dataloader": "data loader"}


def step_parts(rank: RankReport) -> list[Bars]:
    """What a step is made of, as bars: by phase, as profiled, what idled the device and where."""
    tables = []
    known = step_parts_ms(rank)
    if len(known) > 1:
        source = "by events of the device" if rank.phases_source == "device_events" else "by the host's clock"
        tables.append(_bars("A step, in ms", known, f"Mean of {rank.steps.count} measured steps, {source}."))
    if rank.breakdown_ms is not None and sum(rank.breakdown_ms.values()) > 0:
        note = f"Mean of {rank.breakdown_steps} profiled steps: profiling slows a step, look at the shares."
        named = {_ROLE_NAMES.get(role, role): ms for role, ms in rank.breakdown_ms.items() if ms > 0}
        tables.append(_bars("As torch.profiler saw it, in ms", named, note))
    return tables + _device_bars(rank)


def _device_bars(rank: RankReport) -> list[Bars]:
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
    tables = [_shares("The device, % of the traced time", seen, whole_us, note)]
    if found.idle_us:
        idle = {CLASSES.get(name, name): us for name, us in found.idle_by_class_us.items() if us > 0}
        tables.append(_shares("The device idled for, %", idle, whole_us, ""))
        modules = {_kernels(one): one.idle_us for one in found.idle_by_module[:12] if one.idle_us > 0}
        if modules:
            tables.append(_shares("The device idled before kernels of, %", modules, whole_us, ""))
        comm = {
            _kernels(one): one.comm_us
            for one in sorted(found.idle_by_module, key=lambda one: -one.comm_us)[:8]
            if one.comm_us > 0
        }
        if comm:
            tables.append(_shares("Communication launched by, %", comm, whole_us, ""))
    return tables


def _kernels(found: IdleByModule) -> str:
    return f"{found.module}, {found.phase}" if found.module else found.phase


def _shares(title: str, values_us: dict[str, float], whole_us: float, note: str) -> Bars:
    """Shares of the traced time: totals would stand beside figures of one step."""
    return _bars(title, {name: 100 * us / whole_us for name, us in values_us.items()}, note)


def _bars(title: str, values: dict[str, float], note: str) -> Bars:
    most = max(values.values(), default=0.0) or 1.0
    least = 0.002 * most  # what would be no bar
    return Bars(title, [Bar(name, of, [fixed(of, most)]) for name, of in values.items() if of >= least], note)
