"""Sweeps and searches: what to use, why, what it saves; the points beside each other, also as CSV."""

from __future__ import annotations

import csv
import shlex
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from iotrace.analysis.results import Fix
from iotrace.errors import replacing
from iotrace.report.blocks import Block, Commands, Document, Grid, Head, Line, Paragraph, lines_of
from iotrace.report.layout import print_blocks, print_document, print_head, print_parts
from iotrace.report.screen import shown_path, trust_text
from iotrace.sweeps.grid import fill, named
from iotrace.sweeps.results import PointResult, SweepResult, SweepVerdict
from iotrace.sweeps.tune.results import TuneResult
from iotrace.units import digits, if_known, milliseconds, one_decimal, percent, size

_BANNERS = {
    "best": ("BEST", "good"),
    "at-ceiling": ("AT ITS CEILING", "good"),
    "no-advice": ("NO ADVICE", "warn"),
}
_DETAILS = ("steps/s", "compute ms", "make ms", "CPU", "stopped by")
_DETAILS_LEGEND = (
    "compute: the step less its wait (in brackets: above the ceiling's); make: a batch, by one worker"
)
_NARROW = 72  # columns below which a table shows less
_WIDE = 100  # columns from which a table of settings shows what was expected
_LONGEST = 36  # of a setting's name
_LEGEND = {
    "95 %": "interval of steps/s",
    "wait": "share of a step that waits for data",
    "predicted": "steps/s by the model, from the run with the fewest workers",
    "memory": "peak of all processes",
    "yours": "as the program has it",
    "best": "advised",
    "busy": "other programs took CPUs",
}


def sweep_head(found: SweepVerdict, change: Sequence[str] = ()) -> Head:
    """Say the verdict, its reason and the fixes; `change`: how the first one is typed, in lines."""
    label, tone = _BANNERS[found.kind]
    label = f"LIKELY {label}" if found.likely else label
    lines = [Line("Why", found.why)] if found.why else []
    lines += [Line("" if number else "Fix", fix.text, saved(fix)) for number, fix in enumerate(found.fixes)]
    lines += [Line("", text) for text in change[1:]]
    trust = trust_text(found.trust.level, found.trust.reasons)
    text = found.text.removeprefix(label).lstrip()
    return Head(tone, label, text, lines, found.trust.level, trust)


def saved(fix: Fix) -> str:
    """Say what a change saves; nothing where it was not measured."""
    return f"saves {milliseconds(fix.gain_ms_per_step)} a step" if fix.gain_ms_per_step else ""


def figures_of(row: PointResult) -> list[str]:
    """Write a point's steps per second, their interval, and the share of a step that waits."""
    return [
        if_known(row.per_second, rate, "-"),
        f"{rate(row.ci95[0])} - {rate(row.ci95[1])}" if row.ci95 else "",
        if_known(row.raw_wait_fraction, percent),
    ]


def rate(per_second: float) -> str:
    """Steps per second, as the tables have it."""
    return f"{per_second:.1f}" if per_second < 1000 else f"{per_second:.0f}"


def print_sweep(result: SweepResult, console: Console, verbose: bool = False) -> None:
    """Print what to use and how sure that is, the table with its legend, warnings, and what to type next."""
    points: list[Block] = [points_grid(result, console.width), *_legend(result, console.width)]
    if result.ceiling is not None:
        step = milliseconds(result.ceiling.step_ms)
        text = f"ceiling: {digits(result.ceiling.per_second)} steps/s ({step} a step), on batches from memory"
        points.append(Paragraph(text))
    details: list[Block] = [_details_grid(result), Paragraph(_DETAILS_LEGEND, tone="dim")]
    parts = [points, details] if verbose else [points]
    for row in result.points:
        if row.status not in ("ok", "not run"):
            text = f"{named(row.params)}: {row.status}: {row.reason}; its output: {_log(row)}"
            parts[-1].append(Paragraph(text))
    parts[-1] += _warnings(result.warnings)
    print_document(Document(sweep_head(result.verdict), [*parts, [Commands(following(result))]]), console)


def points_grid(result: SweepResult, width: int) -> Grid:
    """One row a point, the last column with marks; a narrow terminal shows no model and no memory."""
    headings, rows = point_rows(result, wide=width >= _NARROW)
    tones: dict[tuple[int, int | None], str] = {
        (at, None): "bold" if is_advised(row, result) else "" if row.status == "ok" else "dim"
        for at, row in enumerate(result.points)
    }
    return Grid(headings, rows, [at for at, name in enumerate(headings) if name in ("95 %", "")], tones=tones)


def point_rows(result: SweepResult, wide: bool = True) -> tuple[list[str], list[list[str]]]:
    """The table's headings and, for each point, its cells; `wide`: with model and memory."""
    headings = [
        *params_of(result.points),
        "steps/s",
        "95 %",
        "wait",
        *(("predicted", "memory") if wide else ()),
        "",
    ]
    rows = []
    for row in result.points:
        more = [if_known(row.predicted_per_second, rate), if_known(row.rss_peak_bytes, size)] if wide else []
        rows.append([*row.params.values(), *figures_of(row), *more, _marks(row, is_advised(row, result))])
    return headings, rows


def params_of(points: Sequence[PointResult]) -> list[str]:
    """Name what the points set: all of them the same."""
    return list(points[0].params) if points else []


def is_advised(row: PointResult, result: SweepResult) -> bool:
    """Whether this is the point that the sweep advises."""
    return result.advice is not None and row.params == result.advice.params


def _marks(row: PointResult, advised: bool) -> str:
    if row.status != "ok":
        return row.status
    marks = {"yours": row.yours, "best": advised, "busy": row.disturbed}
    return " ".join(mark for mark, holds in marks.items() if holds)


def _legend(result: SweepResult, width: int) -> list[Paragraph]:
    """Explain what the table shows, and only that."""
    headings, rows = point_rows(result, wide=width >= _NARROW)
    figures = zip(headings, *rows, strict=True) if rows else ()
    shown = {heading for heading, *cells in list(figures)[len(params_of(result.points)) :] if any(cells)}
    shown.update(mark for row in rows for mark in row[-1].split())
    parts = [f"{sign}: {meaning}" for sign, meaning in _LEGEND.items() if sign in shown]
    return [Paragraph(" · ".join(parts), tone="dim")] if parts else []


def _details_grid(result: SweepResult) -> Grid:
    """What each point's step is made of."""
    rows = [
        (
            *row.params.values(),
            if_known(row.per_second, rate, "-"),
            if_known(row.compute_ms, one_decimal) + if_known(row.contention_ms, " ({:+.1f})".format),
            if_known(row.production_ms, one_decimal),
            if_known(row.cpu_pct_mean, "{:.0f} %".format),
            row.stopped_by or "",
        )
        for row in result.points
    ]
    return Grid([*params_of(result.points), *_DETAILS], rows, ())


def following(result: SweepResult) -> list[tuple[str, str]]:
    """What to type next: the command as advised, a look at that point, what changed; or more runs."""
    command = shlex.join(["--", *result.argv])
    found: list[tuple[str, str]] = []
    chosen = None
    if result.advice is not None:
        chosen = next(row for row in result.points if row.params == result.advice.params)
        filled = shlex.join(["--", *fill(result.argv, chosen.params)])
        if filled != command:
            found.append((f"iotrace run {filled}", "as advised"))
        elif not chosen.yours:
            found.append((f"iotrace run {filled}", "once the change is made"))
        found.append((f"iotrace report {shown_path(chosen.sessions[-1])}", "how it waits then"))
        yours = next((row for row in result.points if row.yours and row is not chosen and row.sessions), None)
        if yours is not None:
            pair = f"{shown_path(yours.sessions[-1])} {shown_path(chosen.sessions[-1])}"
            found.append((f"iotrace compare {pair}", "what the change does"))
    else:
        seen = next((row for row in result.points if row.status == "ok" and row.sessions), None)
        if seen is not None:
            found.append((f"iotrace report {shown_path(seen.sessions[-1])}", "how a point ran"))
    # Runs beside busy programs stay what they are: more of them help only where the others are good.
    if not any(row.disturbed for row in result.points) and (chosen is None or chosen.repeats == 1):
        more = f"iotrace sweep --resume -o {shown_path(result.path)} --repeat 5 …"
        found.append((more, "the same command, run more often"))
    return found


def _log(row: PointResult) -> str:
    return str(Path(row.sessions[-1]).parent / "output.log") if row.sessions else "none"


_COLUMNS = (
    "per_second", "samples_per_second", "step_ms", "compute_ms", "contention_ms", "production_ms",
    "raw_wait_fraction", "cpu_pct_mean", "rss_peak_bytes", "predicted_per_second", "stopped_by",
    "prep_stall_ms", "fetch_stall_ms", "repeats", "spread_pct", "yours", "noisy", "status",
)  # fmt: skip


def write_points(points: Sequence[PointResult], path: Path) -> None:
    """Write points as CSV, a line each: its values, the figures, its interval; unknown is an empty cell."""
    names = list(dict.fromkeys(name for row in points for name in row.params))
    with replacing(path, "choose another --csv FILE") as made, made.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow([*names, *_COLUMNS, "ci95_low", "ci95_high"])
        for row in points:
            low, high = row.ci95 or (None, None)
            figures = [getattr(row, column) for column in _COLUMNS]
            writer.writerow([*(row.params.get(name) for name in names), *figures, low, high])


def _warnings(warnings: Sequence[str]) -> list[Paragraph]:
    return [Paragraph(f"warning: {each}", strong="warning: ", tone="caution") for each in warnings]


def print_tune(result: TuneResult, console: Console) -> None:
    """Print what to set and how it is typed, what is not worth it, then the settings that were run."""
    none = [
        f"{item.knob}: {item.interval_pct[0]:+.1f} to {item.interval_pct[1]:+.1f} % steps/s ({item.source})"
        for item in result.no_effect
    ]
    settings: list[Block] = [_settings_grid(result, console.width)]
    if result.ceiling is not None:
        per_second = digits(result.ceiling.per_second)
        settings.append(Paragraph(f"ceiling: {per_second} steps/s, on batches from memory"))
    settings += [
        Paragraph(f"not tried: {named(setting.params)}: {setting.why}") for setting in result.refused[:1]
    ]
    settings += _warnings(result.warnings)
    print_head(sweep_head(result.verdict, change_of(result)), console)
    print_blocks(lines_of("Not", none), console)
    print_parts([settings, [Commands(following_search(result)[:1])]], console)


def change_of(result: TuneResult) -> list[str]:
    """How to type the change that is advised, in lines; the first is the fix of the verdict."""
    return result.best.apply if result.best is not None and result.verdict.kind == "best" else []


def following_search(result: TuneResult) -> list[tuple[str, str]]:
    """What to type next: the rest of a search, or the command with the change and what it did."""
    command = shlex.join(["--", *result.argv])
    if not result.complete:
        return [(f"iotrace tune --resume -o {shown_path(result.path)} {command}", "")]
    if result.best is None or not change_of(result):
        return []
    found = [(f"iotrace run {command}", "with the change")]
    runs = {named(row.params): row.sessions for row in result.runs}
    own, best = runs.get(named({})), runs.get(named(result.best.params))
    if own and best:
        pair = f"{shown_path(own[-1])} {shown_path(best[-1])}"
        found.append((f"iotrace compare {pair}", "what the change does"))
    return found


def _settings_grid(result: TuneResult, width: int) -> Grid:
    headings, rows = setting_rows(result, wide=width >= _WIDE)
    short = [(name if len(name) <= _LONGEST else f"{name[: _LONGEST - 1]}…", *cells) for name, *cells in rows]
    return Grid(headings, short, [at for at, name in enumerate(headings) if name in ("setting", "95 %", "")])


def setting_rows(result: TuneResult, wide: bool = True) -> tuple[list[str], list[list[str]]]:
    """The headings and cells of the settings; `wide`: what was expected of each beside what it gave."""
    own = None if result.baseline is None else result.baseline.per_second
    more = ("predicted", "measured", "missed by") if wide else ()
    rows = []
    for row in result.runs:
        rate, predicted = row.per_second, row.predicted_per_second
        told = [
            f"{predicted / own:.2f}x" if predicted and own else "",
            f"{rate / own:.2f}x" if rate and own and row.params else "",
            f"{100 * (predicted / rate - 1):+.0f} %" if predicted and rate else "",
        ]
        name = named(row.params) or "as it is"
        rows.append([name, *figures_of(row), *told[: len(more)], str(row.repeats), _mark(row, result)])
    return ["setting", "steps/s", "95 %", "wait", *more, "runs", ""], rows


def _mark(row: PointResult, result: TuneResult) -> str:
    """Say whether these are your settings, the best, beside busy programs; or why there is no figure."""
    if row.status != "ok":
        return row.status
    is_best = result.best is not None and row.params == result.best.params
    marks = {
        "yours": not row.params,
        "best": is_best and result.verdict.kind != "no-advice",
        "busy": row.disturbed,
    }
    return " ".join(mark for mark, holds in marks.items() if holds)
