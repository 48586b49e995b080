"""The page of a comparison: faster or slower, by which part of the step, and how sure that is."""

from __future__ import annotations

from typing import Any

from iotrace.analysis.compare.results import Comparison
from iotrace.analysis.compare.traces import TraceComparison
from iotrace.report.comparison import part_rows, reasons_label, reasons_of, speed_of, stage_rows, trust_of
from iotrace.report.page.definitions import CAUSES, WORDS
from iotrace.report.page.render import Banner, Row, render
from iotrace.report.page.sections import view_table
from iotrace.report.views.trace_comparison import facts_of, headline, tables_of

_MOST_ROWS = 50

_LABELS = {
    "slower": ("SLOWER", "bad"),
    "faster": ("FASTER", "good"),
    "no-difference": ("NO DIFFERENCE", "good"),
    "unknown": ("NOT CLEAR", "warn"),
}


def comparison_page(result: Comparison) -> str:
    """Write `result` as a page."""
    label, tone = _LABELS.get(result.verdict, ("COMPARED", "warn"))
    label = f"LIKELY {label}" if result.likely else label
    name = reasons_label(result)
    reasons = [("" if number else name, text) for number, text in enumerate(reasons_of(result))]
    rows = [("Work", f"differs in {difference}") for difference in result.differs]
    rows += [*reasons, *(("Trust", text) for text in trust_of(result))]
    stages = stage_rows(result.stages)
    return render(
        "compare.html",
        result,
        title=f"{label} · {result.sessions[1].path}",
        banner=Banner(tone, label, result.text.removeprefix(label).lstrip(": "), [Row(*row) for row in rows]),
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
    label, _, text = headline(result).partition("   ")
    tables = tables_of(result)
    return render(
        "compare_traces.html",
        result,
        title=f"{label} · {result.traces[1]}",
        banner=Banner("warn", label, text, [Row(*row) for row in facts_of(result)]),
        nav=[("kernels", "Kernels"), ("operators", "Operators"), ("about", "About")],
        result=result,
        tables=[
            view_table(table, _MOST_ROWS) | {"id": name, "unknown": table.unknown}
            for name, table in zip(("kernels", "operators"), tables, strict=True)
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
