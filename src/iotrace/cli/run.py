"""``iotrace run``: trace a command, then say why it waited."""

from __future__ import annotations

import os
import shlex
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import click

from iotrace.cli.parameters import BEFORE_A_COMMAND, Size, import_numpy, io_option, log_option, output_option
from iotrace.errors import LaunchError
from iotrace.launch import traced_run, tracing_costs
from iotrace.launch.metrics import Exporter
from iotrace.launch.telemetry.start import DEFAULT_INTERVAL_MS, LONGEST_INTERVAL_MS, SHORTEST_INTERVAL_MS
from iotrace.report.printing import echo
from iotrace.session.names import DFTRACER, OFF, RECORDER
from iotrace.session.serving import served_at, tunnel_to

# With --quiet, the costs of tracing are measured after commands that took so long.
_LONG_SECONDS = 10.0


@click.command(context_settings=BEFORE_A_COMMAND)
@click.argument("command", metavar="[--] CMD [ARG]...", nargs=-1, type=click.UNPROCESSED)
@output_option("DIR", "The directory of the session; default: iotrace-<date>-<time>.")
@io_option
@click.option(
    "--io-by",
    type=click.Choice([RECORDER, DFTRACER]),
    default=RECORDER,
    show_default=True,
    help="The tracer of POSIX calls. dftracer logs every call and costs more.",
)
@click.option(
    "--torch-steps",
    metavar="WAIT:WARMUP:ACTIVE[:REPEAT]",
    default=traced_run.DEFAULT_STEPS,
    show_default=True,
    help="Training steps that torch.profiler records, or off.",
)
@click.option("--torch-options", metavar="LIST", default="", help="Data to add: shapes,stacks,memory,flops.")
@click.option(
    "--torch-activities",
    metavar="auto|cpu|all",
    default="auto",
    show_default=True,
    help="What torch.profiler records; auto leaves out Intel's devices where ranks are on several nodes.",
)
@click.option(
    "--cuda-snapshot",
    metavar="WARMUP:STEPS",
    help="Record the history of device memory in STEPS training steps after WARMUP, for memory_viz.",
)
@click.option(
    "--telemetry/--no-telemetry",
    default=True,
    show_default=True,
    help="Sample processes, host and GPUs, in a separate process.",
)
@click.option(
    "--telemetry-interval",
    "telemetry_ms",
    metavar="MS",
    type=click.IntRange(SHORTEST_INTERVAL_MS, LONGEST_INTERVAL_MS),
    default=DEFAULT_INTERVAL_MS,
    show_default=True,
    help="Time between two samples of the processes. The host is sampled once a second.",
)
@click.option(
    "--max-size",
    "most_bytes",
    metavar="SIZE",
    type=Size(),
    default="10GiB",
    show_default=True,
    help="Drop the oldest POSIX calls of a session larger than SIZE, and keep their sums; or off.",
)
@click.option(
    "--metrics",
    metavar="[HOST:]PORT|FILE.prom",
    help="Serve metrics for Prometheus while CMD runs, on 127.0.0.1 unless HOST says so; or write FILE.prom.",
)
@click.option("-q", "--quiet", is_flag=True, help="Print no line of iotrace, and write no timeline.")
@log_option
def run(
    command: tuple[str, ...],
    output: Path | None,
    io: tuple[str, ...],
    io_by: str,
    torch_steps: str,
    torch_options: str,
    torch_activities: str,
    cuda_snapshot: str | None,
    telemetry: bool,
    telemetry_ms: int,
    most_bytes: int,
    metrics: str | None,
    quiet: bool,
    log: tuple[str, ...],
) -> int:
    """Run CMD traced and report why it waited for data.

    CMD keeps its output, signals and exit code. iotrace prints the directory of the session before CMD
    starts, and the report when CMD has ended, both on standard error.

    Exit codes: CMD's own, 128+N if signal N ended CMD, 127 if CMD was not found, 126 if CMD is not
    executable, 125 if iotrace could not start CMD.
    """
    torch = traced_run.settings(torch_steps, torch_options, torch_activities, cuda_snapshot)
    sampled_ms = telemetry_ms if telemetry else None
    if most_bytes and not telemetry and _is_given("most_bytes"):
        raise LaunchError("--max-size needs the sidecar, which --no-telemetry leaves out", "leave one out")
    exporter = Exporter(metrics) if metrics is not None else None

    def announce(directory: Path) -> None:
        exported = exporter.start(directory) if exporter is not None else ""
        if not quiet or exported.startswith("no "):
            _announce(directory, exported, quiet)
        _warn_of_absent(io)

    begun = time.monotonic()
    try:
        done = traced_run.run(list(command), output, list(io), torch, sampled_ms, announce, most_bytes, io_by)
    finally:
        if exporter is not None:
            exporter.stop()
    if done.first and (log or not quiet):  # one report for all launchers of a job
        _report(done.session, log, quiet)
    elif done.first and time.monotonic() - begun >= _LONG_SECONDS:
        _measure_costs(done.session)
    return done.exit_code


def _is_given(parameter: str) -> bool:
    """Say whether the user gave the option."""
    source = click.get_current_context().get_parameter_source(parameter)
    return source is not None and source.name == "COMMANDLINE"


def _announce(directory: Path, exported: str, quiet: bool) -> None:
    """Say that the command is traced, where to, and how to look meanwhile; `quiet`: only what failed."""
    shown = shlex.quote(str(directory))
    lines = [f"iotrace: tracing into {shown}", f"iotrace: while it runs: iotrace top {shown}"]
    if exported:
        lines = [*([] if quiet else lines), f"iotrace: {exported}"]
    with suppress(Exception):  # this line is a comfort alone
        if not quiet and (address := served_at(directory)) is not None:
            lines.append(f"iotrace: in the browser: {address}")
            if tunnel := tunnel_to(address):
                lines.append(f"iotrace: where the browser is, first: {tunnel}")
    with suppress(OSError, ValueError, AttributeError):  # standard error is full, closed, or nobody reads it
        echo(*lines, err=True)


def _warn_of_absent(io: Sequence[str]) -> None:
    """Say which paths of --io are not there: CMD may make them, and a typing error would trace nothing."""
    absent = [path for path in io if path != OFF and not os.path.lexists(path)]
    with suppress(OSError, ValueError, AttributeError):
        for path in absent:
            echo(f"iotrace: --io {path}: there is no such path now; I/O elsewhere is not traced", err=True)


def _leave_deleted_directory() -> None:
    """Go to the root where CMD deleted the working directory: much of what reads files asks where it is."""
    try:
        os.getcwd()
    except OSError:
        os.chdir("/")


def _measure_costs(directory: Path) -> None:
    """Measure what tracing cost, for a later report; without these figures it says so."""
    with suppress(Exception, KeyboardInterrupt):
        _leave_deleted_directory()
        tracing_costs.CostMeasurement(directory).finish()


def _report(directory: Path, log: tuple[str, ...], quiet: bool) -> None:
    """Print the report. Whatever happens here, CMD has had its run, and its exit code counts."""
    try:
        _leave_deleted_directory()
        import_numpy()
        from iotrace.postrun import finish

        finish(directory, log=log, quiet=quiet)
    except (Exception, KeyboardInterrupt) as error:  # a broken installation; Ctrl-C during the imports
        with suppress(OSError, ValueError, AttributeError):
            echo(f"iotrace: no report: {error!r}", err=True)
    try:
        sys.stderr.flush()
    except (OSError, ValueError, AttributeError):
        sys.stderr = None  # else the interpreter tries again at its exit, fails, and changes the exit code
