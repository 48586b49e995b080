"""Geometry of the page's charts: columns of a result to paths and places; no figure is computed here.

Paths lie in boxes of `HEIGHT` units that the browser stretches to any width; places are per cent of the box,
so that text beside them keeps its size.

The data wait as areas with what is written on them, which depends on how wide the page is.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from math import ceil, floor, log10
from typing import Any

from iotrace.analysis.page.costs import OUTSIDE, Cost, costs_of
from iotrace.analysis.results import RankReport
from iotrace.analysis.results.top import BatchWindow, SampledSeries, StepColumns
from iotrace.analysis.wait.waits import CAUSES
from iotrace.units import decimals, fixed, milliseconds, percent, size

HEIGHT = 1000
_NOMINAL = (1040, 200)  # pixels of a chart on a wide screen, for which patterns are made
_LONG = 3.0  # times the 95th percentile: what is longer does not set the scale
_MOST_WORKERS = 16
WIDTHS = (330, 560, 760, 1000)  # px of a chart on a phone, on paper, on a small and on a wide screen
_LANE = 0.9  # of a chart's width, beside the lane's name
CHARACTER = 7.9  # px, of bold text


def bars(layers: Sequence[Sequence[float]], most: float, gap: float = 0.12) -> list[str]:
    """Stack layers of bars, the first at the bottom, as one path each; what reaches above `most` is cut."""
    below = [0.0] * max(map(len, layers), default=0)
    width = f"{1 - gap:g}"
    paths = []
    for layer in layers:
        path = []
        for number, value in enumerate(layer):
            bottom, top = (
                round(HEIGHT * min(1.0, at / most)) for at in (below[number], below[number] + value)
            )
            below[number] += value
            if top > bottom:
                path.append(f"M{number} {HEIGHT - top}h{width}v{top - bottom}h-{width}z")
        paths.append("".join(path))
    return paths


def fits(text: str, px: float, margin: float) -> bool:
    """Say whether a text and the margin beside it fit into so many px."""
    return CHARACTER * len(text) + margin <= px


def least_width(text: str, share: float, margin: float) -> str:
    """Name the class of a text that fits into `share` of a chart of some width and more; none: nowhere."""
    return next((f"from{width}" for width in WIDTHS if fits(text, share * width, margin)), "")


def gridlines(most: float) -> list[dict[str, Any]]:
    """Choose two to five round values below `most`, with their places from the top in per cent."""
    if most <= 0:
        return []
    rough = most / 3
    power = 10.0 ** floor(log10(rough))
    every = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= rough * 0.7)
    values = [every * number for number in range(1, ceil(most / every)) if every * number <= 0.97 * most]
    return [{"y": f"{100 * (1 - value / most):.2f}", "label": f"{value:g} ms"} for value in values]


def step_strip(steps: StepColumns, most: float | None = None, across: int | None = None) -> dict[str, Any]:
    """Draw each step as a bar: its wait by cause at the bottom, the rest above it.

    `most` ms are as high as the chart, and `across` steps as wide; else they are what fits these steps.
    """
    count = len(steps.step_ms)
    most = most or highest(steps)
    width = count if across is None else across / steps.bin
    names = [cause for cause in CAUSES if cause in steps.causes_ms]
    names.sort(key=lambda cause: -sum(steps.causes_ms[cause]))
    waits = [steps.causes_ms[cause] for cause in names]
    wait_ms = steps.wait_ms or [0.0] * count
    rest = [max(0.0, step - wait) for step, wait in zip(steps.step_ms, wait_ms, strict=True)]
    gap = 0.12 if count <= 250 else 0.0
    *drawn, above = bars([*waits, rest], most, gap)
    cut = [number for number, ms in enumerate(steps.longest_ms) if ms > most]
    return {
        "width": f"{width:g}",
        "most": most,
        "layers": list(zip(names, drawn, strict=True)),
        "rest": above,
        "rest_name": "rest of the step" if steps.wait_ms is not None else "step (its wait is unknown)",
        "longest": _ticks(steps, most) if steps.bin > 1 else "",
        "cut": "".join(f"M{number} 0h{1 - gap:g}v25h-{1 - gap:g}z" for number in cut),
        "cut_text": _cut_text(steps, cut),
        "unmeasured": _runs(steps.measured),
        "grid": gridlines(most),
        "pattern": f"scale({width / _NOMINAL[0]:.6g} {HEIGHT / _NOMINAL[1]:.6g})",
        "labels": _step_labels(steps),
    }


def highest(steps: StepColumns) -> float:
    """How many ms the chart of these steps shows: a few that are far longer do not set the scale."""
    ordered = sorted(steps.longest_ms)
    usual = _LONG * ordered[floor(0.95 * (len(ordered) - 1))]
    return 1.04 * (ordered[-1] if ordered[-1] <= usual else max(ms for ms in ordered if ms <= usual))


def _ticks(steps: StepColumns, most: float) -> str:
    heights = [HEIGHT - round(HEIGHT * ms / most) for ms in steps.longest_ms]
    return "".join(f"M{number} {y}h1" for number, y in enumerate(heights) if y >= 0)


def _cut_text(steps: StepColumns, cut: Sequence[int]) -> str:
    if not cut:
        return ""
    longest = max(cut, key=lambda number: steps.longest_ms[number])
    ms = milliseconds(steps.longest_ms[longest])
    step = f"step {steps.longest[longest]}{'' if steps.measured[longest] else ', not measured,'}"
    if len(cut) == 1:
        return f"{step} reaches above the chart: {ms}"
    return f"{len(cut)} bars reach above the chart, up to {ms} ({step.removesuffix(',')})"


def _runs(measured: Sequence[bool]) -> str:
    """A band below each run of steps that are not measured."""
    path, start = [], None
    for number, is_measured in enumerate([*measured, True]):
        if not is_measured and start is None:
            start = number
        elif is_measured and start is not None:
            path.append(f"M{start} 0h{number - start}v1h-{number - start}z")
            start = None
    return "".join(path)


def _step_labels(steps: StepColumns) -> list[str]:
    last = steps.steps - 1
    return [f"step {number}" for number in dict.fromkeys((0, last // 2, last))]


def _place(start: float, end: float, window: BatchWindow, whole: float = 0.0) -> dict[str, str] | None:
    """Where a time lies within the window, drawn `whole` ms wide; None where it does not."""
    start, end = max(0.0, start), min(window.length_ms, end)
    if end <= start:
        return None
    whole = whole or window.length_ms
    return {"x": f"{100 * start / whole:.3f}", "width": f"{100 * (end - start) / whole:.3f}"}


def gantt(window: BatchWindow) -> list[dict[str, Any]]:
    """A row for the training loop and one for each worker: what each did when."""
    # Until it first asks, the loop works on the batch before.
    loop = [_bar(window, 0.0, min(window.asked_ms, default=0.0), "rest", "", "the loop works", False)]
    rows: dict[int | None, list[dict[str, Any]]] = {}
    for number, batch in enumerate(window.batch):
        file, worst = window.file[number] or "", number == window.worst
        asked, delivered = window.asked_ms[number], window.delivered_ms[number]
        computed = window.computed_ms[number]
        wait = milliseconds(delivered - asked)
        text = f"batch {batch}: waited {wait}, mostly {window.cause[number]}" + (f", {file}" if file else "")
        loop.append(_bar(window, asked, delivered, window.cause[number], f"{batch}", text, worst))
        if computed is not None:
            text = f"after batch {batch}: {milliseconds(computed - delivered)} without waiting for data"
            loop.append(_bar(window, delivered, computed, "rest", "", text, False))
        taken, prepared, made_of = window.taken_ms[number], window.prepared_ms[number], window.made_of[number]
        if taken is not None and prepared is not None and window.worker[number] is not None:
            text = f"batch {batch}: made in {milliseconds(prepared - taken)}, mostly {made_of or 'unknown'}"
            text += f", {file}" if file else ""
            bar = _bar(window, taken, prepared, made_of or "unknown", f"{batch}", text, worst)
            rows.setdefault(window.worker[number], []).append(bar)
    workers = sorted(rows, key=lambda worker: worker if worker is not None else -1)
    found = [{"label": "loop", "bars": [bar for bar in loop if bar["place"]]}]
    for worker in workers[:_MOST_WORKERS]:
        found.append({"label": f"worker {worker}", "bars": [bar for bar in rows[worker] if bar["place"]]})
    return found


def _bar(
    window: BatchWindow, start: float, end: float, kind: str, label: str, text: str, worst: bool
) -> dict[str, Any]:
    place = _place(start, end, window)
    return {
        "place": place,
        "kind": kind,
        "label": label,
        "text": text,
        "worst": worst,
        "fits": least_width(
            label, (min(end, window.length_ms) - max(0.0, start)) / window.length_ms * _LANE, 3
        ),
    }


def ready_area(window: BatchWindow) -> dict[str, Any] | None:
    """The ready queue as a stepped area; None where it is not known, or without workers, who fill it."""
    if not window.ready or all(worker is None for worker in window.worker):
        return None
    most = max(1, *window.ready)
    whole = window.length_ms
    path, last = f"M0 {HEIGHT}", 0.0
    for at, count in zip(window.ready_at_ms, window.ready, strict=True):
        last = HEIGHT - HEIGHT * count / most
        path += f"H{HEIGHT * at / whole:.1f}V{last:.0f}"
    return {"path": f"{path}H{HEIGHT}V{HEIGHT}z", "most": most}


def waterfall(window: BatchWindow, whole: float = 0.0) -> list[dict[str, Any]]:
    """A row a batch, in order of delivery: fetched, ready, awaited, computed on; `whole` ms wide."""
    rows, digits = [], decimals(window.length_ms / max(1, window.steps)) - 1  # of a usual step
    for number, batch in enumerate(window.batch):
        asked, delivered = window.asked_ms[number], window.delivered_ms[number]
        taken, prepared = window.taken_ms[number], window.prepared_ms[number]
        computed, made_of = window.computed_ms[number], window.made_of[number] or "unknown"
        fetched = None if taken is None or prepared is None else prepared - taken
        parts: list[dict[str, Any] | None] = [
            _part(window, whole, "fetch", made_of, taken, prepared),
            _part(window, whole, "ready", "ready", prepared, asked),
            _part(window, whole, "wait", "wait", asked, delivered),
            _part(window, whole, "compute", "rest", delivered, computed),
        ]
        worker = window.worker[number]
        rows.append(
            {
                "batch": batch,
                "worker": "loop" if worker is None else str(worker),
                "worst": number == window.worst,
                "parts": [part for part in parts if part is not None],
                "fetch": "?" if fetched is None else f"{fetched:.{digits}f}",
                "wait": f"{delivered - asked:.{digits}f}",
                "compute": "?" if computed is None else f"{computed - delivered:.{digits}f}",
                "made_of": window.made_of[number],
            }
        )
    return rows


def fetched(windows: Sequence[BatchWindow]) -> list[str]:
    """What the batches of these windows were mostly made of, in the order of causes."""
    seen = {part for window in windows for part in window.made_of}
    return [cause for cause in CAUSES if cause in seen]


def _part(
    window: BatchWindow, whole: float, name: str, kind: str, start: float | None, end: float | None
) -> dict[str, Any] | None:
    place = None if start is None or end is None else _place(start, end, window, whole)
    if place is None or start is None or end is None:
        return None
    return {**place, "name": name, "kind": kind, "text": f"{name} {milliseconds(end - start)}"}


def sparkline(series: SampledSeries) -> dict[str, Any]:
    """A line over its area, from 0 to the peak, or to what is possible."""
    most = series.most or series.peak or 1.0
    first, last = series.time_s[0], series.time_s[-1]
    whole = (last - first) or 1.0
    points = [
        f"{HEIGHT * (at - first) / whole:.1f} {HEIGHT - HEIGHT * min(1.0, value / most):.0f}"
        for at, value in zip(series.time_s, series.value, strict=True)
    ]
    line = "M" + "L".join(points)
    return {
        "name": series.name,
        "line": line,
        "area": f"{line}L{HEIGHT} {HEIGHT}L0 {HEIGHT}z",
        "peak": amount(series.peak, series.unit),
        "most": amount(most, series.unit),
        "seconds": f"{whole:.0f} s",
    }


def amount(value: float, unit: str) -> str:
    """A figure of a series with its unit."""
    if unit == "B":
        return size(value)
    if unit == "B/s":
        return f"{size(value)}/s"
    return f"{value:.0f} {unit}" if value >= 1 or not value else f"{value:.2g} {unit}"


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
