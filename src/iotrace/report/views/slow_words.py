"""Slow steps of a loop in words: how many, how much longer than usual, and why; what runs out."""

from __future__ import annotations

from collections.abc import Iterable

from iotrace.analysis.results import Forecast, RankReport, SlowLoopSteps
from iotrace.units import milliseconds, percent

_NAMES = {
    "garbage_collection": "garbage collection",
    "startup": "workers start",
    "restart": "workers end and start",
    "queued": "batches queued",
    "neighbours": "no CPU: others",
    "throttling": "no CPU: quota",
    "no_cpu": "no CPU",
    "unnamed": "not explained",
}
_WAITS = frozenset(("read", "decode", "transform", "collate", "transport"))
_MOST_PARTS = 3
_WORTH_A_LINE = 0.05  # of the time of the measured steps


def part_name(part: str) -> str:
    """Name a part of a slow step as people read it."""
    return f"wait for {part}" if part in _WAITS else _NAMES.get(part, part)


def slow_text(found: SlowLoopSteps) -> str:
    """Sum up the slow steps and their causes in one line."""
    parts = sorted(found.parts_ms.items(), key=lambda pair: -pair[1])[:_MOST_PARTS]
    named = [
        f"{part_name(part)} {percent(min(1.0, ms / found.over_ms))}"
        for part, ms in parts
        if ms >= 0.01 * found.over_ms
    ]
    if found.unnamed_ms >= 0.01 * found.over_ms:
        named.append(f"not explained {percent(found.unnamed_ms / found.over_ms)}")
    return (
        f"{found.count} of {found.measured} steps took {milliseconds(found.over_ms)} more than usual in all: "
        + ", ".join(named)
    )


def slow_facts(rank: RankReport) -> list[str]:
    """What a first screen says of slow steps: nothing where they hardly matter."""
    found, steps = rank.loop_slow_steps, rank.steps
    if found is None or not found.count or steps.mean_ms is None:
        return []
    return [slow_text(found)] if found.over_ms >= _WORTH_A_LINE * steps.mean_ms * steps.count else []


def soon(forecasts: Iterable[Forecast]) -> list[str]:
    """What a first screen says of what runs out: nothing of what ends before."""
    return [each.text for each in forecasts if each.seconds is not None]
