"""``iotrace merge``: many profilers' files, one timeline."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from iotrace.cli.parameters import (
    TARGET,
    Source,
    dask_cluster,
    dask_option,
    import_numpy,
    json_option,
    output_option,
    print_json,
    ranks_option,
)
from iotrace.errors import UsageError

if TYPE_CHECKING:
    from iotrace.merge.pool import Watch

_HELP = "see: iotrace merge --help"
_RECOVERED = 3
_INTERVAL_SECONDS = 0.1

_INPUT = Source(text=True)


@click.command()
@click.argument("inputs", metavar="[INPUT]...", type=_INPUT, nargs=-1)
@click.option(
    "--inputs",
    "more",
    metavar="INPUT",
    type=_INPUT,
    multiple=True,
    help="One or more inputs.",
)
@output_option("FILE", "FILE.json, .json.gz, .pftrace or .pftrace.gz; default: merged.pftrace.", kind=TARGET)
@click.option("--per-rank", is_flag=True, help="Write FILE-rankN for every rank.")
@click.option("--steps", metavar="A:B", default="", help="Merge only steps A up to, but not including, B.")
@click.option(
    "--time", "seconds", metavar="A:B", default="", help="Merge only seconds A to B since the merged start."
)
@click.option(
    "--around",
    metavar="WHAT",
    help="Merge only around the worst wait (worst), failure (failure) or step (N) of the first session.",
)
@click.option("--ranks", metavar="LIST", default="", help="Merge only these ranks: 0,2-3.")
@click.option("--drop", metavar="CATEGORY", multiple=True, help="Leave out a category; repeatable.")
@click.option(
    "--align", metavar="start", default="", help="Align the starts of inputs whose clocks are unknown."
)
@click.option(
    "--strict-clocks",
    is_flag=True,
    help="Refuse clocks that are assumed, worse than 100 us, or too coarse for the order between hosts.",
)
@click.option(
    "--processes",
    metavar="N",
    type=click.IntRange(min=1),
    help="Use at most N processes at a time; default: one for each core.",
)
@click.option(
    "--process-tables",
    is_flag=True,
    help="Write native output with processes and threads for SQL. Perfetto then sorts the processes.",
)
@click.option(
    "--device-tracks",
    is_flag=True,
    help="Add idle times, modules, launch queue and use of each device in traces of torch.profiler.",
)
@dask_option("inputs")
@json_option("the summary")
def merge(
    inputs: tuple[str, ...],
    more: tuple[str, ...],
    output: Path | None,
    per_rank: bool,
    steps: str,
    seconds: str,
    around: str | None,
    ranks: str,
    drop: tuple[str, ...],
    align: str,
    strict_clocks: bool,
    processes: int | None,
    process_tables: bool,
    device_tracks: bool,
    dask: str | None,
    as_json: bool,
) -> int:
    """Merge traces of several profilers into one timeline for Perfetto.

    INPUT is a trace (of torch.profiler, JAX, TensorFlow, dftracer, unitrace and others), a directory of
    traces, a pattern or a session.

    iotrace recognizes each input by its content and converts all times to CLOCK_REALTIME. It prints and
    stores how precisely it knows the clock of each input. It drops no event: slices that overlap get their
    own tracks.

    Exit codes: 0 merged, 1 not merged, 2 wrong usage, 3 merged, but some of an input could not be read.
    """
    given = [*inputs, *more]
    if not given:
        raise UsageError("there are no inputs", "iotrace merge INPUT... -o FILE")
    if align not in ("", "start"):
        raise UsageError(f"--align is start, not {align}", _HELP)
    if around is not None and (steps or seconds):
        raise UsageError("--around, --steps and --time exclude each other", _HELP)
    import_numpy()
    from iotrace.cli.parameters import ended_by_signals
    from iotrace.merge.plan import Options
    from iotrace.merge.run import merge as merge_files
    from iotrace.report.merge import print_summary

    options = Options(
        steps=_range(steps, int, "--steps", "100:110"),
        seconds=_range(seconds, float, "--time", "1.5:2"),
        span_ns=None if around is None else _around(given, around),
        ranks=ranks_option(ranks),
        dropped=frozenset(item.lower() for item in drop),
        per_rank=per_rank,
        align_start=align == "start",
        strict_clocks=strict_clocks,
        processes=processes,
        process_tables=process_tables,
        device_tracks=device_tracks,
    )
    target = output or Path("merged.pftrace")
    if dask is not None:  # workers have directories of their own
        given, target = [os.path.abspath(each) for each in given], target.absolute()
    with ended_by_signals(), dask_cluster(dask, processes) as cluster, _progress() as show:
        summary = merge_files(given, target, options, show, cluster)
    if as_json:
        print_json(summary)
    else:
        print_summary(summary)
    return _RECOVERED if summary.problems else 0


@contextmanager
def _progress() -> Iterator[Callable[[Watch], None]]:
    """Yield what shows progress on a terminal: bytes a second and the time left; nothing elsewhere."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich import progress

    from iotrace.report.console import make_console

    columns = (
        progress.TextColumn("{task.description}", markup=False),
        progress.BarColumn(),
        progress.DownloadColumn(binary_units=True),
        progress.TransferSpeedColumn(),
        progress.TimeRemainingColumn(),
    )
    # No refreshing by a thread: the merge's processes are forked.
    bar = progress.Progress(*columns, console=make_console(stderr=True), transient=True, auto_refresh=False)
    tasks: dict[str, progress.TaskID] = {}
    shown = 0.0

    def show(watch: Watch) -> None:
        nonlocal shown
        if watch.phase not in tasks:
            tasks[watch.phase] = bar.add_task(watch.phase, total=watch.total_bytes)
        bar.update(tasks[watch.phase], completed=watch.done_bytes)
        if time.monotonic() - shown > _INTERVAL_SECONDS:
            shown = time.monotonic()
            bar.refresh()

    with bar:
        yield show


def _around(given: list[str], what: str) -> tuple[int, int]:
    """Find the interval that `iotrace open --around` shows."""
    from iotrace.analysis.rank import SessionAnalysis
    from iotrace.session import names
    from iotrace.sources.session import open_session
    from iotrace.viewer.view import view_of_session

    session = next((Path(path) for path in given if (Path(path) / names.MANIFEST).is_file()), None)
    if session is None:
        raise UsageError("--around needs a session among the inputs", "--time A:B chooses by seconds")
    shown = view_of_session(SessionAnalysis(open_session(session)), what).shown_ns
    if shown is None:
        raise UsageError(f"{session} tells no time around which to look", "--time A:B chooses by seconds")
    return shown


def _range(text: str, number: Any, option: str, example: str) -> tuple[Any, Any] | None:
    if not text:
        return None
    first, colon, last = text.partition(":")
    try:
        bounds = number(first or 0), number(last) if last else number(2**40)
    except ValueError:
        bounds = (1, 0)
    if not colon or not 0 <= bounds[0] < bounds[1] <= 2**40:
        raise UsageError(f"{option} takes two numbers, the first below the second, such as {example}", _HELP)
    return bounds
