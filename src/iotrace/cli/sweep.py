"""``iotrace sweep``: the same command at every point of a grid, then how many workers."""

from __future__ import annotations

import os
import time
from enum import Enum
from pathlib import Path
from typing import Annotated

import typer


class CacheState(str, Enum):
    """How data files stand in the page cache before each run."""

    asis = "asis"
    warm = "warm"
    cold = "cold"


def sweep(
    command: Annotated[
        list[str] | None,
        typer.Argument(metavar="[--] CMD [ARG]...", help="The command; {workers} in it is filled in."),
    ] = None,
    workers: Annotated[
        str | None, typer.Option("--workers", metavar="N,N...", help="Worker counts to compare.")
    ] = None,
    prefetch: Annotated[
        str | None, typer.Option("--prefetch", metavar="N,N...", help="Prefetch factors to compare.")
    ] = None,
    other: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=A,B...", help="Values for {NAME} in the command; repeatable."),
    ] = None,
    repeat: Annotated[
        int, typer.Option("--repeat", metavar="N", min=1, help="Runs of each point, interleaved.")
    ] = 1,
    steps: Annotated[
        int | None,
        typer.Option("--steps", metavar="N", min=2, help="End each run after this many measured steps."),
    ] = None,
    cache: Annotated[
        CacheState, typer.Option("--cache", help="The page cache before each run.")
    ] = CacheState.asis,
    ceiling: Annotated[
        bool, typer.Option(help="Also train on batches from memory: what no loader can beat.")
    ] = True,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", metavar="DIR", help="Where it goes; default: by time.")
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with the sweep in DIR: only what is missing.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
    csv: Annotated[
        Path | None, typer.Option("--csv", metavar="FILE", help="Write the table as CSV, too.")
    ] = None,
    io: Annotated[
        list[str] | None,
        typer.Option("--io", metavar="PATH", help="Trace POSIX calls below PATH alone; may be repeated."),
    ] = None,
) -> int:
    """Run CMD with every number of workers and say which is enough, and why not more.

    Without {workers} in CMD, num_workers of the training DataLoader is set as it is first iterated. Exit
    codes: 0 advice was given, 1 no point gave figures, 2 wrong usage, 130 interrupted (what there is, is
    printed and kept).
    """
    from iotrace.postrun import make_console
    from iotrace.report.sweep import print_sweep, write_csv
    from iotrace.report.sweep_live import Watcher
    from iotrace.sweeps.execute import execute
    from iotrace.sweeps.plan import plan_of
    from iotrace.sweeps.schedule import begin
    from iotrace.sweeps.schedule import resume as resume_sweep

    plan = plan_of(
        command or [],
        _axes(workers, prefetch, other or []),
        repeat=repeat,
        steps=steps,
        cache=cache.value,
        ceiling=ceiling,
        io=io or [],
    )
    cores = len(os.sched_getaffinity(0))
    if resume and output is None:
        from iotrace.errors import UsageError

        raise UsageError("--resume needs the sweep's directory", "iotrace sweep --resume -o DIR ...")
    directory = output or Path(f"iotrace-sweep-{time.strftime('%Y%m%d-%H%M%S')}")
    running = resume_sweep(plan, directory, cores) if resume else begin(plan, directory, cores)
    console = make_console(stderr=True)
    interrupted = False
    with Watcher(running, console) as watcher:
        try:
            running.run(execute, watcher.before, watcher.after)
        except KeyboardInterrupt:
            interrupted = True
    result = running.result()
    if csv is not None:
        write_csv(result, csv)
    if as_json:
        from iotrace.cli.output import print_json

        print_json(result)
    else:
        print_sweep(result, make_console(stderr=False))
    if interrupted:
        console.print(
            f"interrupted; go on with: iotrace sweep --resume -o {directory} ... (the same command)"
        )
        return 130
    return 0 if result.advice is not None else 1


def _axes(workers: str | None, prefetch: str | None, other: list[str]) -> dict[str, list[str]]:
    from iotrace.errors import UsageError
    from iotrace.sweeps import grid

    axes: dict[str, list[str]] = {}
    if workers is not None:
        axes[grid.WORKERS] = grid.numbers("--workers", workers)
    if prefetch is not None:
        axes[grid.PREFETCH] = grid.numbers("--prefetch", prefetch)
    for text in other:
        name, values = grid.placeholder(text)
        if name in axes:
            raise UsageError(f"--set {name} is given twice", "name each placeholder once")
        axes[name] = values
    return axes
