"""Lines of steps per second and of waits over the runs of a program: paths and places in a box."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import msgspec

from iotrace.analysis.compare.history import WORSE
from iotrace.ui.index import Entry
from iotrace.units import percent, three_digits

_MOST_RUNS = 40
_MARGIN = 8.0  # a cross, or the ring around one, stays within


class Lines(msgspec.Struct, frozen=True, kw_only=True):
    """Two lines in a box of `width` x `height`; `places` are those of runs, `worse` of runs that got worse.

    `most` is the rate at the top.

    `text` says the same to who sees no picture.
    """

    width: float
    height: float
    rate: str
    wait: str
    worse: list[tuple[float, float]]
    places: dict[str, tuple[float, float]]
    most: str
    text: str


def draw_lines(
    runs: Sequence[Entry], standings: Mapping[Path, str], width: float, height: float
) -> Lines | None:
    """Draw `runs`, the oldest on the left; None where fewer than two of them have figures."""
    shown = [each for each in runs if each.headline.steps_per_second is not None][-_MOST_RUNS:]
    if len(shown) < 2:
        return None
    most = max(each.headline.steps_per_second or 0.0 for each in shown) or 1.0

    def places(value: Callable[[Entry], float | None], top: float) -> dict[str, tuple[float, float]]:
        step = (width - 2 * _MARGIN) / (len(shown) - 1)
        return {
            each.key: (
                round(_MARGIN + number * step, 1),
                round(height - _MARGIN - (height - 2 * _MARGIN) * min(1.0, known / top), 1),
            )
            for number, each in enumerate(shown)
            if (known := value(each)) is not None
        }

    rate = places(lambda each: each.headline.steps_per_second, most)
    wait = places(lambda each: each.headline.wait_fraction, 1.0)
    worse = [rate[each.key] for each in shown if standings.get(each.place.path) == WORSE]
    return Lines(
        width=width,
        height=height,
        rate=_path(rate),
        wait=_path(wait),
        worse=worse,
        places=rate,
        most=three_digits(most),
        text=_text(shown, len(worse)),
    )


def _path(places: Mapping[str, tuple[float, float]]) -> str:
    return " ".join(f"{'L' if number else 'M'}{x} {y}" for number, (x, y) in enumerate(places.values()))


def _text(runs: Sequence[Entry], worse: int) -> str:
    first, last = runs[0].headline, runs[-1].headline
    rates = [three_digits(each.steps_per_second or 0.0) for each in (first, last)]
    text = f"{len(runs)} runs: from {rates[0]} to {rates[1]} steps/s"
    if first.wait_fraction is not None and last.wait_fraction is not None:
        text += f", waits from {percent(first.wait_fraction)} to {percent(last.wait_fraction)}"
    return f"{text}, {worse} got worse" if worse else text
