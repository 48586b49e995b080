"""The page of a comparison: faster or slower, by which part of the step, and how sure that is."""

from __future__ import annotations

from typing import Any

from iotrace.analysis.compare.results import Comparison
from iotrace.report.comparison import part_rows, reasons_of, stage_rows, trust_of
from iotrace.report.page.definitions import CAUSES, WORDS
from iotrace.report.page.render import render

_LABELS = {
    "slower": ("SLOWER", "bad"),
    "faster": ("FASTER", "good"),
    "no-difference": ("NO DIFFERENCE", "good"),
    "unknown": ("CANNOT BE TOLD", "warn"),
}


def comparison_page(result: Comparison) -> str:
    """Write `result` as a page."""
    label, tone = _LABELS.get(result.verdict, ("COMPARED", "warn"))
    reasons = [("Why" if not number else "", text) for number, text in enumerate(reasons_of(result))]
    rows = [("Work", f"differs: {difference}") for difference in result.differs]
    rows += [*reasons, *(("Trust", text) for text in trust_of(result))]
    return render(
        "compare.html",
        result,
        title=f"{label} · {result.sessions[1].path}",
        banner={
            "tone": tone,
            "label": label,
            "text": result.text.removeprefix(label).lstrip(": "),
            "rows": [{"label": label, "text": text} for label, text in rows],
            "level": None,
        },
        nav=[],
        result=result,
        parts=_parts(result),
        stages=stage_rows(result.stages),
        words={word: WORDS[word] for word in ("step", "data wait", "rest of the step", "trust")},
        cause_words=CAUSES,
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
