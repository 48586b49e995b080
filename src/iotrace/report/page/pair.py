"""The steps of two runs that are compared, one above the other."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from iotrace.analysis.page.sides import SideSteps, SlowMark
from iotrace.report.comparison import NAMES
from iotrace.report.page import charts
from iotrace.report.words import part_name
from iotrace.units import length

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
