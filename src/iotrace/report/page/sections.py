"""What each section of a report's page shows; a section is None where its data do not exist."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from iotrace.analysis.page.costs import io_tree
from iotrace.analysis.results import FileCost, FileIo, Imbalance, RankReport, Report, SessionInfo
from iotrace.analysis.results.page import RankColumns
from iotrace.report.blocks import Table, cells_of
from iotrace.report.layout import middle_cut
from iotrace.report.page.definitions import CAUSES
from iotrace.report.screen import shown_path
from iotrace.report.terminal import loader_text
from iotrace.report.terminal_system import gpu_label, gpu_text
from iotrace.units import if_known, milliseconds, percent, size

_MOST_FILES = 100
_MOST_RANKS = 64
_LONGEST_NAME = 120  # characters: a kernel's mangled name has a thousand
_SHADES = 5
_OF_FILES = ("read", "decode", "transform")
_SAMPLED = ("util_pct_mean", "power_w_mean", "memory_bytes_peak")


def causes_table(rank: RankReport) -> list[dict[str, Any]]:
    """Each cause of the wait: what it costs, its share, its meaning."""
    wait = rank.data_wait
    if not wait.raw_ms:
        return []
    ordered = sorted(wait.causes_ms.items(), key=lambda pair: -pair[1])
    return [
        {"name": name, "ms": ms, "share": ms / wait.raw_ms, "meaning": CAUSES.get(name, "")}
        for name, ms in ordered
        if ms >= 0.005 * wait.raw_ms
    ]


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


def worst_batches(rank: RankReport, session: SessionInfo) -> list[dict[str, Any]]:
    """The batches that were waited for longest, with the command that shows each.

    The command shows the longest wait for a batch of that number: of another epoch it is none. A file is
    named only of a batch that was waited for because of files.
    """
    path, rows, numbers = shown_path(session.path), [], set()
    for worst in rank.data_wait.worst_batches:
        command = "" if worst.batch in numbers else f"iotrace open {path} --batch {worst.batch}"
        numbers.add(worst.batch)
        files = worst.files if worst.cause in _OF_FILES else []
        rows.append({"batch": worst, "who": worst.made_by, "files": files, "command": command})
    return rows


def ranks_table(report: Report) -> dict[str, Any] | None:
    """The ranks beside each other, the late one first; each with its wait over the run."""
    if len(report.ranks) < 2:
        return None
    found, compared = report.verdict, report.imbalance
    late = found.rank if found.kind == "rank-late" else None
    ranks = sorted(report.ranks, key=lambda rank: (rank.rank != late, rank.rank, rank.incarnation))
    rows = [_rank_row(rank, compared, late) for rank in ranks[:_MOST_RANKS]]
    names = ("step", "data wait", "waits for other ranks", "compute", "came last in")
    columns = [name for name in names if any(row["cells"][name] is not None for row in rows)]
    return {
        "columns": columns,
        "rows": rows,
        "hosts": any(row["host"] for row in rows),
        "timed": any(row["over_time"] for row in rows),
        "more": max(0, len(ranks) - _MOST_RANKS),
        "profiled": compared is not None,
        "world_size": compared.world_size if compared is not None else None,
        "collectives": compared.collectives if compared is not None else None,
    }


def _rank_row(rank: RankReport, compared: Imbalance | None, late: int | None) -> dict[str, Any]:
    own, straggler = compared.of(rank.rank) if compared else (None, None)
    matched = compared.collectives.matched if compared else 0
    cells: dict[str, dict[str, Any] | None] = dict.fromkeys(
        ("step", "data wait", "waits for other ranks", "compute", "came last in")
    )
    if rank.steps.mean_ms is not None:
        cells["step"] = {"text": milliseconds(rank.steps.mean_ms), "value": rank.steps.mean_ms, "shade": 0}
    fraction = rank.data_wait.raw_wait_fraction
    if fraction is not None:
        cells["data wait"] = _cell(fraction)
    if own is not None and own.step_ms:
        if own.communication_wait_ms is not None:
            cells["waits for other ranks"] = _cell(own.communication_wait_ms / own.step_ms)
        cells["compute"] = _cell(own.compute_ms / own.step_ms, shaded=False)
        if fraction is None:
            cells["data wait"] = _cell(own.data_wait_ms / own.step_ms)
    if straggler is not None and matched:
        cells["came last in"] = _cell(straggler.last_to_arrive / matched)
    return {
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


def processes_table(report: Report) -> list[dict[str, Any]]:
    """CPU and memory of each process of each rank, those that grew most first."""
    rows = [
        {
            "rank": rank.rank,
            "role": process.role,
            "pid": process.pid,
            "figures": [
                (if_known(process.cpu_pct_mean, "{:.0f} %".format), process.cpu_pct_mean),
                (if_known(process.rss_peak_bytes, size), process.rss_peak_bytes),
                (if_known(process.rss_growth_bytes, size), process.rss_growth_bytes),
            ],
        }
        for rank in report.ranks
        for process in rank.system.processes
        if process.rss_peak_bytes is not None or process.cpu_pct_mean is not None
    ]
    return rows[:_MOST_FILES]


def devices(rank: RankReport | None) -> list[str]:
    """What was sampled of each accelerator; nothing where no sample exists, as in bare traces."""
    gpus = rank.system.gpus if rank is not None else []
    if all(getattr(gpu, figure) is None for gpu in gpus for figure in _SAMPLED):
        return []
    return [f"{gpu_label(gpu)}: {gpu_text(gpu)}" for gpu in gpus]


def loaders(rank: RankReport) -> list[str]:
    """What each loader is and how it ran, as the report on a terminal has it."""
    named = [f"loader {loader.id}: " if len(rank.loaders) > 1 else "" for loader in rank.loaders]
    return [name + loader_text(loader) for name, loader in zip(named, rank.loaders, strict=True)]


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


def view_table(table: Table, most: int) -> dict[str, Any]:
    """Texts of the first `most` rows of a view. What names a row stands first: a phone shows the left."""
    names = [field for field in table.fields if field.is_text]
    first = next((field for field in names if field.name == "name"), names[0] if names else table.fields[0])
    ordered = [first, *(field for field in table.fields if field is not first)]
    cells = cells_of(replace(table, fields=ordered, rows=table.rows[:most]))
    return {
        "title": table.title,
        "fields": ordered,
        "rows": [[middle_cut(text, _LONGEST_NAME) for text in row] for row in cells],
        "more": max(0, len(table.rows) - most),
    }
