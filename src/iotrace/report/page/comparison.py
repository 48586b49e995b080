"""The page of a comparison: faster or slower, by which part of the step, and how sure that is."""

from __future__ import annotations

from typing import Any

from iotrace.analysis.compare.results import Comparison
from iotrace.analysis.compare.traces import TraceComparison
from iotrace.report.comparison import (
    NAMES,
    change_tables,
    comparison_head,
    part_rows,
    speed_of,
    stage_grid,
    trace_head,
)
from iotrace.report.page.definitions import WORDS
from iotrace.report.page.render import render
from iotrace.report.page.sections import shown_table
from iotrace.report.tables import CAUSES

_MOST_ROWS = 50

_LABELS = {
    "slower": "SLOWER",
    "faster": "FASTER",
    "no-difference": "NO DIFFERENCE",
    "unknown": "CANNOT BE TOLD",
}


def comparison_page(result: Comparison) -> str:
    """Write `result` as a page."""
    label = _LABELS.get(result.verdict, "COMPARED")
    head = comparison_head(result)
    stages = stage_grid(result.stages, NAMES).rows
    return render(
        "compare.html",
        result,
        title=f"{label} · {result.sessions[1].path}",
        banner=head._replace(label=label, text=head.text.removeprefix(label).lstrip(": ")),
        nav=[
            ("parts", "A step"),
            *([("stages", "Samples")] if stages else []),
            *([("around", "What else differs")] if result.settings or result.environment else []),
            ("about", "About"),
        ],
        result=result,
        parts=_parts(result),
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
        nav=[("kernels", "Kernels"), ("operators", "Operators"), ("about", "About")],
        result=result,
        tables=[
            shown_table(table, _MOST_ROWS, names_first=True) | {"id": name}
            for name, table in zip(("kernels", "operators"), change_tables(result), strict=True)
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
