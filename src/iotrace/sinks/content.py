"""What a tracker gets of a result: headline metrics, rates over time, tables, files."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from iotrace.analysis.results import RankReport, Report, Verdict
from iotrace.report.blocks import Table, of_ranks, plain_value, write_csv
from iotrace.report.printing import encode_json
from iotrace.report.sweep import write_points
from iotrace.report.views import VIEWS, tables_of
from iotrace.session import names
from iotrace.session.manifest import write_atomically
from iotrace.sweeps.results import SweepResult, SweepVerdict
from iotrace.version import __version__

CONTENT = "content.json"
PREFIX = "iotrace"  # of every name in a tracker, where the program's own are, too
FILES = "files"  # a directory: what trackers keep as files

# Names of `iotrace report --json`, of each rank.
_HEADLINES = (
    *("steps.count", "steps.mean_ms", "steps.p95_ms", "steps.per_second", "steps.samples_per_second"),
    *("data_wait.raw_ms", "data_wait.exposed_ms", "data_wait.raw_wait_fraction", "data_wait.stall_fraction"),
    *("data_wait.causes_ms", "phases_ms", "breakdown_ms", "accelerator.busy_us", "accelerator.idle_us"),
    *("accelerator.comm_us", "io.bytes", "io.calls", "io.data_coverage", "startup.seconds"),
    *("speed.cpu_seconds", "system.cpu_pct_mean", "system.rss_peak_bytes"),
)
_OF_GPU = ("util_pct_mean", "memory_bytes_peak", "power_w_mean", "energy_j_per_step", "energy_j_per_sample")
_OF_POINT = ("per_second", "samples_per_second", "step_ms", "raw_wait_fraction", "rss_peak_bytes")

Cell = str | int | float | bool | None


class Point(msgspec.Struct, frozen=True):
    """A value at a step; `seconds` after the content's `started_ns`, None where no time belongs to it."""

    step: int
    seconds: float | None
    value: float


class Grid(msgspec.Struct, frozen=True):
    """A table: each row has a cell for every column."""

    columns: list[str]
    rows: list[list[Cell]]


class Content(msgspec.Struct, frozen=True, kw_only=True):
    """All that a tracker gets but files. `labels` are texts that tell one run from another."""

    name: str
    started_ns: int | None
    labels: dict[str, str]
    metrics: dict[str, float]
    series: dict[str, list[Point]]
    tables: dict[str, Grid]


def write_report(report: Report, directory: Path) -> None:
    """Write what a tracker gets of `report` to `directory`, which exists."""
    info = report.session
    views = {name: tables_of(name, report) for name in VIEWS}
    views["files"] = of_ranks(
        report.ranks, lambda rank: Table(title="Files", rows=rank.file_groups, fields=())
    )
    views["fixes"] = [Table(title="Fixes", rows=report.verdict.fixes, fields=())]
    series: dict[str, list[Point]] = {}
    for rank, prefix in _prefixed(report.ranks):
        for field in ("steps_per_second", "wait_fraction"):
            points = rank.speed.evolution if rank.speed else []
            known = [Point(each.first_step, each.at_seconds, getattr(each, field)) for each in points]
            if known:
                series[f"{prefix}over_time/{field}"] = known
    content = Content(
        name=Path(info.path).name,
        started_ns=info.started_ns,
        labels={**_labels(report.verdict, info.argv, info.path), "host": info.host or ""},
        metrics=dict(_headlines(report.ranks)),
        series=series,
        tables=dict(_grids(views)),
    )
    files = _write(content, report, "report.json", directory)
    for name, tables in views.items():
        if any(table.rows for table in tables):
            write_csv(tables, files / f"{name}.csv")
            (files / f"{name}.csv").chmod(names.FILE_MODE)


def write_sweep(result: SweepResult, directory: Path) -> None:
    """Write what a tracker gets of a sweep; its series go over the workers, or the number of the point."""
    metrics: dict[str, float] = {}
    if result.ceiling is not None:
        metrics["ceiling.per_second"] = result.ceiling.per_second
    if result.advice is not None and result.advice.workers is not None:
        metrics["advice.workers"] = result.advice.workers
    series: dict[str, list[Point]] = {}
    by_workers = len({row.workers for row in result.points} - {None}) == len(result.points)
    for number, row in enumerate(result.points):
        step = row.workers if by_workers and row.workers is not None else number
        for field in _OF_POINT:
            value = getattr(row, field)
            if value is not None:
                series.setdefault(f"points/{field}", []).append(Point(step, None, value))
    points = [Table(title="Points", rows=result.points, fields=())]
    content = Content(
        name=Path(result.path).name,
        started_ns=None,
        labels=_labels(result.verdict, result.argv, result.path),
        metrics=metrics,
        series=series,
        tables={"points": _grid(points)} if result.points else {},
    )
    table = _write(content, result, "sweep.json", directory) / "sweep.csv"
    write_points(result.points, table)
    table.chmod(names.FILE_MODE)


def _labels(verdict: Verdict | SweepVerdict, argv: Sequence[str], path: str) -> dict[str, str]:
    return {
        "verdict": verdict.text,
        "verdict.class": verdict.kind,
        "trust": verdict.trust.level,
        "command": " ".join(argv),
        "session": path,
        "version": __version__,
    }


def read(directory: Path) -> Content:
    """Read what `write_report` or `write_sweep` wrote."""
    return msgspec.json.decode((directory / CONTENT).read_bytes(), type=Content)


def _prefixed(ranks: Sequence[RankReport]) -> Iterator[tuple[RankReport, str]]:
    """Yield each rank and what its metrics begin with: nothing where it is the only one."""
    for rank in ranks:
        restart = f"-restart{rank.incarnation}" if rank.incarnation else ""
        yield rank, "" if len(ranks) == 1 else f"rank{rank.rank}{restart}/"


def _headlines(ranks: Sequence[RankReport]) -> Iterator[tuple[str, float]]:
    """Yield the known ones by name: what is unknown is no 0, it is left out."""
    for rank, prefix in _prefixed(ranks):
        for path in _HEADLINES:
            value: Any = rank
            for name in path.split("."):
                value = getattr(value, name, None)
            if isinstance(value, msgspec.Struct):
                value = msgspec.structs.asdict(value)
            entries = value.items() if isinstance(value, dict) else [("", value)]
            for entry, figure in entries:
                if figure is not None:
                    yield f"{prefix}{path}{'.' if entry else ''}{entry}", figure
        for gpu in rank.system.gpus:
            for name in _OF_GPU:
                if (figure := getattr(gpu, name)) is not None:
                    yield f"{prefix}system.gpus.{gpu.index}.{name}", figure


def _grids(views: dict[str, Sequence[Table]]) -> Iterator[tuple[str, Grid]]:
    """Yield a grid for each title of each view, with the rows of all ranks."""
    for name, tables in views.items():
        by_title: dict[str, list[Table]] = {}
        for table in tables:
            if table.rows:
                by_title.setdefault(table.title, []).append(table)
        for title, parts in by_title.items():
            short = "-".join(re.findall(r"[a-z0-9]+", re.split("[,:(]", title)[0].lower()))
            yield (name if len(by_title) == 1 or short == name else f"{name}/{short}"), _grid(parts)


def _grid(tables: Sequence[Table]) -> Grid:
    """Make one grid of tables with rows of one kind; what holds several values is JSON in its cell."""
    first = tables[0].rows[0]
    own = ["rank"] if "rank" not in first.__struct_fields__ else []
    rows = [
        [*(table.rank for _ in own), *map(plain_value, msgspec.to_builtins(row).values())]
        for table in tables
        for row in table.rows
    ]
    return Grid([*own, *first.__struct_encode_fields__], rows)


def _write(content: Content, result: Any, name: str, directory: Path) -> Path:
    """Write content and result; returns the directory of the files."""
    files = directory / FILES
    shutil.rmtree(files, ignore_errors=True)  # of an earlier report
    files.mkdir(names.DIRECTORY_MODE)
    write_atomically(directory / CONTENT, encode_json(content))
    write_atomically(files / name, encode_json(result))
    return files
