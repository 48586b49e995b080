"""The data wait as areas with what is written on them, which depends on how wide the page is."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from iotrace.analysis.page.costs import OUTSIDE, Cost, costs_of
from iotrace.analysis.results import RankReport
from iotrace.report.page.charts import WIDTHS, fits
from iotrace.units import fixed, percent

Rectangle = tuple[float, float, float, float]  # x, y, width, height
_MOST_TILES = 60
_TREEMAP = (1000.0, 320.0)  # of its width, px of its height
_MARGIN, _LINE, _UPRIGHT = 14, 18, 22  # px: beside a text, a line's height, the least width of upright text


def treemap(rank: RankReport) -> list[dict[str, Any]]:
    """The wait as areas: directories, in them files by cause."""
    costs = costs_of(rank)
    if not costs:
        return []
    if len(costs) > _MOST_TILES:
        rest = costs[_MOST_TILES:]
        costs = costs[:_MOST_TILES]
        by_cause: dict[str, float] = defaultdict(float)
        for cost in rest:
            by_cause[cost.cause] += cost.ms
        costs += [Cost("more files", f"{len(rest)} more", cause, ms) for cause, ms in by_cause.items()]
    groups: dict[str, list[Cost]] = {}
    for cost in costs:
        groups.setdefault(cost.group, []).append(cost)
    ordered = sorted(groups.values(), key=lambda own: -sum(cost.ms for cost in own))
    whole_ms, most_ms = sum(cost.ms for cost in costs), max(cost.ms for cost in costs)
    outer = squarify([sum(cost.ms for cost in own) for own in ordered], (0.0, 0.0, *_TREEMAP))
    tiles = []
    for own, place in zip(ordered, outer, strict=True):
        own = sorted(own, key=lambda cost: -cost.ms)
        for cost, tile in zip(own, squarify([cost.ms for cost in own], place), strict=True):
            tiles.append(_tile(cost, tile, whole_ms, f"{fixed(cost.ms, most_ms)} ms"))
    return tiles


def treemap_height(tiles: list[dict[str, Any]]) -> int:
    """Px: a wait of one kind needs no area to be compared with others."""
    return round(_TREEMAP[1]) if len(tiles) > 2 else 96


def _tile(cost: Cost, place: Rectangle, whole_ms: float, shown: str) -> dict[str, Any]:
    x, y, width, height = place
    about = f"{cost.cause}, {OUTSIDE}" if cost.path is None else f"{cost.cause} of {cost.path}"
    return {
        "x": f"{100 * x / _TREEMAP[0]:.3f}",
        "y": f"{100 * y / _TREEMAP[1]:.3f}",
        "width": f"{100 * width / _TREEMAP[0]:.3f}",
        "height": f"{100 * height / _TREEMAP[1]:.3f}",
        "cause": cost.cause,
        "texts": _texts(cost, width / _TREEMAP[0], height, shown, percent(cost.ms / whole_ms)),
        "text": f"{about}: {shown} a step, {percent(cost.ms / whole_ms)} of the wait",
    }


def _texts(cost: Cost, share: float, height: float, ms: str, of_wait: str) -> list[dict[str, Any]]:
    """List what is written on a tile, each with the widths of the page from and to which it is shown."""
    found: list[dict[str, Any]] = []
    for width in WIDTHS:
        lines, upright = _lines_at(cost, share * width, height, ms, of_wait)
        if found and (found[-1]["lines"], found[-1]["upright"]) == (lines, upright):
            continue
        if found:
            found[-1]["shown"] += f" to{width}"
        found.append({"lines": lines, "upright": upright, "shown": f"from{width}"})
    return [each for each in found if each["lines"]]


def _lines_at(cost: Cost, width: float, height: float, ms: str, of_wait: str) -> tuple[list[str], bool]:
    """Choose what fits into a tile of so many px: name, figure, share; in a narrow one upright."""
    parts = (cost.path or cost.cause).rstrip("/").rsplit("/", 2)
    figures = [ms] if cost.path is None else [f"{cost.cause} {ms}", ms]
    for name in dict.fromkeys(("/".join(parts[-2:]), parts[-1])):
        if fits(name, width, _MARGIN):
            figure = next((text for text in figures if fits(text, width, _MARGIN)), figures[-1])
            lines = [name, figure, f"{of_wait} of the wait"][: int((height - 4) // _LINE)]
            return [text for text in lines if fits(text, width, _MARGIN)], False
    for upright in (f"{parts[-1]} · {figures[0]}", parts[-1]):
        if width >= _UPRIGHT and fits(upright, height, _MARGIN):
            return [upright], True
    return [], False


def squarify(areas: Sequence[float], within: Rectangle) -> list[Rectangle]:
    """Lay out `areas`, largest first and all above 0, close to squares that fill `within` in proportion.

    Bruls, Huizing, van Wijk: Squarified Treemaps (2000).
    """
    x, y, width, height = within
    whole = sum(areas)
    if not areas or whole <= 0:
        return []
    scaled = [area * width * height / whole for area in areas]
    found: list[Rectangle] = []
    while scaled:
        side = min(width, height)
        count = 1
        while count < len(scaled) and _longest(scaled[: count + 1], side) <= _longest(scaled[:count], side):
            count += 1
        row, scaled = scaled[:count], scaled[count:]
        thick = sum(row) / side if side > 0 else 0.0
        along = 0.0
        for area in row:
            length = area / thick if thick > 0 else 0.0
            found.append((x, y + along, thick, length) if width >= height else (x + along, y, length, thick))
            along += length
        if width >= height:
            x, width = x + thick, max(0.0, width - thick)
        else:
            y, height = y + thick, max(0.0, height - thick)
    return found


def _longest(row: Sequence[float], side: float) -> float:
    """The largest ratio of a rectangle's sides, where `row` fills a strip along `side`."""
    whole = sum(row)
    return max(side * side * max(row) / (whole * whole), whole * whole / (side * side * min(row)))
