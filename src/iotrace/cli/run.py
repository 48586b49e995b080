"""``iotrace run``: trace a command, then say why it waited."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from iotrace.launch import capture, torch_settings
from iotrace.launch.telemetry.start import DEFAULT_INTERVAL_MS, LONGEST_INTERVAL_MS, SHORTEST_INTERVAL_MS


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
    torch_steps: Annotated[
        str,
        typer.Option(
            "--torch-steps",
            metavar="WAIT:WARMUP:ACTIVE[:REPEAT]",
            help="When torch.profiler runs, in steps of the training loader; or: off.",
        ),
    ] = torch_settings.DEFAULT_STEPS,
    torch_options: Annotated[
        str,
        typer.Option("--torch-options", metavar="LIST", help="Of: shapes,stacks,memory,flops."),
    ] = "",
    torch_activities: Annotated[
        str,
        typer.Option("--torch-activities", metavar="cpu|all", help="What torch.profiler records."),
    ] = "all",
    telemetry: Annotated[
        bool, typer.Option("--telemetry/--no-telemetry", help="Sample processes, host and GPUs from beside.")
    ] = True,
    telemetry_ms: Annotated[
        int,
        typer.Option(
            "--telemetry-interval",
            metavar="MS",
            min=SHORTEST_INTERVAL_MS,
            max=LONGEST_INTERVAL_MS,
            help="How often, for processes; their host is sampled once a second.",
        ),
    ] = DEFAULT_INTERVAL_MS,
    quiet: Annotated[
        bool, typer.Option("-q", "--quiet", help="No report at the end, no timeline: the session alone.")
    ] = False,
) -> int:
    """Run CMD traced and report why it waited for data.

    CMD's output, signals and exit code are its own; the report goes to standard error. Exit codes: CMD's
    own, 128+N if signal N ended it, 127 not found, 126 not executable, 125 if iotrace could not start it.
    """
    directory = output or capture.default_directory()
    torch = torch_settings.settings(torch_steps, torch_options, torch_activities)
    run = capture.run(command or [], directory, io or [], torch, telemetry_ms if telemetry else None)
    if run.first and not quiet:  # one report for all launchers of a job
        _report(directory)
    return run.exit_code


def _report(directory: Path) -> None:
    """Whatever happens here, the command has had its run, and its exit code counts."""
    try:
        from iotrace.postrun import tell

        tell(directory)
    except Exception as error:  # a broken installation
        print(f"iotrace: no report: {error!r}", file=sys.stderr)
    try:
        sys.stderr.flush()
    except (OSError, ValueError, AttributeError):
        sys.stderr = None  # else the interpreter tries again at its exit, fails, and changes the exit code
