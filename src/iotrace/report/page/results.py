"""The pages of a sweep, a search and a comparison: what to use; by what each step changed."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from iotrace.analysis.compare.results import Comparison
from iotrace.analysis.compare.traces import TraceComparison
from iotrace.analysis.page.sides import SideSteps, SlowMark
from iotrace.analysis.results.top import RankColumns
from iotrace.report.comparison import (
    NAMES,
    change_tables,
    comparison_head,
    part_rows,
    speed_of,
    stage_grid,
    trace_head,
)
from iotrace.report.page import charts
from iotrace.report.page.render import SWEEP, TUNE, WORDS, render
from iotrace.report.page.sections import shown_table
from iotrace.report.sweep import (
    change_of,
    following,
    following_search,
    is_advised,
    params_of,
    point_rows,
    setting_rows,
    sweep_head,
)
from iotrace.report.tables import CAUSES
from iotrace.report.words import part_name
from iotrace.sweeps.grid import named
from iotrace.sweeps.results import Ceiling, PointResult, SweepResult
from iotrace.sweeps.tune.results import TuneResult
from iotrace.units import digits, length, milliseconds

_MOST_TOLD = 5  # of the slow steps of a side


def step_pair(sides: Sequence[SideSteps], paths: Sequence[str], timelines: Sequence[str]) -> dict[str, Any]:
    """Draw both runs' steps on one scale, step 7 above step 7; `timelines` are two addresses, or none."""
    last = [os.path.basename(path) for path in paths]
    shown_paths = last if last[0] != last[1] else paths  # the head of the page has the whole paths
    most = max(charts.highest(side.columns) for side in sides)
    across = max(side.columns.steps for side in sides)
    strips = [charts.step_strip(side.columns, most, across) for side in sides]
    shown = [
        _side(name, path, side, strip, across, timeline)
        for name, path, side, strip, timeline in zip(
            NAMES, shown_paths, sides, strips, timelines or ("", ""), strict=True
        )
    ]
    return {
        "sides": shown,
        "causes": list(dict.fromkeys(cause for strip in strips for cause, _ in strip["layers"])),
        "rest_name": strips[0]["rest_name"],
        "unmeasured": any(strip["unmeasured"] for strip in strips),
        "slow": any(each["slow"] for each in shown),
        "labels": [f"step {number}" for number in dict.fromkeys((0, (across - 1) // 2, across - 1))],
    }


def _side(
    name: str, path: str, side: SideSteps, strip: dict[str, Any], across: int, timeline: str
) -> dict[str, Any]:
    marks = [
        {
            "x": f"{100 * (each.place + 0.5) / across:.2f}",
            "text": _slow_text(each),
            "address": f"{timeline}&around={each.step}" if timeline else "",
        }
        for each in side.slow
    ]
    return {
        "name": name,
        "path": path,
        "timeline": timeline,
        "steps": side.columns.steps,
        "strip": strip,
        "slow": marks,
        "told": marks[:_MOST_TOLD],
    }


def _slow_text(mark: SlowMark) -> str:
    parts = [length(mark.ms), part_name(mark.cause) if mark.cause else "", mark.file or ""]
    return f"step {mark.step}: " + ", ".join(filter(None, parts))


def sweep_page(result: SweepResult, columns: Mapping[str, RankColumns]) -> str:
    """Write `result`, with `columns` of its sessions by path, as a page."""
    headings, cells = point_rows(result)
    return _page(
        "sweep",
        result,
        result.points,
        columns,
        headings=headings,
        params=len(params_of(result.points)),
        cells=cells,
        advised=[is_advised(row, result) for row in result.points],
        following=following(result),
        words=SWEEP,
    )


def tune_page(result: TuneResult, columns: Mapping[str, RankColumns]) -> str:
    """Write a search, with `columns` of its sessions by path, as a page: the change to type comes first."""
    best = None if result.best is None else result.best.params
    headings, cells = setting_rows(result)
    return _page(
        "tune",
        result,
        result.runs,
        columns,
        headings=headings,
        params=1,
        cells=cells,
        advised=[row.params == best for row in result.runs],
        following=following_search(result),
        words=TUNE,
        change=change_of(result),
        predicted=sum(bool(row.per_second and row.predicted_per_second) for row in result.runs),
        no_effect=result.no_effect,
        refused=[(named(one.params), one.why) for one in result.refused],
    )


def _page(
    kind: str,
    result: SweepResult | TuneResult,
    points: Sequence[PointResult],
    columns: Mapping[str, RankColumns],
    *,
    cells: list[list[str]],
    advised: list[bool],
    words: Mapping[str, str],
    **shown: Any,
) -> str:
    """Fill the page of all that runs a command with several settings."""
    head = sweep_head(result.verdict)
    falls, most = _waterfalls(points, columns), _most(points, result.ceiling)
    one, several = ("point", "Points") if kind == "sweep" else ("setting", "Settings")
    shown = {"change": [], "no_effect": [], "refused": [], "predicted": 0, **shown}
    sections = {
        "change": shown["change"] and "The change",
        "points": several,
        "batches": falls and "Batches",
        "rest": (shown["no_effect"] or shown["refused"]) and "Not advised",
        "about": "About",
    }
    return render(
        "sweep.html",
        {kind: result, "columns": dict(columns)},
        title=f"{head.label} · {result.path}",
        kind=kind,
        one=one,
        several=several,
        banner=head,
        nav=[(name, title) for name, title in sections.items() if title],
        result=result,
        rows=[
            {"cells": own, "bar": _bar(row, most), "advised": is_best}
            for row, own, is_best in zip(points, cells, advised, strict=True)
        ],
        ceiling=_ceiling(result.ceiling, most),
        falls=falls,
        fetched=charts.fetched([one.window for one in columns.values() if one.window is not None]),
        failed=[(named(row.params), row) for row in points if row.status not in ("ok", "not run")],
        legend={word: words[word] for word in words if _is_shown(word, points, cells, result.ceiling)},
        words={**words, **{word: WORDS[word] for word in ("fetch", "ready", "data wait", "trust")}},
        cause_words=None,
        **shown,
    )


def _is_shown(
    word: str, points: Sequence[PointResult], cells: Sequence[Sequence[str]], ceiling: Ceiling | None
) -> bool:
    """Whether the table shows what a word of its legend is about; marks stand in its last column."""
    if word in ("yours", "best", "busy"):
        return any(word in own[-1].split() for own in cells)
    if word in ("model", "predicted", "missed by"):
        return any(row.predicted_per_second is not None for row in points)
    return word != "ceiling" or ceiling is not None


def _most(points: Sequence[PointResult], ceiling: Ceiling | None) -> float:
    rates = [rate for row in points for rate in (row.per_second, *(row.ci95 or ())) if rate]
    rates += [row.predicted_per_second for row in points if row.predicted_per_second]
    if ceiling is not None:
        rates.append(ceiling.per_second)
    return 1.03 * max(rates, default=1.0)


def _bar(row: PointResult, most: float) -> dict[str, str] | None:
    """The rate as a bar with its interval, and the model's as a mark, in per cent of the width."""
    if row.per_second is None:
        return None
    places = {"value": row.per_second, "model": row.predicted_per_second}
    if row.ci95:
        places |= {"low": row.ci95[0], "high": row.ci95[1]}
    return {name: f"{100 * rate / most:.2f}" for name, rate in places.items() if rate is not None}


def _ceiling(found: Ceiling | None, most: float) -> dict[str, str] | None:
    if found is None:
        return None
    rate = digits(found.per_second)
    text = f"{rate} steps/s ({milliseconds(found.step_ms)} a step), on batches from memory"
    return {"x": f"{100 * found.per_second / most:.2f}", "text": text}


def _waterfalls(points: Sequence[PointResult], columns: Mapping[str, RankColumns]) -> list[dict[str, Any]]:
    """The batches of each point around its longest wait, all drawn to one scale."""
    latest = [(row, columns.get(row.sessions[-1])) for row in points if row.sessions]
    windows = [(row, found.window) for row, found in latest if found is not None and found.window is not None]
    whole = max((window.length_ms for _, window in windows), default=0.0)
    return [
        {
            "name": named(row.params) or "as it is",
            "steps": window.steps,
            "length_ms": window.length_ms,
            "rows": charts.waterfall(window, whole),
        }
        for row, window in windows
    ]


_MOST_ROWS = 50

_LABELS = {
    "slower": "SLOWER",
    "faster": "FASTER",
    "no-difference": "NO DIFFERENCE",
    "unknown": "NOT CLEAR",
}


def comparison_page(
    result: Comparison, sides: Sequence[SideSteps | None] = (), timelines: Sequence[str] = ()
) -> str:
    """Write `result` as a page; with the steps of both `sides` where these are known.

    `timelines` are addresses of both timelines, for a page that is served beside them; each has a query.
    """
    label = f"{'LIKELY ' if result.likely else ''}{_LABELS.get(result.verdict, 'COMPARED')}"
    head = comparison_head(result)
    stages = stage_grid(result.stages, NAMES).rows
    known = [side for side in sides if side is not None]
    pair = step_pair(known, [each.path for each in result.sessions], timelines) if len(known) == 2 else None
    return render(
        "compare.html",
        result,
        title=f"{label} · {result.sessions[1].path}",
        banner=head._replace(label=label, text=head.text.removeprefix(label).lstrip(": ")),
        nav=[
            ("parts", "A step"),
            *([("steps", "Step by step")] if pair else []),
            *([("stages", "Samples")] if stages else []),
            *([("around", "What else differs")] if result.settings or result.environment else []),
            ("about", "About"),
        ],
        result=result,
        parts=_parts(result),
        pair=pair,
        stages=stages,
        speed=speed_of(result),
        words={word: WORDS[word] for word in ("step", "data wait", "rest of the step", "trust")},
        cause_words=CAUSES,
    )


def trace_comparison_page(result: TraceComparison) -> str:
    """Write a comparison of two traces as a page."""
    head = trace_head(result)
    return render(
        "compare_traces.html",
        result,
        title=f"{head.label} · {result.traces[1]}",
        banner=head,
        nav=[("kernels", "Kernels"), ("shapes", "Shapes"), ("operators", "Operators"), ("about", "About")],
        result=result,
        tables=[
            shown_table(table, _MOST_ROWS, names_first=True) | {"id": name}
            for name, table in zip(("kernels", "shapes", "operators"), change_tables(result), strict=True)
        ],
        words={"step": WORDS["step"]},
        cause_words={},
    )


def _parts(result: Comparison) -> list[dict[str, Any]]:
    """The step and its parts as pairs of bars, in per cent of the longest."""
    rows = part_rows(result)
    most = max((value for _, before, after, _ in rows for value in (before, after)), default=0.0) or 1.0
    return [
        {
            "name": name,
            "values": [before, after],
            "change": after - before,
            "bounds": bounds,
            "widths": [f"{100 * value / most:.2f}" for value in (before, after)],
        }
        for name, before, after, bounds in rows
    ]
