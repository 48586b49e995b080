"""Areas in a rectangle, close to squares: Bruls, Huizing, van Wijk: Squarified Treemaps (2000)."""

from __future__ import annotations

from collections.abc import Sequence

Rectangle = tuple[float, float, float, float]  # x, y, width, height


def squarify(areas: Sequence[float], within: Rectangle) -> list[Rectangle]:
    """Lay out `areas`, largest first and all above 0, so that they fill `within` in proportion."""
    x, y, width, height = within
    whole = sum(areas)
    if not areas or whole <= 0:
        return []
    scaled = [area * width * height / whole for area in areas]
    found: list[Rectangle] = []
    while scaled:
        side = min(width, height)
        count = 1
        while count < len(scaled) and _worst(scaled[: count + 1], side) <= _worst(scaled[:count], side):
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


def _worst(row: Sequence[float], side: float) -> float:
    """The largest ratio of a rectangle's sides, where `row` fills a strip along `side`."""
    whole = sum(row)
    return max(side * side * max(row) / (whole * whole), whole * whole / (side * side * min(row)))
