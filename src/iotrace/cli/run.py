"""``iotrace run``: trace a command, then say why it waited."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from iotrace.errors import IotraceError
from iotrace.launch import capture
from iotrace.launch.job import tasks_of
from iotrace.launch.place import await_others

# Tasks of one start end together, or the scheduler ends them.
_OTHERS_SECONDS = 15.0


def run(
    command: Annotated[
        list[str] | None, typer.Argument(metavar="[--] CMD [ARG]...", help="The command to run, unchanged.")
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", metavar="DIR", help="The session's directory; default: by time."),
    ] = None,
    io: Annotated[
        list[str] | None,
        typer.Option("--io", metavar="PATH", help="Trace POSIX calls below PATH alone; may be repeated."),
    ] = None,
    quiet: Annotated[
        bool, typer.Option("-q", "--quiet", help="No report at the end, no timeline: the session alone.")
    ] = False,
) -> int:
    """Run CMD traced and report why it waited for data.

    CMD's output, signals and exit code are its own; the report goes to standard error. Exit codes: CMD's
    own, 128+N if signal N ended it, 127 not found, 126 not executable, 125 if iotrace could not start it.
    """
    directory = output or capture.default_directory()
    run = capture.run(command or [], directory, io or [])
    if run.first and not quiet:  # one report for all launchers of a job
        _report(directory)
    return run.exit_code


def _report(directory: Path) -> None:
    """Whatever happens here, the command has had its run, and its exit code counts."""
    again = f"the session is kept: iotrace report {directory}"
    try:
        _print_report(directory)
    except Exception as error:  # a defect of ours, too: the command's exit code counts
        what = str(error) if isinstance(error, IotraceError | OSError) else repr(error)
        _try_to_say(f"iotrace: no report: {what}; {again}")
    except SystemExit:  # rich's way of saying that nobody reads standard error
        pass
    except KeyboardInterrupt:
        _try_to_say(f"iotrace: interrupted; {again}")
    try:
        sys.stderr.flush()
    except (OSError, ValueError, AttributeError):
        sys.stderr = None  # else the interpreter tries again at its exit, fails, and changes the exit code


def _try_to_say(message: str) -> None:
    try:
        print(message, file=sys.stderr)
    except (OSError, ValueError):  # standard error is full, closed, or nobody reads it
        pass


def _print_report(directory: Path) -> None:
    from iotrace.cli.shared import load, make_console, write_timelines
    from iotrace.report.terminal import print_next, print_report

    console = make_console(stderr=True)
    console.print()
    with console.status("waiting for the other launchers of the job"):
        running = await_others(directory, tasks_of(os.environ), _OTHERS_SECONDS)
    if running:
        _try_to_say(f"iotrace: {running} more launchers of the job still run; this is what there is so far")
    session, result = load(directory, console)
    timelines = write_timelines(session, console)
    print_report(result, console)
    print_next(result, timelines, console)
