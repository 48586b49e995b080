"""The sentences of a check: what a figure is, what grew, and why that may be chance."""

from __future__ import annotations

from collections.abc import Sequence

from iotrace.analysis.compare.results import Comparison, Condition, StageChange, WholeRun
from iotrace.units import digits, size


def figure_text(item: Condition) -> str:
    """Say what the figure of a condition is."""
    where = (item.where or "").replace("ranks[", "rank ", 1).replace("].", ": ", 1)
    return f"{where} is {_figure(item.where or '', item.value)}"


def _figure(name: str, value: float | None) -> str:
    """Write a value as its condition does: shares in percent."""
    if value is None:
        return "unknown"
    return f"{100 * value:.1f} %" if name.endswith("_fraction") else f"{value:.4g}"


def noise(noise_pct: float, baselines: int, sessions: int) -> str:
    """Say why a change may be chance, and what would tell it from chance."""
    more = "more runs on both sides" if baselines + sessions > 2 else "several baselines"
    return f"runs of one program may differ by {noise_pct:.0f} % here; {more} would show less"


def counted(change: StageChange) -> str:
    """Say how many more bytes are decoded for a sample."""
    before, after = (size(size_bytes) for size_bytes in change.decoded_bytes or ())
    grown = f"{change.decoded_change_pct:+.1f} % of bytes"
    return f"{change.what}: {grown}, counted: {before} -> {after} decoded a sample"


def because(comparison: Comparison) -> str:
    """Name what made the step longer: the part that grew most, and the settings that differ."""
    grew = next((change for change in comparison.changed if change.by_ms > 0), None)
    reasons = [f"{grew.what} +{grew.by_ms:.1f} ms"] if grew is not None else []
    reasons += [f"{item.what} {item.values[0]} -> {item.values[1]}" for item in comparison.settings]
    return f": {', '.join(reasons)}" if reasons else ""


def started(whole: WholeRun) -> str:
    """Say what a step takes in all, and what of that starting workers does."""
    in_all, starting = (f"{one:.1f} -> {other:.1f} ms" for one, other in (whole.step_ms, whole.starting_ms))
    return (
        f"starting workers: {whole.change_pct:+.0f} % for a step in all, {in_all}, of which starting workers "
        f"and first batches {starting}"
    )


def costs(change: StageChange) -> str:
    before, after = change.cost_ms
    clock = "CPU" if change.clock == "cpu" else "time"
    return f"{digits(before)} -> {digits(after)} ms of {clock} a sample"


def percents(change_pct: float, ci95_pct: Sequence[float]) -> str:
    return f"{change_pct:+.1f} % (95 %: {ci95_pct[0]:+.1f} to {ci95_pct[1]:+.1f})"
