"""The page of a sweep: what to use, the points beside each other, their batches side by side."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from iotrace.analysis.results.page import RankColumns
from iotrace.report.page import charts
from iotrace.report.page.definitions import SWEEP, WORDS
from iotrace.report.page.render import render
from iotrace.report.screen import trust_text
from iotrace.report.sweeps.sweep import following, is_advised, point_rows
from iotrace.sweeps.grid import named
from iotrace.sweeps.results import PointResult, SweepResult
from iotrace.units import milliseconds


def sweep_page(result: SweepResult, columns: Mapping[str, RankColumns]) -> str:
    """Write `result`, with `columns` of its sessions by path, as a page."""
    found = result.verdict
    label = "BEST" if found.kind == "best" else "NO ADVICE"
    why = [{"label": "Why", "text": found.why}] if found.why else []
    fixes = [
        {
            "label": "" if number else "Fix",
            "text": fix.text,
            "side": f"saves {milliseconds(fix.gain_ms_per_step)} a step" if fix.gain_ms_per_step else "",
        }
        for number, fix in enumerate(found.fixes)
    ]
    headings, cells = point_rows(result)
    falls = _waterfalls(result, columns)
    return render(
        "sweep.html",
        {"sweep": result, "columns": dict(columns)},
        title=f"{label} · {result.path}",
        banner={
            "tone": "good" if found.kind == "best" else "warn",
            "label": label,
            "text": found.text.removeprefix(label).lstrip(),
            "rows": [*why, *fixes],
            "level": found.trust.level,
            "trust": trust_text(found.trust.level, found.trust.reasons, silenced=False),
        },
        nav=[("points", "Points"), *([("batches", "Batches")] if falls else []), ("about", "About")],
        following=following(result),
        result=result,
        headings=headings,
        params=len(result.points[0].params) if result.points else 0,
        rows=[
            {"cells": own, "bar": _bar(row, result), "advised": is_advised(row, result)}
            for row, own in zip(result.points, cells, strict=True)
        ],
        ceiling=_ceiling(result),
        falls=falls,
        fetched=charts.fetched([one.window for one in columns.values() if one.window is not None]),
        failed=[row for row in result.points if row.status not in ("ok", "not run")],
        words={**SWEEP, **{word: WORDS[word] for word in ("fetch", "ready", "data wait", "trust")}},
        cause_words=None,
    )


def _most(result: SweepResult) -> float:
    rates = [rate for row in result.points for rate in (row.per_second, *(row.ci95 or ())) if rate]
    rates += [row.predicted_per_second for row in result.points if row.predicted_per_second]
    if result.ceiling is not None:
        rates.append(result.ceiling.per_second)
    return 1.03 * max(rates, default=1.0)


def _bar(row: PointResult, result: SweepResult) -> dict[str, str] | None:
    """The rate as a bar with its interval, and the model's as a mark, in per cent of the width."""
    if row.per_second is None:
        return None
    most = _most(result)
    places = {"value": row.per_second, "model": row.predicted_per_second}
    if row.ci95:
        places |= {"low": row.ci95[0], "high": row.ci95[1]}
    return {name: f"{100 * rate / most:.2f}" for name, rate in places.items() if rate is not None}


def _ceiling(result: SweepResult) -> dict[str, str] | None:
    found = result.ceiling
    if found is None:
        return None
    text = f"{found.per_second:.3g} steps/s ({milliseconds(found.step_ms)} a step), on batches from memory"
    return {"x": f"{100 * found.per_second / _most(result):.2f}", "text": text}


def _waterfalls(result: SweepResult, columns: Mapping[str, RankColumns]) -> list[dict[str, Any]]:
    """The batches of each point around its longest wait, all drawn to one scale."""
    windows = [
        (row, columns[row.sessions[-1]].window)
        for row in result.points
        if row.sessions and row.sessions[-1] in columns
    ]
    whole = max((window.length_ms for _, window in windows if window is not None), default=0.0)
    return [
        {
            "name": named(row.params),
            "steps": window.steps,
            "length_ms": window.length_ms,
            "rows": charts.waterfall(window, whole),
        }
        for row, window in windows
        if window is not None
    ]
