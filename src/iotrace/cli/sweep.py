"""``iotrace sweep``: the same command at every point of a grid, then how many workers."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from iotrace.cli.parameters import (
    BEFORE_A_COMMAND,
    PATH,
    form_options,
    html_option,
    import_numpy,
    io_option,
    log_option,
    output_option,
    print_result,
    save_page,
)

if TYPE_CHECKING:
    from iotrace.sweeps.results import SweepResult
    from iotrace.sweeps.tune.results import TuneResult


@click.command(context_settings=BEFORE_A_COMMAND)
@click.argument("command", metavar="[--] CMD [ARG]...", nargs=-1, type=click.UNPROCESSED)
@click.option("--workers", metavar="N,N...", help="Numbers of workers to compare.")
@click.option("--prefetch", metavar="N,N...", help="Prefetch factors to compare.")
@click.option(
    "--set",
    "other",
    metavar="NAME=A,B...",
    multiple=True,
    help="Values for {NAME} in the command; repeatable.",
)
@click.option(
    "--repeat",
    metavar="N",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    help="Run each point N times, in turn with the other points.",
)
@click.option("--steps", metavar="N", type=click.IntRange(min=2), help="End each run after N measured steps.")
@click.option(
    "--cache",
    type=click.Choice(["asis", "warm", "cold"]),
    default="asis",
    show_default=True,
    help="Page cache before each run.",
)
@click.option(
    "--ceiling/--no-ceiling",
    default=True,
    show_default=True,
    help="Also train on batches from memory. No loader can be faster.",
)
@output_option("DIR", "The directory of the sweep; default: iotrace-sweep-<date>-<time>.")
@click.option("--resume", is_flag=True, help="Continue the sweep in DIR: run only the missing points.")
@form_options("the result")
@html_option("the result")
@click.option("--csv", metavar="FILE", type=PATH, help="Also write the table as CSV.")
@click.option("-v", "--verbose", is_flag=True, help="Also print the parts of each point's step.")
@io_option
@log_option
def sweep(
    command: tuple[str, ...],
    workers: str | None,
    prefetch: str | None,
    other: tuple[str, ...],
    repeat: int,
    steps: int | None,
    cache: str,
    ceiling: bool,
    output: Path | None,
    resume: bool,
    form: str,
    html: Path | None,
    csv: Path | None,
    verbose: bool,
    io: tuple[str, ...],
    log: tuple[str, ...],
) -> int:
    """Find how many workers are enough for CMD.

    iotrace runs CMD with each number of workers, and replaces {workers} in CMD. If CMD has no {workers},
    iotrace sets num_workers of the training DataLoader when the program first iterates it.

    Exit codes: 0 there is advice, 1 there is none (the points do not differ clearly, or no point has
    figures), 2 wrong usage, 130 interrupted (the results so far are printed and kept).
    """
    import_numpy()
    from iotrace.errors import UsageError
    from iotrace.report.console import make_console
    from iotrace.report.sweep_watch import Watcher
    from iotrace.sweeps.execute import execute
    from iotrace.sweeps.grid import parse_axes
    from iotrace.sweeps.plan import keep, make_plan
    from iotrace.sweeps.schedule import open_sweep

    plan = make_plan(
        list(command),
        parse_axes(workers, prefetch, other),
        repeat=repeat,
        steps=steps,
        cache=cache,
        ceiling=ceiling,
        io=list(io),
    )
    if resume and output is None:
        raise UsageError("--resume needs the sweep's directory", "iotrace sweep --resume -o DIR ...")
    running = open_sweep(plan, output, resume)
    console = make_console(stderr=True)
    interrupted = False
    with Watcher(running, console) as watcher:
        try:
            running.run(execute, watcher.before, watcher.after)
        except KeyboardInterrupt:
            interrupted = True
    result = running.result()
    keep(result)
    show(result, form, html, csv, verbose)
    if log:
        from iotrace.sinks.delivery import log_sweep

        log_sweep(result, log, running.directory)
    if interrupted:
        resumed = f"iotrace sweep --resume -o {running.directory}"
        console.print(f"interrupted; continue with: {resumed} ... (the same command)")
        return 130
    return 0 if result.advice is not None else 1


def show(
    result: SweepResult | TuneResult, form: str, html: Path | None, csv: Path | None, verbose: bool = False
) -> None:
    """Print the result of a sweep or a search, and write its page and its table."""
    from iotrace.report.sweep import print_sweep, print_tune, write_points
    from iotrace.sweeps.results import SweepResult

    points = result.points if isinstance(result, SweepResult) else result.runs
    if csv is not None:
        write_points(points, csv)
    if html is not None:
        from iotrace.analysis.page import columns_of_runs
        from iotrace.report.page.results import sweep_page, tune_page

        seen = columns_of_runs(row.sessions[-1] for row in points if row.status == "ok")
        page = sweep_page(result, seen) if isinstance(result, SweepResult) else tune_page(result, seen)
        save_page(page, html)
    if isinstance(result, SweepResult):
        print_result(result, form, "sweep_markdown", partial(print_sweep, verbose=verbose))
    else:
        print_result(result, form, None, print_tune)
